"""The protocol of a scan and its workers: one JSON object a line, commands one way and replies the other.

A worker is a process that has the target in memory; it answers each AttemptProbe with Started and then Finished.
"""

from __future__ import annotations

import msgspec

from exportdoctor.core.protocol.reply import Refused, Reply
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.records.target import TargetRef


class Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="say"):
    """From the engine to a worker."""


class Open(Command, frozen=True, kw_only=True, tag="open"):
    """Import, build the target and warm up. `target` is None where the module is already in the worker's memory.

    `gpu_memory_mb`: what one attempt may take of a GPU, in MiB. `to`: how far attempts go.
    """

    target: TargetRef | None
    isolation: str = "auto"
    logs: str | None = None
    gpu_memory_mb: float | None = None
    shim_files: tuple[str, ...] = ()
    to: str = "export"


class Prepare(Command, frozen=True, kw_only=True, tag="prepare"):
    """Make a part's inputs, so that its root can be attempted while its forward is captured."""

    part: str


class Capture(Command, frozen=True, kw_only=True, tag="capture"):
    """Run a part's forward and keep every submodule's inputs.

    `at_one_size`: leave out the forward at other sizes, which shows what is dynamic in submodules. The same command
    without it adds that later.
    """

    part: str
    exporter: str = "export"
    at_one_size: bool = False


class AttemptProbe(Command, frozen=True, kw_only=True, tag="attempt"):
    """Answer one probe."""

    probe: Probe


ScanCommand = Open | Prepare | Capture | AttemptProbe


SMALL_MODEL_SUFFIX = "~twin"
"""Suffix of a part's name: that part of the small model."""


class InputFact(msgspec.Struct, frozen=True, kw_only=True):
    """One leaf of a captured call: its path (`args[0]`, `kwargs.mask`), its type, its shape and dynamic dimensions.

    `axes` are the names of what is dynamic in it, one for each dimension, or a single one for a Python int.
    """

    path: str
    kind: str
    shape: tuple[int, ...] | None = None
    dynamic: tuple[int, ...] = ()
    value: str | None = None
    axes: tuple[str, ...] = ()


class CallFact(msgspec.Struct, frozen=True, kw_only=True):
    """One distinct call of a module. Equal `question` = equal answer for certain; for `group` see EquivalenceGroup."""

    question: str
    group: str = msgspec.field(name="kin")
    times: int = 1
    inputs: tuple[InputFact, ...] = ()
    marks: tuple[str, ...] = ()


class ModuleFact(msgspec.Struct, frozen=True, kw_only=True):
    """One submodule of a part. `same_object` names the FQN under which the very same instance came first.

    `at_fixed_sizes`: why it is asked with every size fixed although the part has dynamic ones. `scripted`: it is
    TorchScript, which tells of no call, so that none is known.
    """

    fqn: str
    class_name: str
    parameters: int = 0
    scripted: bool = False
    calls: tuple[CallFact, ...] = ()
    same_object: str | None = None
    calls_left_out: int = 0
    at_fixed_sizes: str = ""


class EquivalenceGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Questions that differ only in the plain attributes of `differing`, each a (submodule path, name).

    The members' values of them are in CallFact.marks, in the same order.
    """

    id: str
    differing: tuple[tuple[str, str], ...]


class Ready(Reply, frozen=True, kw_only=True, tag="ready"):
    """The first reply, to no command: torch is imported. What the process does from now on is the target's doing."""


class Opened(Reply, frozen=True, kw_only=True, tag="opened"):
    """The target stands. `sources` maps what the answers depend on (files, variables) to what it was when it was read.

    `has_small_model`: each part can also be captured of a small model of the same kind, with real values.
    `runs_kernels` is False where a GPU was asked for and there is none: fake CUDA tensors stand in for it.
    """

    environment: dict[str, str]
    parameters: int
    weights: str
    device: str
    dtype: str
    isolation: str
    seconds: float
    parts: tuple[str, ...]
    notes: tuple[str, ...] = ()
    sources: dict[str, str] = msgspec.field(default_factory=dict)
    has_small_model: bool = msgspec.field(default=False, name="twins")
    runs_kernels: bool = True


class Prepared(Reply, frozen=True, kw_only=True, tag="prepared"):
    """A part's root, at `prefix`, with the question that its own inputs make."""

    part: str
    prefix: str
    question: str


class Captured(Reply, frozen=True, kw_only=True, tag="captured"):
    """A part's modules in the order of the tree. `at_one_size`: what is dynamic in submodules is not known yet.

    `sources` is what was read beyond Opened.sources. `registered` are the classes that exportdoctor makes pytree nodes
    while it exports the part. `has_values`: its weights and inputs are no fake ones. `unnamed_inputs`: some go to
    forward's `*args`, or to parameters that take no keyword. `returned` are the classes, as text, of what it gives
    beside tensors and plain values; None where not known.
    """

    part: str
    title: str
    prefix: str
    seconds: float
    modules: tuple[ModuleFact, ...]
    groups: tuple[EquivalenceGroup, ...] = msgspec.field(default=(), name="kin")
    axes: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sources: dict[str, str] = msgspec.field(default_factory=dict)
    at_one_size: bool = False
    registered: tuple[str, ...] = ()
    has_values: bool = True
    unnamed_inputs: bool = False
    returned: tuple[str, ...] | None = None


class Started(Reply, frozen=True, kw_only=True, tag="started"):
    """A probe runs, in process `pid`, which leads its own process group."""

    probe: str
    pid: int


class Finished(Reply, frozen=True, kw_only=True, tag="finished"):
    """A probe's answer. `spoiled`: this worker attempted it in its own memory and is to be replaced."""

    outcome: Outcome
    spoiled: bool = False


ScanReply = Ready | Opened | Prepared | Captured | Refused | Started | Finished
