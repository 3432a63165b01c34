"""A part that exports as it is has its program run beside eager: a wrong one is a finding that says where to look."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from exportdoctor.core.errors import UsageError
from exportdoctor.core.records.outcome import Agreement, Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.records.target import BuildOptions
from exportdoctor.core.run.events import AnyEvent
from exportdoctor.core.run.report import PartRecord, Report
from exportdoctor.core.run.run_state import fold
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.engine.part.numbers_check import numbers_steps_of_small_model
from exportdoctor.engine.part.part_diagnosis import PartDiagnosis
from exportdoctor.report import FORMS, render, wording
from exportdoctor.report.canvas import Style
from exportdoctor.report.explanation_page import finding_blocks
from exportdoctor.report.wording import next_step
from exportdoctor.report.wording.cures import numbers_notes
from exportdoctor.report.wording.export import numbers_of_pass_differ
from exportdoctor.repro.find_probe import probe_of
from scanning import events_of, scan_file, scan_ref
from synthetic import captured
from tiny_configs import FAMILIES, write_config

pytestmark = [pytest.mark.slow, pytest.mark.long]

MODELS = """\
import os
import random

import numpy
import torch
from torch import nn


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.layer = 0, nn.Linear(4, 4)

    def forward(self, x):
        self.calls += 1
        return self.layer(x) * self.calls


class Encoder(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, x, padding):
        return self.encoder(x, src_key_padding_mask=padding)


class Ring(nn.Module):
    # its cache is a buffer, which the program updates; where it writes is a number of Python

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(8, 4))
        self.seen, self.asked = 0, 0

    def forward(self, x):
        where = (torch.arange(x.shape[0]) + self.seen) % 8
        self.kept.index_copy_(0, where, x)
        self.seen += x.shape[0]
        self.asked += 1
        return x * 2


class Listed(nn.Module):
    # not its counter changes what it gives, but how long its list is

    def __init__(self):
        super().__init__()
        self.calls, self.found = 0, []

    def forward(self, x):
        self.calls += 1
        self.found.append(x.shape[0])
        return x * len(self.found)


class Scaled(nn.Module):
    def forward(self, x):
        return x * (2 if torch.compiler.is_exporting() else 3)


class Chance(nn.Module):
    def forward(self, x):
        return x * os.urandom(1)[0]


class Derived(nn.Module):
    # torch.export leaves a tensor of the transform in the program as a constant

    def forward(self, x):
        y = x + 1
        return torch.func.grad(lambda z: (z.sin() ** 2).sum())(y)


class Quoted(nn.Module):
    # torch writes the names of inputs into the code of the module that it makes of the program

    def forward(self, batch):
        return batch["it's"] * 2 + batch['b"c']


def quoted():
    return Quoted(), ({"it's": torch.randn(3, 4), 'b"c': torch.randn(3, 4)},)


def derived():
    return Derived(), (torch.randn(3, 4),)


class Resized(nn.Module):
    # the second call of eager finds the buffer as large as the input

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(2, 4))

    def forward(self, x):
        if self.kept.shape[0] != x.shape[0]:
            self.kept.resize_(x.shape[0], 4).zero_()
        self.kept.add_(x)
        return self.kept * 1


def resized():
    return Resized(), (torch.randn(3, 4),)


class Asking(nn.Module):
    # it has no parameters, and asks all the same whether gradients are recorded

    def forward(self, x):
        return x * 2 if torch.is_grad_enabled() else x * 3


class Mean(nn.Module):
    # of no rows it is NaN

    def forward(self, x):
        return x.mean(0)


def mean_of_none():
    return Mean(), (torch.randn(0, 4),)


class WithLoss(nn.Module):
    def forward(self, x, targets):
        return x * 2, x[targets >= 0].mean()


def with_empty_loss():
    return WithLoss(), (torch.randn(3, 4), torch.full((3,), -100))


class InDouble(nn.Module):
    def forward(self, x):
        return x.double() * 2, x.clone()


def of_dtype(name):
    return InDouble(), ((torch.arange(12).reshape(3, 4) / 3).to(getattr(torch, name)),)


from functools import partial

DTYPES = "uint8 uint16 uint32 uint64 int8 float16 float8_e4m3fn complex32 complex64".split()
for dtype in DTYPES:
    globals()[f"of_{dtype}"] = partial(of_dtype, dtype)


class Quantized(nn.Module):
    def forward(self, x):
        return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)


def quantized():
    return Quantized(), (torch.randn(3, 4),)


class Branch(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            x = x * 2
        return x * float("nan")


def branch_to_nan():
    return Branch(), (torch.randn(3, 4),)


class Silent(nn.Module):
    def __init__(self, counts):
        super().__init__()
        self.counts = counts
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.counts:
            self.calls.add_(1)
        x.sum()


def silent():
    return Silent(False), (torch.randn(3, 4),)


def silent_counter():
    return Silent(True), (torch.randn(3, 4),)


def asking():
    return Asking(), (torch.randn(3, 4),)


class Unwritable(nn.Module):
    def forward(self, x):
        return x + torch.empty(3, 4).uniform_()


def unwritable():
    return Unwritable(), (torch.randn(3, 4),)


class Right(nn.Module):
    def forward(self, x):
        return x.softmax(-1)


def counter():
    return Counter(), (torch.randn(3, 4),)


def ring():
    return Ring(), (torch.randn(3, 4),)


def listed():
    return Listed(), (torch.randn(3, 4),)


def scaled():
    return Scaled(), (torch.randn(3, 4),)


def chance():
    return Chance(), (torch.randn(3, 4),)


class Depth(nn.Module):
    def forward(self, x):
        return x if random.random() < 1e-9 else x * 2


class Dropped(nn.Module):
    def forward(self, x):
        return x if numpy.random.rand() < 1e-9 else x * 2


class NeverDropped(nn.Module):
    def forward(self, x):
        drawn = numpy.random.random()
        return x if self.training and drawn < 0.1 else x * 2


def never_dropped():
    return NeverDropped().eval(), (torch.randn(3, 4),)


class Appending(nn.Module):
    def forward(self, rows):
        rows.append(rows[0] * 2)
        return rows[0] + rows[1]


def appending_to_list():
    return Appending(), ([torch.randn(3)],)


def appending_to_deque():
    import collections

    return Appending(), (collections.deque([torch.randn(3)]),)


def depth():
    return Depth(), (torch.randn(3, 4),)


def dropped():
    return Dropped(), (torch.randn(3, 4),)


CALLS = iter(range(1, 1000))


class Marked(nn.Module):
    def forward(self, x):
        return torch.where((x > 2).any(-1, keepdim=True), x + next(CALLS), x)


def marked():
    rows = torch.linspace(-1, 1, 12).reshape(3, 4)
    larger = torch.cat([rows * 4, rows])
    return {"module": Marked(), "args": (rows,), "dynamic_shapes": ({0: torch.export.Dim.DYNAMIC},),
            "more_inputs": [(larger,)]}


def right():
    return Right(), (torch.randn(3, 4),), {}, ({0: torch.export.Dim("rows")},)


def masked():
    # without gradients, rows that the mask pads are zero
    torch.manual_seed(0)
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return Encoder(nn.TransformerEncoder(layer, 2)).eval(), (torch.randn(2, 5, 16), padding)


def fake():
    with torch.device("meta"):
        return nn.Linear(4, 4), (torch.randn(3, 4),)


class Flips(nn.Module):
    def forward(self, x):
        self.training = not self.training
        return x * (2 if self.training else 3)


def flips():
    return Flips().eval(), (torch.randn(3, 4),)


class Caught(nn.Module):
    # torch refuses the branch, and the program has what the except does

    def forward(self, x):
        try:
            return x * 2 if x.sum() > 0 else x * 3
        except RuntimeError:
            return x * 4


def caught():
    return Caught(), (torch.ones(3, 4),)


class Rarely(nn.Module):
    # no input set that is tried shows it

    def forward(self, x):
        try:
            if x.abs().max() > 1e6:
                x = x / x.abs().max()
        except RuntimeError:
            pass
        return x * 2


def rarely():
    return Rarely(), (torch.ones(3, 4),)


class Tried(nn.Module):
    # eager raises and catches the same

    def forward(self, x):
        try:
            return x * self.scale
        except AttributeError:
            return x * 2


def tried():
    return Tried(), (torch.ones(3, 4),)


class Looking(nn.Module):
    def forward(self, query, past):
        causal = bool(query.shape[1] > 1)
        return nn.functional.scaled_dot_product_attention(query, past, past, is_causal=causal)


def looking(least=None):
    new = torch.export.Dim("new", min=least) if least else torch.export.Dim("new")
    sizes = {"query": {1: new}, "past": {1: torch.export.Dim("old")}}
    return Looking(), (torch.randn(2, 3, 4), torch.randn(2, 5, 4)), {}, sizes


def looking_at_more():
    return looking(2)


class Pooled(nn.Module):
    def forward(self, boxes):
        if boxes.numel() == 0:
            return torch.full((3,), -1.0)
        return boxes.sum(0)


class Summed(nn.Module):
    def forward(self, boxes):
        if boxes.numel() == 0:
            return torch.zeros(3)
        return boxes.sum(0)


class OneRow(nn.Module):
    def forward(self, x, mask):
        if x.shape[1] == 1:
            return x.sum(1)
        return (x * mask[..., None]).sum(1)


def one_row():
    sizes = {"x": {1: torch.export.Dim("length")}, "mask": {1: torch.export.Dim("length")}}
    return OneRow(), (torch.randn(2, 5, 3), torch.ones(2, 5, dtype=torch.bool)), {}, sizes


def pooled(least=None, module=Pooled):
    boxes = torch.export.Dim("boxes", min=least) if least else torch.export.Dim("boxes")
    return module(), (torch.randn(6, 3),), {}, {"boxes": {0: boxes}}


def pooled_one():
    return pooled(1)


def summed():
    return pooled(module=Summed)
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("numbers") / "models.py"
    path.write_text(MODELS)
    return path


@pytest.fixture(scope="module")
def events(models: Path) -> list[AnyEvent]:
    return events_of(f"{models}:counter", cure=True)


@pytest.fixture(scope="module")
def report(events: list[AnyEvent]) -> Report:
    return fold(events).report()


@pytest.fixture(scope="module")
def scaled(models: Path) -> list[AnyEvent]:
    """Nothing is known of why it differs."""
    return events_of(f"{models}:scaled", cure=True)


def test_a_program_that_answers_a_size_of_one_as_a_larger_one_is_a_finding(models: Path) -> None:
    (finding,) = scan_file(models, factory="looking").findings
    assert finding.exception.message.startswith("It exports, and at a size of one, on inputs of 2 x 1 x 4, 2 x 5 x 4: ")
    assert "declare `min=2` for that dimension" in next_step(finding)
    report = scan_file(models, factory="looking_at_more")
    assert report.parts[0].verdict == "passes"  # as that says


def test_a_program_that_answers_a_size_of_zero_as_a_larger_one_is_a_finding(models: Path) -> None:
    """Story: a detector's head without a box. The scan tried a size of one and no size of zero."""
    (finding,) = scan_file(models, factory="pooled").findings
    message = finding.exception.message
    assert message.startswith("It exports, and at a size of zero, on inputs of 0 x 3: ")
    assert "eager goes another way than the export went (boxes.numel() == 0)" in message
    assert "declare `min=1` for that dimension" in next_step(finding)
    (finding,) = scan_file(models, factory="one_row").findings  # right where the mask is as in the example
    assert "at a size of one" in finding.exception.message
    assert scan_file(models, factory="pooled_one").parts[0].verdict == "passes"  # as that says
    assert scan_file(models, factory="summed").parts[0].verdict == "passes"


@pytest.mark.parametrize(
    ("title", "size"),
    [
        ("0 x 3", "zero"), ("4, 0 x 6, lengths = [2, 2]", "zero"), ("scalar, 0", "zero"), ("2, 0 and 2 more", "zero"),
        ("3 x 1, lengths = [1, 0, 1]", "one"), ("1, 10 x 20, flags = [[0], [1]]", "one"), ("1 x 3 and 1 more", "one"),
    ],
)  # fmt: skip
def test_of_a_size_of_zero_or_one_the_shapes_say_which(title: str, size: str) -> None:
    """Values among the words behind the shapes do not."""
    row = Agreement(inputs=title, max_abs=1.0, kind="size_one_or_zero")
    assert f"at a size of {size}, on " in numbers_of_pass_differ(row)


def test_a_wrong_program_is_a_finding_with_the_command_that_looks_further(report: Report, models: Path) -> None:
    (part,), (finding,) = report.parts, report.findings
    assert part.verdict == "fails"
    assert part.numbers is not None
    assert part.numbers.verdict == "differs"
    assert (finding.kind, finding.stage) == ("numbers", "numbers")
    assert finding.locate == f"exportdoctor numbers {models}:counter"
    assert "eager keeps state in calls (models.py:15), and the program has" in finding.exception.message
    assert [(one.status, one.stages) for one in part.modules] == [
        ("fails_own", {"export": "pass", "numbers": "fail"}),
        ("pass", {"export": "pass"}),
    ]


def test_outputs_that_are_nan_throughout_are_neither_right_nor_wrong(models: Path) -> None:
    """NaN equals nothing: such a model was told to draw by chance, and its program to differ from eager."""
    (part,) = scan_file(models, factory="mean_of_none", cure=False).parts
    assert part.verdict == "passes"
    assert part.numbers is not None
    assert part.numbers.verdict == "unknown"
    assert part.numbers.note == wording.export.NAN_OUTPUTS


@pytest.mark.parametrize(("factory", "verdict"), [("silent", "unknown"), ("silent_counter", "agrees")])
def test_a_forward_without_an_output_is_compared_by_what_it_changes(models: Path, factory: str, verdict: str) -> None:
    (part,) = scan_file(models, factory=factory, cure=False).parts
    assert part.verdict == "passes"
    assert part.numbers is not None
    assert part.numbers.verdict == verdict
    assert (part.numbers.note == wording.export.NO_OUTPUTS) == (verdict == "unknown")


@pytest.mark.parametrize("factory", ["appending_to_list", "appending_to_deque"])
def test_what_eager_appends_to_an_input_is_missed_in_the_program(models: Path, factory: str) -> None:
    (finding,) = scan_file(models, factory=factory).findings
    assert (
        finding.exception.message == "It exports, and on inputs of 3: the program does not change rows[1] as eager does"
    )


def test_a_shim_whose_program_has_nothing_to_be_compared_with_is_not_told_as_no_cure(models: Path) -> None:
    report = scan_file(models, factory="branch_to_nan", cure=True)
    (part,) = report.parts
    assert part.verdict == "fails"
    assert any(note.startswith("default: it exports with branch-as-where, and there is") for note in report.notes)
    tries = {tried.shim: wording.shim_tries.shim_effect(tried) for tried in report.findings[0].shims_tried}
    assert tries["branch-as-where"] == wording.shim_tries.NOTHING_TO_COMPARE


def test_one_of_two_outputs_that_is_nan_leaves_the_other_to_be_compared(models: Path) -> None:
    report = scan_file(models, factory="with_empty_loss")
    (part,) = report.parts
    assert part.verdict == "passes"
    assert part.numbers is not None
    assert part.numbers.verdict == "agrees"
    assert part.numbers.proof is not None
    assert part.numbers.proof.notes == (wording.export.some_nan_outputs(1),)


DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "float16", "float8_e4m3fn", "complex32", "complex64")


@pytest.mark.parametrize("factory", [*(f"of_{name}" for name in DTYPES), "quantized"])
def test_numbers_of_each_dtype_are_compared(factory: str, models: Path) -> None:
    """Many operators lack uint16, float8 or complex32: drawing and comparing failed, and nothing was known."""
    (part,) = scan_file(models, factory=factory).parts
    assert part.numbers is not None
    assert (part.numbers.verdict, part.numbers.note) == ("agrees", "")
    assert part.numbers.proof is not None
    assert part.numbers.proof.inputs_tried > 1


def test_a_program_is_held_to_eager_with_gradients_where_it_answers_otherwise_without(models: Path) -> None:
    (part,) = scan_file(models, factory="masked").parts
    assert part.verdict == "passes", part.numbers
    assert part.numbers is not None
    assert part.numbers.proof is not None
    assert any("without gradients eager gives other numbers" in note for note in part.numbers.proof.notes)


def test_a_module_without_parameters_is_held_to_eager_with_gradients_too(models: Path) -> None:
    report = scan_file(models, factory="asking")
    assert (report.parts[0].verdict, report.findings) == ("passes", ())
    assert report.parts[0].numbers is not None
    assert any("where gradients are recorded" in note for note in numbers_notes("default", report.parts[0].numbers))


def test_the_number_that_a_program_has_fixed_is_named_where_a_buffer_differs(models: Path) -> None:
    (finding,) = scan_file(models, factory="ring").findings
    message = finding.exception.message
    assert "leaves the buffer kept otherwise than eager: eager keeps state in seen (models.py:39)" in message
    assert "asked" not in message


def test_a_mode_that_forward_changes_is_named(models: Path) -> None:
    (finding,) = scan_file(models, factory="flips").findings
    line = MODELS[: MODELS.index("self.training = not")].count("\n") + 1
    assert f"eager keeps state in training (models.py:{line})" in finding.exception.message


def test_a_number_that_is_not_why_a_program_differs_is_not_named(models: Path) -> None:
    (finding,) = scan_file(models, factory="listed").findings
    assert ": eager keeps state in found, and" in finding.exception.message


def test_what_the_model_catches_of_the_export_alone_is_named_where_numbers_differ(models: Path) -> None:
    (finding,) = scan_file(models, factory="caught").findings
    line = MODELS[: MODELS.index("return x * 2 if x.sum()")].count("\n") + 1
    assert f"at models.py:{line} the export raises what eager does not" in finding.exception.message


def test_what_the_model_catches_of_the_export_alone_is_found_with_other_values(models: Path) -> None:
    """Of other values, with which eager reads numbers out of tensors, some show that the program is wrong."""
    (finding,) = scan_file(models, factory="rarely").findings
    line = MODELS[: MODELS.index("if x.abs().max() > 1e6")].count("\n") + 1
    assert f"at models.py:{line} eager goes another way than the export went" in finding.exception.message


def test_what_eager_catches_too_is_not_told(models: Path) -> None:
    (part,) = scan_file(models, factory="tried").parts
    assert part.numbers is not None
    assert not list(numbers_notes("default", part.numbers))


@pytest.mark.parametrize("form", sorted(FORMS))
def test_every_form_names_that_command(form: str, scaled: list[AnyEvent]) -> None:
    assert "exportdoctor numbers " in render(fold(scaled).report(), form, Style(width=400))


def test_where_the_reason_is_known_what_comes_next_is_what_to_write(report: Report) -> None:
    assert next_step(report.findings[0]).startswith("Make it an input, and return what it becomes.")
    stored = msgspec.structs.replace(report, target=msgspec.structs.replace(report.target, in_memory=False))
    assert [command for command, _ in wording.next_commands(stored)] == ["exportdoctor explain F1", "exportdoctor tui"]


def test_what_comes_next_is_that_command_and_no_script(scaled: list[AnyEvent]) -> None:
    report, events = fold(scaled).report(), scaled
    (finding,) = report.findings
    stored = msgspec.structs.replace(report, target=msgspec.structs.replace(report.target, in_memory=False))
    assert "if there is one" in dict(wording.next_commands(stored))[str(finding.locate)]
    with pytest.raises(UsageError, match="no script fails in the same way"):
        probe_of(tuple(events), finding)
    assert list(finding_blocks(finding, report))


def test_numbers_are_those_of_the_program_and_not_of_its_trace(models: Path) -> None:
    report = scan_file(models, factory="scaled")
    said, line = report.findings[0].exception.message, MODELS[: MODELS.index("2 if torch.compiler.is_")].count("\n") + 1
    assert "on inputs of 3 x 4: an output differs" in said
    assert f"; at models.py:{line} eager goes another way than the export went (torch.compiler.is_exporting())" in said


@pytest.mark.parametrize(("factory", "sets"), [("right", 9), ("never_dropped", 5)])
def test_a_right_program_says_on_how_many_sets(models: Path, factory: str, sets: int) -> None:
    (part,) = scan_file(models, factory=factory).parts
    assert part.verdict == "passes"
    assert wording.verdict(part, 0) == f"exports as is; eager's numbers (max |Δ| 0 on {sets} input sets)"
    assert part.modules[0].stages == {"export": "pass", "numbers": "pass"}


def test_a_set_for_which_eager_does_not_repeat_itself_is_left_out_and_named(models: Path) -> None:
    report = scan_file(models, factory="marked")
    (part,) = report.parts
    assert (part.verdict, report.findings) == ("passes", ())
    assert part.numbers is not None
    said = "not compared on inputs 6 x 4; 3 x 4, before and after other sizes: eager itself gives other numbers when it"
    assert f"default: {said} is called again, and each call changes models.CALLS" in [
        *numbers_notes("default", part.numbers)
    ]


def test_a_program_with_a_constant_that_has_no_values_is_told_so_with_the_line(models: Path) -> None:
    (finding,) = scan_file(models, factory="derived").findings
    line = 1 + next(at for at, text in enumerate(models.read_text().splitlines()) if "torch.func.grad" in text)
    said = "the program holds a tensor of torch.func (vmap, grad and the like), which has no values, as its constant"
    assert said in finding.exception.message
    assert f"aten.sin.default takes at {models}:{line}" in finding.exception.message


def test_a_program_of_which_torch_makes_no_module_is_not_told_to_export(models: Path) -> None:
    report = scan_file(models, factory="quoted")
    (finding,) = report.findings
    assert "ExportedProgram.module() raises SyntaxError" in finding.exception.message
    assert not any(command.startswith("exportdoctor export") for command, _ in wording.next_commands(report))


def test_a_buffer_that_forward_resizes_is_as_it_was_before_each_run(models: Path) -> None:
    (part,) = scan_file(models, factory="resized").parts
    assert part.verdict == "fails"


def test_a_program_that_has_no_file_has_no_command_that_writes_it(models: Path) -> None:
    report = scan_file(models, factory="unwritable")
    (part,) = report.parts
    assert part.numbers is not None
    assert any("a file of the program cannot be written" in note for note in numbers_notes("default", part.numbers))
    assert not any(command.startswith("exportdoctor export") for command, _ in wording.next_commands(report))


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        ("chance", "other numbers when it is called again"),
        ("fake", "fake"),
        ("depth", "draws from the random numbers of Python"),
        ("dropped", "draws from the random numbers of Python"),
    ],
)
def test_where_there_are_no_numbers_it_says_why(models: Path, factory: str, reason: str) -> None:
    report = scan_file(models, factory=factory)
    (part,) = report.parts
    assert (part.verdict, report.findings) == ("passes", ())
    assert reason in wording.verdict(part, 0)


@pytest.fixture(scope="module")
def without_values(tmp_path_factory: pytest.TempPathFactory) -> PartRecord:
    folder = write_config(tmp_path_factory.mktemp("bert"), FAMILIES["bert"])
    (part,) = scan_ref(str(folder), cure=True).parts
    return part


def test_a_part_without_values_is_compared_on_its_small_model(without_values: PartRecord) -> None:
    assert without_values.verdict == "passes"
    assert "eager's numbers on a small model with random weights (max |Δ| " in wording.verdict(without_values, 0)
    assert without_values.modules[0].stages == {"export": "pass"}


def test_wrong_numbers_of_the_small_model_are_told_and_leave_the_verdict(without_values: PartRecord) -> None:
    diagnosis = PartDiagnosis(captured({"": "Net"}).captured, ScanOptions(), {})
    steps = numbers_steps_of_small_model(diagnosis, Probe(part="default~small", fqn="", call=0, exporter="export"))
    probe = next(steps)
    assert isinstance(probe, Probe)
    wrong = Agreement(inputs="the example", kind="example", max_abs=1.0, tolerance=1e-5)
    with pytest.raises(StopIteration):
        steps.send(Outcome(probe=probe.id, status=OutcomeStatus.PASSED, numbers=(wrong,)))
    found = diagnosis.numbers
    assert found is not None
    assert not diagnosis.verdicts
    part = msgspec.structs.replace(without_values, numbers=found)
    assert wording.verdict(part, 0) == "exports as is; wrong numbers on a small model with random weights"
    (note,) = numbers_notes("text", found)
    assert note.startswith("text: the program of a small model with random weights does not compute what eager does.")


BOUNDED = """import torch
from torch import nn


class Bounded(nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] <= 8 else x + x


def build():
    other = [((torch.ones(20, 4, dtype=DTYPE),), {}), ((torch.zeros(5, 4, dtype=DTYPE),), {})]
    shapes = {"x": {0: torch.export.Dim.DYNAMIC}} if DYNAMIC else None
    args = (torch.ones(5, 4, dtype=DTYPE),)
    return {"module": Bounded().eval(), "args": args, "more_inputs": other, "dynamic_shapes": shapes}
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_inputs_of_the_users_that_the_program_refuses_are_told_with_the_guard_and_the_next_command(
    tmp_path: Path, dtype: str
) -> None:
    """Stories: a tick, and no word of what fixed the sizes or of the command that finds it out; of whole numbers the
    refused set was also called between two calls of the example, whose numbers were then said to be wrong."""
    file = tmp_path / "bounded.py"
    file.write_text(f"DYNAMIC = True\n{BOUNDED}".replace("DTYPE", f"torch.{dtype}"))
    report = scan_file(file)
    assert [part.verdict for part in report.parts] == ["passes"]
    (note,) = (note for note in report.notes if "refuses" in note)
    assert "20 x 4" in note
    assert "Guard failed: x.size()[0] <= 8" in note
    report = msgspec.structs.replace(report, target=msgspec.structs.replace(report.target, in_memory=False))
    assert f"exportdoctor domain {file}:build" in [command for command, _ in wording.next_commands(report)]


LIMITED = """import torch
from torch import nn


class Limited(nn.Module):
    def forward(self, x):
        rows = x.shape[0]
        x = x * 2 if rows <= 300 else x + x
        return x + 1 if rows % 5 else x - 1


def build():
    return Limited().eval(), (torch.ones(6, 4),), {}, {"x": {0: torch.export.Dim.DYNAMIC}}
"""


@pytest.mark.slow
def test_limits_far_from_the_example_are_told_and_each_reason_of_a_refusal(tmp_path: Path) -> None:
    file = tmp_path / "limited.py"
    file.write_text(LIMITED)
    (note,) = (note for note in scan_file(file).notes if "refuses" in note)
    assert "301 x 4" in note
    assert "Guard failed: x.size()[0] <= 300" in note
    assert "Guard failed: x.size()[0] % 5 != 0" in note


@pytest.mark.slow
def test_inputs_of_other_sizes_are_not_dropped_unsaid_where_no_dynamic_shapes_are_given(tmp_path: Path) -> None:
    file = tmp_path / "bounded.py"
    file.write_text(f"DYNAMIC = False\n{BOUNDED}".replace("DTYPE", "torch.float32"))
    said = "1 input set has other sizes or plain values than the example, and it was not used: without dynamic_shapes"
    assert [note for note in scan_file(file).notes if said in note]
    asked = scan_file(file, build=BuildOptions(static=True))
    assert not [note for note in asked.notes if said in note]
