"""What can be asked in a lane: a script, or a scan of a target's parts or of one submodule."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path

from exportdoctor.core.codec import decode, encode
from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.failure.messages import TRACEBACK, exception_in_text, first_line
from exportdoctor.core.limits import IDLE_ATTEMPT, SCRIPT_MB, SCRIPT_SECONDS
from exportdoctor.core.run.lane_matrix import FailureName, LaneAnswer, StackLine
from exportdoctor.core.run.report import Report
from exportdoctor.core.versions import SUPPORTED_VERSIONS, is_in_range
from exportdoctor.lanes.lane import Lane, lanes_root
from exportdoctor.process.group import die_with_parent, name_exit
from exportdoctor.process.interpreter import carry, command_in
from exportdoctor.process.supervise import KillReason, Limits, run_within
from exportdoctor.store.atomic_write import make_folder, replace_file
from exportdoctor.store.digest import surroundings
from exportdoctor.store.places import new_run_id
from exportdoctor.store.runs import read_run

_LIMITED = (FailureKind.TIMEOUT, FailureKind.OUT_OF_MEMORY)
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/")
_OF_AN_EXPORT = re.compile(r'File "[^"]*torch/(export|onnx|jit)/')


def ask_script(script: str, lane: Lane, *, keep: bool, again: bool = False) -> LaneAnswer:
    """Run the script in a folder of its own. With `keep` its answer is told again: it must read nothing else.

    With `again` it is run whatever is known.
    """
    if lane.reason:
        return LaneAnswer(unknown=lane.reason)
    digest = hashlib.sha256(encode([script, lane.name, surroundings()])).hexdigest()
    file = lanes_root() / ".answers" / f"{digest}.json"
    if keep and not again and (known := _read_answer(file)) is not None:
        return known
    with tempfile.TemporaryDirectory(prefix="exportdoctor-") as folder:
        path, errors = Path(folder) / "repro.py", Path(folder) / "stderr"
        path.write_text(script, encoding="utf-8")
        with open(errors, "wb") as stream:
            code, killed = run_within(
                [lane.python, "-P", "-s", "-X", "faulthandler", str(path)],
                Limits(wall=SCRIPT_SECONDS, idle=IDLE_ATTEMPT, memory_mb=SCRIPT_MB),
                folder=Path(folder),
                errors=stream,
                environment=lane.environment,
            )
        output = errors.read_text(errors="replace")
    if killed is not None:
        return LaneAnswer(unknown=f"it was stopped: {_limit_of(killed)}")
    if code == -signal.SIGKILL:
        return LaneAnswer(unknown="it was killed from outside")
    answer = _script_answer(code, output)
    if answer == LaneAnswer() and "export" not in script:
        return LaneAnswer(unknown="it ends without an error, and exports nothing: the script does not name `export`")
    if keep:
        make_folder(file.parent)
        replace_file(file, encode(answer))
    return answer


def ask_scan(
    target: tuple[str, ...], lane: Lane, *, again: bool = False, numbers: bool = False
) -> tuple[Report | None, str]:
    """Scan as the words say, without a search for shims; the report, or why there is none.

    With `numbers` the program's are compared with eager's, which a scan does that searches for shims, too.

    Runs and caches of lanes are apart from the user's. An answer that is still valid is told again from there, but not
    with `again`.
    """
    if lane.reason:
        return None, lane.reason
    if is_in_range(lane.spec.packages.get("torch", ""), needed := SUPPORTED_VERSIONS["torch"]) is False:
        return None, f"exportdoctor needs torch{needed}"
    home = lanes_root() / ".runs"
    folder = home / "runs" / new_run_id(target[0])
    more = ["--no-alternatives" if numbers else "--no-cure", *(["--no-cache"] if again else [])]
    done = subprocess.run(
        command_in(lane.python, ["scan", *target, "--quiet", "--out", str(folder), *more]),
        env={**os.environ, **carry(), **lane.environment, "EXPORTDOCTOR_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=die_with_parent,
        check=False,
    )
    if done.returncode == -signal.SIGKILL:
        return None, "it was killed from outside"
    if done.returncode == 130:
        raise KeyboardInterrupt
    said = done.stderr.decode(errors="replace").strip().splitlines()
    reason = said[-1].removeprefix("exportdoctor: ") if said else f"the scan ended with {name_exit(done.returncode)}"
    if done.returncode not in (0, 1):
        return None, reason
    try:
        report = read_run(folder).state.report()
    except ExportdoctorError as error:
        return None, error.line()
    for name, version in lane.spec.packages.items():
        found = report.environment.get(name)
        if found is not None and found.partition("+")[0] != version.partition("+")[0]:
            return None, f"it ran with {name} {found}"
    return report, ""


def part_answer(report: Report, part: str) -> LaneAnswer:
    """What a scan says of one part."""
    record = next((one for one in report.parts if one.name == part), None)
    if record is None or not record.complete or not report.complete:
        return LaneAnswer(unknown="it was not asked to its end")
    if record.verdict == "passes":
        return LaneAnswer()
    findings = [one for one in report.findings if one.part == part]
    known = tuple(name_of(one) for one in findings if one.kind not in _LIMITED)
    if not known:
        return LaneAnswer(unknown="ended at a limit of time or memory" if findings else "it fails without a finding")
    return LaneAnswer(failures=known)


def name_of(finding: Finding) -> FailureName:
    """A finding's failure as other versions show it."""
    stack = tuple(place for frame in finding.stack if (place := _place(frame.file, frame.line)) is not None)
    return FailureName(exception=finding.exception.type, message=finding.exception.message, stack=stack)


def _script_answer(code: int, output: str) -> LaneAnswer:
    if code == 0:
        return LaneAnswer()
    if code < 0:
        return LaneAnswer(failures=(FailureName(exception=name_exit(code), message=""),))
    if TRACEBACK not in output:
        return LaneAnswer(unknown=f"ended with exit code {code} and no exception")
    exception, message = exception_in_text(output)
    if not _OF_AN_EXPORT.search(output):
        alone = " (it runs as a copy, in an empty folder)" if exception == "ModuleNotFoundError" else ""
        return LaneAnswer(unknown=f"fails before any export: {exception}: {first_line(message, 160)}{alone}")
    places = (_place(file, int(line)) for file, line in _FRAME.findall(output))
    stack = tuple(dict.fromkeys(place for place in places if place is not None))
    return LaneAnswer(failures=(FailureName(exception=exception, message=message, stack=stack),))


def _limit_of(killed: KillReason) -> str:
    match killed.signal:
        case "hang":
            return f"it waited for {IDLE_ATTEMPT:g} s and computed nothing"
        case "time-out":
            return f"it ran for {SCRIPT_SECONDS:g} s"
        case "out of memory":
            return f"it took {killed.memory_mb:,.0f} MiB, more than {SCRIPT_MB:,.0f} MiB"
        case signal_name:
            return signal_name


def _place(file: str, line: int) -> StackLine | None:
    inside = _INSTALLED.search(file)
    return StackLine(file=file[inside.end() :], line=line) if inside else None


def _read_answer(file: Path) -> LaneAnswer | None:
    try:
        answer: LaneAnswer = decode(file.read_bytes(), LaneAnswer)
    except (OSError, ExportdoctorError):
        return None
    return answer
