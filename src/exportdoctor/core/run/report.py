"""The report, `exportdoctor.report/1`: what scripts and CI read. Keys are a contract; new ones may be added."""

from __future__ import annotations

from typing import Literal

import msgspec

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.records.outcome import Ground, Stage

SCHEMA = "exportdoctor.report/1"

# `not_asked` stands only in the report of a run that was cut off; `unknown`: nothing was found out
ModuleStatus = Literal[
    "pass", "fails_own", "fails_child", "cured", "not_called", "crashed", "timed_out", "not_asked", "unknown"
]
PartVerdict = Literal["passes", "cured", "fails", "unknown"]
Evidence = Literal["asked", "equal", "parent", "none"]

FAILING: frozenset[str] = frozenset({"fails_own", "fails_child", "crashed", "timed_out"})


class TargetRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was scanned; `options` are those of the command line that build it so. `in_memory`: a module of a Python
    session, which no command line can build."""

    ref: str
    options: tuple[str, ...] = ()
    in_memory: bool = False
    weights: str = ""
    device: str = ""
    dtype: str = ""
    parameters: int = 0
    modules: int = 0


class ModuleRecord(msgspec.Struct, frozen=True, kw_only=True, rename={"class_name": "class"}):
    """One submodule's verdict. `evidence`: it was asked itself (`asked`), equals one that was (`equal`, see `same_as`),
    or lies inside a parent that passes (`parent`). `at_fixed_sizes`: why every size was fixed although the part has
    dynamic ones. `also`: further findings of the same attempt, as where several dimensions are violated."""

    fqn: str
    class_name: str
    status: ModuleStatus
    same_as: str | None = None
    stages: dict[str, str] = {}
    seconds: float = 0.0
    finding: str | None = None
    also: tuple[str, ...] = ()
    evidence: Evidence = "none"
    calls: int = 0
    note: str = ""
    at_fixed_sizes: str = ""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers behind a cure: how many input sets, and the largest absolute difference to eager.

    `tolerance` is what was allowed of the largest difference, in the set that shows it.
    `kinds` counts the sets by what they differ in from the example. `refused` are drawn sets that eager takes and the
    program refuses, `refused_by` what it raises then, each at the set of `refused_at`; `refuses_values`: not for their
    sizes, so that an ONNX file, which has no guards, would answer them. `notes` is what was not compared or is done
    otherwise than in eager.
    `ground` says what these outputs could not have shown; None where that was not asked.
    """

    inputs_tried: int
    max_abs_diff: float | None
    stage: Stage
    max_rel_diff: float | None = None
    tolerance: float | None = None
    on: str = ""
    kinds: dict[str, int] = {}
    refused: tuple[str, ...] = ()
    refused_by: tuple[str, ...] = ()
    refused_at: tuple[str, ...] = ()
    refuses_values: bool = False
    notes: tuple[str, ...] = ()
    ground: Ground | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One shim of a prescription, in words. `precondition` is empty where it holds for all inputs.

    `places` are the dimensions that it freezes, if it freezes one of the part's axes. `file` is the user's file that it
    comes from, empty for others.
    """

    shim: str
    title: str
    soundness: str
    precondition: str = ""
    places: tuple[str, ...] = ()
    file: str = ""


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """Another set of shims that cures the part, on the target named in `proof`; `why` says why it ranks lower.

    Without a proof, `compared` has the numbers of the known input sets; no others were drawn.
    """

    shims: tuple[str, ...]
    soundness: str
    why: str
    proof: Proof | None = None
    compared: Proof | None = None
    steps: tuple[Step, ...] = ()


class Prescription(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest set of shims that makes a part export, in the order in which they are applied, with its proof.

    `alternatives` are the soundest first, then the smallest; there may be others, which were not looked for. `stages`
    says how the part with these shims ended at each stage, where the scan asks for more than what they cure.
    """

    shims: tuple[str, ...]
    soundness: str
    proof: Proof | None = None
    files: dict[str, str] = {}
    steps: tuple[Step, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    stages: dict[str, str] = {}


class NumbersCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The program of a part that exports as it is, beside eager. `unknown`: `note` says why nothing was compared.

    `proof` has the input sets that were compared; its `refused` are sets of other sizes at which the program raises,
    and `note` then says what it raises at the first of them.
    """

    verdict: Literal["agrees", "differs", "unknown"]
    proof: Proof | None = None
    note: str = ""


class FalseEquality(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of exportdoctor: `module` was told the answer of `told_as`, and answers otherwise when it is asked."""

    module: str
    told_as: str
    call: int = 0
    told_as_call: int = 0
    difference: str = ""


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How many of the calls that were told the answer of an equal one were asked themselves, drawn with `seed`."""

    asked: int
    of: int
    seed: int
    false_equalities: tuple[FalseEquality, ...] = ()


class SeenCure(msgspec.Struct, frozen=True, kw_only=True):
    """Shims with which a part was seen to export before its run was cut off.

    That is less than a prescription: the search for fewer shims, for alternatives and for a proof had not ended.
    `compared`: its program gave eager's numbers on that many input sets, 0 where it has no values. `on_small_model`:
    the part itself had not been asked with them.
    """

    shims: tuple[str, ...]
    compared: int = 0
    on_small_model: bool = False


class PartRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One separately exported entry of the target. The verdict is of the submodules in `only`, where they alone were
    asked. `registered` are classes that are pytree nodes only while exportdoctor exports the part. `numbers` is there
    where the part exports as it is. `unnamed_inputs`: some go to forward's `*args`, or take no keyword.
    `lost_writes` names the buffers and inputs that the part writes into, and its ONNX file does not.
    `is_random`: ONNX Runtime's numbers were not compared, as eager draws them at random. `seen_cure`: what a search for
    a cure had found when the run was cut off."""

    name: str
    verdict: PartVerdict
    exporter: str
    seconds: float
    modules: tuple[ModuleRecord, ...] = ()
    prescription: Prescription | None = None
    title: str = ""
    asked: int = 0
    called: int = 0
    complete: bool = True
    only: tuple[str, ...] = ()
    registered: tuple[str, ...] = ()
    audit: AuditRecord | None = None
    numbers: NumbersCheck | None = None
    unnamed_inputs: bool = False
    lost_writes: tuple[str, ...] = ()
    is_random: bool = False
    seen_cure: SeenCure | None = None

    @property
    def root_stages(self) -> dict[str, str]:
        """How the part's root ended at each stage; the root is the first of the modules, whatever its name."""
        return self.modules[0].stages if self.modules else {}


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """What the run cost. `answered_by_equality` counts modules that needed no attempt of their own.

    `asked_twice`: attempts that a run which was cut off had begun before it was resumed, and made again. All of them
    should be `in_flight`: without an answer when it was cut off.
    """

    probes: int = 0
    answered_by_equality: int = 0
    seconds: float = 0.0
    peak_rss_mb: float = 0.0
    answered_from_cache: int = 0
    asked_twice: int = 0
    in_flight: int = 0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a run found. `complete` is false where it was cut off; `error` is why, if it would end so again."""

    schema: str = SCHEMA
    target: TargetRecord
    environment: dict[str, str] = {}
    parts: tuple[PartRecord, ...] = ()
    findings: tuple[Finding, ...] = ()
    stats: Stats = Stats()
    run: str = ""
    complete: bool = True
    error: str = ""
    notes: tuple[str, ...] = ()

    @property
    def exports(self) -> bool:
        """Whether every part exports as it is."""
        return all(part.verdict == "passes" and not part.only for part in self.parts) and self.complete
