"""An error in the process that writes drafts reaches the user as what it is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from exportdoctor.core.errors import ExitCode, ExportdoctorError, TargetError, UsageError, WorkerFailed
from exportdoctor.core.failure.signature import signature_of
from exportdoctor.core.protocol.repro import DraftRequest, ImportNote, ScriptDraft
from exportdoctor.core.protocol.scan import SMALL_MODEL_SUFFIX
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.records.target import TargetRef
from exportdoctor.core.run.events import ProbeFinished
from exportdoctor.process.supervise import build_limits
from exportdoctor.repro import draft_client
from exportdoctor.repro.draft_client import DraftClient
from exportdoctor.repro.find_probe import probe_of
from exportdoctor.repro.pipeline import needed_imports
from scripted_client import start_script
from synthetic import WINDOWS, qwen_scan

VISION = "model.visual"

TARGET = """
import torch

def fails():
    raise RuntimeError("no such checkpoint")

def exports():
    return torch.nn.Linear(2, 2), (torch.ones(1, 2),)
"""


def error_of(path: Path, *, function: str, part: str = "default") -> ExportdoctorError:
    """The error that asking for drafts of a probe of this target raises."""
    file = path / "target.py"
    file.write_text(TARGET)
    request = DraftRequest(target=TargetRef(ref=f"{file}:{function}"), probe=Probe(part=part, fqn=""))
    with DraftClient(request) as client, pytest.raises(ExportdoctorError) as caught:
        client.reproduce()
    return caught.value


@pytest.mark.long
@pytest.mark.slow
def test_a_target_that_does_not_build_is_at_fault_and_its_stack_is_kept(tmp_path: Path) -> None:
    error = error_of(tmp_path, function="fails")
    assert isinstance(error, TargetError)
    assert error.exit_code == ExitCode.TARGET
    assert "no such checkpoint" in error.message
    assert any("in fails" in line for line in error.stack)


@pytest.mark.long
@pytest.mark.slow
def test_a_failure_that_is_gone_is_a_usage_error(tmp_path: Path) -> None:
    error = error_of(tmp_path, function="exports")
    assert isinstance(error, UsageError)
    assert error.hint == "Scan again"


@pytest.mark.long
@pytest.mark.slow
def test_a_failure_that_only_the_small_model_showed_is_asked_of_it_again() -> None:
    request = DraftRequest(
        target=TargetRef(ref="Qwen2.5-VL-3B"), probe=Probe(part=f"vision{SMALL_MODEL_SUFFIX}", fqn=VISION)
    )
    with DraftClient(request) as client:
        seen = client.reproduce()
    assert seen.outcome.failure is not None
    assert seen.outcome.failure.culprit is not None


def test_the_model_itself_comes_before_the_small_one_and_both_are_known() -> None:
    finished = [event for event in qwen_scan() if isinstance(event, ProbeFinished)]
    failing = next(event for event in finished if not event.outcome.passed)
    signature = signature_of(failing.outcome)
    assert signature is not None
    finding = msgspec.structs.replace(WINDOWS, part=failing.probe.part, signature=signature.key)
    small = msgspec.structs.replace(
        failing, probe=msgspec.structs.replace(failing.probe, part=failing.probe.part + SMALL_MODEL_SUFFIX)
    )
    assert probe_of((small,), finding).part == small.probe.part
    assert probe_of((small, failing), finding).part == failing.probe.part
    with pytest.raises(UsageError, match="does not record"):
        probe_of((), finding)


def test_an_error_between_two_drafts_is_kept_with_its_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is a script that plays one."""
    monkeypatch.setattr(draft_client, "spawn", lambda _, **options: start_script("scripted_draft_server.py"))
    request = DraftRequest(target=TargetRef(ref="none"), probe=Probe(part="default", fqn=""))
    with DraftClient(request) as client:
        assert client.reproduce().outcome.probe == request.probe.id
        assert [draft.what for draft in client.drafts()] == ["the first"]
    assert isinstance(client.error, WorkerFailed)
    assert client.error.exit_code == ExitCode.INTERNAL
    assert "KeyError: 'lost'" in client.error.message
    assert "in write_draft" in "\n".join(client.error.stack)


def test_a_note_on_an_import_stays_as_long_as_the_import_does() -> None:
    """Whatever the note's words are, and also where the module lies in a package."""
    notes = tuple(
        ImportNote(module=name, text=f"crop comes from {name}") for name in ("crops.native", "tiles", "torch")
    )
    draft = ScriptDraft(what="", source="", imports=notes)
    source = "import torch\nfrom crops.native import crop\n"
    assert needed_imports(draft, source) == ("crop comes from crops.native", "crop comes from torch")
    assert needed_imports(draft, "import torch\n") == ("crop comes from torch",)


@pytest.mark.night
@pytest.mark.parametrize("function", ["slow", pytest.param("build", marks=pytest.mark.night)])
def test_a_target_that_takes_too_long_is_ended(function: str, tmp_path: Path) -> None:
    file = tmp_path / "target.py"
    file.write_text(
        "import time\nimport torch\n\n"
        "def build():\n    time.sleep(100)\n\n"
        "class Slow(torch.nn.Module):\n    def forward(self, x):\n        time.sleep(100)\n\n"
        "def slow():\n    return Slow(), (torch.ones(1),)\n"
    )
    request = DraftRequest(
        target=TargetRef(ref=f"{file}:{function}"), probe=Probe(part="default", fqn="", call=1, timeout=60)
    )
    with DraftClient(request, building=build_limits(3)) as client, pytest.raises(TargetError) as caught:
        client.reproduce()
    assert "--build-timeout" in caught.value.message
