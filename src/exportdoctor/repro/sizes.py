"""Shrinks the sizes of a script before its statements: small tensors and few symbols make every later question cheap.

Sizes of a model hang together (heads divide widths, three projections make one), so all multiples of a number are
scaled at once. The reducer's own pass over integers does the rest.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from exportdoctor.reduce import Search

_LARGE = 8
_MOST = 5
_SPARED = 3
_SMALL = (2, 4)


def shrink_sizes(source: str) -> Search[str, str]:
    """The search for smaller integers in `source`; returns what it reached."""
    for offers in (shorter_lists, _static, _ones):
        shorter = tuple(offers(source))
        index = yield shorter
        source = source if index is None else shorter[index]
    tried: set[int] = set()
    while True:
        size = next((value for value in _sizes(source) if value not in tried), None)
        if size is None or len(tried) >= _MOST:
            return source
        tried.add(size)
        offered = tuple(_scaled_versions(source, size))
        index = yield offered
        if index is not None:
            source = offered[index]


def light(source: str) -> Iterator[str]:
    """With short tables for embeddings: a vocabulary is a gigabyte, and a trace looks nothing up."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.nn.Embedding":
            for rows in node.args[:1]:
                if _is_large(rows):
                    rows.value = _LARGE  # type: ignore[attr-defined]
    text = ast.unparse(tree)
    if len(text) < len(ast.unparse(ast.parse(source))):
        yield text


def _static(source: str) -> Iterator[str]:
    """Without dynamic shapes: every symbol less makes each later question cheaper."""
    tree = ast.parse(source)
    for node in ast.walk(tree.body[-1]):
        if isinstance(node, ast.Call) and any(keyword.arg == "dynamic_shapes" for keyword in node.keywords):
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "dynamic_shapes"]
            yield ast.unparse(tree)


def _ones(source: str) -> Iterator[str]:
    """With 1 for every size, or for every size but one.

    `ear(sound) + picture` needs widths that fit; with 1 for all of them, the layer that makes them fit can go. The one
    that stays may be what is dynamic: a size of the inputs most likely, and one that several of them have.
    """
    given = Counter(_above_one(ast.parse(source).body[-1]))
    sizes = [*(size for size, _ in given.most_common()), *sorted(_above_one(ast.parse(source)))]
    for spared in (None, *tuple(dict.fromkeys(sizes))[:_SPARED]):
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and _is_integer(node) and node.value != spared:
                node.value = min(node.value, 1)  # type: ignore[type-var]
        text = ast.unparse(tree)
        if text != source:
            yield text


def shorter_lists(source: str) -> Iterator[str]:
    """With every long list of integers cut to a few: each entry may be a symbol to the tracer.

    A list of boundaries ends with a size, so what equals its old end becomes its new one.
    """
    for count in (3, 2, 4):
        tree = ast.parse(source)
        ends: dict[int, int] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.List) and len(node.elts) > _LARGE and all(map(_is_integer, node.elts)):
                values = [ast.literal_eval(one) for one in node.elts]
                ends[values[-1]] = values[count - 1]
                node.elts = node.elts[:count]
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and _is_large(node) and node.value in ends:
                node.value = ends[node.value]  # type: ignore[index]
        text = ast.unparse(tree)
        if ends and len(text) < len(source):
            yield text


def _above_one(tree: ast.AST) -> list[int]:
    return [node.value for node in ast.walk(tree) if _is_integer(node) and node.value > 1]  # type: ignore[attr-defined]


def _is_integer(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _sizes(source: str) -> list[int]:
    """The large integers, ascending."""
    return sorted({node.value for node in ast.walk(ast.parse(source)) if _is_large(node)})  # type: ignore[attr-defined]


def _is_large(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value >= _LARGE


def _scaled_versions(source: str, size: int) -> Iterator[str]:
    """Every multiple of `size` scaled so that it becomes small; then `size` alone."""
    for small in _SMALL:
        yield _scaled(source, size, small, only=False)
    yield _scaled(source, size, _SMALL[0], only=True)


def _scaled(source: str, size: int, small: int, *, only: bool) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and _is_large(node):
            value = node.value
            assert isinstance(value, int)
            if value == size or (value % size == 0 and not only):
                node.value = value // size * small
    return ast.unparse(tree)
