"""The signature of a failure: two attempts show exactly the same failure where their signatures are equal.

Left out is what differs between two sightings: symbol names, sizes, addresses, folders and line numbers. Looser ways
to compare failures are in identity.py.
"""

from __future__ import annotations

import hashlib

import msgspec

from exportdoctor.core.failure.frames import library_path
from exportdoctor.core.failure.messages import normalise
from exportdoctor.core.records.outcome import Failure, Outcome, Stage


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """Stage, exception types from the outermost to its root cause, normalised message, innermost user frame."""

    stage: Stage
    exceptions: tuple[str, ...]
    message: str
    file: str = ""
    function: str = ""
    source: str = ""

    @property
    def key(self) -> str:
        """Twelve hexadecimal digits that name this signature in files and reports."""
        text = "\x1f".join((self.stage, *self.exceptions, self.message, self.file, self.function, self.source))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def signature_of_failure(failure: Failure) -> Signature:
    """The identity of `failure`; line numbers and folders are left out, the source line's text is kept."""
    culprit = failure.culprit
    return Signature(
        stage=failure.stage,
        exceptions=tuple(fact.type for fact in failure.exceptions),
        message=normalise(failure.exceptions[0].message) if failure.exceptions else "",
        file=_tail(culprit.file) if culprit else "",
        function=culprit.function if culprit else "",
        source=culprit.source.strip() if culprit else "",
    )


def signature_of(outcome: Outcome) -> Signature | None:
    """The identity of what `outcome` shows, or None where it passed."""
    if outcome.passed:
        return None
    if outcome.failure is not None:
        return signature_of_failure(outcome.failure)
    return Signature(stage="export", exceptions=(outcome.status,), message=outcome.signal or "")


def _tail(path: str) -> str:
    """The last two parts of the path of a library's file, the last one of another: the folder around that may be called
    otherwise in another checkout."""
    parts = path.replace("\\", "/").split("/")
    return "/".join(parts[-2:] if library_path(path) is not None else parts[-1:])
