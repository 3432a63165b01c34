"""One sweep over a source: every edit that a pass lists is offered once, and the accepted ones are kept.

The only place that decides which candidates are worth asking. Invariant: a candidate compiles, costs less
than what it would replace, uses nothing undefined that the start did not, and is acceptable to `Rules.kept`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Protocol, TypeAlias

from exportdoctor.reduce.search import Search
from exportdoctor.reduce.source.draft import Draft
from exportdoctor.reduce.source.tree import Edit


@dataclass(frozen=True)
class Rules:
    """What every candidate must satisfy, besides being smaller.

    `kept` is the caller's condition on the text, and cheap: it is not a question. `undefined` are the names
    that the start itself leaves undefined.
    """

    kept: Callable[[str], bool]
    undefined: frozenset[str]

    def allow(self, draft: Draft) -> bool:
        """Whether a draft may be proposed."""
        return draft.undefined <= self.undefined and self.kept(draft.text)


Edits: TypeAlias = Callable[[ast.Module], Iterable[Edit]]


class SourcePass(Protocol):
    """One sweep over a source, which returns it as it is or smaller."""

    def __call__(self, text: str, rules: Rules) -> Search[str, str]: ...


def one_sweep(edits: Edits) -> SourcePass:
    """Make a pass of a function that lists the edits of a tree, always in the same order, outermost first."""

    @wraps(edits)
    def sweep_once(text: str, rules: Rules) -> Search[str, str]:
        return sweep(text, rules, edits)

    return sweep_once


def sweep(text: str, rules: Rules, edits: Edits) -> Search[str, str]:
    """Offer each edit once; after an accepted one go on from the same place in the new list, never back.

    The place is a number, and after an edit it may point a little too far. What is skipped so is offered in
    the next round; what must not happen is a sweep that starts over after each success, and so asks n² times.
    """
    current = Draft.of(text)
    if current is None:
        return text
    passed = 0
    while True:
        offered: list[tuple[int, Draft]] = []
        index = yield _candidates(current, rules, edits, passed, offered)
        if index is None:
            return text
        passed, current = offered[index]
        text = current.text


def _candidates(
    current: Draft, rules: Rules, edits: Edits, passed: int, offered: list[tuple[int, Draft]]
) -> Iterator[str]:
    for place, edit in enumerate(edits(current.tree)):
        draft = current.edited(edit) if place >= passed else None
        if draft is not None and draft.cost < current.cost and rules.allow(draft):
            offered.append((place, draft))
            yield draft.text
