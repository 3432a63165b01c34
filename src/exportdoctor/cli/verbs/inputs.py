"""`exportdoctor inputs`: the inputs that were made for a part, as code."""

from __future__ import annotations

from typing import Any

import click

from exportdoctor.cli.complete_words import complete_targets
from exportdoctor.cli.error_output import print_line
from exportdoctor.cli.options import CONTEXT, IMAGE_SIZE, PART, STATIC, TargetType
from exportdoctor.cli.python_option import PYTHON
from exportdoctor.cli.scan_flags import scan_option
from exportdoctor.cli.terminal import write_out
from exportdoctor.core.errors import ExitCode
from exportdoctor.core.protocol.inputs_request import InputsCode, InputsReply, InputsRequest
from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.export.ask_while_building import ask_while_building
from exportdoctor.process.supervise import build_limits


@click.command(context_settings=CONTEXT)
@click.argument("target", type=TargetType(), shell_complete=complete_targets)
@PART
@IMAGE_SIZE
@STATIC
@scan_option("build_timeout")
@scan_option("build_memory_mb")
@PYTHON
def inputs(target: str, part: str, build_timeout: float | None, build_memory_mb: float | None, **build: Any) -> int:
    """Print the inputs that are made for a part of TARGET, as a Python file for `scan --inputs FILE.py:inputs`."""
    from exportdoctor.targets import resolve

    ref = TargetRef(ref=target, parts=(part,) if part else (), options=BuildOptions(**build))
    resolve(ref)  # what can be refused without torch is refused now
    request, limits = InputsRequest(target=ref, part=part), build_limits(build_timeout, build_memory_mb)
    reply: InputsCode = ask_while_building("worker.inputs_server", request, InputsReply, limits)
    for note in reply.notes:
        print_line(note)
    write_out(reply.code)
    return ExitCode.EXPORTS
