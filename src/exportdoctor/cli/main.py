"""The entry point: runs a verb and turns what it raises into one line and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from exportdoctor.cli.error_output import print_error
from exportdoctor.cli.interruption import Interruption
from exportdoctor.cli.options import CONTEXT
from exportdoctor.cli.verbs import VERBS
from exportdoctor.core.errors import WorkerLost
from exportdoctor.store.places import check_working_folder

COMPLETION_VARIABLE = "_EXPORTDOCTOR_COMPLETE"


class VerbGroup(click.Group):
    """The verbs of the table, each imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the table's order."""
        return [verb.name for verb in VERBS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, from its own module."""
        for verb in VERBS:
            if verb.name == cmd_name:
                module = importlib.import_module(f"exportdoctor.cli.verbs.{verb.name}")
                command: click.Command = getattr(module, verb.name)
                return command
        return None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb. A usage error that names no command, as that of an option without its value, names the verb."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if error.ctx is None and ctx.invoked_subcommand:
                error.ctx = click.Context(self, info_name=ctx.invoked_subcommand, parent=ctx)
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs' help lines, without importing one."""
        with formatter.section("Commands"):
            formatter.write_dl([(verb.name, verb.help) for verb in VERBS])


def _print_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    """Print the versions and exit."""
    if not wanted or ctx.resilient_parsing:
        return
    from exportdoctor.cli.packages import version_line

    click.echo(version_line())
    ctx.exit()


@click.command(cls=VerbGroup, context_settings=CONTEXT)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def exportdoctor() -> None:
    """Find out why torch.export fails: which submodule, function, line and op.

    Start with: exportdoctor scan Qwen2.5-VL-3B
    """
    check_working_folder()


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code and raises nothing."""
    # None where whoever started us has closed it, as by >&-
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        with Interruption():
            code = exportdoctor.main(
                list(arguments),
                prog_name="exportdoctor",
                standalone_mode=False,
                complete_var=COMPLETION_VARIABLE,
                obj=tuple(arguments),  # a verb that starts itself again, or notes its command line, finds it here
            )
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
        return 0
    except WorkerLost as error:
        from exportdoctor.process.interpreter import explain_loss

        return print_error(explain_loss(error))
    except BaseException as error:
        return print_error(error)
    return code if isinstance(code, int) else 0


def main() -> NoReturn:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


def _discard_stdout() -> None:
    """The pipe is closed: keep the interpreter from complaining when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
