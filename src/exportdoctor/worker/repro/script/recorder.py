"""Records one run of user code: which lines run, on which submodules, and what its calls of user functions return.

Each fact is written to a file at once, so that nothing is lost where the run crashes or hangs.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType, FunctionType
from typing import Any

import torch

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.torch_internals.module_proxies import state_id

_PLAIN = (bool, int, float, str)
Site = tuple[str, int, int, int, int]
"""File, line, end line, column and end column of a call, columns in UTF-8 bytes."""


@dataclass
class Record:
    """What a run did. `codes` are (file, first line) of functions that ran, `methods` those with the FQN of `self`.

    `returned` maps a call's site to what it always returned: a plain value, or `module:qualified name` of a function.
    `taken` maps the function of a decorator's wrapper to the keywords that the wrapper was given and did not pass on.
    """

    lines: set[tuple[str, int]] = field(default_factory=set)
    codes: set[tuple[str, int]] = field(default_factory=set)
    methods: set[tuple[str, str, int]] = field(default_factory=set)
    returned: dict[Site, Any] = field(default_factory=dict)
    taken: dict[tuple[str, int], set[str]] = field(default_factory=dict)

    def ran(self, file: str, first: int, last: int) -> bool:
        """Whether any line of a range did."""
        return any((file, line) in self.lines for line in range(first, last + 1))


@dataclass
class Recorder:
    """A trace function that writes facts to the descriptor `out`."""

    out: int
    names: Mapping[int, str]
    _files: dict[str, bool] = field(default_factory=dict)
    _written: set[str] = field(default_factory=set)
    _raised: set[int] = field(default_factory=set)
    _given: dict[int, frozenset[str]] = field(default_factory=dict)

    def run(self, work: Callable[[], Any]) -> Any:
        """What `work` returns, recorded."""
        sys.settrace(self._on_call)
        try:
            return work()
        finally:
            sys.settrace(None)

    def _write(self, *fact: Any) -> None:
        line = json.dumps(fact)
        if line not in self._written:
            self._written.add(line)
            os.write(self.out, line.encode() + b"\n")

    def _on_call(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        watched = self._files.get(code.co_filename)  # every call of torch's own comes by here: it must be quick
        if watched is None:
            watched = is_user_file(code.co_filename) and os.path.isfile(code.co_filename)
            self._files[code.co_filename] = watched
        if not watched:
            return None
        self._write("code", code.co_filename, code.co_firstlineno)
        self._note_keywords(frame)
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module):
            self._write("method", self.names.get(state_id(owner), "?"), code.co_filename, code.co_firstlineno)
        return self._on_event

    def _note_keywords(self, frame: FrameType) -> None:
        """Write which keywords the wrappers around a function have kept from it; they take any, and pass them on."""
        given = _keywords(frame)
        around, taken = frame.f_back, set[str]()
        while around is not None and _takes_any(around) and id(around) in self._given:
            taken |= self._given[id(around)] - given
            around = around.f_back
        if taken:
            self._write("taken", frame.f_code.co_filename, frame.f_code.co_firstlineno, sorted(taken))
        if _takes_any(frame):
            self._given[id(frame)] = given

    def _on_event(self, frame: FrameType, event: str, value: Any) -> Any:
        code = frame.f_code
        if event == "line":
            self._write("line", code.co_filename, frame.f_lineno)
        elif event == "exception":
            self._raised.add(id(frame))
        elif event == "return":
            site = _site(frame.f_back)
            if site is not None:
                raised = id(frame) in self._raised and value is None
                self._write("returned", site, ["unknown"] if raised else _describe_value(value))
            self._raised.discard(id(frame))
            self._given.pop(id(frame), None)
        return self._on_event


def _takes_any(frame: FrameType) -> bool:
    """Whether the function takes any arguments, as wrappers of decorators do."""
    both = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    return frame.f_code.co_flags & both == both


def _keywords(frame: FrameType) -> frozenset[str]:
    """The names of what a function that begins was given: of its parameters, and in its `**kwargs`."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    names = set(code.co_varnames[:count])
    if code.co_flags & inspect.CO_VARKEYWORDS:
        bundle = code.co_varnames[count + bool(code.co_flags & inspect.CO_VARARGS)]
        names |= {name for name in frame.f_locals.get(bundle, ()) if isinstance(name, str)}
    return frozenset(names)


def _site(frame: FrameType | None) -> Site | None:
    """Where `frame` is calling from, if that is the user's code."""
    if frame is None or not is_user_file(frame.f_code.co_filename):
        return None
    positions = list(frame.f_code.co_positions())
    index = frame.f_lasti // 2
    if not 0 <= index < len(positions) or None in positions[index]:
        return None
    return (frame.f_code.co_filename, *positions[index])  # type: ignore[return-value]


def _describe_value(value: Any) -> list[Any]:
    if type(value) in _PLAIN:
        return ["plain", value]
    if isinstance(value, FunctionType) and "<" not in value.__qualname__:
        return ["function", value.__module__, value.__qualname__]
    return ["unknown"]


def read_record(path: str) -> Record:
    """The record in the file at `path`; a torn last line is dropped."""
    record = Record()
    returned: dict[Site, list[Any]] = {}
    with open(path, encoding="utf-8") as file:
        for text in file:
            if not text.endswith("\n"):
                break
            kind, *fact = json.loads(text)
            if kind == "line":
                record.lines.add((fact[0], fact[1]))
            elif kind == "code":
                record.codes.add((fact[0], fact[1]))
            elif kind == "method":
                record.methods.add((fact[0], fact[1], fact[2]))
            elif kind == "taken":
                record.taken.setdefault((fact[0], fact[1]), set()).update(fact[2])
            else:
                returned.setdefault(tuple(fact[0]), []).append(fact[1])
    record.returned = {
        site: values[0] for site, values in returned.items() if len(values) == 1 and values[0] != ["unknown"]
    }
    return record
