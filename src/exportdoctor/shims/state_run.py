"""A forward in which what follows from the module's state is followed through each function of torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol

from exportdoctor.shims.eager_run import run_copy
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable
from exportdoctor.shims.root_forward import Forward, patch_root_forward
from exportdoctor.targets.eager import same_values
from exportdoctor.torch_internals.fake_tensors import is_fake
from exportdoctor.torch_internals.tracing_modes import outside_all_modes
from exportdoctor.torch_internals.trees import tree_leaves

_LONGEST_CONTAINER = 200
"""Entries of a list or a dict in an attribute that is looked into."""

LARGEST = 2**20
"""Elements of a tensor of the state that is followed, and of what is computed from it."""


class FollowedState(Protocol):
    """What is known of the tensors of one run."""

    read: set[str]
    """The tensors of the state that were read, or from which what was read was computed."""

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
    registered = {name for name, _ in _registered_in(root)}
    real = {name: one.detach().clone() for name, one in _state_of(root).items() if not is_fake(one) and not one.is_meta}

    def note(known: FollowedState, before: Mapping[str, Any]) -> None:
        now = _state_of(root)
        runs.append(known)
        for name in known.read:
            # a buffer may be assigned, as the program asserts its value; a plain tensor is a constant of the program
            kept = name in now and (now[name] is before[name] or name in registered)
            if not (kept and same_values(now[name], real[name])):
                changed.add(name)

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
    """The buffers, the parameters and the plain tensors in attributes by name, those that are small enough."""
    every = itertools.chain(_attributes_of(module), _registered_in(module))
    return {name: tensor for name, tensor in every if tensor.numel() <= LARGEST}


def _registered_in(module: Any) -> Iterator[tuple[str, Any]]:
    yield from module.named_buffers(remove_duplicate=False)
    yield from module.named_parameters(remove_duplicate=False)


def _attributes_of(module: Any) -> Iterator[tuple[str, Any]]:
    """The tensors in attributes of the modules that are neither buffers nor parameters, also in lists and dicts."""
    import torch

    for path, part in module.named_modules():
        for name, value in vars(part).items():
            held = value if isinstance(value, torch.Tensor) or _is_short_container(name, value) else None
            for place, leaf in enumerate(tree_leaves(held)):
                plain = type(leaf) in (torch.Tensor, torch.nn.Parameter) and leaf.layout == torch.strided
                if plain and not leaf.is_quantized and not leaf.is_nested:
                    yield ".".join(filter(None, (path, name))) + (f"[{place}]" if leaf is not value else ""), leaf


def _is_short_container(name: str, value: Any) -> bool:
    ours = name in ("_parameters", "_buffers", "_modules") or name.endswith("_hooks")
    return isinstance(value, list | tuple | dict) and not ours and len(value) <= _LONGEST_CONTAINER


def _patch_forward(
    root: Any,
    real: Mapping[str, Any],
    follow: Follow,
    note: Callable[[FollowedState, Mapping[str, Any]], None] = lambda known, before: None,
) -> AbstractContextManager[None]:
    """Within it, the state of `root` is followed in its forward; `note` gets what was known at the end of each call,
    and the state at its start."""

    def wrap(forward: Forward) -> Forward:
        def with_known_state(*args: Any, **kwargs: Any) -> Any:
            before = {name: one for name, one in _state_of(root).items() if name in real}
            known = follow(before, real)
            with _mode_of(known):
                try:
                    return forward(*args, **kwargs)
                finally:
                    note(known, before)

        return with_known_state

    return patch_root_forward(root, wrap)
