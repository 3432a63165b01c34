"""A folder that is ready to become an upstream issue: script, issue.md, closest passing variant, graph, log.

README.md is for who has the folder: who should get the issue and why, and what to search for first.

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

from exportdoctor.core.exporters import EXPORTERS, ONNX_CALL
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.failure.messages import without_advice
from exportdoctor.core.limits import ENVIRONMENT_SECONDS
from exportdoctor.core.records.outcome import Frame
from exportdoctor.report import wording
from exportdoctor.report.graph_slice_svg import as_svg
from exportdoctor.report.markdown_text import fence
from exportdoctor.report.slice_text import as_dot, as_mermaid, as_text
from exportdoctor.repro.pipeline import ReproResult
from exportdoctor.repro.recipient import package_of, place_of, recipient_of, search_address, search_terms
from exportdoctor.repro.script import limit_blank_lines, packages_of, tail_of, versions_of
from exportdoctor.store.atomic_write import make_folder, replace_file
from exportdoctor.store.runs import StoredRun

_AROUND = 2
_MOST_SHOWN = 3000
_SLICE_LINES = 25
_CHANGED_LINES = 6  # of a diff to the closest variant: a longer one says nothing
_MADE_BY = re.compile(r"^# Made by: .*\n(?:#   .*\n)*", re.M)  # a run that nobody else has


def write_bundle(made: ReproResult, run: StoredRun, folder: Path) -> None:
    """Write the folder, which may exist. Raises StoreError."""
    make_folder(folder)
    environment = collect_environment(made.environment)
    files = {
        "README.md": guide(made),
        "repro.py": _MADE_BY.sub("", made.text),
        "issue.md": issue(made, run, environment),
        "output.txt": made.sighting.output,
        "environment.txt": environment,
    }
    if made.reduction.closest and _closest(made):
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


def guide(made: ReproResult) -> str:
    """Who should get the issue, why, and what to search for."""
    finding, to = made.finding, recipient_of(made.finding)
    file, line = place_of(finding)
    place = f"{tail_of(file)}:{line}" if file else ""
    terms = search_terms(finding)
    lines = [
        *wording.bundle_recipient(to.package, to.repository, to.page, place=place),
        wording.bundle_search(terms, search_address(terms, to.repository)),
    ]
    if not made.eager and not made.signature.kind.ends_the_process:
        lines.insert(0, wording.issue_not_in_eager())
    return "\n\n".join(lines) + "\n"


def issue(made: ReproResult, run: StoredRun, environment: str) -> str:
    """The text of an issue, in Markdown."""
    died = made.signature.kind.ends_the_process
    page = recipient_of(made.finding).page
    expected = wording.issue_expectation(died=died, runs_in_eager=made.eager, page=page)
    sections = [
        f"# {_title(made)}",
        wording.issue_not_in_eager() if not made.eager and not died else "",
        _section("happens", _happens(made)),
        fence("\n".join(limit_blank_lines(made.source)), "python"),
        _block(quote_message(made.sighting.message)[:_MOST_SHOWN]),
        _section("expected", expected),
        *_closest(made),
        _section("place", wording.issue_place(made.finding, tail_of(made.finding.file or ""))),
        _met_in(made, run),
        _block("\n".join(fold_stack(made.finding.stack))),
        *_graph(made.finding),
        _section("known", wording.issue_known(made.finding)) if made.finding.known_issues else "",
        _section("versions", _versions(made, environment)),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _met_in(made: ReproResult, run: StoredRun) -> str:
    """The model, as far as others know it by its name, with versions and options."""
    started = run.state.started
    part = run.state.parts.get(made.finding.part)
    ref = started.target.ref if started is not None else ""
    package = package_of(made.finding)
    shown = {name: made.environment[name] for name in ("torch", package) if made.environment.get(name)}
    return wording.issue_met_in(
        target="" if ref.partition(":")[0].endswith(".py") or ref.startswith(("/", ".", "~")) else ref,
        part=made.finding.part,
        versions=" and ".join(f"{name} {version}" for name, version in shown.items()),
        dynamic=", ".join(part.captured.axes) if part is not None else "",
        strict=EXPORTERS[made.exporter].traces_with_dynamo,
    )


def _title(made: ReproResult) -> str:
    seen = made.sighting
    function = made.finding.function or ""
    title = wording.plain(wording.issue_title(seen.exception, seen.message, died=seen.died, function=function))
    return " ".join(title.split()).replace("<", r"\<")


def _happens(made: ReproResult) -> str:
    """What is called, how it ends, and how the script was checked."""
    sighting = made.sighting
    return wording.issue_summary(
        call=ONNX_CALL if made.signature.kind is FailureKind.TRANSLATE else EXPORTERS[made.exporter].call,
        ends=wording.issue_end(sighting.exception, sighting.died),
        imports=made.imports,
        verified=sighting.verified,
        flaky=(made.reduction.same, made.reduction.runs) if made.reduction.flaky else None,
    )


def _versions(made: ReproResult, environment: str) -> str:
    """The few that matter most in a line, and folded below it what torch's issue form asks for."""
    short = versions_of(made.environment, packages_of(made.source))
    folded_up = f"<details>\n<summary>python -m torch.utils.collect_env</summary>\n\n{_block(environment.strip())}"
    return f"{short}\n\n{folded_up}\n\n</details>"


def _closest(made: ReproResult) -> list[str]:
    """The diff to the closest variant that exports, where it is short enough to show what matters."""
    if not made.reduction.closest:
        return []
    changed = difference(made.source, made.reduction.closest)
    if sum(line.startswith(("+", "-")) for line in changed.splitlines()) > _CHANGED_LINES:
        return []
    return [_section("closest", fence(changed, "diff"))]


def _graph(finding: Finding) -> list[str]:
    """The slice as text and as a picture that GitHub draws, as far as it is short; the files show all of it."""
    if finding.slice is None:
        return []
    lines = as_text(finding.slice).splitlines()
    picture = [fence(as_mermaid(finding.slice), "mermaid")] if len(lines) <= _SLICE_LINES else []
    if len(lines) > _SLICE_LINES:
        lines = [*lines[:2], f"  … {len(lines) - _SLICE_LINES} more", *lines[2 - _SLICE_LINES :]]
    text = "\n".join(lines)
    return [f"{wording.issue_graph_caption()}\n\n{fence(text, '')}", *picture]


def quote_message(message: str) -> str:
    """A message without torch's advice, empty lines and the folders of this machine."""
    folders = r"[^\s()\"']*(?:exportdoctor-\w+|site-packages|dist-packages)/"
    lines = (re.sub(folders, "", line).rstrip() for line in without_advice(message).splitlines())
    return "\n".join(filter(None, lines)).strip()


def difference(failing: str, passing: str) -> str:
    """The diff from the failing to the passing script, without its headers."""
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


def _section(name: str, text: str) -> str:
    return f"## {wording.ISSUE_HEADINGS[name]}\n\n{text}"


def _block(text: str) -> str:
    return fence(text, "") if text else ""


def collect_environment(environment: dict[str, str]) -> str:
    """The output of `torch.utils.collect_env`; the run's own versions if that fails."""
    short = "\n".join(f"{name}: {value}" for name, value in environment.items())
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-m", "torch.utils.collect_env"],
            capture_output=True,
            text=True,
            timeout=ENVIRONMENT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return short
    return done.stdout if done.returncode == 0 and done.stdout.strip() else short


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
