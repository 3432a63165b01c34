"""Models that no list names: model types of transformers drawn by a seed, tiny.

    python benchmarks/unseen.py SEED [--models 10] [--parts 5] [--types 80] [--out FOLDER] [--seconds S]

In the order of the seed, each type is built, and its parts exported plainly with dynamic sizes (drawn_models.py has the
limits; a type that is left out is named with the reason), until `--parts` of them fail or `--types` were drawn. Each
model with a failing part is scanned with cures, and gets a script for each finding by the command line, with its
defaults. Of the first `--models` types that run, every submodule's verdict at fixed sizes is compared with
`torch.export.export` of it in a process of its own, and with what the whole program computes beside eager.

What is known is kept in the folder, and the same command goes on from there; with `--seconds` no step begins later.
Prints tables as Markdown.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drawn_models import LeftOut, ask_fork, drawn_types, failing_parts, plain_verdicts, warm_up, write_config
from repro_rates import LINES, SECONDS, make_row

from exportdoctor.core.codec import decode
from exportdoctor.core.run.report import FAILING, Report
from exportdoctor.store.runs import read_run

SOUND = ("exact", "signature", "precondition")
SECONDS_FOR_A_SCAN = 400


class Measurement:
    """What is known of a seed, in the file `unseen-SEED.json`. Each step is kept when it is done."""

    def __init__(self, seed: int, given: argparse.Namespace) -> None:
        self.seed, self.given, self.begun = seed, given, time.monotonic()
        self.file, self.folder = given.out / f"unseen-{seed}.json", given.out / f"unseen-{seed}"
        empty: dict[str, Any] = {"drawn": {}, "left_out": {}, "cures": {}, "scripts": {}, "verdicts": {}}
        self.known = json.loads(self.file.read_text()) if self.file.exists() else empty

    def run(self) -> bool:
        """Take steps as long as there is time; whether all were taken."""
        for kind, name, step in self._steps():
            if self.given.seconds is not None and time.monotonic() - self.begun > self.given.seconds:
                return False
            begun = time.monotonic()
            try:
                self.known[kind][name] = step()
            except LeftOut as error:
                self.known["left_out" if kind == "drawn" else kind][name] = str(error)
            print(f"{kind} {name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(json.dumps(self.known, indent=1))
        return True

    def _steps(self) -> Iterator[tuple[str, str, Any]]:
        """What is not known yet: its place in the file, and how to find out. A step sees what those before found."""
        for name in itertools.islice(drawn_types(self.seed), self.given.types):
            if len(self._failing()) >= self.given.parts and len(self.known["drawn"]) >= self.given.models:
                break
            if name not in self.known["drawn"] and name not in self.known["left_out"]:
                yield "drawn", name, lambda name=name: self._draw(name)
        for name in dict.fromkeys(name for name, _ in self._failing()):
            if name not in self.known["cures"]:
                yield "cures", name, lambda name=name: self._cure(name)
            for finding in self._findings(name):
                if f"{name} {finding}" not in self.known["scripts"]:
                    yield "scripts", f"{name} {finding}", lambda name=name, finding=finding: self._script(name, finding)
        for name in self.known["drawn"]:
            judged = [told for told in self.known["verdicts"].values() if not isinstance(told, str)]
            if name not in self.known["verdicts"] and len(judged) < self.given.models:
                yield "verdicts", name, lambda name=name: self._judge(name)

    def _failing(self) -> list[tuple[str, str]]:
        """The parts that fail, of the types in the order in which they were drawn."""
        return [(name, part) for name, parts in self.known["drawn"].items() for part, why in parts.items() if why]

    def _findings(self, name: str) -> list[str]:
        told = self.known["cures"].get(name)
        return list(read_run(self.folder / name / "cured").state.findings) if isinstance(told, dict) else []

    def _draw(self, name: str) -> dict[str, str]:
        try:
            write_config(name, self.folder / name)
        except Exception as error:
            raise LeftOut(f"no default configuration: {type(error).__name__}") from None
        parts: dict[str, str] = ask_fork(failing_parts, str(self.folder / name))
        return parts

    def _cure(self, name: str) -> dict[str, Any]:
        report = self._scan(name, "cured")
        return {part.name: _cure_of(part) for part in report.parts if part.verdict != "passes"}

    def _script(self, name: str, finding: str) -> dict[str, Any]:
        scripts = self.folder / "scripts"
        scripts.mkdir(exist_ok=True)
        row = make_row(name, self.folder / name / "cured", finding, scripts)
        return {**vars(row), "good": row.good}

    def _judge(self, name: str) -> dict[str, Any]:
        parts = self.known["drawn"][name]
        plain = {part: ask_fork(plain_verdicts, str(self.folder / name), part) for part in parts}
        report = self._scan(name, "fixed", "--static", "--exhaustive", "--no-cure")
        asked, failing, wrong = 0, 0, []
        for part in report.parts:
            told = {
                module.fqn: module.status not in FAILING for module in part.modules if module.status != "not_called"
            }
            root = next(iter(told), "")
            for short, each in plain[part.name].items():
                fqn = ".".join(filter(None, (root, short)))
                asked, failing = asked + 1, failing + (not all(each))
                if told.get(fqn) is not all(each):
                    wrong.append(f"{name}, {part.name} {fqn}: {told.get(fqn)}, plain {each}")
        return {"submodules": asked, "failing": failing, "wrong": wrong}

    def _scan(self, name: str, out: str, *options: str) -> Report:
        """A whole `exportdoctor scan`, ended as by Ctrl-C where it takes too long."""
        place = self.folder / name
        command = [sys.executable, "-m", "exportdoctor", "scan", str(place), *options, "--weights", "random", "--json",
                   "--quiet", "--no-cache", "--out", str(place / out)]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        try:
            printed, errors = process.communicate(timeout=SECONDS_FOR_A_SCAN)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.communicate()
            raise LeftOut(f"the scan took longer than {SECONDS_FOR_A_SCAN} s") from None
        if process.returncode > 1:
            raise LeftOut(f"the scan ended with {process.returncode}: {errors.decode()[-200:]}")
        return decode(printed, Report)

    def __str__(self) -> str:
        """All that is known, as Markdown."""
        known, cures = self.known, [cure for told in self.known["cures"].values() for cure in _parts_of(told)]
        scripts = list(known["scripts"].values())
        judged = {name: told for name, told in known["verdicts"].items() if not isinstance(told, str)}
        wrong = [line for told in judged.values() for line in told["wrong"]]
        alone = [row for row in scripts if row["verified"] and list(row["imports"]) == ["torch"]]
        lines = [
            "| model type | failing part | cure | shims |",
            "|---|---|---|---|",
            *(f"| {name} | {part} | {cure} | {how} |" for name, told in known["cures"].items()
              for part, cure, how in _parts_of(told)),
            "",
            "| finding | kind | lines | imports | CPU s | |",
            "|---|---|---|---|---|---|",
            *(f"| {row['name']} {row['finding']} | {row['kind']} | {row['lines']} | {', '.join(row['imports'])} | "
              f"{row['cpu']:.0f} | {'good' if row['good'] else row['why'][:200]} |" for row in scripts),
            "",
            f"Seed {self.seed}: {len(known['drawn'])} types drawn, {sum(map(len, known['drawn'].values()))} parts, "
            f"{len(self._failing())} fail; {len(known['left_out'])} types left out.",
            f"Verdicts: {sum(told['submodules'] for told in judged.values())} submodules of {len(judged)} models, "
            f"{sum(told['failing'] for told in judged.values())} fail, {len(wrong)} told wrongly.",
            f"Cures: of {len(cures)} failing parts {sum(cure in SOUND for _, cure, _ in cures)} sound, "
            f"{sum(cure in ('specialised', 'opaque') for _, cure, _ in cures)} specialised or opaque.",
            f"Scripts: of {len(scripts)} findings {len(alone)} verified with torch alone, "
            f"{sum(row['lines'] <= LINES for row in alone)} of those of at most {LINES} lines, "
            f"{sum(row['cpu'] <= SECONDS for row in alone)} within {SECONDS:.0f} s of the processor, "
            f"{sum(row['good'] for row in scripts)} all of it.",
            "",
            *(f"WRONG: {line}" for line in wrong),
            *(f"Not compared: {name} ({told})" for name, told in known["verdicts"].items() if name not in judged),
            *(f"Left out: {name} ({why})" for name, why in known["left_out"].items()),
        ]  # fmt: skip
        return "\n".join(lines) + "\n"


def _cure_of(part: Any) -> list[str]:
    found = part.prescription
    return [found.soundness, ", ".join(found.shims)] if found else ["none", ""]


def _parts_of(told: Any) -> list[tuple[str, str, str]]:
    """The failing parts of one model with the soundness and the shims of their cures; or why that is not known."""
    if isinstance(told, str):
        return [("", "none", told)]
    return [(part, *cure) for part, cure in told.items()]


def main() -> None:
    """One seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("--parts", type=int, default=5)
    parser.add_argument("--types", type=int, default=80)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--seconds", type=float)
    given = parser.parse_args()
    given.out = given.out.resolve()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warm_up()
    measurement = Measurement(given.seed, given)
    done = measurement.run()
    print(measurement)
    print("Complete." if done else "Not complete: the same command goes on.")


if __name__ == "__main__":
    main()
