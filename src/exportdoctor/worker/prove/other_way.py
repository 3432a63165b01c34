"""Where eager goes another way through the model's code than the export went, which a program cannot follow.

`torch.compiler.is_compiling()`, the type of a tensor or of a size, or its memory layout decide so. Instructions of the
user's functions are listed in both runs, and compared up to the first that differ.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from types import CodeType, FrameType
from typing import Any

import msgspec
import torch

from exportdoctor.core.records.outcome import Agreement
from exportdoctor.report.wording.export import goes_another_way
from exportdoctor.targets.eager import run_calls
from exportdoctor.torch_internals.module_proxies import is_same_module
from exportdoctor.worker.describe.module_stack import is_call_of_module
from exportdoctor.worker.describe.python_frames import expression_at, is_user_frame
from exportdoctor.worker.prove.input_set import InputSet
from exportdoctor.worker.prove.size_texts import name_size_text

Step = tuple[CodeType, int]
"""A function's code, and the offset of an instruction in it."""

_MOST_STEPS = 2_000_000
_LONGEST = 80


def name_other_way(
    rows: Sequence[Agreement], sets: Sequence[InputSet], module: torch.nn.Module, export: Callable[[], Any]
) -> list[Agreement]:
    """The rows, with the place in the note of the first that differs, if there is one; `export` exports again.

    Where both go the same way, the text of a size that was made on it is named.
    """
    found = list(rows)
    place = next((at for at, row in enumerate(rows) if not row.holds and not row.refused), None)
    if place is not None and (note := _note(sets[place], module, export) or name_size_text(export)):
        row = rows[place]
        found[place] = msgspec.structs.replace(row, note="; ".join(filter(None, (row.note, note))))
    return found


def _note(one: InputSet, module: torch.nn.Module, export: Callable[[], Any]) -> str:
    eager = _steps_of(module, lambda: run_calls(module, one.calls))
    again = _steps_of(module, lambda: run_calls(module, one.calls))
    files = {code.co_filename for code, _ in eager}
    step = find_parting(eager, [step for step in _steps_of(module, export) if step[0].co_filename in files])
    if step is None or ((other := find_parting(eager, again)) is not None and other <= step):
        return ""
    code, offset = eager[step]
    line = next((line for begin, end, line in code.co_lines() if begin <= offset < end), None)
    asked = shorten(_condition_in(expression_at(code, offset) or ""), _LONGEST, placeholder=" …")
    return goes_another_way(f"{Path(code.co_filename).name}:{line}", asked)


def _condition_in(text: str) -> str:
    """Of `a if condition else b`, by whose whole text a jump stands, the condition."""
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return text
    return ast.unparse(node.test) if isinstance(node, ast.IfExp) else text


def find_parting(one: Sequence[Step], other: Sequence[Step]) -> int | None:
    """The last common step before two ways part within a function; None where they do not, or part elsewhere."""
    at = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    if not at or not (one[at - 1][0] is one[at][0] is other[at][0]):
        return None
    return at - 1


def _steps_of(module: torch.nn.Module, run: Callable[[], Any]) -> list[Step]:
    """The instructions of the user's functions in the last call of the module, as far as it came."""
    with watch_steps(module) as watch, suppress(Exception):
        run()
    return watch.steps


@dataclass
class StepWatch:
    """Lists the steps of the user's functions while a module is called, each time from the beginning.

    Generated code is left out: torch makes some for its trace.
    """

    module: torch.nn.Module
    steps: list[Step] = field(default_factory=list)
    is_running: bool = False
    users: dict[CodeType, bool] = field(default_factory=dict)

    def on_call(self, frame: FrameType, event: str, arg: Any) -> Any:
        """A trace function for all calls."""
        code = frame.f_code
        if not self.is_running:
            is_call = is_call_of_module(code.co_name) and not is_user_frame(frame)
            if not is_call or not is_same_module(frame.f_locals.get("self"), self.module):
                return None
            self.is_running, self.steps = True, []
            return self._on_root
        if code not in self.users:
            self.users[code] = not code.co_filename.startswith("<") and is_user_frame(frame)
        if not self.users[code]:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._on_step

    def _on_root(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "return":
            self.is_running = False
        return self._on_root

    def _on_step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode" and len(self.steps) < _MOST_STEPS:
            self.steps.append((frame.f_code, frame.f_lasti))
        return self._on_step


@contextmanager
def watch_steps(module: torch.nn.Module) -> Iterator[StepWatch]:
    """List the steps of calls of the module inside."""
    watch, before = StepWatch(module), sys.gettrace()
    sys.settrace(watch.on_call)
    try:
        yield watch
    finally:
        sys.settrace(before)
