"""`float(tensor)` stays symbolic, and is the number that Python's `float` gives."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from exportdoctor.targets.factory.factory_file import import_factory_file


class Scaled(nn.Module):
    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        scale = float(n.abs().max())
        if scale > 1:
            x = x / scale
        return x * float(x.shape[0]) + float("2.5")


def program_of(module: nn.Module, *inputs: Tensor) -> Any:
    call = ExportCall(module=module, args=inputs, dynamic_shapes=({0: Dim.DYNAMIC}, None))
    with apply_shims([find("int-as-item"), find("branch-as-where")], call) as given:
        return export_program(given).module()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_number_is_that_of_python(dtype: torch.dtype) -> None:
    program = program_of(Scaled(), torch.randn(3, 4), torch.ones(2, dtype=dtype))
    for value in (0.0, 1.0, 1.3, -7.0, 1e30, float("inf"), float("nan")):
        x, n = torch.randn(5, 4), torch.tensor([0.0, value], dtype=dtype)
        torch.testing.assert_close(program(x, n), Scaled()(x, n), equal_nan=True)


def test_a_whole_number_becomes_the_nearest_fraction() -> None:
    program = program_of(Scaled(), torch.randn(3, 4), torch.ones(2, dtype=torch.int64))
    for value in (0, 1, -7, 2**53 + 1, 2**62 + 12345):
        x, n = torch.randn(5, 4), torch.tensor([0, value])
        torch.testing.assert_close(program(x, n), Scaled()(x, n))


class Asked(nn.Module):
    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        if float(n.max()) > 0.1:
            x = x * 2
        return x if float(n.min()) < x.shape[0] else -x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
def test_a_condition_compares_what_python_compares(dtype: torch.dtype) -> None:
    call = ExportCall(
        module=Asked(),
        args=(torch.randn(3, 4), torch.ones(2, dtype=dtype)),
        dynamic_shapes=({0: Dim.DYNAMIC}, None),
    )
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    for value in (0.0, 0.1, 0.100001, 1.0, 5.0, 6.0):
        x, n = torch.randn(5, 4), torch.tensor([value, 6.0]).to(dtype)
        torch.testing.assert_close(program(x, n), Asked()(x, n))


def test_a_function_that_gives_torch_the_type_is_left_alone(tmp_path: Any) -> None:
    source = """
        import torch
        from torch import nn
        class Cast(nn.Module):
            def forward(self, x):
                n = float(x.max())
                return x.to(float) * n if isinstance(n, float) else x
    """
    path = tmp_path / "casts.py"
    path.write_text("\n".join(line[8:] for line in source.splitlines()))
    module = import_factory_file(path).Cast()
    with (
        pytest.raises(NotApplicable),
        apply_shims([find("int-as-item")], ExportCall(module=module, args=(torch.ones(3),))),
    ):
        pass


@functools.lru_cache
def places(count: int) -> Tensor:
    return torch.linspace(0, 1, count)


class Placed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + places(x.shape[1])


def test_what_a_cache_hides_in_eager_is_seen() -> None:
    Placed()(torch.ones(2, 5))  # the cache has an answer for the example
    call = ExportCall(module=Placed(), args=(torch.ones(2, 5),), dynamic_shapes=({1: Dim.DYNAMIC},))
    with apply_shims([find("past-lru-cache"), find("ranges-by-arange")], call) as given:
        program = export_program(given).module()
    for size in (1, 2, 5, 9):
        x = torch.randn(2, size)
        torch.testing.assert_close(program(x), Placed()(x))
