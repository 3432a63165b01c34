"""`exportdoctor explain`: what a failure means and how to rewrite it, tried on the user's own line."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from exportdoctor.cli.answers import ExplainedFinding
from exportdoctor.cli.complete_words import complete_explained
from exportdoctor.cli.error_output import print_line
from exportdoctor.cli.options import CONTEXT, FINDING, OUTPUT, QUIET, split_run
from exportdoctor.cli.python_option import PYTHON, follow_run
from exportdoctor.cli.terminal import style_of, write_out
from exportdoctor.core.codec import pretty
from exportdoctor.core.errors import ExitCode, StoreError, UsageError, did_you_mean
from exportdoctor.core.failure.explanations import explain as explain_kind
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.kinds import KINDS
from exportdoctor.report import wording
from exportdoctor.report.explanation_page import Block, as_markdown, as_text, finding_blocks, kind_blocks
from exportdoctor.report.wording.rewrites import source_edited
from exportdoctor.store.atomic_write import replace_file
from exportdoctor.store.run_folder import RunFolder
from exportdoctor.store.runs import StoredRun, find_run, read_run, target_again


@click.command("explain", context_settings=CONTEXT)
@click.argument("names", nargs=-1, required=True, metavar="[RUN] FINDING|KIND", shell_complete=complete_explained)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "md", "json"]),
    default="text",
    show_default=True,
    help="Format of the explanation.",
)
@OUTPUT
@click.option("--no-try", "untried", is_flag=True, help="Do not try the rewrites on the model's own code.")
@PYTHON
@QUIET
@click.pass_context
def explain_failure(
    context: click.Context, names: tuple[str, ...], form: str, output: Path | None, untried: bool, quiet: bool
) -> int:
    """Explain FINDING (such as F1) of RUN, or a KIND of failure: why it fails, and rewrites that work.

    Rewrites that fit the finding's own line are tried: exported, and compared with eager. Your files are not changed.
    For example: exportdoctor explain F1, or: exportdoctor explain data_dependent_guard
    """
    chosen, name = split_run(names)
    if chosen is None and not FINDING.fullmatch(name):
        kind = _kind_named(name)
        record: object = explain_kind(kind)
        blocks = list(kind_blocks(kind))
    else:
        run = read_run(find_run(chosen))
        finding, note = _try_finding(context, run, name, untried=untried, quiet=quiet)
        record = ExplainedFinding(finding=finding, explanation=explain_kind(finding.kind))
        blocks = list(finding_blocks(finding, run.state.report(), note=note))
    text = pretty(record).decode() if form == "json" else _text(blocks, form)
    if output is not None:
        replace_file(output, text.encode())
    else:
        write_out(text)
    return ExitCode.EXPORTS


explain = explain_failure  # main loads the command by the verb's name


def _text(blocks: list[Block], form: str) -> str:
    return as_markdown(iter(blocks)) if form == "md" else as_text(iter(blocks), style_of(sys.stdout))


def _kind_named(name: str) -> str:
    kind = name.lower().replace("-", "_")
    if kind not in KINDS:
        hint = f"{did_you_mean(kind, map(str, KINDS))}Kinds: {', '.join(KINDS)}. A finding is named F1, F2, …"
        raise UsageError(f"there is no kind of failure {name!r}", hint=hint)
    return kind


def _try_finding(
    context: click.Context, run: StoredRun, name: str, *, untried: bool, quiet: bool
) -> tuple[Finding, str]:
    """The finding with the rewrites of its line that were tried, and why there are none."""
    from exportdoctor.repro.find_probe import finding_of

    finding = finding_of(run, name)
    from exportdoctor.engine.cure.try_rewrites import is_unchanged, proposals, try_rewrites

    if not is_unchanged(finding):
        return msgspec.structs.replace(finding, rewrites=()), source_edited()
    proposed = proposals(finding)
    known = {one.diff for one in finding.rewrites if one.result != "not_tried"}
    if {one.diff for one in proposed} <= known:
        return finding, ""
    started = run.state.started
    if untried or started is None or not started.command:
        return msgspec.structs.replace(finding, rewrites=proposed), ""
    follow_run(started.python, context.obj)
    if not quiet:
        print_line(f"trying {wording.count(len(proposed), 'rewrite')} of {wording.place(finding)} on the model …")
    tried = tuple(try_rewrites(finding, target_again(run), started.options))
    finding = msgspec.structs.replace(finding, rewrites=tried)
    _record(run.path, finding)
    return finding, ""


def _record(run: Path, finding: Finding) -> None:
    """Keep what was tried with the run, so that its reports have it; where that cannot be, it is only printed."""
    try:
        with RunFolder.reopen(run) as folder:
            folder.add_finding(finding)
    except StoreError as error:
        print_line(f"the rewrites could not be saved with their run: {error.line()}")
