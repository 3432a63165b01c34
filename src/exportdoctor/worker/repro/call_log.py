"""Logs the torch functions that a forward calls, as code, in a file that outlives a crash."""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.torch_internals.shape_env import before_each_guard
from exportdoctor.torch_internals.trees import leaves_with_paths, path_text
from exportdoctor.worker.describe.symbol_origins import user_frame_of
from exportdoctor.worker.repro.script.literals import plain_code, tensor_code, torch_name

_UNARY = {"__neg__": "-", "__invert__": "~"}
_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
_CONVERSIONS = {"__int__": "int", "__float__": "float", "__len__": "len", "__index__": "int", "__bool__": "bool"}
_SYMBOLIC = {"Eq": "==", "Ne": "!=", "Lt": "<", "Le": "<=", "Gt": ">", "Ge": ">=", "FloorDiv": "//", "Mod": "%",
             "PythonMod": "%", "TruncToInt": "int", "Max": "torch.sym_max", "Min": "torch.sym_min"}  # fmt: skip

_LONGEST = 1000  # characters of an expression that gets a name


class CallLog(TorchFunctionMode):
    """Writes each call to the descriptor `out` before it runs, so that nothing is lost where it crashes.

    A fact is ["entered"], ["input", path, name, its dynamic dimensions], ["call", name, code, what it changes, the
    user's line as `file:line`], ["symbol", a symbol or an expression, its code], ["value", name, its memory, the code
    of a new tensor of its sizes or ""], ["failed", the code of the last call with new tensors], ["suspected", that code
    of a call on the line `suspect`] or ["guard", the user's line, its text, the call that runs, how Python asked
    ("int", "float", "bool" or ""), the code of what it asked for].
    """

    def __init__(self, out: int, suspect: str = "") -> None:
        super().__init__()
        self._out, self._suspect = out, suspect
        self._count, self._is_cut = 0, False
        self._names: dict[int, str] = {}
        self._symbols: dict[str, str] = {}
        self._kept: list[Any] = []  # so that no id is used twice
        self._running = ""  # the name of a call's result, or "?" where the call has no code
        self._forward: FrameType | None = None  # what called the pre-hook

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
        self._forward = sys._getframe(1)
        self.__enter__()

    def leave(self, *_: Any) -> None:
        """A forward hook that ends it. Where a forward raises during an export, torch calls no hook."""
        self.__exit__(None, None, None)

    @contextmanager
    def guards(self) -> Iterator[None]:
        """Within it, sizes that code fixes or compares are written, too."""

        def note(*_: Any) -> None:
            frame = sys._getframe(1)
            how, value = _asked_by_python(frame)
            try:
                code = self.code_of(value) if how else ""
            except LookupError:
                return
            if (at := user_frame_of(frame)) is not None:
                self._write("guard", f"{at.file}:{at.line}", at.source, self._running, how, code)

        with before_each_guard(note, note):
            yield

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._running or not _is_running(self._forward):  # it is logged, or behind a forward that raised
            return func(*args, **(kwargs or {}))
        try:
            return self._call(func, args, kwargs or {})
        finally:
            self._running = ""

    def _call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name, self._running = self._new_name("v"), "?"
        if getattr(func, "__name__", "") == "__get__" and not isinstance(result := func(*args, **kwargs), torch.Tensor):
            return result
        try:
            code = _Call(func, self).code(args, kwargs)
        except LookupError:
            return func(*args, **kwargs)
        self._running = name
        changed = self._names.get(id(args[0])) if args and _changes_its_first(func) else None
        self._write("call", name, code, changed, line := _place(_user_frame(sys._getframe(1))))
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
            try:
                new = self._new_tensor(value)
            except LookupError:  # a size that it has brought
                new = ""
            self._write("value", code, value.untyped_storage()._cdata if value.layout == torch.strided else 0, new)
            for axis, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    self._name_symbol(size, f"{code}.shape[{axis}]")
        elif isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            self._name_symbol(value, code)
        elif isinstance(value, tuple | list):
            for index, item in enumerate(value):
                self._name(item, f"{code}[{index}]")

    def _name_symbol(self, value: Any, code: str) -> None:
        text = str(value.node.expr)
        symbol = text if text.isidentifier() else normalise_symbolic(text)
        if symbol and symbol not in self._symbols:
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
            # what switches a mode computes nothing, and is called on the way out of a failure, too
            if not name.startswith("torch.") or name.startswith(("torch.ops.exportdoctor.", "torch._C._set_")):
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


def _user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is not torch's."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_running(frame: FrameType | None) -> bool:
    """Whether this call is made from within the frame's."""
    caller: FrameType | None = sys._getframe(1)
    while caller is not None and caller is not frame:
        caller = caller.f_back
    return caller is not None


def _place(frame: FrameType | None) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def _asked_by_python(frame: FrameType | None) -> tuple[str, Any]:
    """How Python asked for a value, "int", "float" or "bool", and the symbolic value; ("", None) where torch asked."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        value, how = frame.f_locals.get("self"), _CONVERSIONS.get(frame.f_code.co_name)
        if how and isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return how, value
        frame = frame.f_back
    return "", None


def normalise_symbolic(expression: str) -> str:
    """An expression with symbols in the form in which `write_symbolic` looks it up; "" for a number or a long one."""
    try:
        tree = ast.parse(expression, mode="eval") if len(expression) <= _LONGEST else None
    except SyntaxError:
        return ""
    return ast.unparse(tree) if tree and any(isinstance(node, ast.Name) for node in ast.walk(tree)) else ""


def write_symbolic(expression: str, symbols: dict[str, str]) -> str:
    """A symbolic expression, as torch prints it, as Python. Raises LookupError.

    `symbols` has the code of its symbols, or of whole expressions in it (`normalise_symbolic`): a size of a result may
    have a name where the symbols in it, which the call created, have none.
    """
    try:
        return ast.unparse(_Symbolic(symbols).visit(ast.parse(expression, mode="eval")))
    except SyntaxError:
        raise LookupError(expression) from None


class _Symbolic(ast.NodeTransformer):
    def __init__(self, symbols: dict[str, str]) -> None:
        self.symbols = symbols

    def visit(self, node: ast.AST) -> Any:
        """A node, which may be an expression that has a name."""
        named = self.symbols.get(ast.unparse(node)) if isinstance(node, ast.BinOp | ast.Call) else None
        return super().visit(node) if named is None else ast.parse(named, mode="eval").body

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


def read_calls(path: str) -> list[list[Any]]:
    """The facts of the last forward in a file that a CallLog has written."""
    with open(path, encoding="utf-8") as file:
        facts = [json.loads(line) for line in file if line.endswith("\n")]
    entered = max((number for number, fact in enumerate(facts) if fact == ["entered"]), default=-1)
    return facts[entered + 1 :]
