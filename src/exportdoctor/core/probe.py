"""One question to a worker: can this submodule, with these captured inputs, be exported in this way?"""

from __future__ import annotations

import hashlib

import msgspec

from exportdoctor.core.exporters import Exporter


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What to attempt. `call` counts the distinct calls of a module; `timeout` is in seconds, `memory_mb` in MiB.

    `watch` asks a second kind of question: which of these (submodule path, attribute) pairs does the export read?
    `dynamic` names the dimensions that stay dynamic, None for all that are; with `opaque` each child that is called
    gives its captured outputs without running.
    """

    part: str
    fqn: str
    call: int = 0
    exporter: Exporter = "export"
    to: str = "export"
    shims: tuple[str, ...] = ()
    watch: tuple[tuple[str, str], ...] = ()
    timeout: float = 60.0
    memory_mb: float | None = None
    dynamic: tuple[str, ...] | None = None
    opaque: bool = False

    @property
    def variant(self) -> str:
        """What is asked beyond the plain question; empty for a plain one."""
        watched = "".join(f"?{path}.{name}" for path, name in self.watch)
        dynamic = "" if self.dynamic is None else f"!dynamic {self.dynamic!r}"
        return f"{watched}{dynamic}{'!opaque' if self.opaque else ''}"

    @property
    def id(self) -> str:
        """Names the question within a run. Limits are left out: they decide how long to wait, not what is asked."""
        plain = (self.part, self.fqn, str(self.call), self.exporter, self.to, *self.shims)
        text = "\x1f".join((*plain, self.variant) if self.variant else plain)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
