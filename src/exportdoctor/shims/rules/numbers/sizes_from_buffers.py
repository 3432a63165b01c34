"""Numbers that Python or torch reads from tensors which follow from whole numbers in buffers and from sizes.

A kernel's size and stride are often buffers of one element, with which forward computes lengths. Each such tensor is
computed twice: traced as ever, and as an exact ratio of sizes (`ratios.py`). What reads it gets the ratio's number,
and the program asserts that the traced one equals it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.known_tensors import writes_to_first
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.numbers.number_calls import INT, reading_frame, symbolic_int
from exportdoctor.shims.rules.numbers.ratios import Ratio, compute, truncate
from exportdoctor.shims.rules.numbers.tensor_sizes import replace_sizes
from exportdoctor.shims.state_run import assert_equal, following_state, memory_of, tensors_in
from exportdoctor.torch_internals.fake_tensors import is_fake

_CASTS = frozenset({
    "to", "type", "long", "int", "short", "float", "double", "half", "bfloat16", "clone", "detach", "contiguous",
    "cpu", "squeeze", "reshape", "flatten",
})  # fmt: skip
"""They give the same number, but for what a whole-number dtype cuts off."""


class KnownNumbers:
    """The exact numbers in tensors of one element of a run, by the tensor's id, with the buffers from which they
    follow."""

    def __init__(self, state: Mapping[str, Any], real: Mapping[str, Any]) -> None:
        self._known: dict[int, tuple[Any, Any, frozenset[str]]] = {}
        for name, tensor in state.items():
            if _is_whole(tensor):
                self._known[id(tensor)] = (tensor, Ratio(int(real[name].item())), frozenset([name]))
        self._mixed: set[int] = set()
        self.read: set[str] = set()
        self.reads_sizes = False
        """Whether something was read that was computed from a buffer and a number of Python."""
        self.namespaces: list[dict[str, Any]] = []
        """Of the modules that call `int` on a known tensor."""

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of `func`; where it reads a known number, that number."""
        name = getattr(func, "__name__", "")
        if len(args) == 1 and id(args[0]) in self._known:
            value = self._as_read(name, args[0], reading_frame(sys._getframe(1)))
            if value is not None:
                return self._tell(args[0], value)
        if self._known:
            args, kwargs = replace_sizes(func, args, kwargs, self._size, pads=True)
        made = func(*args, **kwargs)
        if writes_to_first(func) or "out" in kwargs:
            self._forget(tensors_in((args[:1], kwargs.get("out"))))
        elif self._known:
            self._note(name, args, kwargs, made)
        return made

    def _as_read(self, name: str, tensor: Any, frame: FrameType | None) -> Any:
        """What that method of the tensor gives Python; None where it is not known, or would fix a size."""
        import torch

        _, value, _ = self._known[id(tensor)]
        if not isinstance(value, Ratio):
            return bool(value) if name in {"__bool__", "item"} else None
        if name == "__bool__":
            return bool(value.top != 0)
        whole_read = frame is not None and frame.f_code is INT
        if name == "__int__" and frame is not None:
            self.namespaces.append(frame.f_globals)
        if name == "__int__" or whole_read:
            whole = truncate(value).top
            return whole if isinstance(whole, int) or whole_read else None
        if name == "item" and value.bottom == 1:
            return torch.sym_float(value.top) if tensor.is_floating_point() else value.top
        return value.top if name == "__index__" and value.bottom == 1 and isinstance(value.top, int) else None

    def _size(self, size: Any) -> Any:
        """The number where the tensor is known."""
        known = self._known.get(id(size))
        if known is None or size.is_floating_point() or not isinstance(known[1], Ratio):
            return size
        return self._tell(size, known[1].top)

    def _tell(self, tensor: Any, value: Any) -> Any:
        """The value, which the program asserts."""
        import torch

        names = self._known[id(tensor)][2]
        self.read |= names
        self.reads_sizes |= id(tensor) in self._mixed
        if is_fake(tensor):
            # in the kind of what is read: the tensor's own dtype would round the value
            of_condition, of_float = isinstance(value, bool), isinstance(value, float | torch.SymFloat)
            read = tensor.bool() if of_condition else tensor.double() if of_float else tensor.long()
            assert_equal(read, value, names)
        return value

    def _note(self, name: str, args: Any, kwargs: Any, made: Any) -> None:
        """Compute exactly what follows from known numbers and sizes alone."""
        import torch

        if not isinstance(made, torch.Tensor) or not _is_one(made) or id(made) in self._known:
            return
        tensors = tensors_in((args, kwargs))
        if not tensors or not all(id(tensor) in self._known for tensor in tensors):
            return
        value = self._number(args[0]) if name in _CASTS else compute(name, *self._exact(args, kwargs))
        if isinstance(value, Ratio):
            if made.dtype == torch.bool:
                return
            value = value if made.is_floating_point() else truncate(value)
        elif value is None or made.dtype != torch.bool:
            return
        names = frozenset().union(*(self._known[id(tensor)][2] for tensor in tensors))
        self._known[id(made)] = (made, value, names)
        with_numbers = len(tensors) < len(args) and name not in _CASTS
        if with_numbers or any(id(tensor) in self._mixed for tensor in tensors):
            self._mixed.add(id(made))

    def _exact(self, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(map(self._number, args)), {name: self._number(value) for name, value in kwargs.items()}

    def _number(self, value: Any) -> Any:
        return self._known[id(value)][1] if id(value) in self._known else value

    def _forget(self, written: list[Any]) -> None:
        """What shares memory with a tensor that is written to is not known any more."""
        memory = {memory_of(one) for one in written}
        self._known = {key: known for key, known in self._known.items() if memory_of(known[0]) not in memory}


def _is_whole(tensor: Any) -> bool:
    import torch

    return _is_one(tensor) and tensor.dtype in (torch.int64, torch.int32, torch.int16)


def _is_one(tensor: Any) -> bool:
    """Whether it has one element, without a guard on a symbolic size."""
    return all(type(size) is int and size == 1 for size in tensor.shape[:2]) and tensor.dim() <= 1


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    with following_state(call, KnownNumbers) as (changed, runs):
        if not any(known.reads_sizes for known in runs):
            raise NotApplicable("no number is read that follows from whole numbers in buffers and from other numbers")
        with symbolic_int(namespace for known in runs for namespace in known.namespaces):
            yield changed


SHIM = Shim(
    id="sizes-from-buffers",
    title="Computes lengths from whole numbers in buffers and from sizes without tensors",
    soundness="precondition",
    enter=_enter,
    does=(
        "Where a kernel's size or stride is a buffer of one element, lengths that forward computes with it are "
        "tensors, which Python and torch read as data. Each is also computed exactly, from the buffers' values at the "
        "export and from sizes, and what reads it gets that number, which may be symbolic. The program asserts that "
        "its tensor is the same."
    ),
    precondition=(
        "buffers of whole numbers keep their values, and lengths are small enough that torch's float arithmetic rounds "
        "them as exact arithmetic does; the program refuses others"
    ),
    cures=(Cure(kinds=("data_dependent_value", "data_dependent_guard"), operator=r"\bitem\b|_local_scalar_dense"),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="torch.export computes with the values of buffers that nothing writes",
    rank=24,  # its reads come before those of state-as-constants, to which sizes are numbers in an eager run
    replaces=(
        Replacement(
            target="what is read from tensors that follow from buffers and sizes",
            before="frames = torch.ceil(x.shape[-1] / self.stride)\nx = F.pad(x, (0, frames.long() * self.stride))\n",
            after="frames = -(-x.shape[-1] // 4)\nx = F.pad(x, (0, frames * 4))\n",
        ),
    ),
)  # fmt: skip
