"""A canonical account of any Python value, for digests: by content where content says all, else by identity."""

from __future__ import annotations

import enum
import functools
import hashlib
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

LOCAL = "~"
_EXACT_ELEMENTS = 65_536
_DEPTH = 40
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: set on classes written in Python
_TRANSPARENT = (object, dict, list, tuple, set, frozenset, int, str, float, bool, OrderedDict, defaultdict, deque)


@dataclass
class Account:
    """Words written down one after the other. `exact` tells of which tensors the values count.

    `known` holds the digests of objects met before, by identity, and keeps them alive so that identities last.
    `owner` is the module whose attributes are described: a method bound to it is not a foreign object.
    `local`: an identity was written, so the digest means nothing outside this process.
    """

    exact: Callable[[torch.Tensor], bool]
    known: dict[int, tuple[Any, str]]
    owner: object = None
    local: bool = False
    _words: list[str] = field(default_factory=list)
    _seen: dict[int, int] = field(default_factory=dict)
    _depth: int = 0

    def digest(self) -> str:
        """Sixteen hexadecimal digits of all words so far."""
        return hashlib.sha256("\x1e".join(self._words).encode(errors="replace")).hexdigest()[:16]

    def put(self, *words: object) -> None:
        """Write words down."""
        self._words.extend(map(str, words))

    def kind(self, kind: type) -> None:
        """A class by name; one made inside a function also by identity, because its name is not unique."""
        self.put(kind_name(kind))
        if "<locals>" in kind.__qualname__:
            self.identity(kind)

    def identity(self, value: Any) -> None:
        """Tell `value` apart from every other object of this process."""
        self.local = True
        self.put("identity", id(value))

    def tensor(self, tensor: torch.Tensor, *, exact: bool) -> None:
        """Class, shape, strides, dtype, device, flags; with `exact` the values where it has any."""
        layout = tensor.stride() if tensor.layout == torch.strided else tensor.layout
        self.kind(type(tensor))
        self.put(tuple(tensor.shape), layout, tensor.dtype, tensor.device)
        self.put(tensor.requires_grad, tensor.is_conj(), tensor.is_neg())
        if exact and not isinstance(tensor, FakeTensor) and tensor.device.type != "meta":
            content = _content(tensor)
            self.identity(tensor) if content is None else self.put(content)

    def value(self, value: Any) -> None:
        """Anything that an export can see."""
        if value is None or type(value) in _PLAIN:
            self.put(type(value).__name__, repr(value))
        elif isinstance(value, (torch.dtype, torch.device, torch.layout)):
            self.put(repr(value))
        elif isinstance(value, type):
            self.kind(value)
        elif isinstance(value, ModuleType):
            self.put("module", value.__name__)
        elif isinstance(value, enum.Enum):
            self.kind(type(value))
            self.put(value.name)
        elif value is self.owner:
            self.put("owner")
        elif self._first_time(value):
            self._compound(value)

    def _first_time(self, value: Any) -> bool:
        """Number values by first appearance: sharing inside one account is part of it, and cycles end."""
        if id(value) in self._seen:
            self.put("again", self._seen[id(value)])
            return False
        self._seen[id(value)] = len(self._seen)
        self.known.setdefault(~id(value), (value, ""))
        return True

    def _compound(self, value: Any) -> None:
        self._depth += 1
        if self._depth > _DEPTH or isinstance(value, torch.nn.Module):
            self.identity(value)
        elif isinstance(value, torch.Tensor):
            self.tensor(value, exact=self.exact(value))
        elif not self._callable(value):
            self._items(value)
            self._state(value)
        self._depth -= 1

    def _items(self, value: Any) -> None:
        if isinstance(value, dict):
            self.kind(type(value))
            self.put(len(value))
            for key, item in value.items():
                self.value(key)
                self.value(item)
        elif isinstance(value, (set, frozenset)):
            self.kind(type(value))
            self.put(*sorted(map(_set_member, value)))
        elif isinstance(value, (list, tuple, deque)):
            self.kind(type(value))
            self.put(len(value))
            for item in value:
                self.value(item)

    def _state(self, value: Any) -> None:
        """An object's own attributes; its identity too where it may hide more than they show."""
        if type(value) in _TRANSPARENT:
            return
        self.kind(type(value))
        state = getattr(value, "__dict__", None)
        bare = state is None and not hasattr(type(value), "_fields")
        if bare or _hides_state(type(value)):
            self.identity(value)
        elif self.owner is not None and not isinstance(value, (dict, list, tuple)):
            self.put(self._remembered(value))
        else:
            self._attributes(state or {})

    def _attributes(self, state: dict[str, Any]) -> None:
        for name, item in sorted(state.items(), key=lambda pair: str(pair[0])):
            self.put(name)
            self.value(item)

    def _remembered(self, value: Any) -> str:
        """A plain object's digest, made once: hundreds of modules share one configuration."""
        if id(value) not in self.known:
            inner = Account(exact=self.exact, known={}, owner=None, _depth=self._depth)
            inner._seen[id(value)] = 0
            inner._attributes(value.__dict__)
            self.known[id(value)] = (value, LOCAL * inner.local + inner.digest())
            self.known.update((~id(kept), (kept, "")) for kept, _ in inner.known.values())
        digest = self.known[id(value)][1]
        self.local = self.local or digest.startswith(LOCAL)
        return digest

    def _callable(self, value: Any) -> bool:
        """Functions by their code, defaults and closure; True where `value` was one."""
        match value:
            case functools.partial():
                self.put("partial")
                self.value((value.func, value.args, value.keywords))
            case MethodType():
                self.put("method")
                self.value(value.__func__)
                self.value(value.__self__)
            case BuiltinFunctionType():
                self.put("builtin", value.__module__, value.__qualname__)
                if not isinstance(value.__self__, (ModuleType, type(None))):
                    self.identity(value.__self__)
            case FunctionType():
                self.put("function", value.__module__, value.__qualname__, _code(value.__code__))
                self.value(value.__defaults__)
                self.value(value.__kwdefaults__)
                for cell in value.__closure__ or ():
                    self.value(_cell(cell))
            case _:
                return False
        return True


_PLAIN = frozenset({bool, int, float, complex, str, bytes})


def kind_name(kind: type) -> str:
    """A class's full name."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _set_member(item: Any) -> str:
    return repr(item) if type(item) in _PLAIN else f"{kind_name(type(item))} {hash(item)}"


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "<empty cell>"


def _code(code: CodeType) -> str:
    """Where the code stands and what it does: two lambdas on one line differ in bytecode, constants or names."""
    body = repr((code.co_code, code.co_names, [c for c in code.co_consts if not isinstance(c, CodeType)]))
    return f"{code.co_filename}:{code.co_firstlineno}:{hashlib.sha256(body.encode()).hexdigest()[:12]}"


def _hides_state(kind: type) -> bool:
    """Whether instances keep something outside `__dict__`: slots with content, or a base class written in C."""
    return any(
        bool(parent.__dict__.get("__slots__")) or not parent.__flags__ & _HEAP_TYPE
        for parent in kind.__mro__
        if parent not in _TRANSPARENT and parent.__module__ not in ("abc", "typing", "collections.abc")
    )


def _content(tensor: torch.Tensor) -> str | None:
    """A hash of the values of a tensor of at most 65,536 elements; None for another, which only itself equals."""
    if tensor.numel() > _EXACT_ELEMENTS or tensor.layout != torch.strided or tensor.is_quantized:
        return None
    with torch.no_grad():
        raw = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        data = bytes(raw.view(torch.uint8).tolist()) if tensor.numel() else b""
    return hashlib.sha256(data).hexdigest()[:16]
