"""Groups the failing modules of a part by failure. A group becomes one finding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from exportdoctor.core.failure.identity import line_identity, refused_input, same_line
from exportdoctor.core.failure.signature import signature_of
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.engine.call_tree import depth
from exportdoctor.engine.verdicts.judge import ModuleVerdict


@dataclass
class FailureGroup:
    """The verdicts that show the same failure, in tree order."""

    key: tuple[str, ...]
    verdicts: list[ModuleVerdict] = field(default_factory=list)

    @property
    def leading_verdict(self) -> ModuleVerdict:
        """The verdict to report: of the deepest module that fails in its own code, the first of those.

        An input that is refused comes from outside, so that the outermost module is where it comes in.
        """
        own = [verdict for verdict in self.verdicts if verdict.blamed_module == verdict.fqn] or self.verdicts
        if refused_input(own[0].outcome) is not None:
            return min(own, key=lambda verdict: depth(verdict.fqn))
        return max(enumerate(own), key=lambda pair: (depth(pair[1].fqn), -pair[0]))[1]

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules whose own code shows it."""
        return tuple(dict.fromkeys(verdict.fqn for verdict in self.verdicts if verdict.blamed_module == verdict.fqn))


def group_failures(verdicts: list[ModuleVerdict], classes: Mapping[str, str]) -> list[FailureGroup]:
    """Group failing verdicts, given in tree order, by failure. `classes` has the class name of each module."""
    groups: dict[tuple[str, ...], FailureGroup] = {}
    for verdict in verdicts:
        key = _key(verdict, classes)
        found = groups.get(key) or _group_of_its_call(verdict, groups.values())
        (found or groups.setdefault(key, FailureGroup(key))).verdicts.append(verdict)
    return list(groups.values())


def _group_of_its_call(verdict: ModuleVerdict, groups: Iterable[FailureGroup]) -> FailureGroup | None:
    """The group of a failure that an outer module shows with the line that calls this one, which alone has no line."""
    if line_identity(verdict.outcome):
        return None
    for group in groups:
        first = group.verdicts[0]
        same = same_line(first.outcome, verdict.outcome) or _are_fixed_alike(first.outcome, verdict.outcome)
        if first.blamed_module == verdict.fqn and same:
            return group
    return None


def _are_fixed_alike(one: Outcome, other: Outcome) -> bool:
    """Whether the same function of torch takes a declared size as a number in both: it may be computed from others."""
    functions = [outcome.failure.fixed_by if outcome.failure is not None else "" for outcome in (one, other)]
    return bool(functions[0]) and functions[0] == functions[1]


def _key(verdict: ModuleVerdict, classes: Mapping[str, str]) -> tuple[str, ...]:
    """The line to blame, wherever the failure is met from. Without one, the class of the failing module counts too.

    An input that is refused is one failure in every module that is given it.
    """
    outcome = verdict.outcome
    refused = refused_input(outcome)
    if refused is not None:
        return "input", refused
    line = line_identity(outcome)
    if line and not outcome.status.ended_the_process:
        return line
    signature = signature_of(outcome)
    assert signature is not None
    return *(line or (signature.key,)), classes.get(verdict.blamed_module, "")
