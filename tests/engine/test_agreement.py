"""A scan's verdict for every module is what a plain loop of torch.export calls finds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import brute_force
import tiny_models
from exportdoctor.core.run.report import FAILING
from scanning import scan_file

pytestmark = pytest.mark.slow

MODELS = Path(tiny_models.__file__)


BY_NIGHT = {"llama", "bert", "mixtral", "whisper", "t5", "clip", "wav2vec2", "qwen2_5_vl", "mamba"}
SCANS = [pytest.param(name, marks=[pytest.mark.night] if name in BY_NIGHT else []) for name in tiny_models.FAMILIES]


@pytest.mark.long
@pytest.mark.parametrize("family", SCANS)
def test_scan_agrees_with_brute_force(family: str) -> None:
    torch.set_num_threads(1)  # the loop forks, and the threads of a parallel region would not survive it
    found = brute_force.verdicts(*getattr(tiny_models, family)())
    report = scan_file(MODELS, factory=family, exhaustive=True)
    scanned = {m.fqn: m.status not in FAILING for m in report.parts[0].modules if m.status != "not_called"}
    assert {name: scanned[name] for name in found} == found
    assert any(found.values())
