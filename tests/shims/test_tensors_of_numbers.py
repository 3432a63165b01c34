"""Tensors that are made of lists of numbers and of scalar tensors are those that torch makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import FloatTensor, Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, apply_shims, export_program, find
from exportdoctor.shims.own.tensors_of_numbers import make_tensor

DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]
scalars = st.builds(lambda value, dtype: torch.tensor(value).to(dtype), st.integers(0, 3), st.sampled_from(DTYPES))
of_numpy = st.sampled_from([np.float64(0.1), np.float32(0.1), np.int64(2), np.int8(1)])
elements = st.one_of(scalars, of_numpy, st.integers(-3, 3), st.booleans(), st.sampled_from([0.5, -1.0, float("inf")]))
rows = st.integers(1, 3).flatmap(
    lambda wide: st.lists(st.lists(elements, min_size=wide, max_size=wide), min_size=1, max_size=3)
)


@given(st.one_of(st.lists(elements, min_size=1, max_size=4), rows))
def test_lists_of_scalar_tensors_are_the_tensors_that_torch_makes(data: Any) -> None:
    made, wanted = make_tensor(data), torch.tensor(data)
    assert made.dtype == wanted.dtype
    assert torch.equal(made, wanted)


class Boxes(nn.Module):
    """Scales boxes by the size of their image, as detectors do."""

    def forward(self, x: Tensor, image: Tensor) -> tuple[Tensor, ...]:
        high, wide = image.shape
        empty = torch.FloatTensor(image.shape), torch.Tensor(image.shape), x.new(image.shape), torch.FloatTensor(2, 3)
        shapes = [torch.tensor(one.shape) for one in empty]  # uninitialised, of these sizes
        return (torch.Tensor([wide, high, wide, high]), FloatTensor([wide]), torch.LongTensor([high, 2]), *shapes)


def test_classes_of_tensors_take_sizes_as_data_in_lists_alone() -> None:
    module = Boxes()
    shapes = (None, {0: Dim("high"), 1: Dim("wide")})
    call = ExportCall(module=module, args=(torch.randn(3), torch.randn(5, 4)), dynamic_shapes=shapes)
    with apply_shims([find("numbers-as-tensor")], call) as given_call:
        program = export_program(given_call).module()
    for sizes in ((5, 4), (2, 9)):
        inputs = (torch.randn(3), torch.randn(sizes))
        for made, wanted in zip(program(*inputs), module(*inputs), strict=True):
            assert made.dtype == wanted.dtype
            assert torch.equal(made, wanted)


class Makes(nn.Module):
    def __init__(self, make: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor, image: Tensor) -> Tensor:
        return self.make(x, image)


MAKERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "new_tensor": lambda x, image: x.new_tensor([image.shape[1], image.shape[0]]),
    "new_tensor with a dtype": lambda x, image: x.new_tensor(data=image.shape, dtype=torch.int32),
    "new_tensor of a number": lambda x, image: x.new_tensor(image.shape[0]),
    "new": lambda x, image: x.new([image.shape[1], image.shape[0]]),
    "as_tensor": lambda x, image: torch.as_tensor([image.shape[1], image.shape[0]]),
    "as_tensor of fractions": lambda x, image: torch.as_tensor([image.shape[1] / 2, 0.5], dtype=torch.float64),
    "asarray": lambda x, image: torch.asarray([image.shape[1], image.shape[0]]),
    "FloatTensor": lambda x, image: torch.FloatTensor([image.shape[1], image.shape[0]]),
    "LongTensor in rows": lambda x, image: torch.LongTensor([[image.shape[1], 1], [2, image.shape[0]]]),
    "a length of what is found": lambda x, image: x.new_tensor([image[image[:, 0] > 0].shape[0]]),
    "scalar tensors": lambda x, image: torch.tensor([x.sum(), image.shape[0], 1.5]),
    "scalar tensors and numpy": lambda x, image: torch.tensor([x.sum(), np.float64(0.1), np.int32(2)]),
    "as a class": lambda x, image: x.type(torch.DoubleTensor) * isinstance(x, torch.FloatTensor),  # type: ignore[call-overload]
    "by a size": lambda x, image: x * torch.FloatTensor(2, 3).shape[1],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_sizes_stay_dynamic(name: str) -> None:
    module = Makes(MAKERS[name])
    shapes = ({0: Dim.AUTO}, {0: Dim("high"), 1: Dim("wide")} if "image" in MAKERS[name].__code__.co_varnames else {})
    call = ExportCall(module=module, args=(torch.randn(3), torch.randn(5, 4)), dynamic_shapes=shapes)
    if not any(part in name for part in ("class", "size", "scalar")):
        with pytest.raises(Exception, match=r"Constraints violated|Could not (extract|guard)"):
            export_program(call)
    with apply_shims([find("numbers-as-tensor")], call) as given_call:
        program = export_program(given_call).module()
    for sizes in ((5, 4), (2, 9), (6, 2)):
        inputs = (torch.randn(3), torch.randn(sizes))
        made, wanted = program(*inputs), module(*inputs)
        assert (made.dtype, made.device) == (wanted.dtype, wanted.device)
        assert torch.equal(made, wanted)
