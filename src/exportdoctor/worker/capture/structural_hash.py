"""Digests of any Python value: of its content if that determines what an export sees, else of its identity.

A value counts by content only where its exact type is fully understood. A class written in Python counts as understood
if its instances are laid out in memory like those of an empty class, so that all they hold stands in `__dict__`.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import re
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from exportdoctor.core.exception_text import text_of
from exportdoctor.targets.eager import storage_id
from exportdoctor.targets.held_state import attributes_of
from exportdoctor.torch_internals.fake_tensors import is_fake, new_fake_mode
from exportdoctor.worker.capture.class_contents import PLAIN, has_stateful_descriptor, is_found_by_name, plain_base
from exportdoctor.worker.describe.describe_failure import qualified_name

LOCAL = "~"
_EXACT_ELEMENTS = 65_536
_DEPTH = 40


@dataclass
class StructuralHash:
    """A digest of words that are written one after the other. `exact`: whether the values of a tensor count.

    `known` holds the digests of objects met before, by identity, and keeps them alive so that identities last.
    `owner` is the module whose attributes are described: a method bound to it is not a foreign object.
    `local`: an identity was written, so the digest means nothing outside this process.
    `shared` are the identities of objects that can change, in the order in which they were met.
    """

    exact: Callable[[torch.Tensor], bool]
    known: dict[int, tuple[Any, str]]
    owner: object = None
    local: bool = False
    shared: list[int] = field(default_factory=list)
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
        """A class by the name under which it is found; one that is not found there by identity."""
        self.write(qualified_name(kind))
        if not is_found_by_name(kind):
            self.write_identity(kind)

    def write_identity(self, value: Any) -> None:
        """Make `value` differ from every other object of this process."""
        self.local = True
        self.known.setdefault(~id(value), (value, ""))
        self.write("identity", id(value))

    def write_tensor(self, tensor: torch.Tensor, *, exact: bool) -> None:
        """Class, shape, layout, dtype, device, flags, attributes; with `exact` the values where it has any."""
        if tensor.is_nested:  # it has neither sizes nor strides
            self.write_identity(tensor)
            return
        layout: object = tensor.stride() if tensor.layout == torch.strided else tensor.layout
        if tensor.layout == torch.strided:
            self.write(tensor.storage_offset(), tensor._is_view())
        self.write_class(type(tensor))
        if not (type(tensor) in _TENSORS or is_fake(tensor)):
            self.write_identity(tensor)
        self.write(tuple(tensor.shape), layout, tensor.dtype, tensor.device)
        self.write(tensor.requires_grad, tensor.is_leaf, tensor.is_inference(), tensor.is_conj(), tensor.is_neg())
        self.write(tensor.is_leaf and tensor.grad is not None)
        if exact and not is_fake(tensor) and tensor.device.type != "meta":
            self.write("" if tensor.is_inference() else tensor._version)
            content = _content(tensor)
            self.write_identity(tensor) if content is None else self.write(content)
        internal = _internals_of_fake() if is_fake(tensor) else ()
        state = {name: value for name, value in tensor.__dict__.items() if name not in internal}
        if state:
            self._write_attributes(state)

    def write_value(self, value: Any) -> None:
        """Anything that an export can see."""
        kind = type(value)
        if kind is int and value == id(self.owner):
            self.write("owner's id")
        elif value is None or kind in PLAIN:
            self.write(kind.__name__, repr(value))
            if value != value:  # a NaN has a sign, which its `repr` hides
                self.write_identity(value)
        elif kind in _CONSTANTS:
            self.write(repr(value))
        elif isinstance(value, type):
            self.write_class(value)
        elif kind is ModuleType:
            self.write("module", value.__name__)
            if sys.modules.get(value.__name__) is not value:
                self.write_identity(value)
        elif isinstance(value, enum.Enum):
            self.write_class(kind)
            self.write(value.name, repr(value.value) if type(value.value) in PLAIN else "")
        elif value is self.owner:
            self.write("owner")
        elif self._first_time(value):
            self._depth += 1
            self._write_compound(value)
            self._depth -= 1

    def _first_time(self, value: Any) -> bool:
        """Numbers values by first appearance: sharing is part of the digest, and cycles end."""
        if id(value) in self._seen:
            self.write("again", self._seen[id(value)])
            return False
        self._seen[id(value)] = len(self._seen)
        self.known.setdefault(~id(value), (value, ""))
        if type(value) not in _UNCHANGING:
            self.shared.append(id(value))
        return True

    def _write_compound(self, value: Any) -> None:
        if self._depth > _DEPTH or isinstance(value, torch.nn.Module):
            self.write_identity(value)
        elif isinstance(value, torch.Tensor):
            self.write_tensor(value, exact=self.exact(value))
            self.shared.append(storage_id(value))
        elif not (self._write_callable(value) or self._write_container(value)):
            self._write_object(value)

    def _write_container(self, value: Any) -> bool:
        """The builtin containers, of exactly these types; True where `value` was one."""
        kind = type(value)
        if kind in (set, frozenset):
            self._write_set(value)
        elif kind is deque:
            self.write("deque", value.maxlen, len(value))
            self._write_all(value)
        elif kind is defaultdict:
            self.write("defaultdict")
            self.write_value(value.default_factory)
            self._write_items(value, dict)
        elif kind is OrderedDict:
            self._write_items(value, OrderedDict)
            self._write_attributes(value.__dict__)
        elif kind is dict:
            self._write_items(value, dict)
        elif kind in (list, tuple, torch.Size):
            self.write(kind.__name__, len(value))
            self._write_all(value)
        elif kind in (re.Pattern, range, slice):
            self.write(kind.__name__, repr((value.pattern, value.flags) if kind is re.Pattern else value))
        elif _is_numpy_number(value):
            self.write(qualified_name(kind), value.tobytes().hex())
        else:
            return False
        return True

    def _write_all(self, items: Any) -> None:
        for item in items:
            self.write_value(item)

    def _write_items(self, value: Any, base: type) -> None:
        self.write(base.__name__, base.__len__(value))  # type: ignore[attr-defined]
        for key, item in base.items(value):  # type: ignore[attr-defined]
            self.write_value(key)
            self.write_value(item)

    def _write_set(self, value: Any) -> None:
        """A set of plain members by content, and by its order where it is not that of a set made afresh."""
        self.write(type(value).__name__)
        if not all(item is None or type(item) in PLAIN for item in value):
            self.write_identity(value)
            return
        members = sorted(value, key=lambda item: (type(item).__name__, repr(item)))
        self.write(*((type(item).__name__, repr(item)) for item in members))
        order = [members.index(item) for item in value] if len(members) < _DEPTH else None
        if list(value) != list(type(value)(members)):
            self.write_identity(value) if order is None else self.write(order)

    def _write_object(self, value: Any) -> None:
        """An object of a Python class by its attributes; any other by identity."""
        kind = type(value)
        base = plain_base(kind)  # type: ignore[arg-type]
        self.write_class(kind)
        if base is None or has_stateful_descriptor(kind):  # type: ignore[arg-type]
            self.write_identity(value)
            return
        if base in (str, int, float):
            self.write(base.__repr__(value))
        elif issubclass(base, dict):
            self._write_items(value, base)
        elif base in (list, tuple):
            self.write(base.__len__(value))  # type: ignore[attr-defined]
            self._write_all(base.__iter__(value))  # type: ignore[attr-defined]
        state = attributes_of(value)
        if self.owner is not None and base is object:
            self.write(self._cached_digest(value, state))
        else:
            self._write_attributes(state)

    def _write_attributes(self, state: dict[str, Any]) -> None:
        for name, item in state.items():
            self.write_value(name)
            self.write_value(item)

    def _cached_digest(self, value: Any, state: dict[str, Any]) -> str:
        """A plain object's digest, made once: hundreds of modules share one configuration."""
        if id(value) not in self.known:
            inner = StructuralHash(exact=self.exact, known={}, owner=None, _depth=self._depth)
            inner._seen[id(value)] = 0
            inner._write_attributes(state)
            self.known[id(value)] = (value, LOCAL * inner.local + inner.digest())
            self.known.update((~id(kept), (kept, "")) for kept, _ in inner.known.values())
        digest = self.known[id(value)][1]
        self.local = self.local or digest.startswith(LOCAL)
        return digest

    def _write_callable(self, value: Any) -> bool:
        """Functions by their code, defaults, closure, attributes and globals; True where `value` was one."""
        kind = type(value)
        if kind is functools.partial:
            self.write("partial")
            self.write_value((value.func, value.args, value.keywords))
            self._write_attributes(value.__dict__)
        elif kind is MethodType:
            self.write("method")
            self.write_value(value.__func__)
            self.write_value(value.__self__)
        elif kind is BuiltinFunctionType:
            self.write("builtin", value.__module__, value.__qualname__)
            if isinstance(value.__self__, type):
                self.write_class(value.__self__)
            elif not isinstance(value.__self__, (ModuleType, type(None))):
                self.write_identity(value.__self__)
        elif kind is FunctionType:
            self._write_function(value)
        else:
            return False
        return True

    def _write_function(self, function: FunctionType) -> None:
        self.write("function", function.__module__, function.__qualname__, _code(function.__code__))
        self.write_value(function.__defaults__)
        self.write_value(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            self.write_value(_cell(cell))
        self.write(function.__name__, text_of(function.__doc__), text_of(function.__annotations__))
        self._write_attributes(function.__dict__)
        # all functions of a module see the same globals; those of a namespace of their own (`exec`) see others
        module = sys.modules.get(str(function.__globals__.get("__name__")))
        if module is None or module.__dict__ is not function.__globals__:
            self.write_identity(function.__globals__)


_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format, type(Ellipsis), type(NotImplemented))
_UNCHANGING = frozenset(
    {tuple, frozenset, torch.Size, FunctionType, BuiltinFunctionType, MethodType, re.Pattern, range, slice}
)
_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def _is_numpy_number(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value).__module__ == "numpy" and isinstance(value, (numpy.number, numpy.bool_))


@functools.cache
def _internals_of_fake() -> frozenset[str]:
    """The attributes that every fake tensor has."""
    return frozenset(new_fake_mode().from_tensor(torch.nn.Parameter(torch.empty(0))).__dict__)


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "<empty cell>"


def _code(code: CodeType) -> str:
    """Where the code stands and what it does, code inside it included: two lambdas on one line differ in that."""
    body = repr(_code_words(code)).encode(errors="replace")
    return f"{code.co_filename}:{code.co_firstlineno}:{hashlib.sha256(body).hexdigest()[:12]}"


def _code_words(code: CodeType) -> tuple[object, ...]:
    """All that decides what the code does."""
    constants = [_code_words(c) if isinstance(c, CodeType) else (type(c).__name__, repr(c)) for c in code.co_consts]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return code.co_name, code.co_code, names, counts, code.co_exceptiontable, constants


def _content(tensor: torch.Tensor) -> str | None:
    """A hash of the values of a tensor of at most 65,536 elements; None for any other tensor."""
    if tensor.numel() > _EXACT_ELEMENTS or tensor.layout != torch.strided or tensor.is_quantized:
        return None
    with torch.no_grad():
        raw = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        data = bytes(raw.view(torch.uint8).tolist()) if tensor.numel() else b""
    return hashlib.sha256(data).hexdigest()[:16]
