"""A folder that is ready to become an upstream issue: script, issue.md, closest passing variant, graph, log.

issue.md is written for a maintainer who knows torch and not the model: what fails, the script, and what is needed to
run it. It is about one bug: scripts of other failures lie beside it as other-1.py and so on, and it does not mention
them.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from pathlib import Path

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.failure.messages import first_line, without_advice
from exportdoctor.core.finding import Finding
from exportdoctor.core.outcome import Frame, OutcomeStatus
from exportdoctor.report.graph_slice_svg import as_svg
from exportdoctor.report.slice import as_dot, as_mermaid, as_text
from exportdoctor.repro.pipeline import ReproResult
from exportdoctor.repro.script import limit_blank_lines, tail_of, versions_of
from exportdoctor.store.disk import make_folder, replace_file
from exportdoctor.store.runs import StoredRun

_AROUND = 2
_COLLECT_TIMEOUT = 60.0
_MOST_SHOWN = 3000
_SLICE_LINES = 25

_DEATHS: dict[str, str] = {OutcomeStatus.TIMED_OUT: "never returning", OutcomeStatus.OUT_OF_MEMORY: "taking all memory"}


def write_bundle(made: ReproResult, run: StoredRun, folder: Path) -> None:
    """Write the folder, which may exist. Raises StoreError."""
    make_folder(folder)
    environment = collect_environment(made.environment)
    files = {
        "repro.py": made.text,
        "issue.md": issue(made, environment),
        "output.txt": made.sighting.output,
        "environment.txt": environment,
    }
    if made.reduction.closest:
        files["closest_passing.py"] = made.reduction.closest + "\n"
    if made.finding.slice is not None:
        leads = made.finding.slice
        files |= {"slice.svg": as_svg(leads), "slice.dot": as_dot(leads) + "\n", "slice.mmd": as_mermaid(leads) + "\n"}
    files |= {f"other-{number}.py": other.text for number, other in enumerate(made.others, 1)}
    log = _log(made.finding, run)
    if log:
        files["export.log"] = log
    for name, text in files.items():
        replace_file(folder / name, text.encode())


def issue(made: ReproResult, environment: str) -> str:
    """The text of an issue, in Markdown."""
    sections = [
        f"# {_title(made)}",
        f"## What happens\n\n{_happens(made)}",
        _fence("\n".join(limit_blank_lines(made.source)), "python"),
        _fence(quote_message(made.sighting.message)[:_MOST_SHOWN], ""),
        f"## What was expected\n\n{_expected_behaviour(made)}",
        *_closest(made),
        f"## Where it was met\n\n{_where_it_was_met(made.finding)}",
        _fence("\n".join(fold_stack(made.finding.stack)), ""),
        *_graph(made.finding),
        f"## Known issues\n\n{_known_issues(made.finding)}",
        f"## Versions\n\n{_versions(made, environment)}",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _happens(made: ReproResult) -> str:
    """One or two sentences: what is called, what it raises, how the script was checked."""
    way = EXPORTERS[made.exporter].call
    needs = " and ".join(made.imports)
    sighting = made.sighting
    ends = f"raises `{sighting.exception}`" if sighting.exception else f"ends by {_how_it_died(sighting.died)}"
    checked = (
        "Run in a fresh interpreter, it fails as shown"
        if sighting.verified
        else "**Not verified**: in a fresh interpreter it does not fail in the same way"
    )
    flaky = f" It is flaky: {made.reduction.same} of {made.reduction.runs} runs." if made.reduction.flaky else ""
    return f"{way} of this module {ends}. The script needs {needs} only. {checked}.{flaky}"


def _versions(made: ReproResult, environment: str) -> str:
    """The few that matter most in a line, and folded below it what torch's issue form asks for."""
    short = versions_of(made.environment, made.imports)
    folded_up = f"<details>\n<summary>python -m torch.utils.collect_env</summary>\n\n{_fence(environment.strip(), '')}"
    return f"{short}\n\n{folded_up}\n\n</details>"


def _how_it_died(how: str) -> str:
    return _DEATHS.get(how, how or "nothing")


def _expected_behaviour(made: ReproResult) -> str:
    if made.trait.kind.ends_the_process:
        return "The export ends, with a program or with an exception."
    eager = " The module runs in eager mode with these very inputs." if made.eager else ""
    return f"An exported program.{eager}"


def _closest(made: ReproResult) -> list[str]:
    if not made.reduction.closest:
        return []
    changed = difference(made.source, made.reduction.closest)
    return [f"## Closest variant that exports\n\n{_fence(changed, 'diff')}"]


def _where_it_was_met(finding: Finding) -> str:
    """Where in the user's model."""
    module = f"`{finding.module}` ({finding.module_class})" if finding.module else f"the root ({finding.module_class})"
    others = len(finding.modules) - 1
    more = f", and in {others} other module{'s' if others > 1 else ''}" if others > 0 else ""
    if not finding.file:
        return f"In the call of {module}{more}."
    return f"In `{finding.function}`, `{tail_of(finding.file)}`:{finding.line}, called by {module}{more}."


def _graph(finding: Finding) -> list[str]:
    """The slice, where it is short enough to be read; the files show all of it."""
    if finding.slice is None:
        return []
    lines = as_text(finding.slice).splitlines()
    if len(lines) > _SLICE_LINES:
        lines = [*lines[:2], f"  … {len(lines) - _SLICE_LINES} more", *lines[2 - _SLICE_LINES :]]
    text = "\n".join(lines)
    return [f"What leads to it in the graph traced so far (▶ is what the failure is about):\n\n{_fence(text, '')}"]


def quote_message(message: str) -> str:
    """A message up to where torch begins to advise, without empty lines and the folders of one machine."""
    folders = r"[^\s()\"']*(?:exportdoctor-\w+|site-packages|dist-packages)/"
    lines = (re.sub(folders, "", line).rstrip() for line in without_advice(message).splitlines())
    return "\n".join(filter(None, lines)).strip()


def _link(link: str) -> str:
    """`owner/name#1` as an address."""
    found = re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", link)
    return f"https://github.com/{found[1]}/issues/{found[2]}" if found else link


def _title(made: ReproResult) -> str:
    """What a maintainer searches for: the way, the exception and its first line."""
    sighting = made.sighting
    if not sighting.exception:
        return f"torch.export: {_how_it_died(sighting.died)} in {made.finding.function or 'the export'}"
    name = sighting.exception.rpartition(".")[2]
    first = first_line(sighting.message).partition(" (unhinted")[0]
    return f"torch.export: {name}: {_shorten(first)}".rstrip(": ")


def _shorten(text: str, most: int = 110) -> str:
    return text if len(text) <= most else f"{text[:most].rpartition(' ')[0]} …"


def _known_issues(finding: Finding) -> str:
    if not finding.known_issues:
        return "None known: worth filing."
    lines = [f"- [{issue.id}]({_link(issue.link)}) {issue.title}".rstrip() for issue in finding.known_issues]
    elsewhere = all(issue.elsewhere for issue in finding.known_issues)
    return "\n".join(["None known of this code. The same pattern in other code:", "", *lines] if elsewhere else lines)


def difference(failing: str, passing: str) -> str:
    """What has to change for the script to export, as a diff without its headers."""
    lines = difflib.unified_diff(failing.splitlines(), passing.splitlines(), lineterm="", n=_AROUND)
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def fold_stack(stack: tuple[Frame, ...]) -> list[str]:
    """The user's frames in full, those of torch between them counted, and the last one that raised."""
    lines: list[str] = []
    hidden = 0
    for index, frame in enumerate(stack):
        if not frame.user and index != len(stack) - 1:
            hidden += 1
            continue
        if hidden:
            lines.append(f"  … {hidden} frame{'s' if hidden > 1 else ''} of torch")
            hidden = 0
        lines.append(f'  File "{tail_of(frame.file)}", line {frame.line}, in {frame.function}')
        if frame.source:
            lines.append(f"    {frame.source.strip()}")
    return lines


def _fence(text: str, language: str) -> str:
    return f"```{language}\n{text}\n```" if text else ""


def collect_environment(environment: dict[str, str]) -> str:
    """What `torch.utils.collect_env` says; the versions that the run noted where it cannot be run."""
    short = "\n".join(f"{name}: {value}" for name, value in environment.items())
    try:
        told = subprocess.run(
            [sys.executable, "-I", "-m", "torch.utils.collect_env"],
            capture_output=True,
            text=True,
            timeout=_COLLECT_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return short
    return told.stdout if told.returncode == 0 and told.stdout.strip() else short


def _log(finding: Finding, run: StoredRun) -> str:
    """The full log of the attempt, where the run still has it."""
    if finding.log is None:
        return ""
    for path in (Path(finding.log), run.path / "logs" / Path(finding.log).name):
        try:
            return path.read_text(errors="replace")
        except OSError:
            continue
    return ""
