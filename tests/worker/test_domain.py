"""The domain of a program is what was planted in each fixture, with its line and what each stage does outside."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sympy  # type: ignore[import-untyped]
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from exportdoctor.cli.part_request import check_file, existing_file
from exportdoctor.core.errors import TargetError, UsageError
from exportdoctor.core.protocol.domain import DomainRequest, DomainResult
from exportdoctor.core.records.size_domain import SizeAxis, SizeCondition, SizeDomain, SizeTrial, StageAnswer
from exportdoctor.core.records.target import TargetRef
from exportdoctor.report.canvas import Style
from exportdoctor.report.result_tables import RESULT_FORMS, render_domain
from exportdoctor.report.wording.size_domains import axis_rows, boundary_lines, domain_details, sizes_in_words
from exportdoctor.shims import call_for_part, export_program
from exportdoctor.targets import BuiltPart
from exportdoctor.targets.built import Inputs
from exportdoctor.worker.describe.guard_origin import record_guards
from exportdoctor.worker.domain.condition_text import condition_text
from exportdoctor.worker.domain.described_sizes import DescribedSize, find_described
from exportdoctor.worker.domain.domain_server import find_domain
from exportdoctor.worker.domain.part_search import make_search
from exportdoctor.worker.domain.size_rules import describe_sizes, ends_by_runs, highest_size, points_of, takes
from exportdoctor.worker.domain.surrounded_memory import depends_on_other_memory
from exportdoctor.worker.prove.input_set import InputSet

FILE = Path(__file__).parents[2] / "fixtures" / "domain" / "sizes.py"


def domain_of(factory: str) -> DomainResult:
    target = TargetRef(ref=f"{FILE}:{factory}")
    return find_domain(DomainRequest(target=target, seconds=0.2), lambda _: None)


def search_sizes(part: BuiltPart) -> SizeDomain:
    """The domain of the part's exported program alone, beside eager."""
    call = call_for_part(part)
    with record_guards() as log:
        search = make_search(part, call, export_program(call), log)
    search.plan()
    search.ask_eager(InputSet(title="", kind="example", calls=(), results=()))
    return search.finish()


def words(result: DomainResult) -> dict[str, str]:
    return {axis.name: sizes_in_words(axis) for axis in result.domain.axes}


def outcomes(result: DomainResult, inputs: str) -> tuple[str, ...]:
    """Eager's, then that of each stage."""
    trial = next(one for one in result.domain.trials if one.inputs == inputs)
    return ("refuses" if trial.eager else "answers", *(one.outcome for one in trial.answers))


def source_of(result: DomainResult, inputs: str) -> str:
    trial = next(one for one in result.domain.trials if one.inputs == inputs)
    return result.domain.conditions[trial.condition].source


@pytest.mark.slow
@pytest.mark.parametrize("name", ["3*h", "rows"])  # the second where a shim makes the dimension a derived one
def test_a_derived_dimension_is_no_guard(name: str) -> None:
    """`a multiple of 3: a guard of the export` was said, and torch takes each size in the range."""
    rows = 3 * torch.export.Dim("h", min=1, max=10)
    part = BuiltPart(
        name="default", title="", module=torch.nn.Linear(4, 4), prefix="", args=(torch.randn(9, 4),), kwargs={},
        dynamic_shapes=({0: rows},), axes={name: ("input[0]",)},
    )  # fmt: skip
    domain = search_sizes(part)
    assert sizes_in_words(domain.axes[0]).startswith("3 to 30")
    assert not any("multiple" in one.text for one in domain.conditions)


class Standard(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.std(0)


@pytest.mark.slow
def test_sizes_at_which_eager_gives_nothing_but_nan_are_named() -> None:
    part = BuiltPart(
        name="default", title="", module=Standard(), prefix="", args=(torch.randn(5, 4),), kwargs={},
        dynamic_shapes=({0: torch.export.Dim("rows")},), axes={"rows": ("input[0]",)},
    )  # fmt: skip
    domain = search_sizes(part)
    (said,) = (note for note in domain.notes if "nothing but NaN" in note)
    assert said == "x[0] 1: nothing can be compared, eager gives nothing but NaN"
    assert not any(trial.inputs == "x[0] 1" for trial in domain.trials)


QUOTED = """
import torch
from torch import nn
from torch.export import Dim

class Quoted(nn.Module):
    def forward(self, inputs):
        return inputs["c'<i>"].sum(0)

def build():
    return Quoted(), ({"c'<i>": torch.randn(5, 3)},), {}, ({"c'<i>": {0: Dim.DYNAMIC}},)
"""


@pytest.mark.slow
def test_a_program_that_torch_cannot_make_a_module_of_is_told(tmp_path: Path) -> None:
    """It ended in an internal error: torch writes the name of an input into code as it is."""
    (tmp_path / "quoted.py").write_text(QUOTED)
    target = TargetRef(ref=f"{tmp_path / 'quoted.py'}:build")
    result = find_domain(DomainRequest(target=target, seconds=0.2), lambda _: None)
    assert result.failure is not None
    assert (result.failure.stage, result.domain.trials) == ("run", ())


TIED = """
import torch
from torch import nn
from torch.export import Dim

class Tied(nn.Module):
    def forward(self, x, y):
        if x.shape[0] > 5 and x.shape[0] % 3 == 0:
            return x.sum(0) * 2 + y.mean()
        return x.sum(0) + y.mean()

def build():
    rows = Dim("n", min=2, max=64)
    return Tied(), (torch.randn(9, 2), torch.randn(18)), {}, {"x": {0: rows}, "y": {0: 2 * rows}}
"""


@pytest.mark.long
@pytest.mark.slow
def test_sizes_that_are_left_to_torch_are_not_tied_as_declared(tmp_path: Path) -> None:
    """`2*n follows` was said of a program that takes any size of y."""
    (tmp_path / "tied.py").write_text(TIED)
    target = TargetRef(ref=f"{tmp_path / 'tied.py'}:build")
    result = find_domain(DomainRequest(target=target, seconds=0.2), lambda _: None)
    assert result.failure is not None
    assert not any("follows" in text for text in words(result).values())
    assert "y[0]" in words(result)


@pytest.mark.long
@pytest.mark.slow
def test_rows_in_pairs_are_multiples_of_two_by_the_line_of_the_view() -> None:
    result = domain_of("pairs")
    assert words(result) == {"x[0]": "multiples of 2 from 4", "x[1]": "4 only, not dynamic"}
    assert outcomes(result, "x[0] 4") == ("answers", "right", "right", "right")
    assert outcomes(result, "x[0] 7")[:3] == ("refuses", "refuses", "refuses")
    assert source_of(result, "x[0] 7") == "rows = x.view(-1, 8)"
    assert all(render_domain(result, form, Style()) for form in RESULT_FORMS)


@pytest.mark.night
def test_a_length_of_one_that_takes_another_way_is_wrong_in_every_stage_and_has_its_line() -> None:
    result = domain_of("length_one")
    assert words(result)["length"] == "0 to 32768 (as declared); wrong at 1"
    assert outcomes(result, "length 1") == ("answers", "wrong", "wrong", "wrong")
    assert source_of(result, "length 1") == "if x.shape[1] == 1:"
    assert outcomes(result, "length 32769")[1:3] == ("refuses", "refuses")
    assert not result.domain.holds


@pytest.mark.night
def test_a_check_that_a_file_drops_is_told_with_what_the_file_does_then() -> None:
    result = domain_of("patches")
    assert words(result)["image[2]"] == "multiples of 28 from 56"
    assert outcomes(result, "image[2] 57") == ("refuses", "refuses", "refuses", "alone")
    assert source_of(result, "image[2] 57") == "if image.shape[2] % 28 or image.shape[3] % 28:"
    trial = next(one for one in result.domain.trials if one.inputs == "image[2] 57")
    assert trial.condition in result.domain.dropped


class Halves(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = x.chunk(2, 1)
        return one * other


@pytest.mark.night
def test_a_size_at_which_a_guard_itself_fails_is_refused() -> None:
    part = BuiltPart(
        name="default", title="", module=Halves(), prefix="", args=(torch.randn(3, 8),), kwargs={},
        dynamic_shapes=({1: torch.export.Dim.AUTO},), axes={"length": ("x[1]",)},
    )  # fmt: skip
    axis = next(one for one in search_sizes(part).axes if one.name == "length")
    assert sizes_in_words(axis) == "multiples of 2 from 4"


class Pictures(torch.nn.Module):
    def forward(self, patches: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return patches.view(grid.shape[0], 4, -1).sum(1)


class Joined(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, both: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y]) * both


class Shifted(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y[1:]


def small_domain(
    module: torch.nn.Module, args: tuple[torch.Tensor, ...], dim: object = torch.export.Dim.AUTO
) -> SizeDomain:
    """The domain of the exported program alone, with the first size of each input open."""
    names = inspect.signature(module.forward).parameters
    part = BuiltPart(
        name="default", title="", module=module, prefix="", args=args, kwargs={},
        dynamic_shapes=tuple({0: dim} for _ in args), axes={f"{name}[0]": (f"{name}[0]",) for name in names},
    )  # fmt: skip
    return search_sizes(part)


def open_axes(domain: SizeDomain) -> dict[str, str]:
    return dict(row for axis, row in zip(domain.axes, axis_rows(domain), strict=True) if not axis.fixed)


@pytest.mark.parametrize("later", ["refuses", "alone"])
def test_sizes_that_a_later_stage_answers_are_not_told_as_refused_alone(later: Any) -> None:
    answers = (StageAnswer(stage="exported program", outcome="refuses"), StageAnswer(stage="a file", outcome=later))
    told = [*domain_details(SizeDomain(trials=(SizeTrial(inputs="batch 0", answers=answers, eager="Error: no"),)))]
    but = ", but answered by a file" if later == "alone" else ""
    assert f"batch 0: refused, as by eager{but}: Error: no" in told


@pytest.mark.slow
def test_sizes_of_which_one_describes_the_other_are_varied_together() -> None:
    domain = small_domain(Pictures(), (torch.randn(12, 3), torch.full((3, 2), 2)))
    assert open_axes(domain) == {"patches[0]": "multiples of 4 from 4; grid[0] follows"}
    ends = {one.inputs: (bool(one.eager), one.answers[0].outcome) for one in domain.trials}
    assert ends["patches[0] 16"] == (False, "right")
    assert ends["grid[0] 4, patches[0] 12"] == (True, "refuses")
    assert "patches[0] 13; grid[0] 4, patches[0] 12: refused, as by eager" in [*domain_details(domain)]


def test_a_size_that_is_the_sum_of_two_follows_each_of_them() -> None:
    domain = small_domain(Joined(), (torch.randn(3, 4), torch.randn(5, 4), torch.randn(8, 4)))
    assert open_axes(domain) == {"x[0]": "≥ 0; both[0] follows", "y[0]": "≥ 1; both[0] follows"}
    assert next(one for one in domain.trials if one.inputs == "y[0] 6").answers[0].outcome == "right"


def test_no_condition_is_named_that_the_sizes_hold_by() -> None:
    domain = small_domain(Shifted(), (torch.randn(5, 2), torch.randn(6, 2)))
    trial = next(one for one in domain.trials if one.inputs == "x[0] 0")
    assert domain.conditions[trial.condition].text == "y[0] ≥ 3"


def test_where_nothing_was_tried_nothing_is_said_to_hold() -> None:
    assert [*domain_details(SizeDomain())] == ["Nothing was tried."]


class PairedRows(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, counts: torch.Tensor | None = None, total: torch.Tensor | None = None
    ) -> torch.Tensor:
        factor = counts.sum() if counts is not None else total
        assert factor is not None
        return x.view(-1, 2 * x.shape[1]) * factor


def test_of_a_program_with_inputs_that_are_made_of_others_the_sizes_that_it_takes_as_they_are_are_derived() -> None:
    kwargs = {"x": torch.randn(6, 3), "counts": torch.tensor([1, 2])}
    part = BuiltPart(
        name="default", title="", module=PairedRows(), prefix="", args=(), kwargs=kwargs,
        dynamic_shapes={"x": {0: torch.export.Dim.AUTO}, "counts": None}, axes={"rows": ("x[0]",)},
    )  # fmt: skip
    call = call_for_part(part).with_inputs(lambda named: {"counts": None, "total": named["counts"].sum()})
    with record_guards() as log:
        search = make_search(part, call, export_program(call), log)
    search.plan()
    search.ask_eager(InputSet(title="", kind="example", calls=(), results=()))
    axis = next(one for one in search.finish().axes if one.name == "rows")
    assert axis.partly
    assert sizes_in_words(axis).startswith("multiples of 2 from 4 by itself; right where tried: 4, 6")
    refusing = msgspec.structs.replace(axis, refused=(8,))
    assert sizes_in_words(refusing) == f"{sizes_in_words(axis)}; refused where tried: 8"


@pytest.mark.slow
def test_a_later_stage_that_fails_is_told_beside_an_export_that_is_not_as_declared(tmp_path: Path) -> None:
    """torch.onnx cannot translate `chunk` along a dimension that is open."""
    (tmp_path / "halves_of.py").write_text(
        "import torch\n\n\nclass Halves(torch.nn.Module):\n    def forward(self, x):\n"
        "        one, other = x.chunk(2, 1)\n        return one * other\n\n\ndef make():\n"
        "    sizes = {0: torch.export.Dim('batch'), 1: torch.export.Dim('width')}\n"
        "    return Halves(), (torch.ones(2, 8),), {}, {'x': sizes}\n"
    )
    target = TargetRef(ref=f"{tmp_path / 'halves_of.py'}:make")
    result = find_domain(DomainRequest(target=target, seconds=0.2), lambda _: None)
    assert result.failure is not None
    assert result.failure.stage == "export"
    tried = {one.stage for trial in result.domain.trials for one in trial.answers}
    assert (result.later_failure is None) == ("ONNX Runtime" in tried)
    text = render_domain(result, "text", Style(width=200))
    assert ("translate fails: " in text) == ("ONNX Runtime" not in tried)


@pytest.mark.night
def test_a_file_that_others_made_is_tried_beside_our_own(tmp_path: Path) -> None:
    built = runpy.run_path(str(FILE))["pairs"]()
    path = tmp_path / "traced.onnx"  # at one size: it has no open ones
    made = torch.onnx.export(built["module"], built["args"], dynamo=True, verbose=False)
    assert made is not None
    made.save(str(path))
    target = TargetRef(ref=f"{FILE}:pairs")
    result = find_domain(DomainRequest(target=target, against=str(path), seconds=0.2), lambda _: None)
    assert result.domain.trials[0].answers[-1].stage == "traced.onnx"
    assert outcomes(result, "the example")[-1] == "right"
    assert outcomes(result, "x[0] 8")[-1] == "refuses"


@pytest.mark.night
def test_a_size_that_is_declared_open_and_baked_in_is_told_with_its_line() -> None:
    result = domain_of("fixed_length")
    assert result.failure is not None
    assert words(result)["length"] == "6 only"
    assert source_of(result, "length 7") == "length = int(x.shape[1])"
    assert outcomes(result, "length 1") == ("answers", "refuses", "refuses", "wrong")


@pytest.mark.night
def test_a_file_alone_is_asked_what_it_takes(tmp_path: Path) -> None:
    module = torch.nn.Linear(4, 2)
    rows = torch.export.Dim("rows", min=3, max=9)
    program = torch.export.export(module, (torch.randn(5, 4),), dynamic_shapes=({0: rows},))
    torch.export.save(program, tmp_path / "linear.pt2")
    result = find_domain(DomainRequest(file=str(tmp_path / "linear.pt2")), lambda _: None)
    assert words(result)["input[0]"] == "3 to 9"
    assert outcomes(result, "input[0] 10")[1:] == ("refuses", "answers")
    assert "  input[0] ≤ 9: the range of this size in the file" in [*domain_details(result.domain)]


def test_a_file_that_is_no_program_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "no.pt2").write_bytes(b"no program")
    with pytest.raises(UsageError, match=r"no\.pt2 cannot be loaded"):
        find_domain(DomainRequest(file=str(tmp_path / "no.pt2")), lambda _: None)


@pytest.mark.parametrize(
    ("given", "said"), [("folder.pt2", "is a folder, not a file"), ("no.onnx", "There is no file")]
)
def test_what_is_no_file_is_told_by_what_it_is(tmp_path: Path, given: str, said: str) -> None:
    (tmp_path / "folder.pt2").mkdir()
    with pytest.raises(UsageError, match=said):
        check_file(str(tmp_path / given))
    with pytest.raises(UsageError, match=said):
        existing_file(str(tmp_path / given))


@pytest.mark.parametrize(
    ("taken", "highest", "text"),
    [
        ([*range(2, 131)], None, "≥ 2"),
        ([*range(2, 33)], 33, "2 to 33"),
        ([*range(28, 131, 28)], None, "multiples of 28 from 28"),
        ([*range(3, 131, 4)], None, "3 more than multiples of 4 from 3"),
        ([one for one in range(131) if one not in (1, 7)], None, "≥ 0, but not 1, 7"),
        ([6], 6, "6 only"),
        ([], 0, "none"),
    ],
)
def test_sizes_are_told_as_a_rule(taken: list[int], highest: int | None, text: str) -> None:
    axis = SizeAxis(name="n", example=6, until=130)
    assert sizes_in_words(describe_sizes(axis, taken, highest)) == text


@pytest.mark.parametrize(
    ("declared", "found", "text"),
    [
        ((2, 100), {"lowest": 1, "highest": 100, "ends_by_runs": (1,)},
         "1 to 100 (declared: 2 to 100; an operation refuses less)"),
        ((None, 100), {"highest": 100}, "0 to 100 (as declared)"),
        ((4, 100), {"lowest": 4, "highest": 60, "ends_by_runs": (60,)},
         "4 to 60 (declared: 4 to 100; an operation refuses more)"),
        ((4, None), {"lowest": 4}, "≥ 4 (as declared)"),
        ((None, 100), {"only": (6,)}, "6 only (declared: ≤ 100)"),
        ((None, None), {"lowest": 2}, "≥ 2"),
    ],
)  # fmt: skip
def test_sizes_are_told_with_what_was_declared(
    declared: tuple[int | None, int | None], found: dict[str, Any], text: str
) -> None:
    assert sizes_in_words(SizeAxis(name="n", example=6, until=130, declared=declared, **found)) == text


class Summed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(0) * x.shape[0]


@pytest.mark.slow
@pytest.mark.parametrize(("least", "most"), [(2, 100), (4, 1000), (None, 87), (5, None), (None, 129), (None, 5000)])
def test_a_declared_end_is_no_operations(least: int | None, most: int | None) -> None:
    bounds = {name: size for name, size in (("min", least), ("max", most)) if size is not None}
    shapes = {"x": {0: torch.export.Dim("rows", **bounds)}}
    part = BuiltPart(
        name="default", title="", module=Summed(), prefix="", args=(torch.randn(15, 2),), kwargs={},
        dynamic_shapes=shapes, axes={"rows": ("x[0]",)},
    )  # fmt: skip
    (axis, _) = search_sizes(part).axes
    assert (axis.highest, axis.ends_by_runs, axis.declared) == (most, (), (least, most))
    assert "operation" not in sizes_in_words(axis)
    assert "declared" in sizes_in_words(axis)


def test_the_largest_size_below_a_bound_is_the_bound() -> None:
    """Larger ones were once taken to pass, and an operation was blamed for what the bound refuses."""
    for bound in (87, 100, 129, 3000, 2**24 + 1, 2**31):
        assert highest_size(min(bound, 130), 130, range(bound + 1).__contains__) == bound
    assert highest_size(96, 130, lambda size: size <= 1000 and size % 32 == 0) == 992
    assert highest_size(130, 130, lambda size: True) is None


@settings(deadline=None)
@given(lowest=st.integers(0, 12), step=st.integers(1, 9), cycle=st.integers(0, 4), end=st.integers(30, 130))
def test_the_size_that_only_an_end_refuses_is_tried(lowest: int, step: int, cycle: int, end: int) -> None:
    """The size above the largest of a rule of multiples is refused for not being one."""
    sizes = [size for size in range(lowest, 400, step) if not cycle or size % (step * cycle) != step or cycle == 1]
    taken = [size for size in sizes if size <= end]
    assume(len(taken) > 2)
    axis = SizeAxis(name="n", example=taken[1], until=130)
    rule = describe_sizes(axis, taken, taken[-1])
    assume(not rule.only)
    beyond = next(size for size in sizes if size > end)
    endless = msgspec.structs.replace(rule, highest=None)
    if takes(endless, beyond):
        assert beyond in points_of(rule)


def test_an_end_of_multiples_is_tried_at_the_next_multiple() -> None:
    class Rows(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._check(x.shape[0] <= 64)
            return x.view(-1, 8).softmax(1)

    domain = small_domain(Rows(), (torch.zeros(24),))
    assert open_axes(domain)["x[0]"].startswith("multiples of 8 from 16 to 64")
    beyond = next(one for one in domain.trials if one.inputs == "x[0] 72")
    assert beyond.answers[0].outcome == "refuses"
    assert "64" in domain.conditions[beyond.condition].text


class Places(torch.nn.Module):
    """A text with as many places as an image has features."""

    def forward(self, features: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        text = torch.zeros(places.shape[0], 3)
        text[places.bool()] = features
        return text


@pytest.mark.parametrize("marks", [[0, 1, 1, 0, 1, 0, 0], [1, 1, 0, 0, 0, 0, 1]])
def test_a_mask_with_so_many_places_has_as_many_at_other_sizes(marks: list[int]) -> None:
    """Story: the mask was repeated beyond the example's length, and an operation was said to refuse longer texts."""
    part = BuiltPart(
        name="default", title="", module=Places(), prefix="", args=(torch.randn(3, 3), torch.tensor(marks)), kwargs={},
        dynamic_shapes=(None, {0: torch.export.Dim.AUTO}), axes={"length": ("places[0]",)},
    )  # fmt: skip
    (axis,) = [one for one in search_sizes(part).axes if one.name == "length"]
    assert (axis.lowest, axis.highest) == (3, None)
    assert sizes_in_words(axis).startswith("≥ 3 (an operation refuses less)")


class Masked(torch.nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 1:
            return x.sum(0)
        return (x * mask[:, None]).sum(0)


def test_a_branch_on_a_size_of_one_that_reads_no_mask_is_wrong_there() -> None:
    """With the example's mask, all ones, the program was right at one, too."""
    length = {0: torch.export.Dim.AUTO}
    part = BuiltPart(
        name="default", title="", module=Masked(), prefix="", args=(torch.randn(4, 3), torch.ones(4, dtype=torch.bool)),
        kwargs={}, dynamic_shapes=(length, length), axes={"length": ("x[0]", "mask[0]")},
    )  # fmt: skip
    (axis,) = [one for one in search_sizes(part).axes if one.name == "length"]
    assert axis.wrong == (1,)


class Bounded(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y])


def test_what_is_refused_for_its_values_is_no_end_that_an_operation_makes() -> None:
    """`≥ 3 (an operation refuses less)` was said of a program that takes one row, and two, of other values."""
    run_at: dict[int, Any] = {0: "refuses", 1: "refuses values", 2: "refuses values"}
    axis = ends_by_runs(SizeAxis(name="b", example=3, until=130), lambda size: run_at.get(size, "answers"))
    assert (axis.lowest, axis.ends_by_runs) == (1, (1,))
    told = sizes_in_words(msgspec.structs.replace(axis, by_values=(1, 2)))
    assert told == "≥ 1 (an operation refuses less); at 1, 2 all that was tried is refused by assertions on values"


@pytest.mark.parametrize(
    ("gaps", "runs", "text"),
    [
        ((2,), range(4, 9000), "multiples of 2 from 4"),
        ((2, 8), range(6, 9000), "multiples of 2 from 6, but not 8 (an operation refuses less)"),
        ((4,), range(9000), "multiples of 2 from 0, but not 4"),
        ((4, 20), range(20), "multiples of 2 from 0 to 18, but not 4"),
    ],
)
def test_a_size_beyond_the_ends_is_no_gap_and_a_check_that_refuses_it_is_no_operation(
    gaps: tuple[int, ...], runs: range, text: str
) -> None:
    """`multiples of 2 from 4, but not 2 (an operation refuses less)` was said of an average pool and an upsampling."""
    axis = SizeAxis(name="n", example=12, step=2, until=130, but=gaps)
    assert sizes_in_words(ends_by_runs(axis, lambda size: "answers" if size in runs else "refuses")) == text


class OnSizes(torch.nn.Module):
    """Goes another way where a condition on the rows holds."""

    def __init__(self, condition: Callable[[int], bool]) -> None:
        super().__init__()
        self.condition = condition

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.condition(x.shape[0]) else x + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (lambda rows: rows % 3 == 0, "≥ 1, but no multiples of 3"),
        (lambda rows: rows % 4 < 2, "≥ 2, but none that is 0 or 1 more than a multiple of 4"),
        (lambda rows: rows // 8 % 2 != 0, "≥ 0, but none that is 8 to 15 more than a multiple of 16"),
        (lambda rows: rows % 256 == 0, "≥ 1, but no multiples of 256"),
        (lambda rows: rows + 5 == 305, "≥ 0, but not 300"),
    ],
)
def test_sizes_that_a_check_refuses_beyond_all_that_were_evaluated_are_told(
    condition: Callable[[int], bool], text: str
) -> None:
    """They were said to pass: `≥ 1` of a program that refuses multiples of 256."""
    domain = small_domain(OnSizes(condition), (torch.randn(7, 2),), torch.export.Dim.DYNAMIC)
    assert sizes_in_words(domain.axes[0]) == text
    beyond = [size for size in range(1100) if condition(size)]
    assert [size for size in range(1100) if not takes(domain.axes[0], size)] == beyond


class Heads(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0] // 768, 768, 1).sum(1)


@pytest.mark.long
@pytest.mark.slow
def test_a_step_that_is_larger_than_what_is_looked_at_has_no_end() -> None:
    """`multiples of 768 from 1536 to 3840` was said, and larger ones pass."""
    domain = small_domain(Heads(), (torch.randn(1536, 1),), torch.export.Dim.DYNAMIC)
    assert sizes_in_words(domain.axes[0]) == "multiples of 768 from 1536"


def test_a_list_of_sizes_without_a_rule_says_up_to_where_it_goes() -> None:
    squares = [number * number for number in range(12)]
    axis = describe_sizes(SizeAxis(name="n", example=9, until=130), squares, None)
    assert sizes_in_words(axis) == "0, 1, 4, 9, 16, 25 and 6 more up to 130 (not every size above was evaluated)"
    others = [size for size in range(131) if size not in squares]
    axis = describe_sizes(SizeAxis(name="n", example=9, until=130), others, None)
    assert sizes_in_words(axis) == (
        "≥ 2, but not 4, 9, 16, 25, 36, 49 and 4 more up to 130 (not every size above was evaluated)"
    )
    axis = describe_sizes(SizeAxis(name="n", example=9, until=130), squares[:5], 16)
    assert sizes_in_words(axis) == "0, 1, 4, 9, 16 only"


class Followed(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[1:] + y


def test_sizes_that_were_compared_are_those_of_the_axis_and_not_of_one_that_follows() -> None:
    """`b ≥ 2; compared with eager from 3 on` was said beside a row in which 2 is right."""
    domain = small_domain(Followed(), (torch.randn(5), torch.randn(4)), torch.export.Dim.DYNAMIC)
    (axis,) = domain.axes
    assert (axis.lowest, axis.compared) == (2, 2)
    assert (axis.name, axis.example) == ("y[0]", 4)


def test_a_size_for_which_the_example_has_no_elements_is_not_told_as_too_large() -> None:
    domain = small_domain(OnSizes(bool), (torch.randn(0, 2),))
    assert domain.untried == ()
    assert "not tried, since the example has no elements there to repeat: x[0] 1" in domain.notes


def test_a_declared_bound_is_not_told_as_an_operation_that_refuses() -> None:
    args = (torch.randn(3, 4), torch.randn(3, 4))
    domain = small_domain(Bounded(), args, torch.export.Dim("rows", max=100))
    assert {axis.highest: axis.ends_by_runs for axis in domain.axes if not axis.fixed} == {100: ()}


class Attention(torch.nn.Module):
    """Torch's attention does not compare the lengths of keys and values: it reads beyond the keys."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def attention_inputs(keys: int, values: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(2, 2, size, 8) for size in (3, keys, values))


def test_eager_that_reads_beyond_its_inputs_is_known_by_its_answers() -> None:
    """Story: beyond the surroundings of short keys the memory was anybody's, and all answers NaN by chance."""
    sizes = ((3, 64, True), (5, 6, True), (1, 5, True), (5, 5, False), (64, 3, False))
    for keys, values, unsteady in sizes * 10:
        inputs: Inputs = (attention_inputs(keys, values), {})
        assert depends_on_other_memory(Attention(), inputs) is unsteady
    assert not depends_on_other_memory(Attention(), ((torch.randn(2),), {}))


class Unwritten(torch.nn.Module):
    def __init__(self, filled: bool) -> None:
        super().__init__()
        self.filled, self.conv, self.norm = filled, torch.nn.Conv1d(4, 6, 3, padding=1), torch.nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.empty_like(x).transpose(0, 2)
        if self.filled:
            found.copy_(x.transpose(0, 2)).add_(1)
        return self.norm(self.conv(x)).sum() + found.expand(2, *found.shape)


def test_memory_that_nobody_wrote_makes_an_answer_chance() -> None:
    x = torch.randn(3, 4, 5)
    assert depends_on_other_memory(Unwritten(filled=False), ((x,), {}))
    assert not depends_on_other_memory(Unwritten(filled=True), ((x,), {}))
    assert not depends_on_other_memory(Unwritten(filled=True), ((x[::2, :, 1:4],), {}))


def test_where_eager_answers_by_chance_no_stage_is_called_wrong() -> None:
    opened = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC}
    part = BuiltPart(
        name="default", title="", module=Attention(), prefix="", args=attention_inputs(5, 5), kwargs={},
        dynamic_shapes=({0: torch.export.Dim.DYNAMIC}, opened, opened), axes={},
    )  # fmt: skip
    domain = search_sizes(part)
    assert domain.holds
    assert not any(axis.wrong for axis in domain.axes)
    said = [*boundary_lines(domain), *domain_details(domain)]
    assert not domain.unsteady or sum("eager's own answer depends on chance, on memory" in line for line in said) == 2


def small_search(module: torch.nn.Module, *args: torch.Tensor, axis: str, dim: object) -> SizeDomain:
    """The domain of the exported program beside eager, with one size open."""
    name, _, place = axis.removesuffix("]").partition("[")
    shapes = {one: {int(place): dim} if one == name else None for one in inspect.signature(module.forward).parameters}
    part = BuiltPart(
        name="default", title="", module=module, prefix="", args=args, kwargs={}, dynamic_shapes=shapes,
        axes={axis: (axis,)},
    )  # fmt: skip
    return search_sizes(part)


class Padded(torch.nn.Module):
    """Its program refuses less than five columns, which eager takes: a size of one is another program to torch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(x, (0, -x.shape[1] % 4))
        return padded.view(x.shape[0], -1, 4).sum(1)


@pytest.mark.slow
def test_the_next_size_that_eager_takes_and_the_program_refuses_is_told_beside_the_rule() -> None:
    domain = small_search(Padded(), torch.randn(3, 6), axis="x[1]", dim=torch.export.Dim.DYNAMIC)
    assert open_axes(domain) == {"x[1]": "≥ 5; eager takes others as well, such as 0, 1 and 4"}
    bounded = torch.export.Dim("columns", min=5, max=12)
    domain = small_search(torch.nn.ReLU(), torch.randn(3, 6), axis="input[1]", dim=bounded)
    assert open_axes(domain) == {"input[1]": "5 to 12"}


def refusing(size: int, *later: Any, kind: Any = "guard", eager: str = "") -> SizeTrial:
    """A trial of which the program refuses a size."""
    outcomes = ("refuses", *later)
    answers = tuple(StageAnswer(stage=f"stage {at}", outcome=one) for at, one in enumerate(outcomes))
    return SizeTrial(inputs=f"rows {size}", answers=answers, condition=0 if kind == "guard" else 1, eager=eager)


def test_sizes_that_eager_takes_are_told_as_some_of_those_that_the_program_refuses() -> None:
    axis = SizeAxis(name="rows", example=8, lowest=4, step=2, until=130, right=(4, 8), by_values=(6,))
    trials = [refusing(size) for size in (0, 2, 3, 6, 9)] + [refusing(5, eager="no"), refusing(99, kind="declared")]
    conditions = (SizeCondition(text="a", kind="guard"), SizeCondition(text="b", kind="declared"))
    domain = SizeDomain(axes=(axis,), trials=tuple(trials), conditions=conditions)
    (row,) = axis_rows(domain)
    assert row[1].startswith("multiples of 2 from 4; at 6 all that was tried is refused")
    assert row[1].endswith("; eager takes others as well, such as 0, 2, 3 and 9")
    answering = SizeTrial(inputs="the example", answers=(StageAnswer(stage="stage 0", outcome="answers"),))
    for other in ([refusing(0), refusing(1)], [refusing(2), answering]):  # the second is of a file without eager
        (row,) = axis_rows(msgspec.structs.replace(domain, trials=tuple(other)))
        assert "eager takes" not in row[1]


def test_what_a_later_file_does_is_told_of_each_size_where_it_is_not_one_thing() -> None:
    conditions = (SizeCondition(text="a", kind="guard"),)
    trials = (refusing(2, "refuses", "right"), refusing(3, "refuses", "refuses"), refusing(5, "refuses", "right"))
    told = [*domain_details(SizeDomain(trials=trials, conditions=conditions, dropped=(0,)))]
    said = "  a later file does not check it: stage 2 "
    assert f"{said}gives eager's numbers at rows 2, rows 5, refuses at rows 3" in told
    told = [*domain_details(SizeDomain(trials=trials[::2], conditions=conditions, dropped=(0,)))]
    assert f"{said}gives eager's numbers" in told


def test_a_file_that_leaves_an_input_as_it_was_is_told_so_and_not_by_its_numbers() -> None:
    wrong = StageAnswer(stage="ONNX Runtime", outcome="wrong", message="the program does not change x as eager does")
    domain = SizeDomain(trials=(SizeTrial(inputs="x[0] 4", answers=(wrong,)),))
    assert [*boundary_lines(domain)] == ["x[0] 4: ONNX Runtime: the program does not change x as eager does"]


def test_a_module_of_torchs_own_that_refuses_its_inputs_is_the_targets_fault(tmp_path: Path) -> None:
    file = tmp_path / "target.py"
    file.write_text("import torch\n\n\ndef build():\n    return torch.nn.Linear(2, 2), (torch.randn(3, 3),)\n")
    with pytest.raises(TargetError, match=r"The eager forward of part default fails: RuntimeError: mat1"):
        find_domain(DomainRequest(target=TargetRef(ref=f"{file}:build")), lambda _: None)


def test_conditions_are_told_as_people_write_them() -> None:
    n, m = sympy.symbols("n m", integer=True, positive=True)
    assert condition_text(sympy.Eq(sympy.Mod(4 * n, 8, evaluate=False), 0, evaluate=False)) == "n is a multiple of 2"
    assert condition_text(sympy.Ne(n, m)) == "n ≠ m"
    assert condition_text(sympy.Le(n, 5)) == "n ≤ 5"
    assert condition_text(sympy.Eq(PythonMod(-n, 4), 1)) == "(-n) % 4 = 1"
    assert condition_text(sympy.Ne(4 * FloorDiv(n + Mod(2 * n, 3), 4), m)) == "4*((n + (2*n % 3))//4) ≠ m"


class Areas(torch.nn.Module):
    """Rows of pictures, of which a grid says the sides; the number of pictures is open as well."""

    def forward(self, patches: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_exporting() and int(grid.prod(1).sum()) != len(patches):
            raise ValueError("the grid describes other patches")
        return patches * 2


def test_sizes_that_whole_numbers_say_are_tried_together_with_these() -> None:
    def inputs(*sides: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(sum(one * other for one, other in sides), 3), torch.tensor(sides)

    example = inputs((2, 3), (4, 5))
    part = BuiltPart(
        name="default", title="", module=Areas(), prefix="", args=example, kwargs={},
        dynamic_shapes=({0: torch.export.Dim.AUTO}, {0: torch.export.Dim.AUTO}), more_inputs=((inputs((7, 1)), {}),),
        axes={"patches": ("patches[0]",), "pictures": ("grid[0]",)},
    )  # fmt: skip
    domain = search_sizes(part)
    ends = {one.inputs: (bool(one.eager), one.answers[0].outcome) for one in domain.trials}
    assert ends["patches 30, grid ..., 4 x 6"] == (False, "right")
    assert ends["patches 6, grid ..., 4 x 0"] == (False, "right")
    assert ends["pictures 3"] == (False, "right")
    assert ends["patches 27, grid unchanged"] == (True, "alone")


def test_what_whole_numbers_say_holds_in_every_known_set() -> None:
    sides = [torch.tensor([[2, 3], [4, 5]]), torch.tensor([[7, 1]])]
    leaves = [[torch.randn(size, 2), numbers] for size, numbers in zip((26, 7), sides, strict=True)]
    found = list(find_described(leaves))
    assert found == [DescribedSize(leaf=0, by=1)]
    assert list(find_described([leaves[0]])) == []  # one set shows nothing
    assert list(find_described([leaves[0], [torch.randn(8, 2), sides[1]]])) == []
    assert [found[0].size(leaves[0], rows) for rows in (0, 1, 2, 3, 5)] == [0, 6, 26, 32, 58]
    for size in range(60):
        numbers = found[0].numbers(leaves[0], size)
        assert numbers is None or found[0].size([leaves[0][0], numbers]) == size
    assert all(found[0].numbers(leaves[0], size) is not None for size in found[0].near(leaves[0]))


class LastRows(torch.nn.Module):
    """The last row that counts of each sequence: its number must be one of the sequence's."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return x[lengths - 1, torch.arange(x.shape[1])]


class Asserting(torch.nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        torch._assert_async((lengths <= x.shape[0]).all(), "too long")
        return x.cumsum(0)


@pytest.mark.slow
@pytest.mark.parametrize("module", [LastRows(), Asserting()], ids=lambda one: type(one).__name__)
def test_a_size_that_the_values_of_the_example_do_not_fit_is_no_end(module: torch.nn.Module) -> None:
    found = small_domain(module, (torch.randn(7, 3, 2), torch.tensor([7, 4, 2])))
    steps = next(one for one in found.axes if one.name == "x[0]")
    assert steps.lowest <= 1
    assert not steps.refused
    tried = {one.inputs: one for one in found.trials}
    assert "x[0] 1" not in tried
    assert tried["x[0] 1, whole numbers all 1"].answers[0].outcome == "right"


class Picked(torch.nn.Module):
    """Every place is refused where there is none."""

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        at = place.max().item()
        torch._check(at >= 0)
        torch._check(at < x.shape[1])
        return x.select(1, at) * 2  # type: ignore[arg-type]  # a symbol of an export, a number in eager


class Columns(torch.nn.Module):
    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return x * place.sum()


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (Picked(), "; at 0 all that was tried is refused by assertions on values; compared with eager from 1 on"),
        (Columns(), ""),
    ],
)
def test_a_size_that_every_value_is_refused_at_is_told_and_from_where_on_answers_are_known(
    module: torch.nn.Module, told: str
) -> None:
    domain = small_search(module, torch.randn(3, 8), torch.tensor([2, 5]), axis="x[1]", dim=torch.export.Dim.DYNAMIC)
    axis = next(one for one in domain.axes if one.name == "x[1]")
    assert sizes_in_words(axis) == f"≥ 0{told}"
