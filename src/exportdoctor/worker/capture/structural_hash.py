"""Digests of any Python value: of its content if that determines what an export sees, else of its identity."""

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

from exportdoctor.torch_internals.fake_tensors import is_fake
from exportdoctor.worker.describe.describe_failure import qualified_name

LOCAL = "~"
_EXACT_ELEMENTS = 65_536
_DEPTH = 40
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: set on classes written in Python
_TRANSPARENT = (object, dict, list, tuple, set, frozenset, int, str, float, bool, OrderedDict, defaultdict, deque)


@dataclass
class StructuralHash:
    """A digest of words that are written one after the other. `exact`: whether the values of a tensor count.

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

    def write(self, *words: object) -> None:
        """Append words."""
        self._words.extend(map(str, words))

    def write_class(self, kind: type) -> None:
        """A class by name; one made inside a function also by identity, because its name is not unique."""
        self.write(qualified_name(kind))
        if "<locals>" in kind.__qualname__:
            self.write_identity(kind)

    def write_identity(self, value: Any) -> None:
        """Make `value` differ from every other object of this process."""
        self.local = True
        self.write("identity", id(value))

    def write_tensor(self, tensor: torch.Tensor, *, exact: bool) -> None:
        """Class, shape, strides, dtype, device, flags; with `exact` the values where it has any."""
        layout = tensor.stride() if tensor.layout == torch.strided else tensor.layout
        self.write_class(type(tensor))
        self.write(tuple(tensor.shape), layout, tensor.dtype, tensor.device)
        self.write(tensor.requires_grad, tensor.is_conj(), tensor.is_neg())
        if exact and not is_fake(tensor) and tensor.device.type != "meta":
            content = _content(tensor)
            self.write_identity(tensor) if content is None else self.write(content)

    def write_value(self, value: Any) -> None:
        """Anything that an export can see."""
        if value is None or type(value) in _PLAIN:
            self.write(type(value).__name__, repr(value))
        elif isinstance(value, (torch.dtype, torch.device, torch.layout)):
            self.write(repr(value))
        elif isinstance(value, type):
            self.write_class(value)
        elif isinstance(value, ModuleType):
            self.write("module", value.__name__)
        elif isinstance(value, enum.Enum):
            self.write_class(type(value))
            self.write(value.name)
        elif value is self.owner:
            self.write("owner")
        elif self._first_time(value):
            self._write_compound(value)

    def _first_time(self, value: Any) -> bool:
        """Numbers values by first appearance: sharing is part of the digest, and cycles end."""
        if id(value) in self._seen:
            self.write("again", self._seen[id(value)])
            return False
        self._seen[id(value)] = len(self._seen)
        self.known.setdefault(~id(value), (value, ""))
        return True

    def _write_compound(self, value: Any) -> None:
        self._depth += 1
        if self._depth > _DEPTH or isinstance(value, torch.nn.Module):
            self.write_identity(value)
        elif isinstance(value, torch.Tensor):
            self.write_tensor(value, exact=self.exact(value))
        elif not self._write_callable(value):
            self._write_items(value)
            self._write_state(value)
        self._depth -= 1

    def _write_items(self, value: Any) -> None:
        if isinstance(value, dict):
            self.write_class(type(value))
            self.write(len(value))
            for key, item in value.items():
                self.write_value(key)
                self.write_value(item)
        elif isinstance(value, (set, frozenset)):
            self.write_class(type(value))
            self.write(*sorted(map(_set_member, value)))
        elif isinstance(value, (list, tuple, deque)):
            self.write_class(type(value))
            self.write(len(value))
            for item in value:
                self.write_value(item)

    def _write_state(self, value: Any) -> None:
        """An object's attributes; its identity as well if it may hold more than those."""
        if type(value) in _TRANSPARENT:
            return
        self.write_class(type(value))
        state = getattr(value, "__dict__", None)
        bare = state is None and not hasattr(type(value), "_fields")
        if bare or _hides_state(type(value)):
            self.write_identity(value)
        elif self.owner is not None and not isinstance(value, (dict, list, tuple)):
            self.write(self._cached_digest(value))
        else:
            self._write_attributes(state or {})

    def _write_attributes(self, state: dict[str, Any]) -> None:
        for name, item in sorted(state.items(), key=lambda pair: str(pair[0])):
            self.write(name)
            self.write_value(item)

    def _cached_digest(self, value: Any) -> str:
        """A plain object's digest, made once: hundreds of modules share one configuration."""
        if id(value) not in self.known:
            inner = StructuralHash(exact=self.exact, known={}, owner=None, _depth=self._depth)
            inner._seen[id(value)] = 0
            inner._write_attributes(value.__dict__)
            self.known[id(value)] = (value, LOCAL * inner.local + inner.digest())
            self.known.update((~id(kept), (kept, "")) for kept, _ in inner.known.values())
        digest = self.known[id(value)][1]
        self.local = self.local or digest.startswith(LOCAL)
        return digest

    def _write_callable(self, value: Any) -> bool:
        """Functions by their code, defaults and closure; True where `value` was one."""
        match value:
            case functools.partial():
                self.write("partial")
                self.write_value((value.func, value.args, value.keywords))
            case MethodType():
                self.write("method")
                self.write_value(value.__func__)
                self.write_value(value.__self__)
            case BuiltinFunctionType():
                self.write("builtin", value.__module__, value.__qualname__)
                if not isinstance(value.__self__, (ModuleType, type(None))):
                    self.write_identity(value.__self__)
            case FunctionType():
                self.write("function", value.__module__, value.__qualname__, _code(value.__code__))
                self.write_value(value.__defaults__)
                self.write_value(value.__kwdefaults__)
                for cell in value.__closure__ or ():
                    self.write_value(_cell(cell))
            case _:
                return False
        return True


_PLAIN = frozenset({bool, int, float, complex, str, bytes})


def _set_member(item: Any) -> str:
    return repr(item) if type(item) in _PLAIN else f"{qualified_name(type(item))} {hash(item)}"


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
    """A hash of the values of a tensor of at most 65,536 elements; None for any other tensor."""
    if tensor.numel() > _EXACT_ELEMENTS or tensor.layout != torch.strided or tensor.is_quantized:
        return None
    with torch.no_grad():
        raw = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        data = bytes(raw.view(torch.uint8).tolist()) if tensor.numel() else b""
    return hashlib.sha256(data).hexdigest()[:16]
