"""The ladder names the planted fault of each fixture, its line included, and nothing innocent."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers
from safetensors.torch import save_file

from exportdoctor.core.errors import TargetError, UsageError
from exportdoctor.core.protocol.numbers_ladder import LadderRequest, LadderResult
from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.report.canvas import Style
from exportdoctor.report.result_tables import RESULT_FORMS, render_ladder
from exportdoctor.worker.numbers.numbers_server import climb
from exportdoctor.worker.numbers.onnx_steps import onnx_steps
from exportdoctor.worker.numbers.program_steps import match_programs, program_steps
from exportdoctor.worker.numbers.step_graph import GraphStep, StepGraph, stream_values
from exportdoctor.worker.numbers.value_gap import gap_between, gap_in_words, is_written_twice, same_bits
from exportdoctor.worker.numbers.walk import Walk
from exportdoctor.worker.translate.failed_node import NodeFact
from exportdoctor.worker.translate.onnx_session import OnnxSession, element_type, torch_dtypes

FOLDER = Path(__file__).parents[2] / "fixtures" / "numbers"
OFTEN = ("stale_cache", "stripped_expert", "topk_tie", "wrong_function")
"""One of each kind; the others are asked at night."""

FAULTS = sorted(one.stem for one in FOLDER.glob("*.py"))


def climb_quietly(ref: str, against: str = "") -> LadderResult:
    return climb(LadderRequest(target=TargetRef(ref=ref), part="", against=against, seconds=0.3), lambda _: None)


def make_file(fault: dict[str, Any], path: Path) -> str:
    """The spoilt file; '' where the exporter itself makes the fault."""
    if "make" in fault:
        fault["make"](path)
    elif "spoil" in fault:
        import onnx

        given = fault["build"]()
        shapes = given.get("dynamic_shapes")
        made = torch.onnx.export(given["module"], given["args"], dynamic_shapes=shapes, dynamo=True, verbose=False)
        assert made is not None
        model = made.model_proto
        fault["spoil"](model)
        onnx.save(model, str(path))
    else:
        return ""
    return str(path)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.slow if one in OFTEN else pytest.mark.night) for one in FAULTS]
)
def test_a_planted_fault_is_named_with_its_line(name: str, tmp_path: Path) -> None:
    file = FOLDER / f"{name}.py"
    fault = runpy.run_path(str(file))
    expected = fault["EXPECTED"]
    result = climb_quietly(f"{file}:build", make_file(fault, tmp_path / "spoilt.onnx"))
    assert all(render_ladder(result, form, Style()) for form in RESULT_FORMS)
    if "tie" in expected:
        assert (result.verdict, result.cause) == ("agrees_but_ties", None)
        assert {value.name for one in result.stages for value in one.values if value.excuse} == {expected["tie"]}
        return
    assert result.cause is not None
    stage, cause = result.cause
    found = {"kind": cause.kind, "source": cause.source, "op": cause.op, "right": cause.right, "stage": stage.name}
    found |= {"module": cause.module, "expression": cause.expression}
    found["module"] = expected["module"] if found["module"].startswith(expected["module"]) else found["module"]
    assert {key: found[key] for key in expected} == expected
    assert cause.file == str(file)
    assert all(one.cause is None for one in result.stages if one is not stage)


@pytest.mark.slow
def test_a_file_that_is_none_is_refused_in_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(UsageError, match=r"broken\.onnx cannot be loaded"):
        climb_quietly(f"{FOLDER / 'stale_cache.py'}:build", str(broken))


class Chosen(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        large = y * 3
        return large.gather(1, x.topk(2).indices)


def walk_chosen(reference: dict[str, torch.Tensor]) -> Walk:
    """A walk of `Chosen` beside these values, on scores of which two are equal."""
    x, y = torch.tensor([[1.0, 2.0, 2.0]]), torch.tensor([[10.0, 20.0, 30.0]])
    graph = program_steps(torch.export.export(Chosen(), (x, y)), {})
    walk = Walk(graph=graph, inputs=dict(zip(graph.inputs, (x, y), strict=True)), title="scores")
    walk.expect(reference)
    for name, value in reference.items():
        walk.compare(name, value, None, None)
    return walk


def test_what_is_reduced_where_it_is_written_twice_has_one_right_answer() -> None:
    """A file in which "mean" keeps one of the values was told to give eager's numbers."""
    x, index, zeros = torch.tensor([1.0, 5.0, 6.0]), torch.tensor([0, 0, 0]), torch.zeros(3)
    inputs, kept, last = [zeros, index, x], zeros.scatter(0, index[:1], x[1:2]), zeros.scatter(0, index[:1], x[2:])
    mean, highest = zeros.scatter_reduce(0, index, x, "mean", include_self=False), last
    assert is_written_twice("aten.scatter.src", kept, last, inputs, stands_for=["aten.scatter.src"])
    assert not is_written_twice("ScatterElements", last, mean, inputs)
    assert not is_written_twice("ScatterElements", kept, highest, inputs, stands_for=["aten.scatter_reduce.two"])


@pytest.mark.slow
@pytest.mark.parametrize(("rounding", "error"), [(4e-6, 0.0), (1e-4, 0.0), (0.0, 0.1)])
def test_outputs_after_a_tie_may_differ_by_the_rounding_before_it(rounding: float, error: float) -> None:
    large, chosen = torch.tensor([[30.0, 60.0 + rounding, 90.0]]), torch.tensor([[2, 1]])
    walk = walk_chosen({"mul": large, "getitem_1": chosen, "gather": large.gather(1, chosen) + error})
    assert [one.name for one in walk.values if one.excuse] == ["getitem_1"]
    assert walk.outputs_agree == (not error)


class Several(torch.nn.Module):
    """Operators with several results, some of which become other operators when they are decomposed."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        rows, columns = torch.meshgrid(x[:, 0], x[0], indexing="ij")
        least, most = torch.aminmax(x, dim=-1)
        first, second, *_ = x.unbind(1)
        values, indices = x.sort(-1)
        deviation, mean = torch.std_mean(x, -1)
        return [rows - columns, least - most, first - second, values * indices, deviation - mean, *x.split([2, 4], 1)]


def values_of(program: torch.export.ExportedProgram, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    graph, found = program_steps(program, {}), dict[str, torch.Tensor]()
    stream_values(graph, {graph.inputs[0]: inputs}, lambda name, value, *_: found.update({name: value}))
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


@pytest.mark.long
@pytest.mark.slow
def test_no_result_of_a_decomposed_operator_is_taken_for_another_one() -> None:
    inputs = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(Several(), (inputs,))
    other = program.run_decompositions()
    pairs = match_programs(program, other)
    first, second = values_of(program, inputs), values_of(other, inputs)
    assert [name for name in pairs if not torch.allclose(first[name], second[pairs[name]])] == []
    results = [user for node in program.graph.nodes if node.name in ("sort", "split_with_sizes") for user in node.users]
    assert len(results) == 4
    assert all(one.name in pairs for one in results)


def file_of(nodes: list[Any], inputs: dict[str, int], outputs: dict[str, int], path: Path, weights: Any = ()) -> Path:
    """An ONNX file of these nodes on three elements each, with values by the number of their type."""
    from onnx import helper, save

    taken, given = ([helper.make_tensor_value_info(*one, [3]) for one in some.items()] for some in (inputs, outputs))
    graph = helper.make_graph(nodes, "g", taken, given, initializer=list(weights))
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), str(path))
    return path


@pytest.mark.parametrize("number", sorted(torch_dtypes()), ids=lambda number: str(torch_dtypes()[number]))
def test_values_of_every_type_are_compared(number: int, tmp_path: Path) -> None:
    from onnx import helper

    dtype = torch_dtypes()[number]
    value, other = (torch.tensor(some).to(dtype) for some in ([1, 0, 4], [1, 2, 4]))
    memory = value.view(torch.uint8).numpy().tobytes()
    weight = helper.make_tensor("weight", number, [3], memory, raw=True)
    node = helper.make_node("Identity", ["weight"], ["y"])
    graph = onnx_steps(file_of([node], {}, {"y": number}, tmp_path / "one.onnx", [weight]))
    assert torch.equal(graph.constants["weight"].view(torch.uint8), value.view(torch.uint8))
    if dtype.is_complex or dtype == torch.float8_e8m0fnu:  # ONNX Runtime has none
        return
    assert OnnxSession(tmp_path / "one.onnx").unknown_output == ""
    (found,) = graph.steps[0].run({"weight": graph.constants["weight"]})
    assert same_bits(found, value)
    assert gap_between(found, value).holds
    assert not gap_between(other, value).holds


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.uint8])
def test_unsigned_numbers_are_compared_with_others(dtype: torch.dtype) -> None:
    assert gap_between(torch.tensor([1, 2, 3]).to(dtype), torch.tensor([1, 5, 3])).absolute == 1
    assert gap_between(torch.tensor([1, 2, 3]), torch.tensor([1, 2, 3]).to(dtype)).holds
    assert not gap_between(torch.tensor([-1]), torch.tensor([-1]).to(dtype)).holds


def test_a_type_that_torch_does_not_have_is_told_by_its_name(tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    cast = helper.make_node("Cast", ["x"], ["y"], name="narrow", to=TensorProto.INT4)
    back = helper.make_node("Cast", ["y"], ["z"], name="wide", to=TensorProto.FLOAT)
    types: dict[str, int] = {"x": TensorProto.FLOAT}
    whole = file_of([cast], types, {"y": TensorProto.INT4}, tmp_path / "narrow.onnx")
    with pytest.raises(TypeError, match="torch has no dtype for int4"):
        OnnxSession(whole).run([torch.ones(3)])
    graph = onnx_steps(file_of([cast, back], types, {"z": TensorProto.FLOAT}, tmp_path / "both.onnx"))
    walk = Walk(graph=graph, inputs={"x": torch.ones(3)}, title="ones")
    walk.expect(["y", "z"])
    walk.compare("y", torch.ones(3), None, None)
    assert walk.ended == "narrow gives what cannot be compared: torch has no dtype for tensor(int4)"
    assert walk.cause is None
    with pytest.raises(TypeError, match=r"ONNX has no element type for torch\.complex32"):
        element_type(torch.complex32)


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("found", "wanted", "said"),
    [
        ([[1.0, -2.0], [3.0, 4.0]], [[NAN, -2.0], [3.0, 4.0]], "y is finite on one side only in 1 element"),
        ([1.0, INF, 0.0], [INF, 1.0, 0.0], "y is finite on one side only in 2 elements"),
        ([INF, NAN, NAN], [-INF, NAN, INF], "y differs in 2 elements where neither side is finite"),
        ([1.5, 2.0], [1.0, 2.0], "y differs by 0.5, where 2e-05 is allowed"),
        ([1, 2, 3], [1, 3, 2], "y differs in 2 elements"),
        ([1.0], [1], "y is float32 instead of int64"),
    ],
)
def test_what_is_not_finite_is_not_told_as_a_count(found: list[Any], wanted: list[Any], said: str) -> None:
    one, other = torch.tensor(found), torch.tensor(wanted)
    gap = gap_between(one, other)
    assert not gap.holds
    assert gap_in_words("y", gap, one, other) == said


NORM_OF_HALVES = """
import torch

class Norm(torch.nn.Module):
    def forward(self, x):
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-8).sqrt()

def build():
    torch.manual_seed(0)
    return Norm(), (torch.randn(2, 8).half() * 1e-3,), {}, ({0: torch.export.Dim.DYNAMIC},)
"""
"""ONNX Runtime rounds less often where it runs the whole file than where it runs node by node."""


@pytest.mark.long
@pytest.mark.slow
def test_a_difference_that_the_walk_does_not_show_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "norm.py").write_text(NORM_OF_HALVES)
    result = climb_quietly(f"{tmp_path / 'norm.py'}:build")
    assert result.verdict == "differs"
    assert result.cause is None
    (note,) = (f"{one.name}: {note}" for one in result.stages for note in one.notes)
    assert re.fullmatch(r"ONNX: on x\[0\] 4 .* only where it runs as a whole: .* so no value is named", note)


CHANCE = """
import torch

class M(torch.nn.Module):
    def forward(self, x):
        dropped = torch.nn.functional.dropout(x, 0.5, training=True) + torch.rand_like(x)
        turned = torch.view_as_complex(x.reshape(-1, 4, 2))
        return dropped * 2, torch.view_as_real(turned * turned)

def build():
    torch.manual_seed(0)
    return M(), (torch.randn(2, 8),)
"""


@pytest.mark.long
@pytest.mark.slow
def test_chance_and_complex_numbers_are_no_errors(tmp_path: Path) -> None:
    (tmp_path / "target.py").write_text(CHANCE)
    result = climb_quietly(f"{tmp_path / 'target.py'}:build")
    assert (result.verdict, result.cause) == ("agrees", None)
    file = next(stage for stage in result.stages if stage.name == "ONNX")
    assert {value.excuse for value in file.values} == {"", "random"}
    assert not file.notes
    assert {"view_as_complex", "mul_1"} & {value.name for value in file.values}


HALF = """
import torch

class Half(torch.nn.Module):
    def forward(self, x):
        return x.half().sum(-1)

def build():
    torch.manual_seed(0)
    return Half(), (torch.randn(3, 8),)
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_file_that_gives_a_wider_dtype_than_eager_says_so(tmp_path: Path) -> None:
    """Story: eager was widened too, and then "run value by value it agrees"."""
    (tmp_path / "target.py").write_text(HALF)
    result = climb_quietly(f"{tmp_path / 'target.py'}:build")
    file = next(stage for stage in result.stages if stage.name == "ONNX")
    assert {row.trouble for row in file.rows if row.inputs == "3 x 8"} == {
        "output 0 is float32[3], and eager gives float16[3]"
    }


WRITTEN = """
import torch

class Written(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        x.add_(1)
        y = x.view(-1)
        y[0] = 5
        return self.linear(x), x, y

def build():
    torch.manual_seed(0)
    return Written(), (torch.randn(3, 8),)
"""


@pytest.mark.long
@pytest.mark.slow
def test_no_step_of_a_stage_that_agrees_is_told_to_err(tmp_path: Path) -> None:
    """Story: functionalised writes gave nodes the names of other ones, and a local error of 2.5 stood beside a tick."""
    (tmp_path / "target.py").write_text(WRITTEN)
    result = climb_quietly(f"{tmp_path / 'target.py'}:build")
    assert result.verdict == "agrees"
    assert not [value for one in result.stages for value in one.values if value.local > value.allowed]


COUNTED = """
import itertools
import torch
from torch import nn

CALLS = itertools.count(1)

class Marked(nn.Module):
    def forward(self, x):
        return torch.where((x > 2).any(-1, keepdim=True), x + next(CALLS), x)

class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls

class Unwritten(nn.Module):
    def forward(self, x):
        return torch.where((x > 2).any(-1, keepdim=True), x * 2, torch.empty_like(x))

class Grown(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(0, 4))

    def forward(self, x):
        self.kept = torch.cat([self.kept, x])
        return self.kept.sum(0)

def grown():
    return Grown(), (torch.ones(3, 4),)

class Filled(nn.Module):
    def forward(self, x):
        return x * torch.empty_like(x).fill_(2.0)

def filled():
    return Filled(), (torch.ones(64, 64),)

class Derived(nn.Module):
    def forward(self, x):
        y = x + 1
        return torch.func.grad(lambda z: (z.sin() ** 2).sum())(y)

def derived():
    return Derived(), (torch.ones(3, 4),)

def marked():
    small = torch.linspace(-1, 1, 12).reshape(3, 4)
    return {"module": Marked(), "args": (small,), "dynamic_shapes": ({0: torch.export.Dim.DYNAMIC},),
            "more_inputs": [(torch.cat([small * 4, small]),)]}

def counter():
    return Counter(), (torch.ones(3, 4),)

def unwritten():
    return Unwritten(), (torch.ones(3, 4),)
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_set_for_which_eager_does_not_repeat_itself_is_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "target.py").write_text(COUNTED)
    result = climb_quietly(f"{tmp_path / 'target.py'}:marked")
    assert (result.verdict, result.cause) == ("agrees", None)
    (note,) = result.notes
    assert note.startswith("not compared on inputs ")
    assert "eager itself gives other numbers when it is called again, and each call changes " in note
    assert note in render_ladder(result, "text", Style()).replace("\n  ", " ")


@pytest.mark.slow
def test_where_eager_reads_memory_that_nobody_wrote_nothing_is_compared(tmp_path: Path) -> None:
    (tmp_path / "target.py").write_text(COUNTED)
    with pytest.raises(TargetError, match="eager itself gives other numbers when it is called again"):
        climb_quietly(f"{tmp_path / 'target.py'}:unwritten")


@pytest.mark.long
@pytest.mark.slow
def test_a_counter_of_python_that_a_program_has_fixed_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "target.py").write_text(COUNTED)
    result = climb_quietly(f"{tmp_path / 'target.py'}:counter")
    line = 1 + COUNTED.splitlines().index("        self.calls += 1")
    assert result.verdict == "differs"
    assert f"eager keeps state in calls (target.py:{line}), and the program has the value of the export" in " ".join(
        row.trouble for row in result.stages[0].rows
    )


@pytest.mark.slow
def test_a_program_with_a_constant_that_has_no_values_is_no_stage(tmp_path: Path) -> None:
    (tmp_path / "target.py").write_text(COUNTED)
    result = climb_quietly(f"{tmp_path / 'target.py'}:derived")
    (stage,) = result.stages
    assert stage.failure is not None
    assert "lifted_tensor_0, which aten.sin.default takes" in stage.failure.message
    assert "torch.func.grad" in stage.failure.source
    assert render_ladder(result, "text", Style()).rstrip().endswith("No stage could be made, so nothing was compared.")


@pytest.mark.long
@pytest.mark.slow
def test_a_program_that_cannot_be_decomposed_is_a_stage_that_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "target.py").write_text(COUNTED)
    result = climb_quietly(f"{tmp_path / 'target.py'}:grown")
    assert [(stage.name, stage.failure is None) for stage in result.stages] == [
        ("exported program", True),
        ("decomposed", False),
        ("ONNX", False),
    ]


@pytest.mark.long
@pytest.mark.slow
def test_memory_that_nobody_has_written_is_no_wrong_value(tmp_path: Path) -> None:
    (tmp_path / "target.py").write_text(COUNTED)
    result = climb_quietly(f"{tmp_path / 'target.py'}:filled")
    assert (result.verdict, result.cause) == ("agrees", None)
    assert not any("differs" in note for stage in result.stages for note in stage.notes)


CUSTOM = """
import torch

@torch.library.custom_op("untranslated::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@twice.register_fake
def _(x):
    return torch.empty_like(x)

class M(torch.nn.Module):
    def forward(self, x):
        return twice(x) + 1

def build():
    return M(), (torch.ones(3),)
"""


@pytest.mark.night
def test_a_program_that_cannot_be_decomposed_as_for_its_file_says_so(tmp_path: Path) -> None:
    class Plain(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 + 1

    made = torch.onnx.export(Plain(), (torch.ones(3),), dynamo=True, verbose=False)
    assert made is not None
    made.save(str(tmp_path / "other.onnx"))
    (tmp_path / "target.py").write_text(CUSTOM)
    result = climb_quietly(f"{tmp_path / 'target.py'}:build", str(tmp_path / "other.onnx"))
    decomposed = next(stage for stage in result.stages if stage.name == "decomposed")
    assert any("torch.onnx cannot translate the program" in note for note in decomposed.notes)
    assert result.verdict == "agrees"


def strip_names(path: str) -> None:
    """Rename every value and node, and drop what the exporter noted: a file as other tools write it."""
    import onnx

    model = onnx.load(path)
    graph = model.graph
    kept = {one.name for one in (*graph.input, *graph.output)}
    values = (one for node in graph.node for one in (*node.input, *node.output) if one and one not in kept)
    names = {old: f"v{place}" for place, old in enumerate(dict.fromkeys(values))}
    for place, node in enumerate(graph.node):
        node.name, node.doc_string = f"n{place}", ""
        del node.metadata_props[:]
        node.input[:] = [names.get(one, one) for one in node.input]
        node.output[:] = [names.get(one, one) for one in node.output]
    for one in graph.initializer:
        one.name = names.get(one.name, one.name)
    del graph.value_info[:]
    del model.functions[:]
    del model.metadata_props[:]
    onnx.save(model, path)


@pytest.mark.night
@pytest.mark.parametrize("name", ["swapped_padding", "size_baked_in", "wrong_fold"])
def test_a_fault_in_a_file_without_names_is_found_by_numbers(name: str, tmp_path: Path) -> None:
    file = FOLDER / f"{name}.py"
    fault = runpy.run_path(str(file))
    path = make_file(fault, tmp_path / "spoilt.onnx")
    strip_names(path)
    result = climb_quietly(f"{file}:build", path)
    assert result.verdict == "differs"
    assert result.cause is not None
    stage, cause = result.cause
    assert stage.name == "spoilt.onnx"
    assert any("by their numbers" in note for note in stage.notes)
    assert cause.file == str(file)
    assert cause.source == fault["EXPECTED"].get("source", cause.source) or cause.steps > 1


COUNTS = """
import torch
from torch import nn

class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        x.clamp_(-1, 1)
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - self.mean

def counts():
    return Counts().eval(), (torch.randn(3, 4),)

class Adds(nn.Module):
    def forward(self, x, y):
        return x + y

def adds():
    return Adds(), (torch.randn(3, 4), torch.randn(3, 4))
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_file_that_is_invalid_before_it_is_optimised_does_not_end_the_stages(tmp_path: Path) -> None:
    """The only command that the scan's finding named ended there: `Duplicate definition of name (mean)`."""
    (tmp_path / "model.py").write_text(COUNTS)
    result = climb_quietly(f"{tmp_path / 'model.py'}:counts")
    assert [stage.name for stage in result.stages] == [
        "exported program", "decomposed", "ONNX optimised", "ONNX Runtime",
    ]  # fmt: skip
    assert not any(stage.failure for stage in result.stages)
    assert any("Duplicate definition" in note for note in result.stages[2].notes)


@pytest.mark.slow
def test_a_file_of_another_part_is_refused_in_one_line(tmp_path: Path) -> None:
    """It was compared with 0 agreeing sets, and `zip() argument 2 is longer than argument 1`."""
    (tmp_path / "model.py").write_text(COUNTS)
    other = tmp_path / "other.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(4, 4), (torch.randn(3, 4),)), other)
    with pytest.raises(UsageError, match="takes 1 input, and this part has 2"):
        climb_quietly(f"{tmp_path / 'model.py'}:adds", against=str(other))


@pytest.mark.long
@pytest.mark.slow
def test_a_class_that_was_built_in_place_of_another_is_told(tmp_path: Path) -> None:
    """A checkpoint without its head was proved as a model without one, and nothing said so."""
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=20, vocab_size=50,
        max_position_embeddings=12, architectures=["BertForSequenceClassification"],
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    state = transformers.BertForSequenceClassification(config).state_dict()
    save_file(
        {name: value for name, value in state.items() if "classifier" not in name}, tmp_path / "model.safetensors"
    )
    target = TargetRef(ref=str(tmp_path), options=BuildOptions(weights=str(tmp_path)))
    result = climb(LadderRequest(target=target, part="", against="", seconds=0.1), lambda _: None)
    assert any("scanned as BertModel" in note and "classifier" in note for note in result.notes)


LAYERS = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.up = nn.Embedding(40, 32), nn.LayerNorm(32), nn.Linear(32, 64)
        self.down, self.head = nn.Linear(64, 32), nn.Linear(32, 40, bias=False)

    def forward(self, ids):
        hidden = self.embed(ids)
        hidden = hidden + self.down(nn.functional.gelu(self.up(self.norm(hidden))))
        return 8 * self.head(hidden)


def build():
    torch.manual_seed(0)
    return Net().eval(), (torch.full((2, 9), 3),)


def half():
    module, args = build()
    return module.half(), args
"""


def write_layers(folder: Path, factory: str) -> tuple[str, Any]:
    """A target, and its file as torch.onnx makes it."""
    (folder / "target.py").write_text(LAYERS)
    module, args = runpy.run_path(str(folder / "target.py"))[factory]()
    made = torch.onnx.export(module, args, dynamo=True, verbose=False)
    assert made is not None
    return f"{folder / 'target.py'}:{factory}", made.model_proto


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("error", [0.0, 0.3])
def test_a_file_that_computes_in_float16_and_gives_float32_is_held_to_float16(error: float, tmp_path: Path) -> None:
    import onnx
    from onnx import numpy_helper
    from onnxruntime.transformers.float16 import convert_float_to_float16

    target, model = write_layers(tmp_path, "build")
    weight = next(one for one in model.graph.initializer if one.name == "down.bias")
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) + numpy.float32(error), weight.name))
    path = str(tmp_path / "half.onnx")
    onnx.save(convert_float_to_float16(model, keep_io_types=True), path)
    found = climb_quietly(target, path)
    assert (found.verdict in ("agrees", "agrees_but_ties")) == (not error)


@pytest.mark.long
@pytest.mark.slow
def test_equal_rows_in_float16_are_not_held_to_more_than_rounding(tmp_path: Path) -> None:
    import onnx

    target, model = write_layers(tmp_path, "half")
    onnx.save(model, str(tmp_path / "half.onnx"))
    assert climb_quietly(target, str(tmp_path / "half.onnx")).verdict == "agrees"


def test_a_shape_for_reshape_that_says_zero_is_no_other_value() -> None:
    def step(name: str, op: str, *inputs: str) -> GraphStep:
        return GraphStep(
            name=name, op=op, inputs=inputs, outputs=(name,), run=lambda _: (), fact=lambda: NodeFact(name=name, op=op)
        )

    constants = {name: torch.tensor([0, 4] if name != "sizes" else [2, 4]) for name in ("zero", "taken", "sizes", "x")}
    steps = [
        step("a", "Reshape", "x", "zero"),
        step("b", "Reshape", "x", "taken"),
        step("c", "Add", "taken", "zero_of_all"),
        step("d", "Reshape", "x", "sizes"),
    ]
    graph = StepGraph(steps=steps, constants=constants, inputs=(), outputs=("a", "b", "c", "d"))
    assert graph.reshape_patterns() == {"zero"}


KEPT = """\
import torch
from torch import nn


class Smoothed(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj, self.before = nn.Linear(4, 4), None

    def forward(self, x):
        y = self.proj(x)
        if self.before is not None:
            y = 0.9 * self.before + 0.1 * y
        self.before = y
        return torch.tanh(y)


class Capped(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("most", torch.tensor(6.5))

    def forward(self, lengths):
        n = min(lengths.max(), self.most)
        return n // 2, lengths / n


def smoothed():
    torch.manual_seed(0)
    return Smoothed().eval(), (torch.randn(3, 4),)


def capped():
    return Capped().eval(), (torch.tensor([3, 4, 9]),)
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (
            "smoothed",
            r"tanh differs, and takes another value than in eager; eager computes that one by add at .*:13, and",
        ),
        ("capped", "floor_divide differs, and what it takes is float32 instead of int64"),
    ],
)
def test_an_operator_that_is_given_another_input_is_not_told_to_err(factory: str, said: str, tmp_path: Path) -> None:
    """Story: "the first value that is wrong although its inputs are right: tanh"."""
    (tmp_path / "target.py").write_text(KEPT)
    request = LadderRequest(
        target=TargetRef(ref=f"{tmp_path / 'target.py'}:{factory}"), part="", against="", seconds=2.0
    )
    found = climb(request, lambda _: None).cause
    assert found is not None
    assert found[1].kind == "input"
    assert re.search(said, found[1].message), found[1].message


IDENTITY = """
import torch

class Clip(torch.nn.Module):
    def forward(self, x):
        y = torch.tanh(x)
        too_large = (y.abs().max() > 0.99).item()
        if too_large is True:
            y = y / 2
        return y

def build():
    torch.manual_seed(0)
    return Clip(), (torch.rand(2, 8) / 4,)
"""
"""torch gives `is` a symbol, which is not True: the program has the other branch, and asks nothing."""


@pytest.mark.long
@pytest.mark.slow
def test_what_eager_goes_on_with_is_named(tmp_path: Path) -> None:
    """It was said to differ only where it runs as a whole."""
    (tmp_path / "clip.py").write_text(IDENTITY)
    result = climb_quietly(f"{tmp_path / 'clip.py'}:build")
    assert result.cause is not None
    _, cause = result.cause
    assert (cause.kind, cause.line) == ("absent", 9)
    assert cause.message.startswith(
        "the output is tanh, after which the stage before goes on: its output is that of div"
    )
    assert not any("as a whole" in note for stage in result.stages for note in stage.notes)


LOST = """
import enum
import torch

class Mode(enum.IntEnum):
    A = 0
    B = 1

class Chooses(torch.nn.Module):
    def forward(self, x, mode):
        if mode.item() == Mode.A:
            return x.relu()
        return x

def build():
    torch.manual_seed(0)
    return Chooses(), (torch.randn(2, 8), torch.tensor(0))
"""
"""A symbol equals no member of an enumeration: the program gives back its input."""


@pytest.mark.long
@pytest.mark.slow
def test_an_input_that_the_program_gives_back_is_not_called_wrong(tmp_path: Path) -> None:
    """The input was "the first value that is wrong although its inputs are right: relu"."""
    (tmp_path / "lost.py").write_text(LOST)
    result = climb_quietly(f"{tmp_path / 'lost.py'}:build")
    assert result.cause is not None
    _, cause = result.cause
    assert (cause.kind, cause.line) == ("absent", 12)
    assert cause.message.startswith("the output is x, after which the stage before goes on: its output is that of relu")


TAIL = """
import torch

class Tail(torch.nn.Module):
    def forward(self, x):
        return torch.erfc(x.abs() / 2**0.5)

def build():
    torch.manual_seed(0)
    return Tail(), (torch.rand(4, 8) + 5.5,)
"""
"""ONNX has no erfc: torch.onnx makes 1 - erf(x) of it, of which nothing is left here."""


@pytest.mark.long
@pytest.mark.slow
def test_the_node_at_which_small_values_are_lost_is_named(tmp_path: Path) -> None:
    (tmp_path / "tail.py").write_text(TAIL)
    result = climb_quietly(f"{tmp_path / 'tail.py'}:build")
    assert (result.verdict, [one.name for one in result.stages if one.cause]) == ("differs", ["ONNX"])
    assert result.cause is not None
    assert result.cause[1].message.startswith("erfc differs by ")


TIED = Path(__file__).parents[1] / "support" / "tied_targets.py"


def spoil_choice(path: Path, node: Any, put: str) -> str:
    """A file of `retrieve` with this node before, or behind, its choice of indices."""
    import onnx

    target = runpy.run_path(str(TIED))
    module, inputs, _, shapes = target["retrieve"]()
    made = torch.onnx.export(module, inputs, dynamic_shapes=shapes, dynamo=True, verbose=False)
    assert made is not None
    model = made.model_proto
    (place,) = [place for place, one in enumerate(model.graph.node) if one.op_type == "TopK"]
    choice = model.graph.node[place]
    if put == "before":
        node.input[:], node.output[:] = [choice.input[0]], ["spoilt"]
        choice.input[0] = "spoilt"
        model.graph.node.insert(place, node)
    else:
        one = onnx.helper.make_tensor("one", onnx.TensorProto.INT64, [1], [1])
        model.graph.initializer.append(one)
        node.input[:], node.output[:] = ["chosen", "one"], [choice.output[1]]
        choice.output[1] = "chosen"
        model.graph.node.insert(place + 1, node)
    onnx.save(model, str(path))
    return str(path)


@pytest.mark.long
@pytest.mark.slow
def test_ties_in_several_calls_in_a_row_are_ties() -> None:
    result = climb_quietly(f"{TIED}:retrieve")
    assert (result.verdict, result.cause) == ("agrees_but_ties", None)
    assert all(row.holds for stage in result.stages for row in stage.rows)
    kinds = {row.kind for stage in result.stages for row in stage.rows if "equal in eager" in row.note}
    assert {"example", "sizes", "called_again", "others_between"} <= kinds


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("op", "put"), [("Sign", "before"), ("Sub", "behind")])
def test_indices_that_are_wrong_beside_ties_are_not_excused(op: str, put: str, tmp_path: Path) -> None:
    """Ties that the file makes itself of unlike scores are none, and an index that is off by one is no choice."""
    from onnx import helper

    file = spoil_choice(tmp_path / "spoilt.onnx", helper.make_node(op, [], []), put)
    result = climb_quietly(f"{TIED}:retrieve", file)
    assert result.verdict == "differs"
    assert not [one for stage in result.stages for one in stage.excused]
