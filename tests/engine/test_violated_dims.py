"""A violation of two dimensions is more than one failure: a try that mends one of them is told with what is left."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from torch.export import Dim

from exportdoctor.core.failure.finding import ExceptionRecord, Finding
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.failure.messages import suggested_fixes, violation_entries, with_one_violation
from exportdoctor.core.records.outcome import ExceptionFact, Failure, Frame, Outcome, OutcomeStatus
from exportdoctor.report.wording import findings as wording
from exportdoctor.report.wording.shim_tries import rest_note, violated_dims
from scanning import scan_file
from synthetic import ATTENTION

COUNTED = """
import torch
from torch import nn

class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x):
        rows = self.rnn(x)[0]
        return rows[torch.arange(len(x)), 0]

class Back(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x):
        window, wave = torch.hann_window(16), self.rnn(x)[0].flatten(1)
        spectrum = torch.stft(wave, 16, 4, window=window, return_complex=True)
        return torch.istft(spectrum, 16, 4, window=window, length=x.shape[1])

class Called(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0]

class Twice(nn.Module):
    def forward(self, x):
        rows = x * len(x)
        return rows * int(x.shape[1])

def given(module, steps=7):
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("steps", min=2)}
    return module.eval(), (torch.randn(3, steps, 4),), {}, {"x": sizes}

def build(): return given(Counted())
def back(): return given(Back(), 18)
def called(): return given(Called())
def twice(): return given(Twice())
"""


def violated(*names: str) -> Outcome:
    message = f"Constraints violated ({', '.join(names)})! For more information, run with TORCH_LOGS."
    failure = Failure(stage="export", exceptions=(ExceptionFact(type="UserError", message=message),))
    return Outcome(probe="", status=OutcomeStatus.FAILED, failure=failure)


def test_the_dimensions_that_a_try_has_mended_are_named() -> None:
    place = "L['x'].size()[1]"
    assert violated_dims(violated("batch", place)) == ("batch", place)
    assert rest_note(violated("batch", "steps"), violated("steps")).startswith(
        "the rest of it: no longer of `batch`, UserError: Constraints violated (steps)!"
    )
    assert "no longer" not in rest_note(violated("steps"), violated("steps"))


def test_of_several_dimensions_the_line_is_that_of_one() -> None:
    (fact,) = violated("batch", "steps").failure.exceptions  # type: ignore[union-attr]
    guard = Frame(file="model.py", line=3, function="forward", source="len(x)", user=True)
    shown = ExceptionRecord(type=fact.type, message=fact.message)
    kind = FailureKind.DYNAMIC_DIM_SPECIALISED
    both = msgspec.structs.replace(ATTENTION, kind=kind, guard=guard, exception=shown)
    assert wording.guard(both).startswith("A guard of one of these dimensions (the others may have theirs at other")
    one = ExceptionRecord(type=fact.type, message=violated("batch").failure.exceptions[0].message)  # type: ignore[union-attr]
    assert wording.guard(msgspec.structs.replace(both, exception=one)).startswith("The guard was added at")


def step_of(message: str, source: str = "") -> str:
    shown = ExceptionRecord(type="torch._dynamo.exc.UserError", message=message)
    finding = msgspec.structs.replace(
        ATTENTION, kind=FailureKind.DYNAMIC_DIM_SPECIALISED, exception=shown, source=source
    )
    return wording.next_step(msgspec.structs.replace(finding, known_issues=()))


@pytest.mark.parametrize(
    ("fixes", "declared"),
    [
        ("", "`w = Dim.AUTO(min=16, max=128)`"),
        ("\nSuggested fixes:\n  w = Dim('w', min=64, max=128)", "`w = Dim.AUTO(min=64, max=128)`"),
        ("\nSuggested fixes:\n  b = Dim('b', max=63)", "`b = Dim('b', max=63)` and `w = Dim.AUTO(min=16, max=128)`"),
    ],
)
def test_a_guard_that_torch_cannot_prove_is_left_to_dim_auto(fixes: str, declared: str) -> None:
    """Story: of `1 % (32*(w // 2)) != 0`, which holds for every size from 2 on, a range was advised, and refused."""
    guards = [
        "  - Not all values of w = L['x'].size()[3] in the specified range 16 <= w <= 128 satisfy the generated guard "
        f"(1 % ({factor}*(L['x'].size()[3] // 2))) != 0."
        for factor in (32, 8)
    ]
    said = step_of("\n".join(["Constraints violated (w)! For more", *guards]) + fixes)
    assert f"take: {declared}. With Dim.AUTO torch need not prove that they do. Or make" in said


@pytest.mark.parametrize(
    ("name", "pieces", "said"),
    [("n", 2, "`2*Dim('_n', min=2)`"), ("L['x'].size()[1]", 2, "`2*Dim('_n', min=2)`"), ("n", 3, "")],
)
def test_a_chunk_is_advised_where_the_guard_is_of_its_pieces(name: str, pieces: int, said: str) -> None:
    guard = "(L['x'].size()[1] // ((1 + L['x'].size()[1]) // 2)) == 2."
    message = f"Constraints violated ({name})! For more\n  - Not all values satisfy the generated guard {guard}"
    step = step_of(message, f"a, b = x.chunk({pieces}, 1)")
    assert step.startswith(f"Declare the dimension as {said}" if said else "Make the code independent")


@pytest.mark.long
@pytest.mark.slow
def test_pieces_by_chunk_are_declared_a_multiple_or_cut_by_split(tmp_path: Path) -> None:
    """numpy was blamed, whose rounding asked nothing, beside a `chunk`."""
    (tmp_path / "pieces.py").write_text(
        "import numpy as np\nimport torch\nfrom torch.export import Dim\n\n\n"
        "class Two(torch.nn.Module):\n    def forward(self, x):\n"
        "        a, b = x.chunk(2, 1)\n        return a * b\n\n\n"
        "class Ghost(torch.nn.Module):\n    def forward(self, x):\n"
        "        return torch.cat([c * 2 for c in x.chunk(int(np.ceil(x.shape[1] / 128)), 1)], 1)\n\n\n"
        "def two():\n    return Two(), (torch.randn(2, 16),), {}, ({1: Dim('n')},)\n\n\n"
        "def ghost():\n    return Ghost(), (torch.randn(2, 16),), {}, ({1: Dim('n', max=64)},)\n"
    )
    steps = {
        name: wording.next_step(scan_file(tmp_path / "pieces.py", factory=name).findings[0])
        for name in ("two", "ghost")
    }
    assert steps["two"].startswith("Declare the dimension as `2*Dim('_n', min=2)`: ")
    assert steps["ghost"].startswith("Cut pieces of a known size, as `x.split(size, dim)` does, in place of `x.chunk(")


def test_the_root_of_a_multiple_less_a_number_has_a_least_size() -> None:
    """torch suggests none, and refuses its own suggestion: the other dimension could be negative."""
    fixes = "\n  _length = Dim('_length', max=512)\n  length = 8*_length - 3"
    message = f"Constraints violated (length)!\n  - Not all values of length are so.\nSuggested fixes:{fixes}"
    shown = ExceptionRecord(type="torch._dynamo.exc.UserError", message=message)
    finding = msgspec.structs.replace(ATTENTION, kind=FailureKind.DYNAMIC_DIM_SPECIALISED, exception=shown)
    said = wording.next_step(msgspec.structs.replace(finding, known_issues=()))
    assert "`_length = Dim('_length', min=2, max=512)` and `length = 8*_length - 3`" in said
    with pytest.raises(AssertionError, match="Please specify an appropriate min value"):
        torch.export.export(torch.nn.ReLU(), (torch.ones(13),), dynamic_shapes=({0: 8 * Dim("_length", max=512) - 3},))
    torch.export.export(torch.nn.ReLU(), (torch.ones(13),), dynamic_shapes=({0: 8 * Dim("_length", min=1) - 3},))


def test_the_sizes_that_guards_take_are_told_beside_one_that_is_fixed() -> None:
    """Story: torch said what to declare for two dimensions, and a third one is fixed: nothing of that was told."""
    lines = [
        "  - You marked m as dynamic but your code specialized it to be a constant (4).",
        "  - Not all values of s = L['src'].size()[1] in the specified range satisfy the generated guard "
        "5 <= L['src'].size()[1] and L['src'].size()[1] <= 64",
        "  - Not all values of h = L['x'].size()[2] in the specified range h <= 64 satisfy the generated guard "
        "(L['x'].size()[2] // (L['x'].size()[2] // 2)) == 2.",
        "Suggested fixes:", "  s = Dim('s', min=5, max=64)", "  _h = Dim('_h', max=32)", "  h = 2*_h", "  m = 4",
    ]  # fmt: skip
    shown = ExceptionRecord(type="UserError", message="\n".join(["Constraints violated (m, s, h)! For more", *lines]))
    finding = msgspec.structs.replace(ATTENTION, kind=FailureKind.DYNAMIC_DIM_SPECIALISED, exception=shown)
    said = wording.next_step(msgspec.structs.replace(finding, known_issues=()))
    assert "`s = Dim('s', min=5, max=64)` and `_h = Dim('_h', min=2, max=32)` and `h = 2*_h`. Make the code" in said
    assert said.endswith("Make the code independent of `m`, or declare it static.")


def test_a_message_of_several_dimensions_is_split_by_their_lines() -> None:
    head = 'Constraints violated (batch, steps)! For more information, run with TORCH_LOGS="+dynamic".'
    first, second = "- You marked batch as dynamic but it is constant (3).", "- Not all values of steps are so."
    fixes = "\n  batch = 3\n  _steps = Dim('_steps', min=1)\n  steps = 2*_steps"
    message = f"{head}\n  {first}\n  {second}\nSuggested fixes:{fixes}"
    assert violation_entries(message) == {"batch": first, "steps": second}
    assert violated_dims(violated("steps")) == ("steps",)
    told = with_one_violation(message, second)
    assert told.startswith("Constraints violated (steps)!")
    assert second in told
    assert "batch" not in told
    assert suggested_fixes(told) == ["_steps = Dim('_steps', min=2)", "steps = 2*_steps"]
    assert with_one_violation("something else", second) == "something else"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("factory", "found"),
    [
        ("build", {("", "len"), ("rnn", "LSTM")}),
        ("back", {("", "istft"), ("rnn", "LSTM")}),
        ("called", {("rnn", "LSTM")}),
        ("twice", {("", "len"), ("", "int")}),
    ],
)
def test_each_line_that_fixes_a_size_is_a_finding(tmp_path: Path, factory: str, found: set[tuple[str, str]]) -> None:
    path = tmp_path / "counted.py"
    path.write_text(COUNTED)
    report = scan_file(path, factory=factory)
    seen = {(one.module, next(word for _, word in found if _is_at(word, one))) for one in report.findings}
    assert seen == found
    assert len(report.findings) == len(found)


FOLLOWS = """
import torch
from torch import nn
from torch.export import Dim

class Attention(nn.Module):
    def forward(self, q, kv):
        n = len(q)
        return (q @ kv.transpose(1, 2)).reshape(n, -1)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention()

    def forward(self, x):
        return self.attn(x * 2, x)

def build():
    return Model(), (torch.ones(4, 3, 6),), {}, {"x": {0: Dim("batch")}}
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_size_that_only_follows_from_one_that_is_cured_is_no_finding(tmp_path: Path) -> None:
    path = tmp_path / "follows.py"
    path.write_text(FOLLOWS)
    report = scan_file(path, cure=True)
    (finding,) = report.findings
    assert "len(q)" in (finding.guard.source if finding.guard is not None else "")
    (part,) = report.parts
    assert part.prescription is not None
    assert part.prescription.shims == ("len-as-size",)


@pytest.mark.long
@pytest.mark.slow
def test_lines_that_one_shim_cures_are_all_told(tmp_path: Path) -> None:
    path = tmp_path / "lines.py"
    both = "x = x * len(x)\n        return x.sum() + kv - len(kv)"
    code = FOLLOWS.replace("n = len(q)\n        return (q @ kv.transpose(1, 2)).reshape(n, -1)", both.replace("x", "q"))
    path.write_text(
        code.replace("self.attn(x * 2, x)", "self.attn(x, y)")
        .replace("def forward(self, x)", "def forward(self, x, y)")
        .replace(
            "(torch.ones(4, 3, 6),), {}, {", '(torch.ones(4, 3), torch.ones(5, 3)), {}, {"y": {0: Dim("others")}, '
        )
    )
    report = scan_file(path, cure=True)
    sources = [finding.guard.source.strip() for finding in report.findings if finding.guard is not None]
    assert sources == ["q = q * len(q)", "return q.sum() + kv - len(kv)"]
    (part,) = report.parts
    assert part.prescription is not None
    assert part.prescription.shims == ("len-as-size",)


def _is_at(word: str, finding: Finding) -> bool:
    """Whether a finding is at a line with that call, or in that module."""
    return finding.module_class == word or (finding.guard is not None and f"{word}(" in finding.guard.source)


@pytest.mark.long
@pytest.mark.slow
def test_no_try_leads_to_the_finding_on_which_it_was_tried(tmp_path: Path) -> None:
    path = tmp_path / "counted.py"
    path.write_text(COUNTED)
    report = scan_file(path, factory="twice", cure=True)
    assert report.findings
    for finding in report.findings:
        assert finding.id not in {tried.next for tried in finding.shims_tried}
    notes = [one.note for found in report.findings for one in found.shims_tried if one.result == "moved"]
    assert notes
