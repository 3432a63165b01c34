"""Mends a reduced script that fails as wanted but does not run in eager: sizes that do not fit each other any more.

Law: what it offers differs from the script in small integers and in `zeros` or `ones` of the last statement alone.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

_MOST_PLACES = 4
_VALUES = (1, 2, 3)


def mended(source: str) -> Iterator[str]:
    """Versions of `source` with other small sizes in its last statement, the nearest first."""
    tree = ast.parse(source)
    if not tree.body:
        return
    for node in ast.walk(tree.body[-1]):
        if isinstance(node, ast.List) and not node.elts:
            node.elts = [ast.Constant(1)]
    nodes = list(ast.walk(tree.body[-1]))
    sizes = [node for node in nodes if isinstance(node, ast.Constant) and type(node.value) is int and node.value > 0]
    fills = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr in ("zeros", "ones")]
    sizes, fills = sizes[:_MOST_PLACES], fills[:_MOST_PLACES]
    old = [node.value for node in sizes]
    choices = sorted(
        itertools.product(*(sorted({value, *_VALUES}, key=str) for value in old)),
        key=lambda chosen: sum(new != value for new, value in zip(chosen, old)),
    )
    for chosen in choices:
        for names in itertools.product(("zeros", "ones"), repeat=len(fills)):
            for node, value in zip(sizes, chosen):
                node.value = value
            for fill, name in zip(fills, names):
                fill.attr = name
            yield ast.unparse(tree)
