"""Translates an exported program into an ONNX file, and turns inputs of the program into inputs of the file.

ONNX has no assertions: those of the program are dropped and counted.
"""

from __future__ import annotations

import functools
import itertools
import logging
import operator
import re
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.protocol.export import ExportedFile, ValueInfo
from exportdoctor.report.wording import capture as wording
from exportdoctor.torch_internals.onnx_library import remember_onnx_library
from exportdoctor.torch_internals.pytree_registry import inputs_in_traced_order
from exportdoctor.torch_internals.trees import leaves_with_paths, path_text, tree_leaves, tree_unflatten
from exportdoctor.worker.describe.trace_slice import user_place
from exportdoctor.worker.translate.onnx_session import OnnxSession

_CHECKS = ("_assert_", "sym_constrain_range", "_check")
_ABOUT_DTYPES = "_assert_tensor_metadata"
_ABOUT_EXPRESSION = re.compile(r"Runtime assertion failed for expression (.+) on node '")
_RENAMED = "_orig"
_INLINE_LIMIT = 2**31 - 2**20
"""A protobuf message ends at 2 GiB; a graph needs some of it."""


@dataclass(frozen=True)
class Translated:
    """What torch.onnx made of a program. `dropped` are the program's assertions that are not in the file."""

    made: Any
    dropped: tuple[str, ...]

    @property
    def lost_writes(self) -> tuple[str, ...]:
        """The buffers and inputs that the program writes into; the file gives back its outputs alone."""
        signature = self.made.exported_program.graph_signature
        return (*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values())


def translate(program: Any, *, opset: int = 0, optimise: bool = True) -> Translated:
    """Translate an exported program, whose graph is changed by it. Raises what torch.onnx raises.

    `opset` 0 is torch's default; `optimise` runs onnxscript's optimizer over the result.
    """
    dropped = drop_assertions(program)
    with quiet(), remember_onnx_library():
        made = torch.onnx.export(program, dynamo=True, verbose=False, opset_version=opset or None, optimize=optimise)
    return Translated(made=made, dropped=dropped)


@functools.cache
def warm_up_translation() -> None:
    """One throwaway translation: what it imports and reads takes seconds, and forks of this process then have it."""
    with suppress(Exception):  # what is missing is told by attempts
        translate(torch.export.export(torch.nn.ReLU(), (torch.zeros(2),)))


def name_values(made: Any, program: Any, axes: Mapping[str, tuple[str, ...]]) -> None:
    """Give outputs the names of eager's outputs, and dynamic sizes of inputs those of the part's axes."""
    graph = made.model.graph
    _restore_input_names(graph, program)
    inputs_by_name = {value.name for value in graph.inputs}
    names = output_names(program)
    if len(names) == len(graph.outputs) == len({id(value) for value in graph.outputs}):
        named = [
            (value, name) for value, name in zip(graph.outputs, names, strict=True) if value.name not in inputs_by_name
        ]
        _name_outputs(graph, named, inputs_by_name)
    inputs = {value.name: value for value in graph.inputs}
    renamed = {str(size): re.sub(r"\W+", "_", axis).strip("_") for axis, size in _sizes(inputs, axes)}
    if not hasattr(made, "rename_axes"):  # as in torch 2.9: its names stay
        return
    made.rename_axes({old: new for old, new in renamed.items() if re.fullmatch(r"s\d+", old)})


def _name_outputs(graph: Any, named: Sequence[tuple[Any, str]], inputs: Set[str]) -> None:
    """Name each of these outputs. One that has an input's name is `present_…` for `past_…`, else `…_output`; other
    values of the graph that have the name of an output get another one."""
    values = {id(value): value for value, _ in named}
    others = {value.name: value for value in _values_below(graph) if value.name and id(value) not in values}
    taken = set(inputs)
    wanted = []
    for value, name in named:
        if name in inputs:
            name = f"present_{name.removeprefix('past_')}" if name.startswith("past_") else f"{name}_output"
        wanted.append((value, _unused_name(name, taken)))
        taken.add(wanted[-1][1])
    unused = {*others, *taken}
    for number, value in enumerate(values.values()):  # two outputs may exchange their names
        value.name = _unused_name(f"output_of_the_graph_{number}", unused)
    for value, name in wanted:
        if (other := others.get(name)) is not None:
            other.name = _unused_name(f"{name}_value", unused)
            unused.add(other.name)
        value.name = name


def _values_below(graph: Any) -> Iterator[Any]:
    """What the graph's inputs, initializers and nodes give, with those of graphs that nodes hold."""
    yield from (*graph.inputs, *graph.initializers.values())
    for node in graph:
        yield from node.outputs
        for attribute in node.attributes.values():
            held = getattr(attribute, "value", None)
            for below in held if isinstance(held, list | tuple) else (held,):
                if hasattr(below, "initializers"):
                    yield from _values_below(below)


def _unused_name(name: str, taken: Container[str]) -> str:
    numbers = itertools.count(2)
    found = name
    while found in taken:
        found = f"{name}_{next(numbers)}"
    return found


def _restore_input_names(graph: Any, program: Any) -> None:
    """Where an input is an output, too, onnxscript's optimizer gives its name to the output, and it another one."""
    specs = [one.arg for one in program.graph_signature.input_specs if one.kind == InputKind.USER_INPUT]
    names = [one.name for one in specs if not isinstance(one, ConstantArgument)]
    if len(names) != len(graph.inputs):
        return
    for value, name in zip(graph.inputs, names, strict=True):
        if value.name == f"{name}{_RENAMED}":
            for other in graph.outputs:
                if other.name == name:
                    other.name = f"{name}_output"
            value.name = name


def _sizes(inputs: Mapping[str, Any], axes: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, Any]]:
    """Each axis with the symbol that the file has for it."""
    for axis, places in axes.items():
        for place in places:
            name, _, dimension = place.rpartition("[")
            value = inputs.get(re.sub(r"\W+", "_", name).strip("_"))
            if value is not None and value.shape is not None and int(dimension[:-1]) < len(value.shape):
                size = value.shape[int(dimension[:-1])]
                if not isinstance(size, int):
                    yield axis, getattr(size, "value", size)


def output_names(program: Any) -> list[str]:
    """Where each tensor, and each size, is in the program's output, as a name: `pooler_output`, `past_key_values_0`."""
    spec = program.call_spec.out_spec
    paths = leaves_with_paths(tree_unflatten(list(range(spec.num_leaves)), spec))
    specs = [one for one in program.graph_signature.output_specs if one.kind == OutputKind.USER_OUTPUT]
    names = [re.sub(r"\W+", "_", path_text(keys)).strip("_") or "output" for keys, _ in paths]
    kept = [name for name, one in zip(names, specs, strict=False) if not isinstance(one.arg, ConstantArgument)]
    return [name if not name.isdigit() else f"output_{name}" for name in kept]


def drop_assertions(program: Any) -> tuple[str, ...]:
    """Remove a program's assertions and what only they need; returns what those about sizes or values say.

    torch.onnx 2.13 removes assertions and leaves what they asserted, such as `_is_all_true`, for which it has no
    translation. Nothing else is removed: a call without users may have an effect, as those that enter and leave vmap.
    """
    dropped = []
    for module in program.graph_module.modules():
        graph = getattr(module, "graph", None)
        if not isinstance(graph, torch.fx.Graph):
            continue
        for node in list(graph.nodes):
            if node.op == "call_function" and not node.users and any(word in str(node.target) for word in _CHECKS):
                if _ABOUT_DTYPES not in str(node.target) and not _always_holds(node):
                    dropped.append(_assertion_text(node))
                _erase(graph, node)
        module.recompile()
    return tuple(dict.fromkeys(dropped))


def _always_holds(node: torch.fx.Node) -> bool:
    """Whether an assertion says of the size of a tensor that it is not negative."""
    said = node.args[0] if node.args else None
    if not isinstance(said, torch.fx.Node) or said.target is not operator.ge or said.args[1] != 0:
        return False
    return getattr(said.args[0], "target", None) is torch.ops.aten.sym_size.int


def _assertion_text(node: torch.fx.Node) -> str:
    """What an assertion says; of one about a value that the program computes, which torch names `u0`, its line, too."""
    said = next((one for one in node.args if isinstance(one, str)), str(node.target))
    found = _ABOUT_EXPRESSION.match(said)
    file, line = user_place(node)
    return wording.assertion(found[1], file, line) if found is not None and file else said


def _erase(graph: Any, node: torch.fx.Node) -> None:
    """Remove a node, and of what it needs whatever nothing else does."""
    left = [node]
    while left:
        one = left.pop()
        needed = one.all_input_nodes
        graph.erase_node(one)
        left += [
            each
            for each in needed
            if not each.users and each.op in ("call_function", "get_attr") and not each.is_impure()
        ]


@contextmanager
def quiet() -> Iterator[None]:
    """Silences torch.onnx's messages about missing libraries and copied names."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def save_model(made: Any, path: Path, *, external_data: bool) -> ExportedFile:
    """Write the file; weights go beside it where they are more than a protobuf message may hold, or on request."""
    made.save(str(path), external_data=external_data or needs_external_data(made))
    return describe_file(path, made.model)


def needs_external_data(made: Any) -> bool:
    """Whether the weights are more than a protobuf message may hold."""
    sizes = [value.const_value.nbytes for value in made.model.graph.initializers.values() if value.const_value]
    return sum(sizes) > _INLINE_LIMIT


def describe_file(path: Path, model: Any) -> ExportedFile:
    """The record of a file of this model. A data file bears the name of the ONNX file."""
    beside = tuple(sorted(one.name for one in path.parent.glob(f"{path.name}.*") if one.is_file()))
    return ExportedFile(
        name=path.name,
        bytes=path.stat().st_size + sum((path.parent / one).stat().st_size for one in beside),
        data=beside,
        inputs=tuple(_input(value) for value in model.graph.inputs),
        outputs=tuple(_input(value) for value in model.graph.outputs),
        nodes=sum(1 for _ in model.graph),
    )


def _input(value: Any) -> ValueInfo:
    shape = tuple(size if isinstance(size, int) else str(size) for size in value.shape or ())
    return ValueInfo(name=value.name, dtype=value.dtype.name.lower() if value.dtype else "", shape=shape)


def convert_opset(path: Path, opset: int, one: ExportedFile) -> tuple[ExportedFile, str]:
    """The file with this opset, by onnx's own converter and as ONNX Runtime loads it; or as it was, and why."""
    import onnx
    from onnx import version_converter

    if one.data:
        return one, "its weights stand in a file of their own"
    try:
        model = onnx.load(str(path))
        _drop_new_defaults(model, opset)
        made = version_converter.convert_version(model, opset)
        onnx.checker.check_model(made)
        OnnxSession(made.SerializeToString())
    except Exception as error:
        return one, first_line(error, 300).rpartition(" failed: ")[2]  # behind the place in onnx's source
    onnx.save(made, str(path))
    return msgspec.structs.replace(one, bytes=path.stat().st_size, nodes=len(made.graph.node)), ""


def _drop_new_defaults(model: Any, opset: int) -> None:
    """Remove attributes that an older opset does not know, where their value is what it means there: the default."""
    from onnx import defs, helper

    known = next((one.version for one in model.opset_import if not one.domain), opset)
    for node in model.graph.node:
        if node.domain or not defs.has(node.op_type):
            continue
        now, then = (defs.get_schema(node.op_type, one, "").attributes for one in (known, min(known, opset)))
        for one in [one for one in node.attribute if one.name in now and one.name not in then]:
            default = now[one.name].default_value
            if default.type and helper.get_attribute_value(default) == helper.get_attribute_value(one):
                node.attribute.remove(one)


def opset_for_dtypes(model: Any) -> int:
    """The lowest opset in which each operator of torch.onnx's model takes the dtypes that it is given; 0 if none."""
    from onnx import defs

    now = int(model.opset_imports.get("", 0))
    for opset in range(now, defs.onnx_opset_version() + 1):
        if all(_takes_dtypes(node, opset) for node in model.graph):
            return opset
    return 0


def _takes_dtypes(node: Any, opset: int) -> bool:
    """Whether an operator takes its inputs' dtypes in an opset; what is not of ONNX itself takes any."""
    from onnx import defs

    if node.domain not in ("", "ai.onnx") or not defs.has(node.op_type):
        return True
    try:
        schema = defs.get_schema(node.op_type, opset, "")
    except defs.SchemaError:
        return False
    for place, value in enumerate(node.inputs):
        formal = schema.inputs[min(place, len(schema.inputs) - 1)] if schema.inputs else None
        if value is None or value.dtype is None or formal is None or not formal.types:
            continue
        if f"tensor({value.dtype.name.lower()})" not in formal.types:
            return False
    return True


def check_model(path: Path) -> None:
    """Raise what onnx's checker raises."""
    import onnx

    onnx.checker.check_model(str(path))


def runnable(program: Any) -> Any:
    """The program as a module that takes its inputs in the traced order, without the guards that torch 2.9 adds."""
    try:
        return program.module(check_guards=False)
    except TypeError:
        return program.module()


def flat_inputs(program: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The program's inputs in the order of the file's: as traced, without what the program holds as constants.

    Complex numbers are pairs of real ones, which is what torch.onnx makes of them.
    """
    leaves = inputs_in_traced_order(program, args, kwargs)
    user = [one for one in program.graph_signature.input_specs if one.kind == InputKind.USER_INPUT]
    if len(user) != len(leaves):
        raise ValueError(f"the program takes {len(user)} inputs, and there are {len(leaves)}")
    taken = [leaf for one, leaf in zip(user, leaves, strict=True) if not isinstance(one.arg, ConstantArgument)]
    return [in_pairs(leaf) for leaf in taken]


def in_pairs(value: Any) -> Any:
    """A tensor of complex numbers as pairs of real ones; anything else as it is."""
    pairs = isinstance(value, torch.Tensor) and value.is_complex()
    return torch.view_as_real(value.resolve_conj()) if pairs else value


def flat_outputs(program: Any, output: Any) -> list[torch.Tensor]:
    """What eager gave as the file gives it: tensors, in pairs if complex, and sizes as tensors, without constants."""
    user = [one for one in program.graph_signature.output_specs if one.kind == OutputKind.USER_OUTPUT]
    leaves = tree_leaves(output)
    pairs = zip(user, leaves, strict=len(user) == len(leaves))
    kept = [torch.as_tensor(leaf).detach() for one, leaf in pairs if not isinstance(one.arg, ConstantArgument)]
    return [in_pairs(leaf) for leaf in kept]
