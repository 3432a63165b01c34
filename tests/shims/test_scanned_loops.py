"""Loops as scans: the steps compute what the loop does, whatever runs them; and a program holds for any length."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, apply_shims, export_program, find
from exportdoctor.shims.record import NotApplicable
from exportdoctor.shims.rules import scanned_loops
from exportdoctor.shims.rules.loop_code import APPLIES, BEGINS, SCAN
from exportdoctor.shims.rules.loop_rewrite import LoopRewrite
from exportdoctor.shims.rules.observed_rewrite import UNBOUND
from exportdoctor.shims.rules.pure_code import Purity
from scan_steps import RowsDiffer, check_any_length, refused_lengths, run_in_turn
from strict_state import Counter

STATEMENTS = (
    "a = a * 0.5 + x[:, t]",
    "b = b - x[:, t, :].abs() * a",
    "a, b = b, a + 1",
    "u = a + y[:, :, t]",
    "u = y[..., t] * 2",
    "a = a + w",
    "for k in range(2):\n            a = a * k + b",
    "for u in (a, b):\n            b = b + u",
    "v = x[:, t : t + 1].sum(1) - b",
    "a = torch.where(u > 0, u, a)",
    "b = helper(v, a)",
    "outs.append(a)",
    "outs.append(u + v)",
    "more.append(b[:, None])",
    "written[:, t] = a",
    "written[:, t] = (b - x[:, t]).to(written.dtype)",
    "if a.shape[0] == 2:\n            a = a + 3",
    "written[:, t] = a.sum(0)",
    "written[..., t, :] = (a > b).any()",
    "a = a * 0.5 + wide[:, t + 1] - wide[:, 2 + t, :]",
    "b = b + x[:, t - 1]",
    "outs += [b]",
    "more = more + [u[:, None]]",
    "a = outs[-1] * 0.5 + x[:, t]",
    "outs.append(outs[-1] * 2)",
    "s[0] = s[0] * 0.5 + x[:, t]",
    "s[1], a = a + 1, s[0]",
    "d['a'], s[-1] = d['b'] - y[..., t], a",
    "for k in range(2):\n            s[k] = s[k - 1] + k",
    "b = b + s[1] - d['a']",
    "q = x[:, t] if q is None else q * 0.5 + x[:, t]",
    "u = x[:, x.shape[1] - 1 - t]",
    "b = b + x[:, -t - 1] - y[:, :, -(1 + t)]",
    "a = a - wide[:, size - t] + x[:, x.shape[1] - (t + 1), :]",
    "written[:, x.shape[1] - t - 1] = a",
    "outs.insert(0, a)",
    "total += x[:, t]",
    "count += x[:, t].sum() * 2",
    "total -= total * 0.5 - a",
    "total *= u.cos()",
    "b = b + total.sum(0) - (total.unsqueeze(0) + count)[0]",
    "a = a * count",
    "more = [u[:, None]] + more",
    "a = a + t",
    "b = b * (t + 1) - (2 - t * 3) * a",
    "u = (a - x[:, t]) / (t + 1)",
    "outs.append(t * (a + t))",
    "count = count + a.sum() * t",
    # and what no step may do
    "x[:, t] = a",
    "a = a * t ** 2",
    "a = a + t % 2",
    "a = a * (t if t else 1)",
    "a = a + [a, b][t % 2]",
    "a = x[:, t - 3]",
    "a += x[:, t]",
    "outs.append(outs[0] * 2)",
    "written[:, t] = a\n        u = written[:, t] + a",
    "box.count = box.count + 1",
    "if t > 2:\n            break",
    "u = sum([one for one in (a, b)])",
    "box.rows.append(a)",
    "s[t % 2] = a",
    "outs.append(total)\n        total += a",
    "u = total[0]\n        total += a\n        b = b + u",
    "c = b\n        c += a",
    "s[0].add_(1)",
    "s.append(s[0])",
    "q = s\n        s[0] = a",
    "u = x[:, size - t - t]",
    "outs.insert(1, a)",
    "outs.reverse()",
    "size = size - 1\n        u = x[:, size - t]",
)
REFUSED = STATEMENTS.index("x[:, t] = a")
RESULTS = (
    "a", "b", "u", "v", "w", "t", "torch.stack(outs, dim=1)", "torch.stack(outs, -1)", "torch.cat(more, 1)", "written",
    "torch.stack(outs[1:], 1)", "torch.cat(more[:-1], dim=-2)", "torch.stack(outs[::-1])", "outs[-1]",
    "len(outs)", "box.count", "s", "d", "torch.stack(s)", "q", "s[0]", "total", "count",
)  # fmt: skip

FIRST = ("outs, more = [], []", "outs = [a]\n    more = list()", "outs, more = [b, a], [x[:, 1:3]]")
LAST = (
    "", "outs.append(b)", "outs += [x[:, 0]]", "outs = torch.stack(outs, dim=1) * 2", "outs = torch.stack(outs[1:])",
    "more = a = torch.cat(more, 1)", "outs = len(outs)", "outs.reverse()", "outs.insert(0, b)\n    outs.reverse()",
)  # fmt: skip


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


ROWS = """
def forward(x, y, box):
    a = torch.zeros(x.shape[0], 3)
    outs, more = [], []
    written = torch.zeros_like(x)
    for t in range(x.shape[1]):
        u = helper(y[:, :, t], a)
        a = u * 0.5 + x[:, t]
        outs.append(a)
        more.append(u[:, None])
        written[:, t] = u
    return torch.stack(outs, dim=-1), torch.cat(more, dim=1), written, a
"""


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


ATTACKS = {
    "a list with two names": """
    rows = same = []
    for t in range(x.shape[1]):
        rows.append(x[:, t])
    return torch.stack(rows), len(same)""",
    "a list that was given": """
    rows = box.rows
    for t in range(x.shape[1]):
        rows.append(x[:, t])
    return torch.stack(rows)""",
    "a name that a function inside reads": """
    state = x[:, 0]
    def seen():
        return u * 2
    for t in range(x.shape[1]):
        u = x[:, t]
        state = state + u
    return state, seen()""",
    "a value that is computed later": """
    u = 0
    later = (one * u for one in (1, 2))
    for t in range(x.shape[1]):
        u = x[:, t]
    return tuple(later)""",
    "a name of the file": """
    global kept_by_the_file
    for t in range(x.shape[1]):
        kept_by_the_file = x[:, t]
    return globals()["kept_by_the_file"]""",
    "a name that is added to inside a block": """
    u = x[:, 0]
    for t in range(x.shape[1]):
        u = x[:, t] * 2
    with torch.no_grad():
        u += 1
    return x""",
    "a name that is read where the block ends": """
    try:
        for t in range(x.shape[1]):
            u = x[:, t]
    finally:
        box.rows.append(u)
    return x""",
    "a view that the steps read": """
    written = x[:, 1:]
    for t in range(x.shape[1] - 1):
        written[:, t] = x[:, t] * 2
    return x""",
    "a view made of what is written": """
    written = torch.zeros_like(x)
    early = written[:, :-1]
    for t in range(x.shape[1]):
        written[:, t] = x[:, t] + early[:, 0]
    return written""",
    "a view that an earlier round made": """
    written, early = torch.zeros_like(x), x
    for k in range(2):
        for t in range(x.shape[1]):
            written[:, t] = x[:, t] + early[:, 0]
        early = written.transpose(0, 1).transpose(0, 1)
    return written""",
    "what is written has two names": """
    written = early = torch.zeros_like(x)
    for t in range(x.shape[1]):
        written[:, t] = x[:, t] + early[:, 0]
    return written""",
    "what writes into a given tensor": """
    written = torch.mul(x, 1, out=x)
    for t in range(x.shape[1]):
        written[:, t] = x[:, t] + x[:, 0]
    return written""",
    "an index that is a choice": """
    rows = []
    for t in range(x.shape[1]):
        rows.append(x[True, :, t])
    return torch.stack(rows)""",
    "a list behind what changes something": """
    def note():
        x.add_(1)
        return x
    return note(), torch.stack([x[:, i] for i in range(x.shape[1])])""",
    "a list whose stack takes its name, left half-way": """
    rows = [x]
    for k in range(3):
        if k == 2:
            return rows
        rows = []
        for t in range(x.shape[1]):
            rows.append(x[:, t])
        if k == 1:
            continue
        rows = torch.stack(rows)""",
    "a list whose stack takes its name, where an error is caught": """
    try:
        rows = []
        for t in range(x.shape[1]):
            rows.append(x[:, t])
        rows = torch.stack(rows) + x[0, 0, :3]
    except RuntimeError:
        return len(rows)""",
    "a list whose stack takes its name, beside others of that name": """
    rows = x
    for t in range(2):
        rows, before = [], rows
        for t in range(x.shape[1]):
            rows.append(x[:, t] + before[0, 0])
        rows = torch.stack(rows).sum() + sum(rows.sum() for rows in before) + x
    return rows, before""",
    "a list whose stack takes its name, and a function that reads it": """
    def seen():
        return len(rows)
    rows = []
    for t in range(x.shape[1]):
        rows.append(x[:, t] * seen())
    rows = torch.stack(rows)
    return rows""",
    "a row that is written into after the loop": """
    a, rows = x[:, 0] * 0, []
    for t in range(x.shape[1]):
        a = a * 0.5 + x[:, t]
        rows.append(a)
    a += 1
    return torch.stack(rows), a""",
    "a row of two lists that is written into after the loop": """
    a, rows, more = x[:, 0] * 0, [], []
    for t in range(x.shape[1]):
        a = a * 0.5 + x[:, t]
        rows.append(a)
        more.append(a)
    a += 1
    return torch.stack(rows), torch.stack(more)""",
    "the last row, which is written into after the loop": """
    rows = [x[:, 0] * 1]
    for t in range(x.shape[1]):
        rows.append(rows[-1] * 0.5 + x[:, t])
    rows[-1].mul_(2)
    rows[-1][:, 0] = 7
    return torch.stack(rows), torch.stack(rows[:-1])""",
    "a stack that is written into": """
    rows = []
    for t in range(x.shape[1]):
        rows.append(x[:, t] * 2)
    one = torch.stack(rows)
    one[0] = 7
    return one, torch.stack(rows, axis=1), torch.cat(rows)""",
    "rows that are appended where it is no statement": """
    rows = [x[:, 0] * 1]
    for t in range(x.shape[1]):
        rows.append(x[:, t] * 2) if t != 2 else None
        rows.append(rows[-1] * 0.5)
    [rows.append(one * 3) for one in (rows[-1], x[:, 1])]
    rows.append(rows[-1] * 0.5)
    return torch.stack(rows)""",
    "a name that is bound inside a loop alone": """
    rows = []
    for t in range(x.shape[1]):
        for k in range(2):
            u = x[:, t] * k
        rows.append(u)
    return torch.stack(rows)""",
    "fields of a class": """
    class Made:
        rows: Tensor = x
        more: list = []
    for t in range(x.shape[1]):
        u = x[:, t]
    return len(Made.__annotations__)""",
    "a list whose stack takes its name, in a context that goes on after an error": """
    rows = x
    with suppress(RuntimeError):
        rows = []
        for t in range(x.shape[1]):
            rows.append(x[:, t])
        rows = torch.stack(rows) + x[0, 0, :3]
    return len(rows)""",
    "what is computed once for a loop over it": """
    for t in range(x.shape[1]):
        u = x[:, t]
    total = 0
    for row in box.rows.append(x) or x.flip(1):
        total = total + row
    return total, len(box.rows)""",
    "a list of state with two names": """
    states = [x[:, 0] * 0]
    same = states
    for t in range(x.shape[1]):
        states[0] = states[0] * 0.5 + x[:, t]
    return states, same""",
    "a dict of state that was put somewhere": """
    state = {"h": x[:, 0] * 0}
    box.rows.append(state)
    for t in range(x.shape[1]):
        state["h"] = state["h"] * 0.5 + x[:, t]
    return state""",
    "a list inside of the list of state": """
    states = [[x[:, 0] * 0], [x[:, 1]]]
    first = states[0]
    for t in range(x.shape[1]):
        states[0][0] = states[0][0] * 0.5 + x[:, t]
        states[1] = [states[1][0] + 1]
    return states, first""",
    "a list that is gone over while it is written": """
    states = [x[:, 0] * 0, x[:, 1]]
    for t in range(x.shape[1]):
        for one in states:
            states[1] = one + x[:, t]
    return states""",
    "an item whose place changes with it": """
    states, k = [x[:, 0] * 0, x[:, 1]], 0
    for t in range(x.shape[1]):
        states[k], k = states[k] * 0.5 + x[:, t], 1 - k
    return states""",
    "a list of state that a function inside reads": """
    states = [x[:, 0] * 0]
    def seen():
        return states[0]
    for t in range(x.shape[1]):
        states[0] = seen() * 0.5 + x[:, t]
    return states""",
    "a zip of a tensor and an iterator": """
    total, left = x[:, 0] * 0, iter((2, 3))
    for row, factor in zip(x.unbind(1), left):
        total = total * 0.5 + row * factor
    return total, next(left, 7)""",
    "what is added to a view": """
    total = x[0]
    for t in range(x.shape[1]):
        total += x[1, t]
    return total, x""",
    "what is added to a tensor with two names": """
    total = x[:, 0] * 1
    same = total
    for t in range(x.shape[1]):
        total += x[:, t]
    return total, same""",
    "what is added to an input": """
    for t in range(x.shape[1]):
        x += x[:, t : t + 1]
    return x""",
    "what is added to a tensor whose view is kept": """
    total = x[:, 0] * 1
    early = total.view(-1)
    for t in range(x.shape[1]):
        total += x[:, t]
    return early, total""",
    "what is added to what is the same tensor": """
    total = x[:, 0] * 1
    early = +total
    for t in range(x.shape[1]):
        total += x[:, t]
    return early, total""",
    "what is added to a tensor whose rows a list took": """
    total, views = x[:, 0] * 1, []
    views += total
    for t in range(x.shape[1]):
        total += x[:, t]
    return torch.stack(views), total""",
    "what is added to a tensor that was kept": """
    total = x[:, 0] * 1
    other = [box.rows.append(total), total * 2][1]
    for t in range(x.shape[1]):
        total += x[:, t]
    return other, total, box.rows[0] * 3""",
    "a tensor in a list of state, which is written into": """
    a, b = x[:, 0] * 0, x[:, 0] * 0
    states = [a, b]
    for t in range(x.shape[1]):
        states[1] = states[1] * 0.5 + x[:, t]
    a.add_(1)
    return states""",
    "a view in a list of state, which is written into": """
    states = [x[:, 0], x[:, 1]]
    for t in range(x.shape[1]):
        states[1] = states[1] * 0.5 + x[:, t]
    states[0][:, 0] = 7
    return x, states""",
    "a row of a list of state, which is written into": """
    states, rows = [x[:, 0] * 0], []
    for t in range(x.shape[1]):
        states[0] = states[0] * 0.5 + x[:, t]
        rows.append(states[0])
    states[0].add_(1)
    return torch.stack(rows), states""",
    "a first row that is written into": """
    a, rows = x[:, 0] * 0, []
    for t in range(x.shape[1]):
        a = a * 0.5 + x[:, t]
        rows.insert(0, a)
    a += 1
    return torch.stack(rows)""",
    "a row with another name that is written into": """
    a, rows = x[:, 0] * 0, []
    for t in range(x.shape[1]):
        a = a * 0.5 + x[:, t]
        other = a
        rows.append(other)
    a += 1
    return torch.stack(rows)""",
    "a row whose view is in a list": """
    a, rows = x[:, 0] * 0, []
    for t in range(x.shape[1]):
        a = a * 0.5 + x[:, t]
        rows.append(a[:, None])
    a += 1
    return torch.cat(rows, 1)""",
    "a state with two names that is written into": """
    a = b = x[:, 0] * 0
    for t in range(x.shape[1]):
        a = a * 0.5 + x[:, t] + b
        b = a
    a += 1
    return a, b""",
    "what is added to a tensor that another loop takes before the next": """
    total, rows, k = x[:, 0] * 1, [], 0
    while k < 2:
        k = k + 1
        for t in range(x.shape[1]):
            total += x[:, t]
        rows.append(total)
    return rows""",
    "an item of the state that a function writes into": """
    states, rows = [x[:, 0] * 0], []
    for t in range(x.shape[1]):
        states[0] = states[0] * 0.5 + x[:, t]
        rows.append(states[0])
    return torch.relu_(states[0]), torch.stack(rows)""",
    "what is added to whole numbers": """
    total = torch.zeros(2, 5, dtype=torch.int64)
    for t in range(x.shape[1]):
        total += x[:, t]
    return total""",
    "a row with names of its own": """
    rows = torch.stack([x[:, sorted((0, 1), key=lambda i: -i)[0]] * 1 for i in range(x.shape[1])])
    for t in range(x.shape[1]):
        u = x[:, t]
    return rows""",
}


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


class Mixer(nn.Module):
    """As the slow forward of Mamba: rows of three tensors, a list that is stacked, and the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.inner(x).transpose(1, 2)
        decay, seen = torch.sigmoid(hidden)[..., None], hidden.transpose(1, 2)[:, :, :2]
        state = hidden.new_zeros(x.shape[0], 6, 2)
        outputs = []
        for index in range(x.shape[1]):
            state = decay[:, :, index, :] * state + hidden[:, :, index, None]
            output = torch.matmul(state.to(x.dtype), seen[:, index, :].unsqueeze(-1))
            outputs.append(output[:, :, 0])
        output = torch.stack(outputs, dim=-1)
        return self.outer(output.transpose(1, 2)), state


class Gated(nn.Module):
    """As RG-LRU: each step writes its row of a tensor that was made before."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gate, state, written = torch.sigmoid(self.gate(x)), torch.zeros(x.shape[0], 4), torch.zeros_like(x)
        for t in range(x.shape[1]):
            state = gate[:, t].to(torch.float32) * state
            state = state + x[:, t].to(torch.float32)
            written[:, t] = state.to(x.dtype)
        return written, state


class Cell(nn.Module):
    """A cell of submodules behind a method, from the second row on."""

    def __init__(self) -> None:
        super().__init__()
        self.of_input, self.of_state = nn.Linear(4, 4), nn.Linear(4, 4)

    def step(self, row: Tensor, state: Tensor) -> Tensor:
        if row.dim() != 2:
            raise ValueError(f"{row.dim()} dimensions")
        return torch.tanh(self.of_input(row) + self.of_state(state))

    def forward(self, x: Tensor) -> Tensor:
        state, rows = torch.zeros(x.shape[0], 4), []
        for t in range(1, x.size(1)):
            state = self.step(x[:, t : t + 1].squeeze(1), state)
            rows.append(state[:, None])
        return torch.cat(rows, dim=1)


class Decoder(nn.Module):
    """A cell of torch over the rows that `unbind` gives, behind layers of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(4, 5), nn.Linear(5, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.GELU()])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden, cell, rows = x.new_zeros(x.shape[0], 5), x.new_zeros(x.shape[0], 5), []
        for row in x.unbind(1):
            for layer in self.layers:
                row = layer(row)
            hidden, cell = self.cell(row, (hidden, cell))
            rows.append(self.head(hidden))
        return torch.stack(rows, 1), cell


class Listed(nn.Module):
    """Lists that begin with a row, whose last row is the state, and whose stack takes their name."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states: Any = [x[:, 0] * 0]
        for row in x.transpose(0, 1):
            states.append(torch.tanh(states[-1] + row))
        last, states = states[-1], torch.stack(states[1:], dim=1)
        pieces: Any = []
        for piece in states.split(1, dim=1):
            last = last * 0.5 + piece[:, 0]
            pieces += [last[:, None] + piece]
        pieces = torch.cat(pieces[::-1], dim=1)
        return pieces, last


class Returns(nn.Module):
    """What follows each row, from the last backwards, and back again from the first."""

    def forward(self, x: Tensor) -> Tensor:
        state, after = x.new_zeros(x.shape[0], x.shape[2]), torch.zeros_like(x)
        for t in reversed(range(x.shape[1])):
            state = state * 0.9 + x[:, t]
            after[:, t] = state
        rows = []
        for t in range(x.shape[1]):
            state = state * 0.5 + after[:, t]
            rows.append(state)
        return torch.stack(rows, 1)


class Advantages(nn.Module):
    """Each step reads the next row, too, and the one before."""

    def forward(self, x: Tensor) -> Tensor:
        last, found = x[:, 0] * 0, torch.zeros_like(x)
        for t in reversed(range(x.shape[1] - 1)):
            last = x[:, t] + 0.9 * x[:, t + 1] + 0.5 * last
            found[:, t] = last
        steps = []
        for t in range(1, x.shape[1]):
            last = last * 0.5 + found[:, t] - found[:, t - 1]
            steps.append(last)
        return torch.stack(steps, 1)


class Membrane(NamedTuple):
    voltage: Tensor
    current: Tensor


class Spiking(nn.Module):
    """State in a named tuple, behind a method whose module is not called `self`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def step(this, row: Tensor, state: Membrane) -> tuple[Tensor, Membrane]:
        current = state.current * 0.8 + this.layer(row)
        voltage = state.voltage * 0.9 + current
        spikes = (voltage > 1).float()
        return spikes, Membrane(voltage - spikes, current)

    def forward(this, x: Tensor) -> tuple[Tensor, Tensor]:
        zero = torch.zeros(x.shape[0], 4)
        state, rows = Membrane(zero, zero), []
        for t in range(x.shape[1]):
            spikes, state = this.step(x[:, t], state)
            rows.append(spikes)
        return torch.stack(rows, 1), state.voltage


class Stacked(nn.Module):
    """Cells of torch above one another, their state in a tuple of tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([nn.LSTMCell(4, 4), nn.LSTMCell(4, 4)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        zero = torch.zeros(x.shape[0], 4)
        state, rows = ((zero, zero), (zero, zero)), []
        for t in range(x.shape[1]):
            first = self.cells[0](x[:, t], state[0])
            state = (first, self.cells[1](first[0], state[1]))
            rows.append(state[1][0])
        return torch.stack(rows, 1), state[0][1]


class Layers(nn.Module):
    """The state of each layer in a list, which begins with None; in a loop over numbers side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([nn.LSTMCell(4, 4), nn.LSTMCell(4, 4)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states, rows = [None] * len(self.cells), []
        for weight, shift in zip([0.5, 0.25], [1.0, 2.0], strict=True):
            total = x[:, 0] * weight
            for t in range(x.shape[1]):
                total = total * 0.5 + x[:, t] * shift
            x = x + total[:, None]
        for row, gate in zip(x.unbind(1), x.sigmoid().unbind(1), strict=False):
            row = row * gate
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(row, states[layer])
                row, _ = states[layer]  # type: ignore[misc]
            rows.append(row)
        return torch.stack(rows, 1), states[-1][1]  # type: ignore[index]


class Sums(nn.Module):
    """Sums that begin as a number and as a tensor, to which each step adds."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total: Any = 0
        decayed, state = torch.zeros(x.shape[0], 4), x[:, 0] * 0
        for t in range(x.shape[1]):
            state = state * 0.5 + x[:, t]
            total += x[:, t].tanh()
            decayed *= 0.5
            decayed += total * state
        later: Any = 0
        for t in reversed(range(x.shape[1])):
            later += x[:, t] * 0.5
        return total, decayed + later


class InPlace(nn.Module):
    """A layer that writes into an item of the state, which is also a row."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        states, rows = [x[:, 0] * 0], []
        for t in range(x.shape[1]):
            states[0] = states[0] * 0.5 + x[:, t]
            rows.append(states[0])
        return self.layer(states[0]) + torch.stack(rows)


class BothWays(nn.Module):
    """Rows from the last one on, put before those of their list, and written from the end on; a dict of state."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        steps = x.shape[1]
        state = {"first": x[:, 0] * 0, "last": x[:, 0] * 0}
        written = torch.zeros_like(x)
        behind: list[Tensor] = []
        for t in range(steps):
            state["first"] = state["first"] * 0.5 + x[:, t]
            state["last"] = state["last"] * 0.5 + x[:, steps - 1 - t] - x[:, -t - 1].cos()
            behind.insert(0, state["last"])
            written[:, steps - (t + 1)] = state["first"]
        return torch.stack(behind, 1), written, state["first"]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "module", [Mixer, Gated, Cell, Decoder, Listed, Returns, Advantages, Spiking, Stacked, Layers, Sums, BothWays]
)
def test_a_recurrence_exports_for_any_length_and_translates(module: type[nn.Module], tmp_path: Path) -> None:
    check_any_length(module().eval(), "loops-as-scan", ((2, 5), (3, 3), (4, 17)), tmp_path)


class Between(nn.Module):
    """A loop over all rows but the first and last few."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self.first, self.last = first, last

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], 4)
        for t in range(self.first, x.shape[1] - self.last):
            state = state * 0.5 + x[:, t]
        return state


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


def filtering(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A decorator with a loop of its own."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Tensor:
        return function(*args, **{name: value for name, value in kwargs.items() if value is not None})

    return wrapped


class Decorated(nn.Module):
    @filtering
    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], 4)
        for t in range(x.shape[1]):
            state = state * 0.5 + x[:, t]
        return state


@pytest.mark.slow
def test_a_function_inside_a_decorator_with_a_loop_is_rewritten() -> None:
    call = ExportCall(module=Decorated().eval(), args=(torch.randn(2, 5, 4),), dynamic_shapes=({1: Dim.DYNAMIC},))
    with apply_shims([find("loops-as-scan")], call) as changed:
        program = export_program(changed)
    x = torch.randn(2, 9, 4)
    torch.testing.assert_close(program.module()(x), Decorated()(x))


class Counting(nn.Module):
    """Its steps do more than compute."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], 4)
        for t in range(x.shape[1]):
            self.steps += 1
            state = state + x[:, t]
        return state


@pytest.mark.slow
def test_a_loop_that_does_more_stays_as_it_is() -> None:
    call = ExportCall(module=Counting(), args=(torch.randn(2, 5, 4),), dynamic_shapes=({1: Dim.DYNAMIC},))
    with pytest.raises(NotApplicable, match="no function has a loop"), apply_shims([find("loops-as-scan")], call):
        pass


class Nested(nn.Module):
    """A list in the list of state has another name, by which it is changed."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        inner = [x[:, 0] * 0]
        states: list[Any] = [inner, x[:, 0] * 0]
        for t in range(x.shape[1]):
            states[1] = states[1] * 0.5 + x[:, t]
        inner[0] = inner[0] + 5
        return states[0][0], states[1]


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


class Layered(nn.Module):
    """What its steps call depends on the module."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], 4)
        for t in range(x.shape[1]):
            state = self.layer(state + x[:, t])
        return x + state[:, None]


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
