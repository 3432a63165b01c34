"""Who should get a failure: torch, the package whose code fails, or the user, whose own code it is; and why.

torch documents what it does not support. There the code has to change, whoever wrote it; any other failure is torch's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from exportdoctor.core.failure.explanations import documented_limit, documented_limit_of
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.frames import installed_package
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.failure.messages import first_line, without_hints

_REPOSITORIES = {
    "torch": "pytorch/pytorch",
    "transformers": "huggingface/transformers",
    "onnxruntime": "microsoft/onnxruntime",
}
_MOST_WORDS = 12


@dataclass(frozen=True, kw_only=True)
class Recipient:
    """`package` is empty for the user's own code, `repository` where it is not known; `page` documents it."""

    package: str
    repository: str
    page: str = ""


def recipient_of(finding: Finding) -> Recipient:
    """Who should get a finding's bundle."""
    page = documented_limit_of(finding)
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
    file, _line = place_of(finding)
    if not file:
        return "" if documented_limit(finding.kind, file=None, op=finding.op) else "torch"
    return installed_package(file)


def place_of(finding: Finding) -> tuple[str, int]:
    """The line of the user's code that fails, or that made what torch refuses; an empty file where none is known."""
    at = finding.guard or finding.value_origin
    if finding.file is not None:
        return finding.file, finding.line or 0
    return (at.file, at.line) if at is not None else ("", 0)


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
