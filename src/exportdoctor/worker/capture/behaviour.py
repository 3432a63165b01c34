"""What each module did while the forward ran: torch functions with their arguments, and the user's code that ran.

State can be kept where no attribute shows it, in a registry or a weak dictionary, say. A module that acts on such state
does something else than its equals, so that what it did tells them apart.
"""

from __future__ import annotations

import gc
import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from exportdoctor.torch_internals.tracing_modes import outside_function_mode
from exportdoctor.worker.read_log import LOG

_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_SITE = ("site-packages", "dist-packages")
_TORCH = torch.__path__[0]
# names by which code gets at a module's attributes without asking for one of them by name
_WHOLE_STATE = frozenset({"__dict__", "vars", "__reduce_ex__", "__getstate__", "getattr_static"})
_DEPTH = 4
_LISTENER = LOG.listener


@dataclass
class Behaviour:
    """What has been done so far, as words; what a finished module call did is one of them."""

    whole_state_reads: int = 0
    _words: list[object] = field(default_factory=list)
    _paused: bool = True
    _mode: TorchFunctionMode | None = None

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record what is done inside. A profiler that runs already is left alone; only torch functions count then."""
        free, collects = sys.getprofile() in (None, _LISTENER.hear), gc.isenabled()
        gc.disable()  # what a collection calls, and when, says nothing about a module
        try:
            with _TorchCalls(self) as self._mode:
                self._paused = False
                if free:
                    _LISTENER.is_shared = True
                    sys.setprofile(self._note_call)
                yield
        finally:
            self._paused, self._mode = True, None
            if free:
                _LISTENER.is_shared = False
                sys.setprofile(_LISTENER.profile)
            if collects:
                gc.enable()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Record nothing inside."""
        profile, paused = sys.getprofile(), self._paused
        sys.setprofile(None)
        self._paused = True
        try:
            with outside_function_mode(self._mode):
                yield
        finally:
            self._paused = paused
            sys.setprofile(profile)

    def begin(self) -> int:
        """Where a module call's words begin."""
        return len(self._words)

    def close(self, begin: int) -> str:
        """A digest of all words since `begin`, which takes their place."""
        words = (_code_name(word) if isinstance(word, CodeType) else str(word) for word in self._words[begin:])
        digest = hashlib.sha256("\x1e".join(words).encode(errors="replace")).hexdigest()[:16]
        self._words[begin:] = [digest]
        return digest

    def note_torch(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """One call of a torch function."""
        name = getattr(function, "__name__", type(function).__name__)
        if name == "__get__":
            name = getattr(function.__self__, "__name__", name)
        self._words.append((name, _words(args, 0), _words(kwargs, 0), _words(result, _DEPTH - 2)))

    @property
    def is_paused(self) -> bool:
        """Whether nothing is recorded now."""
        return self._paused

    def _note_call(self, frame: FrameType, event: str, arg: Any) -> None:
        if event not in ("call", "c_call"):
            return
        if _LISTENER.is_on:
            _LISTENER.hear(frame, event, arg)
        code = frame.f_code
        origin = _origin(code)
        if event == "call":
            if origin & _READS and any(isinstance(v, torch.nn.Module) for v in frame.f_locals.values()):
                self.whole_state_reads += 1
            back = frame.f_back
            if origin & _USERS or (origin & _LIBRARY and back is not None and _origin(back.f_code) & _USERS):
                self._words.append(code)
        elif origin & _USERS:
            self._words.append(getattr(arg, "__name__", ""))


class _TorchCalls(TorchFunctionMode):
    """Tells every call of a torch function, but none that torch makes inside of one."""

    def __init__(self, behaviour: Behaviour) -> None:
        super().__init__()
        self._behaviour = behaviour

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._behaviour.is_paused:
            return func(*args, **kwargs)
        profile = sys.getprofile()
        sys.setprofile(_LISTENER.profile)
        try:
            result = func(*args, **kwargs)
            self._behaviour.note_torch(func, args, kwargs, result)
            return result
        finally:
            sys.setprofile(profile)


def describe_value(value: Any) -> str:
    """The kinds of what a module returns: classes, and of tensors what is not a value."""
    return str(_words(value, 0))


def _words(value: Any, depth: int) -> Any:
    """Scalars by value, tensors by what is not a value, containers by their items, all else by class."""
    kind = type(value)
    if value is None or kind in (bool, int, float, complex, str):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return kind.__name__, value.dtype, _shape(value)
    if depth < _DEPTH and kind in (list, tuple, torch.Size):
        return kind.__name__, tuple(_words(item, depth + 1) for item in value)
    if depth < _DEPTH and isinstance(value, dict):
        return kind.__qualname__, tuple((str(key), _words(item, depth + 1)) for key, item in dict.items(value))
    if kind in (torch.dtype, torch.device, slice, range):
        return repr(value)
    return kind.__module__, kind.__qualname__


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    try:
        return tuple(tensor.shape)
    except RuntimeError:  # nested tensors have no sizes
        return ()


_USERS, _LIBRARY, _READS = 1, 2, 4
_ORIGINS: dict[int, tuple[int, CodeType]] = {}
"""By the identity of the code, which is kept: to hash code takes as long as to look it up ten times."""
_OWN = str(Path(__file__).parents[2])
# called from wherever a reference was dropped, and at every attribute of a module
_NOISE = ("weakref.py", "weak.py", "_weakrefset.py")


def _origin(code: CodeType) -> int:
    """Whose the code is, the user's (neither torch's, Python's nor ours) or a library's; whether it reads a state."""
    known = _ORIGINS.get(id(code))
    if known is not None:
        return known[0]
    name, found = code.co_filename, 0
    modules = name.startswith(_TORCH) and name.endswith("module.py")
    if not name.startswith(_OWN):
        theirs = any(site in name for site in _SITE) or not name.startswith((*_LIBRARIES, "<frozen"))
        if theirs and not name.startswith(_TORCH):
            found |= _USERS
        elif not name.endswith(_NOISE) and not modules:
            found |= _LIBRARY
        constants = (constant for constant in code.co_consts if type(constant) is str)
        if not modules and not _WHOLE_STATE.isdisjoint((*code.co_names, *constants)):
            found |= _READS
    _ORIGINS[id(code)] = found, code
    return found


@cache
def _code_name(code: CodeType) -> str:
    return f"{code.co_filename}:{code.co_firstlineno}:{code.co_name}:{hashlib.sha256(code.co_code).hexdigest()[:8]}"
