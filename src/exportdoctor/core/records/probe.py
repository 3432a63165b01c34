"""One question to a worker: can this submodule, with these captured inputs, be exported in this way?"""

from __future__ import annotations

import hashlib

import msgspec

from exportdoctor.core.exporters import Exporter
from exportdoctor.core.limits import SHORTEST_ATTEMPT
from exportdoctor.core.scan_options import ScanOptions


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What to attempt. `call` counts the distinct calls of a module; `timeout` is in seconds, `memory_mb` in MiB.

    `watch` asks a second kind of question: which of these (submodule path, attribute) pairs does the export read?
    `dynamic` names the dimensions that stay dynamic, None for all that are; with `opaque` each child that is called
    gives its captured outputs without running. With `to` = run the program is compared with eager on known and drawn
    input sets, with `to` = compare on the known ones; without shims it is the program of a part that passes. With
    `to` = ground nothing is exported: could a proof on this
    call see a fault? `fresh` asks for an attempt, whatever is known of equal questions.
    Without shims, an attempt that takes more than `slow` seconds of processor time or `heavy` MiB fails for that.
    """

    part: str
    fqn: str
    call: int = 0
    exporter: Exporter = "export"
    to: str = "export"
    shims: tuple[str, ...] = ()
    watch: tuple[tuple[str, str], ...] = ()
    timeout: float = SHORTEST_ATTEMPT
    memory_mb: float | None = None
    dynamic: tuple[str, ...] | None = None
    opaque: bool = False
    fresh: bool = False
    slow: float | None = None
    heavy: float | None = None

    @property
    def variant(self) -> str:
        """What is asked beyond the plain question; empty for a plain one."""
        fields = msgspec.structs.asdict(self).items()
        further = [(name, value) for name, value in fields if name not in _PLAIN and value != _PLAIN_PROBE[name]]
        return "".join(_spell(name, value) for name, value in further)

    @property
    def id(self) -> str:
        """Names the question within a run. Limits are left out: they decide how long to wait, not what is asked."""
        plain = (self.part, self.fqn, str(self.call), self.exporter, self.to, *self.shims)
        text = "\x1f".join((*plain, self.variant) if self.variant else plain)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


_LIMITS = frozenset({"timeout", "memory_mb"})
_PLAIN = frozenset({"part", "fqn", "call", "exporter", "to", "shims", *_LIMITS})
_PLAIN_PROBE = msgspec.structs.asdict(Probe(part="", fqn=""))


def _spell(name: str, value: object) -> str:
    """A field that is not at its default, as stored runs have it in the ids of their probes."""
    if name == "watch" and isinstance(value, tuple):
        return "".join(f"?{path}.{attribute}" for path, attribute in value)
    return f"!{name}" if value is True else f"!{name} {value!r}"


def probe_template(part: str, options: ScanOptions) -> Probe:
    """A probe of the part's root. An option that is also a field of the probe, other than a limit, goes into it."""
    shared = [name for name in ScanOptions.__struct_fields__ if name in Probe.__struct_fields__ and name not in _LIMITS]
    return Probe(part=part, fqn="", **{name: getattr(options, name) for name in shared})
