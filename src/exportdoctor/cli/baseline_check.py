"""`scan --baseline FILE --fail-on new|any|never`: which findings make the exit code."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from exportdoctor.cli.error_output import print_line
from exportdoctor.core.errors import ExitCode
from exportdoctor.core.run.known_failures import BaselineDifference, compare_with_baseline, known_failure, looks_of
from exportdoctor.core.run.run_state import RunState
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.report.wording.baselines import baseline_lines
from exportdoctor.report.wording.formatting import count
from exportdoctor.store.baseline_file import read_baseline, write_baseline
from exportdoctor.targets import target_path

ACCEPT = "run with --update-baseline"
FailOn = Literal["new", "any", "never"]


@dataclass(frozen=True, kw_only=True)
class BaselineCheck:
    """A baseline's file, None for none; `update` writes what fails now into it. `of_some_parts`: others may not have
    been scanned."""

    path: Path | None = None
    fail_on: FailOn | None = None
    update: bool = False
    of_some_parts: bool = False

    def read(self) -> None:
        """Raise UsageError where the baseline cannot be read: before the scan, not after it."""
        if self.path is not None:
            read_baseline(self.path, missing_ok=self.update)

    def judge(self, state: RunState, code: int) -> int:
        """The exit code of a scan that ended with `code`; what differs from the baseline is printed on stderr."""
        fail_on = self.fail_on or ("any" if self.path is None else "new")
        broken = True
        difference = self.difference(state)
        if self.path is not None and difference is not None and code in (ExitCode.EXPORTS, ExitCode.FINDINGS):
            broken = self._differs(self.path, difference, state)
        if code != ExitCode.FINDINGS or fail_on == "any" or (fail_on == "new" and broken):
            return code
        return ExitCode.EXPORTS

    def difference(self, state: RunState) -> BaselineDifference | None:
        """What differs from the baseline; None where there is none, or the report is not whole."""
        report = state.report()
        if self.path is None or not report.complete:
            return None
        baseline = read_baseline(self.path, missing_ok=self.update)
        name = _check_name(report.target.ref, self.path)
        found = compare_with_baseline(baseline.of_check(name), report, _looks(state), of_some_parts=self.of_some_parts)
        is_known = name in baseline.failures or name in baseline.looked_for
        return found if is_known else msgspec.structs.replace(found, newly_looked_for=())

    def _differs(self, path: Path, difference: BaselineDifference, state: RunState) -> bool:
        for line in baseline_lines(difference, accept=ACCEPT):
            print_line(line)
        if self.update:
            report = state.report()
            baseline, name = read_baseline(path, missing_ok=True), _check_name(report.target.ref, path)
            known = (*map(known_failure, report.findings), *difference.unasked)
            looked = [*_looks(state), *(baseline.of_check(name)[1] if difference.unasked else ())]
            write_baseline(path, baseline.replace_check(name, known, dict.fromkeys(looked)))
            kept = len(difference.unasked)
            print_line(f"baseline written: {path}" + (f", {count(kept, 'failure')} not asked kept" if kept else ""))
            return False
        return bool(difference.broken)


def _looks(state: RunState) -> tuple[str, ...]:
    return looks_of(state.started.options if state.started is not None else ScanOptions())


def _check_name(ref: str, baseline: Path) -> str:
    """What the baseline calls a target: a file or folder by its path from the baseline's folder, so that it is the same
    from wherever it is scanned."""
    found = target_path(ref)
    if found is None:
        return ref
    path, rest = found
    return os.path.relpath(path.resolve(), baseline.parent.resolve()).replace(os.sep, "/") + rest
