"""An exported program as steps, and which of its values are another program's."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.fx.node import map_arg

from exportdoctor.torch_internals.tracer_frames import is_operator
from exportdoctor.torch_internals.trees import tree_map
from exportdoctor.worker.numbers.eager_stream import OpPlace, PlacedValue, op_name
from exportdoctor.worker.numbers.step_graph import Effect, GraphStep, StepGraph, to_float64
from exportdoctor.worker.numbers.value_gap import axis_of_choice
from exportdoctor.worker.translate.failed_node import fx_fact, user_frame


def program_steps(program: Any, state: Mapping[str, torch.Tensor]) -> StepGraph:
    """The steps of a program. `state` are buffers by FQN as earlier calls left them."""
    constants: dict[str, Any] = {}
    weights: dict[str, str] = {}
    inputs: list[str] = []
    known = {**program.constants, **program.state_dict, **state}
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            inputs.append(spec.arg.name if not isinstance(spec.arg, ConstantArgument) else "")
        elif spec.target in known:
            value = known[spec.target]
            keeps = spec.kind == InputKind.PARAMETER or not isinstance(value, torch.Tensor)
            constants[spec.arg.name] = value if keeps else value.detach().clone()  # a program may change its buffers
            weights[spec.target] = spec.arg.name
    steps = []
    for node in program.graph.nodes:
        if node.op == "get_attr":
            constants[node.name] = operator.attrgetter(node.target)(program.graph_module)
        elif node.op == "call_function":
            steps.append(_step(node))
    user = [one for one in program.graph_signature.output_specs if one.kind == OutputKind.USER_OUTPUT]
    outputs = [getattr(one.arg, "name", "") for one in user if not isinstance(one.arg, ConstantArgument)]
    return StepGraph(
        steps=steps, constants=constants, inputs=tuple(inputs), outputs=tuple(filter(None, outputs)), weights=weights
    )


def _step(node: torch.fx.Node) -> GraphStep:
    args, kwargs = node.args, node.kwargs  # a translation changes the graph later

    def call(values: Mapping[str, Any], change: Callable[[Any], Any] | None = None) -> Any:
        given = map_arg((args, kwargs), lambda one: values[one.name])
        given_args, given_kwargs = tree_map(change, given) if change else given
        return node.target(*given_args, **given_kwargs)  # type: ignore[operator]

    return GraphStep(
        name=node.name,
        op=str(node.target),
        inputs=tuple(one.name for one in node.all_input_nodes),
        outputs=(node.name,),
        run=lambda values: (call(values),),
        fact=lambda: fx_fact(node),
        run_in_float64=lambda values: call(values, _high),
        effect=_effect(node),
        axis=axis_of_choice(str(node.target), args, kwargs),
    )


def _high(value: Any) -> Any:
    floats = (torch.float32, torch.float16, torch.bfloat16)
    return torch.float64 if isinstance(value, torch.dtype) and value in floats else to_float64(value)


def _effect(node: torch.fx.Node) -> Effect:
    target: Any = node.target
    if target is operator.getitem and isinstance(node.args[0], torch.fx.Node):
        return "view" if _effect(node.args[0]) == "view" else "new"
    if not is_operator(target):
        return "new"
    if torch.Tag.nondeterministic_seeded in target.tags and not _is_off(node):
        return "random"
    aliases = [one.alias_info for one in target._schema.arguments if one.alias_info is not None]
    if any(one.is_write for one in aliases):
        return "inplace"
    return "view" if aliases else "new"


def _is_off(node: torch.fx.Node) -> bool:
    """Whether it is a dropout that drops nothing."""
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    given = {one.name: one.default_value for one in arguments if one.has_default_value()}
    given.update(zip((one.name for one in arguments), node.args))
    given.update(node.kwargs)
    return given.get("train") is False or given.get("training") is False or given.get("dropout_p") == 0


def match_programs(first: Any, second: Any) -> dict[str, str]:
    """For values of a program the name in the program that was decomposed from it: the last one of the same origin.

    Of an operator with several results that became other operators a result is left out if several values could be it.
    """
    made: defaultdict[str, list[torch.fx.Node]] = defaultdict(list)
    for node in second.graph.nodes:
        sources = node.meta.get("from_node") or ()
        if node.op == "call_function" and sources:
            made[sources[-1].name].append(node)
    found: dict[str, str] = {}
    for node in first.graph.nodes:
        if node.op != "call_function":
            continue
        source = node.args[0] if node.target is operator.getitem else None
        several = made[node.name] or (made[source.name] if isinstance(source, torch.fx.Node) else [])
        fits = [one for one in several if _kind(one) is not None and _kind(one) == _kind(node)]
        if isinstance(source, torch.fx.Node) and not made[node.name]:
            whole = [
                one for one in fits if one.target is operator.getitem and _stands_for(one.args[0], source, several)
            ]
            fits = [one for one in whole if one.args[1] == node.args[1]] or (fits if len(fits) == 1 else [])
        if fits:
            found[node.name] = fits[-1].name
    return found


def _stands_for(other: Any, source: torch.fx.Node, several: Sequence[torch.fx.Node]) -> bool:
    """Whether an operator with several results has those of `source`: it is the same, or all that came of it."""
    if other.target is source.target:
        return True
    return all(one is other or (one.target is operator.getitem and one.args[0] is other) for one in several)


def _kind(node: torch.fx.Node) -> tuple[Any, int] | None:
    value = node.meta.get("val")
    return (value.dtype, value.dim()) if isinstance(value, torch.Tensor) else None


def names_by_place(program: Any) -> dict[OpPlace, list[PlacedValue]]:
    """For each place of the user's code the values that the program makes there, in order."""
    found: defaultdict[OpPlace, list[PlacedValue]] = defaultdict(list)
    for node in program.graph.nodes:
        if node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor):
            fact = fx_fact(node)
            frame = user_frame(fact)
            place = (fact.module, frame.file, frame.line) if frame else (fact.module, "", 0)
            source = node.args[0] if node.target is operator.getitem else None
            op = op_name(node.target) if source is None else f"{op_name(source.target)}[{node.args[1]}]"
            value = node.meta["val"]
            sizes = tuple(size if isinstance(size, int) else None for size in value.shape)
            found[place].append(PlacedValue(op=op, name=node.name, dtype=value.dtype, sizes=sizes))
    return dict(found)
