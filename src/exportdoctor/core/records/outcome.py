"""What a worker reports of one attempt: facts, no verdict. Torch-free, so that reports and screens can read them.

Frames run outermost first, as Python prints them; exceptions run outermost first, then each cause.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Literal

import msgspec

_FIXED = re.compile(r"\]\s*==\s*\d+(?![\d.])|gives results of another structure than at the export")
"""In what a program raises, or the conversion of its inputs: a size, an element or a number of results that must be as
at the export."""

Stage = Literal["build", "capture", "export", "decompose", "translate", "check", "load", "run", "numbers", "save"]
"""What an attempt or an export does, one after the other; a failure has the stage in which it came up."""


class OutcomeStatus(StrEnum):
    """How an attempt ended. What kind of failure it shows is `FailureKind` in core/failure/kinds.py.

    With OWN_FAULT code of exportdoctor failed beside the target's, so the attempt says nothing about it; with NO_DEVICE
    the GPU could not take the module, so nothing was attempted.
    """

    PASSED = "passed"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    NOT_APPLICABLE = "not_applicable"
    SHIM_TROUBLE = "shim_trouble"
    OWN_FAULT = "own_fault"
    NO_DEVICE = "no_device"

    @property
    def is_conclusive(self) -> bool:
        """Whether another attempt would end in the same way: it passed, or an exception was raised."""
        return self in {OutcomeStatus.PASSED, OutcomeStatus.FAILED}

    @property
    def is_repeatable(self) -> bool:
        """Whether it may be told again: another attempt would end in the same way, or as little could be attempted."""
        return self.is_conclusive or self is OutcomeStatus.NOT_APPLICABLE

    @property
    def says_nothing(self) -> bool:
        """Whether nothing follows about the module."""
        return self in {OutcomeStatus.OWN_FAULT, OutcomeStatus.NO_DEVICE}

    @property
    def ended_the_process(self) -> bool:
        """Whether the attempt's process died or was killed: no exception, and the stack is not reliable."""
        return self in {OutcomeStatus.CRASHED, OutcomeStatus.TIMED_OUT, OutcomeStatus.OUT_OF_MEMORY}


class SliceNode(msgspec.Struct, frozen=True, kw_only=True):
    """One operation. `label` is the user's own name for its value, `shape` its dtype and symbolic shape.

    `file`, `line` and `source` are the user's line that asked for it, as far as torch noted it.
    """

    name: str
    op: str
    shape: str = ""
    label: str = ""
    file: str = ""
    line: int = 0
    source: str = ""


class GraphSlice(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a traced graph that leads to a failure: nodes as traced, edges from value to user, both by index.

    `targets` are the nodes whose value the failure is about; `left_out` counts what lies farther from them.
    `of_constants`: no tensor among inputs, buffers and parameters leads to them, and nothing that is drawn at random.
    """

    nodes: tuple[SliceNode, ...]
    edges: tuple[tuple[int, int], ...] = ()
    targets: tuple[int, ...] = ()
    left_out: int = 0
    of_constants: bool = False


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One frame of a stack. `module` is the FQN of the submodule whose code runs; `user` = outside torch.

    `expression` is the part of `source` that was being evaluated, from the instruction's column positions.
    """

    file: str
    line: int
    function: str
    source: str = ""
    module: str | None = None
    user: bool = False
    expression: str | None = None


class ExceptionFact(msgspec.Struct, frozen=True, kw_only=True):
    """An exception's qualified type name and its message, as raised."""

    type: str
    message: str

    @property
    def name(self) -> str:
        """The class name without its package."""
        return self.type.rpartition(".")[2]

    @property
    def is_of_dynamo(self) -> bool:
        """Whether dynamo defines it, whose stacks are shortened."""
        return self.type.startswith("torch._dynamo.")


class SymbolOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Where an unbacked symbol was made: the op that made it and the user's frame that asked for it."""

    symbol: str
    op: str | None = None
    frame: Frame | None = None


class OpFact(msgspec.Struct, frozen=True, kw_only=True):
    """The last operator that was dispatched before the failure, with its arguments as text."""

    name: str
    arguments: tuple[str, ...] = ()
    raised: bool = False


class WrongFake(msgspec.Struct, frozen=True, kw_only=True):
    """An operator of torch whose fake result has another rank or dtype than its real one, as `said`, and the line that
    called it. `instead` is an argument with which it is right, empty where none is known."""

    op: str
    frame: Frame | None = None
    said: str = ""
    instead: str = ""


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """One of several dimensions that a failure violates: its line of the message, and its guard as in Failure."""

    entry: str
    guard: Frame | None = None
    guarded_by: str = ""
    guard_module: str | None = None
    fixed_by: str = ""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Everything seen of one failing attempt. `custom_ops` are the operators from outside torch
    that were traced before it, None where no graph was found. `guard` is the line that made the guard which a
    declared dimension violates, `guard_module` the innermost submodule that ran then, None in strict mode, and
    `guarded_by` the operation that asked for it: an operator, a function of torch's or one of the user's code;
    `fixed_by` is the function of torch whose own code took the size as a number. `violations` are the dimensions that
    are violated, where there are several. `wrong_fake` is an operator before it with another fake result than real one.
    `value_origin` is the line that made the value which torch refused when the forward was over. `unbacked` is how many
    unbacked symbols had been created, None where that was not counted. `slice` is what leads to the failure in the
    traced graph, `slice_note` why there is none. `traced` is how many nodes had been traced, and `entered` of how many
    submodules, None where no graph was found. `fitted_shapes` is the code of the dynamic shapes in the structure of the
    inputs, where those that were given name the same tensors in another one. `in_training` are layers of the
    module that drop values or normalise by the batch, where the numbers of its ONNX file differ."""

    stage: Stage
    exceptions: tuple[ExceptionFact, ...]
    frames: tuple[Frame, ...] = ()
    origins: tuple[SymbolOrigin, ...] = msgspec.field(default=(), name="births")
    op: OpFact | None = None
    custom_ops: tuple[str, ...] | None = None
    guard: Frame | None = None
    guarded_by: str = ""
    fixed_by: str = ""
    guard_module: str | None = None
    value_origin: Frame | None = None
    violations: tuple[Violation, ...] = ()
    wrong_fake: WrongFake | None = None
    unbacked: int | None = None
    slice: GraphSlice | None = None
    slice_note: str = ""
    traced: int | None = None
    entered: int | None = None
    fitted_shapes: str = ""
    in_training: tuple[str, ...] = ()

    @property
    def culprit(self) -> Frame | None:
        """The innermost frame outside torch."""
        return next((frame for frame in reversed(self.frames) if frame.user), None)

    @property
    def deepest_module(self) -> str | None:
        """The FQN of the innermost submodule whose code was running or made the violated guard, if any is known."""
        running = (frame.module for frame in reversed(self.frames) if frame.module is not None)
        return next(running, self.guard_module)


SetKind = Literal[
    "example",
    "called_again",
    "others_between",
    "sizes",
    "size_one_or_zero",
    "values",
    "layout",
    "extreme_values",
    "rows",
    "whole_numbers",
    "segments",
    "padding",
    "branches",
]
"""In what an input set of a proof differs from the example: `called_again` is the example several times in a row,
`others_between` the example again after another set, `layout` its values at other strides, `segments` other boundaries
or lengths, `branches` values by which eager decides otherwise."""


_OTHER_INPUTS: frozenset[str] = frozenset(
    {"sizes", "values", "extreme_values", "rows", "whole_numbers", "segments", "padding", "branches"}
)
"""The kinds of input sets that differ from the example in their sizes or values."""

OF_OTHER_SIZES: frozenset[SetKind] = frozenset({"sizes", "size_one_or_zero"})


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """An exported program's outputs beside eager's, on one input set.

    `max_abs` and `max_rel` are the largest absolute difference and the largest difference over eager's value, of
    elements that are not small; `tolerance` is what the dtype allows of `max_abs` in outputs of this size. `trouble`
    is why there is nothing to compare: what the program raised, or how its outputs differ in kind. A `made_up` set was
    drawn; a program may refuse it (`refused`), but not answer it wrongly. `says_nothing`: eager's outputs are NaN
    throughout or others at each call, so that the program is neither right nor wrong. `note` is what was not compared,
    or what the program does otherwise than eager though its outputs agree. `buffers` are those of the module that
    eager changes and the program does not, `at` the line of the model's code because of which they differ, where known.
    `call` is which of several calls has these numbers, counted from 0, where those before it agree.
    """

    inputs: str
    kind: SetKind | Literal[""] = ""
    call: int = 0
    note: str = ""
    made_up: bool = False
    refused: bool = False
    max_abs: float = 0.0
    max_rel: float = 0.0
    tolerance: float = 0.0
    trouble: str = ""
    says_nothing: bool = False
    buffers: tuple[str, ...] = ()
    at: tuple[Frame, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the program computed eager's numbers, or refused inputs that it need not take."""
        return (self.made_up and self.refused) or (not self.trouble and self.max_abs <= self.tolerance)


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What the outputs of a call show: how many submodules and inputs were disturbed, one at a time, and which of them
    moved no output by more than a proof allows. `left` were not disturbed: for want of time, or of other values."""

    tried: int
    unseen: tuple[str, ...] = ()
    left: int = 0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one probe. `seconds` is wall time of the attempt, `peak_rss_mb` its process's peak in MiB.

    `kept_children` gives each submodule that no opaque op could replace, so that it ran as it is, with the reason.
    `numbers` has a row for each input set on which the exported program was run. `note` is why a shim was not applied.
    `sources` is what the attempt was the first to read, as in Captured. `ground` answers a probe for it.
    `fixed` names the dynamic axes whose size is a constant in the program, None if that was not looked at. `refusal` is
    the guard by which the program refuses sizes of an input set, told as a failure of the export. `lost_writes` names
    the buffers and inputs that the program writes into, and its ONNX file does not. `is_random`: ONNX Runtime's
    numbers are others than eager's, which draws them at random. `is_tied`: ONNX Runtime chooses otherwise among values
    that are equal in eager.
    """

    probe: str
    status: OutcomeStatus
    seconds: float = 0.0
    peak_rss_mb: float = 0.0
    stages: dict[str, str] = {}
    failure: Failure | None = None
    signal: str | None = None
    log: str | None = None
    reads: tuple[tuple[str, str], ...] | None = None
    kept_children: tuple[str, ...] = ()
    numbers: tuple[Agreement, ...] = ()
    note: str = ""
    sources: dict[str, str] = {}
    ground: Ground | None = None
    fixed: tuple[str, ...] | None = None
    refusal: Failure | None = None
    lost_writes: tuple[str, ...] = ()
    is_random: bool = False
    is_tied: bool = False

    @property
    def as_refused(self) -> Outcome | None:
        """The refusal as an outcome of its own, None if there is none."""
        if self.refusal is None:
            return None
        return msgspec.structs.replace(
            self, status=OutcomeStatus.FAILED, failure=self.refusal, refusal=None, numbers=()
        )

    @property
    def passed(self) -> bool:
        """Whether every stage asked for succeeded."""
        return self.status == OutcomeStatus.PASSED

    @property
    def refused_sets(self) -> tuple[str, ...]:
        """The drawn sets that eager takes and the program refuses. torch.export promises no size below two (0/1
        specialisation), so that those sets do not count."""
        rows = (row for row in self.numbers if row.made_up and row.refused and row.kind != "size_one_or_zero")
        return tuple(row.inputs for row in rows)

    @property
    def fixes_inputs(self) -> bool:
        """Whether a size or a value became constant: of the program's own inputs, or by what it refuses, as where it
        takes no other size, no other values of the example's sizes, none of several other whole numbers that say how
        much there is, or asks for that one number (of results, too).
        """
        refused = [row for row in self.numbers if row.refused and row.kind != "size_one_or_zero"]
        if self.fixed or any(_FIXED.search(row.trouble) for row in refused):
            return True
        taken = {row.kind == "sizes" for row in self.numbers if row.kind in _OTHER_INPUTS and not row.refused}
        numbers = {row.inputs: row.refused for row in self.numbers if row.kind == "whole_numbers"}
        return (len(numbers) > 1 and all(numbers.values())) or any(
            (row.kind == "sizes") not in taken for row in refused if row.kind in _OTHER_INPUTS
        )

    @property
    def wrong_layout(self) -> Agreement | None:
        """The comparison on inputs in another memory layout, where the program computes other numbers than eager."""
        return next((row for row in self.numbers if row.kind == "layout" and not row.holds), None)

    def agrees_but_for_layout(self, *, may_refuse: bool) -> bool:
        """Whether the example's inputs and all others gave eager's numbers, but for those in another memory layout;
        `may_refuse`: other inputs than the example's may be refused."""
        rows = self.numbers
        kept = (row for row in rows if row.kind != "layout")
        return bool(rows) and rows[0].holds and all(row.holds or (may_refuse and row.refused) for row in kept)
