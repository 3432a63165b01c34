"""Fake CUDA tensors in a process that has no CUDA context and wants none, with or without a GPU.

What asks the driver for fake tensors, too: making one opens a context, `torch.tensor(..., device="cuda")` makes a real
one first, code in C++ sets the current device around operations (without a GPU, indexing raises and autograd aborts),
and the tracer computes with constants of one element.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.torch_internals.hook import Hook

_CUDA, _META = 1, 14
"""Their numbers in c10::DeviceType."""
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_STATE_BYTES = 16
"""Of a CUDA generator: its seed and its offset."""
_KEPT: list[Any] = []
"""The kernels below, which hold as long as this does."""


def stand_in_for_cuda() -> None:
    """From now on fake CUDA tensors need no driver in this process. For a forked child alone: it ends with it.

    CUDA's guard is that of meta tensors, which sets nothing; what would be allocated on a GPU lies on the CPU, which is
    where the tracer then computes with constants.
    """
    import torch
    from torch._subclasses import fake_tensor

    patched: Any = fake_tensor
    patched.init_gpu_context = lambda _: None
    patched.FakeTensorMode.avoid_device_init = property(lambda _: True)
    guards = _guards()
    guards[_CUDA] = guards[_META]
    library: Any = torch.library.Library
    allocations = library("aten", "IMPL")
    for name in ("empty_strided", "empty.memory_format"):
        allocations.impl(name, _on_cpu(name), "CUDA")
    _KEPT.append(allocations)


def _on_cpu(name: str) -> Any:
    import torch

    operator, _, overload = name.partition(".")
    allocate = getattr(getattr(torch.ops.aten, operator), overload or "default")
    return lambda *args, **kwargs: allocate(*args, **{**kwargs, "device": "cpu", "pin_memory": False})


def _guards() -> Any:
    """`c10::impl::device_guard_impl_registry`: one pointer for each type of device."""
    import torch

    library = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libc10.so"))
    return (ctypes.c_void_p * (_META + 1)).in_dll(library, _REGISTRY)


def _has_guards() -> bool:
    try:
        return bool(_guards()[_META])
    except OSError:  # no such library: another platform's
        return False


def _can_stand_in() -> bool:
    from torch._subclasses import fake_tensor

    return (
        callable(fake_tensor.init_gpu_context)
        and _has_guards()
        and hasattr(fake_tensor.FakeTensorMode, "avoid_device_init")
    )


FAKE_CUDA = Hook(
    id="fake-cuda",
    api="torch._subclasses.fake_tensor.init_gpu_context, FakeTensorMode.avoid_device_init, "
    "c10::impl::device_guard_impl_registry",
    used_for="exports on fake CUDA tensors without a GPU, and on one without a CUDA context in every attempt",
    lost="--device cuda needs a GPU, and each of its attempts opens a CUDA context",
    seen_on=("2.9.1", "2.13.0", "2.14.1", "2.15.0"),
    is_there=_can_stand_in,
)


@contextmanager
def without_context() -> Iterator[None]:
    """Within it, RuntimeError where this process would open a CUDA context: its forks could not open one then."""
    from torch import _C, cuda

    def refuse() -> None:
        raise RuntimeError("CUDA is not opened in this process: its forks could not use it")

    opened: Any = cuda.is_initialized
    with ExitStack() as stack:
        if not opened():
            stack.enter_context(patch_attribute(cuda, "_lazy_init", refuse))
            if hasattr(_C, "_cuda_init"):  # parts of torch.cuda have that function under a name of their own
                stack.enter_context(patch_attribute(_C, "_cuda_init", refuse))
        yield


def keep_driver_out() -> None:
    """From now on what asks for the state of CUDA starts no driver in this process: without a context there is none.

    transformers asks for each mask whether a CUDA graph is being captured, and torch saves the random state of the GPU
    around each decomposition. A driver that has started works in no fork.
    """
    import torch
    from torch import cuda

    if torch.version.cuda is None or not QUESTIONS.is_supported() or cuda.get_rng_state.__module__ == __name__:
        return
    opened: Any = cuda.is_initialized
    patched: Any = cuda
    is_capturing, get_state, set_state = (
        _graphs()._cuda_isCurrentStreamCapturing,
        cuda.get_rng_state,
        cuda.set_rng_state,
    )

    def get_rng_state(device: Any = "cuda") -> torch.Tensor:
        return get_state(device) if opened() else torch.zeros(_STATE_BYTES, dtype=torch.uint8, device="cpu")

    def set_rng_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
        if opened() or bool(new_state.any()):
            set_state(new_state, device)

    _graphs()._cuda_isCurrentStreamCapturing = lambda: opened() and is_capturing()
    patched.get_rng_state, patched.set_rng_state = get_rng_state, set_rng_state


def _graphs() -> Any:
    from torch.cuda import graphs

    return graphs


def why_lost() -> str:
    """What CUDA says where this process has a context that can no longer be used; empty where it can, or has none."""
    from torch import cuda

    opened: Any = cuda.is_initialized
    try:
        if opened():
            cuda.synchronize()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return ""


def is_shut_by_fork() -> bool:
    """Whether this process can open no context, because the one that it was forked from has asked CUDA."""
    from torch import cuda

    return bool(cuda._is_in_bad_fork())


def _has_questions() -> bool:
    from torch import cuda

    return callable(getattr(_graphs(), "_cuda_isCurrentStreamCapturing", None)) and callable(cuda.get_rng_state)


QUESTIONS = Hook(
    id="cuda-questions",
    api="torch.cuda.graphs._cuda_isCurrentStreamCapturing",
    used_for="keeping the CUDA driver out of the worker whose forks are the attempts",
    lost="where there is a GPU: a forward that asks whether a CUDA graph is being captured leaves attempts unknown",
    seen_on=("2.11.0", "2.13.0"),
    is_there=_has_questions,
)


def _has_lazy_init() -> bool:
    from torch import cuda

    return callable(cuda._lazy_init) and callable(cuda._is_in_bad_fork)


LAZY_INIT = Hook(
    id="cuda-lazy-init",
    api="torch.cuda._lazy_init, torch.cuda._is_in_bad_fork",
    used_for="keeping a CUDA context out of the worker whose forks are the attempts",
    lost="--device cuda: a forward that opens a CUDA context by itself makes attempts fail",
    seen_on=("2.9.1", "2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_lazy_init,
)


def start_autograd_without_threads() -> None:
    """Start autograd in this process with no thread for any card: a fork of one that has such threads cannot use it.

    A fork starts its own, with threads for its cards. A torch that is built for CUDA counts cards for fake tensors also
    where there is none. Nothing is done in a process that has opened CUDA, which may compute gradients on one, and in
    a fork of one that has such threads already.
    """
    import torch

    opened: Any = torch.cuda.is_initialized
    if opened() or not AUTOGRAD_THREADS.is_supported():
        return
    compute: Any = torch.autograd.backward
    guards = _guards()
    kept = guards[_CUDA]
    guards[_CUDA] = guards[_META]
    try:
        with torch.enable_grad(), suppress(RuntimeError):  # it says that this is such a fork
            compute(torch.ones((), device="cpu", requires_grad=True))
    finally:
        guards[_CUDA] = kept


AUTOGRAD_THREADS = Hook(
    id="autograd-threads",
    api="c10::impl::device_guard_impl_registry",
    used_for="attempts of a forward that computes gradients, with a torch that is built for CUDA",
    lost="such a forward fails in each attempt, because its eager forward has started threads that no fork has",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_guards,
)

HOOKS = (FAKE_CUDA, LAZY_INIT, QUESTIONS, AUTOGRAD_THREADS)
