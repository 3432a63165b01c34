"""What follows from whole numbers alone is found, becomes an input, and is computed again for other inputs."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

import hoisted_models
from exportdoctor.export.shims_module import ModuleHeader, shims_module
from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from exportdoctor.shims.export_call import MADE_INPUTS
from exportdoctor.shims.rules.hoisting.call_stand_in import stand_in
from exportdoctor.shims.rules.hoisting.clean_call_search import find_hoisted_calls
from exportdoctor.shims.rules.hoisting.clean_calls import record_calls
from exportdoctor.shims.rules.hoisting.hoisted_results import HoistedCall
from hoisted_models import (
    FREE,
    MADE,
    OPERATIONS,
    READS,
    WAYS,
    Applied,
    AppliedByName,
    ByAttribute,
    ByContents,
    BySetting,
    BySize,
    Counting,
    Cropped,
    Deep,
    Dirty,
    Drawn,
    Echo,
    Embedded,
    Flagged,
    Growing,
    Hiding,
    InLoop,
    Listed,
    Looping,
    Mixed,
    NotedWhereShort,
    Noting,
    OfLists,
    Padded,
    Reshaped,
    Routed,
    ShortOnly,
    Sized,
    Split,
    Tower,
    Twice,
    Typed,
    Wrapped,
    as_index,
    by_class,
    by_pattern,
    call_of,
    halves,
    lengths,
    make_local,
    of_lists,
    of_width,
    order_of,
    other_copies,
    pair_of_images,
    pairs,
    resized,
    several,
    taken_apart,
    written_copies,
)
from shim_cases import CASES, EncoderOfMethods, grids


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "inputs", "shapes", "shim"),
    [
        (EncoderOfMethods, grids((4, 4), (4, 6), (6, 2)), (FREE, None), "hoist"),
        (Tower, grids((4, 4), (4, 6), (6, 2)), (FREE, None), "hoist:order_of"),
        (Wrapped, halves((4, 4), (4, 6), (6, 2)), (FREE, None), "hoist"),
        (Wrapped, halves((4, 4), (4, 6), (6, 2)), (FREE, None), "hoist:order_of"),
        (Twice, pairs((4, 6), (4, 4), (6, 2)), (FREE, None, None), "hoist"),
        (Sized, several(2, 3, 5), (None, FREE), "hoist"),
        (Hiding, grids((4, 4), (4, 6), (6, 2)), (FREE, None), "hoist"),
        (make_local, grids((4, 4), (4, 6), (6, 2)), (FREE, None), "hoist"),
        (Padded, lengths((3, 5), (2, 7), (9, 9)), (None, None), "hoist-numbers"),
        (Cropped, lengths((3, 4), (2, 3), (4, 3)), (None, None), "hoist-numbers"),
        (Typed, lengths((3, 4), (2, 3), (4, 3)), (None, None), "hoist-numbers"),
        (Reshaped, grids((4, 4), (4, 6), (6, 2)), (FREE, None), "hoist-numbers"),
        (Split, pair_of_images((2, 3, 4, 2), (3, 3, 2, 2), (5, 1, 2, 6)), (FREE, None), "hoist-numbers"),
        (Listed, grids((4, 4), (4, 6), (6, 2)), (FREE, None), "hoist-numbers"),
    ],
)
def test_the_program_takes_what_is_hoisted_and_answers_as_eager(
    make: Callable[[], nn.Module], inputs: list[Any], shapes: Any, shim: str
) -> None:
    """The last of the inputs is one that the export has not seen."""
    torch.manual_seed(0)
    call = call_of(make(), inputs, shapes)
    with pytest.raises(Exception):  # noqa: B017  (what torch says depends on the model)
        export_program(call)
    code = order_of.__code__
    with apply_shims([find(shim)], call) as changed:
        program = export_program(changed).module()
    assert order_of.__code__ is code
    for row in inputs:
        args, kwargs = changed.convert((row, {}))
        torch.testing.assert_close(program(*args, **kwargs), call.module(*row))


@pytest.mark.parametrize(("make", "shim"), [(Padded, "hoist-numbers"), (Cropped, "hoist-numbers"), (Sized, "hoist")])
def test_what_is_passed_in_may_have_other_sizes_where_the_call_says_nothing_of_sizes(
    make: Callable[[], nn.Module], shim: str
) -> None:
    inputs = lengths((3, 4), (2, 3), (5, 3))
    if make is Sized:
        inputs = several(2, 2)
        inputs[1][1].add_(1)
    call = ExportCall(module=make().eval(), args=inputs[0])
    with apply_shims([find(shim)], call) as changed:
        program = export_program(changed).module()
    for row in inputs:
        args, kwargs = changed.convert((row, {}))
        torch.testing.assert_close(program(*args, **kwargs), call.module(*row))


def test_it_does_what_the_named_shims_do() -> None:
    for name in ("precompute-grid", "precompute-position-ids"):
        case = CASES[name]
        call = case.call()
        with apply_shims([find("hoist")], call) as changed:
            program = export_program(changed).module()
        for args, kwargs in case.others:
            given_args, given = changed.convert((args, kwargs))
            torch.testing.assert_close(program(*given_args, **given), call.module(*args, **kwargs))


@pytest.mark.parametrize("make", [Mixed, Looping])
def test_a_number_that_is_no_size_is_not_passed_in_as_one(make: Callable[[], nn.Module]) -> None:
    inputs = [(torch.randn(9, 4), torch.tensor([count])) for count in (2, 3, 5)]
    call = call_of(make(), inputs, (None, None))
    with pytest.raises(Exception, match=r"no number is read|ata-dependent|Constraints violated|specialized"):  # noqa: SIM117
        with apply_shims([find("hoist-numbers")], call) as changed:
            export_program(changed)


@pytest.mark.parametrize("which", ["values", "chance", "writing", "holder", *WAYS, *READS])
def test_what_depends_on_more_than_whole_numbers_is_not_hoisted(which: str) -> None:
    inputs = [(torch.randn(3), torch.tensor([[1, 4, 4]])), (torch.randn(5), torch.tensor([[1, 6, 4]])), ()]
    with pytest.raises(NotApplicable), apply_shims([find("hoist")], call_of(Dirty(which), inputs, (FREE, None))):
        pass


def test_a_call_after_others_that_values_decide_on_is_hoisted() -> None:
    x, grid = torch.randn(5), torch.tensor([[1, 4, 4]])
    call = ExportCall(module=Routed(), args=(x, grid), more_inputs=(((torch.randn(5), grid + 2), {}),))
    with apply_shims([find("hoist")], call) as changed:
        program = export_program(changed).module()
        torch.testing.assert_close(program(*changed.args, **changed.kwargs), call.module(x, grid))


@pytest.mark.parametrize("rest", ["written", "noted"])
def test_what_follows_from_weights_and_whole_numbers_is_hoisted(rest: str) -> None:
    call, inputs = resized(rest)
    other = torch.randn(3, 12, 3), torch.tensor([[1, 1], [2, 6], [4, 3]])
    with apply_shims([find("hoist")], call) as changed:
        program = export_program(changed).module()
    for row in (*inputs, other):
        args, kwargs = changed.convert((row, {}))
        torch.testing.assert_close(program(*args, **kwargs), call.module(*row), rtol=0, atol=0)


@pytest.mark.parametrize("rest", ["left", "zeroed where large", "bounded", "sign"])
def test_what_follows_from_memory_without_values_is_not_hoisted(rest: str) -> None:
    with pytest.raises(NotApplicable):
        find_hoisted_calls(resized(rest)[0], "")


def test_what_the_model_computes_of_token_ids_by_its_weights_is_not_hoisted() -> None:
    inputs = [(torch.randint(0, 9, (2, 5)), torch.tensor(lengths)) for lengths in ([3, 2], [4, 1])]
    with pytest.raises(NotApplicable):
        find_hoisted_calls(call_of(Embedded(), inputs, ({0: Dim.AUTO}, {0: Dim.AUTO})), "")


def test_weights_are_hoisted_only_where_nothing_follows_from_whole_numbers_alone() -> None:
    inputs = [(torch.randn(3), torch.tensor([[1, height, 4]])) for height in (4, 6)]
    (only,) = find_hoisted_calls(call_of(Dirty("parameter"), inputs, (FREE, None)), "")
    assert only.title == "by_parameter"

    class Both(Dirty):
        def forward(self, x: Tensor, grid: Tensor) -> Tensor:
            return super().forward(x, grid) + order_of(grid).sum()

    (only,) = find_hoisted_calls(call_of(Both("parameter"), inputs, (FREE, None)), "")
    assert only.title == "order_of"


def test_a_truth_value_is_asserted_by_the_program() -> None:
    inputs = [(torch.randn(9, 2), torch.tensor([[1, high, 4]])) for high in (2, 4, 8)]
    call = call_of(Flagged(), inputs, (None, None))
    with apply_shims([find("hoist")], call) as changed:
        program = export_program(changed).module()
    args, kwargs = changed.convert((inputs[0], {}))
    torch.testing.assert_close(program(*args, **kwargs), call.module(*inputs[0]))
    args, kwargs = changed.convert((inputs[-1], {}))
    with pytest.raises(Exception, match=r"is not False|Guard|shape|Expected"):
        program(*args, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "inputs", "shim"),
    [
        (Tower, grids((4, 4), (4, 6), (6, 2)), "hoist"),
        (Sized, several(2, 3, 5), "hoist"),
        (InLoop, grids((4, 4), (4, 6), (6, 2)), "hoist"),
        (Reshaped, grids((4, 4), (4, 6), (6, 2)), "hoist-numbers"),
    ],
)
def test_the_conversion_function_stands_in_the_file_of_the_shims(
    make: Callable[[], nn.Module], inputs: list[Any], shim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sees one set of inputs, and makes of them what the program takes."""
    text = shims_module([find(shim)], ModuleHeader(title="model", part="default", made_by="a test", versions={}))
    (tmp_path / "shims_for_model.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shims_for_model", raising=False)
    cure: Any = importlib.import_module("shims_for_model")
    assert cure.is_user_file(str(tmp_path / "model.py")), "what lies beside the file is the user's code"
    module = make().eval()
    shapes = (None, FREE) if make is Sized else (FREE, None)
    more: list[Any] = [(row, {}) for row in inputs[1:-1]]
    program = cure.export(module, inputs[0], dynamic_shapes=shapes, more_inputs=more).module()
    for row in inputs:
        args, kwargs = cure.convert(module, row)
        torch.testing.assert_close(program(*args, **kwargs), module(*row))
    with pytest.raises(cure.NotApplicable):
        cure.convert(nn.Linear(2, 2), (torch.ones(1, 2),))


def mask_bias(mask: torch.Tensor) -> torch.Tensor | None:
    """What a library adds to scores: nothing where it sees that it need not, which it cannot while it is traced."""
    if not torch.compiler.is_compiling() and bool(mask.all()):
        return None
    return torch.where(mask > 0, 0.0, -1.0)


def places_of(table: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    return torch.stack([table[: int(size)].sum() for size in sizes])


class WithPadding(nn.Module):
    """With padding another call reads values, too, whose arguments are inputs."""

    def forward(self, x: torch.Tensor, sizes: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        bias = mask_bias(mask)
        made = x + places_of(torch.arange(9.0), sizes)[:, None]
        return made if bias is None else made + bias


@pytest.mark.slow
def test_inputs_are_converted_for_the_program_that_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: of batches with padding the file of the shims made inputs of another program, and each was refused."""
    rows = [
        (torch.randn(2, 3), torch.tensor([4, 2]), torch.ones(2, 3).long()),
        (torch.randn(3, 3), torch.tensor([1, 7, 3]), torch.ones(3, 3).long()),
        (torch.randn(3, 3), torch.tensor([5, 2, 8]), torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]])),
    ]
    module, shapes = WithPadding(), (FREE, FREE, FREE)
    more: list[Any] = [(rows[1], {})]
    call = ExportCall(module=module, args=rows[0], dynamic_shapes=shapes, more_inputs=tuple(more))
    with apply_shims([find("hoist")], call) as changed:
        made, facts = tuple(sorted(changed.made)), changed.all_facts
        program = export_program(changed).module()
    about = ModuleHeader(title="model", part="default", made_by="a test", versions={}, facts=(facts,))
    (tmp_path / "shims_for_padded.py").write_text(shims_module([find("hoist")], about))
    monkeypatch.syspath_prepend(tmp_path)
    cure: Any = importlib.import_module("shims_for_padded")
    for row in rows:
        args, kwargs = cure.convert(module, row)
        torch.testing.assert_close(program(*args, **kwargs), module(*row))
        here = changed.convert((row, {}))[1]
        assert {name: kwargs[name].tolist() for name in made} == {name: here[name].tolist() for name in made}
    other = ModuleHeader(
        title="model",
        part="default",
        made_by="a test",
        versions={},
        facts=({**facts, MADE_INPUTS: f"{facts[MADE_INPUTS]}, more__0_0"},),
    )
    (tmp_path / "shims_for_others.py").write_text(shims_module([find("hoist")], other))
    with pytest.raises(ValueError, match=r"made for one value of inputs that are computed, .*more__0_0"):
        importlib.import_module("shims_for_others").convert(module, rows[0])


def by_length(lengths: torch.Tensor) -> dict[int, torch.Tensor]:
    found: dict[int, list[int]] = {}
    for row, length in enumerate(lengths.tolist()):
        found.setdefault(length, []).append(row)
    return {length: torch.tensor(rows) for length, rows in found.items()}


class Buckets(nn.Module):
    """The lengths themselves, the keys, are constants of the program."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(x.shape[0], x.shape[2])
        for length, rows in by_length(lengths).items():
            out[rows] = x[rows, :length].mean(1)
        return out


def first_empty(sizes: torch.Tensor) -> tuple[torch.Tensor, int]:
    lengths = sizes.tolist()
    return torch.tensor(lengths), lengths.index(0) if 0 in lengths else -1


class Places(nn.Module):
    """A number that is negative for the example is a constant; others would be sizes."""

    def forward(self, x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        lengths, place = first_empty(sizes)
        return x[: len(lengths)] * lengths[:, None] + place


class Towers(nn.Module):
    """Which sizes there are is frozen, as one method is called in two ways."""

    def forward(self, x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        return x + torch.cat([torch.arange(int(size)) for size in sizes])[:, None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "shim", "example", "others", "refused"),
    [
        (Buckets(), "hoist", (torch.randn(3, 6, 2), [3, 5, 3]), [[3, 3, 5]], [[5, 3, 5], [2, 4, 2], [6, 6, 6]]),
        (Places(), "hoist", (torch.randn(5, 2), [4, 5]), [[2, 9]], [[0, 3], [3, 0]]),
        (Towers(), "frozen-values", (torch.randn(7, 2), [4, 3]), [[4, 3]], [[3, 4], [1, 6], [7]]),
    ],
    ids=["structure", "number", "values"],
)
def test_the_file_of_the_shims_refuses_what_was_constant_at_the_export(
    module: nn.Module,
    shim: str,
    example: tuple[torch.Tensor, list[int]],
    others: list[list[int]],
    refused: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: it searched anew for each input, found other constants, and the program answered for the example's."""
    x, given = example[0], torch.tensor(example[1])
    call = ExportCall(module=module, args=(x, given), dynamic_shapes=None)
    with apply_shims([find(shim)], call) as changed:
        facts, program = changed.all_facts, export_program(changed).module()
    about = ModuleHeader(title="model", part="default", made_by="a test", versions={}, facts=(facts,))
    name = f"shims_for_{type(module).__name__}"
    (tmp_path / f"{name}.py").write_text(shims_module([find(shim)], about))
    monkeypatch.syspath_prepend(tmp_path)
    cure: Any = importlib.import_module(name)
    for numbers in (example[1], *others):
        row = torch.randn_like(x), torch.tensor(numbers)
        args, kwargs = cure.convert(module, row)
        torch.testing.assert_close(program(*args, **kwargs), module(*row))
    for numbers in refused:
        with pytest.raises(ValueError, match="the program was made for one value of "):
            cure.convert(module, (x, torch.tensor(numbers)))


@pytest.mark.slow
def test_a_constant_number_is_asserted_of_a_tensor_without_elements_too() -> None:
    """Story: what all of its elements are held for one that has none."""
    call = ExportCall(module=Places(), args=(torch.randn(5, 2), torch.tensor([4, 5])))
    with apply_shims([find("hoist")], call) as changed:
        program = export_program(changed).module(check_guards=False)
    kwargs = changed.convert(((call.args[0], torch.tensor([2, 9])), {}))[1]
    torch.testing.assert_close(program(**kwargs), Places()(call.args[0], torch.tensor([2, 9])))
    name = next(one for one, value in kwargs.items() if one in changed.made and value.numel() == 1)
    with pytest.raises(Exception, match=r"shape|is not"):
        program(**{**kwargs, name: torch.empty(3, 0)})


class Image(nn.Module):
    def places(self, sizes: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.arange(int(size)) for size in sizes])

    def forward(self, x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        return x + self.places(sizes)[:, None]


class Sound(nn.Module):
    def places(self, sizes: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.arange(int(size)).flip(0) * 100 for size in sizes])

    def forward(self, x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        return x * 2 + self.places(sizes)[:, None]


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.sound = Image(), Sound()

    def forward(self, x: torch.Tensor, sizes: torch.Tensor, y: torch.Tensor, spans: torch.Tensor) -> Any:
        return self.image(x, sizes), self.sound(y, spans)


@pytest.mark.slow
@pytest.mark.parametrize("shims", [["hoist"], ["hoist:Image.places", "hoist:Sound.places"]])
def test_functions_of_one_last_name_make_inputs_of_different_names(
    shims: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def row(sizes: list[int], spans: list[int]) -> tuple[torch.Tensor, ...]:
        rows, others = torch.randn(sum(sizes), 4), torch.randn(sum(spans), 4)
        return rows, torch.tensor(sizes), others, torch.tensor(spans)

    first, others = row([4, 3], [2, 7]), [row([1, 2, 2], [3, 5]), row([6], [4, 1, 4])]
    chosen = [find(one) for one in shims]
    more: list[Any] = [(others[0], {})]
    call = ExportCall(module=Both(), args=first, dynamic_shapes=(FREE, FREE, FREE, FREE), more_inputs=tuple(more))
    with apply_shims(chosen, call) as changed:
        facts, program = changed.all_facts, export_program(changed).module()
    assert len(changed.made) == 2
    about = ModuleHeader(title="model", part="default", made_by="a test", versions={}, facts=(facts,))
    name = f"shims_for_both_{len(shims)}"
    (tmp_path / f"{name}.py").write_text(shims_module(chosen, about))
    monkeypatch.syspath_prepend(tmp_path)
    cure: Any = importlib.import_module(name)
    for inputs in (first, *others):
        for args, kwargs in (changed.convert((inputs, {})), cure.convert(call.module, inputs)):
            torch.testing.assert_close(program(*args, **kwargs), call.module(*inputs))


@pytest.mark.parametrize("spec", [{0: Dim.DYNAMIC}, (Dim("n"),), [Dim.AUTO]])
def test_an_input_whose_size_may_differ_is_not_frozen(spec: Any) -> None:
    """Story: of `{0: Dim.DYNAMIC}` the key was asked, which is zero."""
    sizes = torch.tensor([4, 3])
    call = ExportCall(module=Towers(), args=(torch.randn(7, 2), sizes), dynamic_shapes=(None, spec))
    with pytest.raises(NotApplicable, match="no small integer input"), apply_shims([find("frozen-values")], call):
        pass


@pytest.mark.long
@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=5), st.booleans())
def test_a_result_that_is_called_clean_is_the_same_whatever_the_floats_are(steps: list[str], start: bool) -> None:
    """The law behind the shim: redrawn inputs and parameters change no clean result."""
    torch.manual_seed(len(steps))
    module, ids = Drawn(steps, start), torch.tensor([3, 0, -2, 5])
    rows = []
    for seed in range(3):
        with torch.no_grad():
            module.table.copy_(torch.randn(4, generator=torch.Generator().manual_seed(seed)))
        x = torch.randn(4, generator=torch.Generator().manual_seed(9 + seed))
        records, _ = record_calls(module, ((x, ids), {}))
        rows.append([one for one in records if one.code.co_name == "identity"])
    for calls in zip(*rows, strict=True):
        if calls[0].clean:
            assert all(torch.equal(calls[0].result, other.result) for other in calls)


@pytest.mark.parametrize(
    ("module", "called"), [(Applied(), ["increase", "increase"]), (AppliedByName(), ["far", "far"])], ids=repr
)
def test_a_function_that_torch_is_given_and_calls_is_recorded(module: nn.Module, called: list[str]) -> None:
    """What runs inside of a torch function is not watched otherwise."""
    records, _ = record_calls(module, ((torch.randn(2), torch.tensor([3, 0])), {}))
    own = hoisted_models.__file__  # hypothesis hears of collections
    mine = [one.code.co_name for one in records if one.code.co_filename == own]
    assert mine == ["forward", *called, "identity"]


def test_what_a_model_computes_is_not_held_in_memory() -> None:
    MADE.clear()
    records, _ = record_calls(Deep(), ((torch.randn(2), torch.tensor([3, 0])), {}))
    assert [one.expired() for one in MADE] == [True] * 9
    clean = [one for one in records if one.clean and one.code.co_filename == hoisted_models.__file__]
    assert len(clean) == 9  # of `identity`, whose results are needed


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("use", [written_copies, other_copies, by_class, by_pattern, taken_apart, as_index])
def test_a_hoisted_list_means_the_same_to_the_program(use: Any) -> None:
    call, inputs = of_lists(use)
    with apply_shims([find("hoist")], call) as changed:
        program = export_program(changed).module()
    for row in inputs:
        args, kwargs = changed.convert((row, {}))
        torch.testing.assert_close(program(*args, **kwargs), call.module(*row))


@pytest.mark.parametrize(
    "use",
    [
        lambda x, given, more: x + torch.tensor(given + more).float().mean(),
        lambda x, given, more: x + torch.tensor([1, 2] + more).float().mean(),  # noqa: RUF005
        lambda x, given, more: x + torch.tensor(given * 2).float().mean(),
        lambda x, given, more: x + torch.tensor(given[1:]).float().mean(),
        lambda x, given, more: x + torch.tensor([given, more]).float().mean(),
        lambda x, given, more: x * 2 if given == more else x,
        lambda x, given, more: x * 2 if 4 in given else x,
        lambda x, given, more: x * 2 if given.append(3) is None else x,
    ],
)
def test_what_means_something_else_of_a_tensor_than_of_a_list_is_refused(use: Any) -> None:
    call, _ = of_lists(use)
    with pytest.raises(NotApplicable, match="a hoisted list"), apply_shims([find("hoist")], call) as changed:
        export_program(changed)


def test_the_sizes_of_a_split_are_a_hoisted_list() -> None:
    """How many there are is fixed, as in eager's code that follows."""

    def split(x: Tensor, given: Any, more: Any) -> Tensor:
        first, second = torch.split(x[:, :1].expand(12, 10).T, given)
        return first.sum() * 2 + second.sum()

    call = ExportCall(module=OfLists(split).eval(), args=(torch.randn(12, 4), torch.tensor([2, 3]), torch.tensor([1])))
    with apply_shims([find("hoist")], call) as changed:
        program = export_program(changed).module()
    for row in ([2, 3], [1, 4]):
        given = (call.args[0], torch.tensor(row), call.args[2])
        args, kwargs = changed.convert((given, {}))
        torch.testing.assert_close(program(*args, **kwargs), call.module(*given))


@pytest.mark.slow
@pytest.mark.parametrize("make", [BySize, ByAttribute, ByContents, Counting, Growing])
def test_what_forward_did_before_the_call_is_part_of_the_conversion(make: Callable[[], nn.Module]) -> None:
    """All known inputs have one width, and the others another; each program is called three times in a row."""
    module = make().eval()
    eager = copy.deepcopy(module)  # the program writes into the buffers of the module that it was made of
    free = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}
    more: Any = ((of_width(4, 2, 4, 1), {}),)
    call = ExportCall(module=module, args=of_width(4, 2, 3), dynamic_shapes=(free, FREE), more_inputs=more)
    with apply_shims([find("hoist")], call) as changed:
        program = export_program(changed).module()
    for row in (of_width(4, 2, 3), of_width(8, 2, 5), of_width(8, 1, 4, 1)):
        args, kwargs = changed.convert((row, {}))
        torch.testing.assert_close(program(*args, **kwargs), eager(*row))


def test_a_result_that_is_an_older_tensor_is_not_hoisted() -> None:
    call = ExportCall(module=Echo(), args=of_width(4, 2, 3), dynamic_shapes=(FREE, FREE))
    with pytest.raises(NotApplicable), apply_shims([find("hoist")], call):
        pass


@pytest.mark.parametrize(("make", "alone"), [(BySetting, True), (BySize, False), (ByAttribute, False)])
def test_a_call_is_made_by_itself_only_if_forward_has_no_part_in_it(make: Callable[[], nn.Module], alone: bool) -> None:
    call = ExportCall(module=make(), args=of_width(4, 2, 3))
    assert {one.arguments is not None for one in find_hoisted_calls(call, "")} == {alone}


def test_known_inputs_are_converted_once_and_again_after_they_were_changed() -> None:
    seen: list[list[int]] = []
    first, second = grids((4, 4), (2, 6))
    call = ExportCall(
        module=Noting(seen.append).eval(), args=first, more_inputs=((second, {}),), dynamic_shapes=(FREE, None)
    )
    with apply_shims([find("hoist")], call) as changed:
        assert seen == [first[1].tolist(), second[1].tolist()] * 2  # once recorded, once converted
        before = changed.convert((first, {}))[1]
        first[1].copy_(torch.tensor([[1, 8, 2]]))
        after = changed.convert((first, {}))[1]
    name = next(name for name in after if name.startswith("order_of"))
    assert torch.equal(changed.kwargs[name], before[name])
    assert torch.equal(after[name], order_of(first[1]))
    assert not torch.equal(after[name], before[name])


def test_a_stand_in_takes_what_the_function_takes_now() -> None:
    def first(grid: Any) -> str:
        return "one"

    def other(grid: Any, more: Any) -> str:
        return "other"

    one: Any = first

    call = HoistedCall(
        title="one", number=0, layout=None, leaves=(), example=(), function=one, arguments=None, recorded=()
    )

    def answered(*args: Any) -> tuple[Any, ...]:
        with stand_in([call], lambda _, compute: (compute(), "answered")):
            return one(*args)

    assert [answered(0), answered(0)] == [("one", "answered")] * 2
    one.__code__ = other.__code__
    assert [answered(0, 1), answered(0, 1)] == [("other", "answered")] * 2
    with stand_in([call], lambda _, compute: (compute(), "outer")) as start:
        assert answered(0, 1) == (("other", "outer"), "answered")
        start()
        assert one(0, 1) == ("other", "outer")


@pytest.mark.parametrize("build", [ShortOnly, NotedWhereShort])
def test_what_names_hold_is_what_the_example_shows(build: type[nn.Module]) -> None:
    """Story: noted in forwards of other inputs alone, no statement could be moved, and a cure that fixes sizes won."""

    def inputs(*positions: int) -> tuple[Tensor, Tensor]:
        return torch.ones(len(positions), 2), torch.tensor(positions)

    module, free = build(), {0: Dim.DYNAMIC}
    more: Any = ((inputs(9, 2, 4, 4, 1), {}),)
    call = ExportCall(module=module, args=inputs(2, 5, 1), dynamic_shapes=(free, free), more_inputs=more)
    with apply_shims([find("hoist")], call) as changed:
        program = export_program(changed).module()
    for other in (inputs(3, 4), inputs(4, 2, 3, 1, 7)):
        args, kwargs = changed.convert((other, {}))
        assert torch.equal(program(*args, **kwargs), module(*other))
