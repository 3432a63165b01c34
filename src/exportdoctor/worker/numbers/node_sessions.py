"""Nodes of an ONNX file in sessions of ONNX Runtime of their own, which equal nodes share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from exportdoctor.report.wording.export import no_dtype
from exportdoctor.worker.numbers.step_graph import GraphStep, UnrunnableStep
from exportdoctor.worker.translate.onnx_session import OnnxSession, element_type

_SMALL = 64
"""Constants of so few elements are written into a node's session: some operators take no others."""


class NodeSessions:
    """Sessions of one node or of several in a row, shared by those that are equal but for the names of values.

    `embedded` are initializers of dtypes that torch does not have, by name: they are part of the sessions.
    """

    def __init__(self, model: Any, embedded: Mapping[str, Any]) -> None:
        self.embedded = embedded
        self._opsets = {one.domain: one.version for one in model.opset_import}
        self._version = model.ir_version
        self._made: dict[tuple[object, ...], OnnxSession] = {}
        self._asked: dict[tuple[object, ...], OnnxSession] = {}
        self._rows: dict[tuple[object, ...], tuple[OnnxSession, dict[str, str]] | None] = {}

    def can_join(self, node: Any) -> bool:
        """Whether a node can stand in one session with those around it."""
        return not _has_graphs(node) and not any(name in self.embedded for name in node.input)

    def run_joined(
        self, steps: Sequence[GraphStep], wanted: Sequence[str], values: Mapping[str, Any]
    ) -> list[torch.Tensor]:
        """The `wanted` outputs of steps in a row. Raises UnrunnableStep if they cannot stand in one session."""
        kinds = tuple(value.dtype if isinstance(value, torch.Tensor) else None for value in values.values())
        asked = (*(id(step.node) for step in steps), *wanted, *kinds)
        if asked not in self._rows:
            self._rows[asked] = self._join([step.node for step in steps], wanted, values) if all(kinds) else None
        known = self._rows[asked]
        if known is None:
            raise UnrunnableStep("these nodes run one by one")
        session, names = known
        return session.run_named({names[name]: value for name, value in values.items()}, copy=False)

    def _join(
        self, nodes: Sequence[Any], wanted: Sequence[str], values: Mapping[str, Any]
    ) -> tuple[OnnxSession, dict[str, str]] | None:
        """The session of nodes in a row, and the names that values have in it; None where there is none."""
        import onnx

        names = {name: f"i{place}" for place, name in enumerate(values)}
        for name in (name for node in nodes for name in node.output if name):
            names[name] = f"v{len(names)}"
        renamed = []
        for node in nodes:
            one = onnx.NodeProto(op_type=node.op_type, domain=node.domain, overload=node.overload)
            one.attribute.extend(node.attribute)
            one.input.extend(names.get(name, "") for name in node.input)
            one.output.extend(names.get(name, "") for name in node.output)
            renamed.append(one)
        key = (
            *(one.SerializeToString(deterministic=True) for one in renamed), *(names[name] for name in wanted),
            *(value.dtype for value in values.values()),
        )  # fmt: skip
        try:
            if key not in self._made:
                taken = {names[name]: value for name, value in values.items()}
                alone = self._model(renamed, taken, [names[name] for name in wanted], [])
                self._made[key] = OnnxSession(alone.SerializeToString(), optimise=False)
            if self._made[key].unknown_output:
                return None
        except Exception:  # such as an operator that takes an input as a constant only
            return None
        return self._made[key], names

    def run(self, node: Any, inputs: Sequence[str], values: Mapping[str, Any]) -> list[torch.Tensor]:
        """The outputs, empty those without a name. Raises UnrunnableStep where the node cannot stand alone."""
        names = {name: name if _has_graphs(node) else f"i{place}" for place, name in enumerate(inputs)}
        try:
            session = self._session(node, names, values)
        except Exception as error:
            raise UnrunnableStep(f"{node.name or node.op_type}: {error}") from error
        if any(not one.startswith("tensor") for one in session.output_types):
            raise UnrunnableStep(f"{node.name or node.op_type} gives what is no tensor")
        if session.unknown_output:
            raise UnrunnableStep(
                f"{node.name or node.op_type} gives what cannot be compared: {no_dtype(session.unknown_output)}"
            )
        given = {names[name]: value for name, value in values.items() if name in names}
        found = iter(session.run_named(given, copy=False))
        return [next(found) if name else torch.empty(0) for name in node.output]

    def _session(self, node: Any, names: Mapping[str, str], values: Mapping[str, Any]) -> OnnxSession:
        asked = (id(node), *(value.dtype for value in values.values()))
        if asked in self._asked:
            return self._asked[asked]
        key = (
            node.domain, node.op_type, node.overload, *(one.SerializeToString() for one in node.attribute),
            *(names.get(name, "") for name in node.input), *map(bool, node.output),
            *((names[name], value.dtype) for name, value in values.items()),
            *(self.embedded[name].SerializeToString() for name in names if name in self.embedded),
        )  # fmt: skip
        if key not in self._made:
            try:
                alone = self.model_of(node, names, values)
                self._made[key] = OnnxSession(alone.SerializeToString(), optimise=False)
            except Exception:  # some operators take some inputs as constants only
                few = {name: value for name, value in values.items() if value.numel() <= _SMALL}
                fixed = self.model_of(node, names, values, fixed=few)
                return OnnxSession(fixed.SerializeToString(), optimise=False)
        self._asked[asked] = self._made[key]
        return self._made[key]

    def model_of(
        self, node: Any, names: Mapping[str, str], values: Mapping[str, Any], fixed: Mapping[str, Any] | None = None
    ) -> Any:
        """A model of this node alone: its inputs renamed, of the dtypes of `values`; constants for those in `fixed`."""
        import onnx

        alone = onnx.NodeProto()
        alone.CopyFrom(node)
        alone.name, alone.doc_string = "", ""
        del alone.metadata_props[:]
        alone.input[:] = [names.get(name, "") for name in node.input]
        alone.output[:] = [f"o{place}" if name else "" for place, name in enumerate(node.output)]
        constants = [_constant(names[name], value) for name, value in (fixed or {}).items()]
        for name in names.keys() & self.embedded.keys():
            one = onnx.TensorProto()
            one.CopyFrom(self.embedded[name])
            one.name = names[name]
            constants.append(one)
        taken = {names[name]: values[name] for name in names if name in values and name not in (fixed or {})}
        return self._model([alone], taken, [name for name in alone.output if name], constants)

    def _model(
        self, nodes: Sequence[Any], taken: Mapping[str, Any], outputs: Sequence[str], constants: Sequence[Any]
    ) -> Any:
        from onnx import helper

        kinds = {name: element_type(value.dtype) for name, value in taken.items()}
        inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()]
        made = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(nodes, "step", inputs, made, initializer=constants)
        opsets = [helper.make_opsetid(domain, version) for domain, version in self._opsets.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=self._version)


def _constant(name: str, value: torch.Tensor) -> Any:
    """The tensor as ONNX writes it; numpy does not have all dtypes."""
    from onnx import helper

    memory = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return helper.make_tensor(name, element_type(value.dtype), list(value.shape), memory, raw=True)


def _has_graphs(node: Any) -> bool:
    """Whether it has subgraphs, which use names of values around it."""
    return any(one.HasField("g") or one.graphs for one in node.attribute)
