"""A module that is converted under the shim is as without it: values, dtypes, and which of its parameters are new."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from exportdoctor.shims import ExportCall, apply_shims, find


class Mixed(nn.Module):
    """Parameters of one dtype, a buffer of whole numbers."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.line = nn.Linear(3, 2, dtype=dtype)
        self.register_buffer("places", torch.arange(3))


ARGUMENTS: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    ((torch.float32,), {}),
    ((torch.float64,), {}),
    ((torch.bfloat16,), {"non_blocking": True}),
    (("cpu",), {}),
    (("cpu", torch.float64), {}),
    (("meta",), {}),
    ((torch.ones(1, dtype=torch.float64),), {}),
    ((), {"dtype": torch.float32, "device": torch.device("cpu")}),
    ((), {"memory_format": torch.channels_last}),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("args", "kwargs"), ARGUMENTS, ids=str)
def test_a_module_is_converted_as_without_the_shim(
    args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype
) -> None:
    plain = Mixed(dtype)
    treated = copy.deepcopy(plain)
    held = [*plain.parameters(), *treated.parameters()]
    plain.to(*args, **kwargs)
    with apply_shims([find("module-to-if-other")], ExportCall(module=treated, args=())):
        assert treated.to(*args, **kwargs) is treated
    for one, other in zip(plain.state_dict().values(), treated.state_dict().values(), strict=True):
        assert (one.dtype, one.device, one.shape, one.stride()) == (
            other.dtype,
            other.device,
            other.shape,
            other.stride(),
        )
        assert one.device.type == "meta" or torch.equal(one, other)
    kept = [one is other for one, other in zip(held, (*plain.parameters(), *treated.parameters()), strict=True)]
    assert kept[: len(kept) // 2] == kept[len(kept) // 2 :]


def test_a_conversion_that_torch_refuses_is_refused() -> None:
    call = ExportCall(module=nn.Linear(2, 2), args=())
    with apply_shims([find("module-to-if-other")], call), pytest.raises(TypeError, match="floating point or complex"):
        nn.Linear(2, 2).to(torch.int64)


class Counting(nn.Linear):
    """Does something else where it is converted."""

    converted = 0

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self.converted += 1
        return super()._apply(*args, **kwargs)


def with_own_apply_of_instance() -> nn.Module:
    made = Counting(2, 2)
    plain = nn.Linear(2, 2)
    plain._apply = made._apply  # type: ignore[method-assign]
    return nn.ModuleList([made, plain])


OWN: dict[str, Callable[[], nn.Module]] = {
    "itself": lambda: Counting(2, 2),
    "a submodule": lambda: nn.Sequential(nn.Linear(2, 2), nn.Sequential(Counting(2, 2))),
    "of an instance": with_own_apply_of_instance,
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_module_with_a_conversion_of_its_own_is_converted_by_it(name: str, dtype: torch.dtype) -> None:
    plain, treated = OWN[name](), OWN[name]()
    with apply_shims([find("module-to-if-other")], ExportCall(module=treated, args=())):
        treated.to(dtype)
    plain.to(dtype)
    counts = [[getattr(one, "converted", 0) for one in module.modules()] for module in (plain, treated)]
    assert counts[0] == counts[1]
    assert any(counts[0])


def test_a_recurrent_module_of_torch_is_left_alone_where_nothing_changes() -> None:
    module = nn.LSTM(2, 2)
    held = list(module._flat_weights)
    with apply_shims([find("module-to-if-other")], ExportCall(module=module, args=())):
        assert module.to(torch.float32) is module
    assert all(one is other for one, other in zip(held, module._flat_weights, strict=True))
