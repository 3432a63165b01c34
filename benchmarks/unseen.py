"""Models that no list names: model types of transformers drawn by a seed, tiny, beside plain exports of submodules.

    python benchmarks/unseen.py SEED [--models 10] [--repro-seconds 33] [--no-repros] [--out FOLDER]

A type that cannot be built or run at its reduced size is named with the reason, and the next one drawn takes its
place. For each model: a scan of every submodule at fixed sizes, compared with `torch.export.export` of each in a
process of its own; a scan with dynamic sizes and cures; a repro of each finding of it. Prints a table as Markdown, and
writes it with `unseen-SEED.json` to the folder as it grows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from exportdoctor.core.codec import decode
from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.core.run.report import FAILING, Report
from exportdoctor.repro.candidates.budget import ReductionBudget
from exportdoctor.repro.pipeline import ReproRequest, make_repro
from exportdoctor.store.runs import read_run
from exportdoctor.targets import build, resolve
from exportdoctor.targets.small_model import shrink_config

SOUND = ("exact", "signature", "precondition")
SECONDS_FOR_A_SCAN = 900
LARGEST = 40_000_000
"""Parameters: a type whose tiny model has more is replaced."""


@dataclass
class Script:
    """The repro of one finding; `imports` are empty where there is none, and `trouble` says why."""

    finding: str
    imports: tuple[str, ...] = ()
    lines: int = 0
    cpu: float = 0.0
    trouble: str = ""


@dataclass
class Row:
    """What one model showed."""

    model_type: str
    modules: int = 0
    failing: int = 0
    wrong: list[str] = field(default_factory=list)
    verdicts: dict[str, str] = field(default_factory=dict)
    cures: dict[str, str] = field(default_factory=dict)
    scripts: list[Script] = field(default_factory=list)
    seconds: float = 0.0
    trouble: str = ""


def drawn_types(seed: int) -> list[str]:
    """All model types of the installed transformers, in the order of the seed."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    names = sorted(CONFIG_MAPPING_NAMES)
    random.Random(seed).shuffle(names)
    return names


def write_config(model_type: str, folder: Path) -> Path:
    """The type's default configuration, reduced as a small model's is."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = shrink_config({**CONFIG_MAPPING[model_type]().to_dict(), "model_type": model_type})
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, default=str))
    return folder


def plain_verdicts(ref: str, part_name: str) -> dict[str, list[bool]]:
    """Whether each submodule exports with the inputs of each of its calls, which nothing copied."""
    import torch

    torch.set_num_threads(1)
    options = BuildOptions(static=True, weights="random")
    part = build(resolve(TargetRef(ref=ref, parts=(part_name,), options=options))).part(part_name)
    calls: dict[str, list[Any]] = {}

    def keep(name: str) -> Any:
        return lambda module, args, kwargs: calls.setdefault(name, []).append((args, kwargs))

    modules = dict(part.module.named_modules())
    handles = [m.register_forward_pre_hook(keep(name), with_kwargs=True, prepend=True) for name, m in modules.items()]
    with torch.no_grad(), part.prepare():
        part.module(*part.args, **part.kwargs)
        for handle in handles:
            handle.remove()
        return {name: [_exports(modules[name], *call) for call in many] for name, many in calls.items()}


def _exports(module: Any, args: Any, kwargs: Any) -> bool:
    import torch

    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            torch.export.export(module, args, kwargs, strict=False)
            os._exit(0)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def check_build(ref: str) -> list[str]:
    """The names of the parts of a target that can be made and is small; raises what building one raises."""
    plan = resolve(TargetRef(ref=ref, options=BuildOptions(static=True, weights="random")))
    built = build(plan)
    if built.parameters > LARGEST:
        raise ExportdoctorError(f"{built.parameters / 1e6:.0f} million parameters")
    for name in plan.parts:
        built.part(name)
    return list(plan.parts)


def in_process(what: str, *arguments: str, seconds: int = 600) -> Any:
    """The JSON that `python unseen.py --WHAT ARGUMENTS` prints last, in a process of its own."""
    command = [sys.executable, __file__, f"--{what}", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise ExportdoctorError(f"{seconds} s are over") from None
    if done.returncode:
        raise ExportdoctorError((done.stderr.strip().splitlines() or ["it died"])[-1][:200])
    return json.loads(done.stdout.splitlines()[-1])


def scan(ref: str, out: Path, *options: str) -> Report:
    """A whole `exportdoctor scan`."""
    command = [sys.executable, "-m", "exportdoctor", "scan", ref, *options, "--weights", "random", "--json", "--quiet",
               "--no-cache", "--out", str(out)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=SECONDS_FOR_A_SCAN, check=False)
    if done.returncode > 1:
        raise ExportdoctorError(f"the scan ended with {done.returncode}: {done.stderr.decode()[-200:]}")
    return decode(done.stdout, Report)


def judge(row: Row, ref: str, folder: Path, given: argparse.Namespace) -> None:
    """Fill the row."""
    report = scan(ref, folder / "fixed", "--static", "--exhaustive", "--no-cure")
    for part in report.parts:
        told = {m.fqn: m.status not in FAILING for m in part.modules if m.status != "not_called"}
        found = in_process("plain", ref, part.name, seconds=1800)
        root = next(iter(told), "")
        for name, each in found.items():
            fqn = ".".join(filter(None, (root, name)))
            row.modules += 1
            row.failing += not all(each)
            if told.get(fqn) is not all(each):
                row.wrong.append(f"{part.name} {fqn}: {told.get(fqn)}, plain {each}")
    cured = scan(ref, folder / "dynamic")
    for part in cured.parts:
        row.verdicts[part.name] = part.verdict
        if part.verdict != "passes":
            row.cures[part.name] = part.prescription.soundness if part.prescription else "none"
    if given.repros:
        row.scripts = [script_of(folder / "dynamic", finding.id, given) for finding in cured.findings]


def script_of(folder: Path, finding: str, given: argparse.Namespace) -> Script:
    """Make the repro of a finding, and count the processor's seconds of all processes."""
    begun = _cpu()
    try:
        budget = ReductionBudget(seconds=given.repro_seconds, at_most=3 * given.repro_seconds)
        run = read_run(folder)
        request = ReproRequest(
            run=run, finding=finding, budget=budget, made_by=f"exportdoctor repro {run.run} {finding}"
        )
        made = make_repro(request, lambda text: None)
    except ExportdoctorError as error:
        return Script(finding, cpu=_cpu() - begun, trouble=error.line()[:200])
    imports = tuple(made.imports) if made.sighting.verified else ()
    return Script(finding, imports, made.lines, _cpu() - begun, "" if imports else "not verified")


def _cpu() -> float:
    own, children = os.times(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.user + own.system + children.ru_utime + children.ru_stime


def table(seed: int, rows: list[Row], replaced: dict[str, str]) -> str:
    """The rows and their totals as Markdown."""
    lines = [
        "| model type | submodules | failing | wrong | dynamic | cure | scripts (torch only, of all; lines; CPU s) |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        only = [s for s in row.scripts if s.imports == ("torch",)]
        scripts = (
            f"{len(only)} of {len(row.scripts)}; {_all(s.lines for s in only)}; {_all(s.cpu for s in row.scripts)}"
        )
        parts = ", ".join(f"{name} {verdict}" for name, verdict in row.verdicts.items()) or row.trouble
        cures = ", ".join(row.cures.values())
        lines.append(
            f"| {row.model_type} | {row.modules} | {row.failing} | {len(row.wrong)} | {parts} | {cures} | "
            f"{scripts if row.scripts else ''} |"
        )
    scripts = [script for row in rows for script in row.scripts]
    cures = [cure for row in rows for cure in row.cures.values()]
    torch_only = [script for script in scripts if script.imports == ("torch",)]
    wrong = [line for row in rows for line in row.wrong]
    lines += [
        "",
        f"Seed {seed}: {sum(row.modules for row in rows)} submodules, {len(wrong)} verdicts wrong. "
        f"Of {len(cures)} failing parts {sum(c in SOUND for c in cures)} have a sound cure, "
        f"{sum(c not in (*SOUND, 'none') for c in cures)} a specialised or opaque one, {cures.count('none')} none. "
        f"Of {len(scripts)} findings {len(torch_only)} have a script that imports torch alone, "
        f"{sum(s.lines <= 25 for s in torch_only)} of at most 25 lines, {sum(s.cpu <= 120 for s in torch_only)} "
        "within 120 s of the processor.",
        *(f"Replaced: {name} ({why})" for name, why in replaced.items()),
        *(f"WRONG: {line}" for line in wrong),
        *(f"No script: {row.model_type} {s.finding}: {s.trouble}" for row in rows for s in row.scripts if s.trouble),
    ]
    return "\n".join(lines) + "\n"


def _all(numbers: Any) -> str:
    return " ".join(f"{number:.0f}" for number in numbers)


def measure(seed: int, given: argparse.Namespace) -> None:
    """Draw, scan, compare; what is known so far is written after each model."""
    import torch
    import transformers

    versions = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
    rows: list[Row] = []
    replaced: dict[str, str] = {}
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EXPORTDOCTOR_HOME"] = f"{folder}/home"
        for model_type in drawn_types(seed):
            if len(rows) == given.models:
                break
            begun, place = time.monotonic(), Path(folder) / model_type
            try:
                ref = str(write_config(model_type, place))
                in_process("check", ref, seconds=120)
            except Exception as error:
                replaced[model_type] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
                continue
            row = Row(model_type)
            try:
                judge(row, ref, place, given)
            except (ExportdoctorError, subprocess.TimeoutExpired) as error:
                row.trouble = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            row.seconds = time.monotonic() - begun
            rows.append(row)
            text = table(seed, rows, replaced)
            (given.out / f"unseen-{seed}.md").write_text(text)
            everything = {
                "seed": seed,
                "versions": versions,
                "rows": [asdict(one) for one in rows],
                "replaced": replaced,
            }
            (given.out / f"unseen-{seed}.json").write_text(json.dumps(everything, indent=1))
            print(f"{len(rows)}: {model_type}, {row.seconds:.0f} s", file=sys.stderr, flush=True)
    print(table(seed, rows, replaced))


def main() -> None:
    """One seed, or one of the steps that need a process of their own."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    match sys.argv[1:]:
        case ["--plain", ref, part]:
            print(json.dumps(plain_verdicts(ref, part)))
        case ["--check", ref]:
            print(json.dumps(check_build(ref)))
        case _:
            parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
            parser.add_argument("seed", type=int)
            parser.add_argument("--models", type=int, default=10)
            parser.add_argument("--repro-seconds", type=float, default=33.0)
            parser.add_argument("--no-repros", dest="repros", action="store_false")
            parser.add_argument("--out", type=Path, default=Path())
            given = parser.parse_args()
            measure(given.seed, given)


if __name__ == "__main__":
    main()
