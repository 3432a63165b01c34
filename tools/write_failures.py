"""Writes docs/failures: for each kind of failure what torch says, why, what exportdoctor says, and what works.
Writes also the table in fixtures/README.md.

    python tools/write_failures.py [--keep] [kind ...]      with --keep, what a scan said stays as it is

The pages are not edited by hand. What torch says is the real output of the minimal script beside the kind's fixture;
the rewrites are those of `exportdoctor.core.failure.explanations`, each of which tests/core/test_explain.py runs.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from exportdoctor.core.failure.explanations import Rewrite, explain
from exportdoctor.core.failure.kinds import KINDS, NUMBERS_DIFFER
from exportdoctor.core.protocol.repro import CANDIDATE_FILE
from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.repro.bundle import quote_message
from exportdoctor.repro.candidates.candidate_runner import CandidateRunner

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "failures"
FIXTURES = ROOT / "fixtures"
LATER = FIXTURES / "later"
"""One script for each kind of the stages after the export, where a fixture for a scan would say no more."""
SCAN = {"timeout": ("--timeout", "8"), "out_of_memory": ("--memory", "1500"), "costly": ("--slow", "0.4"),
        "device_mismatch": ("--device", "cuda")}  # fmt: skip
LIMITS = {"timeout": 3.0}
_MOST = 1500
_CODE = 60
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LOG = re.compile(r"\n +Log:.*", re.S)
_WIDTH = 118


def main() -> None:
    """Write the pages of the kinds named on the command line, or all, and the list of them."""
    kept = "--keep" in sys.argv
    chosen = [kind for kind in sys.argv[1:] if kind != "--keep"] or list(KINDS)
    with CandidateRunner(memory_mb=400) as bench:
        for kind in chosen:
            path = PAGES / f"{kind}.md"
            said = said_in(path.read_text(encoding="utf-8")) if kept else scanned(kind)
            path.write_text(page(kind, bench, said=said), encoding="utf-8")
            print(kind, flush=True)
    (PAGES / "README.md").write_text(listing(), encoding="utf-8")
    readme = FIXTURES / "README.md"
    readme.write_text(with_fixtures_listed(readme.read_text(encoding="utf-8")), encoding="utf-8")


def literal(path: Path, name: str) -> Any:
    """The literal that a fixture assigns to `name`, read without importing it."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise LookupError(f"{path} has no {name}")


def script_of(kind: str) -> str:
    """The minimal script of a kind."""
    fixture = explain(kind).fixture
    if fixture:
        return str(literal(FIXTURES / f"{fixture}.py", "MINIMUM")).strip()
    return (LATER / f"{kind}.py").read_text(encoding="utf-8").strip()


def page(kind: str, bench: CandidateRunner, *, said: str) -> str:
    """The page of a kind; `said` is the finding of its fixture's scan, empty where there is none."""
    told, script = explain(kind), script_of(kind)
    bench.timeout = LIMITS.get(kind, 60.0)
    parts = [
        "<!-- fmt: off -->",
        f"# {told.title}",
        f"`{kind}`: {told.summary}",
        *(
            ["## What torch says", fence(script, "python"), fence(output_of(bench.run(script)), "text")]
            if script
            else []
        ),
        "## Why",
        wrapped(told.paragraph),
    ]
    if said:
        parts += ["## What exportdoctor says", *_scan(kind, said)]
    parts += ["## What works", *(text for rewrite in told.rewrites for text in _rewrite(rewrite))]
    return "\n\n".join(parts) + "\n"


def _scan(kind: str, said: str) -> list[str]:
    fixture = explain(kind).fixture
    return [
        f"The [fixture](../../fixtures/{fixture}.py) hides the same failure in a small network.",
        fence(f"$ {' '.join(command(kind))}\n…\n{said}", "text"),
    ]


def _rewrite(rewrite: Rewrite) -> list[str]:
    lead = "This fails:" if rewrite.example.get("fails", True) else "In place of:"
    return [f"### {rewrite.title}", lead, fence(rewrite.before.strip(), "python"), "This exports:",
            fence(rewrite.code.strip(), "python")]  # fmt: skip


def output_of(outcome: Outcome) -> str:
    """What a user sees of a script's end: the exception as Python prints it, or how the process died."""
    failure = outcome.failure
    if failure is None or not failure.exceptions:
        return {
            OutcomeStatus.CRASHED: f"the process dies of {outcome.signal}",
            OutcomeStatus.TIMED_OUT: "nothing: it does not end",
            OutcomeStatus.OUT_OF_MEMORY: "nothing: it takes all the memory that it can get",
        }.get(outcome.status, str(outcome.status))
    fact = failure.exceptions[0]
    message = quote_message(fact.message).replace(CANDIDATE_FILE, "script.py")
    shown = message if len(message) <= _MOST else message[:_MOST].rpartition("\n")[0] + "\n…"
    kind = "AssertionError" if fact.type == NUMBERS_DIFFER else fact.type.removeprefix("builtins.")  # of assert_close
    lines = _COLOURS.sub("", f"{kind}: {shown}").splitlines()
    return "\n".join(line.rstrip() for line in lines)


def command(kind: str) -> list[str]:
    """The scan of a kind's fixture, as a user types it."""
    path = FIXTURES / f"{explain(kind).fixture}.py"
    exporter = literal(path, "EXPECTED")["exporter"]
    chosen = [] if exporter == "export" else ["--exporter", exporter]
    return ["exportdoctor", "scan", f"fixtures/{path.name}:build", *chosen, *SCAN.get(kind, ())]


def scanned(kind: str) -> str:
    """The finding of a kind's fixture, as the text report prints it."""
    if not explain(kind).fixture:
        return ""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [sys.executable, "-m", *command(kind), "--no-cure", "--quiet"],
            cwd=ROOT,
            env={**os.environ, "EXPORTDOCTOR_HOME": home, "OMP_NUM_THREADS": "1", "COLUMNS": "100"},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    blocks = done.stdout.replace(f"{ROOT}/", "").split("\n\n")
    told = next(block.strip() for block in blocks if block.startswith("F1 "))
    return _LOG.sub("", told)  # a file of this run


def said_in(page_text: str) -> str:
    """What a scan said when the page was made."""
    return page_text.partition("\n$ exportdoctor scan")[2].partition("\n…\n")[2].partition("\n```")[0]


def listing() -> str:
    """The page that lists the others."""
    rows = [f"| [{kind}]({kind}.md) | {explain(kind).summary} |" for kind in KINDS]
    return "\n".join(["# Kinds of failure", "", "| kind | what went wrong |", "|---|---|", *rows]) + "\n"


def list_fixtures() -> str:
    """The table of the fixtures in fixtures/README.md: what fails in each, from its `EXPECTED`."""
    rows = []
    for path in sorted(FIXTURES.glob("*.py")):
        findings = literal(path, "EXPECTED")["findings"]
        kinds = ", ".join(dict.fromkeys(finding["kind"] for finding in findings)) or "none"
        culprits = "; ".join(map(_culprit, findings)) or "none"
        rows.append(f"| {path.stem} | {kinds} | {culprits} |")
    return "\n".join(["| file | kind | culprit |", "|---|---|---|", *rows]) + "\n"


def _culprit(finding: dict[str, Any]) -> str:
    module = f"`{finding['module']}`" if finding["module"] else "root"
    code = finding["source"] or finding["function"]
    return f"{module}: `{_shorten(code)}`" if code else f"{module}: the call"


def _shorten(code: str) -> str:
    return code if len(code) <= _CODE else f"{code[: _CODE - 3]}..."


def with_fixtures_listed(text: str) -> str:
    """fixtures/README.md with its table as it should be."""
    return text[: text.index("| file | kind |")] + list_fixtures()


def wrapped(text: str) -> str:
    """A paragraph in lines."""
    return textwrap.fill(text, _WIDTH)


def fence(text: str, language: str) -> str:
    """A fenced block."""
    return f"```{language}\n{text}\n```"


if __name__ == "__main__":
    main()
