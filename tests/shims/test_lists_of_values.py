"""Lists and arrays of a tensor's values that torch makes a tensor of again: the program is given that tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from exportdoctor.shims import ExportCall, apply_shims, export_program, find

X = torch.arange(12.0).reshape(6, 2)


class Written(nn.Module):
    def __init__(self, body: str) -> None:
        super().__init__()
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        names: dict[str, Any] = {"torch": torch}
        exec(f"def forward(x, t):\n{lines}", names)
        self.body = names["forward"]

    def forward(self, x: Tensor, t: Tensor) -> Any:
        return self.body(x, t)


def export(module: nn.Module, x: Tensor, t: Tensor, shims: str = "list-as-tensor", *, dynamic: bool = True) -> Any:
    shapes = (None, {0: Dim.DYNAMIC}) if dynamic else None
    call = ExportCall(module=module, args=(x, t), dynamic_shapes=shapes)
    with torch.no_grad(), apply_shims([find(one) for one in shims.split("+")], call) as given:
        return export_program(given).module()


def assert_same(program: Any, module: nn.Module, x: Tensor, t: Tensor) -> None:
    left, right = (x.clone(), t.clone()), (x.clone(), t.clone())
    wanted, found = module(*left), program(*right)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    torch.testing.assert_close(right, left, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        "return x[t.tolist()]",
        "return x[None, t.tolist()]",
        "return x[t.tolist(), (t * 0).tolist()]",
        "i = t.tolist()\nt.zero_()\nreturn x[i]",  # a list is what the tensor held
        "i = t.numpy()\nt.zero_()\nreturn x[i]",  # an array is what the tensor holds
        "y = x.clone()\ny[t.tolist()] = 0\nreturn y",
        "y = x.clone()\ny[t.cpu().numpy()] += 1\nreturn y",
        "return torch.tensor(t.tolist()) * 2",
        "return torch.tensor(t.tolist(), dtype=torch.float32) / 3",
        "return torch.as_tensor(t.numpy()) + 1",
        "y = torch.from_numpy(t.numpy())\ny += 1\nreturn t",  # they share memory
        "y = torch.tensor(t.numpy())\ny += 1\nreturn t + y",
    ],
)
@pytest.mark.parametrize("dynamic", [True, False])
def test_what_torch_is_given_is_the_tensor(body: str, dynamic: bool) -> None:
    module = Written(body)
    program = export(module, X, torch.tensor([3, 0, 0]), dynamic=dynamic)
    assert_same(program, module, X, torch.tensor([1, -2, 4]))
    for t in (torch.tensor([5, 5, 1, 0, 2]), torch.tensor([2, -6])) if dynamic else ():
        assert_same(program, module, X, t)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.bool])
@pytest.mark.parametrize("read", ["tolist()", "numpy()"])
def test_numbers_of_other_dtypes_index_as_a_list_or_an_array_does(dtype: torch.dtype, read: str) -> None:
    """A tensor or an array of uint8 is a mask, and a list of its numbers is not."""
    module = Written(f"return x[t.{read}]")
    program = export(module, X, torch.tensor([1, 0, 1, 1, 0, 0]).to(dtype), dynamic=False)
    assert_same(program, module, X, torch.tensor([0, 0, 1, 0, 1, 1]).to(dtype))


@pytest.mark.parametrize("body", ["return x[t.float().tolist()]", "return x[t[None].tolist()]"])
def test_lists_of_other_kinds_are_read_as_before(body: str) -> None:
    with pytest.raises(GuardOnDataDependentSymNode):
        export(Written(body), X, torch.tensor([1, 2]), dynamic=False)


def test_a_list_that_was_changed_is_no_longer_the_tensor() -> None:
    made = "torch.stack([torch.scalar_tensor(one, dtype=torch.int64) for one in n])"
    body = f"n = t.tolist()\nn[0] = n[0] + 1\nreturn {made}"
    module = Written(body)
    program = export(module, X, torch.tensor([3, 0, 0]), dynamic=False)
    assert_same(program, module, X, torch.tensor([1, -2, 4]))
    with pytest.raises(GuardOnDataDependentSymNode):
        export(Written("n = t.tolist()\nn.append(1)\nreturn x[n]"), X, torch.tensor([3, 0, 0]), dynamic=False)


def test_whole_numbers_of_an_array_are_symbolic() -> None:
    module = Written("n = t.numpy()\nreturn [x * one for one in n] + [x + n[1], x * len(n), x - sum(n.tolist())]")
    program = export(module, X, torch.tensor([3, 0, 0]), dynamic=False)
    assert_same(program, module, X, torch.tensor([1, -2, 4]))


class Encoder(nn.Module):
    def __init__(self, read: str) -> None:
        super().__init__()
        self.rnn, self.read = nn.GRU(4, 3, batch_first=True), read

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        lengths: Any = n.tolist() if self.read == "tolist" else n.cpu().numpy()
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]


@pytest.mark.slow
@pytest.mark.parametrize("read", ["tolist", "numpy"])
def test_the_lengths_of_packed_sequences_stay_dynamic(read: str) -> None:
    module = Encoder(read)
    x, n = torch.randn(4, 6, 4), torch.tensor([3, 6, 1, 2])
    program = export(module, x, n, "list-as-tensor+packed-as-padded", dynamic=False)
    for lengths in ([1, 2, 2, 1], [4, 4, 4, 4]):
        with torch.no_grad():
            torch.testing.assert_close(program(x, torch.tensor(lengths)), module(x, torch.tensor(lengths)))


class Dispatch(nn.Module):
    """Rows in the order of their groups, one layer for each group, as in a mixture of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        counts = torch.bincount(t, minlength=3)[:3].cpu().numpy()
        rows, made, start = x[t.argsort()], [], 0
        for place, count in enumerate(counts):
            if count == 0:
                continue
            made.append(self.layers[place](rows[start : start + count]))
            start = start + count
        return torch.cat(made)


def test_counts_in_an_array_may_be_zero() -> None:
    """As in the `moe_infer` of DeepSeek's models, whose experts find tokens or none."""
    module, free = Dispatch(), {0: torch.export.Dim("rows", min=2)}
    call = ExportCall(module=module, args=(X, torch.tensor([0, 1, 1, 2, 0, 2])), dynamic_shapes=(free, free))
    with apply_shims([find("list-as-tensor"), find("no-empty-shortcut")], call) as given:
        program = export_program(given).module()
    for t in ([0, 0, 0, 1, 1, 1], [2, 2], [1, 0, 1, 0, 2, 2, 1]):
        x = torch.randn(len(t), 2)
        with torch.no_grad():
            torch.testing.assert_close(program(x, torch.tensor(t)), module(x, torch.tensor(t)))


def test_counts_in_an_array_choose_slices() -> None:
    module = Dispatch()
    program = export(module, X, torch.tensor([0, 1, 1, 2, 0, 2]), "list-as-tensor+branches-as-example", dynamic=False)
    for t in ([0, 1, 2, 0, 0, 0], [1, 2, 1, 0, 1, 2]):
        with torch.no_grad():
            torch.testing.assert_close(program(X, torch.tensor(t)), module(X, torch.tensor(t)))
    with pytest.raises(RuntimeError):
        program(X, torch.tensor([0, 0, 0, 1, 1, 1]))
