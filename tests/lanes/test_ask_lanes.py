"""What a cell of the matrix says was seen in its lane, and what is not known is said to be unknown."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exportdoctor.cli.lane_options import lane_specs
from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.core.run.events import RunStarted
from exportdoctor.core.run.lane_matrix import FailureName, LaneAnswer, LaneMatrix, rows_of
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.core.versions import installed_version
from exportdoctor.lanes.ask_in_lane import _script_answer, ask_script
from exportdoctor.lanes.lane import LaneSpec, here
from exportdoctor.report.canvas import Style
from exportdoctor.report.matrix_tables import MATRIX_FORMS, render_matrix
from exportdoctor.store.run_folder import RunFolder

IN_EXPORT = 'Traceback (most recent call last):\n  File "/x/torch/export/__init__.py", line 3, in export\n'
OUTSIDE = 'Traceback (most recent call last):\n  File "/x/transformers/__init__.py", line 3, in <module>\n'


@pytest.mark.parametrize(
    ("code", "output", "wanted"),
    [
        (0, "", LaneAnswer()),
        (0, f"{IN_EXPORT}ValueError: caught and printed", LaneAnswer()),
        (-11, "", LaneAnswer(failures=(FailureName(exception="SIGSEGV", message=""),))),
        (1, f"{IN_EXPORT}ValueError: no", LaneAnswer(failures=(FailureName(exception="ValueError", message="no"),))),
        (1, f"{OUTSIDE}ImportError: no X", LaneAnswer(unknown="fails before any export: ImportError: no X")),
        (3, "told and left", LaneAnswer(unknown="ended with exit code 3 and no exception")),
    ],
)
def test_a_script_that_does_not_reach_an_export_says_nothing(code: int, output: str, wanted: LaneAnswer) -> None:
    assert _script_answer(code, output) == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("class M: ...", "it ends without an error, and exports nothing: the script does not name `export`"),
        (
            "import neighbour",
            "fails before any export: ModuleNotFoundError: No module named 'neighbour' (it runs as a copy, in an empty "
            "folder)",
        ),
        pytest.param(
            "import time; time.sleep(60)  # export",
            "it was stopped: it waited for 5 s and computed nothing",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_script_that_shows_nothing_is_unknown(script: str, said: str) -> None:
    assert ask_script(script, here(), keep=False) == LaneAnswer(unknown=said)


def name(exception: str, message: str) -> FailureName:
    return FailureName(exception=exception, message=message)


def test_a_failure_is_the_same_where_modules_moved_and_symbols_and_paths_differ() -> None:
    one = name("torch.fx.experimental.symbolic_shapes.Guard", "Could not guard on Eq(u0, 1) at /a/b/model.py:3")
    assert one.is_same(name("torch.fx.shapes.Guard", "Could not guard on Eq(u7, 1) at /c/model.py:40"))
    assert not one.is_same(name("torch.fx.shapes.Guard", "Could not extract u7"))
    assert not one.is_same(name("ValueError", one.message))


def test_advice_that_a_newer_torch_adds_makes_no_other_failure() -> None:
    said = (
        "Could not guard on data-dependent expression Eq(u0, {}) (unhinted: Eq(u0, 1)).  (Size-like symbols: none)\n\n"
    )
    advice = "consider using data-dependent friendly APIs such as guard_or_false.{}\nCaused by: (x.py:{} in f)\n"
    older = name("a.Guard", said.format(1) + advice.format("", 1205))
    newer = advice.format(" If this was caused by Python `not` on a symbolic boolean, use torch.sym_not().", 1410)
    assert older.is_same(name("a.Guard", said.format(1) + newer))
    assert not older.is_same(name("a.Guard", said.replace("Eq(", "Ne(").format(1) + newer))


names = st.builds(name, st.sampled_from(["a.E", "b.E", "F"]), st.sampled_from(["x u1", "x u2", "other", ""]))
answers = st.one_of(
    st.builds(lambda found: LaneAnswer(failures=tuple(found)), st.lists(names, max_size=3)),
    st.builds(lambda why: LaneAnswer(unknown=why), st.sampled_from(["it was not made", "<b>|`no`"])),
)


@given(st.lists(answers, min_size=1, max_size=4), st.one_of(st.none(), names))
def test_a_cell_says_what_was_seen(found: list[LaneAnswer], wanted: FailureName | None) -> None:
    rows = rows_of("F1", tuple(found), wanted)
    assert rows
    for row in rows:
        assert len(row.cells) == len(found)
        for answer, cell in zip(found, row.cells):
            same = row.failure is not None and any(one.is_same(row.failure) for one in answer.failures)
            assert (cell.state == "unknown") == bool(answer.unknown)
            assert (cell.state == "passes") == (not answer.unknown and not answer.failures)
            assert (cell.state == "same failure") == (same and not answer.unknown)
    if wanted is None:  # every failure has a row, once
        for answer in found:
            for one in answer.failures:
                assert sum(row.failure is not None and one.is_same(row.failure) for row in rows) == 1
    matrix = LaneMatrix(asked="x", lanes=tuple("l" for _ in found), rows=rows)
    for form in MATRIX_FORMS:
        text = render_matrix(matrix, form, Style())
        assert text.endswith("\n")
        assert "<b>" not in text or form in ("text", "json")


def run(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """`exportdoctor matrix` in a folder, with a lane that cannot be made; its exit code and the matrix."""
    environment = {
        **os.environ,
        "PIP_NO_INDEX": "1",
        "PATH": "/usr/bin:/bin",
        "EXPORTDOCTOR_HOME": str(folder / "home"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "exportdoctor", "matrix", *words, "--with", "oddity=1", "--format", "json", "-q"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else {"said": done.stderr}


MODEL = """import torch

class M(torch.nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x

def build():
    return M(), (torch.ones(3),)
"""


@pytest.mark.night
def test_a_script_and_a_target_are_asked_here_and_a_lane_that_could_not_be_made_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "script.py").write_text(f"{MODEL}\ntorch.export.export(M(), (torch.ones(3),))\n")
    for asked in ("script.py", "model.py:build"):
        code, matrix = run(tmp_path, asked)
        assert code == 1
        [row] = matrix["rows"]
        assert [cell["state"] for cell in row["cells"]] == ["same failure", "unknown"]
        assert row["failure"]["exception"].endswith("GuardOnDataDependentSymNode")
        assert row["cells"][1]["detail"] == "no index that can be reached has a wheel of oddity for this Python"


def test_what_is_here_makes_no_lane_of_its_own() -> None:
    torch = installed_version("torch")
    specs = lane_specs({"torch_": [f"{torch},{torch.partition('+')[0]}"], "transformers_": ["4.57.1"], "with_": []})
    assert [spec.packages for spec in specs] == [{"transformers": "4.57.1"}]
    assert lane_specs({"torch_": [torch], "transformers_": [], "with_": []}) == [LaneSpec()]


@pytest.mark.slow
def test_what_cannot_be_asked_is_refused_before_any_lane_is_made(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "empty") as folder:
        target = TargetRef(ref="m.py:build", parts=(), options=BuildOptions())
        folder.append(RunStarted(run="empty", target=target, options=ScanOptions(), version="0"))
    for place in ("lost", "torn"):
        shutil.copytree(tmp_path / "empty", tmp_path / place)
    (tmp_path / "lost" / "events.jsonl").rename(tmp_path / "lost" / "report.json")
    (tmp_path / "torn" / "events.jsonl").write_bytes(b"\0" * 20 + b"\n")
    asked = {
        "nowhere.py:build": "",
        "no-such-model": "",
        "empty": "",
        "torn": "was not written by exportdoctor",
        "lost": "is not beside it",
    }
    for one, why in asked.items():
        code, said = run(tmp_path, one)
        assert code in (2, 3)
        assert said["said"].count("\n") == 1
        assert why in said["said"]
    assert not (tmp_path / "home" / "cache" / "lanes").exists()
