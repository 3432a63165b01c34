"""The Python code that a report prints for a cure runs as it is printed, for each shim and each exporter."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.run.report import PartRecord, Prescription, Step
from exportdoctor.report.wording import prescription_code
from exportdoctor.shims.export_call import shapes_by_name
from shim_cases import CASES

SUPPORT = Path(__file__).parents[1] / "support"
TORCHSCRIPT = "mask-without-vmap"
EXPORTER = {TORCHSCRIPT: "torchscript", "non-strict": "export-strict"}


def code_of(shim: str, exporter: str, *steps: Step) -> str:
    """What a report prints for this shim."""
    found = Prescription(shims=(shim,), soundness="exact", steps=steps)
    return prescription_code(PartRecord(name="p", verdict="cured", exporter=exporter, seconds=0, prescription=found))


def given_to(shim: str) -> dict[str, Any]:
    """What the reader supplies."""
    call = CASES[shim].call()
    return {
        "model": call.module,
        "inputs": call.named,
        "shapes": shapes_by_name(call),
        "other_inputs": copy.deepcopy(call.named),
    }


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("shim", CASES)
def test_the_code_for_each_shim_runs(shim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope = given_to(shim)
    exec(code_of(shim, EXPORTER.get(shim, "export")), scope)
    assert (tmp_path / "model.onnx").exists() if shim == TORCHSCRIPT else "outputs" in scope


def test_the_code_for_a_frozen_axis_runs() -> None:
    step = Step(shim="static-dim:width", title="", soundness="specialised", places=("x[1]",))
    scope = given_to("static-dim")
    exec(code_of("static-dim:width", "export", step), scope)
    assert torch.equal(scope["outputs"], scope["model"](**scope["inputs"]))


@pytest.mark.long
@pytest.mark.parametrize(
    ("exporter", "shim"),
    [
        pytest.param("export", "check-as-assertion", marks=pytest.mark.slow),
        *(pytest.param(exporter, shim, marks=pytest.mark.night) for shim, exporter in EXPORTER.items()),
    ],
)
def test_the_code_for_each_exporter_runs_in_a_process_of_its_own(exporter: str, shim: str, tmp_path: Path) -> None:
    assert exporter in EXPORTERS
    script = tmp_path / "pasted.py"
    head = "import sys\nsys.path[:0] = {!r}\nfrom test_pasted_code import given_to\nglobals().update(given_to({!r}))\n"
    script.write_text(head.format([str(SUPPORT), str(Path(__file__).parent)], shim) + code_of(shim, exporter))
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
