"""`exportdoctor lanes`: environments with other versions, made on demand."""

from __future__ import annotations

import sys
from typing import Any

import click

from exportdoctor.cli.answers import LaneRow
from exportdoctor.cli.error_output import print_line
from exportdoctor.cli.lane_options import add_lane_options, lane_specs
from exportdoctor.cli.options import CONTEXT, JSON
from exportdoctor.cli.python_option import PYTHON
from exportdoctor.cli.terminal import table_style, write_out
from exportdoctor.core.codec import pretty
from exportdoctor.core.errors import ExitCode
from exportdoctor.lanes.lane import Lane, list_lanes
from exportdoctor.report import wording
from exportdoctor.report.canvas import Canvas, Span

_COLOURS = {"ready": "green", "failed": "red", "elsewhere": "yellow"}


@click.group(context_settings=CONTEXT)
def lanes() -> None:
    """Make, list and delete lanes: this environment with other versions of some packages."""


@lanes.command("make")
@add_lane_options
@PYTHON
@JSON
def make_lanes(as_json: bool, **given: Any) -> int:
    """Make the lanes of these versions, by uv if it is there, else by pip. A lane that failed is tried again.

    Without --torch a lane is a folder with the packages that differ, beside this environment.

    Exit code: 0 all are there, 1 one could not be made.
    """
    from exportdoctor.lanes.lane_maker import make_lane

    made = [make_lane(spec, print_line) for spec in lane_specs(given)]
    _print(made, as_json)
    return ExitCode.FINDINGS if any(lane.reason for lane in made) else ExitCode.EXPORTS


@lanes.command("list")
@PYTHON
@JSON
def list_all(as_json: bool) -> int:
    """List the lanes with their sizes."""
    _print(list_lanes(), as_json)
    return ExitCode.EXPORTS


@lanes.command("prune")
@click.option("--all", "everything", is_flag=True, help="Delete all lanes.")
@PYTHON
@JSON
def prune(everything: bool, as_json: bool) -> int:
    """Delete lanes that failed, and those of other environments or of this one before it was changed."""
    from exportdoctor.lanes.lane_maker import prune_lanes

    _print(prune_lanes(everything=everything), as_json)
    return ExitCode.EXPORTS


def _print(found: list[Lane], as_json: bool) -> None:
    if as_json:
        write_out(pretty([LaneRow(state=lane.state, lane=lane) for lane in found]).decode())
    elif found:
        canvas = Canvas(table_style(sys.stdout))
        canvas.table([_cells(lane) for lane in found])
        write_out(canvas.text())
    else:
        click.echo(wording.no_lanes())


def _cells(lane: Lane) -> tuple[Span, ...]:
    return (
        Span(wording.plain(lane.spec.title), "bold"),
        Span(lane.state, _COLOURS[lane.state]),
        Span(f"{lane.size / 2**20:,.0f} MiB" if lane.size else "", "dim"),
        Span(wording.plain(lane.reason or ", ".join(lane.pins))),
    )
