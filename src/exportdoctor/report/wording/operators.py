"""Sentences about operators and functions of torch that it cannot trace, or not with dynamic sizes."""

from __future__ import annotations

from msgspec.structs import replace

from exportdoctor.core.failure import explanations
from exportdoctor.core.failure.explanations import Explanation, is_operator_of_torch
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.records.outcome import WrongFake
from exportdoctor.report.wording.formatting import short_path
from exportdoctor.report.wording.line_advice import assigned_by_index

_STATIC_TITLE = "An operator takes no dynamic sizes"
_STATIC_PARAGRAPH = (
    "Tracing runs every operator on fake tensors: shapes and dtypes go in, shapes and dtypes come out. Where all sizes "
    "are numbers, torch finds the shape of this operator's result: by a kernel that takes numbers alone, or by running "
    "the real kernel on zeros. A dynamic size is a symbol, which neither of them takes."
)
_OWN_TITLE = "An operator of torch has no fake kernel"
_WRONG_TITLE = "A fake kernel of torch's gives another shape or dtype than the operator"
_WRONG_PARAGRAPH = (
    "During tracing, the shape and dtype of an operator's result come from its fake kernel. That of torch's operator "
    "gives something else here than the operator itself, which was seen on small tensors. The error is raised at a "
    "later line, whose shapes do not match although eager runs without error."
)
_FIXED_TITLE = "torch's own code fixes a dynamic size"
_FIXED_PARAGRAPH = (
    "A dynamic dimension enters the trace as a symbol with an example value, such as s0 = 6. As long as code only "
    "computes with the symbol, the program is valid for every size. Here code of torch below {function} takes the size "
    "as a number: for an argument that takes no symbol, for a loop that is unrolled, or for a step written for "
    "numbers. The tracer then uses the example's size and records the guard s0 == 6, which contradicts dynamic_shapes."
)


def is_static_only(finding: Finding) -> bool:
    """Whether the operator that has no fake kernel is traced where the sizes are static, as was seen."""
    seen = bool(finding.dimensions) and finding.dimensions_passing is not None
    return finding.kind is FailureKind.MISSING_FAKE_KERNEL and seen


def summary(finding: Finding) -> str:
    """Why it fails: what its kind says, or what is known of the operator."""
    if is_static_only(finding):
        return (
            "The operator is traced with static sizes, but not with dynamic ones: it has no fake kernel that takes "
            "symbolic sizes."
        )
    if (found := _wrong_fake(finding)) is not None:
        at = f", called at {short_path(found.frame.file)}:{found.frame.line}," if found.frame is not None else ""
        return (
            f"torch's fake kernel of {found.op}{at} gives {found.said}: code after it that eager runs can fail on that."
        )
    if finding.fixed_by:
        return (
            f"A dimension is declared dynamic, but torch's own code below {finding.fixed_by} takes its size as a "
            "number, which fixes it."
        )
    return explanations.summary(finding.kind)


def _wrong_fake(finding: Finding) -> WrongFake | None:
    return finding.wrong_fake if finding.kind is FailureKind.WRONG_FAKE_KERNEL else None


def step(finding: Finding) -> str:
    """What helps where torch's own operator or code is to blame, or lacks dynamic sizes alone; else empty."""
    if (found := _wrong_fake(finding)) is not None:
        instead = found.instead
        first = f"Write {instead}, with which it gives the right shape" if instead else "Compute the value otherwise"
        return f"{first}. A report of it belongs to PyTorch."
    if finding.fixed_by:
        written = assigned_by_index(finding) if finding.fixed_by == "__setitem__" else ""
        return written or (
            f"Use other functions of torch in place of {finding.fixed_by}, or export with a static size. Torch's "
            "code fixes the size there, no line of the model: a report of it belongs to PyTorch."
        )
    if finding.kind is not FailureKind.MISSING_FAKE_KERNEL:
        return ""
    of_torch, other = is_operator_of_torch(finding.op), "compute the same with operators of torch that torch.export"
    if is_static_only(finding) and of_torch:
        names = " and ".join(f"`{name}`" for name in finding.dimensions or ())
        return f"Keep {names} static, or {other} takes with dynamic sizes."
    if is_static_only(finding):
        return "Register a fake kernel that takes symbolic sizes, with torch.library.register_fake."
    return f"{other[0].upper()}{other[1:]} takes." if of_torch else ""


def form(finding: Finding) -> str:
    """For which rewrites of the kind it is one; empty where any may do."""
    if finding.kind is not FailureKind.MISSING_FAKE_KERNEL or not is_operator_of_torch(finding.op):
        return ""
    return "sparse_operator" if "sparse" in (finding.op or "") else "operator_of_torch"


def explanation_for(explanation: Explanation, finding: Finding) -> Explanation:
    """The explanation of a kind, as it holds for this operator; what torch does has no rewrites of the user's code."""
    if _wrong_fake(finding) is not None:
        return replace(explanation, title=_WRONG_TITLE, paragraph=_WRONG_PARAGRAPH, rewrites=())
    if finding.fixed_by:
        paragraph = _FIXED_PARAGRAPH.format(function=finding.fixed_by)
        return replace(explanation, title=_FIXED_TITLE, paragraph=paragraph, rewrites=())
    if is_static_only(finding):
        explanation = replace(explanation, title=_STATIC_TITLE, paragraph=_STATIC_PARAGRAPH)
    elif form(finding):
        explanation = replace(explanation, title=_OWN_TITLE)
    kept = tuple(one for one in explanation.rewrites if one.fits) if form(finding) else explanation.rewrites
    return replace(explanation, rewrites=kept)
