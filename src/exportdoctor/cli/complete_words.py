"""What a shell completes: targets, parts, submodules, runs, findings, shims. Imports what it needs when asked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from exportdoctor.core.errors import ExportdoctorError


def complete_targets(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Presets that start with `incomplete`; else files and folders, for which bash's script drops all others."""
    from exportdoctor.targets import preset_names

    names = [name for name in preset_names() if name.lower().startswith(incomplete.lower())]
    return [*map(CompletionItem, names)] or [CompletionItem(incomplete, type="file")]


def complete_parts(context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The parts of the target that stands on the command line."""
    from exportdoctor.core.records.target import TargetRef
    from exportdoctor.targets import resolve

    names: tuple[str, ...] = ()
    with contextlib.suppress(ExportdoctorError, OSError):
        names = resolve(TargetRef(ref=_target(context))).available_parts
    return _words_of(names, incomplete)


def complete_modules(context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The submodules that the newest scan of the target has seen."""
    target = _target(context).casefold()
    from exportdoctor.store.runs import list_runs, read_run

    with contextlib.suppress(ExportdoctorError):
        run = next((run for run in list_runs() if run.ref.casefold() == target and run.parts), None)
        parts = read_run(Path(run.path)).state.report().parts if run is not None else ()
        return _words_of([module.fqn for part in parts for module in part.modules if module.calls], incomplete)
    return []


def complete_shims(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The ids of our own shims, also behind a `+`; those of libraries take seconds to list."""
    from exportdoctor.shims.own import OWN

    before, plus, last = incomplete.rpartition("+")
    names = [f"{before}{plus}{shim.id}" for shim in OWN if shim.id.startswith(last)]
    return [*map(CompletionItem, names)] or [CompletionItem(incomplete, type="file")]


def complete_findings(context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The findings of the run that was named, else the newest run's; and runs as long as none was named."""
    from exportdoctor.store.runs import find_run, read_run, run_ids

    named = (context.params.get("names") or ())[:1]
    findings: list[str] = []
    with contextlib.suppress(ExportdoctorError):
        findings = list(read_run(find_run(*named)).state.findings)
    return _words_of([*findings, *(() if named else run_ids())], incomplete)


def complete_explained(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Findings, runs and the kinds of failure."""
    from exportdoctor.core.failure.kinds import KINDS

    kinds = () if context.params.get("names") else KINDS
    return [*complete_findings(context, param, incomplete), *_words_of(kinds, incomplete)]


def complete_runs(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Run ids that start with `incomplete`, newest first."""
    from exportdoctor.store.runs import run_ids

    return _words_of(run_ids(), incomplete)


def _target(context: click.Context) -> str:
    """The target on the command line; behind an option that lacks its value click has not assigned it yet."""
    words = [word for word in context.args if not word.startswith("-")]
    return str(context.params.get("target") or next(iter(words), ""))


def _words_of(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.lower().startswith(incomplete.lower())]
