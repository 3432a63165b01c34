"""What is asked in lanes, on the smallest thing that fails: a script, a submodule, or a whole part."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from functools import cache
from importlib import metadata
from typing import NamedTuple

import msgspec

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.kinds import KIND_OF_OUR_EXCEPTION, NUMBERS_DIFFER, SIZES_REFUSED
from exportdoctor.core.run.lane_matrix import FailureName, LaneAnswer
from exportdoctor.core.run.report import Report
from exportdoctor.core.scan_options import ScanOptions, option_words
from exportdoctor.core.versions import installed_versions
from exportdoctor.lanes.ask_in_lane import ask_scan, ask_script, name_of, part_answer
from exportdoctor.lanes.code_changes import import_name
from exportdoctor.lanes.lane import Lane
from exportdoctor.store.measurements import note_measurement
from exportdoctor.store.runs import StoredRun, target_again

Ask = Callable[[Lane, bool], LaneAnswer]
_BELOW = ("torch", "onnxscript", "onnxruntime", "onnx")


class LaneQuestion(NamedTuple):
    """`small` asks the smallest thing that fails, which `about` names; its flag asks anew, whatever is known.

    `whole` asks what that was taken from, if it is something else. `wanted` is the failure, if one is known; `script`
    the text of the script that is asked, if one is.
    """

    name: str
    about: str
    wanted: FailureName | None
    small: Ask
    whole: Ask | None = None
    script: str = ""


def script_question(name: str, script: str) -> LaneQuestion:
    """A user's script is run each time: what it reads is not known."""
    ask: Ask = lambda lane, again: ask_script(script, lane, keep=False, again=again)  # noqa: E731
    return LaneQuestion(name, f"the script {name}", None, ask, script=script)


def finding_question(run: StoredRun, finding: Finding, packages: Collection[str]) -> LaneQuestion:
    """A finding, asked where other versions of `packages` are: by its verified script if that uses them all.

    A script holds copies of the model's code, so that a package that it does not import cannot change its answer;
    then the submodule is scanned. So it is where the export passes, and the failure is what it costs or what the
    program does: a script that ends well does not say that.
    """
    wanted, started = name_of(finding), run.state.started
    part = f"part {finding.part}"
    if started is None:
        nothing: Ask = lambda lane, again: LaneAnswer(unknown="the run does not say what it scanned")  # noqa: E731
        return LaneQuestion(finding.id, part, wanted, nothing)
    build, options = started.target.options, started.options
    words = (target_again(run).ref, "--part", finding.part, *build.flags)
    issues = tuple(issue.id for issue in finding.known_issues if not issue.elsewhere)
    numbers = finding.exception.type in (NUMBERS_DIFFER, SIZES_REFUSED)
    whole = scan_question(finding.id, part, (*words, *_words_of(options)), finding.part, wanted, numbers=numbers)
    if finding.exception.type not in KIND_OF_OUR_EXCEPTION and (script := _script_of(run, finding, packages)):
        ask: Ask = lambda lane, again: ask_script(script, lane, keep=True, again=again)  # noqa: E731
        small = LaneQuestion(finding.id, f"the script of {finding.id}", wanted, ask, whole.small, script)
        return _with_measurements(small, issues)
    if not finding.module or numbers:  # those of a submodule alone are not compared
        return _with_measurements(whole, issues)
    # one of its modules may be mended without the rest
    others = [name for name in finding.modules if name not in ("", finding.module)]
    about = f"submodule {finding.module} of {part}" + (f", and {len(others)} that fail like it" if others else "")
    modules = (word for name in (finding.module, *others) for word in ("--module", name))
    words += _words_of(msgspec.structs.replace(options, modules=()))
    small = scan_question(finding.id, about, (*words, *modules), finding.part, wanted)
    return _with_measurements(small._replace(whole=whole.small), issues)


def _words_of(options: ScanOptions) -> tuple[str, ...]:
    """The options of the scan that found it, without those that say how shims are searched and how many jobs it had."""
    asked = msgspec.structs.replace(options, cure=True, alternatives=True, allow=(), shim_files=(), use_cache=True)
    words = option_words(asked)
    jobs = words.index("--jobs")
    return (*words[:jobs], *words[jobs + 2 :])


def _with_measurements(question: LaneQuestion, issues: tuple[str, ...]) -> LaneQuestion:
    """The same, with each answer kept as a measurement."""

    def ask(lane: Lane, again: bool) -> LaneAnswer:
        answer = question.small(lane, again)
        cell = answer.cell(question.wanted)
        if cell.state != "unknown":
            versions = {**installed_versions(("torch", "transformers")), **lane.spec.packages}
            note_measurement(question.script, issues, versions, cell.state)
        return answer

    return question._replace(small=ask)


def scan_question(
    name: str,
    about: str,
    words: tuple[str, ...],
    part: str,
    wanted: FailureName | None,
    *,
    numbers: bool = False,
) -> LaneQuestion:
    """A scan of one part, or of a submodule of it; with `numbers` also of what the program computes."""

    def ask(lane: Lane, again: bool) -> LaneAnswer:
        report, why = ask_scan(words, lane, again=again, numbers=numbers)
        return part_answer(report, part) if report is not None else LaneAnswer(unknown=why)

    return LaneQuestion(name, about, wanted, ask)


def target_question(words: tuple[str, ...], lanes: Iterable[Lane]) -> LaneQuestion:
    """The first finding of the first of these lanes in which the target fails; its parts, where it passes in all."""
    for lane in lanes:
        report, _ = ask_scan(words, lane)
        if report is None or not report.findings:
            continue
        finding = report.findings[0]
        part, name = (*words, "--part", finding.part), f"part {finding.part}"
        whole = scan_question(words[0], name, part, finding.part, name_of(finding))
        if not finding.module:
            return whole
        small = (*part, "--module", finding.module)
        about = f"submodule {finding.module} of {name}"
        return scan_question(words[0], about, small, finding.part, name_of(finding))._replace(whole=whole.small)
    ask: Ask = lambda lane, again: _all_parts(ask_scan(words, lane, again=again))  # noqa: E731
    return LaneQuestion(words[0], words[0], None, ask)


def _all_parts(asked: tuple[Report | None, str]) -> LaneAnswer:
    report, why = asked
    answers = [part_answer(report, part.name) for part in report.parts] if report is not None else []
    unknown = next((one.unknown for one in answers if one.unknown), "") if report is not None else why
    return LaneAnswer(failures=tuple(one for answer in answers for one in answer.failures), unknown=unknown)


def _script_of(run: StoredRun, finding: Finding, packages: Collection[str]) -> str:
    """The verified script of a finding; empty if there is none, or if it cannot tell the packages' versions apart."""
    if finding.repro is None or not finding.repro.verified:
        return ""
    imported = finding.repro.imports
    if not all(import_name(one) in imported or one in _below_torch() for one in packages):
        return ""
    try:
        return (run.path / finding.repro.path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


@cache
def _below_torch() -> frozenset[str]:
    """What an export runs on, whether a script imports it or not: torch, its translators, and what they need."""
    found: set[str] = set()
    left = list(_BELOW)
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        try:
            needed = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            continue
        named = (re.match(r"[\w.-]+", one) for one in needed if "extra ==" not in one)
        left += [match[0].lower().replace("_", "-") for match in named if match]
    return frozenset(found)
