"""Two modules are equal only if they must export alike, wherever the state stands in which they differ."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn

import brute_force
import hidden_state
from exportdoctor.core.run.report import FAILING
from exportdoctor.targets.built import BuiltPart, Inputs
from exportdoctor.worker.capture.fingerprint import Question
from exportdoctor.worker.capture.forward_hooks import CALLS_KEPT
from exportdoctor.worker.capture.session import PartCapture, capture_part
from exportdoctor.worker.capture.snapshot import CopyBudget, snapshot
from scanning import scan_file


def capture(module: nn.Module, *args: torch.Tensor) -> PartCapture:
    built = BuiltPart(name="p", title="p", module=module, prefix="", args=args, kwargs={}, dynamic_shapes=None)
    return capture_part(built, exporter="export")


@pytest.fixture(scope="module")
def questions() -> dict[str, Question]:
    """The question of each half of every pair."""
    module, args = hidden_state.build()
    return {fqn: asked[0] for fqn, asked in capture(module, *args).questions.items() if fqn}


def test_modules_that_export_otherwise_are_never_equal(questions: dict[str, Question]) -> None:
    names = list(questions)
    pairs = list(zip(names[::2], names[1::2], strict=True))
    assert len(pairs) > 25
    assert [a for a, b in pairs if questions[a].full == questions[b].full] == []
    watched = {a for a, b in pairs if questions[a].group == questions[b].group}
    assert watched == set()


@pytest.mark.night
def test_each_verdict_is_that_of_a_plain_export() -> None:
    torch.set_num_threads(1)
    module, args = hidden_state.build()
    found = brute_force.verdicts(module, args, {})
    report = scan_file(Path(hidden_state.__file__), exhaustive=True)
    scanned = {m.fqn: m.status not in FAILING for m in report.parts[0].modules if m.status != "not_called"}
    assert {name: scanned[name] for name in found} == found


class WithScript(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scripted = torch.jit.script(nn.Linear(3, 3))
        self.plain = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.plain(self.scripted(x))  # type: ignore[no-any-return]


def test_a_script_module_below_the_root_does_not_end_the_capture() -> None:
    part = capture(WithScript(), torch.ones(2, 3))
    assert set(part.questions) == {"", "plain"}
    assert "ScriptModule" in part.notes[0]


class ManyCalls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kid = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for size in range(1, CALLS_KEPT + 4):
            self.kid(x.expand(size, 3))
        return x


def test_calls_that_are_not_asked_are_told() -> None:
    notes = capture(ManyCalls(), torch.ones(1, 3)).notes
    assert any("1 submodule has more than 32 distinct calls" in note for note in notes)


@st.composite
def views(draw: st.DrawFn) -> list[torch.Tensor]:
    """Some views of one or two storages, which may overlap each other or themselves."""
    storages = [torch.arange(24.0), torch.arange(24)]
    made = []
    for _ in range(draw(st.integers(1, 4))):
        storage = draw(st.sampled_from(storages))
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        strides = [draw(st.integers(0, 4)) for _ in shape]
        reach = sum(max(size - 1, 0) * stride for size, stride in zip(shape, strides, strict=True))
        offset = draw(st.integers(0, max(0, 23 - reach)))
        view = torch.as_strided(storage, shape, strides, offset)
        made.append(torch.nn.Parameter(view) if view.is_floating_point() and draw(st.booleans()) else view)
    return made


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(views())
def test_a_snapshot_is_laid_out_as_the_original(originals: list[torch.Tensor]) -> None:
    copies = snapshot(originals, budget=CopyBudget())
    for original, copied in zip(originals, copies, strict=True):
        assert type(copied) is type(original)
        assert torch.equal(copied, original)
        assert (copied.stride(), copied.storage_offset()) == (original.stride(), original.storage_offset())
        assert copied.requires_grad == original.requires_grad
        assert copied.untyped_storage().data_ptr() != original.untyped_storage().data_ptr()
    pointers = [[one.untyped_storage().data_ptr() for one in tensors] for tensors in (originals, copies)]
    assert [[a == b for b in pointers[0]] for a in pointers[0]] == [[a == b for b in pointers[1]] for a in pointers[1]]


def test_a_snapshot_keeps_the_inference_flag() -> None:
    with torch.inference_mode():
        x = torch.ones(3)
    assert snapshot(x, budget=CopyBudget()).is_inference()
    assert not snapshot(torch.ones(3), budget=CopyBudget()).is_inference()


def test_one_tensor_for_two_inputs_is_told() -> None:
    x, told = torch.ones(2, 2), "args[0] and args[1] are one tensor in the example"
    assert any(told in note for note in capture(nn.Bilinear(2, 2, 2), x, x).notes)
    assert not any(told in note for note in capture(nn.Bilinear(2, 2, 2), x, x.clone()).notes)


class OncePerRow(nn.Module):
    """Calls its child as often as there are rows."""

    def __init__(self) -> None:
        super().__init__()
        self.kid = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for row in x:
            self.kid(row)
        return x


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), (((torch.ones(3, 3),), {}),)])
def test_submodules_that_are_asked_at_fixed_sizes_are_told(more: tuple[Inputs, ...]) -> None:
    module = OncePerRow()
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    built = BuiltPart(
        name="p", title="p", module=module, prefix="", args=(torch.ones(2, 3),), kwargs={}, dynamic_shapes=shapes,
        more_inputs=more,
    )  # fmt: skip
    assert any("asked at fixed sizes" in note for note in capture_part(built, exporter="export").notes)
