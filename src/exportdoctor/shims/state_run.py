"""A forward in which what follows from the module's state is followed through each function of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol

from exportdoctor.shims.eager_run import run_copy
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable
from exportdoctor.shims.root_forward import Forward, patch_root_forward
from exportdoctor.torch_internals.fake_tensors import is_fake
from exportdoctor.torch_internals.tracing_modes import outside_all_modes
from exportdoctor.torch_internals.trees import tree_leaves

LARGEST = 2**20
"""Elements of a tensor of the state that is followed, and of what is computed from it."""


class FollowedState(Protocol):
    """What is known of the tensors of one run."""

    read: set[str]
    """The buffers and parameters that were read, or from which what was read was computed."""

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of `func`; where it reads a known value, that value."""


Follow = Callable[[Mapping[str, Any], Mapping[str, Any]], FollowedState]
"""Makes it of the tensors of the state by name, as the run has them and as they are for real."""


@contextmanager
def following_state(call: ExportCall, follow: Follow) -> Iterator[tuple[ExportCall, list[Any]]]:
    """Within it the state is followed in the root's forward; the list has what an eager run of it showed.

    Raises NotApplicable where that run changes what it reads.
    """
    import torch

    root, runs, changed = call.module, list[FollowedState](), set[str]()
    real = {name: one.detach().clone() for name, one in _state_of(root).items() if not is_fake(one) and not one.is_meta}

    def note(known: FollowedState) -> None:
        now = _state_of(root)
        runs.append(known)
        changed.update(name for name in known.read if name not in now or not torch.equal(now[name], real[name]))

    # what was read before eager raised is asserted like everything else
    with torch.no_grad(), suppress(Exception), _patch_forward(root, real, follow, note):
        run_copy(call)
    if changed:
        raise NotApplicable(f"forward changes {', '.join(sorted(changed))}, which Python reads")
    with _patch_forward(root, real, follow):
        yield call, runs


def assert_equal(traced: Any, value: Any, names: Iterable[str]) -> None:
    """The program that is traced asserts that the tensor, which follows from `names`, equals the value."""
    import torch

    sources = " and ".join(sorted(names)) or "constants"
    message = f"a value that follows from {sources} is not that at the export"
    torch.ops.aten._assert_async.msg((traced == value).all(), message)


def tensors_in(values: Any) -> list[Any]:
    """The tensors among the leaves."""
    import torch

    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def memory_of(tensor: Any) -> int:
    """What tells the memory of a tensor from that of others."""
    with outside_all_modes():
        return int(tensor.untyped_storage()._cdata)


def _mode_of(known: FollowedState) -> Any:
    import torch
    from torch.overrides import TorchFunctionMode

    class FollowsState(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if torch.compiler.is_dynamo_compiling():  # a function that torch.cond, say, is given
                return func(*args, **(kwargs or {}))
            return known.call(func, args, kwargs or {})

    return FollowsState()


def _state_of(module: Any) -> dict[str, Any]:
    """The buffers and parameters by name, those that are small enough."""
    named = (*module.named_buffers(remove_duplicate=False), *module.named_parameters(remove_duplicate=False))
    return {name: tensor for name, tensor in named if tensor.numel() <= LARGEST}


def _patch_forward(
    root: Any,
    real: Mapping[str, Any],
    follow: Follow,
    note: Callable[[FollowedState], None] = lambda known: None,
) -> AbstractContextManager[None]:
    """Within it, the state of `root` is followed in its forward; `note` gets what was known at the end of each call."""

    def wrap(forward: Forward) -> Forward:
        def with_known_state(*args: Any, **kwargs: Any) -> Any:
            known = follow({name: one for name, one in _state_of(root).items() if name in real}, real)
            with _mode_of(known):
                try:
                    return forward(*args, **kwargs)
                finally:
                    note(known)

        return with_known_state

    return patch_root_forward(root, wrap)
