"""A failure's identity: two attempts show the same bug exactly when their signatures are equal.

Normalisation removes what differs between two sightings of one bug: symbol names, sizes, addresses, paths,
line numbers, and the advice that torch appends to its messages.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from exportdoctor.core.outcome import Failure, Outcome

# Each pair: what to look for, what to put in its place. Order matters: cuts first, then names, then numbers.
_CUTS = (
    # torch/export/__init__.py appends an advert for draft_export; the logging advice follows data-dependent errors
    re.compile(r"\n\s*The error above occurred when calling torch\.export\.export.*", re.S),
    re.compile(r"\n\s*For more information, run with TORCH_LOGS=\"dynamic\".*", re.S),
    re.compile(
        r"\n\s*(?:The following call raised this error|User Stack|C\+\+ Stack|Caused by|Suggested fixes|"
        r"To fix the error|from user code|Set TORCHDYNAMO_VERBOSE|You can suppress this|"
        r"While executing|Original traceback|Stack from|For more details about this graph break).*",
        re.S,
    ),
)
_WORDS = (
    (re.compile(r"Caused by: \([^\n]*"), ""),  # torch 2.9 glues it to the line before
    (re.compile(r"Constraints violated \([^\n]*?\)!"), "Constraints violated!"),
    (re.compile(r"You marked \S+ as dynamic"), "You marked <input> as dynamic"),
    (re.compile(r"(model attributes?: )[\w., ]+"), r"\1<name>"),
    (re.compile(r"For more information, run with TORCH_LOGS=\S+"), ""),
    (re.compile(r"\s*\((?:unhinted|Size-like symbols): [^\n]*?\)(?=[.\s]|$)"), ""),
    (re.compile(r"0x[0-9a-fA-F]+"), "<address>"),
    (re.compile(r"\b\d+(?:x\d+)+\b"), "<n>"),
    (re.compile(r"(?:/[^\s:'\"()]+)+/([^\s/:'\"()]+)"), r"\1"),
    (re.compile(r"\bL\[(['\"])[^\]]*\1\](?:\.size\(\)\[\d+\]|\[[^\]]*\]|\.\w+)*"), "<input>"),
    (re.compile(r"\b(?:zuf|zf|[usz])\d+\b"), "<symbol>"),
    (re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.]*')"), "<n>"),
    (re.compile(r"\b\d+\b"), "<n>"),
    (re.compile(r"(?:<n>,\s*)+<n>"), "<n>"),
)


def normalise(message: str) -> str:
    """The part of an exception's message that is the same each time the same bug is met."""
    for cut in _CUTS:
        message = cut.sub("", message)
    for pattern, replacement in _WORDS:
        message = pattern.sub(replacement, message)
    # one line for each dimension, say, is the same bug however many there are
    lines = dict.fromkeys(" ".join(line.split()) for line in message.splitlines())
    return " ".join(filter(None, lines))[:600]


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """Stage, exception types from the outermost to its root cause, normalised message, innermost user frame."""

    stage: str
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
    """The last two parts of a path: enough to tell files apart, the same on every machine."""
    return "/".join(path.replace("\\", "/").split("/")[-2:])
