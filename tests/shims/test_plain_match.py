"""`match` on plain values is rewritten as the branches that it stands for, and then what branches are cured by."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from exportdoctor.shims import ExportCall, apply_shims, export_program, find
from exportdoctor.shims.rules.code.plain_match import MatchesAsBranches

PATTERNS = (
    "0",
    "1",
    "-2",
    "'a'",
    "None",
    "True",
    "False",
    "0 | 2",
    "None | 'a' | 3",
    "2 as n",
    "(0 | 3) as n",
    "1.5",
    "E.ONE",
)
GUARDS = ("", " if x == 2", " if calls")
VALUES = (0, 1, 2, 3, -2, 1.5, "a", None, True, False, (0, 1), "b")


def results_of(tree: ast.Module) -> list[Any]:
    """What the function gives for each value, and how often it asked for it."""
    names: dict[str, Any] = {"E": type("E", (), {"ONE": 1})}
    exec(compile(tree, "matches", "exec"), names)
    found = []
    for value in VALUES:
        calls: list[int] = []
        try:
            found.append((names["chosen"](value, calls), len(calls)))
        except Exception as error:
            found.append((type(error).__name__, len(calls)))
    return found


@settings(max_examples=300, deadline=None)
@given(
    cases=st.lists(st.tuples(st.sampled_from(PATTERNS), st.sampled_from(GUARDS)), min_size=1, max_size=5),
    last=st.sampled_from(["", "_", "n", "_ if calls"]),
    subject=st.sampled_from(["x", "take(x, calls)", "bool(x)"]),
)
def test_the_branches_do_what_the_match_does(cases: list[tuple[str, str]], last: str, subject: str) -> None:
    lines = [f"        case {pattern}{guard}:\n            y = {at}" for at, (pattern, guard) in enumerate(cases)]
    lines += [f"        case {last}:\n            y = 'last'"] if last else []
    text = (
        "def take(x, calls):\n    calls.append(x)\n    return x\n\n"
        f"def chosen(x, calls):\n    n = y = None\n    match {subject}:\n" + "\n".join(lines) + "\n    return y, n\n"
    )
    changed = MatchesAsBranches().visit(ast.parse(text))
    stays = any(" as " in pattern and guard for pattern, guard in cases)
    assert any(isinstance(one, ast.Match) for one in ast.walk(changed)) == stays
    assert results_of(changed) == results_of(ast.parse(text))


@pytest.mark.parametrize("cases", ["True False", "False True", "True _", "False _", "True", "False"])
def test_a_match_on_a_truth_asks_for_it_once(cases: str) -> None:
    """Its condition need not be a bool then, which a traced tensor does not give."""
    lines = "".join(f"        case {one}:\n            y = {one!r}\n" for one in cases.split())
    text = f"def chosen(x, calls):\n    y = None\n    match bool(calls.append(x) or x):\n{lines}    return y\n"
    changed = MatchesAsBranches().visit(ast.parse(text))
    assert [type(one) for one in changed.body[0].body[1:-1]] == [ast.If]
    assert results_of(changed) == results_of(ast.parse(text))


@pytest.mark.parametrize("pattern", ["[0, *_]", "{'a': 1}", "str()", "(0, 1)", "2 as n if n", "2 if (n := x)"])
def test_other_patterns_stay(pattern: str) -> None:
    tree = ast.parse(f"match x:\n    case {pattern}:\n        y = 1\n    case _:\n        y = 2\n")
    assert ast.dump(MatchesAsBranches().visit(ast.parse(ast.unparse(tree)))) == ast.dump(tree)


class Modes(nn.Module):
    def forward(self, x: Tensor, mode: Tensor) -> Tensor:
        match mode.item():
            case 0:
                return x
            case 1 | 2:
                x = x * 3
            case _:
                x = -x
        return x + 1


@pytest.mark.slow
def test_a_match_on_a_tensors_number_is_a_choice_in_the_program() -> None:
    model = Modes()
    call = ExportCall(module=model, args=(torch.randn(3, 4), torch.tensor(1)))
    with pytest.raises(Exception, match="data-dependent"):
        export_program(call)
    with apply_shims([find("branch-as-where")], call) as changed:
        program = export_program(changed).module()
    for mode in (0, 1, 2, 3, -1):
        given = torch.randn(3, 4), torch.tensor(mode)
        torch.testing.assert_close(program(*given), model(*given))
