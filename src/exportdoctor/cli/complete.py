"""Shell completion: presets and files for a target, ids for a run."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem


def complete_targets(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Presets that start with `incomplete`, then files and folders."""
    from exportdoctor.targets import preset_names

    names = [name for name in preset_names() if name.lower().startswith(incomplete.lower())]
    return [*map(CompletionItem, names), CompletionItem(incomplete, type="file")]


def complete_runs(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
    """Run ids that start with `incomplete`, newest first."""
    from exportdoctor.store.runs import run_ids

    return [CompletionItem(run) for run in run_ids() if run.startswith(incomplete)]
