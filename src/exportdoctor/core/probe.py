"""One question to a worker: can this submodule, with these captured inputs, be exported in this way?"""

from __future__ import annotations

import hashlib

import msgspec

from exportdoctor.core.outcome import Exporter


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What to attempt. `call` counts the distinct calls of a module; `timeout` is in seconds, `memory_mb` in MiB.

    `watch` asks a second kind of question: which of these (submodule path, attribute) pairs does the export read?
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

    @property
    def id(self) -> str:
        """Names the question within a run. Limits are left out: they decide how long to wait, not what is asked."""
        text = "\x1f".join(
            (self.part, self.fqn, str(self.call), self.exporter, self.to, *self.shims, *map("=".join, self.watch))
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]
