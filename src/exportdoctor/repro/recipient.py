"""Who should get a failure: torch, the package whose code fails, or the user, whose own code it is; and why.

torch documents what it does not support. There the code has to change, whoever wrote it; any other failure is torch's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.failure.messages import first_line, without_hints

_EXPORT = "https://docs.pytorch.org/docs/stable/export.html"
_CONTROL_FLOW = f"{_EXPORT}#data-and-shape-dependent-control-flow"
DOCUMENTED = {
    FailureKind.DATA_DEPENDENT_VALUE: _CONTROL_FLOW,
    FailureKind.DATA_DEPENDENT_GUARD: _CONTROL_FLOW,
    FailureKind.DYNAMIC_DIM_SPECIALISED: f"{_EXPORT}#expressing-dynamism",
    FailureKind.DIMS_RELATED: f"{_EXPORT}#expressing-dynamism",
    FailureKind.UNREGISTERED_PYTREE: f"{_EXPORT}#torch.export.register_dataclass",
    FailureKind.MISSING_FAKE_KERNEL: f"{_EXPORT}#missing-fake-meta-kernels-for-operators",
    FailureKind.UNSUPPORTED_PYTHON: f"{_EXPORT}#limitations-of-torch-export",
}
"""Kinds that torch documents as not supported, with the page."""
_REPOSITORIES = {
    "torch": "pytorch/pytorch",
    "transformers": "huggingface/transformers",
    "onnxruntime": "microsoft/onnxruntime",
}
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+)")
_MOST_WORDS = 12
_OWN_OPERATORS = ("aten.", "aten::", "prims.")
_BY_OPERATOR = (FailureKind.MISSING_FAKE_KERNEL,)


@dataclass(frozen=True, kw_only=True)
class Recipient:
    """`package` is empty for the user's own code, `repository` where it is not known; `page` documents it."""

    package: str
    repository: str
    page: str = ""


def recipient_of(finding: Finding) -> Recipient:
    """Who should get a finding's bundle."""
    of_torch = finding.file is None or ((finding.op or "").startswith(_OWN_OPERATORS) and finding.kind in _BY_OPERATOR)
    page = "" if of_torch else DOCUMENTED.get(finding.kind, "")
    if finding.kind in (FailureKind.LOAD, FailureKind.RUN):
        package = "onnxruntime"
    elif finding.kind is FailureKind.INVALID_DYNAMIC_SHAPES:
        package = ""
    elif page or finding.kind is FailureKind.PYTHON_ERROR:
        package = package_of(finding)
    else:
        package = "torch"
    return Recipient(package=package, repository=_REPOSITORIES.get(package, ""), page=page)


def package_of(finding: Finding) -> str:
    """The installed package whose code fails; torch where no code is named, empty for code that is not installed."""
    if finding.file is None:
        return "torch"
    found = _INSTALLED.search(finding.file)
    return found[1].removesuffix(".py") if found else ""


def search_terms(finding: Finding) -> str:
    """What to search upstream for: the message up to what is particular to this model, and the function."""
    message = without_hints(first_line(finding.exception.message))
    words = re.split(r"\s+(?=\S*(?:\d|[\[({=<>]|/))", message, maxsplit=1)[0].split()[:_MOST_WORDS]
    function = (finding.function or "").rpartition(".")[2].strip("<>") if package_of(finding) else ""
    phrase = f'"{" ".join(words).rstrip(".,:;")}"' if words else finding.exception.type.rpartition(".")[2]
    return " ".join(filter(None, (phrase, function)))


def search_address(terms: str, repository: str) -> str:
    """The search in the issues of a repository, or in all of GitHub."""
    within = f"repo:{repository} " if repository else ""
    return f"https://github.com/search?type=issues&q={quote(within + terms)}"
