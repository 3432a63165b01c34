"""`exportdoctor completion`: the completion script for a shell; and what the other verbs complete: targets and runs."""

from __future__ import annotations

import contextlib
from typing import Any

import click
from click.shell_completion import CompletionItem

from exportdoctor.cli.options import CONTEXT
from exportdoctor.core.errors import ExitCode, ExportdoctorError, UsageError


@click.command(context_settings=CONTEXT)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the completion script for SHELL, e.g.: eval "$(exportdoctor completion bash)"."""
    from click.shell_completion import get_completion_class

    from exportdoctor.cli.main import COMPLETION_VARIABLE, exportdoctor

    script = get_completion_class(shell)
    if script is None:
        raise UsageError(f"no completion for {shell}", hint="Shells: bash, zsh, fish")
    click.echo(script(exportdoctor, {}, "exportdoctor", COMPLETION_VARIABLE).source())
    return ExitCode.EXPORTS


def complete_targets(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Presets that start with `incomplete`; else files and folders, for which bash's script drops all others."""
    from exportdoctor.targets import preset_names

    names = [name for name in preset_names() if name.lower().startswith(incomplete.lower())]
    return [*map(CompletionItem, names)] or [CompletionItem(incomplete, type="file")]


def complete_findings(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The newest run's findings and the kinds of failure, then runs."""
    from exportdoctor.core.failure.kinds import KINDS
    from exportdoctor.store.runs import find_run, read_run, run_ids

    findings: list[str] = []
    with contextlib.suppress(ExportdoctorError):
        findings = list(read_run(find_run()).state.findings)
    names = [*findings, *KINDS, *run_ids()]
    return [CompletionItem(name) for name in names if name.lower().startswith(incomplete.lower())]


def complete_runs(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
    """Run ids that start with `incomplete`, newest first."""
    from exportdoctor.store.runs import run_ids

    return [CompletionItem(run) for run in run_ids() if run.startswith(incomplete)]
