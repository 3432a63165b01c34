"""One sweep over a source: every edit that a pass lists is offered once, and the accepted ones are kept.

A candidate compiles, costs less than what it would replace, and uses nothing undefined that the start did not.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Protocol, TypeAlias

from exportdoctor.reduce.search_protocol import Search
from exportdoctor.reduce.source.source_version import SourceVersion
from exportdoctor.reduce.source.tree import Edit

Edits: TypeAlias = Callable[[ast.Module], Iterable[Edit]]


class SourcePass(Protocol):
    """One sweep over a source, which returns it as it is or smaller.

    `allowed` are the names that a candidate may leave undefined, because the start does.
    """

    def __call__(self, text: str, allowed: frozenset[str]) -> Search[str, str]: ...


def one_sweep(edits: Edits) -> SourcePass:
    """Make a pass of a function that lists the edits of a tree, always in the same order, outermost first."""

    @wraps(edits)
    def sweep_once(text: str, allowed: frozenset[str]) -> Search[str, str]:
        return sweep(text, allowed, edits)

    return sweep_once


def sweep(text: str, allowed: frozenset[str], edits: Edits) -> Search[str, str]:
    """Offer each edit once; after an accepted one go on from the same place in the new list, never back.

    The place is a number, and after an edit it may point a little too far. What is skipped so is offered in
    the next round; what must not happen is a sweep that starts over after each success, and so asks n² times.
    """
    current = SourceVersion.of(text)
    if current is None:
        return text
    passed = 0
    while True:
        offered: list[tuple[int, SourceVersion]] = []
        index = yield _candidates(current, allowed, edits, passed, offered)
        if index is None:
            return text
        passed, current = offered[index]
        text = current.text


def _candidates(
    current: SourceVersion, allowed: frozenset[str], edits: Edits, passed: int, offered: list[tuple[int, SourceVersion]]
) -> Iterator[str]:
    for place, edit in enumerate(edits(current.tree)):
        version = current.apply(edit) if place >= passed else None
        if version is not None and version.cost < current.cost and version.undefined <= allowed:
            offered.append((place, version))
            yield version.text
