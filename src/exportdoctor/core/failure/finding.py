"""A finding: one failure, reported once, with the smallest culprit known for it. Its fields are keys of the report."""

from __future__ import annotations

from typing import Literal

import msgspec

from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.failure.messages import FIRST_TO_DIFFER, OTHERWISE_DECOMPOSED
from exportdoctor.core.records.outcome import Frame, GraphSlice, OpFact, Stage, SymbolOrigin, WrongFake

Culprit = Literal["op", "python", "higher_order_op", "pytree", "dynamo", "call"]
RewriteEnd = Literal["", "same", "further", "otherwise", "before"]
ShimResult = Literal["cured", "moved", "same", "error", "not_applicable"]


class ExceptionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The exception that the user sees; `causes` are the ones it was raised from, outermost first.

    `root` is the first line of the innermost one, with its type.
    """

    type: str
    message: str
    causes: tuple[str, ...] = ()
    root: str = ""


class KnownIssueRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream issue with the same failure. `elsewhere`: it is about the same pattern in other code."""

    id: str
    link: str
    fixed_in: str | None = None
    title: str = ""
    cause: str = ""
    workaround: str = ""
    elsewhere: bool = False


class ShimTry(msgspec.Struct, frozen=True, kw_only=True):
    """What happened when a shim, or a set of them joined by `+`, was tried; `next` names the finding it moved to.

    `note` is a sentence with what is known beyond `result`.
    """

    shim: str
    result: ShimResult
    next: str | None = None
    note: str = ""


class TriedRewrite(msgspec.Struct, frozen=True, kw_only=True):
    """A rewrite of the failing line that was tried: `diff` is unified, `title` one of the kind's rewrites.

    `result` is that of the part, or of `module` alone where it has a name: `exports` and computes the same as eager on
    `input_sets`; `no_values`: exports, and there was nothing to compare. `note` says how it ended, and of one that is
    `not_tried` why it cannot be, if it was seen that the export does not run what it changes. Where it `fails`,
    `ended` says how that compares with the finding: the `same` failure, one `further` on, another one (`otherwise`), or
    one that comes before the line and is there without the rewrite, too (`before`). `one_way`: it replaces a branch,
    and on no set was another one seen to be taken than on the example.
    """

    title: str
    diff: str
    result: Literal["exports", "no_values", "differs", "fails", "not_tried"]
    module: str = ""
    input_sets: int = 0
    max_abs_diff: float = 0.0
    note: str = ""
    ended: RewriteEnd = ""
    one_way: bool = False

    @property
    def works(self) -> bool:
        """Whether it was seen to export and to compute the same."""
        return self.result == "exports"


class Repro(msgspec.Struct, frozen=True, kw_only=True):
    """A script that fails in the same way. `imports` are its top-level packages; `verified` = seen to fail so."""

    path: str
    lines: int
    imports: tuple[str, ...]
    verified: bool


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One failure. `module` is the deepest submodule whose code fails; `only_inside` is set where it passes alone.

    `only_alone`: only a submodule that is exported by itself shows it; the part exports with shims and never met it, or
    torch refuses the type of what the submodule is given or returns, at which it does not look inside the part.
    `with_stand_ins`: only a module whose submodules were replaced shows it; the part exports with shims and never met
    it.

    `guard` is the line that made the guard which a declared dimension violates, `value_origin` the one that made the
    value which torch refused when the forward was over. `dimensions` are the fewest dynamic
    dimensions with which it still fails: none where it fails with all sizes fixed, None if not searched for. With
    `dimensions_passing` alone dynamic it exports; None where that is not known. `dimensions_also` are further sets with
    which alone it fails too. `culprit` is the nature of what failed.
    `slice` is the part of the traced graph that leads to it, `slice_note` is why there is none. `behind` is the
    finding whose failure comes first and hides this one. `rewrites` are those of its line that `explain` has tried.
    `locate` is the command that finds where numbers begin to differ, where the part exports and its numbers do.
    `fixed_by` is the function of torch whose own code takes a dynamic size as a number, which fixes it.
    `wrong_fake` is an operator of torch before it whose fake result is not as its real one.
    `fitted_shapes` is the code of the dynamic shapes in the structure of the inputs, where the given ones have another.
    `in_training` are layers in training mode, where the numbers of an ONNX file differ.
    `documented` is the page on which torch says that it does not support this; empty where it is not expected.
    """

    id: str
    part: str
    module: str
    module_class: str
    own_code: bool
    function: str | None
    file: str | None
    line: int | None
    source: str | None
    kind: FailureKind
    op: str | None
    expression: str | None
    signature: str
    exception: ExceptionRecord
    stack: tuple[Frame, ...] = ()
    explanation: str = ""
    known_issues: tuple[KnownIssueRecord, ...] = ()
    shims_tried: tuple[ShimTry, ...] = ()
    repro: Repro | None = None
    origins: tuple[SymbolOrigin, ...] = msgspec.field(default=(), name="born")
    last_op: OpFact | None = None
    modules: tuple[str, ...] = ()
    only_inside: str | None = None
    only_alone: bool = False
    with_stand_ins: bool = False
    stage: Stage = "export"
    log: str | None = None
    guard: Frame | None = None
    value_origin: Frame | None = None
    dimensions: tuple[str, ...] | None = None
    dimensions_passing: tuple[str, ...] | None = None
    dimensions_also: tuple[tuple[str, ...], ...] = ()
    culprit: Culprit | None = None
    slice: GraphSlice | None = None
    slice_note: str = ""
    behind: str | None = None
    rewrites: tuple[TriedRewrite, ...] = ()
    locate: str = ""
    documented: str = ""
    fixed_by: str = ""
    wrong_fake: WrongFake | None = None
    fitted_shapes: str = ""
    in_training: tuple[str, ...] = ()

    @property
    def may_have_script(self) -> bool:
        """Whether a script can fail in the same way: one that exports and gives wrong numbers fails in an ONNX file
        alone."""
        of_file = any(text in self.exception.message for text in (FIRST_TO_DIFFER, OTHERWISE_DECOMPOSED))
        return self.kind is not FailureKind.COSTLY and (not self.locate or of_file)

    @property
    def is_called_by_module(self) -> bool:
        """False where the culprit is a method of `module` that code of another module calls: nothing on the stack
        before it runs `module`. Where the stack does not show what called it, it is taken for called by it."""
        place = next((i for i, one in enumerate(self.stack) if (one.file, one.line) == (self.file, self.line)), None)
        if place is None or self.stack[place].module != self.module:
            return True
        before = {one.module for one in self.stack[:place] if one.module is not None}
        return not before or self.module in before
