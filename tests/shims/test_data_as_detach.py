"""`.data` in the model's code: the program computes and writes as eager does."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find

SHIM = find("data-as-detach")


class Model(nn.Module):
    def __init__(self, step: Callable[[Model, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(4))
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        return self.step(self, x)


def reads(model: Model, x: Tensor) -> Tensor:
    weight = model.layer.weight.data
    return x @ (weight / weight.norm()) + model.layer.bias


def follows(model: Model, x: Tensor) -> Tensor:
    model.mean.data.mul_(0.5).add_(x.mean(0).data)
    return x - model.mean


def clips(model: Model, x: Tensor) -> Tensor:
    model.layer.weight.data.clamp_(-0.1, 0.1)
    return model.layer(x)  # type: ignore[no-any-return]


def writes_into_input(model: Model, x: Tensor) -> Tensor:
    x.data[0] = 1
    return x * 2


def program_of(module: Model) -> nn.Module:
    call = ExportCall(module=module, args=(torch.randn(3, 4),), dynamic_shapes=({0: Dim.DYNAMIC},))
    with apply_shims([SHIM], call) as given:
        return export_program(given).module()  # type: ignore[no-any-return]


class Gate(nn.Module):
    """As in Tacotron 2: it stops where a gate says so, which it reads from `.data`."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.gate = nn.GRUCell(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        rows, h = [], x
        for _ in range(4):
            h = self.cell(x, h)
            rows.append(h)
            if torch.sigmoid(self.gate(h).data[0]) > 0.99:
                break
        return torch.stack(rows)


@pytest.mark.slow
def test_a_constant_that_nothing_uses_ends_no_export() -> None:
    """Story: torch raised StopIteration, and the search ended there."""
    example = find("branches-as-example")
    call = ExportCall(module=Gate(), args=(torch.randn(1, 4),))
    with pytest.raises(StopIteration), apply_shims([example], call) as given:
        export_program(given)
    with apply_shims([SHIM, example], call) as given:
        program = export_program(given).module()
    assert torch.equal(program(*call.args), call.module(*call.args))


@pytest.mark.slow
@pytest.mark.parametrize("step", [reads, follows, clips, writes_into_input], ids=lambda step: step.__name__)
def test_a_program_computes_and_writes_as_eager_does(step: Callable[[Model, Tensor], Tensor]) -> None:
    module = Model(step)
    program = program_of(module)
    module = copy.deepcopy(module)  # a program shares its tensors with the module
    for rows in (3, 5, 2):
        x = torch.randn(rows, 4)
        y = x.clone()
        with torch.no_grad():
            torch.testing.assert_close(program(x), module(y))
        assert torch.equal(x, y)
        for name, tensor in module.state_dict().items():
            torch.testing.assert_close(program.state_dict()[name], tensor)


def test_no_gradient_goes_through_it() -> None:
    module = Model(reads)
    program = program_of(module)
    x = torch.randn(3, 4, requires_grad=True)
    names = ("layer.weight", "layer.bias")
    for one in (program, module):
        (given, *of_state) = torch.autograd.grad(
            one(x).sum(), [x, *(one.get_parameter(name) for name in names)], allow_unused=True
        )
        assert given is not None
        assert [found is None for found in of_state] == [True, False]


def halves(model: Model, x: Tensor) -> Tensor:
    model.layer.weight.data = model.layer.weight.data * 0.5
    return model.layer(x)  # type: ignore[no-any-return]


def adds(model: Model, x: Tensor) -> Tensor:
    model.mean.data += x.mean(0)
    return x - model.mean


@pytest.mark.slow
def test_other_memory_is_refused_and_a_write_into_the_same_is_not() -> None:
    with pytest.raises(NotApplicable, match="assigns other memory"):
        program_of(Model(halves))
    module = Model(adds)
    program = program_of(module)
    module = copy.deepcopy(module)
    for _ in range(2):
        x = torch.randn(3, 4)
        torch.testing.assert_close(program(x), module(x))


def test_it_is_not_applicable_where_only_torch_reads_data() -> None:
    module = Model(lambda model, x: model.layer(x))
    with pytest.raises(NotApplicable, match="reads no tensor's"):
        program_of(module)
