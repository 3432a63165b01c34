"""A branch on a tensor's value becomes a choice where both arms only compute, and stays a branch where they do not."""

from __future__ import annotations

import ast
import copy
import itertools
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from branching_models import (
    ATTACKS,
    BRANCHES,
    VALUES,
    Appending,
    Asked,
    Calculating,
    Calling,
    Chained,
    Choosing,
    Compared,
    ComparedWithTensor,
    Dividing,
    Early,
    Finding,
    Found,
    Growing,
    Guarded,
    InsideAndOut,
    LookingUp,
    Named,
    Numbered,
    OutputObject,
    Pair,
    Printing,
    Raising,
    Record,
    Remembering,
    Row,
    Several,
    Telling,
    Undefined,
    Writing,
    WritingLater,
    call_of,
    hooked,
    several_of_one_code,
    with_forward_of_its_own,
)
from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from exportdoctor.shims.rules.branches.arm_choice import ArmChoices
from exportdoctor.shims.rules.code.code_swap import all_code
from exportdoctor.shims.rules.code.own_tensors import write_counters_as_bindings
from exportdoctor.targets.factory.factory_file import import_factory_file
from exportdoctor.torch_internals.trees import tree_leaves
from exportdoctor.worker.describe.python_frames import is_user_frame, tracebacks


@pytest.mark.slow
@pytest.mark.parametrize("make", [hooked, with_forward_of_its_own, several_of_one_code])
def test_functions_that_modules_were_given_are_rewritten(make: Callable[[Tensor], nn.Module]) -> None:
    call = call_of(lambda: make(torch.tensor(2.0)))
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    for x in (torch.ones(5, 4), -torch.ones(2, 4), torch.zeros(3, 4)):
        torch.testing.assert_close(program(x), call.module(x))


@pytest.mark.slow
def test_functions_that_forward_makes_and_names_of_the_class_alone() -> None:
    call = call_of(InsideAndOut)
    before = InsideAndOut.forward.__code__
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    assert InsideAndOut.forward.__code__ is before
    for scale in (-20.0, -1.0, 0.0, 0.5, 2.0, 20.0):
        for x in (torch.full((5, 4), scale), torch.linspace(-scale, scale, 8).reshape(2, 4)):
            torch.testing.assert_close(program(x), call.module(x))


@pytest.mark.slow
def test_comments_and_strings_at_the_margin_are_no_obstacle(tmp_path: Path) -> None:
    file = tmp_path / "margins.py"
    file.write_text(
        "from torch import nn\n"
        "class Margins(nn.Module):\n"
        "    def forward(self, x):\n"
        "#        x = x + 1\n"
        "        if x.sum() > 0:\n"
        "            return x * 2\n"
        '        note = """of\nthe other side"""\n'
        "        return x - len(note)\n"
    )
    call = call_of(import_factory_file(file).Margins)
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    for x in (torch.ones(5, 4), -torch.ones(2, 4)):
        torch.testing.assert_close(program(x), call.module(x))


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [Early, Several, Named, Asked, Calling, Telling, Numbered, Guarded, Chained, Appending, Found]
)
def test_the_program_answers_as_eager_on_both_sides_of_each_branch(make: Callable[[], nn.Module]) -> None:
    call = call_of(make)
    with pytest.raises(Exception, match=r"data-dependent"):
        export_program(call)
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    for values in (row for row in VALUES if row.shape[0] > 1):
        torch.testing.assert_close(program(values), call.module(values))


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda: Record(Row), lambda: Record(Pair), OutputObject])
def test_arms_may_make_objects_that_hold_their_results(make: Callable[[], nn.Module]) -> None:
    call = call_of(make)
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    for values in (row for row in VALUES if row.shape[0] > 1):
        found, wanted = program(values), call.module(values)
        assert type(found) is type(wanted)
        torch.testing.assert_close(tree_leaves(found), tree_leaves(wanted))


@pytest.mark.slow
@pytest.mark.parametrize("make", ATTACKS)
def test_a_choice_that_something_else_sees_is_refused_or_right(make: type[nn.Module]) -> None:
    call, eager = call_of(make), copy.deepcopy(call_of(make).module)
    rows = [row for row in VALUES if row.shape[0] > 1]
    wanted = [copy.deepcopy(eager)(values.clone()) for values in rows]
    if said := ATTACKS[make]:
        refused = pytest.raises(Exception, match=said)
        with refused as why, apply_shims([find("branch-as-where")], call) as given:
            export_program(given)
        assert isinstance(why.value, NotApplicable) == (said != BRANCHES)
        return
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    for values, answer in zip(rows, wanted, strict=True):
        torch.testing.assert_close(copy.deepcopy(program)(values.clone()), answer, equal_nan=True)


def test_whole_numbers_are_compared_with_floats_as_in_python() -> None:
    class Large(nn.Module):
        def forward(self, n: Tensor, x: Tensor) -> Tensor:
            return torch.ones(2) if n.item() > x.item() else torch.zeros(2)

    call = ExportCall(module=Large(), args=(torch.tensor(3), torch.tensor(2.0, dtype=torch.float64)))
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    assert program(torch.tensor(1), torch.tensor(2.0, dtype=torch.float64)).sum() == 0
    with pytest.raises(RuntimeError, match=r"beyond 2\*\*53"):
        program(torch.tensor(2**53 + 1), torch.tensor(2.0**53, dtype=torch.float64))


@pytest.mark.long
@pytest.mark.slow
def test_an_arm_that_refuses_the_values_of_the_other_is_computed_only_when_it_is_taken() -> None:
    """In a process of its own, as an attempt is: in one that has run many other tests dynamo was seen to take some
    function inside the arms for one that it skips, for a reason that is not known."""
    code = "import branching_models as own\nfor one in (own.LookingUp, own.Finding, own.Dividing, own.Undefined):\n"
    code += "    own.check_taken_arm(one)\n"
    path = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})


@pytest.mark.parametrize("make", [LookingUp, Finding, Dividing, Undefined])
def test_where_torch_does_not_take_such_an_arm_the_shim_does_not_apply(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both arms would raise for values that eager takes, or give what it does not."""

    def refuse(*args: object) -> None:
        raise RuntimeError("not supported")

    monkeypatch.setattr(torch, "cond", refuse)
    with pytest.raises(NotApplicable, match=r"may refuse values.*RuntimeError"):  # noqa: SIM117
        with apply_shims([find("branch-as-where")], call_of(make)) as given:
            export_program(given)


def test_a_branch_that_no_eager_run_reached_is_not_merged_where_an_arm_may_refuse_values() -> None:
    choices = ArmChoices()

    class Unseen(nn.Module):
        def forward(self, x: Tensor, places: Tensor) -> Tensor:
            return choices.choose("unseen", places.max() < 3, lambda: x[places], lambda: x[:2])  # type: ignore[no-any-return]

    choices.codes.update(all_code(Unseen.forward.__code__))
    with pytest.raises(NotApplicable, match="no eager run"):
        torch.export.export(Unseen(), (torch.randn(3, 4), torch.tensor([2, 0])))
    assert choices.refused


@pytest.mark.slow
@pytest.mark.parametrize("make", [Early, Several, Named, Calling, Telling, Numbered])
def test_arms_that_can_always_be_computed_need_no_cond(make: Callable[[], nn.Module]) -> None:
    call = call_of(make)
    with apply_shims([find("branch-as-where")], call) as given:
        exported = export_program(given)
    assert not any(node.target is torch.ops.higher_order.cond for node in exported.graph.nodes)


def test_a_number_that_is_read_is_compared_as_python_compares_it() -> None:
    x = torch.full((1, 1), 0.1)
    call = ExportCall(module=Compared(), args=(x, torch.tensor(5, dtype=torch.uint8)))
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    for value in (0, 66, 67, 86, 99, 100, 255):
        inputs = torch.full((1, 1), 0.1 * (value > 0)), torch.tensor(value, dtype=torch.uint8)
        torch.testing.assert_close(program(*inputs), call.module(*inputs))


@pytest.mark.parametrize(
    ("x", "other"),
    [
        (torch.tensor(16777216.0), torch.tensor(16777217)),
        (torch.tensor(0.1, dtype=torch.float64), torch.tensor(0.1)),
        (torch.tensor(0.1, dtype=torch.float64), torch.tensor([0.1])),
        (torch.tensor(0.1), torch.tensor(0.1, dtype=torch.float64)),
        (torch.tensor(1.001), torch.tensor(1.0, dtype=torch.float16)),
        (torch.tensor(1.0), torch.tensor(True)),
    ],
)
def test_a_float_that_is_read_is_compared_with_a_tensor_as_torch_compares_it(x: Tensor, other: Tensor) -> None:
    call = ExportCall(module=ComparedWithTensor(), args=(x + 1, other))
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    for number in (x, x + 1, x - 1):
        torch.testing.assert_close(program(number, other), call.module(number, other))


def test_a_condition_that_needs_the_value_of_an_or_stays_a_branch() -> None:
    call = ExportCall(module=Choosing(), args=(torch.ones(2), torch.tensor(1), torch.tensor(5)))
    with pytest.raises(Exception, match="data-dependent"), apply_shims([find("branch-as-where")], call) as given:
        export_program(given)


@pytest.mark.parametrize("make", [Remembering, Writing, WritingLater, Raising, Calculating, Printing])
def test_an_arm_that_does_more_than_compute_is_left_alone(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(NotApplicable), apply_shims([find("branch-as-where")], call_of(make)):
        pass


class Worded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        reduction = "mean" if x.sum().item() > 1 else "sum"
        return nn.functional.mse_loss(x, x * 2, reduction=reduction)


class OfTwoTypes(nn.Module):
    """A tensor of whole numbers would be promoted by one of them alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.int64) * (2 if x.sum().item() > 1 else 0.5)


class Rounded(nn.Module):
    """A number that the other arm's tensor of 16 bits cannot be."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.abs().max().half() if x.sum() > 1 else 0.1)


class OfRows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (x.sum(0) if x.sum() > 1 else 2.0)


@pytest.mark.parametrize("make", [Worded, OfTwoTypes, Rounded, OfRows])
def test_what_cannot_be_chosen_between_fails_as_without_the_shim(make: Callable[[], nn.Module]) -> None:
    """With the same words, from the same function: another failure would be told as hidden by the first."""
    call = call_of(make)
    with pytest.raises(Exception, match="data-dependent") as without:
        export_program(call)
    with (
        apply_shims([find("branch-as-where")], call) as given,
        pytest.raises(Exception, match="data-dependent") as with_it,
    ):
        export_program(given)
    places = []
    for raised in (without, with_it):
        frames = (link for link in tracebacks(raised.value) if is_user_frame(link.tb_frame))
        *_, last = [one for one in frames if one.tb_frame.f_code.co_filename == __file__]
        places.append((last.tb_frame.f_code.co_qualname, last.tb_lineno, str(raised.value).splitlines()[0]))
    assert places[0] == places[1]


def test_results_of_other_sizes_cannot_be_chosen_between() -> None:
    call = call_of(Growing)
    with apply_shims([find("branch-as-where")], call) as given, pytest.raises(Exception, match="data-dependent"):
        export_program(given)


def test_the_code_is_as_before_when_the_shim_is_left() -> None:
    code, names = Several.forward.__code__, set(Several.forward.__globals__)
    with apply_shims([find("branch-as-where")], call_of(Several)):
        assert Several.forward.__code__ is not code
        for values in VALUES:  # what is known is decided as before
            assert torch.isfinite(Several()(values)).all()
    assert Several.forward.__code__ is code
    assert set(Several.forward.__globals__) == names


def _program_of(depth: int, shape: tuple[bool, ...]) -> str:
    """A function with branches one after the other and inside each other, of the given shape."""
    lines = ["def forward(self, x):", "    y = x * 1"]
    for number in range(depth):
        lines += [f"    if (x > {number - 1}).{'any' if shape[0] else 'all'}():", f"        y = y + {number + 1}"]
        if shape[1]:
            lines += [f"        if x.sum() > {number}:", "            y = y * 2", "        else:"]
            lines += ["            z = y - x", "            y = z / 2"]
        if shape[2]:
            lines += ["    else:", f"        y = y.abs() if x.min() < -{number} else y - 3"]
    return "\n".join([*lines, "    return y", ""])


@pytest.mark.slow
@pytest.mark.parametrize("shape", list(itertools.product((True, False), repeat=3)))
def test_branches_in_any_arrangement_agree_with_eager(shape: tuple[bool, ...], tmp_path: Path) -> None:
    path = tmp_path / "generated.py"
    path.write_text(_program_of(2, shape))
    kind = type("Generated", (nn.Module,), {"forward": runpy.run_path(str(path))["forward"]})
    call = call_of(kind)
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    for values in (row for row in VALUES if row.shape[0] > 1):
        torch.testing.assert_close(program(values), call.module(values))


def test_a_name_that_a_pattern_binds_is_no_counter() -> None:
    """Adding to it writes into a tensor that has another name."""
    source = (
        "def forward(x):\n    n = 0\n    match [x.clone()]:\n        case [n]:\n            pass\n"
        "    z = n\n    n += 1\n    return z\n"
    )
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef)
    write_counters_as_bindings(node)
    assert "n += 1" in ast.unparse(node)
    plain = ast.parse("def forward(x):\n    n = 0\n    n += 1\n    return n").body[0]
    assert isinstance(plain, ast.FunctionDef)
    write_counters_as_bindings(plain)
    assert "n = n + 1" in ast.unparse(plain)
