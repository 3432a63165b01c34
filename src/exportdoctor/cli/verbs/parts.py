"""`exportdoctor parts`: the parts of a target, without building it."""

from __future__ import annotations

import click

from exportdoctor.cli.answers import PartRow
from exportdoctor.cli.complete_words import complete_targets
from exportdoctor.cli.options import CONTEXT, JSON, TargetType
from exportdoctor.cli.terminal import write_out
from exportdoctor.core.codec import pretty
from exportdoctor.core.errors import ExitCode
from exportdoctor.core.records.target import TargetRef
from exportdoctor.report.wording import part_line


@click.command(context_settings=CONTEXT)
@click.argument("target", type=TargetType(), shell_complete=complete_targets)
@JSON
def parts(target: str, as_json: bool) -> int:
    """List the parts of TARGET: each is exported by itself. `scan --part P` chooses one."""
    from exportdoctor.targets import resolve

    plan = resolve(TargetRef(ref=target))
    if as_json:
        rows = [PartRow(part=name, scanned=name in plan.parts) for name in plan.available_parts]
        write_out(pretty(rows).decode())
    else:
        write_out("".join(f"{part_line(name, scanned=name in plan.parts)}\n" for name in plan.available_parts))
    return ExitCode.EXPORTS
