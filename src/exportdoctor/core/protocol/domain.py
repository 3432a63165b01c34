"""The protocol of `exportdoctor domain` and its worker: one request, progress, then one result."""

from __future__ import annotations

import msgspec

from exportdoctor.core.protocol.export import ExportProgress, StageFailure
from exportdoctor.core.protocol.reply import Refused, Reply
from exportdoctor.core.records.size_domain import SizeDomain
from exportdoctor.core.records.target import TargetRef


class DomainRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The domain of a target's part, or of the program in `file` alone where there is no target.

    `against` is a file that was made elsewhere, which is tried beside our own, '' for none.
    `seconds` is for drawing input sets.
    """

    target: TargetRef | None = None
    part: str = ""
    file: str = ""
    against: str = ""
    shims: tuple[str, ...] = ()
    shim_files: tuple[str, ...] = ()
    seconds: float = 10.0


class DomainResult(Reply, frozen=True, kw_only=True, tag="domain"):
    """The domain of one part or file. `failure`: a stage that could not be made, or the export as declared.

    `later_failure` is that of a stage of what was exported where sizes are not as declared.
    """

    domain: SizeDomain
    target: str
    part: str = ""
    shims: tuple[str, ...] = ()
    failure: StageFailure | None = None
    later_failure: StageFailure | None = None
    environment: dict[str, str] = msgspec.field(default_factory=dict)


DomainReply = ExportProgress | Refused | DomainResult
