"""The program without shortcuts for empty tensors gives what eager gives, or refuses what eager takes."""

from __future__ import annotations

import ast
import contextlib
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from exportdoctor.shims.rules.branches.slice_conditions import SliceConditions
from found_rows import inputs_of, module_of
from shim_cases import Experts

SETTLED = (
    "rows.shape[0] == 0",
    "rows.numel() < 1",
    "not rows.numel()",
    "not rows.shape[0] > 0",
    "rows.size(0) <= 0 or x.shape[1] == 7",
    "0 == 3 * rows.shape[0]",
)
CONDITIONS = (
    *SETTLED,
    # and what asks for something else
    "rows.shape[0] == 1",
    "rows.shape[0] < 2",
    "rows.sum().item() == 0",
)
BODIES = (
    "if {}:\n            return y\n        return y.index_add(0, rows, x[rows] * 2)",
    "if {}:\n            return y - 1\n        return y.index_add(0, rows, x[rows] * 2)",
    "return y + (0.0 if {} else x[rows].mean())",
    "if not ({}):\n            y = y + x[rows].sum(0)\n        return y",
)
ALIKE = (BODIES[0], BODIES[3])
"""They compute behind the shortcut what it gives, where nothing is found."""
FOUND: tuple[list[int], ...] = ([], [1], [0, 2], [0, 1, 2, 3])


def refusal(condition: str, body: str, *, nothing_is_known: bool) -> str:
    """What it says where it gives no program; nothing where it must give one."""
    if "item" in condition:
        return "no function asks a condition on sizes"
    if condition not in SETTLED:
        return "data-dependent"
    return "gives something else" if nothing_is_known and body not in ALIKE else ""


@pytest.mark.slow
@pytest.mark.parametrize(("condition", "body"), itertools.product(CONDITIONS, BODIES))
@pytest.mark.parametrize("known", [([0, 2],), ([0, 2], [])], ids=["something", "nothing too"])
def test_the_program_agrees_or_refuses(condition: str, body: str, known: Any, tmp_path: Any) -> None:
    module = module_of(condition, body, tmp_path)
    args, *others = map(inputs_of, known)
    call = ExportCall(module=module, args=args, more_inputs=tuple((one, {}) for one in others))
    if said := refusal(condition, body, nothing_is_known=bool(others)):
        refused = pytest.raises(Exception, match=said)
        with refused as why, apply_shims([find("no-empty-shortcut")], call) as given:
            export_program(given)
        assert isinstance(why.value, NotApplicable) == (said != "data-dependent")
        return
    with apply_shims([find("no-empty-shortcut")], call) as given:
        program = export_program(given).module()
    for found in FOUND:
        x, mask = inputs_of(found)
        if not found and not others:  # whether the code behind the shortcut takes nothing was not seen
            with pytest.raises(RuntimeError):
                program(x, mask)
            continue
        torch.testing.assert_close(program(x, mask), module(x, mask), equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("condition", CONDITIONS)
def test_what_asks_whether_anything_is_found_is_settled(condition: str, tmp_path: Any) -> None:
    module = module_of(condition, BODIES[0], tmp_path)
    call = ExportCall(module=module, args=inputs_of([0, 2]), more_inputs=((inputs_of([]), {}),))
    said = refusal(condition, BODIES[0], nothing_is_known=True)
    assert (said == "") == (condition in SETTLED)
    refused = pytest.raises(Exception, match=said) if said else contextlib.nullcontext()
    with refused, apply_shims([find("no-empty-shortcut")], call) as given:
        assert export_program(given).graph.find_nodes(op="placeholder")


def test_a_shortcut_that_gives_something_else_stays(tmp_path: Any) -> None:
    module = module_of(CONDITIONS[0], BODIES[1], tmp_path)
    call = ExportCall(module=module, args=inputs_of([0, 2]), more_inputs=((inputs_of([]), {}),))
    with (
        pytest.raises(NotApplicable, match="gives something else"),
        apply_shims([find("no-empty-shortcut")], call) as c,
    ):
        export_program(c)


class Later(nn.Module):
    """It refuses an input in which nothing is found, after the shortcut was asked."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        rows, y = torch.nonzero(mask).squeeze(-1), x * 3
        if rows.shape[0] == 0:
            y = y - 1
        return y[:, :1].reshape(4, 1) if x.shape[1] == 2 else y.reshape(0, 5)


def test_an_input_that_eager_refuses_shows_nothing() -> None:
    """So that the program asserts that something is found."""
    x, mask = inputs_of([])
    call = ExportCall(module=Later(), args=inputs_of([0]), more_inputs=(((x[:, :1], mask), {}),))
    with apply_shims([find("no-empty-shortcut")], call) as given:
        program = export_program(given).module()
    torch.testing.assert_close(program(*inputs_of([1, 2])), Later()(*inputs_of([1, 2])))
    with pytest.raises(RuntimeError):
        program(x, mask)


class Counts(nn.Module):
    """Where nothing is found it leaves its counter alone."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    count: Tensor

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        rows = torch.nonzero(mask).squeeze(-1)
        if rows.shape[0] == 0:
            return x
        self.count.add_(1)
        return x.index_add(0, rows, x[rows])


def test_what_the_code_behind_a_shortcut_leaves_is_compared_too() -> None:
    call = ExportCall(module=Counts(), args=inputs_of([0]), more_inputs=((inputs_of([]), {}),))
    with (
        pytest.raises(NotApplicable, match="gives something else"),
        apply_shims([find("no-empty-shortcut")], call) as c,
    ):
        export_program(c)


def _positive(x: Tensor, otherwise: Tensor) -> Tensor:
    rows = torch.nonzero(x > 0).squeeze(-1)
    if rows.shape[0] == 0:
        return otherwise
    return x[rows]


class Heads(nn.Module):
    """The same helper twice; only the first is known to find nothing."""

    def __init__(self, *, in_a_loop: bool) -> None:
        super().__init__()
        self.in_a_loop = in_a_loop

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        nothing, other = x.new_zeros(0), x.new_ones(1)
        if self.in_a_loop:
            return tuple(_positive(*pair) for pair in ((x, nothing), (y, other)))
        first = _positive(x, nothing)
        return first, _positive(y, other)


@pytest.mark.parametrize("in_a_loop", [False, True])
def test_what_one_call_of_a_helper_shows_is_not_shown_of_another(in_a_loop: bool) -> None:
    module = Heads(in_a_loop=in_a_loop)
    call = ExportCall(module=module, args=(-torch.ones(3), torch.ones(3)))
    with apply_shims([find("no-empty-shortcut")], call) as given:
        program = export_program(given).module()
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(program(x, torch.ones(3)), module(x, torch.ones(3)))
        with pytest.raises(RuntimeError):
            program(x, -torch.ones(3))


def test_inputs_with_rows_alike_show_what_experts_do_without_any() -> None:
    """The example finds something for each of them."""
    module, free = Experts().eval(), {0: torch.export.Dim("rows")}
    call = ExportCall(
        module=module, args=(torch.randn(12, 2), torch.arange(12) % 3), dynamic_shapes=({**free}, {**free})
    )
    with apply_shims([find("no-empty-shortcut")], call) as given:
        program = export_program(given).module()
    for chosen in (torch.tensor([0, 0]), torch.arange(5) % 2, torch.full((7,), 2)):
        rows = torch.randn(chosen.shape[0], 2)
        torch.testing.assert_close(program(rows, chosen), module(rows, chosen))


EMPTY = ("count == 0", "not count", "count < 1", "end == start", "start >= end", "not start < end", "not count > 0")
NOT_ASKED = ("count == 1", "count == 2", "count + 0 == 0")


def dispatch_of(condition: str, folder: Any) -> nn.Module:
    """Rows in the order of their groups, one layer for each group; a group is skipped under the condition."""
    source = f"""
import torch
from torch import nn

class Dispatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])

    def forward(self, x, group):
        counts = nn.functional.one_hot(group, 3).sum(0).tolist()
        order = group.argsort(stable=True)
        rows, made, start = x[order], [], 0
        for layer, count in zip(self.layers, counts):
            end = start + count
            if {condition}:
                continue
            made.append(layer(rows[start:end]))
            start = end
        return torch.zeros_like(x).index_copy(0, order, torch.cat(made))
"""
    file = folder / "dispatch.py"
    file.write_text(source)
    names: dict[str, Any] = {"__name__": "dispatch"}
    exec(compile(source, str(file), "exec"), names)
    module: nn.Module = names["Dispatch"]()
    return module.eval()


@pytest.mark.slow
@pytest.mark.parametrize("condition", [*EMPTY, *NOT_ASKED])
def test_what_asks_whether_a_slice_is_empty_is_settled(condition: str, tmp_path: Any) -> None:
    """A number that is read out of a tensor is no size for torch: the experts of DeepSeek's `moe_infer` could be left
    out only as the example leaves them out."""
    module = dispatch_of(condition, tmp_path)
    free = {0: torch.export.Dim("rows")}
    call = ExportCall(module=module, args=(torch.randn(12, 2), torch.arange(12) % 3), dynamic_shapes=(free, free))
    if condition in NOT_ASKED:
        with pytest.raises(Exception, match="data-dependent"), apply_shims([find("no-empty-shortcut")], call) as given:
            export_program(given)
        return
    with apply_shims([find("no-empty-shortcut")], call) as given:
        program = export_program(given).module()
    for chosen in (torch.tensor([0, 0]), torch.arange(5) % 2, torch.full((7,), 2), torch.tensor([2, 0, 2, 1])):
        rows = torch.randn(chosen.shape[0], 2)
        torch.testing.assert_close(program(rows, chosen), module(rows, chosen))


@pytest.mark.parametrize(
    ("condition", "code", "answer", "is_ordered"),
    [
        ("n == 0", "x[a:a + n]", True, False),
        ("n != 0", "x[a:n + a]", False, False),
        ("n", "x[:n]", False, False),
        ("n <= 0", "x[:n]", True, True),
        ("1 <= n", "x[:n]", False, True),
        ("b == a", "x[:, a:b]", True, False),
        ("a >= b", "x[a:b]", True, True),
        ("b > a", "x[a:b]", False, True),
        ("b - a == 0", "x[a:b]", True, False),
        ("n == 0", "e = a + n; x[a:e]", True, False),
        ("n == 0", "n = b - a; x[a:b]", True, False),
        ("n == 0", "e = a + n; e = e + 1; x[a:e]", None, False),
        ("f(n) <= 0", "x[:f(n)]", None, False),  # would be called twice
        ("n == 1", "x[:n]", None, False),
        ("n < 2", "x[:n]", None, False),
        ("b <= a", "x[b:a:2]", None, False),
        ("b >= a", "x[a:b]", None, False),
        ("m == 0", "x[:n]", None, False),
        ("n == 0 == m", "x[:n]", None, False),
    ],
)
def test_which_conditions_ask_for_an_empty_slice(
    condition: str, code: str, answer: bool | None, is_ordered: bool
) -> None:
    function = ast.parse(f"def f(x, a, b, n, m):\n    {code}").body[0]
    assert isinstance(function, ast.FunctionDef)
    found = SliceConditions(function).of_nothing(ast.parse(condition, mode="eval").body)
    assert (found and found.answer, bool(found and found.low)) == (answer, is_ordered)


def test_a_number_below_zero_is_not_taken_for_an_empty_slice(tmp_path: Any) -> None:
    """Eager skips it as well; the program asserts that there is none."""
    source = """
import torch

class Head(torch.nn.Module):
    def forward(self, x, n):
        count = n.item()
        if count <= 0:
            return x.sum() * 0
        return x[:count].sum()
"""
    (tmp_path / "head.py").write_text(source)
    names: dict[str, Any] = {"__name__": "head"}
    exec(compile(source, str(tmp_path / "head.py"), "exec"), names)
    module, x = names["Head"]().eval(), torch.rand(4)
    call = ExportCall(module=module, args=(x, torch.tensor(2)), more_inputs=(((x, torch.tensor(0)), {}),))
    with apply_shims([find("no-empty-shortcut")], call) as given:
        program = export_program(given).module()
    for count in (0, 1, 4):
        torch.testing.assert_close(program(x, torch.tensor(count)), module(x, torch.tensor(count)))
    with pytest.raises(RuntimeError):
        program(x, torch.tensor(-1))
