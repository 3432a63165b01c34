"""Sentences about an export: what was written, how it compares with eager, and what failed."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from exportdoctor.core.exception_text import summary
from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.protocol.export import (
    ExportedFile,
    ExportRequest,
    ExportResult,
    Precision,
    PrecisionLoss,
    StageFailure,
    ValueInfo,
)
from exportdoctor.core.records.outcome import Agreement, Frame, Outcome
from exportdoctor.core.records.size_domain import SizeDomain
from exportdoctor.core.records.target import TargetRef
from exportdoctor.report.wording.formatting import beside_limit, count, duration, file_size, weights_text
from exportdoctor.report.wording.shim_tries import combined_rows, reasons_of_refusals, refused_sets
from exportdoctor.report.wording.size_domains import IGNORED, axis_rows, boundary_lines

_VERDICTS = {
    "proved": "Verified: {comparisons} with unpatched eager in {engine}.",
    "under_checks": (
        "Matches eager in {comparisons} in {engine}, for inputs that pass what the program asserts, which the file "
        "cannot check."
    ),
    "fixed": (
        "Correct at the sizes of the example alone, which --static fixes: {comparisons} with unpatched eager in "
        "{engine}."
    ),
    "specialised": "Correct on the example, but not on {wrong}.",
    "refuses": "Correct where it answers: matches eager in {comparisons}, but refuses {wrong}, which eager takes.",
    "differs": "Rejected: it runs, but does not do the same as eager. No file of the program was written.",
    "fails": "No file of the program was written.",
}
_STAGES = {
    "export": "torch.export fails",
    "load": "a file of the program cannot be written or loaded",
    "translate": "torch.onnx cannot translate the program",
    "check": "the ONNX checker rejects the file",
    "run": "the file was loaded, but fails when it runs",
    "numbers": "it does not do the same as eager",
}
_SHAPE = re.compile(r"scalar|(?:\d+ x )*\d+(?: and \d+ more)?")
"""As the titles of input sets begin with, one for each tensor."""
_FINITE = 1e300
_MOST_VALUES = 6  # inputs or outputs in a line


class ShimFacts(Protocol):
    """What is said of a shim."""

    @property
    def id(self) -> str: ...
    @property
    def soundness(self) -> str: ...
    @property
    def precondition(self) -> str: ...


def export_headline(request: ExportRequest, result: ExportResult) -> str:
    """Target, part, and what they were built with."""
    facts = [request.target.ref, request.part, weights_text(result.weights), result.dtype, result.device]
    packages = ("torch", "transformers", *(("onnxruntime",) if request.to == "onnx" else ()))
    facts += [f"{name} {result.environment[name]}" for name in packages if name in result.environment]
    return " · ".join(fact for fact in facts if fact)


def export_lines(request: ExportRequest, result: ExportResult, shims: Sequence[ShimFacts]) -> list[str]:
    """Everything but the headline."""
    used = [shim for shim in shims if shim.id in result.shims]
    none = "none needed" if result.files else "none"
    lines = [_fact_line("shims", ", ".join(f"{shim.id} ({shim.soundness})" for shim in used) or none)]
    lines += [_fact_line("", f"{shim.id} is valid only if {shim.precondition}") for shim in used if shim.precondition]
    for one in result.files:
        lines += _file(one, result, titled=len(result.files) < 3)
    rows = list(combined_rows(result.numbers))
    width = max((len(row.inputs) for row in rows), default=0)
    lines += [_row(row, width) for row in rows]
    refused = [row for row in result.numbers if row.made_up and row.refused]
    lines += [
        _fact_line("note", note)
        for note in dict.fromkeys(note for row in rows for note in row.note.split("; ") if note)
    ]
    if refused:
        lines.append(_fact_line("note", refused_sets([row.inputs for row in refused], reasons_of_refusals(refused))))
    if result.precision is not None:
        lines += [f"  {line}" for line in _precision(result.precision)]
    lines += [_fact_line("only if", f"the file does not check: {one}") for one in result.unchecked]
    for domain in result.domains:
        lines += [_fact_line("sizes", f"{name}: {sizes}") for name, sizes in _told_axes(domain)]
        lines += [_fact_line("", line) for line in boundary_lines(domain)]
    lines += [_fact_line("", one) for one in _sizes_notes(result)]
    lines += [_fact_line("note", note) for note in result.notes]
    if result.imports and not shims:
        lines.append(_fact_line("note", f"import {', '.join(result.imports)} before torch.export.load"))
    if result.trouble is not None:
        lines += [f"  {line}" for line in _trouble(result.trouble)]
        if result.trouble.stage in ("export", "translate"):
            to = " --to onnx" if result.trouble.stage == "translate" else ""
            lines.append(f"  To search for shims: exportdoctor scan {request.target.ref} --part {request.part}{to}")
    return [*lines, f"  {_verdict(result)}"]


def _told_axes(domain: SizeDomain) -> list[tuple[str, str]]:
    """The axes that callers may choose, if their sizes were derived; where there are none, those declared fixed."""
    rows = list(zip(domain.axes, axis_rows(domain), strict=True))
    chosen = [(axis, row) for axis, row in rows if not axis.fixed]
    return [row for axis, row in chosen if axis.until] if chosen else [row for _, row in rows]


def _sizes_notes(result: ExportResult) -> Iterator[str]:
    """What the sizes that were told are sizes of."""
    guards = [(one.text, domain) for domain in result.domains for one in domain.conditions if one.kind == "guard"]
    if any(sum(_names_axis(text, name) for name, _ in _told_axes(domain)) > 1 for text, domain in guards):
        yield "each with the others as in the example"
    if guards and result.opset:
        yield "as the exported program checks; the ONNX file has no such checks"


def _names_axis(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(name)}(?![\w\[])", text) is not None


def _fact_line(label: str, text: str) -> str:
    return f"  {label:<8}{text}"


def _file(one: ExportedFile, result: ExportResult, *, titled: bool) -> Iterator[str]:
    opset = f", opset {result.opset}" if result.opset else ""
    data = f", weights in {', '.join(one.data)}" if one.data else ""
    loaded = f", loads in {duration(one.load_seconds)}" if one.load_seconds else ""
    peak = f", {one.peak_mib:.0f} MiB to load and run" if one.peak_mib else ""
    yield _fact_line("file", f"{one.name}, {file_size(one.bytes)}, {one.nodes} nodes{opset}{data}{loaded}{peak}")
    for word, values in (("in", one.inputs), ("out", one.outputs)):
        if titled and values:
            more = f" and {len(values) - _MOST_VALUES} more" if len(values) > _MOST_VALUES else ""
            yield _fact_line(word, f"{', '.join(map(_value, values[:_MOST_VALUES]))}{more}")


def _value(value: ValueInfo) -> str:
    return f"{value.name} {value.dtype}[{', '.join(map(str, value.shape))}]"


def _number(value: float) -> str:
    """A difference; it is huge where one side is not finite."""
    return "not finite" if value > _FINITE else f"{value:.1e}"


def _row(row: Agreement, width: int) -> str:
    lead = f"  {'✓' if row.holds else '✗'} {row.inputs:<{width}}  "
    if row.trouble:
        return lead + row.trouble
    if row.tolerance == 0:  # integers
        return lead + ("same as eager" if row.holds else f"{row.max_abs:.0f} differ")
    largest, allowed = beside_limit(row.max_abs, row.tolerance, of_limit=1)
    largest = largest if 0 < row.max_abs <= _FINITE else _number(row.max_abs)
    return f"{lead}max |Δ| {largest}, relative {_number(row.max_rel)}, tolerance {allowed}"


AGREEMENT_HEADER = ("inputs", "compared with unpatched eager")
"""The columns of a table of comparisons."""


def agreement_cell(row: Agreement) -> str:
    """A comparison with eager, in a cell of a Markdown table."""
    if row.trouble:
        return row.trouble.replace("|", "\\|")
    largest, allowed = f"{row.max_abs:.2g}", f"{row.tolerance:.2g}"
    if largest == allowed:
        largest, allowed = beside_limit(row.max_abs, row.tolerance, of_limit=1)
    return f"largest difference {largest}, relative {row.max_rel:.2g}, tolerance {allowed}"


def numbers_differ(row: Agreement) -> str:
    """What stands for an exception's message where outputs differ from eager."""
    if row.trouble:
        return row.trouble
    if row.max_abs > _FINITE:
        return "an output is finite in eager or in the program only, in some places"
    return "an output differs from eager's by {}, {} is allowed".format(*beside_limit(row.max_abs, row.tolerance))


NO_PROGRAM = "this exporter makes no program that torch.export could run"
NO_VALUES = "fake weights or inputs"


def no_values(on_small_model: str) -> str:
    """The same, and why nothing was compared on the small model either."""
    return f"{NO_VALUES}, and on the small model: {on_small_model}"


DRAWS_IN_PYTHON = (
    "eager draws from the random numbers of Python or NumPy at each call, and an exported program keeps what was drawn "
    "while it was made"
)
RANDOM_EAGER = "eager itself gives other numbers when it is called again"


def random_eager(changed: Sequence[str]) -> str:
    """The same, with the values that are other ones after each call, one of which may be why."""
    if not changed:
        return RANDOM_EAGER
    more = f" and {count(len(changed) - _MOST_NAMES, 'other value')}" if len(changed) > _MOST_NAMES else ""
    return f"{RANDOM_EAGER}, and each call changes {', '.join(changed[:_MOST_NAMES])}{more}"


MOVED_BY_ROUNDING = "rounding alone moves eager's own answer there by no less than the program differs from it"
WIDENED_TO_ROUNDING = (
    "the tolerance is what rounding alone moves eager's own answer by, since that is more than is allowed by the dtype"
)
CHOOSES_AMONG_EQUALS = (
    "where values are equal in eager the program chooses others of them than eager does, which is no error: its "
    "numbers are those that eager gives with the same choice"
)
FIX_CHANCE = (
    "Let the model draw with torch's default generator only, and keep what it changes from call to call in buffers"
)


OTHER_RANDOM_NUMBERS = "eager draws random numbers, and ONNX Runtime draws others"
FIX_RANDOM = "Draw them outside of the model and pass them in, or call eval() on it; --to pt2 draws as eager does"
NAN_OUTPUTS = "eager's outputs are nan throughout, and a wrong program could give the same"
MASKED_OUTPUTS = "every position is masked: what eager ignores was not compared"
NO_OUTPUTS = "eager gives no output and changes nothing, and a wrong program could do the same"
GIVE_OTHER_INPUTS = "Give other inputs with --inputs, for which the forward gives numbers"


def holds_nan(names: Sequence[str]) -> str:
    """What is to be done about outputs that are NaN where the model holds NaN itself."""
    more = f" and {count(len(names) - _MOST_NAMES, 'other value')}" if len(names) > _MOST_NAMES else ""
    return f"The model itself holds NaN, in {', '.join(names[:_MOST_NAMES])}{more}: check its weights"


def masked_positions(number: int) -> str:
    """Noted of outputs that differ at positions that eager ignores."""
    return f"outputs at {count(number, 'masked position')}{IGNORED}"


def some_nan_outputs(number: int) -> str:
    """Said of a comparison in which so many of several outputs show nothing."""
    outputs = "an output" if number == 1 else f"{number} outputs"
    verb = "is" if number == 1 else "are"
    return f"on some inputs {outputs} of eager {verb} nan throughout, which shows nothing"


def left_out_by_chance(titles: Sequence[str], why: str) -> str:
    """Which input sets no program can be held to; `why` is that of the first."""
    shown = "; ".join(titles[:_MOST_SETS])
    more = f" and {count(len(titles) - _MOST_SETS, 'other set')}" if len(titles) > _MOST_SETS else ""
    return f"not compared on inputs {shown}{more}: {why}"


_MOST_SETS = _MOST_NAMES = 3


OTHER_SHAPE, OTHER_DTYPE = ", in another shape", ", in another dtype"
"""Ends what is said of buffers that a call assigns."""


def named_buffers(names: Sequence[str]) -> str:
    """Buffers of a module, the first few by name."""
    return f"{'buffer' if len(names) == 1 else 'buffers'} {_first_few(names)}"


def lost_writes_note(names: Sequence[str]) -> str:
    """Said of a program that translates, and writes into buffers or inputs."""
    return (
        f"it writes into {_first_few(names)}, and its ONNX file does not: that gives back outputs alone. `export --to "
        "onnx` rejects the file where eager changes what is there"
    )


def with_lines(names: Mapping[str, Frame | None]) -> str:
    """Attributes of modules, the first few by name, each with the line that assigns it."""
    return _first_few(
        [f"{name} ({Path(line.file).name}:{line.line})" if line is not None else name for name, line in names.items()]
    )


def _first_few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}"


def empty_constant(name: str, *, of_transform: bool, op: str, at: str) -> str:
    """Why a program cannot run: torch.export has left a tensor of its trace in it."""
    of = "a tensor of torch.func (vmap, grad and the like)" if of_transform else "a fake tensor"
    where = f", which {op} takes" if op else ""
    return f"the program holds {of}, which has no values, as its constant {name}{where}{f' at {at}' if at else ''}"


def unrunnable_program(error: BaseException, keywords: Iterable[str] = ()) -> str:
    """Why a program cannot run: torch cannot make a module of it. `keywords` are the names in it that Python keeps for
    itself."""
    said = (
        f"torch makes no module of the program that it has exported: ExportedProgram.module() raises {summary(error)}"
    )
    named = " and ".join(dict.fromkeys(keywords))
    return f"{said}; a name in it is a keyword of Python: {named}" if named else said


def try_shim(name: str, operator: str) -> str:
    """Said of a shim that computes an operator by others, where a file's values begin to differ there."""
    return f"--shims {name} computes {operator} by other operators: try it"


def left_from_before(path: str) -> str:
    """Said of a file of that name where none was written: the proof beside it is not its own."""
    return f"  note    {path} was there before, and was left as it is; the proof is not of it"


def unloadable_file(why: str) -> str:
    """Said of a program that runs, and not from a file."""
    return f"{_STAGES['load']}: {why.rstrip('.')}"


def raises_with_gradients(error: BaseException) -> str:
    """Said of a program that runs without gradients alone, where eager runs with them too."""
    return f"the program runs under torch.no_grad() only; with gradients it raises {summary(error)}"


def says_unloadable(note: str) -> bool:
    """Whether a note of a proof says that."""
    return _STAGES["load"] in note


def numbers_of_pass_differ(row: Agreement) -> str:
    """What stands for an exception's message where a part exports and its program is wrong."""
    note = f"; {row.note}" if row.note else ""
    inputs = f"inputs of {row.inputs}" if row.inputs[:1].isdigit() else row.inputs or "the example"
    size = "zero" if _has_size_zero(row.inputs) else "one"
    where = f"at a size of {size}, " if row.kind == "size_one_or_zero" else ""
    return f"It exports, and {where}on {inputs}: {numbers_differ(row)}{note}"


def _has_size_zero(title: str) -> bool:
    """Whether a shape has it with which the title of an input set begins; values follow behind."""
    shapes = itertools.takewhile(_SHAPE.fullmatch, title.split(", "))
    return any("0" in shape.split(" and ")[0].split(" x ") for shape in shapes)


def caught_in_export(line: str, said: str, *, others: int) -> str:
    """Said of a program that has what an `except` does, since torch raised what eager does not."""
    more = f" and {count(others, 'other line')}" if others else ""
    return (
        f"at {line}{more} the export raises what eager does not, and the model's own code catches it ({said}): "
        "the program has what runs after that, for all inputs"
    )


def python_extremes(line: str, *, others: int, mixed: str = "") -> str:
    """Said of a program that has torch.maximum, torch.minimum or torch.clamp in place of Python's max or min.

    `mixed` is the first line on which the two have different dtypes.
    """
    more = f" and {count(others, 'other line')}" if others else ""
    return (
        f"at {line}{more} torch.export traces Python's max or min as torch.maximum, torch.minimum or torch.clamp: "
        "where a NaN reaches them, the program may give NaN and eager a number"
        + (
            f"; at {mixed} Python gives one of the two with its dtype, the program one of their common dtype"
            if mixed
            else ""
        )
    )


def nan_in_runtime(names: Sequence[str], runtime: str) -> str:
    """Said of an ONNX file with such operators, which were asked."""
    return f"where a NaN reaches {' or '.join(names)}, {runtime} gives other values than torch on the CPU"


def whole_numbers_in_runtime(names: Sequence[str], bits: int, runtime: str) -> str:
    """Said of an ONNX file with such operators on int64, which were asked."""
    return f"where whole numbers beyond 2**{bits} reach {' or '.join(names)}, {runtime} may give others than torch"


def rounded_fraction(line: str) -> str:
    """Said of an ONNX file that computes a whole number from a fraction."""
    where = f"at {line} " if line else ""
    return (
        f"{where}a whole number is rounded from a fraction, which has 64 bits in Python and 32 in the file: for some "
        "sizes it is another number there"
    )


def text_of_number(line: str, text: str, *, others: int) -> str:
    """Said of a program in whose export the text of a size was read, or of another number that varies."""
    more = f" and {count(others, 'other line')}" if others else ""
    return (
        f"at {line}{more} the model reads the text of a number that varies, which is {text!r} in the export and not "
        "that of any value: where that decides what is computed, the program is not eager's"
    )


def lost_subclass(name: str) -> str:
    """Said of a program that differs, where an input has a class that only eager asks."""
    return f"an input is a {name}, whose __torch_function__ runs in eager and not in the export"


def goes_another_way(line: str, asked: str) -> str:
    """Said of a program that has the way of the export, where eager goes another."""
    return f"at {line} eager goes another way than the export went{f' ({asked})' if asked else ''}"


def makes_text_of_size(line: str, text: str) -> str:
    """Said of a program whose numbers differ, where the model makes the text of a dynamic size."""
    return f"at {line} the text of a size is made, which during export is the name of its symbol ({text})"


def not_compared(outcome: Outcome) -> str:
    """Why the program of a part that passes could not be compared with eager."""
    if outcome.note:
        return outcome.note
    if outcome.status.ended_the_process:
        return f"the process that ran it has ended ({outcome.signal or outcome.status})"
    raised = outcome.failure.exceptions[0] if outcome.failure is not None and outcome.failure.exceptions else None
    return f"{raised.name}: {first_line(raised.message, 200)}" if raised is not None else "nothing could be compared"


def numbers_command(part: str, target: TargetRef | None) -> str:
    """The command that finds where a part's numbers begin to differ; empty for a module of a Python session."""
    if target is None:
        return ""
    named = () if part == "default" else ("--part", part)
    return shlex.join(("exportdoctor", "numbers", target.ref, *named, *target.options.flags))


def _precision(found: Precision) -> Iterator[str]:
    left = f", {found.share:.1e} of the largest value: about {found.digits:g} digits remain" if found.digits else ""
    yield f"{found.dtype} compared with float32, both in eager: max |Δ| {_number(found.max_abs)}{left}"
    if found.overflow is not None:
        yield f"  not finite from {_at(found.overflow)} on"
    for loss in found.losses:
        yield f"  largest loss at {_at(loss)}: error {loss.before:.1e} before, {loss.after:.1e} after"


def _at(loss: PrecisionLoss) -> str:
    return f"{loss.node} ({loss.op}) in {loss.module or 'the part itself'}"


def _trouble(found: StageFailure) -> Iterator[str]:
    yield f"✗ {_STAGES.get(found.stage, found.stage)}: {found.exception.rpartition('.')[2]}: {found.message}"
    if found.node:
        yield f"  at {found.node} ({found.op}), from {_owner(found)}"
    elif found.module:
        yield f"  in {_owner(found)}"
    if found.file:
        where = f" in {found.where}" if found.where else ""
        yield f"  {found.file}:{found.line}{where}"
    if found.source:
        yield f"      {found.source}"
    if found.alone is not None:
        yield f"  smallest submodule that fails in the same way on its own: {found.alone}"
    elif found.asked:
        yield f"  {count(found.asked, 'submodule')} exported separately; none of them fails in the same way"


def _owner(found: StageFailure) -> str:
    kind = f" ({found.module_class})" if found.module_class else ""
    return f"{found.module or 'the part itself'}{kind}"


def _verdict(result: ExportResult) -> str:
    wrong = [row.inputs for row in result.numbers if not row.holds]
    wrong += [inputs for domain in result.domains for inputs in domain.wrong_at]
    kind: str = "under_checks" if result.verdict == "proved" and result.unchecked else result.verdict
    kind = "fixed" if result.fixed else kind
    if kind == "specialised" and all(row.holds or row.refused for row in result.numbers):
        kind = kind if any(domain.wrong_at for domain in result.domains) else "refuses"
    return _VERDICTS[kind].format(
        comparisons=count(sum(not row.refused for row in result.numbers), "comparison"),
        engine=result.ran_in,
        wrong="; ".join(wrong[:3]),
    )


def no_dtype(kind: str) -> str:
    """A type of ONNX's that torch does not have, such as four bits."""
    return f"torch has no dtype for {kind}"


def no_element_type(dtype: str) -> str:
    """A dtype of torch that ONNX does not have."""
    return f"ONNX has no element type for {dtype}"
