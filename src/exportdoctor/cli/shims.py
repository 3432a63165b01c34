"""`exportdoctor shims`: the known cures, whether they fit what is installed, and what each of them changes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

import click

from exportdoctor.cli.complete import complete_runs, complete_targets
from exportdoctor.cli.image_size import ImageSizeType
from exportdoctor.cli.record_shim_try import note_tried
from exportdoctor.cli.terminal import style_of, write_out
from exportdoctor.core.codec import pretty
from exportdoctor.core.errors import ExitCode
from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.report import wording
from exportdoctor.report.canvas import Canvas, Span
from exportdoctor.shims import SOUNDNESS_MEANS, Shim, find, installed_versions, registry
from exportdoctor.store.runs import find_run
from exportdoctor.targets import resolve

_ENDLESS = 10_000
_COLOURS = {"exact": "green", "signature": "green", "precondition": "yellow", "specialised": "yellow"}
_FILES = click.option("--shims", "files", metavar="FILE", multiple=True, help="A Python file with shims of your own.")
_JSON = click.option("--json", "as_json", is_flag=True, help="As JSON.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def shims() -> None:
    """List the known cures, show one, try some on a target."""


@shims.command("list")
@click.option("--provider", metavar="NAME", help="Those of one provider only.")
@click.option("--fitting", is_flag=True, help="Those that fit the installed versions only.")
@_FILES
@_JSON
def list_them(provider: str | None, fitting: bool, files: tuple[str, ...], as_json: bool) -> int:
    """List every shim: its provider, how sound it is, and whether it fits the installed versions."""
    versions = installed_versions()
    found = [shim for shim in registry(files) if provider in (None, shim.provider)]
    found = [shim for shim in found if not fitting or shim.fits(versions) is None]
    if as_json:
        write_out(pretty([_record(shim, versions) for shim in found]).decode())
    else:
        write_out(_table(found, versions))
    return ExitCode.EXPORTS


@shims.command()
@click.argument("name", metavar="ID")
@_FILES
@_JSON
def show(name: str, files: tuple[str, ...], as_json: bool) -> int:
    """Tell all of one shim, with the diff of what it replaces."""
    shim, versions = find(name, files=files), installed_versions()
    if as_json:
        write_out(pretty({**_record(shim, versions), "diff": shim.diff()}).decode())
    else:
        write_out(_sheet(shim, versions))
    return ExitCode.EXPORTS


@shims.command("try")
@click.argument("name", metavar="ID[+ID...]")
@click.argument("target", shell_complete=complete_targets)
@click.option("--part", "parts", multiple=True, metavar="P", help="Try it on this part only; may be given again.")
@click.option("--exporter", type=click.Choice(list(EXPORTERS)), default="export", help="How to export.")
@click.option("--weights", default="fake", metavar="fake|random|PATH", help="As in a scan.")
@click.option("--image-size", type=ImageSizeType(), metavar="HxW", help="The example image, in pixels.")
@click.option("--static", is_flag=True, help="Fix every size.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Seconds for one attempt.")
@click.option("--run", metavar="RUN", shell_complete=complete_runs, help="Note what they do in this run, too.")
@_FILES
@_JSON
def try_them(name: str, target: str, files: tuple[str, ...], as_json: bool, run: str | None, **given: Any) -> int:
    """Apply one shim, or several joined by +, to a target's parts, and tell what each part does then.

    Exit code: 0 every part exports and its numbers agree with eager's, 1 not so. A specialised set may refuse others
    than the example's sizes and values.
    """
    from exportdoctor.core.target import BuildOptions, TargetRef
    from exportdoctor.engine.cure.try_shims import try_shims

    names = tuple(dict.fromkeys(filter(None, name.split("+"))))
    for one in names:
        if not one.startswith("static-dim:"):
            find(one, files=files)
    folder = find_run(run) if run is not None else None
    build = BuildOptions(weights=given["weights"], image_size=given["image_size"], static=given["static"])
    options = ScanOptions(
        exporter=given["exporter"], timeout=given["timeout"], shim_files=tuple(map(os.path.abspath, files))
    )
    resolve(TargetRef(ref=target, parts=given["parts"], options=build))
    found = []
    for tried in try_shims(TargetRef(ref=target, parts=given["parts"], options=build), options, names):
        found.append(tried)
        if not as_json:
            write_out(_tried(tried))
    if folder is not None:
        note_tried(found, folder)
    if as_json:
        write_out(pretty(found).decode())
    return ExitCode.EXPORTS if all(tried.cured or tried.exports for tried in found) else ExitCode.FINDINGS


def _tried(tried: Any) -> str:
    """What one part does without the shims and with them."""
    canvas = Canvas(style_of(sys.stdout))
    canvas.paragraph(wording.plain(f"{tried.part} with {' + '.join(tried.shims)}"), colour="title")
    canvas.paragraph(wording.plain(f"before: {tried.before}"), indent=2, hang=4)
    canvas.paragraph(wording.plain(f"after:  {tried.after}"), indent=2, hang=4, colour="green" if tried.cured else "")
    for row in tried.numbers:
        said = row.trouble or f"max |Δ| {row.max_abs:.1e}, allowed {row.tolerance:.0e}"
        does = "refuses" if row.refused else "agrees on" if row.holds else "differs on"
        canvas.paragraph(wording.plain(f"{does} {row.inputs}: {said}"), indent=4)
    return canvas.text()


def _record(shim: Shim, versions: Mapping[str, str]) -> dict[str, Any]:
    reason = shim.fits(versions)
    return {
        "id": shim.id,
        "title": shim.title,
        "provider": shim.provider,
        "soundness": shim.soundness,
        "fits": reason is None,
        "reason": reason,
        "does": shim.does,
        "precondition": shim.precondition,
        "needs": dict(shim.needs),
        "link": shim.link,
        "retire": shim.retire,
        "conflicts": list(shim.conflicts),
    }


def _table(found: list[Shim], versions: Mapping[str, str]) -> str:
    """A block for each provider; on a terminal as wide as that, elsewhere as long as it must be, for grep."""
    style = style_of(sys.stdout)
    canvas = Canvas(style if sys.stdout.isatty() else replace(style, width=_ENDLESS))
    for provider, block in groupby(found, key=lambda shim: shim.provider):
        rows = [_cells(shim, versions) for shim in block]
        canvas.blank()
        canvas.paragraph(f"{provider} · {wording.count(len(rows), 'shim')}", colour="title")
        widths = [max(len(row[column].text) for row in rows) for column in range(2)]
        for row in rows:
            canvas.columns(row, widths=(*widths, 0), indent=2)
    if not found:
        canvas.paragraph("No shim is like that.")
    return canvas.text()


def _cells(shim: Shim, versions: Mapping[str, str]) -> tuple[Span, ...]:
    reason = shim.fits(versions)
    last = Span(shim.title) if reason is None else Span(f"does not fit: {reason}", "dim")
    return Span(shim.id, "bold" if reason is None else "dim"), Span(shim.soundness, _colour(shim)), last


def _colour(shim: Shim) -> str:
    return _COLOURS.get(shim.soundness, "red")


def _sheet(shim: Shim, versions: Mapping[str, str]) -> str:
    canvas = Canvas(style_of(sys.stdout))
    reason = shim.fits(versions)
    canvas.paragraph(shim.id, colour="title")
    canvas.paragraph(f"{shim.title}.")
    canvas.blank()
    needs = ", ".join(f"{package} {wanted}".strip() for package, wanted in shim.needs.items())
    facts = {
        "provider": shim.provider,
        "soundness": f"{shim.soundness}: {SOUNDNESS_MEANS[shim.soundness]}",
        "condition": shim.precondition,
        "fits": "yes" if reason is None else f"no: {reason}",
        "needs": needs,
        "not with": ", ".join(shim.conflicts),
        "upstream": shim.link,
        "retire when": shim.retire,
    }
    for name, fact in facts.items():
        if fact:
            canvas.columns((Span(name, "dim"), Span(fact)), widths=(12, 0), indent=2)
    if shim.does and shim.does.rstrip(".") != shim.title:
        canvas.blank()
        canvas.paragraph(shim.does)
    canvas.blank()
    canvas.code(shim.diff(), indent=0)
    return canvas.text()
