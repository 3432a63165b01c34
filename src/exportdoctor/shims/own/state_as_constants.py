"""Numbers and conditions that Python reads from buffers, parameters and constants alone: the values at the export.

What follows from them alone is computed twice: traced as ever, and for real. Where Python asks for a value, it gets the
real one, and the program asserts that the traced one equals it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.own.known_values import draws_at_random, writes_to_first
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.state_run import LARGEST, assert_equal, following_state, memory_of, tensors_in
from exportdoctor.torch_internals.fake_tensors import is_fake
from exportdoctor.torch_internals.tracing_modes import outside_all_modes
from exportdoctor.torch_internals.trees import tree_leaves, tree_map

_READS = frozenset({"item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__complex__"})
"""Methods of one tensor by which Python gets a value."""
_COMPARES = frozenset({"equal", "allclose", "is_nonzero"})
"""Functions of tensors that give a bool of Python."""
_FACTORIES = frozenset({
    "arange", "as_tensor", "eye", "full", "linspace", "logspace", "ones", "range", "scalar_tensor", "tensor",
    "tril_indices", "triu_indices", "zeros", "bartlett_window", "blackman_window", "hamming_window", "hann_window",
    "kaiser_window",
})  # fmt: skip
"""Functions of torch that make a tensor of numbers of Python."""
_PLAIN = (int, float, complex, str, type(None))
_LIKE_ANOTHER = frozenset({"to", "type_as"})
"""Methods that take a dtype and a device, but no values, from another tensor."""
_LONGEST_LIST = 20_000
"""Elements of a tensor that is read as a list."""


class KnownState:
    """What the tensors of a run are for real that follow from the module's state and constants alone, by id."""

    def __init__(self, state: Mapping[str, Any], real: Mapping[str, Any]) -> None:
        self._real = {id(tensor): (tensor, real[name], frozenset([name])) for name, tensor in state.items()}
        self.read: set[str] = set()
        """The buffers and parameters that were read, or from which what was read was computed."""
        self.reads = 0
        """How often Python read a known value."""

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of `func`; where it reads a known value, that value."""
        name = getattr(func, "__name__", "")
        if (name in _READS and len(args) == 1) or name in _COMPARES:
            value = self._read(func, args, kwargs)
            if value is not None:
                return value
        made = func(*args, **kwargs)
        if writes_to_first(func) or "out" in kwargs:
            if not self._write(func, args, kwargs):
                self._forget(tensors_in((args[:1], kwargs.get("out"))))
        else:
            self._note(func, args, kwargs, made)
        return made

    def _read(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What Python reads, where it is known; else None."""
        tensors = tensors_in((args, kwargs))
        if not tensors or not all(id(tensor) in self._real for tensor in tensors):
            return None
        real_args, real_kwargs = tree_map(self._real_of, (args, kwargs))
        value = _value_of(func, real_args, real_kwargs)
        if value is not None:
            self.reads += 1
            for tensor in tensors:
                _, real, names = self._real[id(tensor)]
                self.read |= names
                _assert_equal(tensor, real, names)
        return value

    def _note(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        """Compute for real what follows from known values alone."""
        import torch

        name = getattr(func, "__name__", "")
        if name in _LIKE_ANOTHER and len(args) > 1 and isinstance(args[1], torch.Tensor):
            func, args = torch.Tensor.to, (args[0], args[1].device, args[1].dtype, *args[2:])
        leaves, results = tree_leaves((args, kwargs)), tensors_in(made)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not results or not all(id(tensor) in self._real for tensor in tensors):
            return
        if not _gives_same(func, leaves):
            return
        if not tensors and not (name in _FACTORIES and all(map(_is_plain, leaves))):
            return
        real_args, real_kwargs = tree_map(self._real_of, (args, kwargs))
        with outside_all_modes():
            real = tensors_in(func(*real_args, **real_kwargs))
        names = frozenset().union(*(self._real[id(tensor)][2] for tensor in tensors))
        if len(real) == len(results):
            self._real |= {
                id(one): (one, value, names)
                for one, value in zip(results, real, strict=True)
                if value.numel() <= LARGEST
            }

    def _write(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether it writes constants into what follows from constants alone, as is then done for real."""
        leaves = tree_leaves((args, kwargs))
        known = [self._real.get(id(tensor)) for tensor in tensors_in(leaves)]
        if not known or not all(one is not None and not one[2] for one in known):
            return False
        if func.__name__ == "__set__" or not _gives_same(func, leaves):
            return False
        real_args, real_kwargs = tree_map(self._real_of, (args, kwargs))
        with outside_all_modes():
            func(*real_args, **real_kwargs)
        return True

    def _real_of(self, value: Any) -> Any:
        return self._real[id(value)][1] if id(value) in self._real else value

    def _forget(self, written: list[Any]) -> None:
        """What shares memory with a tensor that is written to is not known any more."""
        memory = {memory_of(one) for one in written}
        self._real = {key: known for key, known in self._real.items() if memory_of(known[0]) not in memory}


def _gives_same(func: Any, leaves: list[Any]) -> bool:
    """Whether a function gives the same each time for these arguments."""
    import torch

    symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return not draws_at_random(func) and not any(isinstance(leaf, symbols) for leaf in leaves)


def _is_plain(leaf: Any) -> bool:
    import torch

    return isinstance(leaf, (*_PLAIN, torch.dtype, torch.device, torch.layout, torch.memory_format))


def _value_of(func: Any, args: Any, kwargs: Any) -> Any:
    """What Python reads; None where the read fails, is long, or is of what does not equal itself."""
    with outside_all_modes():
        for real in tensors_in((args, kwargs)):
            if real.numel() > _LONGEST_LIST or (real.is_floating_point() and bool(real.isnan().any())):
                return None
        try:
            return func(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError):
            return None


def _assert_equal(traced: Any, real: Any, names: frozenset[str]) -> None:
    import torch

    if is_fake(traced):
        with outside_all_modes():
            values, dtype = real.tolist(), real.dtype
        assert_equal(traced, torch.tensor(values, dtype=dtype, device=traced.device), names)


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    with following_state(call, KnownState) as (changed, runs):
        if not any(known.read for known in runs):
            raise NotApplicable("Python reads no value that follows from buffers and parameters alone")
        yield changed


SHIM = Shim(
    id="state-as-constants",
    title="Answers what Python reads from buffers and parameters with their values at the export",
    soundness="precondition",
    enter=_enter,
    does=(
        "`if self.initialised`, `int(self.groups)` and `self.scale.item()` depend on the module's state, and on no "
        "input. Python gets the values at the export of what follows from buffers and parameters alone, and the "
        "program asserts that its own are the same. Not applicable where forward changes what Python reads."
    ),
    precondition="buffers and parameters that Python reads keep their values; the program refuses others",
    cures=(Cure(kinds=("data_dependent_value", "data_dependent_guard")),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="torch.export takes the values of buffers that nothing writes for constants",
    rank=25,
    replaces=(
        Replacement(
            target="what Python reads from buffers and parameters",
            before="if not self.initialised:\n    ...\nx = x * self.scale.item()\n",
            after="if not True:\n    ...\nx = x * 3.0\n",
        ),
    ),
)
