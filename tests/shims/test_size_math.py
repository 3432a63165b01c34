"""What `math` and numpy compute from sizes stays symbolic."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from math import log as natural_logarithm
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, find
from exportdoctor.shims.rules.numbers import size_math

SHIM, NUMPY = find("math-of-sizes"), find("numpy-of-sizes")


class Of(nn.Module):
    """A forward that is given as a function."""

    def __init__(self, body: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def square_grid(x: Tensor) -> Tensor:
    side = int(math.sqrt(x.shape[1]))
    return x + side * side


def squares(x: Tensor) -> Tensor:
    wide = torch.full((1,), math.fabs(x.shape[1]))
    return x + math.isqrt(x.shape[1]) + math.fabs(x.shape[1] / 2) + math.pow(x.shape[1], 1.5) + wide


def with_its_own_import(x: Tensor) -> Tensor:
    import math as library

    return x / library.log(x.shape[1] + 1) + int(library.sqrt(x.shape[1]))


def with_a_function_of_its_own(x: Tensor) -> Tensor:
    from math import log as logarithm

    return x * logarithm(x.shape[1], 2)


def padded_to_four(x: Tensor) -> Tensor:
    blocks = int(np.ceil(x.shape[1] / 4))
    return F.pad(x, (0, 4 * blocks - x.shape[1]))


BODIES: dict[str, Callable[[Tensor], Tensor]] = {
    "a root": lambda x: x / math.sqrt(x.shape[1]),
    "a root by its own name": lambda x: x / sqrt(x.shape[1]),
    "a logarithm": lambda x: x * math.log(x.shape[1] + 1),
    "logarithms of other bases": lambda x: x * math.log2(x.shape[1]) - math.log10(x.shape[1]) + math.log(x.shape[1], 3),
    "a logarithm by its own name": lambda x: x * natural_logarithm(x.shape[1], 2),
    "an exponential": lambda x: x * math.exp(-x.shape[1] / 7) + math.expm1(1 / x.shape[1]),
    "angles": lambda x: x * math.sin(x.shape[1]) + math.cos(math.radians(x.shape[1])) + math.atan(x.shape[1]),
    "numpy's root and logarithm": lambda x: x * np.log(x.shape[1]) + np.sqrt(x.shape[1]) + np.power(x.shape[1], 2),
    "numpy's product": lambda x: x.reshape(int(np.prod(x.shape))) * np.sqrt(x.shape[0]),
    "the side of a square": square_grid,
    "whole roots and powers": squares,
    "a number of blocks, rounded up by numpy": padded_to_four,
    "whole numbers, rounded by numpy": lambda x: x + torch.full((1,), np.floor(x.shape[1])) + np.sqrt(x.shape[1]),
    "a library that is imported there": with_its_own_import,
    "a function that is imported there": with_a_function_of_its_own,
    "numbers beside sizes": lambda x: x * math.sqrt(2.0) + math.log(4) / math.sqrt(x.shape[1]),
}


def calls_of(module: nn.Module, low: int = 2) -> ExportCall:
    shapes = {"x": {0: Dim("batch"), 1: Dim("length", min=low, max=1000)}}
    return ExportCall(module=module, args=(torch.randn(3, 9),), dynamic_shapes=shapes)


@pytest.mark.slow
@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_the_program_computes_it_for_each_size(body: Callable[[Tensor], Tensor]) -> None:
    module = Of(body)
    with pytest.raises(Exception, match=r"Constraints violated|has no callable sqrt method|SymInt"):
        calls_of(module).export()
    shim = NUMPY if "np" in body.__code__.co_names else SHIM
    with apply_shims([shim], calls_of(module)) as call:
        program = call.export()
    for rows, length in ((3, 9), (1, 2), (2, 4), (5, 16), (4, 33), (2, 100), (1, 961)):
        x = torch.randn(rows, length)
        torch.testing.assert_close(program.module()(x), body(x), rtol=1e-6, atol=1e-6)
    assert math.sqrt is sys.modules["math"].sqrt
    assert np.sqrt(np.float64(4)) == 2


@settings(max_examples=200, deadline=None)
@given(value=st.one_of(st.integers(1, 10**6), st.floats(0.01, 1e4)))
def test_functions_give_what_those_of_python_and_numpy_give(value: float) -> None:
    for library, functions in ((math, size_math._OF_MATH), (np, size_math._OF_NUMPY)):
        for name, symbolic in functions.items():
            if name in {"pow", "power"}:
                args: tuple[Any, ...] = (value, 1.5)
            elif name == "prod":
                args = ((value, 3, value),)
            elif name in {"asin", "acos", "atanh", "arcsin", "arccos"}:
                args = (value / 1e6,)
            elif name.startswith(("exp", "sinh", "cosh")):
                args = (value / 1e5,)
            elif name == "isqrt":
                args = (int(value),)
            else:
                args = (value + 1,) if name == "acosh" else (value,)
            if hasattr(library, name):
                assert symbolic(*args) == pytest.approx(getattr(library, name)(*args), rel=1e-12, abs=1e-12)


@settings(max_examples=500, deadline=None)
@given(side=st.integers(0, 10**7))
def test_the_whole_root_of_a_square_is_its_side(side: int) -> None:
    square = side * side
    assert size_math._OF_MATH["isqrt"](square) == side
    assert int(size_math._OF_MATH["sqrt"](square)) == int(math.sqrt(square)) == side


def test_logarithms_of_powers_and_their_neighbours_round_as_those_of_python() -> None:
    names = {2: "log2", 10: "log10"}
    for base in (2, 3, 5, 10):
        for power in range(1, 20):
            for size in (base**power - 1, base**power, base**power + 1):
                if 1 < size < 2**40:
                    wanted = [math.log(size, base)] + ([getattr(math, names[base])(size)] if base in names else [])
                    parts = [size_math._of_tensor("log", size) / math.log(base)]
                    parts += [size_math._of_tensor(names[base], size)] if base in names else []
                    for found, known in zip(parts, wanted, strict=True):
                        assert (int(found), math.ceil(found)) == (int(known), math.ceil(known)), (size, base)


def test_without_such_a_function_it_does_not_apply() -> None:
    module = nn.Sequential(nn.Linear(9, 2))
    for shim in (SHIM, NUMPY):
        with pytest.raises(NotApplicable, match="no file of the modules"), apply_shims([shim], calls_of(module)):
            pass


class Importing(nn.Module):
    """Two methods import the library themselves, and one asks for the type of its number."""

    def forward(self, x: Tensor) -> Tensor:
        import math as library

        return x / library.log(self.kind_of(x.shape[1]) + 1)

    def kind_of(self, size: int) -> int:
        import math as library

        return size if type(size) is int else library.floor(size)


def test_a_file_in_which_a_function_with_its_own_import_asks_for_types_is_left_alone() -> None:
    call = ExportCall(module=Importing(), args=(torch.randn(3, 9),))
    assert [one.__name__ for one in size_math._importing_functions(call, ("math",))] == []
