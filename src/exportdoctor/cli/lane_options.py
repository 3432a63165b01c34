"""What the commands share that ask on several versions: `matrix`, `bisect`, `retest`.

`--transformers`, `--torch` and `--with` are the versions of lanes, each several times or as a list with commas.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, TypeVar

import click

from exportdoctor.cli.error_output import print_line
from exportdoctor.core.errors import UsageError
from exportdoctor.lanes.lane import LaneSpec, spec_of
from exportdoctor.store.runs import StoredRun, find_run, read_run

JOBS = click.option("--jobs", type=click.IntRange(min=1), metavar="N",
                    help="Lanes to ask in parallel. Default: as memory and processors allow.")  # fmt: skip
F = TypeVar("F", bound=Callable[..., Any])


def add_lane_options(command: F) -> F:
    """Add the three options."""
    for name, text in (
        ("--with", "Versions of another package, as PACKAGE=A,B. Can be repeated."),
        ("--torch", "Versions of torch; each gets an environment of its own."),
        ("--transformers", "Versions of transformers."),
    ):
        metavar = "PKG=A,B" if name == "--with" else "A,B"
        command = click.option(name, f"{name[2:]}_", multiple=True, metavar=metavar, help=text)(command)
    return command


def lane_specs(given: dict[str, Any]) -> list[LaneSpec]:
    """One for each combination of the versions; takes the three options out of `given`."""
    wanted = {name: _split(given.pop(f"{name}_")) for name in ("transformers", "torch")}
    for one in given.pop("with_"):
        name, _, versions = one.partition("=")
        wanted.setdefault(name, []).extend(_split([versions.lstrip("=")]))
    named = {name: versions for name, versions in wanted.items() if versions}
    if not named:
        raise UsageError("Which versions? For example --transformers 4.57.1,5.12.1")
    specs = [spec_of(dict(zip(named, versions))) for versions in product(*named.values())]
    return [one for place, one in enumerate(specs) if one not in specs[:place]]


def _split(given: Any) -> list[str]:
    return list(dict.fromkeys(one.strip() for text in given for one in text.split(",") if one.strip()))


def note_scripts(run: StoredRun) -> None:
    """Note in the heads of a run's scripts on which versions they fail and pass."""
    from exportdoctor.repro.seen_versions import note_seen_versions

    for finding in run.state.report().findings:
        if finding.repro is not None:
            note_seen_versions(run.path / finding.repro.path)


def note_changed_sources(run: StoredRun) -> str:
    """Note on stderr, and return, which of a run's sources have changed since: an answer may be due to that."""
    from exportdoctor.repro.find_probe import changed_sources_of

    changed = changed_sources_of(run)
    if changed:
        print_line(f"{changed}: what is scanned is as it is now, so that an answer may be due to that change")
    return changed


def find_stored(asked: str) -> StoredRun | None:
    """The run that this names, if it names one. Raises StoreError where that cannot be read."""
    try:
        folder = find_run(asked)
    except UsageError:
        return None
    return read_run(folder)


def target_words(asked: str, parts: tuple[str, ...], exporter: str) -> tuple[str, ...]:
    """How a scan of a target is asked for."""
    return (asked, "--exporter", exporter, *(word for part in parts for word in ("--part", part)))


def check_target(asked: str, parts: tuple[str, ...]) -> None:
    """Refuse what is no target before any lane is made."""
    from exportdoctor.core.records.target import TargetRef
    from exportdoctor.targets import resolve

    resolve(TargetRef(ref=asked, parts=parts))
