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
from exportdoctor.lanes.lane import Lane, LaneState, list_lanes
from exportdoctor.report import wording
from exportdoctor.report.canvas import Canvas, Span

_COLOURS = {"ready": "green", "failed": "red", "damaged": "red", "elsewhere": "yellow"}


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
    _print([(lane.state, lane) for lane in made], as_json)
    return ExitCode.FINDINGS if any(lane.reason for lane in made) else ExitCode.EXPORTS


@lanes.command("list")
@PYTHON
@JSON
def list_all(as_json: bool) -> int:
    """List the lanes with their sizes."""
    _print([(lane.state, lane) for lane in list_lanes()], as_json)
    return ExitCode.EXPORTS


@lanes.command("prune")
@click.option("--all", "everything", is_flag=True, help="Delete all lanes.")
@PYTHON
@JSON
def prune(everything: bool, as_json: bool) -> int:
    """Delete lanes that failed or are damaged, and those of other environments or of this one before it was changed."""
    from exportdoctor.lanes.lane_maker import prune_lanes

    gone = prune_lanes(everything=everything)
    if gone or as_json:
        _print(gone, as_json, deleted=True)
    else:
        click.echo("no lane was deleted")
    return ExitCode.EXPORTS


def _print(found: list[tuple[LaneState, Lane]], as_json: bool, *, deleted: bool = False) -> None:
    if as_json:
        write_out(pretty([LaneRow(state=state, lane=lane) for state, lane in found]).decode())
    elif found:
        canvas = Canvas(table_style(sys.stdout))
        canvas.table([_cells(lane, state, deleted=deleted) for state, lane in found])
        write_out(canvas.text())
    else:
        click.echo(wording.no_lanes())


def _cells(lane: Lane, state: LaneState, *, deleted: bool) -> tuple[Span, ...]:
    return (
        Span(wording.plain(lane.spec.title), "bold"),
        Span(f"{state}, deleted" if deleted else state, _COLOURS[state]),
        Span(f"{lane.size / 2**20:,.0f} MiB" if lane.size else "", "dim"),
        Span(wording.plain(lane.reason or ", ".join(lane.pins))),
    )
