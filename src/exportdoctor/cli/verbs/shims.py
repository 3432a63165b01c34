"""`exportdoctor shims`: lists shims, shows what one changes, and tries some on a model."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import click
from msgspec.structs import asdict

from exportdoctor.cli.answers import ShimRow, ShimSheet
from exportdoctor.cli.complete_words import complete_runs, complete_shims, complete_targets
from exportdoctor.cli.options import (
    CONTEXT,
    IMAGE_SIZE,
    INPUTS,
    JSON,
    PARTS,
    STATIC,
    WEIGHTS,
    FiniteRange,
    TargetType,
    absolute_inputs,
)
from exportdoctor.cli.python_option import PYTHON
from exportdoctor.cli.record_shim_try import check_same_target, record_tries
from exportdoctor.cli.scan_flags import scan_option
from exportdoctor.cli.terminal import style_of, table_style, write_out
from exportdoctor.core.codec import pretty
from exportdoctor.core.errors import ExitCode, UsageError
from exportdoctor.core.limits import UNMEASURED_ATTEMPT
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.report import wording
from exportdoctor.report.canvas import Canvas, Span
from exportdoctor.shims import SOUNDNESS_MEANS, Shim, find, installed_versions, registry
from exportdoctor.store.runs import find_run
from exportdoctor.targets import resolve

_COLOURS = {"exact": "green", "signature": "green", "precondition": "yellow", "specialised": "yellow"}


def _check_files(_context: click.Context, _parameter: click.Parameter, files: tuple[str, ...]) -> tuple[str, ...]:
    from exportdoctor.engine.shim_files import check_shim_files

    check_shim_files(files)
    return files


_FILES = click.option(
    "--shims",
    "files",
    metavar="FILE",
    multiple=True,
    callback=_check_files,
    help="Python file with your own shims. Can be repeated.",
)


@click.group(context_settings=CONTEXT)
def shims() -> None:
    """List and show shims, or try some on a model.

    For example: exportdoctor shims show precompute-grid
    """


@shims.command("list", short_help="List all shims and whether they fit.")
@click.option("--provider", metavar="NAME", help="List only shims of this provider.")
@click.option("--fitting", is_flag=True, help="List only shims that fit the installed versions.")
@_FILES
@PYTHON
@JSON
def list_shims(provider: str | None, fitting: bool, files: tuple[str, ...], as_json: bool) -> int:
    """List all shims: provider, soundness, and whether they fit the installed versions."""
    listed = [shim for shim in registry(files) if provider in (None, shim.provider)]
    reasons = _misfits(listed)
    found = [shim for shim in listed if not (fitting and shim.id in reasons)]
    if as_json:
        write_out(pretty([_row(shim, reasons) for shim in found]).decode())
    else:
        write_out(_table(found, reasons))
    return ExitCode.EXPORTS


@shims.command("show")
@click.argument("name", metavar="ID", shell_complete=complete_shims)
@_FILES
@PYTHON
@JSON
def show_shim(name: str, files: tuple[str, ...], as_json: bool) -> int:
    """Describe a shim, with the diff of what it replaces."""
    shim = find(name, files=files)
    reasons = _misfits([shim])
    if as_json:
        write_out(pretty(ShimSheet(**asdict(_row(shim, reasons)), diff=shim.diff())).decode())
    else:
        write_out(_sheet(shim, reasons))
    return ExitCode.EXPORTS


@shims.command("try", short_help="Export a model without and with shims.")
@click.argument("name", metavar="ID[+ID...]", shell_complete=complete_shims)
@click.argument("target", type=TargetType(), shell_complete=complete_targets)
@PARTS
@scan_option("exporter")
@WEIGHTS
@IMAGE_SIZE
@INPUTS
@STATIC
@click.option(
    "--timeout",
    type=FiniteRange(min=0, min_open=True),
    metavar="S",
    help=f"Timeout for one export, in seconds. Default: {UNMEASURED_ATTEMPT:g}.",
)
@click.option("--run", metavar="RUN", shell_complete=complete_runs, help="Also record the results in this run.")
@_FILES
@PYTHON
@JSON
def try_on_target(name: str, target: str, files: tuple[str, ...], as_json: bool, run: str | None, **given: Any) -> int:
    """Export the parts of TARGET without and with the shim ID (several are joined by +), and show the results.

    Exit code: 0 every part exports and its outputs match eager, 1 otherwise. A specialised set of shims need only match
    at the example's sizes and values.
    """
    from exportdoctor.core.records.target import BuildOptions, TargetRef
    from exportdoctor.engine.cure.try_shims import try_shims

    names = tuple(dict.fromkeys(filter(None, name.split("+"))))
    if not names:
        raise UsageError(f"{name!r} names no shim", hint="See exportdoctor shims list")
    for one in names:
        if not one.startswith("static-dim:"):
            find(one, files=files)
    folder = find_run(run) if run is not None else None
    build = BuildOptions(
        weights=given["weights"],
        image_size=given["image_size"],
        static=given["static"],
        inputs=absolute_inputs(given["inputs"]),
    )
    options = ScanOptions(
        exporter=given["exporter"], timeout=given["timeout"], shim_files=tuple(map(os.path.abspath, files))
    )
    reference = TargetRef(ref=target, parts=given["parts"], options=build)
    resolve(reference)
    if folder is not None:
        check_same_target(folder, reference, exporter=options.exporter)
    found = []
    for tried in try_shims(reference, options, names):
        found.append(tried)
        if not as_json:
            write_out(_result(tried))
    if folder is not None:
        for part in record_tries(found, folder):
            print(f"exportdoctor: {part}: not recorded, for {folder} has no finding where it fails", file=sys.stderr)
    if as_json:
        write_out(pretty(found).decode())
    return ExitCode.EXPORTS if all(tried.cured or tried.exports for tried in found) else ExitCode.FINDINGS


def _result(tried: Any) -> str:
    """What one part does without the shims and with them."""
    canvas = Canvas(style_of(sys.stdout))
    canvas.paragraph(wording.plain(f"{tried.part} with {' + '.join(tried.shims)}"), colour="title")
    canvas.paragraph(wording.plain(f"before: {tried.before}"), indent=2, hang=4)
    canvas.paragraph(wording.plain(f"after:  {tried.after}"), indent=2, hang=4, colour="green" if tried.cured else "")
    if tried.cured:
        cure = ". ".join(filter(None, (wording.soundness(tried.soundness), tried.condition)))
        canvas.paragraph(wording.plain(f"cure:   {cure}"), indent=2, hang=4)
    for row in wording.combined_rows(tried.numbers):
        canvas.paragraph(wording.plain(wording.agreement_line(row)), indent=4)
    refused = [row for row in tried.numbers if row.made_up and row.refused]
    if refused:
        reasons = wording.reasons_of_refusals(refused)
        canvas.paragraph(wording.plain(wording.refused_sets([row.inputs for row in refused], reasons)), indent=4)
    return canvas.text()


def _misfits(shims: Sequence[Shim]) -> dict[str, str]:
    """Why some cannot be used on the installed versions, by id. Those of other libraries must be entered to know."""
    from exportdoctor.engine.shim_entries import find_unfit_shims

    versions = installed_versions()
    reasons = {shim.id: reason for shim in shims if (reason := shim.fits(versions)) is not None}
    if any(shim.provider not in ("own", "user") for shim in shims if shim.id not in reasons):
        unfit = find_unfit_shims()
        reasons |= {shim.id: unfit[shim.id] for shim in shims if shim.id in unfit and shim.id not in reasons}
    return reasons


def _row(shim: Shim, reasons: Mapping[str, str]) -> ShimRow:
    reason = reasons.get(shim.id)
    return ShimRow(
        id=shim.id,
        title=shim.title,
        provider=shim.provider,
        soundness=shim.soundness,
        fits=reason is None,
        reason=reason,
        does=shim.does,
        precondition=shim.precondition,
        needs=dict(shim.needs),
        link=shim.link,
        retire=shim.retire,
        conflicts=shim.conflicts,
    )


def _table(found: list[Shim], reasons: Mapping[str, str]) -> str:
    """A block for each provider."""
    canvas = Canvas(table_style(sys.stdout))
    for provider, group in groupby(found, key=lambda shim: shim.provider):
        rows = [_cells(shim, reasons.get(shim.id)) for shim in group]
        canvas.blank()
        canvas.paragraph(f"{provider} · {wording.count(len(rows), 'shim')}", colour="title")
        canvas.table(rows, indent=2)
    if not found:
        canvas.paragraph("No shims match.")
    return canvas.text()


def _cells(shim: Shim, reason: str | None) -> tuple[Span, ...]:
    last = Span(shim.title) if reason is None else Span(f"does not fit: {reason}", "dim")
    colour = _COLOURS.get(shim.soundness, "red")
    return Span(shim.id, "bold" if reason is None else "dim"), Span(wording.soundness(shim.soundness), colour), last


def _sheet(shim: Shim, reasons: Mapping[str, str]) -> str:
    canvas = Canvas(style_of(sys.stdout))
    reason = reasons.get(shim.id)
    canvas.paragraph(shim.id, colour="title")
    canvas.paragraph(f"{shim.title}.")
    canvas.blank()
    needs = ", ".join(f"{package} {wanted}".strip() for package, wanted in shim.needs.items())
    facts = {
        "provider": shim.provider,
        "soundness": f"{wording.soundness(shim.soundness)}: {SOUNDNESS_MEANS[shim.soundness]}",
        "valid only if": shim.precondition,
        "fits": "yes" if reason is None else f"no: {reason}",
        "needs": needs,
        "not with": ", ".join(shim.conflicts),
        "upstream": shim.link,
        "not needed if": shim.retire,
    }
    canvas.table([(Span(name, "dim"), Span(fact)) for name, fact in facts.items() if fact], indent=2)
    if shim.does and shim.does.rstrip(".") != shim.title:
        canvas.blank()
        canvas.paragraph(shim.does)
    canvas.blank()
    canvas.code(shim.diff(), indent=0)
    return canvas.text()
