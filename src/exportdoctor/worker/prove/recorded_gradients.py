"""What eager gives where gradients are recorded, as they are while torch.export traces, if that is something else.

Modules of torch take another path without gradients: `torch.nn.TransformerEncoder` leaves padded rows zero there. A
program is the path that was traced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.core.records.outcome import Agreement
from exportdoctor.report.wording.export import raises_with_gradients
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import CallResult, copy_inputs, needs_gradients, restore_afterwards, run_calls
from exportdoctor.torch_internals.trees import tree_map
from exportdoctor.worker.prove.compare_outputs import same_outputs
from exportdoctor.worker.prove.input_set import InputSet, says_nothing


def held_to_traced(
    module: torch.nn.Module,
    sets: Sequence[InputSet],
    rows: Sequence[Agreement],
    compare: Callable[[InputSet], list[Agreement]],
) -> list[Agreement]:
    """The rows, with another one for each set on which the program differs and eager answers otherwise with gradients.

    Call it while no shim is active; `compare` compares the program with a set.
    """
    found = list(rows)
    for place, (one, row) in enumerate(zip(sets, rows, strict=True)):
        if (
            not (row.holds or row.refused or row.says_nothing)
            and (again := answered_with_gradients(module, one)) is not None
        ):
            found[place] = compare(again)[0]
    return found


def answered_with_gradients(module: torch.nn.Module, one: InputSet) -> InputSet | None:
    """The set with what eager gives where gradients are recorded; None where that is the same or cannot be had."""
    results = None if needs_gradients(module) else _run_with_gradients(module, one.calls)
    if results is None or all(map(same_outputs, results, one.results)):
        return None
    if not _gives_again(module, one):
        return None  # it is the number of the call that matters, and not the gradients
    results = _run_with_gradients(module, one.calls, notes_state=True)
    if results is None:
        return None
    return replace(one, results=results, disturbed=(), with_gradients=True)


def _gives_again(module: torch.nn.Module, one: InputSet) -> bool:
    """Whether eager still gives what it gave without gradients: state that a hook, say, keeps in a closure is not put
    back between runs."""
    try:
        again = run_calls(module, one.calls)
    except Exception:
        return False
    return all(map(same_outputs, again, one.results))


def fails_with_gradients(
    module: torch.nn.Module, program: torch.nn.Module, convert: Callable[[Inputs], Inputs], example: InputSet
) -> str:
    """That the program raises where gradients are recorded, as they are unless the user says otherwise, and eager does
    not; else empty. Programs are compared without gradients. `convert` makes the program's inputs of eager's."""
    if not any(parameter.requires_grad for parameter in program.parameters()):
        return ""
    nothing = torch.empty(0)

    def call(one: torch.nn.Module, inputs: Inputs, *, keeps: bool = True) -> None:
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda _: nothing, lambda _: nothing)
        with restore_afterwards(one), torch.enable_grad(), nullcontext() if keeps else hooks:
            one(*inputs[0], **inputs[1])

    with suppress(Exception):  # without the memory for a backward pass, which some operators read before that
        call(program, convert(copy_inputs(example.inputs)), keeps=False)
        return ""
    try:
        call(program, convert(copy_inputs(example.inputs)))
    except Exception as error:
        with suppress(Exception):
            call(module, copy_inputs(example.inputs))
            return raises_with_gradients(error)
    return ""


def asks_for_gradients(module: torch.nn.Module, inputs: Inputs) -> bool:
    """Whether eager calls `torch.is_grad_enabled` for these inputs, what switches gradients on and off left out."""
    asked, plain = [], torch.is_grad_enabled

    def answer() -> bool:
        asked.append(sys._getframe(1).f_code.co_filename != torch.autograd.grad_mode.__file__)
        return plain()

    with patch_attribute(torch, "is_grad_enabled", answer), suppress(Exception):
        run_calls(module, [inputs])
    return any(asked)


def _run_with_gradients(
    module: torch.nn.Module, calls: Sequence[Inputs], *, notes_state: bool = False
) -> tuple[CallResult, ...] | None:
    """What eager gives for the calls; None if it refuses one. What a backward pass would need is not kept."""

    nothing = torch.empty(0)

    def call(inputs: Inputs) -> Any:
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda _: nothing, lambda _: nothing):
            output = module(*inputs[0], **inputs[1])
        return tree_map(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, output)

    try:
        results = run_calls(module, calls, how=call, notes_state=notes_state)
    except Exception:  # eager refuses gradients, or an input or a buffer is part of their graph and cannot be copied
        return None
    finally:
        for buffer in module.buffers():
            if not buffer.is_leaf:
                with suppress(RuntimeError):
                    buffer.detach_()
    return None if any(says_nothing(result.output) for result in results) else results
