"""Drafts of a script, from the barest to the fullest: which code goes in, and the call at its end."""

from __future__ import annotations

import ast
import contextlib
import inspect
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from exportdoctor.core.failure.messages import AT_OTHER_SIZES
from exportdoctor.core.protocol.repro import ScriptDraft
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.records.probe import Probe
from exportdoctor.shims.export_call import ExportCall, shapes_by_name
from exportdoctor.shims.torch_export import bundled_keywords
from exportdoctor.targets.training_mode import depends_on_mode
from exportdoctor.torch_internals.trees import tree_leaves, tree_unflatten
from exportdoctor.worker.capture.call_shapes import CallShapes
from exportdoctor.worker.capture.forward_hooks import Call
from exportdoctor.worker.capture.session import PartCapture, shapes_for
from exportdoctor.worker.capture.size_inference import infer_size
from exportdoctor.worker.prove.input_set import sizes_of
from exportdoctor.worker.repro.script.literals import compares_numbers, drawn_code, export_code, shapes_code
from exportdoctor.worker.repro.script.prune import CodeSelection
from exportdoctor.worker.repro.script.recorder import Record
from exportdoctor.worker.repro.script.registrations import write_registrations
from exportdoctor.worker.repro.script.script_builder import ScriptBuilder
from exportdoctor.worker.repro.stand_ins import write_stand_ins
from exportdoctor.worker.repro.torch_calls import write_call_drafts
from exportdoctor.worker.repro.watched_run import run_watched
from exportdoctor.worker.translate.later_stages import other_sizes

_LONG = 40
"""Lines. A longer draft of what ran takes more time to reduce than there is; one of calls has a few from the start."""

_Way = tuple[str, Record | None, bool, bool]


def write_drafts(
    part: PartCapture, probe: Probe, outcome: Outcome, record: Record, notes: list[str]
) -> Iterator[ScriptDraft]:
    """Drafts from the barest to the fullest; one that cannot be written leaves a note."""
    yield from write_stand_ins(outcome, probe.exporter)
    seen: set[str] = set()
    by_calls = _of_calls(part, probe, outcome, notes)  # gives each once
    for what, run, substitute, decorators in _ways(part, probe, record):
        try:
            selection = CodeSelection.of(run, substitute=substitute, decorators=decorators)
            sizes = (False, True) if probe.opaque else (False,)
            drafts = [_write_draft(part, probe, what, selection, outcome, sized=one) for one in sizes]
        except Exception as error:  # another way may do
            notes.append(f"no script of {what}: {type(error).__name__}: {error}")
            traceback.print_exc()
            continue
        for draft in drafts:
            if draft.imports or draft.source.count("\n") > _LONG or run is not record:
                yield from by_calls
            if draft.source not in seen:
                seen.add(draft.source)
                yield draft
    yield from by_calls


def _of_calls(part: PartCapture, probe: Probe, outcome: Outcome, notes: list[str]) -> Iterator[ScriptDraft]:
    try:
        yield from write_call_drafts(part, probe, outcome)
    except Exception as error:
        notes.append(f"no script of the calls: {type(error).__name__}: {error}")
        traceback.print_exc()


def _ways(part: PartCapture, probe: Probe, record: Record) -> Iterator[_Way]:
    """How a draft may be made: its name, what ran, whether calls of known result go, and whether decorators stay."""
    if record.lines:
        yield "what ran until it failed, calls of known result replaced", record, True, False
        yield "what ran until it failed", record, False, False
        yield "what ran until it failed, decorators kept", record, False, True
    _, eager = run_watched(part, probe, exporting=False)  # seconds for a large model, and seldom needed
    both = Record(
        lines=record.lines | eager.lines,
        codes=record.codes | eager.codes,
        methods=record.methods | eager.methods,
        taken={place: record.taken.get(place, set()) | eager.taken.get(place, set())
               for place in record.taken | eager.taken},
    )  # fmt: skip
    yield "what runs in eager", both, False, False
    yield "what runs in eager, decorators kept", both, False, True
    yield "everything", None, False, True


def _write_draft(
    part: PartCapture, probe: Probe, what: str, selection: CodeSelection, outcome: Outcome, *, sized: bool
) -> ScriptDraft:
    """One draft; with `sized` what opaque children return has sizes that follow from their inputs'."""
    module, call = part.module_at(probe.fqn), part.calls_of(probe.fqn)[probe.call]
    script = ScriptBuilder(selection, part.names)
    if probe.opaque:
        script.replace_modules(dict(_child_outputs(script, call, sized=sized)))
        script.notes.append("children return tensors of their captured shapes, because they fail themselves")
    with part.prepare():  # it may register classes
        shapes = shapes_for(part, probe, module)
        known = list(write_registrations(script, (call.args, call.kwargs)))
    instance = _write_instance(script, module, call)
    if isinstance(shapes, dict) and bundled_keywords(inspect.signature(module.forward), call.args, call.kwargs):
        shapes = shapes_by_name(ExportCall(module=module, args=call.args, kwargs=call.kwargs, dynamic_shapes=shapes))
    positional, keywords = _positional(module, call.args, call.kwargs, shapes)
    args, kwargs = (script.value_code(one, known=_code_of_drawn(outcome, one)) for one in (positional, keywords))
    again = None
    if (other := _other_inputs(part, probe, outcome, module, shapes)) is not None:
        again = script.value_code(other[0], known=_code_of_drawn(outcome, other)), script.value_code(other[1])
    dims: dict[str, str] = {}
    dynamic = "" if shapes is None else f", dynamic_shapes={shapes_code(shapes, dims)}"
    ending = [*known, *(f"{name} = {code}" for name, code in dims.items())]
    export_call = export_code(
        probe.exporter, instance, args, kwargs=kwargs if keywords else "", shapes=dynamic, of=outcome, again=again
    )
    ending.append(export_call)
    notes, imports = tuple(dict.fromkeys(script.notes)), tuple(dict.fromkeys(script.imports))
    return ScriptDraft(what=what, source=script.render(ending), notes=notes, imports=imports)


def _code_of_drawn(outcome: Outcome, values: Any) -> dict[int, str]:
    """The code of tensors with values at random, by id, where numbers are compared."""
    return drawn_code(tree_leaves(values)) if compares_numbers(outcome) else {}


def _other_inputs(
    part: PartCapture, probe: Probe, outcome: Outcome, module: nn.Module, shapes: Any
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The positional inputs and the keywords of the size at which an ONNX file differs; None where that is the
    example's."""
    message = outcome.failure.exceptions[0].message if compares_numbers(outcome) and outcome.failure else ""
    if not message.startswith(AT_OTHER_SIZES):
        return None
    built = part.built
    call = ExportCall(
        module=module, args=built.args, kwargs=built.kwargs, dynamic_shapes=shapes, more_inputs=tuple(built.more_inputs)
    )
    sizes = message.removeprefix(AT_OTHER_SIZES).partition(": ")[0]
    found = next((inputs for inputs, _ in other_sizes(call) if sizes_of(inputs) == sizes), None)
    return None if found is None else _positional(module, *found, shapes)


def _write_instance(script: ScriptBuilder, module: nn.Module, call: Call) -> str:
    """The module, in its mode and dtype where they matter, with `**kwargs` as far as the call gives any."""
    keywords = bundled_keywords(inspect.signature(module.forward), call.args, call.kwargs)
    instance = script.module_code(module, keywords=keywords)
    if not module.training and any(depends_on_mode(one) for one in module.modules()):
        instance += ".eval()"
    dtypes = {p.dtype for p in module.parameters() if p.is_floating_point()}
    return f"{instance}.to({dtypes.pop()})" if len(dtypes) == 1 and dtypes != {torch.float32} else instance


def _child_outputs(script: ScriptBuilder, call: Call, *, sized: bool) -> Iterator[tuple[int, str]]:
    """Maps id(child) to the code of what it returned in this call; children without such code are left out."""
    others = call.inner_there if call.inner_there and len(call.inner_there) == len(call.inner) else call.inner
    for child, other in zip(call.inner, others, strict=True):
        if child.refusal or child.layout is None:
            continue
        leaves = [
            torch.empty(given.sizes, dtype=given.dtype, device="meta")
            if isinstance(given.sizes, tuple)
            else given.value
            for given in child.given
        ]
        with contextlib.suppress(LookupError):
            code = script.value_code(tree_unflatten(leaves, child.layout))
            yield child.child, _with_sizes(code, child, other) if sized else code


def _with_sizes(code: str, one: CallShapes, other: CallShapes) -> str:
    """The code of a single tensor with sizes that follow from those of the child's inputs, where they do."""
    tree, given = ast.parse(code, mode="eval").body, (*one.given, *other.given)
    sizes = [leaf.sizes for leaf in given if isinstance(leaf.sizes, tuple)]
    if not isinstance(tree, ast.Call) or len(given) != 2 or {*map(len, sizes)} != {len(tree.args)}:
        return code
    for place, (size, there) in enumerate(zip(*sizes)):
        found = infer_size(size, there, one.taken, other.taken)
        if size != there and found is not None:
            tree.args[place] = ast.parse(found.rules[0].code("(*args, *kwargs.values())"), mode="eval").body
    return ast.unparse(tree)


def _positional(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call with keywords moved to their places, as far as they follow without a gap."""
    if isinstance(shapes, tuple | list):
        return args, kwargs
    rest, moved = dict(kwargs), list(args)
    for parameter in list(inspect.signature(module.forward).parameters.values())[len(args) :]:
        if parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD or parameter.name not in rest:
            break
        moved.append(rest.pop(parameter.name))
    return tuple(moved), rest
