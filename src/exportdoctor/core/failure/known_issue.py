"""A known upstream issue, as the catalogue in the package's data folder states it, and the check of that catalogue.

Every entry that leaves here is usable: its expressions compile, its ranges parse, and a message that any
data-dependent guard has is never enough to accuse an issue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.core.exporters import Exporter
from exportdoctor.core.version_range import is_range

Stage = Literal["export", "decompose", "translate", "load", "run", "numbers", "save"]

# What torch says of any data-dependent value: no issue may be told from these words alone
_ANY_GUARD = tuple(
    f"Could not {asked} data-dependent expression {expression}"
    for asked in ("guard on", "extract specialized integer from")
    for expression in ("u0", "u0 > 1", "Eq(u0, 0)", "Eq(u0, 1)")
)
_LINK = re.compile(r"[\w.-]+/[\w.-]+#\d+")


class Clause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to recognise an issue. The catalogue's header says how each field is used."""

    exporters: tuple[Exporter, ...]
    stages: tuple[Stage, ...]
    exceptions: tuple[str, ...]
    message: str
    frames: str | None = None
    culprit: str | None = None
    raised_in: str | None = None
    unless: str | None = None
    frames_needed: bool = False
    dynamic: bool | None = None

    @property
    def places(self) -> bool:
        """Whether it says where in the code the failure lies."""
        return any((self.frames, self.culprit, self.raised_in))


class KnownIssue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A failure that upstream knows. `links` are `owner/repository#number`, the one to read first."""

    id: str
    title: str
    cause: str
    workaround: str
    shim_hint: str
    match: tuple[Clause, ...]
    links: tuple[str, ...]
    affected: str
    fixed_in: str | None = None
    fallback: bool = False
    alternatives: tuple[str, ...] = ()
    only_with: dict[str, str] = {}
    seen_with: dict[str, str] = {}
    reproduced: tuple[str, ...] = ()
    source_checked: bool = False


def issues_from(entries: Any) -> tuple[KnownIssue, ...]:
    """The catalogue's entries as records; an ExportdoctorError names the first one that is broken, and why."""
    if not isinstance(entries, list):
        raise _broken("as a whole", f"a list of entries was expected, found {type(entries).__name__}")
    issues = tuple(_issue(number, entry) for number, entry in enumerate(entries, start=1))
    ids = [issue.id for issue in issues]
    for issue in issues:
        trouble = next(_troubles(issue, ids), None)
        if trouble is not None:
            raise _broken(repr(issue.id), trouble)
    return issues


def _issue(number: int, entry: Any) -> KnownIssue:
    try:
        issue = msgspec.convert(entry, KnownIssue)
    except msgspec.ValidationError as error:
        name = repr(entry["id"]) if isinstance(entry, dict) and "id" in entry else f"number {number}"
        raise _broken(name, str(error)) from error
    prose = {name: " ".join(getattr(issue, name).split()) for name in ("title", "cause", "workaround", "affected")}
    return msgspec.structs.replace(issue, **prose)


def _troubles(issue: KnownIssue, ids: list[str]) -> Iterator[str]:
    if ids.count(issue.id) > 1:
        yield "its id is taken twice"
    if not issue.match:
        yield "it has no clause to match with"
    if not issue.links or not all(map(_LINK.fullmatch, issue.links)):
        yield f"links must be owner/repository#number, found {', '.join(issue.links) or 'none'}"
    yield from (f"no entry is called {other!r}, its alternative" for other in issue.alternatives if other not in ids)
    for name, text in (*issue.only_with.items(), *issue.seen_with.items()):
        if not is_range(text):
            yield f"{text!r} is no range of versions of {name}"
    for clause in issue.match:
        yield from _troubles_of(clause)


def _troubles_of(clause: Clause) -> Iterator[str]:
    for pattern in filter(None, (clause.message, clause.frames, clause.culprit, clause.raised_in, clause.unless)):
        try:
            re.compile(pattern)
        except re.error as error:
            yield f"{pattern!r} is no regular expression: {error}"
            return
    if not clause.message:
        yield "a clause needs a message"
    if clause.frames_needed and not clause.places:
        yield "frames are needed, and none are given"
    if not clause.frames_needed and any(re.search(clause.message, text, re.S) for text in _ANY_GUARD):
        yield "its message fits any data-dependent guard, so frames_needed must be set"


def _broken(name: str, why: str) -> ExportdoctorError:
    return ExportdoctorError(
        f"The catalogue of known issues is broken: entry {name}: {why}",
        hint="Mend data/known_issues.yaml in the installed package, or install exportdoctor again",
    )
