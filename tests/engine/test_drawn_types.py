"""Of forty model types that a seed draws, tiny, a scan says of every submodule what a plain export of it says.

Of the whole it says also whether the program computes what eager does.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.core.run.report import FAILING
from exportdoctor.targets import resolve
from exportdoctor.targets.configuration import ConfigurationPlan
from scanning import scan_ref

pytestmark = pytest.mark.night

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SEED, MODELS = int(os.environ.get("EXPORTDOCTOR_SEED", "0")), 40


@pytest.mark.parametrize("place", range(MODELS))
def test_a_scan_agrees_with_plain_exports(place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    drawn = importlib.import_module("drawn_models")
    left_out = []
    for name in drawn.drawn_types(SEED)[place::MODELS]:
        ref = str(tmp_path / name)
        try:
            drawn.write_config(name, tmp_path / name)
            plan = resolve(TargetRef(ref=ref))
            assert isinstance(plan, ConfigurationPlan)
            part = plan.recipe.whole
            plain = drawn.ask_fork(drawn.plain_verdicts, ref, part)
        except Exception as error:  # LeftOut, or no default configuration
            left_out.append(f"{name}: {error}")
            continue
        report = scan_ref(
            ref, build=BuildOptions(static=True, weights="random"), parts=(part,), exhaustive=True, audit=True
        )
        told = {one.fqn: one.status not in FAILING for one in report.parts[0].modules if one.status != "not_called"}
        assert {fqn: told.get(fqn) for fqn in plain} == {fqn: all(each) for fqn, each in plain.items()}, name
        return
    pytest.fail(f"no type could be compared: {left_out}")
