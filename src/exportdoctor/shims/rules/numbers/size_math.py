"""Functions of `math` and of numpy take a size for a plain number, which fixes it. Here what they give is symbolic.

A root is a power, which torch keeps symbolic. For a logarithm, an exponential or an angle function torch has no symbol
that a program may hold: these are computed by a tensor of one float64, whose value the program reads.
"""

from __future__ import annotations

import builtins
import dis
import math
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute, patch_item
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.code.code_swap import all_code, user_functions
from exportdoctor.shims.rules.code.number_types import asks_for_type, symbolic_numbers
from exportdoctor.shims.rules.numbers.number_calls import symbolic_int

_BY_TENSOR = (
    "log", "log2", "log10", "log1p", "exp", "exp2", "expm1", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin",
    "acos", "atan", "asinh", "acosh", "atanh", "erf",
)  # fmt: skip
"""Names that `math` and `torch.Tensor` share; numpy has most of them."""


def _is_symbolic(value: Any) -> bool:
    import torch

    return isinstance(value, torch.SymInt | torch.SymFloat)


def _of_tensor(name: str, value: Any) -> Any:
    import torch

    return getattr(torch.scalar_tensor(value, dtype=torch.float64, device="cpu"), name)().item()


def _log(value: Any, *base: Any) -> Any:
    found = _of_tensor("log", value) if _is_symbolic(value) else math.log(value)
    for one in base:
        found = found / (_of_tensor("log", one) if _is_symbolic(one) else math.log(one))
    return found


def _power(value: Any, exponent: Any) -> Any:
    import torch

    return torch.sym_float(value) ** exponent


def _float_of(value: Any) -> Any:
    import torch

    return abs(torch.sym_float(value))


def _rounded_by_numpy(name: str, value: Any) -> Any:
    """What numpy rounds: of a fraction a float, of a whole number what this release of numpy gives."""
    import numpy
    import torch

    keeps_whole = isinstance(value, torch.SymInt) and isinstance(getattr(numpy, name)(1), numpy.integer)
    return value if keeps_whole else torch.sym_float(getattr(math, name)(value))


_BOTH: Mapping[str, Callable[..., Any]] = {
    **{name: partial(_of_tensor, name) for name in _BY_TENSOR},
    "sqrt": lambda value: value**0.5,
    "degrees": lambda value: value * (180 / math.pi),
    "radians": lambda value: value * (math.pi / 180),
    "fabs": _float_of,
}
_OF_MATH: Mapping[str, Callable[..., Any]] = {
    **_BOTH,
    "log": _log,
    "pow": _power,
    "isqrt": lambda value: math.trunc(value**0.5),
    "prod": math.prod,
}
_OF_NUMPY: Mapping[str, Callable[..., Any]] = {
    **_BOTH,
    "arcsin": _BOTH["asin"],
    "arccos": _BOTH["acos"],
    "arctan": _BOTH["atan"],
    "power": operator.pow,
    "square": lambda value: value * value,
    "absolute": abs,
    "abs": abs,
    "prod": math.prod,
    **{name: partial(_rounded_by_numpy, name) for name in ("ceil", "floor", "trunc")},
}


_LIBRARIES: Mapping[str, Mapping[str, Callable[..., Any]]] = {"math": _OF_MATH, "numpy": _OF_NUMPY}


class _Symbolic:
    """A function that computes symbolic numbers by another."""

    def __init__(self, plain: Callable[..., Any], symbolic: Callable[..., Any]) -> None:
        self.plain, self.symbolic = plain, symbolic

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inner = args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args
        if kwargs or not any(map(_is_symbolic, inner)):
            return self.plain(*args, **kwargs)
        return self.symbolic(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)


class _Library:
    """A module whose functions take symbolic numbers."""

    def __init__(self, library: ModuleType, functions: Mapping[str, Any]) -> None:
        self._library, self._functions = library, functions

    def __getattr__(self, name: str) -> Any:
        return self._functions[name] if name in self._functions else getattr(self._library, name)


def _replacements(libraries: Sequence[str]) -> dict[int, Any]:
    """What stands for a library or one of its functions, by identity."""
    found: dict[int, Any] = {}
    for name in libraries:
        library, symbolic = sys.modules.get(name), _LIBRARIES[name]
        if library is None:
            continue
        functions = {
            one: _Symbolic(getattr(library, one), other) for one, other in symbolic.items() if hasattr(library, one)
        }
        found[id(library)] = _Library(library, functions)
        found.update((id(function.plain), function) for function in functions.values())
    return found


def _find_names(call: ExportCall, libraries: Sequence[str]) -> list[tuple[dict[str, Any], str, Any]]:
    """The names of the user's modules under which one of them is known, with what stands for it there. None of a file
    in which a function asks for types of numbers."""
    instead, asking = _replacements(libraries), set[int]()
    named: dict[int, set[str]] = {}
    namespaces: dict[int, dict[str, Any]] = {}
    for function in user_functions(call, lambda code: code.co_name != "__init__"):
        place = id(function.__globals__)
        namespaces[place] = function.__globals__
        named.setdefault(place, set()).update(name for code in all_code(function.__code__) for name in code.co_names)
        if asks_for_type(function.__code__):
            asking.add(place)
    return [
        (names, name, instead[id(value)])
        for place, names in namespaces.items()
        if place not in asking and any(id(names.get(name)) in instead for name in named[place])
        for name, value in names.items()
        if id(value) in instead
    ]


def _rounding_files(call: ExportCall, found: Sequence[tuple[dict[str, Any], str, Any]]) -> list[dict[str, Any]]:
    """The files with a function that names both `int` and what was found."""
    known = {(id(names), name) for names, name, _ in found}

    def rounds(code: CodeType) -> bool:
        return code.co_name != "__init__" and "int" in code.co_names

    return [
        function.__globals__
        for function in user_functions(call, rounds)
        for code in all_code(function.__code__)
        if "int" in code.co_names and any((id(function.__globals__), name) in known for name in code.co_names)
    ]


def _is_of(value: Any, library: str) -> bool:
    """Whether what stands for a library or one of its functions stands for that of this library."""
    real = sys.modules.get(library)
    if isinstance(value, _Library):
        return value._library is real
    return any(getattr(real, name, None) is value.plain for name in _LIBRARIES[library])


def _importing_functions(call: ExportCall, libraries: Sequence[str]) -> list[FunctionType]:
    """The functions that import one of these themselves; none of a file in which such a one asks for types of
    numbers."""

    def imports(code: CodeType) -> bool:
        return any(one.opname == "IMPORT_NAME" and one.argval in libraries for one in dis.get_instructions(code))

    found = list(user_functions(call, imports))
    asking = {id(one.__globals__) for one in found if asks_for_type(one.__code__)}
    return [one for one in found if id(one.__globals__) not in asking]


@contextmanager
def _importing_symbolic(functions: Sequence[FunctionType], libraries: Sequence[str]) -> Iterator[None]:
    """Within it an import in one of these functions' files gives what stands for a library."""
    files = {id(function.__globals__) for function in functions}
    replacements, plain = _replacements(libraries), builtins.__import__

    def import_module(name: str, names: Any = None, *rest: Any, **more: Any) -> Any:
        found = plain(name, names, *rest, **more)
        return replacements.get(id(found), found) if name in libraries and id(names) in files else found

    with patch_attribute(builtins, "__import__", import_module) if functions else nullcontext():
        yield


def _of(*libraries: str) -> Any:
    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        found, importing = _find_names(call, libraries), _importing_functions(call, libraries)
        own = importing if len(libraries) == 1 else _importing_functions(call, libraries[-1:])
        if not own and not any(_is_of(value, libraries[-1]) for _, _, value in found):
            named = "numpy" if "numpy" in libraries else "`math`"
            raise NotApplicable(f"no file of the modules has {named}, or one that has asks for types of numbers")
        with ExitStack() as stack:
            stack.enter_context(symbolic_numbers(call))
            # what is computed is often rounded at once
            rounding = [one.__globals__ for one in importing if "int" in one.__code__.co_names]
            stack.enter_context(symbolic_int([*_rounding_files(call, found), *rounding], fractions=True))
            stack.enter_context(_importing_symbolic(importing, libraries))
            for names, name, value in found:
                stack.enter_context(patch_item(names, name, value))
            yield call

    return enter


SHIM = Shim(
    id="math-of-sizes",
    title="Keeps what `math` computes from a size symbolic: `math.sqrt(n)` is `n ** 0.5`",
    soundness="exact",
    enter=_of("math"),
    does=(
        "Functions of `math` ask for a plain number, which fixes a size. Here a root of a size is a power, and a "
        "logarithm, an exponential or an angle function of it is computed by a tensor of one float64, whose value the "
        "program reads. `int` of such a number is its whole part."
    ),
    cures=(
        Cure(kinds=("dynamic_dim_specialised",)),
        Cure(kinds=("data_dependent_value", "data_dependent_guard"), where=r"\bmath\."),
    ),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="torch.export traces functions of math on sizes",
    rank=23,
    replaces=(
        Replacement(
            target="the functions that ask math for a number",
            before="scores = scores / math.sqrt(keys.shape[1])\n",
            after="scores = scores / keys.shape[1] ** 0.5\n",
        ),
    ),
)

NUMPY = replace(
    SHIM,
    id="numpy-of-sizes",
    title="Keeps what numpy computes from a size symbolic: `np.sqrt(n)` is `n ** 0.5`",
    soundness="precondition",
    enter=_of("math", "numpy"),
    does=(
        "As `math-of-sizes`, for functions of numpy, too. Products and roundings by numpy become those of Python. What "
        "numpy gives is then a number of Python, symbolic, and no longer one of numpy."
    ),
    precondition=(
        "what numpy gives of a size is only computed with: it is not asked for its dtype, and nothing is divided by it "
        "where it is zero"
    ),
    cures=(
        Cure(kinds=("dynamic_dim_specialised",)),
        Cure(kinds=("data_dependent_value", "data_dependent_guard", "python_error"), where=r"\b(?:np|numpy)\."),
    ),
    rank=23,
    conflicts=("math-of-sizes",),
    replaces=(
        Replacement(
            target="the functions that ask numpy for a number",
            before="scores = scores / np.sqrt(keys.shape[1])\n",
            after="scores = scores / keys.shape[1] ** 0.5\n",
        ),
    ),
)
