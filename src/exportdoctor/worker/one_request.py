"""A process that answers one request: it opens the part, tells its steps, writes the answer or a refusal, and ends."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from exportdoctor.core.codec import decode
from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.core.protocol.export import ExportProgress
from exportdoctor.core.protocol.reply import Refused
from exportdoctor.core.records.target import TargetRef
from exportdoctor.shims import NotApplicable, Shim, ShimTrouble, find, order_shims
from exportdoctor.targets import BuiltPart, BuiltTarget, Plan, build, resolve
from exportdoctor.targets.eager import blame_running_code
from exportdoctor.worker.mapped_weights import map_weights_if_short
from exportdoctor.worker.standard_streams import leave, take_line_streams, write_line

Progress = Callable[[str], None]
"""Is told which step begins."""


@dataclass(frozen=True, kw_only=True)
class RequestedPart:
    """A part of a built target, and the shims to export it with, in their order."""

    plan: Plan
    built: BuiltTarget
    part: BuiltPart
    shims: tuple[Shim, ...]


def open_part(
    target: TargetRef, name: str, *, shims: Sequence[str], shim_files: Sequence[str], doing: Progress
) -> RequestedPart:
    """Build a target and find its part, the first if unnamed. Raises UsageError, TargetError, ShimTrouble."""
    plan = resolve(target)
    doing(f"building {plan.title}")
    with blame_running_code(f"Building {plan.title} failed"):
        built = build(plan)
    map_weights_if_short(built.model, Path(tempfile.gettempdir()))
    part = built.part(name or plan.parts[0])
    found = order_shims([find(shim, files=shim_files, axes=part.axes) for shim in shims])
    return RequestedPart(plan=plan, built=built, part=part, shims=tuple(found))


@dataclass(frozen=True)
class Teller:
    """Writes to whoever asks: called, which step begins; `keep`, what would be the answer if the process ended now."""

    keep: Callable[[Any], None]

    def __call__(self, what: str) -> None:
        self.keep(ExportProgress(what=what))


def serve_one_request(kind: type[Any], answer: Callable[[Any, Teller], Any]) -> NoReturn:
    """Answer a request of this kind, and end without destroying sessions of ONNX Runtime or writers that failed."""
    requests, replies = take_line_streams()
    with os.fdopen(requests, "rb") as lines:
        request: Any = decode(lines.readline(), kind)
    write_line(replies, _answer(request, answer, Teller(partial(write_line, replies))))
    leave(0)


def _answer(request: Any, answer: Callable[[Any, Teller], Any], tell: Teller) -> Any:
    try:
        return answer(request, tell)
    except (ShimTrouble, NotApplicable) as error:
        return Refused(message=f"A shim does not apply: {error}", fault="usage", hint="Choose others with --shims")
    except ExportdoctorError as error:
        return Refused.from_error(error)
    except BaseException as error:  # also what would end the process
        traceback.print_exc()
        return Refused.from_error(error)
