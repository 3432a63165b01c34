"""What a bisection found. Keys of `bisect --format json`."""

from __future__ import annotations

import msgspec

from exportdoctor.core.run.lane_matrix import Cell, FailureName


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A version, or a set of packages, and what was seen with it. `flaky`: the second time it was something else."""

    name: str
    cell: Cell
    flaky: bool = False


class CodeChange(msgspec.Struct, frozen=True, kw_only=True):
    """A function of the failing stack in the version that fails and the one that passes; no `diff`: it is the same.

    `note` says why there is none to show. Not `on_stack`: what the message or the script names, or statements that
    mention it.
    """

    file: str
    function: str
    diff: str = ""
    note: str = ""
    on_stack: bool = True


class VersionTurn(msgspec.Struct, frozen=True, kw_only=True):
    """Two neighbouring releases, each asked twice, of which `failing` shows the failure and `passing` passes.

    With `into` the second shows that other failure instead. `came`: the failing one is the later. `whole` is what the
    whole target shows with both, none where nothing larger was asked. `pin` is a requirement that works here, empty
    where none is known.
    """

    failing: str
    passing: str
    came: bool
    into: str = ""
    whole: tuple[Trial, ...] = ()
    changes: tuple[CodeChange, ...] = ()
    pin: str = ""


class VersionBisection(msgspec.Struct, frozen=True, kw_only=True):
    """Releases of one package. `about` is the smallest thing that fails, on which was searched; `here` the versions
    of everything else."""

    asked: str
    about: str
    package: str
    here: dict[str, str]
    failure: FailureName | None
    trials: tuple[Trial, ...]
    turns: tuple[VersionTurn, ...] = ()
    notes: tuple[str, ...] = ()
    script: str = ""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A package in the environment that works and in the one that fails; empty = it is not there."""

    package: str
    works: str
    fails: str

    @property
    def line(self) -> str:
        """In words."""
        return f"{self.package} {self.works or 'absent'} -> {self.fails or 'absent'}"


class EnvironmentBisection(msgspec.Struct, frozen=True, kw_only=True):
    """Two environments. Each of `alone` makes the failure by itself; if there is none, `together` does.

    `unknown` are names of sets of differences of which nothing is known.
    """

    asked: str
    about: str
    here: dict[str, str]
    failure: FailureName | None
    differences: tuple[Difference, ...]
    trials: tuple[Trial, ...]
    alone: tuple[Difference, ...] = ()
    together: tuple[Difference, ...] = ()
    unknown: tuple[str, ...] = ()
    changes: tuple[CodeChange, ...] = ()
    notes: tuple[str, ...] = ()
    script: str = ""
