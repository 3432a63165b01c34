"""What engine and worker say to each other: one JSON object a line, commands one way and replies the other.

A worker is a process that has the target in memory; it answers each Attempt with Started and then Finished.
"""

from __future__ import annotations

import msgspec

from exportdoctor.core.outcome import Failure, Outcome
from exportdoctor.core.probe import Probe
from exportdoctor.core.target import TargetRef


class Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="say"):
    """From the engine to a worker."""


class Open(Command, frozen=True, kw_only=True, tag="open"):
    """Import, build the target and warm up. `target` is None where the module is already in the worker's memory."""

    target: TargetRef | None
    isolation: str = "auto"
    logs: str | None = None
    shim_files: tuple[str, ...] = ()


class Prepare(Command, frozen=True, kw_only=True, tag="prepare"):
    """Make a part's own inputs, so that its root can be attempted while its forward is captured."""

    part: str


class Capture(Command, frozen=True, kw_only=True, tag="capture"):
    """Run a part's forward and keep every submodule's inputs.

    `at_one_size`: leave out the forward at other sizes, which tells what is dynamic in submodules. The same command
    without it makes up for that.
    """

    part: str
    exporter: str = "export"
    at_one_size: bool = False


class Attempt(Command, frozen=True, kw_only=True, tag="attempt"):
    """Answer one probe."""

    probe: Probe


AnyCommand = Open | Prepare | Capture | Attempt


TWIN = "~twin"
"""Ends the name of a part that is taken of the small twin."""


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
    """One distinct call of a module. Equal `question` = equal answer for certain; see EquivalenceGroup for the rest."""

    question: str
    group: str = msgspec.field(name="kin")
    times: int = 1
    inputs: tuple[InputFact, ...] = ()
    marks: tuple[str, ...] = ()


class ModuleFact(msgspec.Struct, frozen=True, kw_only=True):
    """One submodule of a part. `same_object` names the FQN under which the very same instance came first."""

    fqn: str
    class_name: str
    parameters: int = 0
    calls: tuple[CallFact, ...] = ()
    same_object: str | None = None
    calls_left_out: int = 0


class EquivalenceGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Questions that are equal but for the plain attributes in `differing`, each a (submodule path, name).

    The members' values of them are in CallFact.marks, in the same order.
    """

    id: str
    differing: tuple[tuple[str, str], ...]


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag_field="say"):
    """From a worker to the engine."""


class Opened(Reply, frozen=True, kw_only=True, tag="opened"):
    """The target stands. `sources` maps each file that the answers depend on to the SHA-256 of its content.

    `twins`: each part can also be had of a small model of the same kind, with real values.
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
    sources: dict[str, str] = {}
    twins: bool = False


class Prepared(Reply, frozen=True, kw_only=True, tag="prepared"):
    """A part's root, at `prefix`, with the question that its own inputs make."""

    part: str
    prefix: str
    question: str


class Captured(Reply, frozen=True, kw_only=True, tag="captured"):
    """A part's modules in the order of the tree. `at_one_size`: what is dynamic in submodules is not known yet."""

    part: str
    title: str
    prefix: str
    seconds: float
    modules: tuple[ModuleFact, ...]
    groups: tuple[EquivalenceGroup, ...] = msgspec.field(default=(), name="kin")
    axes: dict[str, tuple[str, ...]] = {}
    notes: tuple[str, ...] = ()
    sources: dict[str, str] = {}
    at_one_size: bool = False


class Refused(Reply, frozen=True, kw_only=True, tag="refused"):
    """The target does not build (`stage` build) or its eager forward fails (`stage` capture)."""

    stage: str
    message: str
    hint: str = ""
    part: str | None = None
    failure: Failure | None = None
    stack: str = ""
    usage: bool = False


class Started(Reply, frozen=True, kw_only=True, tag="started"):
    """A probe runs, in process `pid`, which leads its own process group."""

    probe: str
    pid: int


class Finished(Reply, frozen=True, kw_only=True, tag="finished"):
    """A probe's answer. `spoiled`: this worker attempted it in its own memory and must not be asked again."""

    outcome: Outcome
    spoiled: bool = False


AnyReply = Opened | Prepared | Captured | Refused | Started | Finished
