"""A folder that is ready to become an upstream issue: script, issue.md, closest passing variant, environment, log."""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from pathlib import Path

from exportdoctor.core.explain import explain
from exportdoctor.core.finding import Finding
from exportdoctor.core.outcome import Frame
from exportdoctor.repro.making import Made
from exportdoctor.store.disk import make_folder, replace_file
from exportdoctor.store.runs import StoredRun

_AROUND = 2
_COLLECT_TIMEOUT = 60.0


def write_bundle(made: Made, run: StoredRun, folder: Path) -> None:
    """Write the folder, which may exist. Raises StoreError."""
    make_folder(folder)
    environment = collected(made.environment)
    files = {
        "repro.py": made.text,
        "issue.md": issue(made, environment),
        "output.txt": made.sighting.output,
        "environment.txt": environment,
    }
    if made.reduction.closest:
        files["closest_passing.py"] = made.reduction.closest + "\n"
    log = _log(made.finding, run)
    if log:
        files["export.log"] = log
    for name, text in files.items():
        replace_file(folder / name, text.encode())


def issue(made: Made, environment: str) -> str:
    """The text of an issue, in Markdown."""
    finding = made.finding
    told = explain(finding.kind)
    sections = [
        f"# {_title(made)}",
        "## What happens",
        f"{told.paragraph}",
        _fence(_stated(made.sighting.message)[:3000] or made.sighting.died, ""),
        "## What was expected",
        _expected(made),
        f"## Minimal script\n\n{_claim(made)}",
        _fence(made.source.strip(), "python"),
    ]
    if made.reduction.closest:
        sections += ["## Closest variant that exports", _fence(difference(made.source, made.reduction.closest), "diff")]
    sections += ["## Stack, folded", _fence("\n".join(folded(finding.stack)), ""), "## Known issues", _known(finding)]
    sections += ["## Versions", _fence(environment.strip(), "")]
    return "\n\n".join(section for section in sections if section) + "\n"


def _expected(made: Made) -> str:
    if made.finding.kind in ("crash", "timeout", "out_of_memory"):
        return "The export ends, with a program or with an exception."
    eager = " The module of this script runs in eager mode with these very inputs." if made.eager else ""
    return f"An exported program.{eager}"


def _stated(message: str) -> str:
    """A message up to where torch begins to advise."""
    return re.split(r"\n\s*(?:For more information, run|The error above occurred|For C\+\+ stack)", message)[0].strip()


def _link(link: str) -> str:
    """`owner/name#1` as an address."""
    found = re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", link)
    return f"https://github.com/{found[1]}/issues/{found[2]}" if found else link


def _title(made: Made) -> str:
    finding = made.finding
    name = finding.exception.type.rpartition(".")[2]
    first = (made.sighting.message.strip().splitlines() or [""])[0].partition(" (unhinted")[0]
    where = f" in {finding.function}" if finding.function else ""
    return f"torch.export: {name}{where}: {first[:100]}".rstrip(": ")


def _claim(made: Made) -> str:
    needs = ", ".join(made.imports)
    if made.sighting.verified:
        return f"{made.lines} lines; needs {needs}. Run in a fresh interpreter, it fails with the exception above."
    return f"{made.lines} lines; needs {needs}. NOT verified: in a fresh interpreter it does not fail in the same way."


def _known(finding: Finding) -> str:
    if not finding.known_issues:
        return "None known: worth filing."
    return "\n".join(f"- [{issue.id}]({_link(issue.link)}) {issue.title}".rstrip() for issue in finding.known_issues)


def difference(failing: str, passing: str) -> str:
    """What has to change for the script to export, as a diff without its headers."""
    lines = difflib.unified_diff(failing.splitlines(), passing.splitlines(), lineterm="", n=_AROUND)
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def folded(stack: tuple[Frame, ...]) -> list[str]:
    """The user's frames in full, those of torch between them counted, and the last one that raised."""
    lines: list[str] = []
    hidden = 0
    for index, frame in enumerate(stack):
        if not frame.user and index != len(stack) - 1:
            hidden += 1
            continue
        if hidden:
            lines.append(f"  … {hidden} frames of torch")
            hidden = 0
        lines.append(f'  File "{_short(frame.file)}", line {frame.line}, in {frame.function}')
        if frame.source:
            lines.append(f"    {frame.source.strip()}")
    return lines


def _short(path: str) -> str:
    for folder in ("site-packages/", "dist-packages/"):
        if folder in path:
            return path.rpartition(folder)[2]
    return path.rpartition("/")[2]


def _fence(text: str, language: str) -> str:
    return f"```{language}\n{text}\n```" if text else ""


def collected(environment: dict[str, str]) -> str:
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
