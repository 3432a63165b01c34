"""`exportdoctor bisect`: the release, or the packages, with which a failure came or went."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from exportdoctor.cli.complete_words import complete_runs
from exportdoctor.cli.error_output import print_line
from exportdoctor.cli.lane_options import check_target, find_stored, note_changed_sources, note_scripts, target_words
from exportdoctor.cli.options import CONTEXT, OUTPUT, QUIET
from exportdoctor.cli.python_option import PYTHON
from exportdoctor.cli.scan_flags import scan_option
from exportdoctor.cli.terminal import write_result
from exportdoctor.core.errors import ExitCode, UsageError
from exportdoctor.core.run.bisection import EnvironmentBisection, VersionBisection
from exportdoctor.lanes.bisect_versions import Tell, VersionRange
from exportdoctor.lanes.lane import Lane, LaneSpec, here, spec_of
from exportdoctor.lanes.lane_question import LaneQuestion
from exportdoctor.report.bisection_text import BISECTION_FORMS, render_bisection
from exportdoctor.store.runs import require_target


@click.command(context_settings=CONTEXT)
@click.argument("asked", nargs=-1, required=True, metavar="TARGET|SCRIPT.py|RUN F1", shell_complete=complete_runs)
@click.option("--package", metavar="NAME", help="Search the releases of this package.")
@click.option("--from", "first", metavar="V", default="", help="The oldest release. Default: the oldest supported one.")
@click.option("--to", "last", metavar="V", default="", help="The newest release. Default: the newest.")
@click.option("--with", "fixed", multiple=True, metavar="PKG=V", help="Another version of another package throughout.")
@click.option("--works", metavar="FILE", help="The environment that works: a lock file, a pip freeze, a lane, or here.")
@click.option("--fails", metavar="FILE", help="The environment that fails, likewise.")
@click.option("--part", "parts", multiple=True, metavar="P", help="Ask only this part of TARGET. Can be repeated.")
@scan_option("exporter")
@click.option("--format", "form", type=click.Choice(BISECTION_FORMS), default="md", show_default=True, help="Format.")
@OUTPUT
@PYTHON
@QUIET
def bisect(
    asked: tuple[str, ...],
    package: str | None,
    first: str,
    last: str,
    fixed: tuple[str, ...],
    works: str | None,
    fails: str | None,
    parts: tuple[str, ...],
    exporter: str,
    form: str,
    output: Path | None,
    quiet: bool,
) -> int:
    """Find the release with which a failure came or went, and what changed in the code that fails.

    With --package its releases are searched, each in a lane of its own. With --works and --fails the differences of two
    environments are: which package makes the failure, or which only together. A finding is searched on the smallest
    thing that fails, and confirmed on its part. Releases of which nothing is known are stepped around.

    Exit code: 0 it was found, 1 it was not.
    """
    tell: Tell = (lambda _: None) if quiet else print_line
    answer: VersionBisection | EnvironmentBisection
    if package and not (works or fails):
        answer = _by_version(
            asked, parts, exporter, _Range(package.lower().replace("_", "-"), first, last, fixed), tell
        )
        found = bool(answer.turns)
    elif works and fails and not package:
        if first or last or fixed:
            raise UsageError("--from, --to and --with belong to --package")
        answer = _by_environment(asked, parts, exporter, works, fails, tell)
        found = bool(answer.alone or answer.together)
    else:
        raise UsageError("Give --package NAME, or --works FILE and --fails FILE")
    write_result(lambda form, _style: render_bisection(answer, form), form, output, to_print="md")
    return ExitCode.EXPORTS if found else ExitCode.FINDINGS


def _by_environment(
    asked: tuple[str, ...], parts: tuple[str, ...], exporter: str, works: str, fails: str, tell: Tell
) -> EnvironmentBisection:
    from exportdoctor.lanes.bisect_environments import bisect_environments, find_difference, read_environment

    both = read_environment(works), read_environment(fails)
    changed = [one.package for one in find_difference(*both)]
    return bisect_environments(_question(asked, parts, exporter, changed, iter(())), *both, tell)


class _Range:
    def __init__(self, package: str, first: str, last: str, fixed: tuple[str, ...]) -> None:
        self.package, self.first, self.last = package, first, last
        self.fixed = spec_of(dict(one.partition("=")[::2] for one in fixed)).packages


def _by_version(
    asked: tuple[str, ...], parts: tuple[str, ...], exporter: str, given: _Range, tell: Tell
) -> VersionBisection:
    from exportdoctor.lanes.bisect_versions import bisect_versions
    from exportdoctor.lanes.lane_maker import make_lane
    from exportdoctor.lanes.releases import list_releases, releases_between

    spec_of({given.package: "1"})
    _question(asked, parts, exporter, (), None)  # what cannot be asked is refused before anything is installed
    listed, online = list_releases(given.package)
    releases = releases_between(given.package, listed, given.first, given.last, online=online)
    notes = [] if online else ["no package index was reached: only releases that are there were asked"]

    def ends() -> Iterator[Lane]:
        yield here()
        for release in (releases[-1], releases[0]):
            yield make_lane(LaneSpec(packages={given.package: release, **given.fixed}), tell)

    question = _question(asked, parts, exporter, [given.package, *given.fixed], ends())
    answer = bisect_versions(question, VersionRange(given.package, releases, given.fixed), tell, notes=notes)
    run = find_stored(asked[0])
    if run is not None:
        note_scripts(run)
        note_changed_sources(run)
    return answer


def _question(
    asked: tuple[str, ...],
    parts: tuple[str, ...],
    exporter: str,
    packages: list[str] | tuple[()],
    lanes: Iterator[Lane] | None,
) -> LaneQuestion:
    from exportdoctor.lanes.lane_question import finding_question, script_question, target_question

    name = asked[0]
    if len(asked) > 2:
        raise UsageError("Give a target, a script, or a run and a finding")
    if len(asked) == 1 and name.endswith(".py") and Path(name).is_file():
        return script_question(Path(name).name, Path(name).read_text(encoding="utf-8", errors="replace"))
    run = find_stored(name)
    if run is not None:
        findings = run.state.report().findings
        wanted = asked[1] if len(asked) == 2 else findings[0].id if len(findings) == 1 else ""
        finding = next((one for one in findings if one.id == wanted), None)
        if finding is None:
            there = ", ".join(one.id for one in findings) or "none"
            raise UsageError(f"Which finding of {run.run}? It has {there}")
        require_target(run.state.started, [finding])
        return finding_question(run, finding, packages)
    if len(asked) == 2:
        raise UsageError(f"there is no run {name!r}", hint="See: exportdoctor runs")
    check_target(name, parts)
    if lanes is None:
        return script_question(name, "")
    return target_question(target_words(name, parts, exporter), lanes)
