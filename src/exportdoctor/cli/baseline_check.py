"""`scan --baseline FILE --fail-on new|any|never`: which findings make the exit code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from exportdoctor.cli.error_output import print_line
from exportdoctor.core.errors import ExitCode
from exportdoctor.core.run.known_failures import BaselineDifference, compare_with_baseline, known_failure
from exportdoctor.core.run.report import Report
from exportdoctor.report.wording.baselines import baseline_lines
from exportdoctor.store.baseline_file import read_baseline, write_baseline

ACCEPT = "run with --update-baseline"
FailOn = Literal["new", "any", "never"]


@dataclass(frozen=True, kw_only=True)
class BaselineCheck:
    """A baseline's file, None for none; `update` writes what fails now into it."""

    path: Path | None = None
    fail_on: FailOn | None = None
    update: bool = False

    def read(self) -> None:
        """Raise UsageError where the baseline cannot be read: before the scan, not after it."""
        if self.path is not None:
            read_baseline(self.path, missing_ok=self.update)

    def judge(self, report: Report, code: int) -> int:
        """The exit code of a scan that ended with `code`; what differs from the baseline is printed on stderr."""
        fail_on = self.fail_on or ("any" if self.path is None else "new")
        broken = True
        difference = self.difference(report)
        if self.path is not None and difference is not None and code in (ExitCode.EXPORTS, ExitCode.FINDINGS):
            broken = self._differs(self.path, difference, report)
        if code != ExitCode.FINDINGS or fail_on == "any" or (fail_on == "new" and broken):
            return code
        return ExitCode.EXPORTS

    def difference(self, report: Report) -> BaselineDifference | None:
        """What differs from the baseline; None where there is none, or the report is not whole."""
        if self.path is None or not report.complete:
            return None
        baseline = read_baseline(self.path, missing_ok=self.update)
        return compare_with_baseline(baseline.failures.get(report.target.ref, ()), report)

    def _differs(self, path: Path, difference: BaselineDifference, report: Report) -> bool:
        for line in baseline_lines(difference, accept=ACCEPT):
            print_line(line)
        if self.update:
            baseline = read_baseline(path, missing_ok=True)
            write_baseline(path, baseline.replace_check(report.target.ref, map(known_failure, report.findings)))
            print_line(f"baseline written: {path}")
            return False
        return bool(difference.broken)
