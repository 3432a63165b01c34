"""Drafts that need no source of the user's: the torch functions that were called until the failure, one a line.

For a library whose code is made by a template, or refuses fake tensors, and for a draft that would be long: of the
calls only those stay from which what failed was computed. dynamo and a translation call nothing that could be seen:
there an export that is neither strict nor translated is watched, and the calls on the culprit's line come last.
Where torch refuses a fixed size when the forward is over, what fixed it comes last: a call, or what Python asked for.
"""

from __future__ import annotations

import ast
import inspect
import re
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import torch

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.failure.identity import name_free_signature, outermost_operation
from exportdoctor.core.failure.messages import AT_OTHER_SIZES
from exportdoctor.core.protocol.repro import ScriptDraft
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.records.probe import Probe
from exportdoctor.shims import ExportCall, apply_shims, find, order_shims
from exportdoctor.torch_internals.trees import leaves_with_paths, path_text
from exportdoctor.worker.attempt.export_attempt import attempt
from exportdoctor.worker.capture.dim_names import declared_dims, dims_of_submodule, select_dims
from exportdoctor.worker.capture.session import PartCapture, shapes_for
from exportdoctor.worker.repro.call_log import CallLog, read_calls, write_symbolic
from exportdoctor.worker.repro.script.literals import (
    compares_numbers,
    drawn_code,
    export_code,
    plain_code,
    shapes_code,
    tensor_code,
)
from exportdoctor.worker.repro.watched_run import run_in_child

_UNGUARDED = re.compile(r"data-dependent expression (.+?)(?: \(unhinted: (.+?)\)\.?(?:  \(|$)|\.?$)", re.M)
_NAME = re.compile(r"\b[pvx]\d+\b")
_SHORT, _MOST = 25, 300  # lines of a draft
_REDUCIBLE = 14  # lines, which a reduction takes to their end in its time though each needs the one before
_CUTS = (4, 12)  # calls that stay where more would lead to the failure
_PLACES = 4  # calls on one line, the last ones, that may be what failed
_ASKING = {
    "range": "for _ in range({}):\n            pass", "BinOp": "return [0] * ({})", "Subscript": "return [0][:{}]",
}  # fmt: skip
"""Statements in which Python asks for a whole number, by the operation that it does."""
_MADE_BY = "the torch functions that were called until it failed"


_Input = tuple[Any, dict[int | None, Any]]
"""A value, and what is declared for its dynamic dimensions."""


def write_call_drafts(part: PartCapture, probe: Probe, outcome: Outcome) -> Iterator[ScriptDraft]:
    """The drafts; none where the calls are not seen one by one, or too many lead to the failure."""
    stage = outcome.failure.stage if outcome.failure else "export"
    if outcome.failure and outcome.failure.exceptions[0].message.startswith(AT_OTHER_SIZES):
        return  # of which the calls are not logged
    unseen = stage != "export" or EXPORTERS[probe.exporter].traces_with_dynamo
    watched = msgspec.structs.replace(probe, exporter="export", to="export") if unseen else probe
    culprit = outcome.failure.culprit if outcome.failure else None
    line = f"{culprit.file}:{culprit.line}" if culprit else ""
    translates = not EXPORTERS[probe.exporter].makes_program  # and may fail when the trace is over
    suspect = line if translates else ""
    again, facts = run_in_child(probe, lambda out: _attempt_logged(part, watched, out, suspect), read_calls)
    if again.passed and not unseen:
        return
    calls = [fact for fact in facts if fact[0] == "call"]
    wanted = name_free_signature(outcome, exporter=probe.exporter)
    if wanted is not None and "tolist" in wanted.born_by:
        calls = [[*call[:2], _of_list(call[1], calls) or call[2], *call[3:]] for call in calls]
    symbols = {fact[1]: fact[2] for fact in facts if fact[0] == "symbol"}
    with part.prepare():  # it may register classes
        inputs = {**_made_inputs(part, probe), **_inputs(part, probe)}
    values = {fact[1]: (fact[2], fact[3]) for fact in facts if fact[0] == "value"}
    stopped = bool(calls) and (facts[-1][0] == "failed" or again.status.ended_the_process)
    bodies: list[list[str]] = []
    if outcome.failure and outcome.failure.guard:
        guard = outcome.failure.guard
        for before, end in _guard_endings(facts, f"{guard.file}:{guard.line}", outcome.failure.guarded_by):
            bodies += _slices(end, before, values)
    elif unseen or (translates and not stopped):
        places = [place for place, call in enumerate(calls) if call[4] == line][: -_PLACES - 1 : -1]
        for place in places:
            before = calls[:place]
            for end in _endings(calls[place], before, {}, outcome):
                bodies += _slices(end, before, values)
        bodies += [[as_ending(fact[1])] for fact in facts if fact[0] == "suspected"][: -_PLACES - 1 : -1]
    else:
        for end in _endings(calls.pop() if stopped else None, calls, symbols, outcome):
            bodies += _slices(end, calls, values)
        if stopped and facts[-1][1:] > [""]:
            bodies += _slices(as_ending(facts[-1][1]), calls, values)
    # new tensors in place of given ones hide where a value came from: they come first only where much would be left
    for lines in sorted(bodies, key=lambda lines: len(lines) > _SHORT):
        if len(lines) > _MOST:
            continue
        used = set(_NAME.findall("\n".join(lines)))
        given = [(name, *inputs[path], axes) for kind, path, name, axes in (f for f in facts if f[0] == "input")
                 if name in used and path in inputs]  # fmt: skip
        if any(name.startswith("x") for name in used.difference(name for name, *_ in given)):
            continue  # an input that a shim has made, and that is not known here
        yield ScriptDraft(what=_MADE_BY, source=_render(lines, given, probe, outcome))


def _attempt_logged(part: PartCapture, probe: Probe, out: int, suspect: str) -> Outcome:
    module, log = part.module_at(probe.fqn), CallLog(out, suspect)
    module.register_forward_pre_hook(log.enter, with_kwargs=True)
    module.register_forward_hook(log.leave, always_call=True)
    with log.guards():
        return attempt(part, probe)


def _made_inputs(part: PartCapture, probe: Probe) -> dict[str, _Input]:
    """By path the inputs that the probe's shims make of the call's, whose dynamic dimensions are those of the trace."""
    if not probe.shims:
        return {}
    call, module = part.calls_of(probe.fqn)[probe.call], part.module_at(probe.fqn)
    more = part.built.more_inputs if probe.fqn == part.prefix else ()
    plain = ExportCall(
        module=module,
        args=call.args,
        kwargs=call.kwargs,
        dynamic_shapes=shapes_for(part, probe, module),
        more_inputs=tuple(more),
    )
    try:
        shims = order_shims([find(name, axes=part.built.axes) for name in probe.shims])
        with apply_shims(shims, plain) as given:
            made = {name: given.kwargs[name] for name in given.made if name in given.kwargs}
    except Exception:  # the draft is written without them
        traceback.print_exc()
        return {}
    return {path_text(path): (value, {}) for path, value in leaves_with_paths(((), made))}


def _inputs(part: PartCapture, probe: Probe) -> dict[str, _Input]:
    """By path: the value, and what is declared for its dynamic dimensions, where it is more than `Dim.DYNAMIC`.

    A shim may give by name what the call gives in its place: such an input has both paths.
    """
    call, module = part.calls_of(probe.fqn)[probe.call], part.module_at(probe.fqn)
    root = probe.fqn == part.prefix
    every = declared_dims(part.built) if root else dims_of_submodule(part.built, call)
    dims = select_dims(call, every, probe.dynamic)
    found: dict[str, tuple[Any, dict[int | None, Any]]] = {}
    for number, (path, value) in enumerate(leaves_with_paths((call.args, call.kwargs))):
        given = value, {axis: dim for (leaf, axis), dim in dims.items() if leaf == number}
        found[path_text(path)] = given
        for place, name in enumerate(inspect.signature(module.forward).parameters):
            in_place, by_name = f"[0][{place}]", f"[1][{name!r}]"
            if path_text(path).startswith(in_place):
                found[by_name + path_text(path).removeprefix(in_place)] = given
    return found


def _guard_endings(facts: list[list[Any]], line: str, asked_by: str) -> Iterator[tuple[list[Any], str]]:
    """What fixed or compared a size on that line, as a statement that asks as `asked_by`, with the calls before it."""
    calls: dict[str, Any] = {}
    seen = set()
    for fact in facts:
        if fact[0] == "call":
            calls[fact[1]] = fact
        if fact[0] != "guard" or fact[1] != line or tuple(fact) in seen:
            continue
        seen.add(tuple(fact))
        _, _, _, running, how, code = fact
        before = list(calls.values())
        if running in calls:
            before = before[: before.index(calls[running])]
            yield before, calls[running][2] if calls[running][3] else f"return {calls[running][2]}"
        elif not running and how == "bool":
            yield before, f"if {code}:\n            pass"
        elif not running and how:
            yield before, _ASKING.get(asked_by, f"return {how}({{}})").format(code)
        if len(seen) == _PLACES:
            return


def as_ending(code: str) -> str:
    """The last line of a function: a recorded call returns, an assignment to a slice is a statement by itself."""
    try:
        ast.parse(code, mode="eval")
    except SyntaxError:
        return code
    return f"return {code}"


def _endings(last: Any, calls: list[Any], symbols: dict[str, str], outcome: Outcome) -> Iterator[str]:
    """What may have failed: the last call, as a statement, or the question that could not be answered."""
    if last is not None:
        code = str(last[2])
        if code.startswith("bool("):
            asked = code[len("bool(") : -1]
            made = next((str(call[2]) for call in reversed(calls) if call[1] == asked), asked)
            for test in dict.fromkeys((asked, made, f"not {asked}")):
                yield f"if {test}:\n            pass"
        yield code if last[3] else f"return {code}"
        failure = outcome.failure
        asked = outermost_operation(failure.culprit.expression) if failure and failure.culprit else ""
        operand = re.match(r"[pvx]\d+\b", code)  # torch runs Tensor.tolist as other calls, for example
        if asked and operand and hasattr(torch.Tensor, asked):
            yield f"return {operand[0]}.{asked}()"
        return
    messages = [fact.message for fact in outcome.failure.exceptions] if outcome.failure else []
    for found in filter(None, map(_UNGUARDED.search, messages)):
        asked = _first_written((found[1], found[2]), symbols)
        if not asked:
            continue
        yield f"if {asked}:\n            pass"
        yield from (f"return {how}({asked})" for how in ("int", "range", "bool"))
        if rows := re.fullmatch(r"(.+)\.shape\[0\]", asked):
            yield f"return len({rows[1]})"
        listed = re.sub(r"\bv\d+\b", lambda name: _of_list(name[0], calls) or name[0], asked)
        if listed != asked:
            yield f"if {listed}:\n            pass"
            yield from (f"return {how}({listed})" for how in ("int", "range", "bool"))
        return


def _first_written(expressions: Iterable[str | None], symbols: dict[str, str]) -> str:
    """The first of the expressions whose symbols all have names, as code; "" where there is none."""
    for one in filter(None, expressions):
        with suppress(LookupError):
            return write_symbolic(one, symbols)
    return ""


def _of_list(asked: str, calls: list[Any]) -> str:
    """A number that `item()` read from what `unbind(0)` gave, as one of `tolist()`, which torch runs so; or ""."""
    code = {call[1]: str(call[2]) for call in calls}
    read, places = re.fullmatch(r"(\w+)\[(\d+)\]\.item\(\)", code.get(asked, "")), ""
    while read and (rows := re.fullmatch(r"(.+)\.unbind\(0\)", code.get(read[1], ""))):
        places = f"[{read[2]}]{places}"
        read = re.fullmatch(r"(\w+)\[(\d+)\]", rows[1])
        if not read:
            return f"{rows[1]}.tolist(){places}"
    return ""


_Values = dict[str, tuple[int, str]]
"""Of each tensor by name: its memory, and the code of a new one of the same sizes, or ""."""


def _slices(ending: str, calls: list[Any], values: _Values) -> Iterator[list[str]]:
    """The ending after the calls that lead to it; first after the last few of them where they are many."""
    whole = [*_leading_to(ending, calls, values), ending]
    if len(whole) > _REDUCIBLE:
        yield from ([*_leading_to(ending, calls, values, most), ending] for most in _CUTS)
    yield whole


def _leading_to(ending: str, calls: list[Any], values: _Values, most: int = _MOST) -> list[str]:
    """The calls from which the ending's names were computed, as statements; also what was written into them.

    Of more than `most` calls new tensors take the place of what the first ones gave.
    """
    wanted, lines = set(_NAME.findall(ending)), list[str]()
    for _, name, code, changed, _ in reversed(calls):
        memory = values[changed][0] if changed in values else None
        written = changed is not None and any(memory == values[one][0] for one in wanted if one in values)
        if name not in wanted and not written:
            continue
        new = values[name][1] if name in values else ""
        if len(lines) >= most and (new or name not in wanted):
            if name in wanted:
                wanted.discard(name)
                wanted |= {*_NAME.findall(new)}
                lines.append(f"{name} = {new}")
            continue
        wanted |= {*_NAME.findall(code)}
        lines.append(code if written and name not in wanted else f"{name} = {code}")
    return lines[::-1]


_Given = tuple[str, Any, dict[int | None, Any], list[int]]


def _render(lines: list[str], given: list[_Given], probe: Probe, outcome: Outcome) -> str:
    names = ", ".join(["self", *(name for name, *_ in given)])
    drawn = drawn_code(value for _, value, *_ in given) if compares_numbers(outcome) else {}
    codes = (
        drawn.get(id(v)) or (tensor_code(v) if isinstance(v, torch.Tensor) else plain_code(v)) for _, v, *_ in given
    )
    values = "".join(f"{code}, " for code in codes)
    dims: dict[str, str] = {}
    shapes = [shapes_code(_shapes(value, declared, axes), dims) for _, value, declared, axes in given]
    dynamic = f", dynamic_shapes=({', '.join(shapes)},)" if any(one != "None" for one in shapes) else ""
    call = export_code(probe.exporter, "Model()", f"({values})", shapes=dynamic, of=outcome)
    body = "\n        ".join(lines)
    named = "".join(f"{name} = {code}\n" for name, code in dims.items())
    return f"import torch\nclass Model(torch.nn.Module):\n    def forward({names}):\n        {body}\n{named}{call}\n"


def _shapes(value: Any, declared: dict[int | None, Any], axes: list[int]) -> Any:
    if not isinstance(value, torch.Tensor):
        return declared.get(None, torch.export.Dim.DYNAMIC)
    return {axis: declared.get(axis, torch.export.Dim.DYNAMIC) for axis in axes} or None
