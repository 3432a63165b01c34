"""Operators that ONNX does not have: what stands in their place computes the same, and is translated."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from decompositions import Computes, Operator, assert_same_results, translate
from exportdoctor.cli import main
from exportdoctor.report import wording
from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from exportdoctor.shims.own.onnx_decompositions import with_operators_of_onnx
from exportdoctor.store.runs import find_run, read_run

CHOICE = """
import torch
class Choice(torch.nn.Module):
    def forward(self, c, d):
        return torch.where(c, d, ~c)
def build():
    return Choice(), (torch.ones(3, dtype=torch.bool), torch.zeros(3, dtype=torch.bool))
"""
FIRST = torch.zeros(4, 2, dtype=torch.int64)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **how: bool) -> Tensor:
    """Of which the first row attends to nothing."""
    none: Any = False if mask.dtype is torch.bool else -math.inf
    mask = torch.cat([torch.full_like(mask[:1], none), mask[1:]])
    return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, **how)


def edges(x: Tensor) -> Tensor:
    return x.sort(-1).values


OPERATORS: dict[str, Operator] = {
    "searchsorted": lambda x, y: (torch.searchsorted(edges(x), y), torch.searchsorted(edges(x), y, right=True)),
    "searchsorted by": lambda x, y: torch.searchsorted(x, y, sorter=x.argsort(-1), side="right", out_int32=True),
    "searchsorted in one": lambda x, y: (torch.searchsorted(edges(x[0]), y), torch.searchsorted(edges(y[0]), 0.25)),
    "cdist": lambda x, y: tuple(torch.cdist(x, y, p=p) for p in (0.0, 1.0, 2.0, 3.0, math.inf)),
    "cdist of batches": lambda x, y: torch.cdist(x.unsqueeze(0), torch.stack((y, x, y))),
    "cdist of many": lambda x, y: torch.cdist(x.repeat(8, 1), y),
    "hypot": torch.hypot,
    "cumprod": lambda x, y: (x.cumprod(0), y.cumprod(-1, dtype=torch.float64), (x > 0).long().cumprod(1)),
    "cummax": lambda x, y: (*x.cummax(0), *y.cummax(-1), *(x > 0).cummax(1), *(y * 2).long().cummax(0)),
    "cummin": lambda x, y: (*x.cummin(-1), *y.cummin(0), *(x * 2).long().cummin(1), *x.sum().cummin(0)),
    "cummax of NaN": lambda x, y: (*torch.where(x > 0.5, math.nan, x).cummax(-1),
                                 *torch.where(y > 0, y, -math.inf).cummax(0)),
    "cummin of NaN": lambda x, y: (*torch.where(x > 0.5, math.nan, x).cummin(-1),
                                 *torch.where(y > 0, y, math.inf).cummin(0)),
    "erfinv": lambda x, y: (x.tanh().erfinv(), (y / y.abs().max()).erfinv(), (x * 2).erfinv(), (x > 0).erfinv()),
    "copysign": lambda x, y: (x.copysign(y), x.copysign(-0.0), x.copysign(y.clamp(-1, 1) * 0),
                              (x * 9).long().copysign(y)),
    "cumprod of large whole numbers": lambda x, y: ((x * 9).long().repeat(1, 7) * 2 + 1).cumprod(-1),
    "cumprod of whole numbers": lambda x, y: tuple(
        (x * 9000).long().cumprod(0, dtype=one) for one in (torch.int32, torch.int8, None)
    ),
    "scalars": lambda x, y: (x.sum().cumprod(0), *x.sum().median(0), *y.sum().kthvalue(1, dim=0)),
    "kthvalue": lambda x, y: (*x.kthvalue(2), *y.kthvalue(3, dim=0, keepdim=True)),
    "median": lambda x, y: (x.median(), *y.median(0), *x.median(-1, keepdim=True), (x * 9).long().median()),
    "median of NaN": lambda x, y: (torch.where(x > 0.5, math.nan, x).median(-1).values, (x / 0 * 0).median()),
    "repeat_interleave": lambda x, y: (x.repeat_interleave(torch.tensor([1, 0, 2, 3]), 0, output_size=6),
                                       y.repeat_interleave(torch.tensor(2), 1, output_size=8),
                                       x.repeat_interleave(torch.tensor([3]), output_size=48)),
    "scatter": lambda x, y: (x.scatter_add(1, FIRST, y), x.scatter(0, FIRST[:2], y),
                             x.scatter_reduce(1, FIRST + 1, y, "amax"), y.scatter_reduce(1, FIRST, x, "sum")),
    "means": lambda x, y: (*(x.scatter_reduce(1, FIRST, y, "mean", include_self=one) for one in (True, False)),
                           (x * 9).long().scatter_reduce(0, FIRST, (y * 9).long(), "mean", include_self=False)),
    "in place": lambda x, y: (
        y.clone().scatter_reduce_(1, FIRST, x, "mean", include_self=False), x.clone().cumprod_(0),
        x.clone().copysign_(y), x.clone().hypot_(y), y.clone().scatter_add_(1, FIRST, x),
    ),
    "sort": lambda x, y: (*(x * 2).long().sort(stable=True, dim=0), *y.round().sort(stable=True, descending=True),
                          (x * 2).round().argsort(stable=True, dim=1)),
    "where of bools": lambda x, y: (torch.where(x > 0, y > 0, x < y), torch.where(x[0] > 0, y > x, x < y),
                                    torch.where(x > 0, (y > 0)[:, :1], torch.tensor(True)), torch.where(x > 0, x, y)),
    "bools in place": lambda x, y: (
        (x > 0).masked_fill_(y > 0, False), (x > 0).add_(y > 0),
        torch.where(x > 0, y > 0, False), torch.where(x > 0, True, y > 0),
    ),
    "layers of whole numbers": lambda x, y: (
        nn.functional.linear((x * 9).long(), (y * 9).long()),
        nn.functional.linear((x * 9).int()[None], (y * 9).int(), (y[0] * 9).int()),
    ),
    "sums of bools": lambda x, y: ((x > 0) + (y > 0), (x > 0) + True, (x[0] > 0) + (y > 1)),
    "addmm of whole numbers": lambda x, y: torch.addmm(
        (x[0] * 9).long(), (x * 9).long(), (y * 9).long(), alpha=-2, beta=3
    ),
    "fmax": lambda x, y: (x.fmax(y), x.fmin(y), torch.where(x > 0.5, math.nan, x).fmax(y), (x * 9).long().fmin(y)),
    "extremes": lambda x, y: (*x.aminmax(), *y.aminmax(dim=1, keepdim=True), *(x[0, 0] * 2).aminmax()),
    "filled bools": lambda x, y: ((x > 0).masked_fill(y > 0, True), (x > 0).masked_fill(y > 1, False),
                                   (x > 0).masked_fill(y > 0, 2), (x > 0).masked_fill(y > 0, 0.5),
                                   (x > 0).masked_fill(y > 0, torch.tensor(1)), (x > 0).masked_fill(y[0] > 0, 0)),
    "adaptive pools": lambda x, y: (
        *nn.functional.adaptive_max_pool2d(x[None], 2, return_indices=True),
        *nn.functional.adaptive_max_pool2d(x[None, None].expand(2, 3, 4, 4), (3, 1), return_indices=True),
        *nn.functional.adaptive_max_pool1d(y, 3, return_indices=True), nn.functional.adaptive_max_pool1d(y, 1),
        *nn.functional.adaptive_max_pool3d(x.view(1, 2, 2, 4), (1, 2, 3), return_indices=True),
        nn.functional.adaptive_avg_pool3d(x.view(1, 2, 2, 4), (1, 2, 3)),
        nn.functional.adaptive_avg_pool3d(x.view(1, 2, 2, 4), 1),
    ),
    "average pools": lambda x, y: (
        nn.functional.avg_pool2d(x[None], 2, 1, 1, False, False, 3),
        nn.functional.avg_pool2d(y[None], (2, 3), divisor_override=2), nn.functional.avg_pool2d(x[None], 2),
        nn.functional.avg_pool3d(x.view(1, 2, 2, 4), 2, 1, 1, divisor_override=-2),
    ),
    "attention of three dimensions": lambda x, y: (
        nn.functional.scaled_dot_product_attention(x[None], y[None], x[None]),
        nn.functional.scaled_dot_product_attention(x[None], y[None, :3], x[None, :3], is_causal=True),
    ),
    "attention": lambda x, y: (
        attend(x[None], y[None], x[None], x > 0.2),
        attend(x[None], y[None], y[None], torch.where(y > 0.2, x, -math.inf)),
        attend(x.view(1, 4, 2, 2), y.view(1, 2, 4, 2), x.view(1, 2, 4, 2), y.view(2, 8)[:, :4] > 0, enable_gqa=True),
    ),
}  # fmt: skip


class Values(nn.Module):
    """The floating results of a module."""

    def __init__(self, module: Callable[..., Any]) -> None:
        super().__init__()
        self.call = module

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        return [value for value in self.call(*inputs) if value.is_floating_point()]


def inputs(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 4, generator=generator), torch.randn(4, 4, generator=generator)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_what_stands_in_the_place_of_an_operator_computes_the_same(name: str) -> None:
    module = Computes(OPERATORS[name])
    program = with_operators_of_onnx(torch.export.export(module, inputs()))
    assert_same_results(program.module(), module, map(inputs, range(5)))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize(
    "name",
    [
        name
        for name in OPERATORS
        if not name.startswith(("searchsorted", "scatter", "cdist", "attention", "adaptive", "average"))
    ],
)
def test_the_ends_of_the_range_and_what_is_no_number_give_the_same(name: str, dtype: torch.dtype) -> None:
    """Found by an attack: hypot and cumprod overflowed on the way, and the index of a median was that of no NaN."""
    limits = torch.finfo(dtype)
    some = [math.nan, math.inf, -math.inf, 0.0, -0.0, limits.max / 2, -limits.max / 2, limits.tiny, 300.0, 1.0, -2.0]
    module = Computes(OPERATORS[name])
    plain = [torch.randn(4, 4, generator=torch.Generator().manual_seed(place)).to(dtype) for place in range(2)]
    program = with_operators_of_onnx(torch.export.export(module, tuple(plain))).module()
    draw = random.Random(0)
    sets = ([torch.tensor([draw.choices(some, k=4) for _ in range(4)], dtype=dtype) for _ in "xy"] for _ in range(40))
    tolerance = {"rtol": 1e-3, "atol": 1e-5} if dtype is torch.float16 else {}
    # of equal values an index may be another one
    assert_same_results(Values(program), Values(module), map(tuple, sets), **tolerance)


@pytest.mark.long
@pytest.mark.slow
def test_all_of_them_are_translated_and_run_in_onnx_runtime() -> None:
    module = Computes(*OPERATORS.values())
    run = translate(module, inputs(), "decomposed-for-onnx")
    assert_same_results(run, module, map(inputs, range(3)), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["searchsorted", "cumprod", "cummax", "cummin of NaN", "median"])
def test_sizes_stay_dynamic(name: str) -> None:
    torch.manual_seed(0)
    sizes = {0: Dim("rows", min=2), 1: Dim("width", min=2)}
    shapes = (sizes, sizes)
    module = Computes(OPERATORS[name])
    program = with_operators_of_onnx(torch.export.export(module, inputs(), dynamic_shapes=shapes))
    sets = ((torch.randn(rows, width), torch.randn(rows, width)) for rows, width in ((2, 2), (5, 3), (40, 7)))
    assert_same_results(program.module(), module, sets, rtol=1e-4, atol=1e-4)


def test_the_index_of_a_median_that_is_no_number_is_that_of_the_first() -> None:
    module = Computes(lambda x, y: (*x.median(-1), *y.median(0, keepdim=True)))
    x = torch.tensor([[1.0, math.nan, 3.0, 4.0, 5.0], [math.nan, 2.0, math.nan, math.nan, 1.0]])
    program = with_operators_of_onnx(torch.export.export(module, (x, x)))
    assert_same_results(program.module(), module, [(x, x)])


def test_what_a_mask_chooses_is_selected_by_an_index() -> None:
    module = Computes(lambda x, y: (torch.masked_select(x, x > 0.5), torch.masked_select(x, y[0] > 0)))
    program = with_operators_of_onnx(torch.export.export(module, inputs()))
    assert "masked_select" not in str(program.graph)
    assert_same_results(program.module(), module, map(inputs, range(5)))


@pytest.mark.long
@pytest.mark.slow
def test_what_onnx_runtime_does_otherwise_is_left_out() -> None:
    """ReduceProd of whole numbers is computed in float64, and TopK puts NaN anywhere."""
    operators: tuple[Operator, ...] = (
        lambda x, y: x.long().cumprod(-1),
        lambda x, y: torch.masked_select(x, x > 3),
        lambda x, y: y.kthvalue(2, dim=0).values,
        lambda x, y: torch.cdist(x, y, p=math.inf),
        lambda x, y: torch.argsort(x, dim=1, stable=True),
    )
    x = torch.full((4, 26), 5.0)
    y = torch.tensor([[1.0], [-0.0], [2.0], [math.nan]]).expand(4, 26).clone()
    module = Computes(*operators)
    run = translate(module, (torch.randint(1, 5, (4, 26)).float(), torch.randn(4, 26)), "decomposed-for-onnx")
    assert_same_results(run, module, [(x, y)], rtol=0, atol=0)


def test_of_no_values_there_is_no_extreme() -> None:
    module = Computes(lambda x, y: (*x.cummax(0), *y.cummin(1), *x.cummin(1)))
    sets = (torch.empty(0, 3), torch.empty(2, 0))
    program = with_operators_of_onnx(torch.export.export(module, sets))
    assert_same_results(program.module(), module, [sets])


def test_products_of_complex_numbers_are_left_alone() -> None:
    module = Computes(lambda x, y: (torch.view_as_real(torch.complex(x, y).cumprod(0)), x.cumprod(0)))
    program = with_operators_of_onnx(torch.export.export(module, inputs()))
    assert_same_results(program.module(), module, [inputs()])


def test_a_choice_between_other_values_is_left_alone() -> None:
    module = Computes(lambda x, y: torch.where(x > 0, x, y))
    with pytest.raises(NotApplicable, match="none of the operators"):
        with_operators_of_onnx(torch.export.export(module, inputs()))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("own_home")
def test_a_choice_between_bools_that_onnx_runtime_refuses_is_found_and_cured(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(CHOICE)
    assert main.run(["scan", f"{tmp_path}/net.py:build", "--to", "ort", "-q", "--no-alternatives"]) == 1
    report = read_run(find_run(None)).state.report()
    (part,), (finding,) = report.parts, report.findings
    assert part.prescription is not None
    assert part.prescription.shims == ("decomposed-for-onnx",)
    assert "runs in ONNX Runtime with 1 shim (exact)" in wording.cure(part)
    assert "--to onnx -o model.onnx" in wording.export_command(part, report)
    assert "In operator Where of bool, bool, bool." in wording.story(finding)
    assert not finding.known_issues, "no dtype without a kernel is bfloat16"
    assert main.run(["repro", "F1", "--probes", "10", "-q", "-o", str(tmp_path / "repro.py")]) == 0
    assert "Fails with NotImplemented: [ONNXRuntimeError]" in (tmp_path / "repro.py").read_text()
    made = read_run(find_run(None)).state.findings["F1"].repro
    assert made is not None
    assert made.verified


MEANS = """
import torch
class Means(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = torch.nn.Linear(4, 4)
    def forward(self, x, groups):
        rows = self.lift(x)
        means = torch.zeros(3, 4)
        return means.scatter_reduce(0, groups[:, None].expand(-1, 4), rows, "mean", include_self=False).tanh()

def build():
    return Means(), (torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 2, 2]))
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("own_home")
def test_an_onnx_file_of_other_numbers_is_located_cured_and_reproduced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was a failure of the root "in the call itself", for which no shim was tried and no script was written."""
    (tmp_path / "net.py").write_text(MEANS)
    assert main.run(["scan", f"{tmp_path}/net.py:build", "--to", "ort", "-q", "--no-alternatives"]) == 1
    run = find_run(None)
    report = read_run(run).state.report()
    (part,), (finding,) = report.parts, report.findings
    assert "scatter_reduce" in (finding.source or "")
    assert "the first value that differs is of aten.scatter_reduce.two" in finding.exception.message
    assert "and here it has others" in wording.why(finding)
    assert part.prescription is not None
    assert part.prescription.shims == ("decomposed-for-onnx",)
    assert "runs in ONNX Runtime with 1 shim (exact)" in wording.cure(part)
    assert "--to onnx -o model.onnx" in wording.export_command(part, report)
    capsys.readouterr()
    assert main.run(
        ["export", f"{tmp_path}/net.py:build", "--to", "onnx", "--shims", "none", "-o", f"{tmp_path}/m.onnx"]
    )
    assert "--shims decomposed-for-onnx computes aten.scatter_reduce.two by other operators" in capsys.readouterr().out
    assert main.run(["repro", "F1", "--probes", "25", "-o", str(tmp_path / "repro.py")]) == 0
    script = (tmp_path / "repro.py").read_text()
    assert "Fails with AssertionError: Tensor-likes are not close!" in script
    assert "onnxruntime" in script
    assert "\ntorch.manual_seed(0)\n" in script
    assert re.search(r"assert_close\(found, tuple\(wanted\), rtol=0, atol=\S+, equal_nan=True\)", script)
    made = read_run(run).state.findings["F1"].repro
    assert made is not None
    assert made.verified


CEILING = """
import torch
class Ceiling(torch.nn.Module):
    def forward(self, x):
        return x.sum(0) / -(-x.shape[0] // 4)

def build():
    return Ceiling(), (torch.randn(8, 3),), {}, {"x": {0: torch.export.Dim("T", min=2)}}
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("own_home")
def test_numbers_that_differ_at_other_sizes_are_found_and_cured(tmp_path: Path) -> None:
    """ONNX Runtime was asked the example alone, whose size is a multiple of four, as all known ones are."""
    (tmp_path / "net.py").write_text(CEILING)
    assert main.run(["scan", f"{tmp_path}/net.py:build", "--to", "ort", "-q", "--no-alternatives"]) == 1
    report = read_run(find_run(None)).state.report()
    (part,), (finding,) = report.parts, report.findings
    assert finding.exception.message.startswith("on inputs of 13 x 3: ")
    assert main.run(["repro", "F1", "--probes", "1", "-q", "-o", str(tmp_path / "repro.py")]) == 0
    script = (tmp_path / "repro.py").read_text()
    assert "\nargs = (torch.randn(13, 3),)\n" in script
    assert "Fails with AssertionError: Tensor-likes are not close!" in script
    assert "the first value that differs is of operator.floordiv" in finding.exception.message
    assert part.prescription is not None
    assert part.prescription.shims == ("decomposed-for-onnx",)


POOL = """
import torch
class Pool(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)

def build():
    dynamic = torch.export.Dim.DYNAMIC
    return Pool(), (torch.randn(1, 3, 8, 10),), {}, {"x": {2: dynamic, 3: dynamic}}
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("own_home")
def test_what_torch_onnx_decomposes_for_the_examples_sizes_alone_is_found_and_cured(tmp_path: Path) -> None:
    """At other sizes what torch.onnx had made of the program was asked, which is wrong there as the file is."""
    (tmp_path / "net.py").write_text(POOL)
    assert main.run(["scan", f"{tmp_path}/net.py:build", "--to", "ort", "-q", "--no-alternatives"]) == 1
    report = read_run(find_run(None)).state.report()
    (part,), (finding,) = report.parts, report.findings
    assert "what torch.onnx decomposes the program to gives other values" in finding.exception.message
    assert part.prescription is not None
    assert part.prescription.shims == ("decomposed-for-onnx",)


class Divided(nn.Module):
    """Quotients of whole numbers that may be negative, and of some that may not."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        n = x.shape[0]
        return x.sum(0) / -(-n // 4), x.sum(1) / ((3 - n) // 2 - 1), x * ((2 - n) % 3), x.sum() * (n // 3)


@pytest.mark.slow
def test_quotients_are_rounded_down_in_onnx_too() -> None:
    module, shapes = Divided(), {"x": {0: Dim("T", min=4)}}
    call = ExportCall(module=module, args=(torch.randn(8, 3),), kwargs={}, dynamic_shapes=shapes)
    with apply_shims([find("decomposed-for-onnx")], call) as given:
        program = export_program(given)
    sets = [(torch.randn(size, 3),) for size in range(4, 15)]
    assert_same_results(program.module(), module, sets)
    made = torch.onnx.export(program, dynamo=True, verbose=False)
    assert made is not None
    assert_same_results(made, module, sets, rtol=1e-4, atol=1e-5)


def test_a_program_without_such_operators_is_left_alone() -> None:
    program = torch.export.export(Computes(lambda x, y: x.scatter(1, FIRST, y[:, :2])), inputs())
    with pytest.raises(NotApplicable, match="none of the operators"):
        with_operators_of_onnx(torch.export.export(Computes(torch.add), inputs()))
    run = with_operators_of_onnx(program).module()
    torch.testing.assert_close(run(*inputs())[0], inputs()[0].scatter(1, FIRST, inputs()[1][:, :2]))
