"""Sentences about a finding: what, where, why, what next."""

from __future__ import annotations

from exportdoctor.core.failure.explanations import documented_limit_of
from exportdoctor.core.failure.finding import Finding, KnownIssueRecord
from exportdoctor.core.failure.identity import across_parts, code_of
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.failure.messages import REFUSED_OUTPUT, UNSUPPORTED_INPUT, first_line, without_hints
from exportdoctor.core.run.report import Report
from exportdoctor.report.wording import known_causes, operators
from exportdoctor.report.wording.formatting import count, finding_count, issue_name, module_name, short_path
from exportdoctor.report.wording.rewrites import usual_step
from exportdoctor.report.wording.scripted_modules import NEXT as TORCHSCRIPT_NEXT
from exportdoctor.report.wording.scripted_modules import is_torchscript, why_torchscript
from exportdoctor.report.wording.shim_tries import dims_in, shim_results

_SIGNALS = {
    "SIGSEGV": "Segmentation fault: native code touched memory that is not its own",
    "SIGABRT": "Abort: native code gave up on an internal check",
    "SIGBUS": "Bus error: native code touched memory that cannot be had",
    "SIGFPE": "Floating-point exception in native code, often an integer division by zero",
    "SIGILL": "Illegal instruction: native code was built for another processor",
    "SIGKILL": "Killed from outside, as the system does where memory or the processor time of ulimit -t is used up",
    "SIGXCPU": "More processor time than ulimit -t allows",
}


_SHOWN = {"aten._local_scalar_dense.default": "aten.item.default"}  # the same read, as the traced graph has it


def crash_message(signal: str) -> str:
    """What stands for an exception's message where the process died by itself; its type is the signal's name, or the
    exit code."""
    return _SIGNALS.get(signal, "The process ended without an exception")


def kill_message(reason: str, *, seconds: float, memory_mb: float, limit_mb: float) -> str:
    """What stands for an exception's message where the process was killed for a limit: hang, time-out or memory."""
    match reason:
        case "hang":
            return f"Killed after {seconds:.0f} s: it was waiting and hardly used the processor"
        case "time-out":
            return f"Killed after {seconds:.0f} s: it was still computing"
        case "out of memory":
            return f"Killed at {memory_mb:,.0f} MiB: more than the {limit_mb:,.0f} MiB that one attempt may take"
        case signal:
            return crash_message(signal)


def slow_export(seconds: float, limit: float) -> str:
    """What stands for an exception's message where an export passed and took too long."""
    return f"It exports, but takes {seconds:.1f} s of processor time: more than {limit:g} s"


def heavy_export(memory_mb: float, limit_mb: float) -> str:
    """What stands for an exception's message where an export passed and took too much memory."""
    return f"It exports, but takes {memory_mb:,.0f} MiB of memory: more than {limit_mb:,.0f} MiB"


def heavy_too(memory_mb: float, limit_mb: float) -> str:
    """What follows `slow_export` where the memory exceeds its limit as well."""
    return f". It also takes {memory_mb:,.0f} MiB of memory: more than {limit_mb:,.0f} MiB"


def cost_share(work: str, share: float, expression: str) -> str:
    """On what most of the cost went; empty where that is not known."""
    about = f", at last on {expression}" if expression else ""
    return f". {share:.0%} of it went to {work}{about}" if work else ""


def build_killed(part: str, reason: str, *, seconds: float, memory_mb: float, limit_mb: float) -> str:
    """Why importing and building the target was stopped, or capturing `part`."""
    match reason:
        case "hang":
            how = f"hangs: it waited for {seconds:.3g} s. --build-timeout allows more"
        case "time-out":
            how = f"takes longer than {seconds:.3g} s. --build-timeout allows more"
        case _:
            how = f"takes {memory_mb:,.0f} MiB of memory, more than {limit_mb:,.0f}. --build-memory allows more"
    return f"{_work(part)} {how}"


def build_ended(part: str, end: str) -> str:
    """How the process ended in which the target was imported and built, or `part` captured."""
    return f"{_work(part)} ends the process: {_SIGNALS.get(end, 'it exits')} ({end})"


def export_ended(end: str, step: str) -> str:
    """How the process of an export ended, and in which step. SIGKILL most often means that memory ran out."""
    how = "killed: out of memory?" if end == "SIGKILL" else end
    return f"The export process has ended ({how})" + (f" in the step: {step}" if step else "")


def shim_file_refused(file: str, seconds: float | None, end: str) -> str:
    """Why a file with shims cannot be imported: it did not end in so many seconds, or it ended the process."""
    how = f"it ends the process ({end})" if seconds is None else f"it takes longer than {seconds:.0f} s"
    return f"{file} can't be imported: {how}"


def _work(part: str) -> str:
    return f"The eager forward of part {part}" if part else "Building the target"


def title(finding: Finding, report: Report) -> str:
    """A finding's heading: its id, its part where there are several, and where it is."""
    part = f" {finding.part}:" if len(report.parts) > 1 else ""
    return f"{finding.id} {part} {culprit_line(finding)}"


def same_as_earlier(finding: Finding, report: Report) -> str:
    """Which earlier finding, of another part, is the same failure; empty if none is."""
    for earlier in report.findings:
        if earlier.id == finding.id:
            break
        if across_parts(earlier) == across_parts(finding):
            return f"Same failure as {earlier.id}, in part {finding.part}."
    return ""


def different_findings(report: Report) -> str:
    """How many findings there are, and how many of them differ: a failure of several parts is one."""
    different = sum(not same_as_earlier(finding, report) for finding in report.findings)
    found = finding_count(len(report.findings))
    return f"{found}, {different} different" if different < len(report.findings) else found


def summary_lines(report: Report) -> list[str]:
    """A line for each failure: where and of which kind it is, and the findings of other parts that are the same."""
    lines = []
    for finding in report.findings:
        if same_as_earlier(finding, report):
            continue
        same = [one for one in report.findings if one is not finding and across_parts(one) == across_parts(finding)]
        also = f"; also {', '.join(f'{one.id} ({one.part})' for one in same)}" if same else ""
        lines.append(f"{title(finding, report)}: {finding.kind.replace('_', ' ')}{also}")
    return lines


def culprit_line(finding: Finding) -> str:
    """Function, place and submodule of a finding."""
    module = module_name(finding.module)
    if finding.function is None:
        where = place(finding) or ("" if finding.kind.ends_the_process else _without_line(finding))
        return ", ".join(filter(None, (f"{module} ({finding.module_class})", where)))
    forward = finding.function.rpartition(".")[2] in {"forward", "__call__"}
    return f"{finding.function} ({place(finding)}), {'in' if forward else relation(finding)} {module}"


def relation(finding: Finding) -> str:
    """How its function belongs to its module: called by it, or a method that code of another module asks for."""
    return "called by" if finding.is_called_by_module else "a method of"


def _without_line(finding: Finding) -> str:
    """Where a failure is whose stack has no line of the user's: at the guard that it is about, or in the call."""
    frame = finding.guard
    return f"by the guard at {short_path(frame.file)}:{frame.line}" if frame is not None else "in the call itself"


def place(finding: Finding) -> str:
    """`file:line`; empty where no code of the user's is to blame."""
    if finding.file is None:
        return ""
    return short_path(finding.file) + (f":{finding.line}" if finding.line else "")


def code_place(finding: Finding) -> str:
    """As `place`; of a violated dimension, whose stack has no line of the user's, the guard's."""
    code = code_of(finding)
    return short_path(code.file) + (f":{code.line}" if code.line else "") if code.file else ""


def chapter(finding: Finding, report: Report) -> tuple[str, ...]:
    """A finding's story; a short one if an earlier finding is the same failure."""
    same = same_as_earlier(finding, report)
    return (
        (same, *_facts(("Repro", repro_line(finding, report.run)), ("Log", finding.log or "")))
        if same
        else story(finding, report.run)
    )


def story(finding: Finding, run: str = "") -> tuple[str, ...]:
    """A finding of `run` in sentences: what was raised, why, where its symbols come from, what to do, what is known."""
    sentences = [
        exception_line(finding),
        root_cause(finding),
        expression(finding),
        why(finding),
        limit_note(finding),
        *symbol_origins(finding),
        guard(finding),
        value_origin(finding),
        dimensions(finding),
        masked_by(finding),
        only_alone(finding),
        other_modules(finding),
        f"Next: {next_step(finding)}",
    ]
    sentences += _facts(
        ("Known upstream", known_upstream(finding)),
        ("Shims tried", shim_results(finding.shims_tried)),
        ("Repro", repro_line(finding, run)),
        ("Log", finding.log or ""),
    )
    return tuple(sentence for sentence in sentences if sentence)


def _facts(*facts: tuple[str, str]) -> list[str]:
    """`heading: text` for each fact that is known."""
    return [f"{heading}: {text}" for heading, text in facts if text]


def exception_line(finding: Finding) -> str:
    """Type and first line of the exception, as one would search for it."""
    first = without_hints(first_line(finding.exception.message))
    return f"{finding.exception.type.rpartition('.')[2]}: {first}" if first else finding.exception.type


def root_cause(finding: Finding) -> str:
    """The exception that caused the one that the user sees; empty where that says the same, or none did."""
    root = finding.exception.root
    return f"Caused by {root}" if root else ""


_OUTSIDE = "torch found this outside of the forward"


def expression(finding: Finding) -> str:
    """The expression and the operator that failed, where they say more than the source line does."""
    text = (finding.expression or "").strip()
    pieces = []
    if text and text != (finding.source or "").strip():
        pieces.append(f"while evaluating {text}")
    if finding.op:
        given = finding.last_op.arguments if finding.stage in ("load", "run") and finding.last_op is not None else ()
        pieces.append(f"in operator {finding.op}" + (f" of {', '.join(given)}" if given else ""))
    joined = ", ".join(pieces)
    return f"{joined[0].upper()}{joined[1:]}." if joined else ""


def why(finding: Finding) -> str:
    """Why it fails."""
    if finding.stage == "decompose":
        return "It exports, but ExportedProgram.run_decompositions() fails on its program."
    if is_torchscript(finding):
        return why_torchscript(finding)
    known = known_causes.summary(finding)
    raised_by_exporter = _has_no_line(finding) and not _modules_on_stack(finding)
    if not known and finding.kind is FailureKind.PYTHON_ERROR and raised_by_exporter:
        return "The exporter raises this itself, outside of the forward."
    summary = known or operators.summary(finding)
    if finding.only_inside is None:
        return summary
    outer = module_name(finding.only_inside)
    if finding.guard is None:
        return f"{summary} It exports on its own and fails only inside {outer}."
    return (
        f"{summary} {module_name(finding.module)} makes the guard that {outer} violates; on its own it exports, with "
        "dynamic sizes of no declared bounds, which torch.export may narrow or tie together."
    )


def limit_note(finding: Finding) -> str:
    """That torch documents it as not supported; empty where it does not, or where an issue upstream is about the
    operation of torch's that made the guard. `explain` names the page."""
    if finding.guard is not None and any(not issue.elsewhere for issue in finding.known_issues):
        return ""
    if not documented_limit_of(finding):
        return ""
    return "This is a documented limit of torch.export, not a bug in torch."


def symbol_origins(finding: Finding) -> tuple[str, ...]:
    """Where the unbacked symbols in the message were created: one sentence for each place."""
    places: dict[str, list[str]] = {}
    for origin in finding.origins:
        frame = origin.frame
        by = f" by {_SHOWN.get(origin.op, origin.op)}" if origin.op else ""
        at = f" at {short_path(frame.file)}:{frame.line} in {frame.function}" if frame else ""
        source = f": {frame.source.strip()}" if frame and frame.source else ""
        places.setdefault(f"{by}{at}{source}", []).append(origin.symbol)
    return tuple(
        f"{', '.join(symbols)} {'was' if len(symbols) == 1 else 'were'} created{place}"
        for place, symbols in places.items()
    )


def guard(finding: Finding) -> str:
    """Where the guard was added that contradicts a declared dynamic dimension; else empty."""
    frame = finding.guard
    if frame is None:
        return ""
    source = f": {frame.source}" if frame.source else ""
    several = dims_in(finding.exception.message)[1:] and finding.kind is FailureKind.DYNAMIC_DIM_SPECIALISED
    which = "A guard of one of these dimensions (the others may have theirs at other lines)" if several else "The guard"
    return f"{which} was added at {short_path(frame.file)}:{frame.line} in {frame.function}{source}"


def value_origin(finding: Finding) -> str:
    """Which line's value torch refused after tracing; why no line is told, if none is; else empty."""
    frame = finding.value_origin
    if frame is not None:
        source = f": {frame.source}" if frame.source else ""
        return f"torch refuses a value of {short_path(frame.file)}:{frame.line} in {frame.function}{source}"
    if not _has_no_line(finding):
        return ""
    if finding.kind.ends_the_process:
        return "No line is to be had: the process ended, and its stack is not reliable."
    if finding.kind is FailureKind.COSTLY:
        return "No line is to be had: no line of your code was seen to take most of it."
    running = _modules_on_stack(finding)
    where = f"it fails in the forward of {module_name(running[-1])}" if running else _OUTSIDE
    return f"No line is to be had: {where}, and its stack has no frame of your code."


def _modules_on_stack(finding: Finding) -> tuple[str, ...]:
    """The submodules in whose forward the exception rose, outermost first; empty where the forward was not running."""
    return tuple(frame.module for frame in finding.stack if frame.module is not None)


def _has_no_line(finding: Finding) -> bool:
    """Whether an export failed and nothing on its stack is code of the model."""
    return finding.stage == "export" and finding.file is None and finding.guard is None and finding.value_origin is None


def dimensions(finding: Finding) -> str:
    """Which dynamic dimensions the failure depends on; empty where that was not tested."""
    said = _fails_when(finding)
    return (
        f"{said} Inputs give those with `or` between them the same sizes: which it is, is not known."
        if "` or `" in said
        else said
    )


def _fails_when(finding: Finding) -> str:
    if finding.dimensions is None:
        return ""
    if not finding.dimensions:
        return "Also fails with static shapes."
    fails = f"Fails when {_are(finding.dimensions)} dynamic"
    if finding.dimensions_also:
        each = [f"when only {_are(names)} dynamic" for names in (finding.dimensions, *finding.dimensions_also)]
        fails = f"Fails {', and '.join(each)}"
    match finding.dimensions_passing:
        case None:
            return f"{fails}."
        case ():
            return f"{fails}; exports with static shapes."
        case passing:
            return f"{fails}; exports when only {_are(passing)}."


def masked_by(finding: Finding) -> str:
    """Which failure comes first and hides this one; empty where none does."""
    return f"Masked by {finding.behind}: does not appear before {finding.behind} is fixed." if finding.behind else ""


def _is_of_given_types(finding: Finding) -> bool:
    return UNSUPPORTED_INPUT in finding.exception.message


def _is_of_returned_types(finding: Finding) -> bool:
    return REFUSED_OUTPUT in finding.exception.message


def only_alone(finding: Finding) -> str:
    """That the part does not meet it, where only a submodule that is exported by itself does, or a module whose
    submodules were replaced; else empty."""
    where = module_name(finding.module)
    if finding.with_stand_ins:
        return f"Seen only with stand-ins for the submodules of {where}: the part exports with shims, and never met it."
    if not finding.only_alone:
        return ""
    if _is_of_given_types(finding):
        return f"Seen only where {where} is exported by itself: inside the part torch does not check what it is given."
    if _is_of_returned_types(finding):
        return f"Seen only where {where} is exported by itself: inside the part torch does not check what it returns."
    return f"Seen only where {where} is exported by itself: the part exports with shims, and never met it."


def _are(names: tuple[str, ...]) -> str:
    quoted = [" or ".join(f"`{one}`" for one in name.split(" or ")) for name in names]
    return f"{quoted[0]} is" if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]} are"


def other_modules(finding: Finding) -> str:
    """In how many more modules the same failure occurs; empty for none."""
    more = len(set(finding.modules) - {finding.module})
    return f"Same failure in {count(more, 'other module')}." if more else ""


def next_step(finding: Finding) -> str:
    """What to do: the workaround of the upstream issue about this code, else what helps with this kind of failure.

    Where numbers differ, the command that finds out where.
    """
    if finding.only_alone and not finding.locate:
        return f"Nothing, for the part. To export {module_name(finding.module)} by itself: {usual_step(finding)}"
    if finding.locate and not known_causes.step(finding):
        return f"{finding.locate} names the node and the line where the numbers begin to differ, if there is one."
    issues = (issue for issue in finding.known_issues if not issue.elsewhere)
    workaround = next((issue.workaround for issue in issues if issue.workaround), "")
    if is_torchscript(finding):
        return TORCHSCRIPT_NEXT
    return workaround.strip() or usual_step(finding)


def known_upstream(finding: Finding) -> str:
    """The upstream issues about this failure, or about the same pattern in other code; empty where none is known."""
    here = [issue for issue in finding.known_issues if not issue.elsewhere]
    links = [
        f"{issue_name(issue.link or issue.id)}{f' ({issue.title})' if issue.title else ''}"
        for issue in here or finding.known_issues
    ]
    fixed = [issue.fixed_in for issue in here if issue.fixed_in]
    remark = f" (fixed: {', '.join(fixed)})" if fixed else "" if here else " (same pattern in other code)"
    return ", ".join(links) + remark if links else ""


def issue_advice(issue: KnownIssueRecord) -> str:
    """What an upstream issue says to do, and where: this code, or the same pattern in other code."""
    where = " (same pattern in other code)" if issue.elsewhere else ""
    return f"{issue_name(issue.link or issue.id)}{where}: {issue.workaround.strip()}"


def repro_line(finding: Finding, run: str = "") -> str:
    """The size and state of its repro script, and the command that prints it; empty where there is none.

    The command names the `run`, which need not be the newest when this is read.
    """
    script = finding.repro
    if script is None:
        return ""
    needs = f"needs only {' and '.join(script.imports)}" if script.imports else "no imports"
    verified = "verified" if script.verified else "not verified"
    command = " ".join(filter(None, ("exportdoctor repro", run, finding.id)))
    return f"{count(script.lines, 'line')}, {needs}, {verified}: {command}"
