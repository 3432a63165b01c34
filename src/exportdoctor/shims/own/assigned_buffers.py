"""Buffers that forward assigns: what they became is written into them when forward is over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.root_forward import Forward, patch_root_forward
from exportdoctor.shims.state_run import memory_of, tensors_in
from exportdoctor.targets.eager import copy_inputs, restore_afterwards
from exportdoctor.torch_internals.module_proxies import is_same_module
from exportdoctor.torch_internals.trees import tree_leaves, tree_map

Changed = dict[tuple[Any, str], tuple[Any, Any]]
"""Buffers, each as its module and its name, with what it was and what it became."""
_TENSORS_OF_MODULES = frozenset({"_parameters", "_buffers", "_modules"})


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    import torch

    names, seen = {id(child): path for path, child in call.module.named_modules()}, list[int]()

    def check(noted: Changed) -> None:
        changed = {place: pair for place, pair in noted.items() if pair[0] is not pair[1]}
        for (module, name), (before, after) in changed.items():
            if why := _why_another(before, after):
                path = f"{names.get(id(module), '')}.{name}".lstrip(".")
                raise NotApplicable(f"forward assigns {path} {why}")
        if changed and (name := _find_shared(call.module, changed)):
            raise NotApplicable(f"a buffer that forward assigns shares memory with {name}")
        seen.append(len(changed))

    with torch.no_grad(), restore_afterwards(call.module), _patch_forward(call.module, check):
        for _ in range(2):  # the first call may find other memory than those after it
            args, kwargs = copy_inputs((call.args, call.kwargs))
            call.module(*args, **kwargs)
    if not any(seen):
        raise NotApplicable("forward assigns no buffer")
    with _patch_forward(call.module, partial(_write_back, call.module)):
        yield call


def _why_another(before: Any, after: Any) -> str:
    """Why the value cannot be written into the buffer; empty where it can."""
    import torch

    if not isinstance(after, torch.Tensor) or not isinstance(before, torch.Tensor):
        return "something that is no tensor, or was none"
    if any(one.is_nested or one.layout != torch.strided for one in (before, after)) or before.requires_grad:
        return "and it is nested, sparse, or records gradients itself"
    if before.shape != after.shape:
        return f"a tensor of another shape, {tuple(after.shape)} in place of {tuple(before.shape)}"
    if before.dtype != after.dtype or before.device != after.device:
        return f"a tensor of {after.dtype} on {after.device} in place of {before.dtype} on {before.device}"
    return ""


def _find_shared(root: Any, changed: Changed) -> str:
    """What the module holds that shares memory with an assigned buffer, before or after the call; empty for nothing.
    What is written into one of them later is in both."""
    places = {(child, name): one for child in root.modules() for name, one in child._buffers.items() if one is not None}
    rest = [("a parameter", one) for one in root.parameters()]
    for child in root.modules():
        held = {name: value for name, value in vars(child).items() if name not in _TENSORS_OF_MODULES}
        rest += [("a tensor that is no buffer", one) for one in tensors_in(held)]
    for nth in (0, 1):
        state = {**places, **{place: pair[nth] for place, pair in changed.items()}}
        for place, one in ((place, pair[nth]) for place, pair in changed.items()):
            others = [(name, other) for (child, name), other in state.items() if (child, name) != place]
            if found := next((name for name, other in (*others, *rest) if _overlap(one, other)), ""):
                return found
    return ""


def _overlap(one: Any, other: Any) -> bool:
    import torch

    is_plain = all(tensor.layout == torch.strided and not tensor.is_nested for tensor in (one, other))
    if not is_plain or memory_of(one) != memory_of(other):
        return False
    (start, end), (first, last) = _extent(one), _extent(other)
    return start < last and first < end


def _extent(tensor: Any) -> tuple[int, int]:
    """The bytes of its memory from its first element to behind its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.storage_offset() * tensor.itemsize
    return start, start + (last + 1) * tensor.itemsize


def _write_back(root: Any, changed: Changed) -> None:
    """Each buffer is the tensor again that it was, with what it became in it.

    What the root's own are assigned last torch records by itself, and for each it needs an operator that makes it.
    """
    import torch

    values = [after.clone() for _, after in changed.values()]  # one may be what another was
    for ((module, name), (before, _)), value in zip(changed.items(), values, strict=True):
        if is_same_module(module, root):
            torch.nn.Module.__setattr__(module, name, value)  # one of its own has run already
        else:
            before.copy_(value)
            module._buffers[name] = before


def _patch_forward(root: Any, end: Callable[[Changed], None]) -> AbstractContextManager[None]:
    """Within it, `end` gets the buffers that a call of the root's forward assigned. What that returns keeps the values
    that it has before."""
    import torch

    running: list[None] = []

    def wrap(forward: Forward) -> Forward:
        def with_buffers(*args: Any, **kwargs: Any) -> Any:
            if running:  # it calls itself
                return forward(*args, **kwargs)
            first = {(child, name): one for child in root.modules() for name, one in child._buffers.items()}
            noted: set[tuple[Any, str]] = set()
            plain = torch.nn.Module.__setattr__

            def note(child: Any, name: str, value: Any) -> None:
                noted.add((child, name))
                plain(child, name, value)

            running.append(None)
            try:
                with patch_attribute(torch.nn.Module, "__setattr__", note):
                    made = forward(*args, **kwargs)
            finally:
                running.clear()
            now = {place: place[0]._buffers.get(place[1]) for place in first}
            places = [place for place, one in first.items() if now[place] is not one or place in noted]
            made = _without_memory_of([first[place] for place in places], made)
            end({place: (first[place], now[place]) for place in places})
            return made

        return with_buffers

    return patch_root_forward(root, wrap)


def _without_memory_of(buffers: Iterable[Any], made: Any) -> Any:
    """The outputs, each with memory of its own that has that of one of these."""
    import torch

    taken = {memory_of(one) for one in buffers if isinstance(one, torch.Tensor) and one.layout == torch.strided}

    def change(leaf: Any) -> Any:
        is_plain = isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and not leaf.is_nested
        return leaf.clone() if is_plain and memory_of(leaf) in taken else leaf

    return tree_map(change, made) if any(change(leaf) is not leaf for leaf in tree_leaves(made)) else made


SHIM = Shim(
    id="assigned-buffers",
    title="Writes into a buffer what forward assigns to it",
    soundness="exact",
    enter=_enter,
    does=(
        "`self.state = new` gives a module another tensor for its buffer. torch.export records what is written into a "
        "buffer. An assignment in a submodule it loses without a word, so that the program never changes the buffer; "
        "one in the root that gives it an input or another buffer ends the export. When forward is over, each buffer "
        "that it assigned is the tensor again that it was, with the new values in it. Not applicable where the new "
        "tensor has another shape, dtype or device, or where other tensors of the module share memory with it."
    ),
    cures=(
        Cure(kinds=("numbers",), message=r"leaves the buffers? "),
        Cure(message=r"Node copy__default\w* of type call_function is missing nn_module_stack"),
    ),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer",
    retire="torch.export records the assignment of a buffer",
    rank=20,
    conflicts=("strict",),
    replaces=(
        Replacement(
            target="what forward assigns to a buffer",
            before="self.state = new\n",
            after="self.state = new\n...\nbuffer.copy_(self.state)  # when forward is over\nself.state = buffer\n",
        ),
    ),
)
