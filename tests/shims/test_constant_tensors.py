"""What Python reads from tensors that forward makes of constants: answered with their values, which never change."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from exportdoctor.shims.known_tensors import torch_name
from exportdoctor.worker.describe.trace_slice import slice_trace

SHIM = "constants-as-numbers"


class Reading(nn.Module):
    """`read` computes something of the module and an input."""

    def __init__(self, read: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.0))
        self.read = read

    def forward(self, x: Tensor) -> Any:
        return self.read(self, x)


def compares_times(self: Any, x: Tensor) -> Tensor:
    times = torch.linspace(0, 1, 4)
    ahead = times[1:] > times[:-1]
    assert ahead.all() or (~ahead).all()
    for before, after in itertools.pairwise(times):
        x = x + (after - before) * x.tanh() if before < after else -x
    return x


def takes_the_kind_of_an_input(self: Any, x: Tensor) -> Tensor:
    steps = torch.arange(3).to(x)
    return x[:, : int(steps.type_as(x).sum())]


def writes_constants(self: Any, x: Tensor) -> Tensor:
    table = torch.zeros(2, 3)
    row = table[1]
    row[1:] = torch.tensor([1.0, 2.0])
    row.add_(1)
    return x[:, : int(table.sum())] * table.max().item()


def compares_wholes(self: Any, x: Tensor) -> Tensor:
    order = torch.tensor([2, 0, 1])
    same = torch.equal(order.sort().values, torch.arange(3))
    close = torch.allclose(order.float().mean(), torch.tensor(1.0))
    return x[:, order] if same and close else x


def splits(self: Any, x: Tensor) -> Any:
    return x.split(torch.full((4,), 2).tolist(), dim=1)


def slices_by_a_size(self: Any, x: Tensor) -> Tensor:
    steps = torch.arange(100.0)
    if steps[:3].sum() > 1:
        x = x * 2
    steps[: x.shape[0]] = 1.0
    return x + steps[: x.shape[0], None]


def makes_some_like_an_input(self: Any, x: Tensor) -> Tensor:
    return x[:, : int((x.new_tensor([1, 2]) + x.new_zeros(2) + x.new_full((2,), 1)).sum())]


def compares_empty_ones(self: Any, x: Tensor) -> Tensor:
    return x * 2 if torch.equal(torch.zeros(0, 3), torch.ones(0, 3)) else x


def reads_what_kernels_round(self: Any, x: Tensor) -> Tensor:
    return x * nn.functional.gelu(torch.linspace(0, 1, 33)).tolist()[5]


def beside_a_cond(self: Any, x: Tensor) -> Tensor:
    scale = torch.full((), 2.0).item()
    return torch.cond(x.sum() > 2, lambda one: one * 3, lambda one: one * 2, (x,)) * scale


def makes_a_sparse_one(self: Any, x: Tensor) -> Tensor:
    scale = torch.full((), 2.0).item()
    torch.eye(3).to_sparse()
    return x * torch.zeros(8).copy_(x[0]) * scale


@pytest.mark.slow
@pytest.mark.parametrize(
    "read",
    [
        makes_a_sparse_one,
        slices_by_a_size,
        makes_some_like_an_input,
        compares_empty_ones,
        reads_what_kernels_round,
        compares_times,
        takes_the_kind_of_an_input,
        writes_constants,
        compares_wholes,
        splits,
    ],
    ids=lambda read: read.__name__,
)
def test_a_program_computes_what_eager_does(read: Any) -> None:
    module = Reading(read)
    with apply_shims([find(SHIM)], _call(module)) as call:
        program = export_program(call).module()
    for rows in (1, 5):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(program(x), module(x), rtol=0, atol=0)


@pytest.mark.slow
def test_torch_cond_exports_beside_it() -> None:
    with apply_shims([find(SHIM)], _call(Reading(beside_a_cond))) as call:
        program = export_program(call).module()
    ones = torch.ones(2, 8)
    torch.testing.assert_close(program(ones), ones * 6)
    torch.testing.assert_close(program(-ones), -ones * 4)


def writes_an_input(self: Any, x: Tensor) -> Tensor:
    table = torch.zeros(3)
    view = table[:1]
    view.copy_(x[0, :1])
    return x if table.sum() > 0 else -x


def sets_the_data(self: Any, x: Tensor) -> Tensor:
    table = torch.zeros(3)
    table.data = x[0, :3]
    return x if table.sum() > 0 else -x


def makes_out_of(self: Any, x: Tensor) -> Tensor:
    table = torch.zeros(3)
    torch.mul(x[0, :3], 2, out=table)
    return x if table.sum() > 0 else -x


def draws(self: Any, x: Tensor) -> Tensor:
    return x if (torch.ones(3) * torch.rand(3)).sum() > 1 else -x


def drops_out(self: Any, x: Tensor) -> Tensor:
    return x if nn.functional.dropout(torch.ones(8)).sum() > 1 else -x


def reads_state(self: Any, x: Tensor) -> Tensor:
    return x if self.scale * torch.ones(()) > 1 else -x


def fills_by_keyword(self: Any, x: Tensor) -> Tensor:
    table = torch.zeros(3)
    nn.init.uniform_(tensor=table)
    return x if table.sum() > 0 else -x


def adds_by_an_operator(self: Any, x: Tensor) -> Tensor:
    table = torch.zeros(3)
    torch.ops.aten.add_.Tensor(table, x[0, :3])
    return x if table.sum() > 0 else -x


def normalises(self: Any, x: Tensor) -> Tensor:
    mean, variance = torch.zeros(8), torch.ones(8)
    nn.functional.batch_norm(x, mean, variance, training=True)
    return x if mean.sum() > 0 else -x


def draws_slopes(self: Any, x: Tensor) -> Tensor:
    return x if nn.functional.rrelu(-torch.ones(3), training=True).sum() > 1 else -x


def normalises_by_an_operator(self: Any, x: Tensor) -> Tensor:
    mean, variance = torch.zeros(8), torch.ones(8)
    torch.ops.aten.batch_norm.default(x, None, None, mean, variance, True, 0.1, 1e-5, True)
    return x if mean.sum() > 0 else -x


def writes_unseen(self: Any, x: Tensor) -> Tensor:
    table = torch.zeros(3)
    with torch._C.DisableTorchFunction():
        table.copy_(x[0, :3])
    table.add_(1)
    return x if table.sum() > 0 else -x


def writes_in_inference_mode(self: Any, x: Tensor) -> Tensor:
    with torch.inference_mode():
        table = torch.zeros(3)
        nn.functional.hardtanh(table, 0, float(x[0, 0]), inplace=True)
        return x if table.sum() > 0 else -x


def takes_unfilled_memory(self: Any, x: Tensor) -> Tensor:
    return x if torch.empty(3).sum() > 1 else -x


@pytest.mark.parametrize(
    "read",
    [
        writes_an_input,
        sets_the_data,
        makes_out_of,
        draws,
        drops_out,
        reads_state,
        fills_by_keyword,
        adds_by_an_operator,
        normalises,
        draws_slopes,
        normalises_by_an_operator,
        writes_unseen,
        writes_in_inference_mode,
        takes_unfilled_memory,
    ],
    ids=lambda read: read.__name__,
)
def test_what_has_other_sources_is_not_known(read: Any) -> None:
    call = _call(Reading(read))
    chance = torch.get_rng_state()
    with pytest.raises(NotApplicable, match="no value that follows from constants"), apply_shims([find(SHIM)], call):
        pass
    torch.testing.assert_close(torch.get_rng_state(), chance)


def counts_rows(self: Any, x: Tensor) -> Tensor:
    return x if torch.arange(x.shape[0]).sum() > 3 else -x


@pytest.mark.slow
def test_what_is_made_of_a_size_stays_symbolic() -> None:
    with (
        apply_shims([find(SHIM)], _call(Reading(counts_rows))) as call,
        pytest.raises(Exception, match="data-dependent"),
    ):
        export_program(call)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("read", "of_constants"),
    [
        (compares_times, True),
        (compares_wholes, True),
        (writes_constants, True),
        (writes_an_input, False),
        (makes_out_of, False),
        (draws, False),
        (counts_rows, False),
        (reads_state, False),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_the_slice_of_a_failure_says_whether_an_input_leads_to_it(read: Any, of_constants: bool) -> None:
    call = _call(Reading(read))
    with pytest.raises(Exception, match=r"data-dependent|aten\.equal") as raised:
        torch.export.export(call.module, call.args, dynamic_shapes=call.dynamic_shapes)
    leads, why = slice_trace((raised.value,), (), exporter="export")
    assert leads is not None, why
    assert leads.of_constants is of_constants


def _call(module: nn.Module) -> ExportCall:
    return ExportCall(module=module.eval(), args=(torch.randn(3, 8),), dynamic_shapes=({0: Dim.DYNAMIC},))


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.add, "add"),
        (torch.Tensor.add_, "add_"),
        (nn.functional.gelu, "gelu"),
        (nn.functional.batch_norm, "batch_norm"),
        (nn.init.constant_, "constant_"),
        (torch.ops.aten.add_.Tensor, "add_"),
        (torch.ops.aten.equal, "equal"),
        (torch.ops.prims.sin.default, ""),
        (writes_unseen, ""),
    ],
)
def test_only_functions_of_torch_are_known_by_their_names(function: Any, name: str) -> None:
    assert torch_name(function) == name
