"""Eager as a stream of values: what each call of a torch function gave, in which submodule and at which line."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.targets.built import Inputs
from exportdoctor.targets.eager import needs_gradients
from exportdoctor.torch_internals.trees import tree_leaves, tree_map
from exportdoctor.worker.describe.python_frames import source_line
from exportdoctor.worker.numbers.step_graph import AxisOfChoice, Float64Run, to_float64
from exportdoctor.worker.numbers.value_gap import axis_of_choice
from exportdoctor.worker.prove.input_set import named_path
from exportdoctor.worker.prove.object_walk import values_in
from exportdoctor.worker.translate.failed_node import NodeFact

OpPlace = tuple[str, str, int]
"""The submodule's FQN, the file and the line."""


@dataclass(frozen=True, kw_only=True)
class PlacedValue:
    """A value that another graph makes at a place: its operator, its name, its dtype, and its sizes where fixed."""

    op: str
    name: str
    dtype: torch.dtype
    sizes: tuple[int | None, ...]

    def fits(self, value: torch.Tensor) -> bool:
        """Whether a value of eager can be this one."""
        if value.dtype != self.dtype or value.dim() != len(self.sizes):
            return False
        return all(size in (None, there) for size, there in zip(self.sizes, value.shape, strict=True))


OnEager = Callable[[str, Any, NodeFact, Float64Run | None], None]
"""Is told the name that a value of eager has in the other graph ('' if none is known), the value, and its origin."""


@dataclass(kw_only=True)
class EagerStream:
    """Runs a module and tells its values. `names` gives the other graph's values for each place, in order.

    `modules` gives the other graph's value for the output of a call of a submodule. `taken` are the tensors that the
    function was given whose value is told.
    """

    module: torch.nn.Module
    names: Mapping[OpPlace, list[PlacedValue]]
    modules: Mapping[str, str] = field(default_factory=dict)
    on_value: OnEager = lambda *_: None
    on_module: Callable[[str, NodeFact], None] = lambda *_: None
    writers: dict[str, NodeFact] = field(default_factory=dict)
    taken: tuple[torch.Tensor, ...] = ()
    axis: AxisOfChoice = "unknown"

    def run(self, inputs: Inputs, *, argument_names: tuple[str, ...] = ()) -> Any:
        """The output; inputs and buffers are changed as the module changes them."""
        self._stack: list[str] = [""]
        self._calls: Counter[str] = Counter()
        self._next: defaultdict[OpPlace, int] = defaultdict(int)
        watched = dict(self.module.named_buffers())
        for value in values_in(inputs):
            if isinstance(value.value, torch.Tensor):
                watched[named_path(value.name, argument_names)] = value.value
        self._watched = watched
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(needs_gradients(self.module)))
            stack.enter_context(self._hooks())
            stack.enter_context(_EagerMode(self))
            return self.module(*inputs[0], **inputs[1])

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        handles = []
        for name, child in self.module.named_modules():
            if name:
                handles.append(child.register_forward_pre_hook(self._on_enter(name)))
                handles.append(child.register_forward_hook(self._on_leave, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _on_enter(self, name: str) -> Callable[..., None]:
        def enter(child: torch.nn.Module, _: Any) -> None:
            count = self._calls[name]
            self._calls[name] += 1
            path = f"{name}@{count}" if count else name
            file, line = _user_place(sys._getframe(1))
            self.on_module(name, _fact(f"the call of {name}", type(child).__name__, name, file, line))
            self._stack.append(path)

        return enter

    def _on_leave(self, child: torch.nn.Module, _: Any, output: Any) -> None:
        path = self._stack.pop()
        name = self.modules.get(path)
        if name and isinstance(output, torch.Tensor):
            place = path.partition("@")[0]
            self.taken, self.axis = (), "unknown"
            self.on_value(
                name, output, NodeFact(name=path, op="", module=place, module_class=type(child).__name__), None
            )

    def call(self, function: Any, args: Any, kwargs: Any) -> Any:
        """The function's result, which is told with what it changed in place."""
        before = {name: tensor._version for name, tensor in self._watched.items()}
        result = function(*args, **kwargs)
        changed = [name for name, version in before.items() if self._watched[name]._version != version]
        leaves = tree_leaves(result)
        if not changed and not any(isinstance(one, torch.Tensor) for one in leaves):
            return result
        file, line = _user_place(sys._getframe(2))
        path = self._stack[-1].partition("@")[0]
        op = _plain(getattr(function, "__name__", str(function)))
        fact = _fact(op, op, path, file, line)
        self.writers.update(dict.fromkeys(changed, fact))

        def run_in_float64() -> Any:
            high_args, high_kwargs = tree_map(to_float64, (args, kwargs))
            return function(*high_args, **high_kwargs)

        self.taken = (
            () if changed else tuple(one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor))
        )
        self.axis = axis_of_choice(op, args, kwargs)
        for number, one in enumerate(leaves):
            if isinstance(one, torch.Tensor):
                name = self._name_of((path, file, line), op if len(leaves) == 1 else f"{op}[{number}]", one)
                self.on_value(name, one, fact, None if changed or len(leaves) > 1 else run_in_float64)
        return result

    def _name_of(self, place: OpPlace, op: str, value: torch.Tensor) -> str:
        """The next value of the other graph at this place that the same operator makes, of the same kind."""
        known, start = self.names.get(place, []), self._next[place]
        for number in range(start, len(known)):
            if known[number].op == op and known[number].fits(value):
                self._next[place] = number + 1
                return known[number].name
        return ""


class _EagerMode(TorchFunctionMode):
    """Hands each outermost call of a torch function to a stream."""

    def __init__(self, stream: EagerStream) -> None:
        super().__init__()
        self._stream = stream

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._stream.call(func, args, kwargs or {})


def _user_place(frame: Any) -> tuple[str, int]:
    """File and line of the innermost frame that is the user's."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("", 0)


def _fact(name: str, op: str, module: str, file: str, line: int) -> NodeFact:
    stack = f'File "{file}", line {line}, in forward\n    {source_line(file, line)}\n' if file else ""
    return NodeFact(name=name, op=op, module=module, stack=stack)


_REFLECTED = frozenset({"radd", "rsub", "rmul", "rdiv", "rtruediv", "rpow", "rmatmul", "rfloordiv", "rmod"})
_SPELLINGS = {"truediv": "div", "floordiv": "floor_divide", "mod": "remainder", "invert": "bitwise_not"}


def _plain(name: str) -> str:
    """`add` of `__iadd__` and `add_`; as `op_name` names the same of a program's node."""
    bare = name.strip("_")
    dunder = name.startswith("__")
    if dunder and (bare in _REFLECTED or (bare.startswith("i") and f"r{bare[1:]}" in _REFLECTED)):
        bare = bare[1:]
    return _SPELLINGS.get(bare, bare) if dunder else bare


def op_name(target: Any) -> str:
    """The name of a program's operator as eager's functions are named: `add` of `aten.add_.Tensor`."""
    return str(target).removeprefix("aten.").partition(".")[0].strip("_")
