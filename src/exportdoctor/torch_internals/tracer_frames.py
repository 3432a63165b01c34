"""What frames of torch's tracers hold on the traceback of a failed export: operator, graph, constant."""

from __future__ import annotations

import re
from contextlib import suppress
from types import FrameType
from typing import Any

from exportdoctor.torch_internals.hook import Hook, local_names


def dispatched_op(frame: FrameType) -> tuple[Any, tuple[Any, ...]] | None:
    """The `OpOverload` that this frame of fake or proxy dispatch handles, and its arguments; None for another frame."""
    found, arguments = frame.f_locals.get("func"), frame.f_locals.get("args", ())
    return (found, arguments if isinstance(arguments, tuple) else ()) if is_operator(found) else None


def is_operator(value: object) -> bool:
    """Whether it is an overload of an operator, as `torch.ops.aten.add.Tensor` is."""
    from torch._ops import OpOverload

    return isinstance(value, OpOverload)


def is_operator_family(value: object) -> bool:
    """Whether it is all overloads of an operator, as `torch.ops.aten.add` is."""
    from torch._ops import OpOverloadPacket

    return isinstance(value, OpOverloadPacket)


def _has_dispatch() -> bool:
    from torch._ops import OpOverload, OpOverloadPacket
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode

    modes = (FakeTensorMode, ProxyTorchDispatchMode)
    names = [local_names(mode.__torch_dispatch__) for mode in modes]
    return (
        isinstance(OpOverload, type)
        and isinstance(OpOverloadPacket, type)
        and all({"func", "args"} <= found for found in names)
    )


DISPATCH = Hook(
    id="dispatched-operator",
    api="torch._ops.{OpOverload, OpOverloadPacket}, locals `func` and `args` of FakeTensorMode.__torch_dispatch__ and "
    "ProxyTorchDispatchMode.__torch_dispatch__",
    used_for="the operator that raised, with the shapes of its arguments",
    lost="findings name the last traced operator in place of the one that raised",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_dispatch,
)


def traced_graph(frame: FrameType) -> Any:
    """The `torch.fx.Graph` that this frame's tracer has made so far, or export's last steps work on; else None."""
    artifact = frame.f_locals.get("export_artifact")
    module = getattr(getattr(artifact, "aten", None), "gm", None)
    return _graph_of(frame.f_locals.get("self")) if module is None else module.graph


def _graph_of(value: object) -> Any:
    """The graph of an object of torch's; a proxy of a module may raise where it is asked. What an object of the user's
    answers is no graph that is traced."""
    if not type(value).__module__.startswith("torch."):
        return None
    with suppress(Exception):
        return getattr(value, "graph", None)
    return None


def is_tracer_of(value: object, graph: Any) -> bool:
    """Whether it is the tracer that makes this graph."""
    return _graph_of(value) is graph and hasattr(value, "tensor_tracker")


def node_of(tensor: Any, tracer: Any) -> Any:
    """The node of the graph whose value the tensor is, None for an unknown one.

    A tensor that a transform of functorch wraps is looked up by what is wrapped.
    """
    if tracer is None or not PROXIES.is_supported():
        return None
    from torch import _C, fx
    from torch.fx.experimental.proxy_tensor import get_proxy_slot

    functorch: Any = _C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    node = getattr(getattr(get_proxy_slot(tensor, tracer, None), "proxy", None), "node", None)
    return node if isinstance(node, fx.Node) else None


def _has_proxies() -> bool:
    from torch._C import _functorch
    from torch.fx.experimental.proxy_tensor import PythonKeyTracer, get_proxy_slot

    wrapped = hasattr(_functorch, "is_functorch_wrapped_tensor") and hasattr(_functorch, "get_unwrapped")
    return callable(get_proxy_slot) and wrapped and "tensor_tracker" in PythonKeyTracer.__annotations__


PROXIES = Hook(
    id="proxy-slots",
    api="torch.fx.experimental.proxy_tensor.{get_proxy_slot, PythonKeyTracer.tensor_tracker}, torch._C._functorch",
    used_for="the user's names for the values of a traced graph",
    lost="slices of the graph have torch's names for values, and fewer findings have a slice",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_proxies,
)


def leaked_constant(frame: FrameType) -> tuple[str, Any] | None:
    """The name of the constant that export's last check complains about, and the program (`.gm`, `.sig`) that holds it.

    `torch.export._trace._export_for_training` has both as locals, `const` and `export_artifact`.
    """
    name, artifact = frame.f_locals.get("const"), frame.f_locals.get("export_artifact")
    return (name, artifact.aten) if isinstance(name, str) and artifact is not None else None


def _has_artifact() -> bool:
    from torch.export import _trace

    return {"const", "export_artifact"} <= local_names(_trace._export_for_training)


ARTIFACT = Hook(
    id="export-artifact",
    api="locals `const` and `export_artifact` of torch.export._trace._export_for_training",
    used_for="the operator behind a fake tensor among the constants",
    lost="findings about leaked constants name no operator",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_artifact,
)


def node_at_work(frame: FrameType) -> Any:
    """The node that this frame of torch.onnx or of an interpreter of graphs works on, None for another frame."""
    from torch import fx

    found = None
    for name in ("node", "n"):
        value = frame.f_locals.get(name)
        if isinstance(value, fx.Node) and value.op == "call_function":
            found = value
    return found


def _has_node_at_work() -> bool:
    from torch import fx

    try:
        from torch.onnx._internal.exporter import _core
    except ImportError:  # without the onnx extra there is nothing to look at
        return "n" in local_names(fx.Interpreter.run_node)
    return "n" in local_names(fx.Interpreter.run_node) and "node" in local_names(_core._translate_fx_graph)


NODE_AT_WORK = Hook(
    id="node-at-work",
    api="local `node` of torch.onnx._internal.exporter._core._translate_fx_graph, `n` of torch.fx.Interpreter.run_node",
    used_for="the node, submodule and line of a failed translation to ONNX",
    lost="failures after the export name no node",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_node_at_work,
    imports_onnx=True,
)

_RANGE_LINE = re.compile(r"(.+)\((\d+)\): (.+)")


def symbolic_node(frame: FrameType) -> tuple[str, str, list[tuple[str, int, str]]] | None:
    """The node of a TorchScript graph that this frame of the TorchScript exporter translates; None for another frame.

    Its operator, the path of the submodule that it was traced in, and the stack at that time from the traced module's
    call on, outermost first: file, line and function.
    """
    node: Any = frame.f_locals.get("node")
    if type(node).__name__ != "Node" or not hasattr(node, "sourceRange"):
        return None
    scopes = [scope.partition("::")[2] for scope in node.scopeName().split("/")]
    lines = [*filter(None, map(_RANGE_LINE.fullmatch, reversed(node.sourceRange().splitlines())))]
    start = max((number for number, one in enumerate(lines, 1) if one[1].endswith("torch/jit/_trace.py")), default=0)
    stack = [(one[1], int(one[2]), one[3]) for one in lines[start:]]
    return node.kind(), ".".join(filter(None, scopes)), stack


def _has_symbolic_node() -> bool:
    from torch import _C
    from torch.onnx._internal.torchscript_exporter import utils

    methods = (hasattr(_C.Node, name) for name in ("sourceRange", "scopeName", "kind"))
    return all(methods) and "node" in local_names(utils._run_symbolic_function)


SYMBOLIC_NODE = Hook(
    id="symbolic-node",
    api="local `node` of torch.onnx._internal.torchscript_exporter.utils._run_symbolic_function, torch._C.Node",
    used_for="the line and submodule of an operator that the TorchScript exporter cannot translate",
    lost="such findings name no line",
    seen_on=("2.9.1", "2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_symbolic_node,
    imports_onnx=True,
)

FORWARD_RUNS_IN = "dispatch_trace"
"""The function of torch.fx.experimental.proxy_tensor within which the model's forward runs."""


def _has_dispatch_trace() -> bool:
    from torch.fx.experimental import proxy_tensor

    return hasattr(proxy_tensor, FORWARD_RUNS_IN)


DISPATCH_TRACE = Hook(
    id="dispatch-trace",
    api="torch.fx.experimental.proxy_tensor.dispatch_trace",
    used_for="failures that come out of the model's forward need no second attempt",
    lost="each failing export is attempted twice",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_dispatch_trace,
)

HOOKS = (DISPATCH, PROXIES, ARTIFACT, NODE_AT_WORK, SYMBOLIC_NODE, DISPATCH_TRACE)
