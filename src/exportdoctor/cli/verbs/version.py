"""`exportdoctor version`: the versions in use, and the private parts of torch that the installed torch has."""

from __future__ import annotations

import sys

import click
import msgspec

from exportdoctor.cli.options import CONTEXT, JSON
from exportdoctor.cli.packages import version_line
from exportdoctor.cli.terminal import table_style, write_out
from exportdoctor.core.codec import decode, pretty
from exportdoctor.core.errors import ExitCode, WorkerLost
from exportdoctor.process.client import run_module
from exportdoctor.report.canvas import Canvas, Span


class HookRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One private API of torch. `lost` is what happens without it, `seen_on` the torch versions it was tested with."""

    id: str
    supported: bool
    api: str
    used_for: str
    lost: str
    seen_on: tuple[str, ...]
    essential: bool


class HookTable(msgspec.Struct, frozen=True, kw_only=True):
    """What `python -m exportdoctor.torch_internals` prints."""

    torch: str
    hooks: tuple[HookRecord, ...]


@click.command(context_settings=CONTEXT)
@click.option("--internals", is_flag=True, help="List the private APIs of torch that exportdoctor uses.")
@JSON
def version(internals: bool, as_json: bool) -> int:
    """Show the versions of exportdoctor, Python, torch and transformers."""
    if not internals and not as_json:
        write_out(version_line() + "\n")
        return ExitCode.EXPORTS
    table = _read_table()
    write_out(pretty(table).decode() if as_json else _format_table(table))
    return ExitCode.EXPORTS


def _read_table() -> HookTable:
    """The table for the installed torch, from a process of its own: torch stays out of the command line."""
    done = run_module("torch_internals")
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
        raise WorkerLost(f"torch cannot be inspected: {last}", hint="Run python -m exportdoctor.torch_internals")
    table: HookTable = decode(done.stdout, HookTable)
    return table


def _format_table(table: HookTable) -> str:
    found = sum(hook.supported for hook in table.hooks)
    canvas = Canvas(table_style(sys.stdout))
    canvas.paragraph(f"torch {table.torch} has {found} of the {len(table.hooks)} private APIs that exportdoctor uses.")
    canvas.table([_cells(hook) for hook in table.hooks])
    return canvas.text()


def _cells(hook: HookRecord) -> tuple[Span, ...]:
    used = f"{hook.used_for} (tested with {', '.join(hook.seen_on)})"
    return (
        Span(hook.id, "bold"),
        Span("found", "green") if hook.supported else Span("missing", "red"),
        Span(used if hook.supported else f"without it: {hook.lost}"),
    )
