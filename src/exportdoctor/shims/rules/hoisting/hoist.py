"""What a function computes from whole numbers, weights and the configuration alone becomes an input of the program.

The function is given by the failure; what is hoisted is the outermost call around it whose results are clean, in a
forward on each input set of the export call, or a loop in it as a call of its own. Its results are computed before the
call, by the function itself where all its arguments are inputs or constants, else by running the untouched module up to
there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall, Named, named_inputs
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.code.number_types import symbolic_numbers
from exportdoctor.shims.rules.hoisting.call_stand_in import stand_in
from exportdoctor.shims.rules.hoisting.clean_call_search import find_hoisted_calls
from exportdoctor.shims.rules.hoisting.hoisted_lists import lists_in_torch
from exportdoctor.shims.rules.hoisting.hoisted_results import CONDITION, HoistedCall, facts_of_results
from exportdoctor.shims.rules.hoisting.hoisted_state import compute_unseen, watch_names
from exportdoctor.shims.rules.hoisting.more_inputs import Recorded, is_made_here, taking_more
from exportdoctor.shims.searches import search_once
from exportdoctor.targets.eager import copy_inputs, restore_afterwards, same_values
from exportdoctor.torch_internals.fake_tensors import is_fake
from exportdoctor.torch_internals.trees import tree_map_only

# --- the conversion function


Watch = Callable[[HoistedCall, Callable[[], Any], Any], Any]
"""Gives what a hoisted call computes for its arguments."""


def compute_inputs(
    module: Any, calls: Sequence[HoistedCall], named: Named, *, watch: Watch | None = None
) -> dict[str, Any]:
    """What the hoisted calls give for these inputs of the untouched module, by the names of the program's inputs.

    Raises ValueError where one leaves something behind that the program would not have, unless each goes through
    `watch`.
    """
    import torch

    watch = watch or partial(_refuse_unseen, module)

    found: dict[str, Any] = {}
    with torch.no_grad():
        if all(one.arguments is not None for one in calls):
            with restore_afterwards(module):
                for one in calls:
                    given = copy_inputs(dict(named))
                    call = partial(_call_directly, one, given)
                    found.update(one.as_inputs(watch(one, call, given)))
            return found
        given = {name: value for name, value in named.items() if not is_made_here(name)}
        results = _run_up_to(module, calls, given, watch)
    for one in calls:
        if id(one) not in results:
            raise ValueError(f"{one.function.__qualname__} is not called for these inputs")
        found.update(one.as_inputs(results[id(one)]))
    return found


def _refuse_unseen(module: Any, one: HoistedCall, compute: Callable[[], Any], given: Any) -> Any:
    return compute_unseen(module, one.function, one.unseen, compute, given)


def _call_directly(one: HoistedCall, named: Named) -> Any:
    assert one.arguments is not None
    values = {name: named[source] if isinstance(source, str) else source[0] for name, source in one.arguments.items()}
    args, kwargs = [], {}
    for name, parameter in inspect.signature(one.function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            kwargs.update(values.get(name, {}))
        elif parameter.kind is parameter.VAR_POSITIONAL:
            args += values.get(name, ())
        elif parameter.kind is parameter.KEYWORD_ONLY:
            kwargs[name] = values[name]
        else:
            args.append(values[name])
    return one.function(*args, **kwargs)


def _run_up_to(module: Any, calls: Sequence[HoistedCall], named: Named, watch: Watch) -> dict[int, Any]:
    """The results of the hoisted calls in a forward that ends with the last of them."""
    import torch

    results: dict[int, Any] = {}

    def note(one: HoistedCall, compute: Callable[[], Any]) -> Any:
        result = watch(one, compute, compute.given)  # type: ignore[attr-defined]
        results[id(one)] = tree_map_only(torch.Tensor, torch.clone, result)  # what follows may write into it
        if len(results) == len(calls):
            raise Recorded
        return result

    with stand_in(calls, note), restore_afterwards(module), suppress(Recorded):
        module(**copy_inputs(dict(named)))
    return results


# --- the shim


def _hoist(name: str) -> Any:
    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        found = search_once(f"hoist:{name}", call.module, lambda: find_hoisted_calls(call, name))
        calls, known = _convert_known(call, found)
        has_lists = any("list" in one.leaves for one in calls)
        given: dict[str, Any] = {}

        def answer(one: HoistedCall, compute: Callable[[], Any]) -> Any:
            return one.as_result(given) if given else compute()

        @contextmanager
        def take(made: Named) -> Iterator[None]:
            start()
            given.update(made)
            try:
                with lists_in_torch() if has_lists else nullcontext():
                    yield
            finally:
                given.clear()

        def compute(named: Named) -> dict[str, Any]:
            """What was found just now, if for the very same inputs."""
            found = next((found for one, found in known if _is_same(one, named)), None)
            return compute_inputs(call.module, calls, named) if found is None else found

        changed = call.with_inputs(compute).with_facts(facts_of_results(calls))
        known.clear()  # whoever converts these inputs later may have changed them, or what they were converted to
        with (
            symbolic_numbers(call),
            stand_in(calls, answer) as start,
            taking_more(changed, calls, take) as taking,
        ):
            yield replace(taking, sets=taking.sets.union(*(one.sets for one in calls)))

    return enter


def _convert_known(
    call: ExportCall, calls: Sequence[HoistedCall]
) -> tuple[tuple[HoistedCall, ...], list[tuple[Named, dict[str, Any]]]]:
    """The calls, with what they set for the example in `sets` and not in `unseen`: that the program is compared for.
    And what the conversion gives for each of the known inputs.

    Raises NotApplicable unless that is what the forward was seen to compute.
    """
    sets: dict[int, frozenset[str]] = {}

    def note_sets(one: HoistedCall, compute: Callable[[], Any], given: Any) -> Any:
        result, sets[id(one)] = watch_names(call.module, one.function, one.unseen, compute, given)
        return result

    if call.converts_for is not None:
        calls = [replace(one, unseen=one.unseen - call.converts_for) for one in calls]
    signature, none = inspect.signature(call.module.forward), frozenset[str]()
    example, *others = (named_inputs(signature, one) for one in ((call.args, call.kwargs), *call.more_inputs))
    watch = note_sets if call.converts_for is None else None
    known: list[tuple[Named, dict[str, Any]]] = []
    known.append((example, compute_inputs(call.module, calls, example, watch=watch)))
    found = [(one, sets.get(id(one), none)) for one in calls]
    settled = tuple(replace(one, unseen=one.unseen - names, sets=names) for one, names in found)
    known += [(named, compute_inputs(call.module, settled, named)) for named in others]
    for place, (_, given) in enumerate(known):
        _check_recorded(settled, place, given)
    return settled, known


def _check_recorded(calls: Sequence[HoistedCall], place: int, found: Named) -> None:
    import torch

    for one in (one for one in calls if one.recorded):
        for name, value in one.as_inputs(one.recorded[place]).items():
            if isinstance(value, torch.Tensor) and not (is_fake(value) or same_values(value, found[name])):
                raise NotApplicable(f"{one.function.__qualname__} gives something else by itself than in forward")


def _is_same(one: Named, other: Named) -> bool:
    """Whether both have the very same values under the same names."""
    return one.keys() == other.keys() and all(one[name] is other[name] for name in one)


def of_function(name: str) -> Shim:
    """The shim that hoists what is computed around calls of the function of that qualified name."""
    return replace(
        SHIM,
        id=f"hoist:{name}",
        title=f"Computes what {name} makes of whole numbers or weights outside the model and passes it in",
        enter=_hoist(name),
        rank=25,
    )


SHIM = Shim(
    id="hoist",
    title="Computes what follows from whole numbers or weights alone outside the model and passes it in",
    soundness="signature",
    precondition=CONDITION,
    enter=_hoist(""),
    does=(
        "Grids, lengths, masks, positions and orders that follow from whole-number inputs and the configuration alone "
        "are found by following values through a forward. The outermost calls that read such values and compute from "
        "nothing else are made before the export, and their results become inputs of the program. A loop over such "
        "values in the middle of a function is made a call first. Where there is none, "
        "those are that read such values and compute from weights and no input, such as a table of positions that is "
        "resized to an image's height and width. Inputs for which such a call sets what the rest of forward reads are "
        "refused, unless it does so for the example. `hoist:FUNCTION` "
        "does so for the calls around one function, also where their arguments come from the forward."
    ),
    cures=(
        Cure(
            kinds=(
                "data_dependent_value", "data_dependent_guard", "dynamic_dim_specialised", "unsupported_python",
                "attribute_mutation", "python_error",
            )
        ),
    ),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="torch.export traces loops over the values of inputs",
    rank=18,
    replaces=(
        Replacement(
            target="the inputs of the program",
            before="encoder(hidden_states, grid_thw)\n",
            after=(
                "encoder(\n    hidden_states,\n    grid_thw,\n"
                "    get_window_index__0_0=get_window_index(grid_thw, ...)[0],\n)\n"
            ),
        ),
    ),
)  # fmt: skip
