"""The pytest plugin: the fixture `assert_exportable`, its marker, and a baseline of known failures.

pytest imports this in every session, so nothing of exportdoctor or torch is imported before a test uses the fixture.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from exportdoctor.core.run.known_failures import Baseline, BaselineDifference
    from exportdoctor.core.run.report import Report
    from exportdoctor.core.scan_options import ScanOptions

_MARKER = "exportable"
_UNSAID: Any = object()
_RESULTS = pytest.StashKey["list[dict[str, Any]]"]()
_EXPECTED = pytest.StashKey[str]()
"""Why a test is expected to fail."""
_CHECKS = "exportdoctor_checks"
"""The attribute of a test's report with what its checks found: xdist carries it to the process that prints."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("exportdoctor", "torch.export")
    group.addoption("--export-baseline", metavar="FILE", help="Known export failures, which do not fail a test.")
    group.addoption(
        "--export-ratchet",
        action="store_true",
        help="Take what is fixed out of the baseline; where there is no FILE yet, write it with all that fails.",
    )
    group.addoption("--export-no-cache", action="store_true", help="Do not reuse export results of earlier sessions.")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and refuse options that do not go together."""
    config.addinivalue_line(
        "markers", f"{_MARKER}(dynamic_shapes=, to=, shims=): what assert_exportable takes in this test unless told."
    )
    if config.getoption("export_ratchet") and not config.getoption("export_baseline"):
        raise pytest.UsageError("--export-ratchet needs --export-baseline FILE")
    path = _baseline_path(config)
    if path is not None and path.exists():
        _read_baseline(path)
    elif path is not None and not path.parent.is_dir():
        raise pytest.UsageError(f"--export-baseline: there is no folder {path.parent}")
    config.stash[_RESULTS] = []


class ExportChecker:
    """What the fixture `assert_exportable` is: called with a module and its inputs, it fails the test or passes."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self._calls = 0

    def __call__(
        self,
        module: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        dynamic_shapes: Any = _UNSAID,
        to: str | None = _UNSAID,
        shims: Sequence[str] | None = _UNSAID,
    ) -> Report | None:
        """Export `module`; where it fails in a way that the baseline does not know, the test fails.

        `to` is export, decomposed, onnx or ort. With `shims`, ids such as `branch-as-where`, it must get so far under
        them and compute the same as eager. What is not given is what the marker says. Returns the report, None with
        `shims`. Where torch is not installed the test is skipped.
        """
        __tracebackhide__ = True
        if importlib.util.find_spec("torch") is None:
            pytest.skip("torch is not installed")
        given = {"dynamic_shapes": dynamic_shapes, "to": to, "shims": shims}
        for mark in self._request.node.iter_markers(_MARKER):
            for wrong in (*mark.args, *sorted({*mark.kwargs} - {*given})):
                pytest.fail(f"The marker {_MARKER} takes {', '.join(f'{one}=' for one in given)}, not {wrong!r}", False)
            given = {name: mark.kwargs.get(name) if value is _UNSAID else value for name, value in given.items()}
        dynamic_shapes, to, shims = (None if value is _UNSAID else value for value in given.values())
        _check_words(to, shims)
        plan = _plan(module, args, kwargs, dynamic_shapes)
        self._calls += 1
        if shims:
            self._assert_shims_cure(plan, tuple(shims), to or "export")
            return None
        options = _scan_options(to or "export", cached=not self._request.config.getoption("export_no_cache"))
        report, run = self._scan(plan, options)
        self._judge(report, plan, run, options)
        return report

    def _assert_shims_cure(self, plan: Any, shims: tuple[str, ...], to: str) -> None:
        """As the function of that name, and noted for the summary. The baseline does not know such a check."""
        __tracebackhide__ = True
        from exportdoctor.core.run.known_failures import BaselineDifference

        noted = {"check": self._check, "difference": _as_data(BaselineDifference()), "expected": False, "shims": True}
        found: list[Any] = [shims]
        try:
            _assert_shims_cure(plan, shims, to)
            found = []
        finally:
            self._request.node.stash.setdefault(_RESULTS, []).append({**noted, "found": found})

    @property
    def _check(self) -> str:
        """The check's name in the baseline."""
        return str(self._request.node.nodeid) + (f"#{self._calls}" if self._calls > 1 else "")

    def _scan(self, plan: Any, options: ScanOptions) -> tuple[Report, Path]:
        """The report, and the folder of its run."""
        from exportdoctor.api import create_run, scan_plan
        from exportdoctor.core.errors import ExportdoctorError

        identity = _identity(self._request.node.nodeid) if options.use_cache else None
        try:
            folder = create_run(plan)
            report = scan_plan(plan, options, folder, identity=identity)
        except ExportdoctorError as error:
            raise pytest.fail.Exception(error.line(), pytrace=False) from None
        if report.exports:  # nothing to look up later
            shutil.rmtree(folder.path, ignore_errors=True)
        return report, folder.path

    def _judge(self, report: Report, plan: Any, run: Path, options: ScanOptions) -> None:
        from exportdoctor.core.run.known_failures import Baseline, compare_with_baseline, known_failure, looks_of

        check = self._check
        path = _baseline_path(self._request.config)
        baseline = _read_baseline(path) if path is not None and path.exists() else None
        looks = looks_of(options)
        difference = compare_with_baseline((baseline or Baseline()).of_check(check), report, looks)
        found = [_as_data(known_failure(one)) for one in report.findings]
        fresh = path is not None and baseline is None and self._request.config.getoption("export_ratchet")
        self._request.node.stash.setdefault(_RESULTS, []).append(
            {
                "check": check,
                "found": found,
                "difference": _as_data(difference),
                "expected": bool(fresh),
                "looks": list(looks),
            }
        )
        if difference.broken and not fresh:
            pytest.fail(_failure_text(_try_rewrites(report, difference, plan, run), difference), pytrace=False)
        if report.findings and not self._request.config.option.runxfail:
            reason = "known export failure" if not fresh else "export failure, written into the baseline"
            self._request.node.stash.setdefault(_EXPECTED, reason)
        elif not report.exports:
            pytest.fail(_failure_text(report, difference), pytrace=False)


@pytest.fixture
def assert_exportable(request: pytest.FixtureRequest) -> ExportChecker:
    """assert_exportable(module, args, kwargs, dynamic_shapes=, to=, shims=): torch.export takes the module."""
    return ExportChecker(request)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Put what a test's checks found on its report. One with a known failure was expected to fail, also where it raises
    because the module does not export, unless a check fails. It is so at its end: all its checks are made.

    Fixtures may check, too: what fails in a setup is told of the test, or of the setup where that raises."""
    outcome = yield
    if _RESULTS not in item.stash:
        return
    report = outcome.get_result()
    checks, item.stash[_RESULTS] = item.stash[_RESULTS], []
    setattr(report, _CHECKS, checks)
    raised = call.excinfo
    if call.when == "setup" or (call.when == "teardown" and not checks):
        return
    if _EXPECTED in item.stash and (
        raised is None or not raised.errisinstance((pytest.fail.Exception, pytest.skip.Exception))
    ):
        then = f"; then {raised.typename}" if raised is not None else ""
        report.outcome, report.wasxfail = "skipped", item.stash[_EXPECTED] + then


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Gather a test's checks. A failure of one that was expected to fail breaks nothing."""
    expected = hasattr(report, "wasxfail")
    checks = getattr(report, _CHECKS, ())
    _GATHERED.extend({**one, "expected": expected or one["expected"]} for one in checks)


_GATHERED: list[dict[str, Any]] = []


def pytest_sessionstart(session: pytest.Session) -> None:
    """Begin with nothing: one process may run several sessions."""
    _GATHERED.clear()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Name what was broken and what was fixed, and move the ratchet."""
    if not _GATHERED or hasattr(config, "workerinput"):  # a worker of xdist: the process that started it tells
        return
    path = _baseline_path(config)
    write = terminalreporter.write_line
    terminalreporter.section("torch.export")
    differences = [(one["check"], _difference(one["difference"])) for one in _GATHERED if not one.get("shims")]
    exporting = [one for one in _GATHERED if not one["found"]]
    shimmed = sum(1 for one in exporting if one.get("shims"))
    under = f", {shimmed} of them under shims" if shimmed else ""
    write(f"{len(exporting)} of {len(_GATHERED)} checked modules export{under}")
    from exportdoctor.core.errors import ExportdoctorError
    from exportdoctor.report.wording.baselines import failure_line

    expected = {one["check"] for one in _GATHERED if one["expected"]}
    for check, difference in differences:
        for failure in difference.new if check not in expected else ():
            write(f"broken: {check}: {failure_line(failure)}", red=True)
        for before, after in difference.changed if check not in expected else ():
            write(f"changed: {check}: {failure_line(after)}; in the baseline: {failure_line(before)}", red=True)
        for failure in difference.fixed:
            write(f"fixed: {check}: {failure_line(failure)}", green=True)
    if path is not None and config.getoption("export_ratchet"):
        try:
            write(_move_ratchet(path, differences, {one["check"]: one.get("looks", ()) for one in _GATHERED}))
        except (ExportdoctorError, pytest.UsageError) as error:
            write(f"--export-ratchet: {error}", red=True)
    elif path is not None and any(difference.fixed for _, difference in differences):
        write(f"Take what is fixed out of {path.name}: run again with --export-ratchet")


def _move_ratchet(
    path: Path, differences: list[tuple[str, BaselineDifference]], looks: Mapping[str, Sequence[str]]
) -> str:
    """Take out what is fixed; a file that is not there yet is written with all that fails. `looks`: what each check
    looked for."""
    from exportdoctor.core.run.known_failures import Baseline, without_fixed
    from exportdoctor.store.baseline_file import write_baseline

    first = not path.exists()
    baseline = Baseline() if first else _read_baseline(path)
    for check, difference in differences:
        before, looked_for = baseline.of_check(check)
        known = difference.new if first else without_fixed(before, difference.fixed)
        baseline = baseline.replace_check(check, known, looks[check] if first else looked_for)
    write_baseline(path, baseline)
    fixed = sum(len(difference.fixed) for _, difference in differences)
    return f"{path.name} written" if first else f"{path.name}: {fixed} taken out"


def _baseline_path(config: pytest.Config) -> Path | None:
    given = config.getoption("export_baseline")
    return Path(config.invocation_params.dir, given) if given else None


def _read_baseline(path: Path) -> Baseline:
    from exportdoctor.core.errors import ExportdoctorError
    from exportdoctor.store.baseline_file import read_baseline

    try:
        return read_baseline(path)
    except ExportdoctorError as error:
        raise pytest.UsageError(error.line()) from None


def _plan(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any) -> Any:
    from exportdoctor.core.errors import ExportdoctorError
    from exportdoctor.targets import plan_for_module

    try:
        return plan_for_module(module, args, kwargs, dynamic_shapes=dynamic_shapes)
    except ExportdoctorError as error:
        raise pytest.fail.Exception(error.line(), pytrace=False) from None


def _scan_options(to: str, *, cached: bool) -> ScanOptions:
    from exportdoctor.core.scan_options import ScanOptions

    return ScanOptions(to=to, cure=False, use_cache=cached)


def _check_words(to: Any, shims: Any) -> None:
    """Fail where they are none that a check takes: it would pass without having looked."""
    __tracebackhide__ = True
    from exportdoctor.core.scan_options import OPTIONS

    if to is not None and to not in OPTIONS["to"].choices:
        pytest.fail(f"There is no to={to!r}. One of: {', '.join(OPTIONS['to'].choices)}", pytrace=False)
    if isinstance(shims, str):
        pytest.fail(f"shims={shims!r} is no list. Give a list of ids", pytrace=False)


def _assert_shims_cure(plan: Any, shims: tuple[str, ...], to: str) -> None:
    """Fail unless the module gets as far as `to` under the shims, and computes the same as eager."""
    __tracebackhide__ = True
    from exportdoctor.core.errors import ExportdoctorError
    from exportdoctor.core.records.target import TargetRef
    from exportdoctor.core.scan_options import ScanOptions
    from exportdoctor.engine.cure.try_shims import try_shims
    from exportdoctor.process.launcher import Fork
    from exportdoctor.shims import find

    try:
        for shim in shims:
            find(shim)
        trials = list(try_shims(TargetRef(ref=plan.ref), ScanOptions(to=to), shims, Fork(plan)))
    except ExportdoctorError as error:
        raise pytest.fail.Exception(error.line(), pytrace=False) from None
    for tried in trials:
        if tried.result != "cured":
            pytest.fail(f"with {' + '.join(shims)}: {tried.after}", pytrace=False)


def _try_rewrites(report: Report, difference: BaselineDifference, plan: Any, run: Path) -> Report:
    """The report with what came of rewrites of the lines that newly fail, tried in memory; its run keeps it, too."""
    from msgspec.structs import replace

    from exportdoctor.core.errors import ExportdoctorError
    from exportdoctor.core.records.target import TargetRef
    from exportdoctor.core.scan_options import ScanOptions
    from exportdoctor.engine.cure.try_rewrites import try_rewrites
    from exportdoctor.process.launcher import Fork
    from exportdoctor.store.run_folder import RunFolder

    findings = list(report.findings)
    for place, finding in enumerate(findings):
        if not difference.breaks(finding):
            continue
        try:
            tried = tuple(try_rewrites(finding, TargetRef(ref=plan.ref), ScanOptions(), Fork(plan)))
            findings[place] = replace(finding, rewrites=tried)
            with RunFolder.reopen(run) as folder:
                folder.add_finding(findings[place])
        except ExportdoctorError:  # the failure is told without
            continue
    return replace(report, findings=tuple(findings))


def _failure_text(report: Report, difference: BaselineDifference) -> str:
    """The findings that are new, each with its line, and what the baseline has in their place."""
    from exportdoctor.report import wording
    from exportdoctor.report.canvas import Style
    from exportdoctor.report.explanation_page import as_text, own_line_blocks
    from exportdoctor.report.wording.baselines import failure_line

    blocks = []
    for finding in report.findings:
        if not difference.breaks(finding):
            continue
        lines = [wording.title(finding, report), f"    {(finding.source or '').strip()}"]
        lines += [f"  {sentence}" for sentence in wording.chapter(finding, report)]
        lines.append(as_text(own_line_blocks(finding), Style()))
        if (before := difference.before(finding)) is not None:
            lines.append(f"  In the baseline: {failure_line(before)}")
        lines.append(f"  Explained: exportdoctor explain {report.run} {finding.id}")
        blocks.append("\n".join(line for line in lines if line.strip()))
    return wording.plain("\n\n".join(blocks) or "the export did not end with a verdict")


def _identity(test: str) -> Mapping[str, object]:
    """What a module's answers depend on beside itself: the test, the local code that is imported, and its values."""
    from exportdoctor.core.failure.frames import is_local_file
    from exportdoctor.core.file_hash import file_identity
    from exportdoctor.targets.loaded_values import digest_values

    files = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(module, ModuleType) and isinstance(file, str) and is_local_file(os.path.abspath(file)):
            files[file] = module
    sources = {file: file_identity(file) for file in files}
    return {"test": test, "sources": sources, "values": digest_values(files.values())}


def _as_data(record: Any) -> Any:
    import msgspec

    return json.loads(msgspec.json.encode(record))


def _difference(data: Any) -> BaselineDifference:
    import msgspec

    from exportdoctor.core.run.known_failures import BaselineDifference

    return msgspec.convert(data, BaselineDifference)
