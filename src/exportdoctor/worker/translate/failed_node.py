"""Where a stage after the export failed: the FX or ONNX node that an exception speaks of, its submodule and its line.

Nodes are taken from the traceback's frames where Python failed, and by name from ONNX Runtime's message where it did.
"""

from __future__ import annotations

import ast
import functools
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from exportdoctor.core.failure.frames import frames_in_text
from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.protocol.export import StageFailure
from exportdoctor.core.records.outcome import Frame, Stage
from exportdoctor.report.wording import export as wording
from exportdoctor.torch_internals.tracer_frames import node_at_work
from exportdoctor.worker.describe.describe_failure import cause_chain, describe_failure, qualified_name
from exportdoctor.worker.describe.python_frames import tracebacks
from exportdoctor.worker.prove.empty_constants import EmptyConstant

_NODE_IN_MESSAGE = (
    r"with name '([^']+)'",
    r"Name:'([^']+)'",
    r"[Nn]ode ?\(([^)]*)\)",
    r"Node:\s*([\w./:-]+)",
    r"node[_ ]name[:=]\s*'?([\w./:-]+)",
)
_LONGEST = 600  # characters of a message
_SCOPES, _CLASSES = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"
_STACK, _FX_NODE = "pkg.torch.onnx.stack_trace", "pkg.torch.onnx.fx_node"


@dataclass(frozen=True, kw_only=True)
class NodeFact:
    """A node of a graph: FX or ONNX; `origin` is the FX node that an ONNX node was made of.

    `takes` are the dtypes of an ONNX node's inputs, `?` where the file does not say one.
    """

    name: str
    op: str
    origin: str = ""
    module: str = ""
    module_class: str = ""
    stack: str = ""
    takes: tuple[str, ...] = ()


def describe_stage_failure(
    stage: Stage, error: BaseException, *, prefix: str = "", model: Path | None = None
) -> StageFailure:
    """What failed and where. `prefix` is the part's place in the whole model, `model` the file that was loaded."""
    chain = tuple(cause_chain(error))
    node = _fx_node(chain)
    fact = fx_fact(node) if node is not None else _onnx_fact(str(error), model)
    innermost = chain[-1]
    said = first_line(innermost, _LONGEST).replace(f"{model.parent}{os.sep}" if model else os.sep + os.sep, "")
    return with_node(StageFailure(stage=stage, exception=qualified_name(type(innermost)), message=said), fact, prefix)


def describe_export_failure(error: BaseException, names: dict[int, str]) -> StageFailure:
    """As `describe_stage_failure`, for the export itself: the line comes from its frames."""
    failure = describe_failure(error, stage="export", names=names)
    culprit, first = failure.culprit, failure.exceptions[0]
    return StageFailure(
        stage="export",
        exception=first.type,
        message=first_line(error, _LONGEST),
        op=failure.op.name if failure.op else "",
        module=failure.deepest_module or "",
        file=culprit.file if culprit else "",
        line=culprit.line if culprit else 0,
        source=culprit.source if culprit else "",
        where=culprit.function if culprit else "",
    )


def describe_empty_constant(found: EmptyConstant) -> str:
    """A constant without values in words, with the line of the node that takes it."""
    fact = fx_fact(found.node) if found.node is not None else None
    frame = user_frame(fact) if fact is not None else None
    return wording.empty_constant(
        found.name,
        of_transform=found.is_of_transform,
        op=fact.op if fact is not None else "",
        at=f"{frame.file}:{frame.line}" if frame is not None else "",
    )


def _fx_node(chain: tuple[BaseException, ...]) -> torch.fx.Node | None:
    """The node that was being translated or run: the innermost on any of the tracebacks."""
    found: torch.fx.Node | None = None
    for error in chain:
        for link in tracebacks(error):
            found = node_at_work(link.tb_frame) or found
    return found


def fx_fact(node: torch.fx.Node) -> NodeFact:
    """A node of an exported program's graph, with the submodule that it came from."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    name, kind = stack[-1] if stack else ("", "")
    called = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
    return NodeFact(
        name=node.name,
        op=_target_name(node.target),
        module=_plain(name),
        module_class=called.rpartition(".")[2],
        stack=node.meta.get("stack_trace") or "",
    )


def _target_name(target: Any) -> str:
    """The name of what a node calls; of Python's own operator on numbers as code writes it."""
    is_pythons = getattr(target, "__module__", "") == "_operator"
    return f"operator.{target.__name__}" if is_pythons else str(target)


def _onnx_fact(message: str, model: Path | None) -> NodeFact | None:
    names = [found[1] for pattern in _NODE_IN_MESSAGE if (found := re.search(pattern, message)) and found[1]]
    if not names or model is None:
        return None
    import onnx

    graph = onnx.load(str(model), load_external_data=False).graph
    for node in graph.node:
        if node.name in names:
            return replace(onnx_fact(node), takes=_dtypes_of(node.input, graph))
    return NodeFact(name=names[0], op="")


def _dtypes_of(names: Iterable[str], graph: Any) -> tuple[str, ...]:
    """The dtypes of values of an ONNX graph (a proto), as it states them."""
    import onnx

    values = (*graph.input, *graph.value_info, *graph.output)
    known = {one.name: one.type.tensor_type.elem_type for one in values}
    known |= {one.name: one.data_type for one in graph.initializer}
    written = onnx.TensorProto.DataType.Name
    return tuple(written(known[name]).lower() if known.get(name) else "?" for name in names if name)


def onnx_fact(node: Any) -> NodeFact:
    """A node of an ONNX graph (a proto), with what torch.onnx noted of its origin."""
    noted = {entry.key: entry.value for entry in node.metadata_props}
    scopes, classes = _parse_list(noted.get(_SCOPES, "")), _parse_list(noted.get(_CLASSES, ""))
    return NodeFact(
        name=node.name,
        op=node.op_type,
        module=_plain(scopes[-2]) if len(scopes) > 1 else "",
        module_class=classes[-2].rpartition(".")[2] if len(classes) > 1 else "",
        stack=noted.get(_STACK, ""),
        origin=noted.get(_FX_NODE, "").removeprefix("%").partition(" ")[0],
    )


@functools.lru_cache(4096)  # the nodes of a submodule have the same
def _parse_list(text: str) -> tuple[str, ...]:
    try:
        value = ast.literal_eval(text) if text else []
    except (ValueError, SyntaxError):
        return ()
    return tuple(str(one) for one in value)


def _plain(name: str) -> str:
    """A module's FQN: export calls the second call of a module `name@1`."""
    return name.partition("@")[0].removeprefix("L['self'].")


def user_frame(fact: NodeFact) -> Frame | None:
    """The innermost line outside torch that asked for a node."""
    return next((one for one in reversed([*frames_in_text(fact.stack)]) if one.user), None)


def with_node(found: StageFailure, fact: NodeFact | None, prefix: str) -> StageFailure:
    """The failure with a node's name, op, submodule and line; as it is without a node."""
    if fact is None:
        return found
    frame = user_frame(fact)
    return msgspec.structs.replace(
        found,
        node=fact.name,
        op=fact.op,
        takes=fact.takes,
        module=".".join(filter(None, (prefix, fact.module))),
        module_class=fact.module_class,
        file=frame.file if frame else "",
        line=frame.line if frame else 0,
        source=frame.source if frame else "",
    )
