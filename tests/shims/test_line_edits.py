"""Rewrites of a user's own line: what is written where, and that what is proposed is Python."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import textwrap
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exportdoctor.core.failure.explanations import explain
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.kinds import KINDS, FailureKind
from exportdoctor.core.records.outcome import Frame
from exportdoctor.engine.cure.try_rewrites import edits_of
from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program
from exportdoctor.shims.edits.edited_code import edit_shim
from exportdoctor.shims.edits.line_edits import _RULES, line_edits
from exportdoctor.shims.edits.source_text import changed_function
from synthetic import WINDOWS

GATE = """
import torch.nn as nn


class Gate(nn.Module):
    def forward(self, x, größe):
        y = x * 2  # ü
        if bool((x.sum() > 0).item()) and not y.any():
            return self.lin(
                x,
            )
        return y
"""


@pytest.mark.parametrize(
    ("kind", "body", "line", "expected"),
    [
        ("data_dependent_guard", "if x.any():\n    x = x * 2\nreturn x", 2, "x = torch.where(x.any(), x * 2, x)"),
        ("data_dependent_guard", "if x.any():\n    x += 1\nreturn x", 2, "x = torch.where(x.any(), x + 1, x)"),
        ("data_dependent_guard", "y = 1 if x.any() else 2\nreturn y", 2, "y = torch.where(x.any(), 1, 2)"),
        ("data_dependent_guard", "return x * 2 if x.any() else x + 1 if x.all() else x", 2,
         "return torch.where(x.any(), x * 2, torch.where(x.all(), x + 1, x))"),
        ("data_dependent_guard",
         "return (\n    x * 2  # two\n    if x.any() else\n    # all\n    x + 1 if x.all() else x\n)", 2,
         "torch.where(x.any(), x * 2, torch.where(x.all(), x + 1, x))"),
        ("data_dependent_guard", "if self.k and x.any():\n    return x * 2\nreturn x", 2,
         "return torch.where((bool(self.k)) & (x.any()), x * 2, x)"),
        ("data_dependent_guard", "if not self.k or x.any():\n    return x * 2\nreturn x", 2,
         "return torch.where((not self.k) | (x.any()), x * 2, x)"),
        ("data_dependent_guard", "if x.any():\n    return x * 2\nreturn x", 2,
         "return torch.cond(x.any(), lambda x: x * 2, lambda x: x.clone(), (x,))"),
        ("data_dependent_guard", "assert x.min().item() > 0, 'no'\nreturn x", 2,
         "torch._check(x.min().item() > 0, lambda: 'no')"),
        ("data_dependent_guard", "n = x.max().item()\nif n > 4:\n    raise ValueError('n')\nreturn x", 3,
         "torch._check(torch.sym_not(n > 4), lambda: 'n')"),
        ("data_dependent_value", "return x[:, : int(n)]", 2, "return x.narrow(1, 0, length)"),
        ("data_dependent_value", "return x * float(n)", 2, "return x * n.item()"),
        ("data_dependent_value", "return x * int(n)", 2, "return x * n"),
        ("attribute_mutation", "self.h = x.relu()\nreturn self.h + 1", 2, "return h + 1"),
        ("input_mutation", "x[0] = 1\nreturn x", 2, "x = x.clone()"),
        ("input_mutation", "x.data.add_(1)\nreturn x", 2, "x.detach().add_(1)"),
        ("dynamic_dim_specialised", "return x / math.sqrt(x.shape[0])", 2, "return x / (x.shape[0] ** 0.5)"),
        ("python_error", "return copy.deepcopy(x)", 2, "return x.clone()"),
        ("python_error", "return type(x) is not A", 2, "return not isinstance(x, A)"),
        ("dynamic_dim_specialised", "return x / int(x.shape[0])", 2, "return x / x.shape[0]"),
        ("dynamic_dim_specialised", "return x / int(x.size(0) / 2)", 2, "return x / (x.size(0) // 2)"),
        ("dynamic_dim_specialised", "return x / int(math.ceil(x.shape[0] / 2))", 2,
         "return x / math.ceil(x.shape[0] / 2)"),
    ],
)  # fmt: skip
def test_a_line_is_rewritten(kind: str, body: str, line: int, expected: str) -> None:
    text = f"def forward(self, x, n):\n{textwrap.indent(body, '    ')}\n"
    found = line_edits(text, kind, [line])
    assert any(f"    {expected}\n" in edit.text for edit in found), [edit.text for edit in found]


def test_a_rewrite_keeps_the_rest_of_the_file_as_it_is() -> None:
    (select, cond) = line_edits(GATE, "data_dependent_guard", [8])
    before, after = GATE.splitlines(), select.text.splitlines()
    assert after[1:3] == ["import torch", "import torch.nn as nn"]
    assert [line for line in after if line not in before] == [
        "import torch",
        "        return torch.where((x.sum() > 0) & (~(y.any())), self.lin( x, ), y)",
    ]
    assert "torch.cond(" in cond.text
    assert "(x, y))" in cond.text


@pytest.mark.parametrize(
    "text",
    ["", "def f(:", "x = 1\x00", "def f(x):\n    if x:\n        return 1\n    y = 2\n    return y\n",
     "def f(x):\n    if x:\n        a, b = x\n    return a\n", "class A:\n    if x: y = 1\n"],
)  # fmt: skip
def test_what_no_rewrite_fits_is_left_alone(text: str) -> None:
    assert line_edits(text, "data_dependent_guard", range(1, 9)) == ()


@pytest.mark.parametrize("code", ["np.ceil(x.shape[0] / 2)", "x.shape[0] * 0.5", "2 + x.shape[0] / 2", "f(x.shape)"])
def test_int_stays_where_it_makes_the_whole_number(code: str) -> None:
    """`x.chunk(np.ceil(...))` was proposed, which fails in eager: numpy gives a float."""
    assert line_edits(f"def f(x):\n    return x / int({code})\n", "dynamic_dim_specialised", [2]) == ()


def test_every_proposal_is_python_that_changes_one_function() -> None:
    proposed = 0
    for kind in KINDS:
        for rewrite in explain(kind).rewrites:
            for edit in line_edits(rewrite.before, kind, range(1, rewrite.before.count("\n") + 1)):
                ast.parse(edit.text)
                assert changed_function(rewrite.before, edit.text) is not None
                assert edit.title in {one.title for one in explain(kind).rewrites}
                proposed += 1
    assert proposed > 10


def test_every_rule_has_the_title_of_a_rewrite_that_is_tested() -> None:
    titles = {rewrite.title for kind in KINDS for rewrite in explain(kind).rewrites}
    assert {title for rules in _RULES.values() for title, _ in rules} <= titles


def test_a_check_whose_exception_is_caught_becomes_no_assertion(tmp_path: Path) -> None:
    """The model would go on where the program refuses; the finding's stack has the line of the `try`."""
    file = tmp_path / "net.py"
    file.write_text(
        textwrap.dedent("""
        def check(z):
            if not z.isfinite().all():
                raise FloatingPointError("z")

        def guarded(z):
            try:
                check(z)
            except FloatingPointError:
                z = z.nan_to_num()
            return z

        def plain(z):
            check(z)
            return z
        """)
    )

    def finding(caller: int) -> Finding:
        stack = tuple(Frame(file=str(file), line=line, function="", source="", user=True) for line in (caller, 3))
        found = msgspec.structs.replace(WINDOWS, file=str(file), line=3, source="if not z.isfinite().all():")
        return msgspec.structs.replace(found, kind=FailureKind.DATA_DEPENDENT_GUARD, stack=stack, origins=())

    assert not edits_of(finding(8))
    assert [edit.title for edit in edits_of(finding(14))] == ["Assert the condition instead of branching on it"] * 2


NUMBERS = (0.0, -0.0, 0.1, 0.3, 0.7, 0.5, 2.5, 3.0, 257.0, -1.0, float("nan"), float("inf"))
READS = ("x.max().item()", "(x + 1).max().item()", "x.item()", "(-x).item()", "x.max().item() * 3", "x.item() - 0.2")
OTHERS = ("0", "0.1", "0.3", "-0.5", "2.5", "257", "1000.5", "y.item()", "limit")


@settings(max_examples=300, deadline=None)
@given(
    read=st.sampled_from(READS),
    operator=st.sampled_from([">", ">=", "<", "<=", "==", "!="]),
    other=st.sampled_from(OTHERS),
    swap=st.booleans(),
    negated=st.booleans(),
    raises=st.booleans(),
    layout=st.sampled_from(
        ["{}", "({}  # a comment\n            )", "(\n        {}\n    )", "{} \\\n        and True"]
    ),
    tab=st.booleans(),
    values=st.tuples(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS)),
    ties=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
)
def test_a_rewritten_condition_is_what_python_makes_of_it(
    read: str,
    operator: str,
    other: str,
    swap: bool,
    negated: bool,
    raises: bool,
    layout: str,
    tab: bool,
    values: tuple[float, float],
    ties: bool,
    dtype: torch.dtype,
) -> None:
    """Python compares in float64, torch in the tensor's dtype; beside a NaN neither of two opposites holds."""
    left, right = (other, read) if swap else (read, other)
    condition = layout.format(f"{left} {operator} {right}")
    condition = f"not ({condition})" if negated else condition
    arm = "raise ValueError('no')" if raises else "return x * 2"
    text = f"def forward(x, y, limit):\n    if {condition}:\n        {arm}\n    return x + 1\n"
    text = text.replace("    ", "\t") if tab else text
    values = (float(other), values[1]) if ties and other[-1].isdigit() else values
    x, y = (torch.tensor(value, dtype=dtype) for value in values)
    edits = [one for one in line_edits(text, "data_dependent_guard", [2]) if "cond(" not in one.text]
    assert edits or "and True" in condition
    for edit in edits:
        found, wanted = (_outcome(one, x, y) for one in (edit.text, text))
        if found != "TypeError":  # of torch.where and torch._check, which take no numbers: another form does
            assert found == wanted, edit.text
    assert "and True" in condition or any(_outcome(one.text, x, y) != "TypeError" for one in edits)


def _outcome(text: str, x: torch.Tensor, y: torch.Tensor) -> str:
    names: dict[str, Any] = {"torch": torch}
    exec(compile(text, "<text>", "exec"), names)
    try:
        return repr(names["forward"](x, y, 0.3))
    except TypeError:
        return "TypeError"
    except (ValueError, RuntimeError):  # torch._check raises the latter
        return "raises"


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("data_dependent_value", "return x + int(n - 1) * 2", "return x + (n - 1).item() * 2"),
        ("data_dependent_value", "h, w = int(x), int(int(n) + 1)", "h, w = x, (int(n) + 1)"),
        ("data_dependent_value", "return x + int(-n) ** 2", "return x + (-n).item() ** 2"),
        ("data_dependent_value", "if flag: y = x[: int(n)]\nreturn y",
         "if flag: length = n.item(); torch._check(length >= 0); torch._check(length <= x.shape[0]); "
         "y = x.narrow(0, 0, length)"),
        ("data_dependent_value", "z = 1; y = x[: int(n)]",
         "z = 1; length = n.item(); torch._check(length >= 0); torch._check(length <= x.shape[0]); "
         "y = x.narrow(0, 0, length)"),
        ("data_dependent_guard", "if flag:\n    y = 1\nelif x.sum() > 0:\n    y = x\nelse:\n    y = n\nreturn y",
         "else:\n        y = torch.where(x.sum() > 0, x, n)"),
        ("data_dependent_guard", "if flag:\n    y = 1\nelif x.sum() > 0: raise ValueError(n)\nreturn y",
         "else: torch._check(torch.sym_not(x.sum() > 0), lambda: n)"),
        ("data_dependent_guard", "return (z := x) if x.sum() > 0 else (z := n)",
         "return torch.where(x.sum() > 0, (z := x), (z := n))"),
        ("data_dependent_guard", "if x.sum() > 0:\n    return x, n\nreturn n, x",
         "return torch.cond(x.sum() > 0, lambda n, x: (x, n), lambda n, x: (n, x), (n, x))"),
        ("data_dependent_guard", "if x.sum() > 0:\n    return (x), n\nreturn (n, x)",
         "return torch.cond(x.sum() > 0, lambda n, x: ((x), n), lambda n, x: (n, x), (n, x))"),
        ("data_dependent_guard", "if n.shape[0] > x.size(1): raise ValueError\nreturn x",
         "torch._check(n.shape[0] <= x.size(1))"),
        ("input_mutation", "if flag: y = x\nelse: x[0] = 1\nreturn x", "else: x = x.clone(); x[0] = 1"),
        ("input_mutation", "z = (x + n).data", "z = (x + n).detach()"),
        ("python_error", "z = copy.deepcopy(x + n)", "z = (x + n).clone()"),
    ],
)  # fmt: skip
def test_what_is_written_is_python_of_the_same_meaning(kind: str, body: str, expected: str) -> None:
    text = f"def forward(self, x, n, flag):\n{textwrap.indent(body, '    ')}\n"
    found = line_edits(text, kind, range(1, 9))
    assert any(f"    {expected}\n" in edit.text for edit in found), [edit.text for edit in found]


def test_the_lines_before_a_statement_are_indented_as_it_is() -> None:
    text = "def forward(x, n):\n\tif n.ndim:\n\t\tx = x[: int(n)]\n\treturn x\n"
    found = line_edits(text, "data_dependent_value", [3])
    assert "\t\tlength = n.item()\n\t\ttorch._check(length >= 0)\n" in found[0].text


@pytest.mark.parametrize(
    "body",
    ["return 'a' if x.any() else 'b'", "return x if x.any() else None", "return (x, x) if x.any() else (x, n)",
     "if x.any():\n    n = None\nreturn n", "if n:\n    n = 1\nelif x.any():\n    n = f'{n}'\nreturn n"],
)  # fmt: skip
def test_nothing_but_tensors_and_numbers_is_selected(body: str) -> None:
    """`torch.where(x.any(), "a", "b")` was proposed, which fails in eager."""
    text = f"def forward(self, x, n):\n{textwrap.indent(body, '    ')}\n"
    assert not [one for one in line_edits(text, "data_dependent_guard", range(1, 9)) if "torch.where(" in one.text]


CHOOSES = """
import torch
from torch import nn

class Chooses(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, torch=torch):
        {code}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("y = x * 2 if x.sum() > 0 else x + 1; return y", ""),
        (
            "y = x if x.sum() > 0 else x.double(); return y",
            "a branch gives float32, of which torch.where makes float64",
        ),
        ("net = self.one if x.sum() > 0 else self.other; return net(x)", "where() received an invalid combination"),
        ("torch = None; y = x * 2 if x.sum() > 0 else x + 1; return y", "'NoneType' object has no attribute 'where'"),
    ],
)
def test_what_is_tried_is_the_code_that_is_written(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a `torch.where` of it makes is looked at where it stands: the name and its errors are those of the line."""
    file, text = tmp_path / "chooses_net.py", CHOOSES.format(code=code)
    file.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "chooses_net", raising=False)
    module = importlib.import_module("chooses_net").Chooses().eval()
    after = next(one.text for one in line_edits(text, "data_dependent_guard", [11]) if "torch.where(" in one.text)
    shim = edit_shim(id="rewrite-1", title="rewrite", file=str(file), before=text, after=after)
    x = torch.randn(3, 4)
    call = ExportCall(module=module, args=(x,))
    refused = pytest.raises(Exception, match=re.escape(said)) if said else nullcontext()
    with refused as why, apply_shims([shim], call) as given:
        program = export_program(given).module()
        torch.testing.assert_close(program(-x), module(-x))
    assert not said or isinstance(why.value, NotApplicable) == said.startswith("a branch")  # type: ignore[union-attr]
