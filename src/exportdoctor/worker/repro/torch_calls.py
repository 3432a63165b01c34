"""Drafts that need no source of the user's: the torch functions that were called until the failure, one a line.

For a library whose code is made by a template, or refuses fake tensors, and for a draft that would be long: of the
calls only those stay from which what failed was computed. dynamo and a translation call nothing that could be seen:
there an export that is neither strict nor translated is watched, and the calls on the culprit's line come last.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import torch
from torch.overrides import TorchFunctionMode, resolve_name

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.core.failure.identity import outermost_operation
from exportdoctor.core.protocol.repro import ScriptDraft
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.records.probe import Probe
from exportdoctor.torch_internals.trees import leaves_with_paths, path_text
from exportdoctor.worker.attempt.export_attempt import attempt
from exportdoctor.worker.capture.session import PartCapture
from exportdoctor.worker.repro.script.literals import export_code, plain_code, tensor_code, torch_name
from exportdoctor.worker.repro.watched_run import run_in_child

_UNGUARDED = re.compile(r"data-dependent expression (.+?)(?: \(unhinted: |\.?$)", re.M)
_NAME = re.compile(r"\b[pvx]\d+\b")
_SHORT, _MOST = 25, 300  # lines of a draft
_PLACES = 4  # calls on one line, the last ones, that may be what failed
_MADE_BY = "the torch functions that were called until it failed"
_UNARY = {"__neg__": "-", "__invert__": "~"}
_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
_CONVERSIONS = {"__int__": "int", "__float__": "float", "__len__": "len", "__index__": "int", "__bool__": "bool"}
_SYMBOLIC = {"Eq": "==", "Ne": "!=", "Lt": "<", "Le": "<=", "Gt": ">", "Ge": ">=", "FloorDiv": "//", "Mod": "%",
             "PythonMod": "%", "TruncToInt": "int", "Max": "torch.sym_max", "Min": "torch.sym_min"}  # fmt: skip


class CallLog(TorchFunctionMode):
    """Writes each call to the descriptor `out` before it runs, so that nothing is lost where it crashes.

    A fact is ["entered"], ["input", path, name, its dynamic dimensions], ["call", name, code, what it changes, the
    user's line as `file:line`], ["symbol", which symbol, which code], ["memory", name, its memory], ["failed", the
    code of the last call with new tensors] or ["suspected", that code of a call on the line `suspect`].
    """

    def __init__(self, out: int, suspect: str = "") -> None:
        super().__init__()
        self._out, self._suspect = out, suspect
        self._count, self._is_cut = 0, False
        self._names: dict[int, str] = {}
        self._symbols: dict[str, str] = {}
        self._kept: list[Any] = []  # so that no id is used twice

    def enter(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """A forward pre-hook: the inputs have their names, and calls are written anew. Only the last forward counts."""
        self._names.clear()
        self._symbols.clear()
        self._write("entered")
        for number, (path, value) in enumerate(leaves_with_paths((args, kwargs))):
            if isinstance(value, torch.Tensor | torch.SymInt):
                name = f"x{number}"
                self._name(value, name)
                sizes = value.shape if isinstance(value, torch.Tensor) else ()
                dynamic = [axis for axis, size in enumerate(sizes) if isinstance(size, torch.SymInt)]
                self._write("input", path_text(path), name, dynamic)
        self.__enter__()

    def leave(self, *_: Any) -> None:
        """A forward hook that ends it."""
        self.__exit__(None, None, None)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, self._new_name("v")
        if getattr(func, "__name__", "") == "__get__" and not isinstance(result := func(*args, **kwargs), torch.Tensor):
            return result
        try:
            code = _Call(func, self).code(args, kwargs)
        except LookupError:
            return func(*args, **kwargs)
        changed = self._names.get(id(args[0])) if args and _changes_its_first(func) else None
        self._write("call", name, code, changed, line := _user_line())
        if line == self._suspect and (cut := self._code_cut(func, args, kwargs)):
            self._write("suspected", cut)
        try:
            result = func(*args, **kwargs)
        except BaseException:
            self._write("failed", self._code_cut(func, args, kwargs))
            raise
        if changed is None or result is not args[0]:
            self._name(result, name)
        return result

    def _code_cut(self, func: Any, args: Any, kwargs: Any) -> str:
        """The call with new tensors of the same sizes in place of those that it was given; empty where it has none."""
        self._is_cut = True
        try:
            return _Call(func, self).code(args, kwargs)
        except LookupError:
            return ""
        finally:
            self._is_cut = False

    def code_of(self, value: Any) -> str:
        """The code of an argument. Raises LookupError where it has none."""
        if self._is_cut and isinstance(value, torch.Tensor):
            return self._new_tensor(value)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return write_symbolic(str(value.node.expr), self._symbols)
        if isinstance(value, torch.Tensor):
            if id(value) not in self._names:
                symbolic = any(isinstance(size, torch.SymInt) for size in value.shape)
                code, name = self._new_tensor(value) if symbolic else tensor_code(value.detach()), self._new_name("p")
                self._write("call", name, code, None, "")
                self._name(value, name)
            return self._names[id(value)]
        if isinstance(value, slice):
            return f"slice({', '.join(self.code_of(part) for part in (value.start, value.stop, value.step))})"
        if value is Ellipsis:
            return "..."
        if type(value) in (list, tuple, torch.Size):
            inner = ", ".join(map(self.code_of, value))
            return f"[{inner}]" if type(value) is list else f"({inner}{',' * (len(value) == 1)})"
        plain = plain_code(value)
        if plain is None:
            raise LookupError(f"{type(value).__qualname__} object")
        return plain

    def _new_tensor(self, like: torch.Tensor) -> str:
        # in a trace of TorchScript a size is a tensor
        known = (int(size) if isinstance(size, torch.Tensor) else size for size in like.shape)
        sizes = "".join(f"{self.code_of(size)}, " for size in known)
        return f"torch.ones(({sizes}), dtype={like.dtype})"

    def _new_name(self, letter: str) -> str:
        self._count += 1
        return f"{letter}{self._count}"

    def _name(self, value: Any, code: str) -> None:
        self._kept.append(value)
        if isinstance(value, torch.Tensor):
            self._names[id(value)] = code
            self._write("memory", code, value.untyped_storage()._cdata if value.layout == torch.strided else 0)
            for axis, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    self._name_symbol(size, f"{code}.shape[{axis}]")
        elif isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            self._name_symbol(value, code)
        elif isinstance(value, tuple | list):
            for index, item in enumerate(value):
                self._name(item, f"{code}[{index}]")

    def _name_symbol(self, value: Any, code: str) -> None:
        symbol = str(value.node.expr)
        if symbol.isidentifier() and symbol not in self._symbols:
            self._symbols[symbol] = code
            self._write("symbol", symbol, code)

    def _write(self, *fact: Any) -> None:
        os.write(self._out, json.dumps(fact).encode() + b"\n")


class _Call:
    """The code of one call, as a user writes it."""

    def __init__(self, func: Any, log: CallLog) -> None:
        self._func, self._log = func, log

    def code(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Raises LookupError where an argument has no code, or the function no public name."""
        full = resolve_name(self._func) or ""
        if full.endswith(("Tensor.__getitem__", "Tensor.__setitem__")):
            index = args[1] if type(args[1]) is tuple and args[1] else (args[1],)
            entry = f"{self._log.code_of(args[0])}[{', '.join(map(self._index, index))}]"
            return f"{entry} = {self._log.code_of(args[2])}" if len(args) > 2 else entry
        given = [self._log.code_of(one) for one in args]
        given += [f"{key}={self._log.code_of(one)}" for key, one in kwargs.items()]
        if not full.startswith("torch.Tensor."):
            name = torch_name(self._func) if not full or full.startswith("torch.functional.") else full
            if not name.startswith("torch.") or name.startswith("torch.ops.exportdoctor."):
                raise LookupError(name)
            return f"{name}({', '.join(given)})"
        name = full.removeprefix("torch.Tensor.")
        if name.endswith(".__get__"):
            return f"{given[0]}.{name.removesuffix('.__get__')}"
        return self._method(name, given)

    def _index(self, value: Any) -> str:
        if not isinstance(value, slice):
            return self._log.code_of(value)
        ends = ["" if one is None else self._log.code_of(one) for one in (value.start, value.stop, value.step)]
        return ":".join(ends if ends[2] else ends[:2])

    def _method(self, name: str, given: list[str]) -> str:
        own, *rest = given
        bare = name.strip("_")
        if name in _CONVERSIONS:
            return f"{_CONVERSIONS[name]}({own})"
        if name in _UNARY:
            return f"{_UNARY[name]}{own}"
        if name.startswith("__"):
            for operator, first, second in ((bare, own, rest), (bare[1:], *(rest[:1] or [""]), [own])):
                if operator in _BINARY and len(second) == 1:
                    return f"{first} {_BINARY[operator]} {second[0]}"
            if bare[:1] == "i" and bare[1:] in _BINARY and rest:
                return f"{own} {_BINARY[bare[1:]]}= {rest[0]}"
            raise LookupError(name)
        return f"{own}.{name}({', '.join(rest)})"


def _changes_its_first(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    in_place = name.startswith("__i") and name.strip("_")[1:] in _BINARY
    return name == "__setitem__" or in_place or (name.endswith("_") and not name.endswith("__"))


def _user_line() -> str:
    """The innermost line that is not torch's, as `file:line`."""
    frame: Any = sys._getframe(2)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def write_symbolic(expression: str, symbols: dict[str, str]) -> str:
    """A symbolic expression, as torch prints it, as Python; its symbols as `symbols` has them. Raises LookupError."""
    try:
        return ast.unparse(_Symbolic(symbols).visit(ast.parse(expression, mode="eval")))
    except SyntaxError:
        raise LookupError(expression) from None


class _Symbolic(ast.NodeTransformer):
    def __init__(self, symbols: dict[str, str]) -> None:
        self.symbols = symbols

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A symbol."""
        return ast.parse(self.symbols[node.id], mode="eval").body

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """A function of sympy's or torch's."""
        how = _SYMBOLIC.get(ast.unparse(node.func))
        if how is None:
            raise LookupError(ast.unparse(node))
        given = [f"({ast.unparse(self.visit(one))})" for one in node.args]
        code = f"{how}({', '.join(given)})" if how[0].isalpha() else f" {how} ".join(given)
        return ast.parse(code, mode="eval").body


def write_call_drafts(part: PartCapture, probe: Probe, outcome: Outcome) -> Iterator[ScriptDraft]:
    """The drafts; none where the calls are not seen one by one, or too many lead to the failure."""
    stage = outcome.failure.stage if outcome.failure else "export"
    if stage not in ("export", "decompose", "translate"):
        return
    unseen = stage != "export" or EXPORTERS[probe.exporter].traces_with_dynamo
    watched = msgspec.structs.replace(probe, exporter="export", to="export") if unseen else probe
    culprit = outcome.failure.culprit if outcome.failure else None
    line = f"{culprit.file}:{culprit.line}" if culprit else ""
    translates = not EXPORTERS[probe.exporter].makes_program  # and may fail when the trace is over
    suspect = line if translates else ""
    again, facts = run_in_child(probe, lambda out: _attempt_logged(part, watched, out, suspect), read_calls)
    if again.passed and not unseen:
        return
    calls = [fact for fact in facts if fact[0] == "call"]
    symbols = {fact[1]: fact[2] for fact in facts if fact[0] == "symbol"}
    with part.prepare():  # it may register classes
        inputs = dict(_inputs(part, probe))
    memory = {fact[1]: fact[2] for fact in facts if fact[0] == "memory"}
    stopped = bool(calls) and (facts[-1][0] == "failed" or again.status.ended_the_process)
    bodies = []
    if unseen or (translates and not stopped):
        places = [place for place, call in enumerate(calls) if call[4] == line][: -_PLACES - 1 : -1]
        for place in places:
            before = calls[:place]
            bodies += [[*_leading_to(end, before, memory), end] for end in _endings(calls[place], before, {}, outcome)]
        bodies += [[f"return {fact[1]}"] for fact in facts if fact[0] == "suspected"][: -_PLACES - 1 : -1]
    else:
        endings = list(_endings(calls.pop() if stopped else None, calls, symbols, outcome))
        if stopped and facts[-1][1:] > [""]:
            endings.append(f"return {facts[-1][1]}")
        bodies = [[*_leading_to(ending, calls, memory), ending] for ending in endings]
    # new tensors in place of given ones hide where a value came from: they come first only where much would be left
    for lines in sorted(bodies, key=lambda lines: len(lines) > _SHORT):
        if len(lines) > _MOST:
            continue
        used = set(_NAME.findall("\n".join(lines)))
        given = [(name, inputs[path], axes) for kind, path, name, axes in (f for f in facts if f[0] == "input")
                 if name in used and path in inputs]  # fmt: skip
        yield ScriptDraft(what=_MADE_BY, source=_render(lines, given, probe, stage=stage))


def _attempt_logged(part: PartCapture, probe: Probe, out: int, suspect: str) -> Outcome:
    module, log = part.module_at(probe.fqn), CallLog(out, suspect)
    module.register_forward_pre_hook(log.enter, with_kwargs=True)
    module.register_forward_hook(log.leave, always_call=True)
    return attempt(part, probe)


def read_calls(path: str) -> list[list[Any]]:
    """The facts of the last forward in a file that a CallLog has written."""
    with open(path, encoding="utf-8") as file:
        facts = [json.loads(line) for line in file if line.endswith("\n")]
    entered = max((number for number, fact in enumerate(facts) if fact == ["entered"]), default=-1)
    return facts[entered + 1 :]


def _inputs(part: PartCapture, probe: Probe) -> Iterator[tuple[str, Any]]:
    call = part.calls_of(probe.fqn)[probe.call]
    for path, value in leaves_with_paths((call.args, call.kwargs)):
        yield path_text(path), value


def _endings(last: Any, calls: list[Any], symbols: dict[str, str], outcome: Outcome) -> Iterator[str]:
    """What may have failed: the last call, as a statement, or the question that could not be answered."""
    if last is not None:
        code = str(last[2])
        if code.startswith("bool("):
            asked = code[len("bool(") : -1]
            made = next((str(call[2]) for call in reversed(calls) if call[1] == asked), asked)
            for test in dict.fromkeys((asked, made, f"not {asked}")):
                yield f"if {test}:\n            pass"
        yield code if last[3] else f"return {code}"
        failure = outcome.failure
        asked = outermost_operation(failure.culprit.expression) if failure and failure.culprit else ""
        operand = re.match(r"[pvx]\d+\b", code)  # torch runs Tensor.tolist as other calls, for example
        if asked and operand and hasattr(torch.Tensor, asked):
            yield f"return {operand[0]}.{asked}()"
        return
    messages = [fact.message for fact in outcome.failure.exceptions] if outcome.failure else []
    for found in filter(None, map(_UNGUARDED.search, messages)):
        try:
            asked = write_symbolic(found[1], symbols)
        except LookupError:
            continue
        yield f"if {asked}:\n            pass"
        yield from (f"return {how}({asked})" for how in ("int", "range", "bool"))
        return


def _leading_to(ending: str, calls: list[Any], memory: dict[str, int]) -> list[str]:
    """The calls from which the ending's names were computed, as statements; also what was written into them."""
    wanted, lines = set(_NAME.findall(ending)), []
    for _, name, code, changed, _ in reversed(calls):
        written = changed is not None and any(memory.get(changed, 0) == memory.get(one) for one in wanted)
        if name not in wanted and not written:
            continue
        wanted |= {*_NAME.findall(code)}
        lines.append(code if written and name not in wanted else f"{name} = {code}")
    return lines[::-1]


def _render(lines: list[str], given: list[tuple[str, Any, list[int]]], probe: Probe, *, stage: str) -> str:
    names = ", ".join(["self", *(name for name, _, _ in given)])
    values = "".join(f"{tensor_code(v) if isinstance(v, torch.Tensor) else plain_code(v)}, " for _, v, _ in given)
    shapes = [_dynamic(value, axes) for _, value, axes in given]
    dynamic = f", dynamic_shapes=({', '.join(shapes)},)" if any(one != "None" for one in shapes) else ""
    call = export_code(probe.exporter, f"Model(), ({values})", shapes=dynamic, stage=stage)
    body = "\n        ".join(lines)
    return f"import torch\nclass Model(torch.nn.Module):\n    def forward({names}):\n        {body}\n{call}\n"


def _dynamic(value: Any, axes: list[int]) -> str:
    if not isinstance(value, torch.Tensor):
        return "torch.export.Dim.DYNAMIC"
    return "{" + ", ".join(f"{axis}: torch.export.Dim.DYNAMIC" for axis in axes) + "}" if axes else "None"
