"""`exportdoctor schema`: the JSON schema of what other verbs print or write."""

from __future__ import annotations

import click

from exportdoctor.cli.answers import ANSWERS, schema_of
from exportdoctor.cli.options import CONTEXT
from exportdoctor.cli.terminal import write_out
from exportdoctor.core.codec import pretty
from exportdoctor.core.errors import ExitCode, UsageError, did_you_mean


@click.command("schema", context_settings=CONTEXT)
@click.argument("name", metavar="[NAME]", default="report", type=str)
@click.option("--list", "listed", is_flag=True, help="List the names, with the commands whose answers they are.")
def print_schema(name: str, listed: bool) -> int:
    """Print the JSON schema of the answer NAME. Default: report, which is report.json and `scan --json`.

    Keys are added and never renamed or taken away.
    """
    if listed:
        wide = max(map(len, ANSWERS))
        write_out("".join(f"{one:<{wide}}  {given_by}\n" for one, (_, given_by) in ANSWERS.items()))
        return ExitCode.EXPORTS
    if name not in ANSWERS:
        raise UsageError(
            f"there is no schema {name!r}", hint=f"{did_you_mean(name, ANSWERS)}One of: {', '.join(ANSWERS)}"
        )
    write_out(pretty(schema_of(name)).decode())
    return ExitCode.EXPORTS


schema = print_schema  # main loads the command by the verb's name
