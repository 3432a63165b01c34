"""A shim's record: title, soundness, the failures that it may cure, the modules it fits. Only `apply` imports torch.

A shim is reversible: on exit from `apply` everything is restored, also after an error.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, get_args

from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.core.versions import is_in_range
from exportdoctor.shims.cure_pattern import Cure, FailureView
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.installed_sources import is_installed, source_of

Soundness = Literal["exact", "signature", "precondition", "specialised", "opaque", "unsound"]
SOUNDNESS: tuple[Soundness, ...] = get_args(Soundness)
"""From the soundest to what silences a guard or an assertion."""

SOUNDNESS_MEANS: Mapping[Soundness, str] = {
    "exact": "same values, same inputs, all shapes",
    "signature": ("same values, but part of the computation moves out of the graph, so the program takes other inputs"),
    "precondition": "exact if a stated condition holds, which is checked, or said not to be",
    "specialised": "a dimension or a value is fixed",
    "opaque": "leaves a custom op in the graph",
    "unsound": "silences a guard or an assertion; tried only with --allow unsound",
}

Enter = Callable[[ExportCall], AbstractContextManager[ExportCall]]


class NotApplicable(Exception):
    """The shim finds nothing to change in this call; the message names what it looked for, `shim` is its id."""

    shim = ""


class Unfit(NotApplicable):
    """The installed versions lack what it changes, whatever the call is."""


class ShimTrouble(ExportdoctorError):
    """A shim raises where it may not, or leaves something behind; the message names it."""


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """One attribute that a shim replaces, and its replacement. `target` and `by` are `package.module:qualified.name`.

    Instead of `by`, `rewrite` makes the new source from the old one; where no function is replaced, `before` and
    `after` show the change as code. `optional`: not every release has it.
    """

    target: str
    by: str = ""
    rewrite: Callable[[str], str] | None = None
    before: str = ""
    after: str = ""
    optional: bool = False

    def diff(self) -> str:
        """The change as a unified diff, empty where the target is not installed. Imports and applies nothing."""
        if self.before or self.after:
            return _diff(self.before, self.after, self.target, f"{self.target}, with the shim")
        old = source_of(self.target)
        if old is None:  # made in C, or nothing that has a name: a graph, the inputs
            new = "" if self.optional else source_of(self.by) or ""
            return _diff("", new, self.target.strip(":") or "the graph or the inputs", self.by)
        if self.rewrite is not None:
            # both as Python prints them, so that layout and comments are no difference
            return _diff(
                ast.unparse(ast.parse(old)) + "\n", self.rewrite(old), self.target, f"{self.target}, rewritten"
            )
        return _diff(old, source_of(self.by) or "", self.target, self.by)


@dataclass(frozen=True, kw_only=True)
class Shim:
    """A known cure. `needs` maps packages to version ranges, `""` = any; `rank` orders shims of equal soundness.

    `wants` are definitions, `package.module:name`, that must be installed. `problem` is why a provider's shim cannot be
    used at all, empty if it can. One that is `late` is applied after those that are not: it looks at what they leave.
    With `asserts`, its program asserts what it takes from the example's values, and may refuse others. `file` is the
    user's file that it comes from, empty for others.
    """

    id: str
    title: str
    soundness: Soundness
    enter: Enter
    cures: tuple[Cure, ...] = ()
    provider: str = "own"
    does: str = ""
    precondition: str = ""
    needs: Mapping[str, str] = field(default_factory=dict)
    link: str = ""
    retire: str = ""
    rank: int = 50
    conflicts: tuple[str, ...] = ()
    replaces: tuple[Replacement, ...] = ()
    wants: tuple[str, ...] = ()
    problem: str = ""
    late: bool = False
    asserts: bool = False
    file: str = ""

    def apply(self, call: ExportCall) -> AbstractContextManager[ExportCall]:
        """Within it the shim holds; what it yields is the call to export. Raises NotApplicable."""
        return self.enter(call)

    def diff(self) -> str:
        """The unified diff of everything that the shim replaces and that is installed here; never empty."""
        found = "".join(replacement.diff() for replacement in self.replaces)
        return found or f"--- nothing that {self.id} replaces is installed here\n"

    def may_cure(self, seen: FailureView) -> bool:
        """Whether one of its patterns matches the failure. Pure, and no promise."""
        return any(cure.matches(seen) for cure in self.cures)

    def fits(self, versions: Mapping[str, str]) -> str | None:
        """Why it cannot be used with these versions, by package; `None` where it can."""
        if self.problem:
            return self.problem
        for package, wanted in self.needs.items():
            found = versions.get(package)
            if found is None:
                return f"{package} is not installed"
            if wanted and is_in_range(found, wanted) is False:
                return f"made for {package} {wanted}, found {found}"
        missing = next((target for target in self.wants if not is_installed(target)), None)
        return f"the installed {missing.partition('.')[0]} has no {_as_words(missing)}" if missing else None


def _as_words(target: str) -> str:
    module, _, name = target.partition(":")
    return f"{name} in {module.rpartition('.')[2]}" if name else module


def _diff(before: str, after: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), old, new)
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)
