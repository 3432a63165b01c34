"""What Python reads from a module's state: answered while the state is known, asserted by the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find


class Stateful(nn.Module):
    """`read` computes something of the module and an input."""

    def __init__(self, read: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.register_buffer("ready", torch.tensor([True]))
        self.register_buffer("groups", torch.tensor(2))
        self.register_buffer("sizes", torch.tensor([1, 3, 4]))
        self.register_buffer("table", torch.arange(6.0), persistent=False)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.read = read
        self.chosen = torch.tensor([True, False, True])
        self.by_level = [torch.tensor(2), {"last": torch.tensor([1, 3])}]

    def forward(self, x: Tensor) -> Any:
        return self.read(self, x)


def writes_where_new(self: Any, x: Tensor) -> Tensor:
    if not self.ready:
        self.table.copy_(x[0, :6])
        self.ready.fill_(True)
    return x + self.table[:1]


def splits(self: Any, x: Tensor) -> Any:
    return x.split(self.sizes.tolist(), dim=1)


def computes(self: Any, x: Tensor) -> Tensor:
    highest = (self.table[2:] * self.sizes.max()).amax()
    return x[:, : int(highest) // 4] * highest.item() if highest > 10 else x


def asks_a_weight(self: Any, x: Tensor) -> Tensor:
    return x * float(self.scale) if self.scale > 0 else x


def loops(self: Any, x: Tensor) -> Tensor:
    for size in self.sizes:
        x = x.repeat_interleave(int(size), dim=1)
    return x


def inverts(self: Any, x: Tensor) -> Tensor:
    return -x if ~self.ready else x + (~self.groups).item()


def finds(self: Any, x: Tensor) -> Tensor:
    if 3 in self.sizes and torch.is_nonzero(self.groups):
        x = x * 2
    return x + 1 if any(size > 9 for size in self.sizes) else x


def asks_an_attribute(self: Any, x: Tensor) -> Tensor:
    for place, chosen in enumerate(self.chosen):
        x = x * 2 if chosen else x + place
    return x


def asks_tensors_in_containers(self: Any, x: Tensor) -> Tensor:
    first, others = self.by_level
    return x[:, : int(first) + others["last"].max().item()] if others["last"][0] < first else x


def assigns_an_equal_buffer(self: Any, x: Tensor) -> Tensor:
    x = x * 2 if self.ready else x
    self.ready = self.ready.clone()
    return x


READS = (
    assigns_an_equal_buffer,
    asks_an_attribute,
    asks_tensors_in_containers,
    inverts,
    finds,
    writes_where_new,
    splits,
    computes,
    asks_a_weight,
    loops,
)


def call_of(module: nn.Module) -> ExportCall:
    return ExportCall(module=module.eval(), args=(torch.randn(3, 8),), dynamic_shapes=({0: Dim.DYNAMIC},))


def program_of(module: nn.Module) -> Any:
    with apply_shims([find("state-as-constants")], call_of(module)) as call:
        return export_program(call)


@pytest.mark.slow
@pytest.mark.parametrize("read", READS, ids=lambda read: read.__name__)
def test_a_program_computes_what_eager_does_and_keeps_its_state(read: Any) -> None:
    module = Stateful(read)
    program = program_of(module).module()
    for rows in (1, 5):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(program(x), module(x), rtol=0, atol=0)
    assert set(dict(program.named_buffers())) >= {"ready", "groups", "sizes"}
    assert module.ready


@pytest.mark.slow
def test_a_program_whose_state_is_changed_refuses_its_inputs() -> None:
    for read, name in ((writes_where_new, "ready"), (splits, "sizes"), (computes, "table"), (asks_a_weight, "scale")):
        program = program_of(Stateful(read)).module()
        program(torch.randn(2, 8))
        with torch.no_grad():
            program.get_parameter(name).mul_(-2) if name == "scale" else program.get_buffer(name).zero_()
        with pytest.raises(RuntimeError, match=f"follows from .*{name}.* is not that at the export"):
            program(torch.randn(2, 8))


def counts(self: Any, x: Tensor) -> Tensor:
    late = bool(self.groups > 5)
    self.groups += 1
    return x if late else -x


def counts_in_a_view(self: Any, x: Tensor) -> Tensor:
    self.sizes[:1].add_(1)
    return x[:, : self.sizes[0]]


def writes_by_another_name(self: Any, x: Tensor) -> Tensor:
    torch.add(self.table, 1, out=self.table)
    return x * 2 if self.table[0] > 3 else x


def assigns_an_attribute(self: Any, x: Tensor) -> Tensor:
    x = x * 2 if self.chosen[0] else x
    self.chosen = self.chosen.clone()
    return x


def reads_an_input(self: Any, x: Tensor) -> Tensor:
    return x if (x + self.table[0]).sum() > 0 else -x


def draws(self: Any, x: Tensor) -> Tensor:
    return x if torch.rand_like(self.table).sum() > 3 else -x


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (counts, "changes groups"),
        (assigns_an_attribute, "changes chosen"),
        (counts_in_a_view, "reads no value"),
        (writes_by_another_name, "reads no value"),
        (reads_an_input, "reads no value"),
        (draws, "reads no value"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_forward_changes_or_what_has_other_sources_is_not_known(read: Any, told: str) -> None:
    module = Stateful(read)
    before = {name: one.clone() for name, one in module.state_dict().items()}
    with pytest.raises(NotApplicable, match=told), apply_shims([find("state-as-constants")], call_of(module)):
        pass
    torch.testing.assert_close(dict(module.state_dict()), before)
