"""Tensors of a run whose values are known while it is traced: those of some state, constants, and what follows from
them alone.

Each is computed twice: traced as ever, and for real. Where Python asks for a value, it gets the real one, and the
program asserts that the traced one equals it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from exportdoctor.shims.random_functions import has_random_name
from exportdoctor.shims.state_run import LARGEST, assert_equal, memory_of, tensors_in
from exportdoctor.torch_internals.fake_tensors import is_fake
from exportdoctor.torch_internals.tracer_frames import is_operator, is_operator_family
from exportdoctor.torch_internals.tracing_modes import outside_all_modes, outside_export
from exportdoctor.torch_internals.trees import tree_leaves, tree_map

_READS = frozenset({"item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__complex__"})
"""Methods of one tensor by which Python gets a value."""
_COMPARES = frozenset({"equal", "allclose", "is_nonzero", "__contains__"})
"""Functions of tensors that give a bool of Python."""
_FACTORIES = frozenset({
    "arange", "as_tensor", "eye", "full", "linspace", "logspace", "ones", "range", "scalar_tensor", "tensor",
    "tril_indices", "triu_indices", "zeros", "bartlett_window", "blackman_window", "hamming_window", "hann_window",
    "kaiser_window",
})  # fmt: skip
"""Functions of torch that make a tensor of numbers of Python."""
_LIKE_ANOTHER = frozenset({"to", "type_as"})
_FACTORY_METHODS = frozenset({"new_tensor", "new_zeros", "new_ones", "new_full"})
"""Methods that take a dtype and a device, but no values, from a tensor."""
_WRITES_STATISTICS = re.compile("batch_norm|instance_norm")
"""They may write into other arguments than the first, and torch does not count that."""
_UNLIKE = re.compile("empty|interpolate|upsample")
"""What memory holds that is not filled; and what an export computes with other kernels than eager."""
_MOST_VALUES = 2**24
"""Elements of all tensors together that are computed for real in one run."""
_PLAIN = (int, float, complex, str, type(None))
_LONGEST_LIST = 20_000
"""Elements of a tensor that is read as a list."""
_WRITES = re.compile(r".*[^_]_|__set(item)?__|__i(add|sub|mul|matmul|(true|floor)?div|mod|pow|and|or|xor|[lr]shift)__")
"""Names of operators that write into their first argument."""


class KnownTensors:
    """What tensors of a run are for real that follow from the state that is given, and from constants, alone, by id.

    `state` are its tensors by name as the run has them, `real` as they are for real.
    """

    def __init__(self, state: Mapping[str, Any], real: Mapping[str, Any]) -> None:
        self._real: dict[int, _Known] = {}
        self._computed = 0
        for name, tensor in state.items():
            self._learn(tensor, real[name], frozenset([name]))
        self.read: set[str] = set()
        """The names of the state that was read, or from which what was read was computed."""
        self.reads = 0
        """How often Python read a known value."""

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of `func`; where it reads a known value, that value."""
        name = torch_name(func)
        if (name in _READS and len(args) == 1) or name in _COMPARES:
            value = self._read(func, args, kwargs)
            if value is not None:
                return value
        tensors = tensors_in(_leaves((args, kwargs)))
        before = [_version_of(tensor) for tensor in tensors]
        known = bool(tensors) and all(map(self._knows, tensors))
        made = func(*args, **kwargs)
        written = [one for one, version in zip(tensors, before, strict=True) if _version_of(one) != version]
        if writes_to_first(func) or "out" in kwargs:
            written += tensors_in((args[:1], kwargs.get("out")))
        if _WRITES_STATISTICS.search(name):
            written += tensors
        if not written:
            self._note(func, args, kwargs, made)
        elif not known or not self._write(func, args, kwargs, dict(zip(map(_memory, tensors), before, strict=True))):
            self._forget(written)
        return made

    def _read(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What Python reads, where it is known; else None."""
        tensors = tensors_in((args, kwargs))
        if not tensors or not all(map(self._knows, tensors)):
            return None
        value = _value_of(func, *self._as_real(args, kwargs))
        if value is not None:
            self.reads += 1
            for tensor in tensors:
                known = self._real[id(tensor)]
                self.read |= known.names
                _assert_equal(tensor, known.real, known.names)
        return value

    def _note(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        """Compute for real what follows from known values alone."""
        import torch

        results = tensors_in(made)
        if not results:
            return
        name = torch_name(func)
        if name in _LIKE_ANOTHER and len(args) > 1 and isinstance(args[1], torch.Tensor):
            func, args = torch.Tensor.to, (args[0], args[1].device, args[1].dtype, *args[2:])
        of_factory = name in _FACTORIES
        if name in _FACTORY_METHODS and args and not self._knows(args[0]):
            with outside_all_modes():
                args = (torch.empty(0, dtype=args[0].dtype, device=args[0].device), *args[1:])
            of_factory, leaves = True, _leaves((args[1:], kwargs))
        else:
            leaves = _leaves((args, kwargs))
        tensors = tensors_in(leaves)
        if not all(map(self._knows, tensors)) or not _gives_same(func, leaves):
            return
        if not tensors and not (of_factory and all(map(_is_plain, leaves))):
            return
        real = tensors_in(_compute(func, *self._as_real(args, kwargs)))
        names = frozenset().union(*(self._real[id(tensor)].names for tensor in tensors))
        if len(real) == len(results):
            for one, value in zip(results, real, strict=True):
                self._computed += value.numel()
                if value.numel() <= LARGEST and self._computed <= _MOST_VALUES:
                    self._learn(one, value, names)

    def _write(self, func: Any, args: Any, kwargs: Any, before: Mapping[int | None, int | None]) -> bool:
        """Whether it writes constants into what follows from constants alone, as is then done for real. `before` are
        the versions that what was known had, by its memory."""
        leaves, name = _leaves((args, kwargs)), torch_name(func)
        if any(self._real[id(tensor)].names for tensor in tensors_in(leaves)):
            return False
        if name == "__set__" or _WRITES_STATISTICS.search(name) or not _gives_same(func, leaves):
            return False
        if _compute(func, *self._as_real(args, kwargs)) is _UNKNOWN:
            return False
        for one in list(self._real.values()):
            if before.get(one.memory) == one.version:
                self._learn(one.tensor, one.real, one.names)
        return True

    def _learn(self, tensor: Any, real: Any, names: frozenset[str]) -> None:
        """Nothing is learnt of a tensor whose memory or versions cannot be told."""
        version, memory = _version_of(tensor), _memory(tensor)
        if version is not None and memory is not None:
            self._real[id(tensor)] = _Known(tensor, real, names, version, memory)

    def _knows(self, tensor: Any) -> bool:
        """Whether its values are known, and nothing has been written into its memory since, also unseen."""
        known = self._real.get(id(tensor))
        return known is not None and known.version == _version_of(tensor)

    def _as_real(self, args: Any, kwargs: Any) -> Any:
        return tree_map(self._real_of, (args, kwargs))

    def _real_of(self, value: Any) -> Any:
        if isinstance(value, slice):
            return slice(*map(self._real_of, (value.start, value.stop, value.step)))
        return self._real[id(value)].real if id(value) in self._real else value

    def _forget(self, written: list[Any]) -> None:
        """What shares memory with a tensor that is written to is not known any more."""
        memory = set(map(_memory, written))
        if None in memory:
            self._real = {}
        themselves = set(map(id, written))  # `x.data = y` gives x other memory
        self._real = {
            key: known for key, known in self._real.items() if known.memory not in memory and key not in themselves
        }


class _Known(NamedTuple):
    """A tensor of the run and what it is for real, with the names of the state that it follows from."""

    tensor: Any
    real: Any
    names: frozenset[str]
    version: int
    memory: int


_UNKNOWN = object()


def _compute(func: Any, args: Any, kwargs: Any) -> Any:
    """What the function gives for real; `_UNKNOWN` where it raises or draws random numbers, which are not used up."""
    import torch

    with outside_export():
        state = torch.get_rng_state()
        on_gpu = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
        try:
            made = func(*args, **kwargs)
        except Exception:
            made = _UNKNOWN
        if not torch.equal(state, torch.get_rng_state()):
            torch.set_rng_state(state)
            return _UNKNOWN
        if on_gpu is not None and not torch.equal(on_gpu, torch.cuda.get_rng_state()):
            torch.cuda.set_rng_state(on_gpu)
            return _UNKNOWN
    return made


def _version_of(tensor: Any) -> int | None:
    """How often it was written to; a tensor that is made in inference mode does not count that."""
    with outside_all_modes():
        return None if tensor.is_inference() else int(tensor._version)


def _memory(tensor: Any) -> int | None:
    """What tells its memory from that of others; a sparse tensor, say, has none that could be told."""
    try:
        return memory_of(tensor)
    except (RuntimeError, NotImplementedError):
        return None


def _leaves(values: Any) -> list[Any]:
    """The leaves, with what slices are made of."""
    found: list[Any] = []
    for leaf in tree_leaves(values):
        found += (leaf.start, leaf.stop, leaf.step) if isinstance(leaf, slice) else (leaf,)
    return found


def _gives_same(func: Any, leaves: list[Any]) -> bool:
    """Whether a function gives the same each time for these arguments, as far as its name tells."""
    import torch

    symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)
    name = torch_name(func)
    unlike = not name or _UNLIKE.search(name) is not None
    return not (unlike or draws_at_random(func) or any(isinstance(leaf, symbols) for leaf in leaves))


def torch_name(func: Any) -> str:
    """The name of a function or an operator of torch, without its overload; empty for one of somebody else."""
    if is_operator(func) or is_operator_family(func):
        space, _, name = str(func).partition(".")
        return name.partition(".")[0] if space == "aten" else ""
    module = getattr(func, "__module__", None)
    return getattr(func, "__name__", "") if module is None or module.partition(".")[0] == "torch" else ""


def _is_plain(leaf: Any) -> bool:
    import torch

    return isinstance(leaf, (*_PLAIN, torch.dtype, torch.device, torch.layout, torch.memory_format))


def _value_of(func: Any, args: Any, kwargs: Any) -> Any:
    """What Python reads; None where the read fails, is long, or is of what does not equal itself."""
    with outside_export():
        try:
            for real in tensors_in((args, kwargs)):
                if real.numel() > _LONGEST_LIST or bool((real != real).any()):
                    return None
            return func(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError):
            return None


def _assert_equal(traced: Any, real: Any, names: frozenset[str]) -> None:
    import torch

    if is_fake(traced):
        with outside_all_modes():
            values, dtype, shape = real.tolist(), real.dtype, real.shape
        assert_equal(traced, torch.tensor(values, dtype=dtype, device=traced.device).reshape(shape), names)


def draws_at_random(func: Any) -> bool:
    """Whether an operator gives other values each time."""
    return has_random_name(getattr(func, "__name__", ""))


def writes_to_first(func: Any) -> bool:
    """Whether an operator writes into its first argument."""
    return _WRITES.fullmatch(getattr(func, "__name__", "")) is not None
