"""Explains each kind of failure to a reader new to symbolic shapes: cause, reason and rewrites that work.

The texts are data (data/explanations.yaml); a test runs every rewrite on the installed torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.kinds import KINDS, FailureKind

_OWN_OPERATORS = ("aten.", "aten::", "prims.")
_OF_TORCH = re.compile(r"Pending unbacked symbols|only integers, slices .*\(got SymInt\)")
"""Messages of what torch's own code does not take, although its kind is documented as not supported."""


class Rewrite(msgspec.Struct, frozen=True, kw_only=True):
    """Code that fails with the kind, and what to write instead: Python with `torch`, `nn` and `Dim` imported.

    `example` holds what it takes to run both; the file's header names its keys. One with `fits` is for a branch of
    that form alone (statement_forms.py).
    """

    title: str
    before: str
    code: str = msgspec.field(name="after")
    example: dict[str, Any] = {}
    fits: tuple[str, ...] = ()


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A kind in one sentence, what usually helps in another, the whole in a paragraph, and in code.

    `fixture` is the file in fixtures/ with such a failure; empty where that is in fixtures/later. `documented` is the
    page on which torch says that it does not support this; empty where there is none.
    """

    kind: FailureKind
    title: str
    summary: str
    next_step: str = msgspec.field(name="next")
    paragraph: str
    rewrites: tuple[Rewrite, ...]
    fixture: str = ""
    documented: str = ""

    def rewrites_for(self, form: str) -> tuple[Rewrite, ...]:
        """The rewrites for a branch of that form; where there are none, those for any statement."""
        found = tuple(one for one in self.rewrites if form in one.fits)
        return found or tuple(one for one in self.rewrites if not one.fits)


def explain(kind: str) -> Explanation:
    """All that is said of `kind`; an ExportdoctorError where there is no such kind."""
    found = _explanations().get(kind)
    if found is None:
        raise ExportdoctorError(f"Unknown kind of failure {kind!r}", hint=f"Kinds: {', '.join(KINDS)}")
    return found


def summary(kind: str) -> str:
    """One sentence on what went wrong; a general one for a kind that only a newer release knows."""
    explanation = _explanations().get(kind)
    return explanation.summary if explanation else f"{explain(FailureKind.PYTHON_ERROR).title}."


def next_step(kind: str) -> str:
    """One sentence on what usually helps; that of `python_error` for a kind that only a newer release knows."""
    return (_explanations().get(kind) or explain(FailureKind.PYTHON_ERROR)).next_step


def documented_limit(
    kind: FailureKind, *, file: str | None, op: str | None, fixed_by: str = "", message: str = ""
) -> str:
    """The page on which torch documents a failure as not supported; empty where there is none, or torch's code fails.

    `file` is where the user's code fails, which only what torch refuses before or after tracing has no need of; `op`
    is the operator that raised, `fixed_by` the function of torch whose code fixes a size, `message` the exception's.
    """
    of_torch = bool(fixed_by or _OF_TORCH.match(message)) or (
        file is None and not (kind.is_of_the_call or kind.is_found_after_tracing)
    )
    own_operator = is_operator_of_torch(op) and kind == FailureKind.MISSING_FAKE_KERNEL
    known = _explanations().get(kind)
    return known.documented if known and not of_torch and not own_operator else ""


def documented_limit_of(finding: Finding) -> str:
    """As `documented_limit`, of a finding."""
    return documented_limit(
        finding.kind,
        file=finding.file,
        op=finding.op,
        fixed_by=finding.fixed_by,
        message=finding.exception.message,
    )


def is_operator_of_torch(op: str | None) -> bool:
    """Whether an operator of that name is one of torch's own, and no custom one."""
    return (op or "").startswith(_OWN_OPERATORS)


@cache
def _explanations() -> Mapping[str, Explanation]:
    import yaml  # most commands explain nothing

    text = files("exportdoctor").joinpath("data/explanations.yaml").read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    explanations = msgspec.convert(yaml.load(text, loader), tuple[Explanation, ...])
    return {explanation.kind: _on_one_line(explanation) for explanation in explanations}


def _on_one_line(explanation: Explanation) -> Explanation:
    joined = {
        name: " ".join(getattr(explanation, name).split()) for name in ("title", "summary", "next_step", "paragraph")
    }
    return msgspec.structs.replace(explanation, **joined)
