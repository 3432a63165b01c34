"""What a maintainer reads: plain names, whole calls, a head that says what fails, and the one bug that was wanted."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from exportdoctor.core.failure.messages import summary_line, without_names
from exportdoctor.reduce import SearchLimits, Verdict, drive, reduce_source, source_size
from exportdoctor.reduce.source.passes.tidy import exported_class, name_inputs, rename_exported_class
from exportdoctor.repro.script import limit_blank_lines

STAND_IN = "class Cache:\n    pass\nclass Tower:\n    pass\ntorch.export.export({model}, ({given},))"


@pytest.mark.parametrize(
    ("model", "given", "name"),
    [("Tower()", "Cache()", "Tower"), ("Tower().eval()", "Cache()", "Tower"), ("torch.nn.Identity()", "Cache()", None)],
)
def test_the_exported_class_is_that_of_the_model_and_not_of_an_input(model: str, given: str, name: str | None) -> None:
    source = STAND_IN.format(model=model, given=given)
    found = exported_class(ast.parse(source))
    assert (found.name if found else None) == name
    assert "class Cache:" in rename_exported_class(source, "Model")


def test_inputs_that_a_wrapper_bundles_get_names() -> None:
    source = dedent("""
        class Tower:
            def forward(self, *args):
                return self.inner(*args) + args[1]
        torch.export.export(Tower(), (a, b), dynamic_shapes={'args': ({0: n}, None)})
        """)
    named = name_inputs(source)
    assert "def forward(self, x, y):\n        return self.inner(x, y) + (x, y)[1]" in named
    assert named.endswith("export(Tower(), (a, b), dynamic_shapes=({0: n}, None))")


@pytest.mark.parametrize("forward", ["self, x, *args", "self, x", "self, *args, scale=1"])
def test_a_forward_with_other_parameters_keeps_them(forward: str) -> None:
    source = f"class M:\n\n    def forward({forward}):\n        return 1\ntorch.export.export(M(), (a,))"
    assert name_inputs(source) == source


def test_what_is_exported_is_never_dropped_from_the_call() -> None:
    start = "import torch\ntorch.onnx.export(M(1), (f(2, by=3),), 'a', dynamo=False)"

    def ask(candidate: str) -> Verdict:
        return Verdict.YES if "M(" in candidate and "export(" in candidate else Verdict.NO

    answer = drive(reduce_source(start), ask, start=start, limits=SearchLimits(size=source_size)).answer
    assert answer is not None
    call = ast.parse(answer).body[-1]
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    assert len(call.value.args) == 3
    assert ast.literal_eval(call.value.args[2]) == "a"


FIXED = (
    'Constraints violated (rows)! For more information, run with TORCH_LOGS="+dynamic".\n'
    "  - You marked rows as dynamic but your code specialized it to be a constant ({}). If you're using mark_dynamic, …"
)


def test_a_size_fixed_because_it_is_one_is_another_failure_than_one_fixed_by_code() -> None:
    assert without_names(FIXED.format(4)) == without_names(FIXED.format(10).replace("rows", "n"))
    assert without_names(FIXED.format(1)) != without_names(FIXED.format(4))
    assert without_names(FIXED.format(1)) != without_names(FIXED.format(11))


def test_the_head_says_what_is_violated_and_cuts_between_words() -> None:
    line = summary_line(FIXED.format(4), 110)
    assert line.startswith(
        "Constraints violated (rows)! - You marked rows as dynamic but your code specialized it to be a"
    )
    assert line.endswith(" …")
    assert summary_line("one\ntwo", 100) == "one"
    assert summary_line("", 100) == ""


def test_an_empty_line_stands_between_a_class_and_the_call() -> None:
    assert limit_blank_lines("class A:\n    x = 1\nf(A(\n    1,\n))") == [
        "class A:",
        "    x = 1",
        "",
        "f(A(",
        "    1,",
        "))",
    ]
