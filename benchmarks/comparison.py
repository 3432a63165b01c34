"""Ten cases as torch's own tools and exportdoctor report them, side by side, from real runs: writes docs/comparison.md.

    python benchmarks/comparison.py [case ...]      with names: print, write nothing
    python benchmarks/comparison.py --from FILE     the page anew, from the answers that the last run left in FILE

Every tool runs in a process of its own with the non-strict exporter (the tools' own default is strict in some), and
gets the full stack of whatever exception it hands back. The marks are looked up in what each tool said, by one rule.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from exportdoctor.core.failure.messages import first_line

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures"
PAGE = ROOT / "docs" / "comparison.md"
CASES = (
    "data_dependent_int",
    "unbacked_size_comparison",
    "parent_own_code_and_child",
    "called_twice_different_inputs",
    "equal_class_unequal_answer",
    "missing_fake_kernel",
    "wrong_fake_kernel",
    "unregistered_pytree_out",
    "specialised_dynamic_dim",
    "segfault",
)
TOOLS = ("report_exportability", "draft_export", "minifier", "exportdoctor")
ANSWERS = Path(tempfile.gettempdir()) / "exportdoctor-comparison.json"
REMARKS = {
    "equal_class_unequal_answer": "report_exportability asks one module of each class, here the one that fails; its "
    "twin, which exports, is not in its list.",
    "called_twice_different_inputs": "report_exportability keeps the inputs of a module's last call.",
    "missing_fake_kernel": "draft_export names the operator and goes on with a kernel that it has made from the "
    "example.",
    "wrong_fake_kernel": "draft_export says more than the others: it runs both kernels, and names the operator whose "
    "fake one lies. The line that fails is innocent; exportdoctor names that line and the kind of failure.",
    "specialised_dynamic_dim": "report_exportability takes no dynamic shapes, so for it nothing fails. draft_export "
    "names the guard, and gives dynamic shapes that hold.",
    "segfault": "The first three run in the process that dies.",
}
"""What a reader should know of a case to judge the tools fairly."""
_LIMIT = 240.0
_SHOWN = 28  # lines of a tool's words on the page


@dataclass(frozen=True)
class Said:
    """What one tool said of one case: the words that a user reads, and the whole, tracebacks included."""

    words: str
    whole: str
    seconds: float
    script: str = ""


def main() -> None:
    """Run every case through every tool."""
    if sys.argv[1:2] == ["--tool"]:
        one_tool(sys.argv[2], Path(sys.argv[3]))
        return
    if sys.argv[1:2] == ["--from"]:
        kept = json.loads(Path(sys.argv[2]).read_text())
        told = {case: {tool: Said(**said) for tool, said in answers.items()} for case, answers in kept.items()}
        PAGE.write_text(page(told), encoding="utf-8")
        return
    told = {case: {tool: ask(tool, case) for tool in TOOLS} for case in sys.argv[1:] or CASES}
    if sys.argv[1:]:
        print(page(told))
        return
    answers = {case: {tool: asdict(said) for tool, said in each.items()} for case, each in told.items()}
    ANSWERS.write_text(json.dumps(answers))
    PAGE.write_text(page(told), encoding="utf-8")


def literal(case: str, name: str) -> Any:
    """The literal that a fixture assigns to `name`."""
    for node in ast.parse((FIXTURES / f"{case}.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise LookupError(f"{case} has no {name}")


# --- the tools, each in a process of its own


def ask(tool: str, case: str) -> Said:
    """Run a tool on a case."""
    print(f"{case}: {tool}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "EXPORTDOCTOR_HOME": folder, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
        if tool == "minifier":
            environment |= {"TORCHDYNAMO_REPRO_AFTER": "dynamo", "TORCHDYNAMO_REPRO_LEVEL": "4"}
        begun = time.monotonic()
        if tool == "exportdoctor":
            return _exportdoctor(case, folder, environment, begun)
        command = [sys.executable, str(Path(__file__)), "--tool", tool, str(FIXTURES / f"{case}.py")]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False,
                              timeout=_LIMIT)  # fmt: skip
        seconds = time.monotonic() - begun
    try:
        words, whole = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        words = whole = f"nothing: its process ended with exit code {done.returncode}"
    return Said(_anonymous(words), _anonymous(whole), seconds)


def _exportdoctor(case: str, folder: str, environment: dict[str, str], begun: float) -> Said:
    run = [sys.executable, "-m", "exportdoctor"]
    out = str(Path(folder) / "run")
    scan = [*run, "scan", f"fixtures/{case}.py:build", "--no-cure", "--quiet", "--out", out]
    done = subprocess.run(scan, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=_LIMIT)
    seconds = time.monotonic() - begun
    made = subprocess.run([*run, "repro", out, "F1", "--quiet"], cwd=ROOT, env=environment, capture_output=True,
                          text=True, check=False, timeout=_LIMIT)  # fmt: skip
    lines = [line for line in made.stdout.splitlines() if line.strip() and not line.startswith("#")]
    words = _anonymous(done.stdout.partition("\n\n")[2].strip())
    script = f"{len(lines)} lines, {'verified' if made.returncode == 0 else 'not verified'}" if lines else ""
    return Said(words, words, seconds, script)


def one_tool(tool: str, path: Path) -> None:
    """Ask one of torch's tools about a fixture, and print what it says as one line of JSON."""
    space: dict[str, Any] = {"__name__": path.stem, "__file__": str(path)}
    sys.path.insert(0, str(path.parent))
    space = vars(__import__(path.stem))
    built = space["build"]()
    if isinstance(built, dict):
        built = (built["module"], built["args"], built.get("kwargs") or {}, built.get("dynamic_shapes"))
    module, args, kwargs, shapes = (*built, *({}, None)[len(built) - 2 :])
    words, whole = {"report_exportability": _report, "draft_export": _draft, "minifier": _minifier}[tool](
        module, args, kwargs or {}, shapes
    )
    print(f"\n{json.dumps([words, whole])}", flush=True)


def _report(module: Any, args: Any, kwargs: Any, shapes: Any) -> tuple[str, str]:
    from torch._export.tools import report_exportability

    found = report_exportability(module, args, kwargs, strict=False)
    words = "\n".join(
        f"{name or '(root)'}: {'exports' if error is None else _line_of(error)}" for name, error in found.items()
    )
    return words, "\n".join([words, *(_traceback(error) for error in found.values() if error is not None)])


def _draft(module: Any, args: Any, kwargs: Any, shapes: Any) -> tuple[str, str]:
    try:
        program = torch.export.draft_export(module, args, kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        return f"no program: {_line_of(error)}", _traceback(error)
    report = str(getattr(program, "_report", "no report"))
    return f"a program, and this report:\n{report}", report


def _minifier(module: Any, args: Any, kwargs: Any, shapes: Any) -> tuple[str, str]:
    """The export and, as the minifier is made for torch.compile, that as well; is a launcher written?"""
    import torch._dynamo.config

    torch._dynamo.config.debug_dir_root = os.getcwd()
    words, whole = [], []
    ways = {
        "torch.export.export": lambda: torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False),
        "torch.compile(fullgraph=True)": lambda: torch.compile(module, backend="eager", fullgraph=True)(
            *args, **kwargs
        ),
    }
    for name, way in ways.items():
        try:
            way()
            end = "passes"
        except Exception as error:
            end = f"fails: {_line_of(error)}"
            whole.append(_traceback(error))
        scripts = sorted(path.name for path in Path.cwd().rglob("*.py"))
        words.append(f"{name} {end}; the minifier writes {', '.join(scripts) or 'nothing'}")
    return "\n".join(words), "\n".join([*words, *whole])


def _line_of(error: BaseException) -> str:
    first = first_line(error)
    return f"{type(error).__name__}: {first[:160]}".rstrip(": ")


def _traceback(error: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception(error))


def _anonymous(text: str) -> str:
    """Without this machine's folders."""
    text = re.sub(r"/\S*/site-packages/|\x1b\[[0-9;]*m", "", text)
    return re.sub(r"\n +Log: .*", "", text).replace(f"{ROOT}/", "").strip()


# --- the page


def page(told: dict[str, dict[str, Said]]) -> str:
    """The page."""
    head = ["# What torch's own tools tell, and what exportdoctor tells", *_introduction(), _table(told)]
    return "\n\n".join([*head, *(text for case, said in told.items() for text in _case(case, said))]) + "\n"


def _introduction() -> list[str]:
    texts = (
        f"Ten of the [fixtures](../fixtures/README.md), each with a known culprit, asked of four tools on torch "
        f"{torch.__version__} (CPU) by `python benchmarks/comparison.py`, which wrote this page.",
        "The tools have different aims. `torch._export.tools.report_exportability` says which submodules export, "
        "one of each class. `torch.export.draft_export` goes on with the example's values where the exporter cannot "
        "know one, and so hands over *a program that runs*, right for the example at least, with a list of all that it "
        "had to assume: no other tool gives a program, and exportdoctor only where its shims cure. torch's minifier "
        "reduces a *graph* that a compiler backend miscompiles or fails on; a failed export has not got as far as a "
        "graph, so it has nothing to work on, which is no fault of it. exportdoctor looks for the smallest culprit.",
        "**module**: says that this very submodule, and not a parent of it, is at fault. **line**: says the line of "
        "user code; (stack) where it is in the traceback of an exception that the tool hands over, among torch's "
        "frames; (op) where the operator is named instead. **all**: names every culprit that the fixture has. "
        "**script**: makes a script that reproduces the failure. Seconds are of the whole process, imports included, "
        "on two busy cores; exportdoctor's are of the scan.",
    )
    return [textwrap.fill(text, 118) for text in texts]


def _table(told: dict[str, dict[str, Said]]) -> str:
    rows = ["| case | tool | module | line | all | script | seconds |", "|---|---|---|---|---|---|---|"]
    for case, answers in told.items():
        for tool, said in answers.items():
            name = case if tool == TOOLS[0] else ""
            marks = " | ".join(marks_of(case, tool, said))
            rows.append(f"| {name} | {tool} | {marks} | {said.script or 'no'} | {said.seconds:.1f} |")
    return "\n".join(rows)


def marks_of(case: str, tool: str, said: Said) -> tuple[str, str, str]:
    """Module, line and all: looked up in what the tool said."""
    findings = findings_of(case)
    modules = [names_module(tool, finding["module"], said.words) for finding in findings]
    lines = [line_said(case, finding, said) for finding in findings]
    line = "-" if lines[0] is None else lines[0]
    every = all(lines_or_module(found, module) for found, module in zip(lines, modules, strict=True))
    return "yes" if modules[0] else "no", line, "yes" if every else "no"


def findings_of(case: str) -> list[dict[str, Any]]:
    """The known culprits of a case, as a scan with dynamic shapes sees them."""
    try:
        return list(literal(case, "EXPECTED_DYNAMIC")["findings"])
    except LookupError:
        return list(literal(case, "EXPECTED")["findings"])


def lines_or_module(line: str | None, module: bool) -> bool:
    """Whether a culprit is named: by its line, or by its module where the failure has no line."""
    return module if line is None else line != "no"


def names_module(tool: str, fqn: str, words: str) -> bool:
    """Whether the submodule is named as the place: for a list of verdicts, the deepest that fails on its path."""
    if tool == "report_exportability":
        failing = [row.partition(":")[0] for row in words.splitlines() if not row.endswith(": exports")]
        named = ["" if name == "(root)" else name for name in failing]
        return fqn in named and not any(name.startswith(f"{fqn}." if fqn else "") and name != fqn for name in named)
    if not fqn:  # what is exported is the root: a failure is its
        return any(sign in words for sign in ("fails: ", "no program: ", "issue(s) found", "at the call itself"))
    return re.search(rf"\b{re.escape(fqn)}\b", words) is not None


def line_said(case: str, finding: dict[str, Any], said: Said) -> str | None:
    """`yes`, `(stack)`, `(op)` where it is named instead, or `no`; None where the failure belongs to no line."""
    source = finding["source"] or finding.get("guard")
    if not source:
        return None
    text = (FIXTURES / f"{case}.py").read_text().splitlines()
    numbers = [number for number, line in enumerate(text, 1) if line.strip() == source]
    forms = [rf"{case}\.py\"?,? ?:?(?:line ?|lineno ?)?{number}\b" for number in numbers]
    if any(re.search(form, said.words) for form in forms):
        return "yes"
    if any(re.search(form, said.whole) for form in forms):
        return "(stack)"
    op = str(finding.get("liar") or finding["op"])
    return "(op)" if op in said.words else "no"


def _case(case: str, answers: dict[str, Said]) -> list[str]:
    summary = (ast.get_docstring(ast.parse((FIXTURES / f"{case}.py").read_text())) or "").partition("\n\n")[0]
    culprits = ", ".join(
        f"`{finding['module'] or 'the root'}`" + (f", `{line}`" if line else "")
        for finding in findings_of(case)
        for line in [finding["source"] or finding.get("guard")]
    )
    parts = [f"## {case}", f"{' '.join(summary.split())} Culprit: {culprits}.", REMARKS.get(case, "")]
    for tool, said in answers.items():
        parts += [f"**{tool}**", f"```text\n{_cut(said.words)}\n```"]
    return [part for part in parts if part]


def _cut(text: str) -> str:
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if len(lines) > _SHOWN:
        lines = [*lines[:_SHOWN], f"… {len(lines) - _SHOWN} more lines"]
    return "\n".join(line if len(line) <= 160 else f"{line[:157]}…" for line in lines)


if __name__ == "__main__":
    main()
