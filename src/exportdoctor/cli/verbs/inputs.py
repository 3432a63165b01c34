"""`exportdoctor inputs`: the inputs that were made for a part, as code."""

from __future__ import annotations

from typing import Any

import click

from exportdoctor.cli.complete_words import complete_parts, complete_targets
from exportdoctor.cli.error_output import print_line
from exportdoctor.cli.options import CONTEXT, IMAGE_SIZE, STATIC
from exportdoctor.cli.python_option import PYTHON
from exportdoctor.cli.terminal import write_out
from exportdoctor.core.errors import ExitCode, WorkerLost
from exportdoctor.core.protocol.inputs_request import InputsCode, InputsReply, InputsRequest
from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.process.client import spawn


@click.command(context_settings=CONTEXT)
@click.argument("target", shell_complete=complete_targets)
@click.option(
    "--part", default="", metavar="P", shell_complete=complete_parts, help="The part. Default: the first one."
)
@IMAGE_SIZE
@STATIC
@PYTHON
def inputs(target: str, part: str, **build: Any) -> int:
    """Print the inputs that are made for a part of TARGET, as a Python file for `scan --inputs FILE.py:inputs`."""
    from exportdoctor.targets import resolve

    ref = TargetRef(ref=target, parts=(part,) if part else (), options=BuildOptions(**build))
    resolve(ref)  # what can be refused without torch is refused now
    reply = _ask(InputsRequest(target=ref, part=part))
    for note in reply.notes:
        print_line(note)
    write_out(reply.code)
    return ExitCode.EXPORTS


def _ask(request: InputsRequest) -> InputsCode:
    with spawn("worker.inputs_server", log=None) as client:
        client.send(request)
        for reply in client.listen(InputsReply):
            if isinstance(reply, InputsCode):
                return reply
            raise reply.to_error()
    raise WorkerLost("The process that makes the inputs has ended", hint="EXPORTDOCTOR_DEBUG=1 shows what it printed")
