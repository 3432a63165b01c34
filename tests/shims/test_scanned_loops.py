"""Loops as scans: the steps compute what the loop does, whatever runs them; and a program holds for any length."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, apply_shims, export_program, find
from exportdoctor.shims.record import NotApplicable
from exportdoctor.shims.rules.code.observed_rewrite import UNBOUND
from exportdoctor.shims.rules.code.pure_code import Purity
from exportdoctor.shims.rules.loops import scanned_loops
from exportdoctor.shims.rules.loops.loop_code import APPLIES, BEGINS, SCAN
from exportdoctor.shims.rules.loops.loop_rewrite import LoopRewrite
from exportdoctor.worker.prove.input_set import InputSet
from exportdoctor.worker.prove.recorded_gradients import fails_with_gradients
from loop_texts import ATTACKS, FIRST, LAST, REFUSED, RESULTS, ROWS, STATEMENTS
from scan_steps import RowsDiffer, check_any_length, refused_lengths, run_in_turn
from scanned_models import (
    Advantages,
    Between,
    BothWays,
    Cell,
    Counting,
    Decoder,
    Decorated,
    Gated,
    InPlace,
    Layered,
    Layers,
    Listed,
    Mixer,
    Nested,
    Pointing,
    Returns,
    Spiking,
    Stacked,
    Sums,
)
from strict_state import Counter


def helper(one: Tensor, other: Tensor) -> Tensor:
    if one.shape != other.shape:
        raise ValueError("of two shapes")
    return torch.tanh(one) + other


def run_both(source: str, names: dict[str, Any]) -> tuple[int, Any, Any]:
    """How many loops of `forward` were rewritten, and what it returns as it is and rewritten."""
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef)
    own: dict[str, Any] = {"torch": torch, "helper": helper, "Tensor": Tensor, "suppress": suppress}
    exec(compile(source, "<drawn>", "exec"), own)
    function: FunctionType = own["forward"]
    rewrite = LoopRewrite(Purity(function=function, may_raise=True))
    changed = rewrite.of_function(node)
    new: dict[str, Any] = {**own, **scanned_loops.NAMES, APPLIES: are_bound, BEGINS: begins, SCAN: run_in_turn}
    exec(compile(ast.unparse(changed), "<rewritten>", "exec"), new)
    return rewrite.count, outcome(function, names), outcome(new["forward"], names)


def are_bound(numbers: Any, state: Any, lists: Any) -> bool:
    """Whether the loop may be a scan: it is run in turn here, so that its length may be a plain one."""
    return numbers[0] > 0 and all(one is not UNBOUND and one is not None for one in state)


def begins(numbers: Any, state: Any, lists: Any) -> bool:
    """Whether its first step is to run by itself."""
    others = [one for one in state if not (one is None or type(one) in (int, float))]
    return are_bound(numbers, others, lists) and len(others) < len(state)


def outcome(function: Callable[..., Any], names: dict[str, Any]) -> Any:
    """What it returns, or raises, and what it leaves of its arguments."""
    given = {name: value.clone() for name, value in names.items()}
    box = SimpleNamespace(count=0, rows=[])
    try:
        found = function(**given, box=box)
    except (RuntimeError, ValueError, NameError, IndexError, TypeError) as error:
        return "NameError" if isinstance(error, NameError) else type(error).__name__
    return found, given, box.count, box.rows


@pytest.mark.long
@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.sampled_from(STATEMENTS[:REFUSED]), min_size=1, max_size=6),
    st.lists(st.sampled_from(STATEMENTS[REFUSED:]), max_size=1),
    st.lists(st.sampled_from(RESULTS), min_size=1, max_size=4),
    st.sampled_from(
        [
            "t in range(x.shape[1])",
            "t in range(1, x.shape[1])",
            "t in range(x.size(1) - 1)",
            "t, w in enumerate(x.unbind(1))",
            "t, u in enumerate(torch.unbind(x, dim=1))",
            "t, w in enumerate(z)",
            "t, w in enumerate(x.transpose(0, 1))",
            "t, w in enumerate(x.split(1, dim=1))",
            "t, w in enumerate(torch.chunk(x, x.shape[1], -2))",
            "t, w in enumerate(x.chunk(2, 1))",
            "t, w in enumerate(z[1:])",
            "t, w in enumerate(box.rows)",
            "t, (w, u) in enumerate(zip(x.unbind(1), y.unbind(2)))",
            "t, (u, w) in enumerate(zip(z, x.split(1, dim=1)))",
            "t, (w, u) in enumerate(zip(z, z[1:]))",
            "t in reversed(range(x.shape[1]))",
            "t in reversed(range(1, x.shape[1] - 1))",
            "t in range(x.shape[1] - 1, -1, -1)",
            "t in range(x.shape[1] - 2, 0, -1)",
            "t in range(3, 0, -1)",
        ]
    ),
    st.sampled_from(FIRST),
    st.sampled_from(LAST),
    st.integers(0, 6),
    st.booleans(),
)
def test_steps_compute_what_the_loop_does(
    body: list[str],
    refused: list[str],
    results: list[str],
    header: str,
    first: str,
    last: str,
    place: int,
    are_bound: bool,
) -> None:
    statements = [*body[:place], *refused, *body[place:]]
    source = "def forward(x, y, box):\n    a, b = torch.zeros(x.shape[0], 3), torch.ones(x.shape[0], 3)\n"
    source += "    u = v = w = a - 1\n" if are_bound else ""
    source += "    z, wide = x.transpose(0, 1), torch.cat((x, x), 1)\n"
    source += "    size, s, d, q = 6, [a, b], {'a': a, 'b': b}, None\n"
    source += "    total, count = x[:, 0] * 2, 0\n"
    source += f"    {first}\n    written = torch.zeros_like(x)\n"
    source += f"    for {header}:\n"
    source += "".join(f"        {one}\n" for one in statements)
    source += f"    {last}\n" if last else ""
    source += f"    return ({', '.join(results)},)\n"
    names = {"x": torch.randn(2, 5, 3), "y": torch.randn(2, 3, 5)}
    count, expected, found = run_both(source, names)
    inner = sum(one.startswith("for ") for one in statements)
    assert not refused or count <= inner, source
    if found == RowsDiffer.__name__:
        return
    if isinstance(expected, str):
        assert found == expected, source
    else:
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


UNFIT = ("x[:, i] * i ** 2", "x[:, i - 2]")
"""No rows of a step."""


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["x[:, i]", "x[:, i] * scale + y[:, :, i]", "helper(y[:, :, i], scale)", "(x[:, i] * i)",
                     "x[:, i] * i ** 2",
                     "y[:, :, i : i + 1].squeeze(-1).cumsum(0)", "x[:, i - 2]"]),
    st.sampled_from(["{}", "({}) * 2 + i", "(i, {}, torch.stack([i], 0))", "{} if i.sum() > 0 else -i"]),
    st.sampled_from(["torch.stack([{} for i in range(x.shape[1])], dim=-1)", "torch.stack([{} for i in range(1, 4)])",
                     "torch.cat([{}[None] for i in range(x.shape[1])])",
                     "torch.stack([{} for i in range(x.shape[1]) if i])"]),
)  # fmt: skip
def test_a_list_that_is_stacked_is_computed_in_steps(row: str, around: str, stack: str) -> None:
    source = (
        "def forward(x, y, box):\n"
        "    i, scale = x.sum(1), torch.tensor(0.5)\n"
        "    scale = scale + x.sum(1)\n"
        f"    found = {around.format(stack.format(row))}\n"
        "    return found, i\n"
    )
    count, expected, found = run_both(source, {"x": torch.randn(2, 5, 3), "y": torch.randn(2, 3, 5)})
    assert count == (row not in UNFIT and " if " not in stack + around), source
    if isinstance(expected, str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("last", ["", "    outs = torch.stack(outs, dim=1)\n    outs = [outs * 2]\n"])
def test_a_plain_recurrence_is_rewritten(last: str) -> None:
    source = ROWS.replace("    return", f"{last}    return")
    count, expected, found = run_both(source, {"x": torch.randn(2, 5, 3), "y": torch.randn(2, 3, 5)})
    assert count == 1
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("title", ATTACKS)
def test_what_something_else_sees_stays_as_it_is(title: str) -> None:
    """Most of them gave other values, or none, when they were tried."""
    _, expected, found = run_both(f"def forward(x, box):{ATTACKS[title]}\n", {"x": torch.randn(2, 5, 5)})
    if isinstance(expected, str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_names_that_mean_other_things_are_left() -> None:
    def rewritten(function: Callable[..., Any]) -> Any:
        return scanned_loops._rewritten(cast(FunctionType, function), ())

    def usual(x: Tensor) -> Tensor:
        state = x[:, 0]
        for t in range(x.shape[1]):
            state = state * 2 + x[:, t]
        return state

    def own_range(x: Tensor, range: Callable[..., Any]) -> Tensor:
        state = x[:, 0]
        for t in range(x.shape[1]):
            state = state * 2 + x[:, t]
        return state

    def own_names(x: Tensor) -> Tensor:
        _scan_start_1 = state = x[:, 0]
        for t in range(x.shape[1]):
            state = state * 2 + x[:, t]
        return state + _scan_start_1

    def all_locals(x: Tensor) -> Tensor:
        for t in range(x.shape[1]):
            row = x[:, t]
        return cast(Tensor, locals()["row"])

    assert rewritten(usual) is not None
    assert rewritten(all_locals) is None
    assert rewritten(own_range) is None
    assert rewritten(own_names) is None


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [Mixer, Gated, Cell, Decoder, Listed, Returns, Advantages, Spiking, Stacked, Layers, Sums, BothWays, Pointing],
)
def test_a_recurrence_exports_for_any_length_and_translates(module: type[nn.Module], tmp_path: Path) -> None:
    check_any_length(module().eval(), "loops-as-scan", ((2, 5), (3, 3), (4, 17)), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("first", "last"), [(0, 0), (1, 0), (0, 3), (2, 1)])
def test_only_loops_of_fewer_steps_than_the_condition_says_are_refused(first: int, last: int) -> None:
    shim = find("loops-as-scan")
    assert shim.soundness == "precondition"
    assert "at least once, at least twice where the number of its steps is computed" in shim.precondition
    refused = refused_lengths(Between(first, last).eval(), shim.id, range(10))
    fewest = 2 if first + last else 1
    assert all(length - first - last < fewest for length in refused)


@pytest.mark.long
@pytest.mark.slow
def test_what_an_earlier_export_fixed_stays_dynamic_in_the_next() -> None:
    module = Between(0, 0).eval()
    for sizes in ({1: Dim.DYNAMIC}, {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}):
        call = ExportCall(module=module, args=(torch.randn(2, 5, 4),), dynamic_shapes=(sizes,))
        with apply_shims([find("loops-as-scan")], call) as changed:
            program = export_program(changed).module()
    x = torch.randn(3, 7, 4)
    torch.testing.assert_close(program(x), module(x))


@pytest.mark.slow
def test_a_function_inside_a_decorator_with_a_loop_is_rewritten() -> None:
    call = ExportCall(module=Decorated().eval(), args=(torch.randn(2, 5, 4),), dynamic_shapes=({1: Dim.DYNAMIC},))
    with apply_shims([find("loops-as-scan")], call) as changed:
        program = export_program(changed)
    x = torch.randn(2, 9, 4)
    torch.testing.assert_close(program.module()(x), Decorated()(x))


@pytest.mark.slow
def test_a_loop_that_does_more_stays_as_it_is() -> None:
    call = ExportCall(module=Counting(), args=(torch.randn(2, 5, 4),), dynamic_shapes=({1: Dim.DYNAMIC},))
    with pytest.raises(NotApplicable, match="no function has a loop"), apply_shims([find("loops-as-scan")], call):
        pass


@pytest.mark.slow
def test_a_list_in_a_list_of_state_is_not_carried() -> None:
    call = ExportCall(module=Nested(), args=(torch.randn(2, 5, 4),), dynamic_shapes=({1: Dim.DYNAMIC},))
    with apply_shims([find("loops-as-scan")], call) as changed, pytest.raises(Exception, match="Constraints violated"):
        export_program(changed)


@pytest.mark.slow
def test_an_item_of_the_state_that_a_layer_writes_into_stays_in_its_loop() -> None:
    call = ExportCall(module=InPlace(), args=(torch.randn(2, 5, 4),), dynamic_shapes=({1: Dim.DYNAMIC},))
    with pytest.raises(NotApplicable, match="no function has a loop"), apply_shims([find("loops-as-scan")], call):
        pass


@pytest.mark.long
def test_a_step_that_is_pure_in_one_module_alone_stays_as_it_is() -> None:
    def call(*layers: nn.Module) -> ExportCall:
        module = nn.Sequential(*map(Layered, layers)).eval()
        return ExportCall(module=module, args=(torch.randn(2, 5, 4),), dynamic_shapes=({1: Dim.DYNAMIC},))

    with apply_shims([find("loops-as-scan")], call(nn.Linear(4, 4), nn.GELU())):
        pass
    with pytest.raises(NotApplicable), apply_shims([find("loops-as-scan")], call(nn.Linear(4, 4), Counter())):
        pass


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool, torch.float16, torch.float32,
                     torch.float64, torch.complex64]),
    st.sampled_from([(), (2,)]),
    st.sampled_from(["add", "sub", "mul", "truediv"]),
    st.integers(1, 40),
    st.booleans(),
)  # fmt: skip
def test_the_number_of_a_step_computes_as_a_number_of_python(
    dtype: torch.dtype, shape: tuple[int, ...], name: str, number: int, is_left: bool
) -> None:
    tensor, given = torch.ones(shape).to(dtype), torch.tensor(number)
    sides: list[Any] = [tensor, number] if is_left else [number, tensor]
    try:
        wanted = getattr(operator, name)(*sides)
    except RuntimeError:  # torch subtracts no bool
        return
    left, right = (tensor, given) if is_left else (given, tensor)
    found = scanned_loops.with_number(left, right, name)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_the_number_of_a_step_beside_no_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match="no tensor beside it"):
        scanned_loops.with_number(0.1, torch.tensor(3), "mul")


class Decays(nn.Module):
    """A recurrence with a parameter, as a state space model has it."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(-torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], 4)
        rows = []
        for step in range(x.shape[1]):
            state = torch.exp(x[:, step] * self.rate) * state + x[:, step]
            rows.append(state * 2)
        return torch.stack(rows, 1)


@pytest.mark.long
@pytest.mark.slow
def test_a_scan_is_not_told_to_fail_with_gradients() -> None:
    """It reads what a backward pass needs while the forward runs."""
    x = torch.rand(2, 5, 4)
    call = ExportCall(module=Decays(), args=(x,), dynamic_shapes=({0: Dim("b"), 1: Dim("t")},))
    with apply_shims([find("loops-as-scan")], call) as given:
        program = export_program(given).module()
    example = InputSet(title="the example", kind="example", calls=(((x,), {}),), results=())
    assert fails_with_gradients(call.module, program, lambda one: one, example) == ""
    program(x).sum().backward()
    assert any(one.grad is not None for one in program.parameters())
