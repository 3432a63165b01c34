"""What the cuts of a script keep, and what goes at once."""

from __future__ import annotations

import ast

from exportdoctor.reduce.source.passes.backward_slice import slice_backward
from exportdoctor.reduce.source.passes.parameters import drop_unread_parameters
from exportdoctor.reduce.source.passes.script_sizes import offer_eager_sizes, return_last_values, widen_dynamic_sizes
from exportdoctor.worker.repro.script.source_lookup import class_source

SCRIPT = """\
import math
import torch

def helper(n):
    unrelated = n + 1
    k = n.tolist()
    for i in k:
        noise = math.pi
        int(i)
    return k

def unused():
    pass

class M(torch.nn.Module):

    def __init__(self):
        super().__init__()
        self.size = 3
        self.scale = 2

    def forward(self, x, n):
        y = x * self.scale
        m = n + self.size
        helper(m)
        return y
M()
"""


def test_slicing_keeps_what_the_failing_line_depends_on_and_nothing_else() -> None:
    cut = slice_backward(SCRIPT, {25, 9})
    assert "m = n + self.size" in cut
    assert "k = n.tolist()" in cut
    assert "int(i)" in cut
    for gone in ("unrelated", "noise", "unused", "math", "scale", "return k", "y ="):
        assert gone not in cut
    ast.parse(cut)


TOWER = """\
import torch

class Attention(torch.nn.Module):
    def forward(self, hidden, lengths, scale=1):
        sizes = [n for n in lengths.tolist()]

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(4)
        self.attention = Attention()

    def forward(self, hidden, lengths):
        hidden = hidden + self.attention(self.norm(hidden), lengths=lengths, scale=2)
        return hidden

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block()])

    def forward(self, hidden, lengths):
        hidden = hidden * 2
        for block in self.blocks:
            hidden = block(hidden, lengths)
        return hidden
torch.export.export(Model(), (torch.ones(3, 4), torch.ones(2)), dynamic_shapes=({0: 3}, None))
"""


def test_a_slice_drops_a_function_of_which_only_a_branch_without_effect_is_left() -> None:
    inner = "    def inner():\n        if x:\n            pass\n"
    script = f"def outer(x):\n{inner}    y = inner\n    return x.item()\n\nouter(1)\n"
    assert slice_backward(script, {6, 8}, {8: "outer(1)"}) == "def outer(x):\n    return x.item()\nouter(1)"


def _class_over_two_names() -> type:
    made, used = int, str

    class Two:
        def make(self) -> object:
            return made()

        def use(self) -> object:
            return used()

    return Two


def test_the_names_of_a_class_are_those_that_any_of_its_methods_closes_over() -> None:
    _, _, names = class_source(_class_over_two_names())
    assert (names["made"], names["used"]) == (int, str)


def test_what_only_other_results_of_a_failing_call_need_goes_at_once() -> None:
    """The arguments that no function on the stack reads, and what computes them."""
    calls = {
        "sizes =": "",
        "attention(": "self.attention(self.norm(hidden), lengths=lengths, scale=2)",
        "block(": "block(hidden, lengths)",
    }
    cut = TOWER
    for _ in range(2):
        lines = {cut[: cut.index(start)].count("\n") + 1: text for start, text in calls.items()}
        cut = drop_unread_parameters(slice_backward(cut, set(lines), lines))
    for gone in ("hidden", "norm", "scale", "torch.ones(3, 4)"):
        assert gone not in cut
    for left in ("ModuleList([Block()])", "self.attention(lengths=lengths)", "block(lengths)", "(torch.ones(2),)"):
        assert left in cut


CLOSURES = """\
import torch

def everywhere(row, column):
    return column <= 3

def where(mask):
    label = str(mask)
    def inner(row, column):
        found = mask[column]
        return found
    return inner

def both(*masks):
    def inner(row, column):
        for mask in masks:
            result = mask(row, column)
        return result
    return inner

class Model(torch.nn.Module):
    def forward(self, mask):
        made = torch.vmap(both(everywhere, where(mask)))(mask, mask)
        return made + 1
torch.export.export(Model(), (torch.ones(3),))
"""


def test_a_function_that_made_the_failing_one_still_returns_it_and_one_that_is_handed_on_keeps_its_parameters() -> None:
    calls = {
        "found =": "",
        "result =": "mask(row, column)",
        "made =": "torch.vmap(both(everywhere, where(mask)))(mask, mask)",
    }
    lines = {CLOSURES[: CLOSURES.index(start)].count("\n") + 1: text for start, text in calls.items()}
    cut = drop_unread_parameters(slice_backward(CLOSURES, set(lines), lines))
    assert cut.count("return inner") == 2
    assert "def everywhere(row, column)" in cut
    for gone in ("return found", "return result", "made ="):
        assert gone not in cut


TABLE = """\
import functools
import torch

def chosen(size, scale=1, **rest):
    return size.tolist()

def other(size, **rest):
    pass

@functools.lru_cache
def cached():
    return 1

class Table(dict):
    pass
TABLE: Table = Table(chosen=chosen, other=other)

class Model(torch.nn.Module):
    def forward(self, x):
        noise = torch.rand(3)
        if self.training and noise not in TABLE:
            pass
        given = {"size": x, "scale": 2, "noise": noise}
        if self.training or noise is None:
            return other(noise)
        else:
            return TABLE["chosen"](**given)
torch.export.export(Model(), (torch.ones(3),))
"""


def test_a_call_through_a_table_names_the_function_that_ran_and_gives_it_what_it_reads() -> None:
    calls = {"size.tolist": "", "TABLE[": "TABLE['chosen'](**given)"}
    cut, called = TABLE, "chosen"
    for _ in range(2):
        lines = {cut[: cut.index(start)].count("\n") + 1: text for start, text in calls.items()}
        names = {line: called for line in lines if called and line != min(lines)}
        cut = drop_unread_parameters(slice_backward(cut, set(lines), lines, names))
        calls, called = {"size.tolist": "", "chosen(size=": "chosen(size=x)"}, ""
    assert "def chosen(size):" in cut
    assert "self, x):\n        chosen(size=x)" in cut
    for gone in ("TABLE", "other", "given", "noise", "cached", "functools"):
        assert gone not in cut


def test_a_source_without_a_failing_line_keeps_its_statements() -> None:
    assert "helper(m)" in slice_backward(SCRIPT, set())


def test_what_a_cut_function_computes_last_is_its_result_again() -> None:
    cut = "def f(x):\n    with m:\n        if x:\n            g(x)\n\ndef h(x):\n    y = x\nf(1)"
    assert return_last_values(cut) == cut.replace("g(x)", "return g(x)")


def test_a_loop_gives_what_it_computed_last_and_a_dynamic_size_is_two_or_more() -> None:
    assert return_last_values("def f(x):\n    for y in x:\n        y(1)") == (
        "def f(x):\n    for y in x:\n        result = y(1)\n    return result"
    )
    call = "torch.export.export(M(), (torch.ones(1, 1), torch.ones(1)), dynamic_shapes={'x': {1: n}, 'y': None})"
    assert widen_dynamic_sizes(call) == call.replace("1, 1", "1, 2")


def test_other_sizes_are_put_into_the_last_statement_alone_and_it_is_offered_unchanged_first() -> None:
    source = "x = 7\nf(torch.zeros(3), 5)"
    offered = list(offer_eager_sizes(source))
    assert all(one.startswith("x = 7\n") for one in offered)
    assert "x = 7\nf(torch.ones(3), 5)" in offered[:2]
