"""Modes and transforms of torch that are left for a moment or watched, settings that a shim changes, global hooks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.torch_internals.hook import Hook


@contextmanager
def outside_all_modes() -> Iterator[None]:
    """Within it, operators run on values as they are: no fake tensors, no tracing, no `__torch_function__`."""
    from torch import _C
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), _C.DisableTorchFunction():
        yield


@contextmanager
def outside_function_modes() -> Iterator[None]:
    """Within it, no `__torch_function__` is called, neither a mode's nor a subclass's."""
    from torch import _C

    with _C.DisableTorchFunction():
        yield


@contextmanager
def outside_export() -> Iterator[None]:
    """As `outside_all_modes`, and with the kernels of eager: an export turns those of oneDNN and NNPACK off."""
    import torch

    backends: Any = torch.backends
    before = backends.mkldnn.set_flags(True), backends.nnpack.set_flags(True)
    try:
        with outside_all_modes():
            yield
    finally:
        backends.mkldnn.set_flags(*before[0])
        backends.nnpack.set_flags(*before[1])


@contextmanager
def outside_modes_but(note: Callable[[Any, Any, Any, Any], None]) -> Iterator[None]:
    """As `outside_all_modes`, where `note(function, args, kwargs, result)` is told of each call of a torch function."""
    from torch import _C
    from torch.overrides import TorchFunctionMode

    class Noting(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with _C.DisableTorchFunction():
                made = func(*args, **(kwargs or {}))
            note(func, args, kwargs or {}, made)
            return made

    with outside_all_modes(), _C._EnableTorchFunction(), Noting():
        yield


def dispatch_mode_class() -> type[Any]:
    """torch's TorchDispatchMode: `__torch_dispatch__` of an instance sees each operator that runs inside."""
    from torch.utils._python_dispatch import TorchDispatchMode

    return TorchDispatchMode


def _has_modes() -> bool:
    from torch import _C
    from torch.utils._python_dispatch import _disable_current_modes

    names = ("DisableTorchFunction", "_EnableTorchFunction")
    return callable(_disable_current_modes) and all(hasattr(_C, name) for name in names)


MODES = Hook(
    id="dispatch-modes",
    api="torch.utils._python_dispatch._disable_current_modes, torch._C.{DisableTorchFunction, _EnableTorchFunction}",
    used_for="shims that compute a known value while torch traces",
    lost="the shims frozen-values, state-as-constants and sizes-from-buffers are not applicable",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_modes,
)


@contextmanager
def outside_function_mode(mode: Any) -> Iterator[None]:
    """Within it `mode`, a TorchFunctionMode or None, is told of nothing if it is the innermost; else it stays."""
    import torch.overrides

    overrides: Any = torch.overrides
    if mode is None or not FUNCTION_MODES.is_supported() or overrides._get_current_function_mode() is not mode:
        yield
        return
    overrides._pop_mode()
    try:
        yield
    finally:
        overrides._push_mode(mode)


def _has_mode_stack() -> bool:
    from torch import overrides

    return all(map(callable, (overrides._get_current_function_mode, overrides._pop_mode, overrides._push_mode)))


FUNCTION_MODES = Hook(
    id="function-modes",
    api="torch.overrides._get_current_function_mode, _pop_mode, _push_mode",
    used_for="captures, which look at the inputs of a call while torch functions are recorded",
    lost="captures take longer",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_mode_stack,
)


@contextmanager
def after_each_refusal(note: Callable[[BaseException], None]) -> Iterator[None]:
    """Within it, `note` is told of each exception that a torch function, or a question about a symbol, raises in an
    export that is not strict."""
    if not REFUSALS.is_supported():
        yield
        return
    from torch._export.non_strict_utils import _NonStrictTorchFunctionHandler
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    def tell_errors(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return plain(*args, **kwargs)
            except BaseException as error:
                note(error)
                raise

        return call

    with ExitStack() as stack:
        for kind, name in ((_NonStrictTorchFunctionHandler, "__torch_function__"), (ShapeEnv, "evaluate_expr")):
            stack.enter_context(patch_attribute(kind, name, tell_errors(getattr(kind, name))))
        yield


def _has_handler() -> bool:
    from torch._export import non_strict_utils
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    handler = getattr(non_strict_utils, "_NonStrictTorchFunctionHandler", None)
    return hasattr(handler, "__torch_function__") and hasattr(ShapeEnv, "evaluate_expr")


REFUSALS = Hook(
    id="refused-calls",
    api="torch._export.non_strict_utils._NonStrictTorchFunctionHandler.__torch_function__, ShapeEnv.evaluate_expr",
    used_for="exceptions that only an export raises, and that the model's own code catches",
    lost="such exceptions are not told",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_handler,
)


def trace_operators(function: Callable[..., Any], tensors: Sequence[Any]) -> Any:
    """A GraphModule with the operators that `function` runs on the tensors, those of backward passes too.

    Call it within an export that is not strict: what traces there sees none of these operators.
    """
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx

    with disable_proxy_modes_tracing(), _without_recorder():
        return make_fx(function, tracing_mode="real", pre_dispatch=False)(*tensors)


@contextmanager
def _without_recorder() -> Iterator[None]:
    """Without the function mode by which an export records calls that are no operators, as those of transforms are."""
    import torch.overrides
    from torch.fx.experimental.proxy_tensor import PreDispatchTorchFunctionMode

    overrides: Any = torch.overrides
    modes = [overrides._pop_mode() for _ in range(overrides._len_torch_function_stack())]
    kept = [mode for mode in reversed(modes) if not isinstance(mode, PreDispatchTorchFunctionMode)]
    try:
        for mode in kept:
            overrides._push_mode(mode)
        yield
    finally:
        for _ in kept:
            overrides._pop_mode()
        for mode in reversed(modes):
            overrides._push_mode(mode)


def _has_make_fx() -> bool:
    from torch import overrides
    from torch.fx.experimental import proxy_tensor

    names = ("make_fx", "disable_proxy_modes_tracing", "PreDispatchTorchFunctionMode")
    stack = ("_pop_mode", "_push_mode", "_len_torch_function_stack")
    return all(hasattr(proxy_tensor, name) for name in names) and all(hasattr(overrides, name) for name in stack)


OPERATOR_TRACES = Hook(
    id="operator-traces",
    api="torch.fx.experimental.proxy_tensor.{make_fx, disable_proxy_modes_tracing, PreDispatchTorchFunctionMode}, "
    "torch.overrides.{_pop_mode, _push_mode, _len_torch_function_stack}",
    used_for="a shim that makes gradients operators of a program",
    lost="the shim gradients-as-operators is not applicable",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_make_fx,
)


def symbolic_shape_settings() -> Any:
    """`torch.fx.experimental._config`."""
    import torch.fx.experimental._config as config

    return config


SETTINGS = Hook(
    id="symbolic-shape-settings",
    api="torch.fx.experimental._config",
    used_for="shims that change a setting for one export",
    lost="shims that change such a setting are not applicable",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=lambda: symbolic_shape_settings() is not None,
)

_HOOK_TABLES = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
)


def has_global_hooks() -> bool:
    """Whether somebody registered a hook on all modules, which sees each call of any."""
    from torch.nn.modules import module

    return any(getattr(module, name, ()) for name in _HOOK_TABLES)


def _has_hook_tables() -> bool:
    from torch.nn.modules import module

    return all(hasattr(module, name) for name in _HOOK_TABLES)


GLOBAL_HOOKS = Hook(
    id="global-hooks",
    api="torch.nn.modules.module.{_global_forward_pre_hooks, _global_forward_hooks, _global_backward_pre_hooks, "
    "_global_backward_hooks}",
    used_for="which attempts may share a process: a hook on all modules may keep what it sees",
    lost="an attempt of a plain layer may see what such a hook kept from another",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_hook_tables,
)


@contextmanager
def without_transforms(tensor: Any) -> Iterator[Any]:
    """Gives what code sees of the tensor, as one that outlives the transforms: of a batch the first example.

    Within it no transform is active. A tensor that is not wrapped is given back as it is.
    """
    if not TRANSFORMS.is_supported():
        yield tensor
        return
    from torch import _C
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    functorch: Any = _C._functorch
    if not functorch.is_functorch_wrapped_tensor(tensor):
        yield tensor
        return
    with temporarily_clear_interpreter_stack():
        while functorch.is_functorch_wrapped_tensor(tensor):
            dim = functorch.maybe_get_bdim(tensor)
            tensor = functorch.get_unwrapped(tensor)
            tensor = tensor.select(dim, 0) if dim >= 0 and tensor.shape[dim] else tensor
        yield tensor


def is_of_transform(tensor: Any) -> bool:
    """Whether a transform of functorch wraps the tensor, which has no values outside of it."""
    if not TRANSFORMS.is_supported():
        return False
    from torch import _C

    functorch: Any = _C._functorch
    return bool(functorch.is_functorch_wrapped_tensor(tensor))


def _has_transforms() -> bool:
    from torch._C import _functorch
    from torch._functorch import pyfunctorch

    names = ("is_functorch_wrapped_tensor", "get_unwrapped", "maybe_get_bdim")
    return hasattr(pyfunctorch, "temporarily_clear_interpreter_stack") and all(hasattr(_functorch, n) for n in names)


TRANSFORMS = Hook(
    id="transforms",
    api="torch._C._functorch, torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack",
    used_for="the inputs of submodules that are called inside torch.vmap and the like",
    lost="such submodules are told as failing, because their inputs are of no use outside",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_transforms,
)

HOOKS = (MODES, FUNCTION_MODES, REFUSALS, OPERATOR_TRACES, SETTINGS, GLOBAL_HOOKS, TRANSFORMS)
