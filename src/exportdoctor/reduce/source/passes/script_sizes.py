"""The sizes in a script: shrunk before its statements are, and at last changed so that it runs in eager mode too.

Small tensors and few symbols make every later question cheap. Sizes of a model hang together (heads divide widths,
three projections make one), so all multiples of a number are scaled at once; `shrink_integers` does the rest.
"""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from collections.abc import Iterator

from exportdoctor.reduce.search_protocol import Search

_LARGE = 8
_MOST = 5
_SPARED = 3
_SMALL = (2, 4)
_MOST_VARIED = 4
_VARIED_TO = (1, 2, 3)


def shrink_sizes(source: str) -> Search[str, str]:
    """The search for smaller integers in `source`; returns what it reached."""
    for offers in (shorten_lists, _without_dynamic_shapes, _with_ones_for_sizes):
        shorter = tuple(offers(source))
        index = yield shorter
        source = source if index is None else shorter[index]
    tried: set[int] = set()
    while True:
        size = next((value for value in _sizes(source) if value not in tried), None)
        if size is None or len(tried) >= _MOST:
            return source
        tried.add(size)
        offered = tuple(_scale_multiples(source, size))
        index = yield offered
        if index is not None:
            source = offered[index]


def shorten_embeddings(source: str) -> str:
    """`source` with short tables for embeddings: a vocabulary is a gigabyte, and a trace looks nothing up."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.nn.Embedding":
            for rows in node.args[:1]:
                if _is_large(rows):
                    rows.value = _LARGE  # type: ignore[attr-defined]
    text = ast.unparse(tree)
    return text if len(text) < len(ast.unparse(ast.parse(source))) else source


def _without_dynamic_shapes(source: str) -> Iterator[str]:
    """Without dynamic shapes: every symbol less makes each later question cheaper."""
    tree = ast.parse(source)
    for node in ast.walk(tree.body[-1]):
        if isinstance(node, ast.Call) and any(keyword.arg == "dynamic_shapes" for keyword in node.keywords):
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "dynamic_shapes"]
            yield ast.unparse(tree)


def _with_ones_for_sizes(source: str) -> Iterator[str]:
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


def shorten_lists(source: str) -> Iterator[str]:
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


def _scale_multiples(source: str, size: int) -> Iterator[str]:
    """Every multiple of `size` scaled so that it becomes small; then `size` alone."""
    for small in _SMALL:
        yield _scale(source, size, small, only=False)
    yield _scale(source, size, _SMALL[0], only=True)


def _scale(source: str, size: int, small: int, *, only: bool) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and _is_large(node):
            value = node.value
            assert isinstance(value, int)
            if value == size or (value % size == 0 and not only):
                node.value = value // size * small
    return ast.unparse(tree)


def return_last_values(source: str) -> str:
    """`source` with what each function computes last as its result.

    A cut keeps the failing call alone. In eager mode, or on a torch that has been mended, its caller would get None.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name != "__init__":
            _return_last(node.body)
    return ast.unparse(tree)


def _return_last(body: list[ast.stmt]) -> None:
    match body[-1]:
        case ast.Expr(value=value):
            body[-1] = ast.Return(value)
        case ast.For(body=[*_, ast.Expr(value=value)] as inner):
            inner[-1] = ast.parse(f"result = {ast.unparse(value)}").body[0]
            body.append(ast.Return(ast.Name("result", ast.Load())))
        case ast.With(body=inner) | ast.If(body=inner):
            _return_last(inner)


def widen_dynamic_sizes(source: str) -> str:
    """`source` with 2 for each size below in a dimension of a tensor of ones or zeros that is declared dynamic.

    torch takes a size of one as fixed, and says so only where nothing else fails: on a torch that has been mended.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree.body[-1]):
        match node:
            case ast.Call(args=[_, ast.Tuple(elts=given), *_], keywords=keywords):
                for keyword in keywords:
                    if keyword.arg == "dynamic_shapes":
                        specs = getattr(keyword.value, "values", getattr(keyword.value, "elts", ()))
                        for value, spec in zip(given, specs, strict=False):
                            _widen(value, spec)
    return ast.unparse(tree)


def _widen(value: ast.expr, spec: ast.expr) -> None:
    if isinstance(value, ast.Call) and isinstance(spec, ast.Dict):
        for key in spec.keys:
            place = key.value if isinstance(key, ast.Constant) else None
            size = value.args[place] if isinstance(place, int) and place < len(value.args) else None
            if isinstance(size, ast.Constant) and size.value in (0, 1):
                size.value = 2


def offer_eager_sizes(source: str) -> Iterator[str]:
    """Versions of `source` with other small sizes in its last statement, the nearest first.

    For a script that fails as wanted but whose module does not run in eager mode, because its sizes no longer fit each
    other. A version differs in small integers, in `zeros` or `ones`, and in tensors where the reducer put None.
    """
    tree = ast.parse(source)
    if not tree.body:
        return
    for node in ast.walk(tree.body[-1]):
        if isinstance(node, ast.List) and not node.elts:
            node.elts = [ast.Constant(1)]
    yield from _with_other_sizes(tree)
    if _with_tensors_for_none(tree.body[-1]):
        yield from _with_other_sizes(ast.parse(ast.unparse(tree)))


def _with_tensors_for_none(call: ast.stmt) -> bool:
    """Whether there was an input of None, which is a tensor now."""
    found = False
    for node in ast.walk(call):
        if isinstance(node, ast.Tuple):
            for place, given in enumerate(node.elts):
                if isinstance(given, ast.Constant) and given.value is None:
                    node.elts[place] = ast.parse("torch.ones(2)", mode="eval").body
                    found = True
    return found


def _with_other_sizes(tree: ast.Module) -> Iterator[str]:
    nodes = list(ast.walk(tree.body[-1]))
    sizes = [node for node in nodes if isinstance(node, ast.Constant) and type(node.value) is int and node.value >= 0]
    fills = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr in ("zeros", "ones")]
    sizes, fills = sizes[:_MOST_VARIED], fills[:_MOST_VARIED]
    old = [node.value for node in sizes]
    choices = sorted(
        itertools.product(*(sorted({value, *_VARIED_TO}, key=str) for value in old)),
        key=lambda chosen: sum(new != value for new, value in zip(chosen, old)),
    )
    for chosen in choices:
        for names in itertools.product(("zeros", "ones"), repeat=len(fills)):
            for node, value in zip(sizes, chosen):
                node.value = value
            for fill, name in zip(fills, names):
                fill.attr = name
            yield ast.unparse(tree)
