"""What `exportdoctor inputs` asks of its worker process, and the replies: that it builds, then the code."""

from __future__ import annotations

import msgspec

from exportdoctor.core.protocol.export import ExportProgress
from exportdoctor.core.protocol.reply import Refused, Reply
from exportdoctor.core.records.target import TargetRef


class InputsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of one part of a target, as code."""

    target: TargetRef
    part: str = ""


class InputsCode(Reply, frozen=True, kw_only=True, tag="inputs"):
    """A Python file with a function `inputs(model)`; `notes` say in which form the model was built."""

    code: str
    notes: tuple[str, ...] = ()


InputsReply = ExportProgress | InputsCode | Refused
