"""The process behind `exportdoctor inputs`: one request on stdin, the code on what was stdout."""

from __future__ import annotations

import os

from exportdoctor.core.codec import decode
from exportdoctor.core.protocol.export import ExportProgress
from exportdoctor.core.protocol.inputs_request import InputsCode, InputsReply, InputsRequest
from exportdoctor.core.protocol.reply import Refused
from exportdoctor.report.wording import substitutions
from exportdoctor.report.wording.capture import not_registered_for_inputs
from exportdoctor.targets import build, resolve
from exportdoctor.targets.eager import blame_running_code
from exportdoctor.targets.factory.factory_plan import FactoryPlan
from exportdoctor.torch_internals.pytree_registry import names_registered_in
from exportdoctor.worker.inputs_code import inputs_code
from exportdoctor.worker.standard_streams import leave, take_line_streams, write_line


def answer(request: InputsRequest) -> InputsReply:
    """The code, or the refusal where the target does not build or has no such part."""
    try:
        plan = resolve(request.target)
        with blame_running_code(f"Building {plan.title} failed"):
            built = build(plan)
            part = built.part(request.part or plan.parts[0])
        by_factory = isinstance(plan, FactoryPlan)
        notes = [*substitutions(built.substitutions)]
        registered = names_registered_in(part.prepare())
        notes += [not_registered_for_inputs(registered)] if registered else []
        return InputsCode(code=inputs_code(part, target=request.target.ref, by_factory=by_factory), notes=tuple(notes))
    except BaseException as error:  # also what would end the process
        return Refused.from_error(error)


def main() -> None:
    """Answer one request and end."""
    requests, replies = take_line_streams()
    with os.fdopen(requests, "rb") as lines:
        request: InputsRequest = decode(lines.readline(), InputsRequest)
    write_line(replies, ExportProgress(what="building"))
    write_line(replies, answer(request))
    leave(0)  # threads and exit handlers of the target are not waited for


if __name__ == "__main__":
    main()
