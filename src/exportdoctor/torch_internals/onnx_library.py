"""The library of functions that torch's exporter for ONNX translates operators into."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from exportdoctor.core.patch_attribute import patch_attributes
from exportdoctor.torch_internals.hook import Hook

_SIGNATURES: dict[tuple[object, ...], tuple[Any, Any]] = {}
_TREES: dict[int, tuple[Any, Any]] = {}


def remember_onnx_library() -> AbstractContextManager[None]:
    """Within it, what torch reads off the source of each function of the library is kept, and read once a process.

    Each translation reads 500 functions, which takes a second. Functions count by identity, so that one that the target
    registers or replaces is read; which of them belong to which operator is looked up each time, as torch does.
    """
    if not ONNX_LIBRARY.is_supported():
        return nullcontext()
    from onnxscript._internal.values import TracedOnnxFunction
    from torch.onnx._internal.exporter import _schemas

    read_signature: Any = _schemas.op_signature_from_function
    tree: Any = vars(TracedOnnxFunction)["function_ir"]

    def remember_signature(func: Any, *rest: Any, **how: Any) -> Any:
        key = (id(func), rest, *sorted(how.items()))
        if key not in _SIGNATURES:
            _SIGNATURES[key] = (func, read_signature(func, *rest, **how))  # the function is kept, and so its id
        return _SIGNATURES[key][1]

    def remember_tree(self: Any) -> Any:
        if id(self) not in _TREES:
            _TREES[id(self)] = (self, tree.fget(self))
        return _TREES[id(self)][1]

    changes = (
        (_schemas, "op_signature_from_function", remember_signature),
        (TracedOnnxFunction, "function_ir", property(remember_tree)),
    )
    return patch_attributes(changes)


def _has_onnx_library() -> bool:
    try:
        from onnxscript._internal.values import TracedOnnxFunction
        from torch.onnx._internal.exporter import _schemas
    except ImportError:  # without the onnx extra there is nothing to look at
        return True
    return callable(_schemas.op_signature_from_function) and isinstance(
        vars(TracedOnnxFunction).get("function_ir"), property
    )


ONNX_LIBRARY = Hook(
    id="onnx-library",
    api="torch.onnx._internal.exporter._schemas.op_signature_from_function, onnxscript: TracedOnnxFunction.function_ir",
    used_for="translations to ONNX in less time",
    lost="each translation to ONNX takes a second more",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_onnx_library,
    imports_onnx=True,
)

HOOKS = (ONNX_LIBRARY,)
