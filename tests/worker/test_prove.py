"""What counts as the same numbers, and on which inputs a cure must give them."""

from __future__ import annotations

import copy
import math
import random
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.core.failure.messages import ONE_FOR_SEVERAL
from exportdoctor.shims import ExportCall
from exportdoctor.targets.built import BuiltPart, Inputs
from exportdoctor.targets.eager import CallResult, copy_inputs, run_calls, same_values
from exportdoctor.targets.sizes.other_sizes import following_sizes, resize_inputs
from exportdoctor.torch_internals.program_checks import guards_of, violated_guards
from exportdoctor.worker.attempt.shimmed_export import compare_set
from exportdoctor.worker.prove.compare_calls import compare_calls
from exportdoctor.worker.prove.compare_outputs import as_strided, compare_outputs
from exportdoctor.worker.prove.cure_inputs import change_layout, cure_inputs, drawer_for, resample_numbers
from exportdoctor.worker.prove.drawn_values import draw_like, write
from exportdoctor.worker.prove.input_meaning import draw_boundaries
from exportdoctor.worker.prove.input_set import InputSet, run_in_eager
from exportdoctor.worker.prove.masked_positions import ignores_zeros, mask_of
from exportdoctor.worker.prove.object_walk import map_tensors, tensors_by_path
from exportdoctor.worker.prove.proof_inputs import sizes_title
from exportdoctor.worker.translate.onnx_program import flat_inputs, translate
from exportdoctor.worker.translate.onnx_session import OnnxSession


@pytest.mark.parametrize(
    ("answer", "wanted", "holds"),
    [
        (torch.ones(3), torch.ones(3), True),
        (torch.ones(3) + 1e-6, torch.ones(3), True),
        (torch.full((3,), 2e-5), torch.full((3,), 1e-5), False),  # small outputs are not right because they are small
        (torch.zeros(3), torch.full((3,), 1e-7), False),  # whether rounding explains it is asked of eager
        (torch.zeros(3), torch.tensor([1e-7, 1e-7, 1.0]), False),
        (torch.tensor([0.0, 0.0, 1.0]), torch.tensor([1e-7, 1e-7, 1.0]), True),
        (torch.ones(3), torch.ones(3, 1), False),
        (torch.ones(3, dtype=torch.float64), torch.ones(3), False),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), False),
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan]), True),
        (torch.tensor([torch.nan]), torch.tensor([torch.nan]), True),  # what it shows is for the caller to judge
        (torch.tensor([torch.inf]), torch.tensor([torch.inf]), True),
        (torch.tensor([torch.nan]), torch.tensor([1.0]), False),
        (7, 7, True),
        (7, 8, False),
        (7, torch.tensor(7), False),
        (True, 1, False),
    ],
)
def test_leaves_agree_where_shape_dtype_and_numbers_do(answer: Any, wanted: Any, holds: bool) -> None:
    assert compare_outputs("a set", [answer], [wanted]).holds is holds


def test_another_number_of_outputs_is_no_agreement() -> None:
    assert "2 outputs" in compare_outputs("a set", [1, 2], [1]).trouble


class Counts(nn.Module):
    """Answers otherwise after more calls than a proof makes."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x if self.calls < 30 else -x


def test_what_each_call_changes_is_told_beside_calls_that_agree() -> None:
    sets = {one.kind: one for one in cure_inputs(ExportCall(module=Counts(), args=(torch.ones(2),)))}
    row = compare_calls(sets["called_again"], sets["called_again"].results)
    assert row.holds
    assert row.note.startswith("eager changes calls with each call, and the program does not: 3 calls")
    assert not compare_calls(sets["example"], sets["example"].results).note


class Holder:
    """A plain object."""

    def __init__(self) -> None:
        self.calls = 0


def count_up() -> None: ...


count_up.calls = 0  # type: ignore[attr-defined]
COUNTS, SEEN, TABLE, HOLDER = {"calls": 0}, [0], torch.zeros(2), Holder()


class Outside(nn.Module):
    """Keeps state in its file, in its class and in what these hold."""

    calls = 0

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.kept = where, torch.zeros(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        match self.where:
            case "COUNTS":
                COUNTS["calls"] += 1
            case "SEEN":
                SEEN[0] += 1
            case "TABLE":
                TABLE.add_(1)
            case "HOLDER.calls":
                HOLDER.calls += 1
            case "Outside.calls":
                type(self).calls += 1
            case "count_up.calls":
                count_up.calls += 1  # type: ignore[attr-defined]
            case "kept":
                self.kept.add_(1)
        return x * 2


@pytest.mark.parametrize(
    "where", ["COUNTS", "SEEN", "TABLE", "HOLDER.calls", "Outside.calls", "count_up.calls", "kept", ""]
)
def test_state_outside_modules_is_told_too(where: str) -> None:
    sets = {one.kind: one for one in cure_inputs(ExportCall(module=Outside(where), args=(torch.ones(2),)))}
    note = compare_calls(sets["called_again"], sets["called_again"].results).note
    name = where if where in ("Outside.calls", "kept") else f"{__name__.rpartition('.')[2]}.{where}"
    assert note.startswith(f"eager changes {name} with each call") if where else not note


@pytest.mark.parametrize("how", [torch.Tensor.to_sparse_csr, torch.Tensor.to_sparse_csc, torch.Tensor.to_sparse])
def test_sparse_inputs_are_compared(how: Any) -> None:
    inputs = (how(torch.eye(3)), torch.ones(3))
    call = ExportCall(module=Product(), args=inputs)
    known = list(cure_inputs(call))
    assert [one.kind for one in known] == ["example", "values", "layout", "called_again", "others_between"]
    assert all(compare_calls(one, one.results).holds for one in known)
    wrong = [CallResult(output=result.output + 1, after=result.after, buffers={}) for result in known[0].results]
    assert not compare_calls(known[0], wrong).holds


class Product(nn.Module):
    """A sparse matrix and a vector."""

    def forward(self, table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return table @ x


class Reads(nn.Module):
    """Takes a padded batch, a flag for each row and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 1)

    def forward(self, input_ids: Any, attention_mask: Any, flags: Any, count: Any) -> Any:
        return (self.words(input_ids)[..., 0] * attention_mask).sum(1) * flags + count


def test_whole_numbers_are_drawn_by_what_they_mean_and_the_example_stays_as_it_is() -> None:
    kwargs = {
        "input_ids": torch.tensor([[1, 2, 3, 4, 5, 9]]),
        "attention_mask": torch.ones(1, 6, dtype=torch.int64),
        "flags": torch.tensor([True]),
        "count": torch.tensor(3),
    }
    more = ((), {**kwargs, "input_ids": torch.ones(1, 6, dtype=torch.int64)})
    call = ExportCall(module=Reads(), kwargs=kwargs, more_inputs=(more,))
    known = list(cure_inputs(call))
    assert [(one.kind, len(one.calls), one.made_up) for one in known] == [
        ("example", 1, False),
        ("sizes", 1, False),
        ("layout", 1, True),
        ("called_again", 3, False),
        ("others_between", 3, False),
        ("others_between", 3, True),
    ]
    drawn = list(drawer_for(call, known[0]).draw())
    assert len(drawn) >= 20
    assert {one.kind for one in drawn} >= {"whole_numbers", "padding"}
    inputs = [one.inputs[1] for one in drawn]
    assert all(0 <= int(some["input_ids"].min()) <= int(some["input_ids"].max()) < 10 for some in inputs)
    assert all(set(some["attention_mask"].flatten().tolist()) <= {0, 1} for some in inputs)
    assert any(some["attention_mask"][0, 0] == 0 for some in inputs), "padding on the left"
    assert any(some["attention_mask"][0, -1] == 0 for some in inputs), "padding on the right"
    assert any(not some["flags"].item() for some in inputs)
    assert all(some["count"].item() > 0 for some in inputs)
    assert kwargs["count"].item() == 3


def test_the_least_size_that_is_declared_is_drawn_with_those_that_follow_from_it() -> None:
    rows, half = Dim("rows", min=3), Dim("half", min=4)
    shapes = {"x": {0: rows, 1: 2 * half}, "y": {0: half, 1: Dim.DYNAMIC}}
    call = ExportCall(module=Halves(), args=(torch.randn(7, 20), torch.randn(10, 3)), dynamic_shapes=shapes)
    drawn = list(drawer_for(call, next(iter(cure_inputs(call)))).draw_least())
    found = [[tuple(tensor.shape) for tensor in one.inputs[0]] for one in drawn]
    assert found == [[(3, 20), (10, 3)], [(7, 8), (4, 3)]]
    assert {one.kind for one in drawn} == {"sizes"}


@pytest.mark.parametrize("value", [torch.randn(3, 4), torch.arange(3)], ids=["fractions", "whole numbers"])
def test_a_tensor_that_is_several_inputs_is_drawn_apart(value: torch.Tensor) -> None:
    call = ExportCall(module=Differs(), args=(value, [value]))
    (one,) = [one for one in cure_inputs(call) if ONE_FOR_SEVERAL in one.title]
    first, (second,) = one.inputs[0]
    assert first is not second
    assert not torch.equal(first, second)
    assert not one.made_up
    separate = ExportCall(module=Differs(), args=(value, [value.clone()]))
    assert all(ONE_FOR_SEVERAL not in one.title for one in cure_inputs(separate))
    assert call.args[0] is call.args[1][0]


class Differs(nn.Module):
    def forward(self, a: torch.Tensor, b: list[torch.Tensor]) -> torch.Tensor:
        return a * 2 - b[0]


class Halves(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[:, : y.shape[0]].sum() + y.sum()


class Longest(nn.Module):
    """Keeps the longest length that it has seen, on which its answer depends."""

    longest = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.longest = max(self.longest, x.shape[0])
        return x / self.longest


def test_state_that_only_a_longer_call_leaves_shows_around_one() -> None:
    """Story: a table of the longest length; calls of other values at the example's size left it as it was."""
    call = ExportCall(module=Longest(), args=(torch.ones(3, 2),), more_inputs=(((torch.ones(6, 2),), {}),))
    around = {one.title: one.results for one in cure_inputs(call) if one.kind == "others_between"}
    values, sizes = (around[f"3 x 2, before and after {what}"] for what in ("another set", "other sizes"))
    assert torch.equal(values[0].output, values[2].output)
    assert not torch.equal(sizes[0].output, sizes[2].output)


class Largest(nn.Module):
    """Divides by the largest value that was ever out of the usual."""

    scale: Any = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale = x.abs().max() if x.abs().max() > 4 else self.scale
        return x / self.scale


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.abs().max() if x.abs().max() > 4 else x


def test_state_that_only_another_branch_leaves_shows_around_one() -> None:
    """Story: three calls with the example left nothing, and so did other values of its spread."""
    module = Largest()
    call = ExportCall(module=module, args=(torch.linspace(-1, 1, 8).reshape(2, 4),))
    first, *others = cure_inputs(call)
    drawn = list(drawer_for(call, first).draw())
    around = [one for one in drawn if one.kind == "others_between"]
    assert around
    for one in around:
        before, _, after = one.results
        assert not torch.equal(before.output, after.output)
    assert all(torch.equal(one.results[0].output, one.results[-1].output) for one in others if one.same)


def test_branches_without_state_are_drawn_alone() -> None:
    call = ExportCall(module=Branch(), args=(torch.linspace(-1, 1, 8).reshape(2, 4),))
    drawn = list(drawer_for(call, next(cure_inputs(call))).draw())
    kinds = {one.kind for one in drawn}
    assert "branches" in kinds
    assert "others_between" not in kinds


@pytest.mark.slow
@given(st.integers(2, 9), st.integers(1, 40), st.integers(0, 5), st.integers(0, 10**6))
def test_drawn_boundaries_rise_from_zero_or_more_to_the_total_or_less(
    count: int, total: int, style: int, seed: int
) -> None:
    found = draw_boundaries(count, total, random.Random(seed), style)
    assert len(found) == count
    assert found == sorted(found)
    assert 0 <= found[0] <= found[-1] <= total
    assert found[-1] == total or style == 3
    assert found[0] == 0 or style == 4


@given(st.sampled_from((0.0, 1.0, -3.5, 1e-4, 1e6)), st.integers(2, 30), st.integers(0, 10**6))
def test_a_constant_gets_values_that_differ_from_it_and_from_each_other(value: float, size: int, seed: int) -> None:
    drawn = draw_like(torch.full((size,), value), random.Random(seed))
    assert len(set(drawn.tolist())) == size
    assert value not in drawn.tolist()


def test_what_masks_and_what_is_not_finite_stays_where_other_values_are_drawn() -> None:
    lowest = torch.finfo(torch.float32).min
    mask = torch.tensor([0.0, lowest, -torch.inf, 0.0, 0.5, 0.25, 1.0, 0.125, 2.0, 3.0])
    drawn = draw_like(mask, random.Random(0))
    assert drawn[1] == lowest
    assert drawn[2] == -torch.inf
    assert not torch.equal(drawn, mask)


def test_drawn_inputs_repeat_and_share_storage_where_the_example_does() -> None:
    x = torch.arange(12.0)
    args = (x[:4], x[2:8].expand(3, 6))
    call = ExportCall(module=Views(), args=args)
    known = list(cure_inputs(call))
    for one in (*known, *drawer_for(call, known[0]).draw()):
        if one.kind == "layout":
            continue
        left, right = one.inputs[0]
        assert right.stride(0) == 0
        assert left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr()
        assert torch.equal(left[2:], right[0, :2])


class Step(nn.Module):
    def forward(self, mask: Any, cache: Any) -> Any:
        return mask[:, : cache.shape[1]] + cache


class AtOneSize(nn.Module):
    """At eleven columns it computes something else, and it takes no thirteen; torch guards both."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] == 13:
            raise ValueError("thirteen columns")
        return x * 2 if x.shape[1] == 11 else x * 3


def test_a_size_that_a_program_refuses_and_eager_takes_is_drawn() -> None:
    module, x = AtOneSize(), torch.randn(3, 20)
    shapes = ({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},)
    call = ExportCall(module=module, args=(x,), dynamic_shapes=shapes)
    guards = guards_of(torch.export.export(module, (x,), dynamic_shapes=shapes).module())
    assert guards is not None
    drawer = drawer_for(call, next(iter(cure_inputs(call))))
    refused = list(drawer.draw_refused(lambda inputs: "".join(violated_guards(guards, inputs[0])[:1])))
    assert [tuple(one.inputs[0][0].shape) for one in refused] == [(3, 11)]
    assert [(one.kind, one.made_up) for one in refused] == [("sizes", True)]


class AtOneNumber(nn.Module):
    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        times = int(n)
        return x * 3 if times % 1000 == 999 else x * times


def test_a_number_near_to_one_in_the_code_that_a_program_refuses_is_drawn() -> None:
    """Story: a shim that makes the number a size of an input, by which the branch of the example is a guard."""
    call = ExportCall(module=AtOneNumber(), args=(torch.randn(3, 4), torch.tensor(5)))
    drawer = drawer_for(call, next(iter(cure_inputs(call))))
    refuses = lambda inputs: "a guard" * (int(inputs[0][1]) % 1000 == 999)  # noqa: E731
    refused = list(drawer.draw_refused(refuses, numbers=True))
    assert [(one.title, one.kind) for one in refused] == [("3 x 4, scalar, n = 999", "whole_numbers")]
    assert not list(drawer.draw_refused(refuses))


class AtInfinity(nn.Module):
    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        return torch.where(x == -math.inf, 0.0, x) * (2 if int(n) == 300 else 3)


def test_numbers_that_an_input_cannot_be_are_not_drawn() -> None:
    call = ExportCall(module=AtInfinity(), args=(torch.randn(3, 4), torch.tensor(5, dtype=torch.uint8)))
    drawer = drawer_for(call, next(iter(cure_inputs(call))))
    assert not list(drawer.draw_refused(lambda inputs: "", numbers=True))


def test_a_mask_of_a_caches_length_and_one_stays_that_in_other_sizes() -> None:
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    known: list[Inputs] = [((torch.ones(n, size + 1), torch.ones(n, size)), {}) for n, size in ((2, 19), (3, 27))]
    following = following_sizes(known, Step(), (free, free))
    assert following == {20}
    made = resize_inputs(Step(), known[0], (free, free), (lambda size: 2 * size,), following=following)
    assert made is not None
    assert [tuple(one.shape) for one in made[0]] == [(4, 39), (4, 38)]
    shorter = resize_inputs(Step(), known[0], (free, free), (lambda size: 0,), least=0, only=1, following=following)
    assert shorter is not None
    assert [tuple(one.shape) for one in shorter[0]] == [(2, 1), (2, 0)]
    assert not following_sizes(known[:1], Step(), (free, free))


class Views(nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x.sum() + y


def test_masked_positions_of_a_cache_with_heads_are_not_compared() -> None:
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    wanted = torch.randn(2, 4, 3, 5)  # batch, heads, positions, width
    found = wanted.clone()
    found[0, :, 0] += 1
    inputs: Inputs = ((mask,), {})
    result = CallResult(output=wanted, after=inputs, buffers={})
    one = InputSet(title="", kind="padding", calls=(inputs,), results=(result,), mask_path="[0][0]")
    assert compare_calls(one, [CallResult(output=[found], after=inputs, buffers={})], tensors=True).holds
    found[0, :, 1] += 1
    assert not compare_calls(one, [CallResult(output=[found], after=inputs, buffers={})], tensors=True).holds


@pytest.mark.parametrize("rows", [1, 2])  # with two, the mask is square
def test_of_a_mask_that_a_cache_makes_longer_the_last_positions_are_those_of_the_outputs(rows: int) -> None:
    """A token after another one in the cache: what eager makes of a row where nothing is seen is arbitrary."""
    tokens, mask = torch.zeros(rows, 1, dtype=torch.int64), torch.ones(rows, 2, dtype=torch.int64)
    mask[0] = 0
    logits, keys = torch.randn(rows, 1, 5), torch.randn(rows, 1, 2, 3)  # one head
    inputs: Inputs = ((tokens, mask), {})
    result = CallResult(output=(logits, keys), after=inputs, buffers={})
    one = InputSet(title="", kind="padding", calls=(inputs,), results=(result,), mask_path="[0][1]")

    def compare(changed: int) -> Any:
        found = [logits.clone(), keys.clone()]
        for leaf in found:
            leaf[changed] += 1
        return compare_calls(one, [CallResult(output=found, after=inputs, buffers={})], tensors=True)

    if rows == 1:
        assert compare(0).says_nothing  # nothing is left to compare
    else:
        assert compare(0).holds
        assert not compare(1).holds
    mask[0, 1] = 1
    assert not compare(0).holds


class Pools(nn.Module):
    """Frames less their mean over those that count; the others give zero, or what they are."""

    def __init__(self, counts: str, *, hides: bool = True) -> None:
        super().__init__()
        self.counts, self.hides = counts, hides

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        counted = {"ones": mask, "zeros": ~mask, "all": torch.ones_like(mask)}[self.counts][..., None]
        mean = (x * counted).sum(1, keepdim=True) / counted.sum(1, keepdim=True)
        return (x - mean) * counted if self.hides else x - mean


class Frames(nn.Module):
    """Each frame by itself, and once without those that are not shown."""

    def __init__(self, shown: bool) -> None:
        super().__init__()
        self.shown = shown

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * (mask == self.shown)[..., None]


@pytest.mark.parametrize(
    ("module", "ignores"),
    [
        (Pools("ones"), False),  # zero elsewhere, whatever is there: that can be compared
        (Pools("ones", hides=False), True),
        (Pools("zeros"), False),  # torch's key_padding_mask: ones are padding
        (Pools("zeros", hides=False), False),
        (Pools("all"), False),
        (Frames(True), False),
        (Frames(False), False),
    ],
)
def test_zeros_of_a_mask_count_as_ignored_only_where_eager_says_so(module: nn.Module, ignores: bool) -> None:
    mask = torch.ones(2, 6, dtype=torch.bool)
    inputs: Inputs = ((torch.randn(2, 6, 3), mask), {})
    assert ignores_zeros(module, inputs, "[0][1]") is ignores


def test_masked_positions_are_not_compared_either_where_the_program_leaves_an_output_out() -> None:
    mask, length = torch.tensor([[0, 1, 1]]), torch.tensor([[2]])
    wanted = torch.randn(1, 3, 5)
    inputs: Inputs = ((mask,), {})
    result = CallResult(output=(wanted, length), after=inputs, buffers={})
    one = InputSet(
        title="",
        kind="padding",
        calls=(inputs,),
        results=(result,),
        mask_path="[0][0]",
        disturbed=((wanted, length), (-wanted, length)),
    )
    found = wanted.clone()
    found[0, 0] += 1
    row = compare_calls(one, [CallResult(output=[found], after=inputs, buffers={})], tensors=True)
    assert row.holds
    assert "leaves out" in row.note
    assert "1 masked position, which eager ignores" in row.note
    found[0, 1] += 1
    assert not compare_calls(one, [CallResult(output=[found], after=inputs, buffers={})], tensors=True).holds


def test_a_set_is_titled_by_the_sizes_of_all_dynamic_axes_however_they_are_given() -> None:
    class Given(nn.Module):
        def forward(self, wave: torch.Tensor, more: dict[str, torch.Tensor], *, count: int) -> torch.Tensor:
            return wave.sum() + more["a"].sum() + count

    part = BuiltPart(
        name="default", title="", module=Given(), prefix="", args=(torch.ones(2, 6), {"a": torch.ones(3)}),
        kwargs={"count": 4}, dynamic_shapes=None,
        axes={"wave[1]": ("wave[1]",), "rows": ("more['a'][0]",), "rows + 1": ("wave[0]",), "count": ("count",)},
    )  # fmt: skip
    assert sizes_title(part, (part.args, part.kwargs)) == "wave[1] 6, rows 3, count 4"


@pytest.mark.parametrize(
    ("inputs", "is_padding"),
    [
        ({"x": torch.ones(4, 8), "seen": torch.ones(4, 4, dtype=torch.bool)}, False),
        ({"x": torch.ones(4, 4), "seen": torch.ones(4, 4, dtype=torch.bool)}, False),
        ({"x": torch.ones(4, 4, dtype=torch.int64), "seen": torch.ones(4, 4, dtype=torch.bool)}, True),
        ({"x": torch.ones(4, 4, 8), "seen": torch.ones(4, 4, dtype=torch.bool)}, True),
        ({"x": torch.ones(2, 8), "seen": torch.ones(2, 4, dtype=torch.bool)}, True),
    ],
)
def test_a_square_mask_alone_hides_no_outputs_for_it_may_be_one_of_pairs(
    inputs: dict[str, torch.Tensor], is_padding: bool
) -> None:
    (path,) = [path for path, one in tensors_by_path(((), inputs)).items() if one is inputs["seen"]]
    one = InputSet(title="", kind="example", calls=(((), inputs),), results=(), mask_path=path)
    assert (mask_of(one) is not None) is is_padding


class Windows(nn.Module):
    """Overlapping windows of a vector, by its stride."""

    def forward(self, x: Tensor) -> Tensor:
        return x.as_strided((x.shape[0] - 1, 2), (x.stride(0), x.stride(0))) * 2


def test_a_program_that_holds_for_one_memory_layout_alone_is_wrong_on_another() -> None:
    module, x = Windows(), torch.arange(6.0)
    program = torch.export.export(module, (x,)).module()
    rows = {
        one.kind: compare_calls(one, run_calls(program, one.calls))
        for one in cure_inputs(ExportCall(module=module, args=(x,)))
    }
    assert rows["example"].holds
    assert not rows["layout"].holds
    strided = torch.stack([x, x], 1)[:, 0]
    back = {one.kind: one for one in cure_inputs(ExportCall(module=module, args=(strided,)))}["layout"]
    assert back.inputs[0][0].is_contiguous()
    assert torch.equal(back.inputs[0][0], x)


class Cached(nn.Module):
    """Counts how often each row is named, once for each number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Any = None

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        if self.counts is None or self.counts.shape[0] != x.shape[0]:
            self.counts = torch.bincount(rows, minlength=x.shape[0])
        return x * self.counts[:, None]


def test_a_cache_of_what_follows_from_whole_numbers_shows() -> None:
    module, args = Cached(), (torch.ones(4, 2), torch.tensor([0, 1, 1, 3, 2, 0]))
    program = copy.deepcopy(module)
    call = ExportCall(module=module, args=args)

    def answers(one: InputSet) -> tuple[CallResult, ...]:
        return tuple(run_calls(copy.deepcopy(program), [given])[0] for given in one.calls)

    rows = [compare_calls(one, answers(one)) for one in cure_inputs(call)]
    assert [row.inputs for row in rows if not row.holds] == ["4 x 2, 6, before and after other whole numbers"]


@pytest.mark.parametrize("kind", [list, tuple, deque])
def test_tensors_in_sequences_are_found_and_changed(kind: Any) -> None:
    inputs = map_tensors(((kind([torch.ones(2), torch.zeros(3)]),), {}), lambda _, leaf: leaf + 1)
    found = tensors_by_path(inputs)
    assert [leaf.tolist() for leaf in found.values()] == [[2.0, 2.0], [1.0, 1.0, 1.0]]
    assert type(inputs[0][0]) is kind


def test_tensors_that_are_not_dense_keep_their_layout() -> None:
    quantized = torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.quint8)
    kept: Inputs = ((quantized, torch.eye(3).to_sparse(), torch.tensor(3), torch.ones(1)), {})
    assert change_layout(kept) is None
    assert resample_numbers(kept) is None


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=4))
def test_whole_numbers_between_calls_are_of_their_own_row(rows: list[list[int]]) -> None:
    made = resample_numbers(((torch.tensor(rows), torch.tensor([True, False])), {}))
    drawn = made[0][0].tolist() if made is not None else rows
    assert all(set(found) <= set(row) for row, found in zip(rows, drawn, strict=True))


class Counted(nn.Module):
    """Gives a size and how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> tuple[Tensor, int, int]:
        self.calls += 1
        return x * 2, x.shape[0] * 2, self.calls


class Spectrum(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        return torch.fft.rfft(x.real).conj(), x.shape[0]


class Turned(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (x * 1j).conj(), x.abs() + 1


def known_sets(module: nn.Module, *args: Tensor) -> dict[str, InputSet]:
    return {one.kind: one for one in cure_inputs(ExportCall(module=module, args=args))}


def answered(one: InputSet, *outputs: Any) -> Any:
    """How these outputs, one for each call, agree with eager's."""
    results = [CallResult(output=output, after=call, buffers={}) for output, call in zip(outputs, one.calls)]
    return compare_calls(one, results, tensors=True)


def test_numbers_that_a_program_gives_are_compared_like_its_tensors() -> None:
    sets, x = known_sets(Counted(), torch.randn(3, 4)), torch.randn(3, 4)
    program = torch.export.export(Counted(), (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)).module()
    rows = {kind: compare_calls(one, run_calls(program, one.calls), tensors=True) for kind, one in sets.items()}
    assert rows["example"].holds
    assert rows["called_again"].trouble == "call 2 of 3 output 2 is 1, and eager gives 2: eager keeps state"
    assert rows["others_between"].trouble == "call 2 of 3 output 2 is 1, and eager gives 2"


def test_a_file_gives_sizes_as_tensors_and_complex_numbers_as_pairs() -> None:
    one = known_sets(Spectrum(), torch.randn(3, 8, dtype=torch.complex64))["example"]
    spectrum, size = one.results[0].output
    pairs = torch.view_as_real(spectrum.resolve_conj())
    row = answered(one, [pairs, torch.tensor(size)])
    assert row.holds
    assert row.note == "the file gives complex numbers as pairs of real ones"
    assert not answered(one, [pairs, torch.tensor(size + 1)]).holds
    assert not answered(one, [pairs + 1, torch.tensor(size)]).holds
    assert not answered(one, [pairs.flip(-1), torch.tensor(size)]).holds


@pytest.mark.slow
def test_a_file_of_complex_numbers_is_fed_with_pairs(tmp_path: Path) -> None:
    module, x = Turned(), torch.randn(3, 8, dtype=torch.complex64)
    program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    reader = copy.copy(program)
    translate(program).made.save(str(tmp_path / "spectrum.onnx"))
    session = OnnxSession(tmp_path / "spectrum.onnx")
    for one in known_sets(module, x).values():
        answers = [session.run(flat_inputs(reader, *call)) for call in one.calls]
        assert answered(one, *answers).holds


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8])
def test_whole_numbers_of_one_byte_are_drawn_as_such(dtype: torch.dtype) -> None:
    """Of the dtypes of one byte, the float8 ones alone are drawn in float32."""
    seen: list[torch.dtype] = []

    def draw(given: Tensor) -> Tensor:
        seen.append(given.dtype)
        return given

    write(torch.ones(3, dtype=dtype), draw)
    assert seen == [dtype]


class Endless(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        while x.sum() > 1:
            x = x * 0.5 if x[0] < 100 else x * 1.0
        return x


class Stubborn(nn.Module):
    """Its code catches whatever ends it, three times."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            try:
                while x[0] > 100:
                    x = x * 1.0
            except BaseException:
                continue
        return x


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Endless, pytest.param(Stubborn, marks=pytest.mark.long)])
def test_inputs_with_which_eager_comes_to_no_end_are_left_out(kind: type[nn.Module]) -> None:
    module = kind()
    run_calls(module, [((torch.ones(3),), {})])
    assert run_in_eager(module, [((torch.full((3,), 200.0),), {})]) is None
    assert run_in_eager(module, [((torch.ones(3),), {})]) is not None


def test_a_copy_of_what_a_graph_of_gradients_made_records_gradients_as_it_does() -> None:
    made = torch.ones(3, requires_grad=True) * 2
    (copied, part), _ = copy_inputs(((made, made[:2]), {}))
    assert part.data_ptr() == copied.data_ptr()
    assert torch.equal(copied, made)
    assert (copied.requires_grad, copied.data_ptr() == made.data_ptr()) == (True, False)


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_are_compared_by_their_parts(layout: torch.layout) -> None:
    def nested(*rows: int, value: float = 1.0) -> Tensor:
        return torch.nested.nested_tensor([torch.full((one, 4), value) for one in rows], layout=layout)

    assert same_values(nested(2, 3), nested(2, 3))
    assert not same_values(nested(2, 3), nested(3, 2))
    assert not same_values(nested(2, 3), nested(2, 3, value=2.0))
    assert not same_values(nested(2, 3), torch.ones(5, 4))
    assert as_strided(nested(2, 3)).shape == (20,)


class TakesOnes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert bool((x == 1).all()), "other values"
        return x


def test_where_a_call_between_two_others_is_refused_the_set_says_so() -> None:
    """It was told as the example, before and after another set, which the program takes."""
    call = ExportCall(module=nn.Identity(), args=(torch.ones(7),))
    rows = {one.kind: compare_set(TakesOnes(), call, one) for one in cure_inputs(call)}
    assert {kind for kind, row in rows.items() if row.refused} == {"values", "others_between"}
    assert rows["others_between"].inputs == "7, before and after another set (in the call between)"
