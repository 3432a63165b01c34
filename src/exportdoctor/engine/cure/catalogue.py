"""The shims that a search for a cure may use, and the sets of them that it can try next."""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.failure.classify import kind_of
from exportdoctor.core.failure.identity import same_failure
from exportdoctor.core.records.outcome import Failure, Outcome
from exportdoctor.core.run.report import Step
from exportdoctor.shims import SOUNDNESS, Shim, candidates, conflicts_with, order_shims, seen_in_failure
from exportdoctor.shims.own.frozen import static_axis
from exportdoctor.shims.own.modes import MAY_FIX
from exportdoctor.shims.rules.hoisting import hoist

Ids = tuple[str, ...]
_EQUALITY = re.compile(r"^(?!.*%).*==", re.M)
"""In what a program raises: a guard that may leave one size. One on a remainder leaves many."""
_PRECONDITION, SPECIALISED = SOUNDNESS.index("precondition"), SOUNDNESS.index("specialised")
Chain = tuple[tuple[str, Outcome], ...]
"""Each shim of a set with the failure for which it was added."""


@dataclass(frozen=True, kw_only=True)
class ShimCatalogue:
    """`axes` are the part's dynamic axes by name, each with its places; `allow` may hold `unsound`."""

    shims: Sequence[Shim]
    versions: Mapping[str, str]
    axes: Mapping[str, tuple[str, ...]]
    allow: Sequence[str]
    exporter: str

    def find_fitting(self, outcome: Outcome) -> tuple[Shim, ...]:
        """Shims that may cure this failure, soundest first; each named axis can be frozen by itself."""
        held = self._fitting.get(id(outcome))
        if held is None:  # the outcome is held too, so that no other gets its id
            held = self._fitting[id(outcome)] = (outcome, self._match_shims(outcome))
        return held[1]

    def _match_shims(self, outcome: Outcome) -> tuple[Shim, ...]:
        kind = kind_of(outcome, exporter=self.exporter)
        failure = outcome.failure or Failure(stage="export", exceptions=())
        seen = seen_in_failure(failure, kind=kind, exporter=self.exporter)
        found = candidates(seen, self.versions, allow=self.allow, shims=self.shims)
        if any(shim.id == "static-dim" for shim in found) and len(self.axes) > 1:
            found = (*found, *self._frozen_axes)
        if any(shim.id == hoist.SHIM.id for shim in found):
            found = (*found, *(hoist.of_function(name) for name in _functions_of(failure)))
        return found

    def put_in_order(self, names: Ids) -> Ids:
        """The ids in the order in which they are applied."""
        known = [shim for name in names if (shim := self._find(name)) is not None]
        return tuple(shim.id for shim in order_shims(known))

    def rank(self, names: Ids) -> int:
        """The place of the least sound of them in SOUNDNESS. A trace of values holds for its example alone."""
        baked = names and EXPORTERS[self.exporter].bakes_values
        found = [SOUNDNESS.index(shim.soundness) for name in names if (shim := self._find(name))]
        return max([*found, SOUNDNESS.index("specialised") if baked else 0])

    def soundness(self, names: Ids) -> str:
        """The soundness of the least sound of them."""
        return SOUNDNESS[self.rank(names)]

    def fixes(self, names: Ids) -> bool:
        """Whether one of them fixes a size or a value."""
        return any((shim := self._find(name)) is not None and shim.soundness == "specialised" for name in names)

    def shown_rank(self, names: Ids, outcome: Outcome) -> int:
        """As `rank`, but where the program refuses drawn inputs that eager takes `precondition` at best, and
        `specialised` where these show that a size or a value became constant. One that is wrong on inputs in another
        memory layout has that as a condition. Where torch decided which sizes become constant and none did, the set is
        `precondition`, too.

        A precondition says which inputs are refused, so it stays.
        """
        rank = self.rank(names)
        if rank == SPECIALISED and _fixes_nothing(outcome):
            rank = max(self.rank(tuple(name for name in names if name not in MAY_FIX)), _PRECONDITION)
        found = (self._find(name) for name in names)
        names_a_condition = any(shim is not None and shim.soundness == "precondition" for shim in found)
        rank = max(rank, _PRECONDITION) if outcome.wrong_layout is not None else rank
        if names_a_condition or not outcome.refused_sets:
            return rank
        return max(rank, SPECIALISED if outcome.fixes_inputs else _PRECONDITION)

    def shown_soundness(self, names: Ids, outcome: Outcome) -> str:
        """The soundness of a set after its proof."""
        return SOUNDNESS[self.shown_rank(names, outcome)]

    def clashes(self, shim: Shim, names: Ids) -> bool:
        """Whether it must not be applied together with one of these."""
        others = [(name, self._find(name)) for name in names]
        return any(conflicts_with(shim, name) or (one and conflicts_with(one, shim.id)) for name, one in others)

    def in_all_functions(self, name: str) -> str:
        """The shim that moves the work of all functions out of the program, where this one moves that of one; else
        itself."""
        shim = self._find(name)
        return name.partition(":")[0] if shim is not None and shim.soundness == "signature" else name

    def steps(self, names: Ids, outcome: Outcome) -> tuple[Step, ...]:
        """Each of them in words, after a proof."""
        found = [shim for name in names if (shim := self._find(name)) is not None]
        return tuple(
            Step(
                shim=shim.id,
                title=shim.title,
                soundness="precondition" if shim.id in MAY_FIX and _fixes_nothing(outcome) else shim.soundness,
                precondition=shim.precondition,
                places=self.axes.get(shim.id.partition(":")[2], ()) if shim in self._frozen_axes else (),
                file=shim.file,
            )
            for shim in found
        )

    def _find(self, name: str) -> Shim | None:
        """The shim of that id, one of a family made on demand."""
        kind, _, member = name.partition(":")
        return self._by_id.get(name) or (hoist.of_function(member) if kind == hoist.SHIM.id and member else None)

    @cached_property
    def _fitting(self) -> dict[int, tuple[Outcome, tuple[Shim, ...]]]:
        """What `find_fitting` gave, by the identity of the outcome: a search asks it often for few failures."""
        return {}

    @cached_property
    def _frozen_axes(self) -> tuple[Shim, ...]:
        return tuple(static_axis(axis, places) for axis, places in self.axes.items())

    @cached_property
    def _by_id(self) -> dict[str, Shim]:
        return {shim.id: shim for shim in (*self.shims, *self._frozen_axes)}


def _fixes_nothing(outcome: Outcome) -> bool:
    """Whether a program is known to have no constant size among those that are dynamic, and no guard that may make one,
    such as `size // 4 == 3`."""
    equal = any(row.refused and _EQUALITY.search(row.trouble) for row in outcome.numbers)
    return outcome.fixed == () and not outcome.fixes_inputs and not equal


def _functions_of(failure: Failure) -> tuple[str, ...]:
    """The qualified names of the functions of the user's code that fail, that fix a dynamic size, and where an unbacked
    symbol was created."""
    last = [frame for frame in failure.frames if frame.user][-1:]
    others = [failure.guard, *(origin.frame for origin in failure.origins)]
    born = [frame for frame in others if frame is not None and frame.user]
    names = (frame.function.partition(".<locals>")[0] for frame in (*last, *born))
    return tuple(dict.fromkeys(name for name in names if name.replace(".", "").isidentifier()))


@dataclass(frozen=True)
class ShimSet:
    """A set to try, each of its shims with the failure for which it was added, the newest, and that of the newest.

    `depth` is how many failures lie behind it, if the newest cures its own.
    """

    shims: Ids
    chain: Chain
    newest: str
    before: Outcome
    depth: int


@dataclass(frozen=True)
class OtherWay:
    """A set that leads to a failure which another set had led to before; `outcome` is that failure."""

    tried: ShimSet
    outcome: Outcome


Price = tuple[int, int, bool, int, int]
"""The cheapest set comes first: the soundest, then the deepest, then one that has one shim in place of several, then by
the newest shim's own rank."""


class CandidateQueue:
    """The sets not tried yet, and the failures that were met."""

    def __init__(self, catalogue: ShimCatalogue) -> None:
        self.met: list[Outcome] = []
        self._catalogue = catalogue
        self._sets: list[tuple[Price, ShimSet | OtherWay]] = []
        self._priced: dict[frozenset[str], tuple[int, int, bool, int]] = {}
        self._taken: set[frozenset[str]] = set()
        self._led_to: list[tuple[Ids, Outcome]] = []
        self._numbers = itertools.count()

    def widen(self, tried: ShimSet, outcome: Outcome) -> None:
        """`outcome` is the failure under `tried`: each shim that may cure it can be added."""
        self.met.append(outcome)
        fitting = self._catalogue.find_fitting(outcome)
        self._add(tried, outcome, fitting)
        self._add_one_for_several(tried, fitting)

    def postpone(self, tried: ShimSet, outcome: Outcome) -> None:
        """`outcome` was met under another set, which was widened. This one is when all as sound were tried in vain."""
        self._push((self._catalogue.rank(tried.shims), 0, True, 0), OtherWay(tried, outcome))

    def note_failure(self, tried: ShimSet, outcome: Outcome) -> None:
        """The failure under `tried`: none of its shims cures that."""
        self._led_to.append((tried.shims, outcome))

    def next(self, at_odds: Collection[str]) -> tuple[Price, ShimSet] | None:
        """The cheapest set that was not tried yet.

        Those come last whose newest shim does not cure the failure for which it was added: another set with it has led
        to that failure.

        Another way to a failure is taken with the shims `at_odds` alone: the others do not depend on the way.
        """
        while self._sets:
            price, cheapest = heapq.heappop(self._sets)
            if isinstance(cheapest, ShimSet):
                if self._is_taken(cheapest):
                    continue
                if price[0] < len(SOUNDNESS) and self._is_in_vain(cheapest):
                    self._push((len(SOUNDNESS), *price[1:4]), cheapest)
                    continue
                self._taken.add(frozenset(cheapest.shims))
                return price, cheapest
            fitting = self._catalogue.find_fitting(cheapest.outcome)
            others = [shim for shim in fitting if shim.id in at_odds]
            self._add(cheapest.tried, cheapest.outcome, others)
            if price[0] + 1 < len(SOUNDNESS):  # less sound sets may show others that are at odds
                self._push((price[0] + 1, 0, True, 0), cheapest)
        return None

    def next_sets(self, count: int) -> list[Ids]:
        """The sets that follow, cheapest first, if what is tried now leads nowhere."""
        cheapest = (one for _, one in heapq.nsmallest(count, self._sets) if isinstance(one, ShimSet))
        left = (one for one in cheapest if not self._is_taken(one) and not self._is_in_vain(one))
        return list(dict.fromkeys(one.shims for one in left))

    def _is_taken(self, one: ShimSet) -> bool:
        return frozenset(one.shims) in self._taken

    def _is_in_vain(self, one: ShimSet) -> bool:
        """Its newest shim, or the one that does in all functions what that does in one, was there when its failure
        occurred."""
        exporter, in_all = self._catalogue.exporter, self._catalogue.in_all_functions(one.newest)
        return any(
            not {one.newest, in_all}.isdisjoint(shims) and same_failure(one.before, outcome, exporter=exporter)
            for shims, outcome in self._led_to
        )

    def _add(self, tried: ShimSet, outcome: Outcome, others: Iterable[Shim]) -> None:
        for shim in others:
            if shim.id not in tried.shims and not self._catalogue.clashes(shim, tried.shims):
                self._push_set(tried, shim, (*tried.chain, (shim.id, outcome)), before=outcome)

    def _add_one_for_several(self, tried: ShimSet, others: Iterable[Shim]) -> None:
        """A shim that moves work out of the program, in place of those of the set that do so for failures which it may
        cure too: fewer inputs are added so."""
        for shim in others:
            if shim.soundness != "signature":
                continue
            places = [nth for nth, one in enumerate(tried.chain) if self._may_replace(shim, *one)]
            if not places:
                continue
            first = tried.chain[places[0]][1]
            chain = {nth: one for nth, one in enumerate(tried.chain) if nth not in places}
            if not self._catalogue.clashes(shim, tuple(name for name, _ in chain.values())):
                chain[places[0]] = (shim.id, first)
                self._push_set(tried, shim, tuple(chain[nth] for nth in sorted(chain)), before=first, several=True)

    def _may_replace(self, shim: Shim, name: str, failure: Outcome) -> bool:
        same_kind = name != shim.id and self._catalogue.soundness((name,)) == shim.soundness
        return same_kind and any(one.id == shim.id for one in self._catalogue.find_fitting(failure))

    def _push_set(self, tried: ShimSet, shim: Shim, chain: Chain, *, before: Outcome, several: bool = False) -> None:
        every = self._catalogue.put_in_order(tuple(name for name, _ in chain))
        price = (self._catalogue.rank(every), -tried.depth, not several, shim.rank)
        known = self._priced.get(frozenset(every))
        if known is None or price < known:
            self._priced[frozenset(every)] = price
            self._push(price, ShimSet(every, chain, shim.id, before, tried.depth + 1))

    def _push(self, price: tuple[int, int, bool, int], candidate: ShimSet | OtherWay) -> None:
        heapq.heappush(self._sets, ((*price, next(self._numbers)), candidate))
