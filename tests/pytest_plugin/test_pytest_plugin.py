"""The pytest plugin in real sessions: what is red, what the baseline knows, and what the ratchet takes out."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

GATE = """
from torch import nn

class Gate(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x * 2
        return x * 3
"""
TEST = """
import torch
from gate import Gate

def test_gate(assert_exportable):
    assert_exportable(Gate().eval(), (torch.ones(3),))

def test_layer(assert_exportable):
    report = assert_exportable(torch.nn.Linear(3, 3), (torch.ones(2, 3),))
    print("CACHED", report.stats.answered_from_cache, report.stats.probes)
"""
BRANCH = "if x.sum() > 0:\n            return x * 2\n        return x * 3"
FIXED = GATE.replace(BRANCH, "return x * 2")
NO_REWRITE = GATE.replace(BRANCH, "return x * [0, 1, 2, 3][x.sum().long()]")
OTHER = GATE.replace("x.sum() > 0", "int(x[0].sum()) == 3")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(pytester.path / "home"))
    pytester.makepyfile(gate=GATE, test_models=TEST)
    return pytester


def session(project: pytest.Pytester, *words: str) -> pytest.RunResult:
    """A session in a process of its own, with the plugin as pytest finds it in the wheel."""
    installed = {point.name for point in importlib.metadata.entry_points(group="pytest11")}
    plugin = () if "exportdoctor" in installed else ("-p", "exportdoctor.pytest_plugin")  # of an older installation
    return project.runpytest_subprocess(*plugin, "-p", "no:cacheprovider", *words)


def known(path: Path) -> dict[str, list[dict[str, str]]]:
    failures: dict[str, list[dict[str, str]]] = json.loads(path.read_text())["failures"]
    return failures


@pytest.mark.long
@pytest.mark.slow
def test_a_new_failure_is_red_with_its_line_and_a_fixed_one_asks_for_the_ratchet(project: pytest.Pytester) -> None:
    fixed = {"part": "default", "module": "", "signature": "0" * 12, "place": "Linear.forward (linear.py)"}
    check = "test_models.py::test_layer"
    text = json.dumps({"schema": "exportdoctor.baseline/1", "failures": {check: [fixed]}})
    (project.path / "known.json").write_text(text)
    (project.path / "gate.py").write_text(NO_REWRITE)
    red = session(project, "--export-baseline", "known.json")
    red.assert_outcomes(passed=1, failed=1)
    red.stdout.fnmatch_lines(
        [
            "*F1 *Gate.forward (*gate.py:6)*",
            "*return x * [[]0, 1, 2, 3][[]x.sum().long()]",
            "*broken: test_models.py::test_gate*",
            "*fixed: test_models.py::test_layer*Linear.forward*",
            "*run again with --export-ratchet",
        ]
    )
    assert (project.path / "known.json").read_text() == text, "only the ratchet writes"


@pytest.mark.night
def test_the_baseline_is_written_changed_and_emptied(project: pytest.Pytester) -> None:
    red = session(project, "-k", "gate")
    red.assert_outcomes(failed=1)
    red.stdout.fnmatch_lines(
        [
            "*+*return torch.where(x.sum() > 0, x * 2, x * 3)",
            "*Tried: with this change the model exports, and computes the same on * input sets*",
            "*Explained: exportdoctor explain *",
        ]
    )
    wrote = session(project, "--export-baseline", "known.json", "--export-ratchet", "-n", "2")
    wrote.assert_outcomes(passed=1, xfailed=1)
    baseline = project.path / "known.json"
    assert [one["place"] for one in known(baseline)["test_models.py::test_gate"]] == ["Gate.forward (gate.py)"]
    (project.path / "gate.py").write_text(OTHER)
    changed = session(project, "--export-baseline", "known.json", "-k", "gate")
    changed.assert_outcomes(failed=1)
    changed.stdout.fnmatch_lines(["*In the baseline: *if x.sum() > 0*", "*changed: *int(x[[]0].sum())*"])
    (project.path / "gate.py").write_text(FIXED)
    ratchet = session(project, "--export-baseline", "known.json", "--export-ratchet", "-k", "gate")
    ratchet.assert_outcomes(passed=1)
    assert known(baseline) == {}


@pytest.mark.long
@pytest.mark.slow
def test_a_known_failure_hides_no_other_check_of_its_test(project: pytest.Pytester) -> None:
    """The ratchet writes both. With one of them known the other fails the test; a line behind both is no new error."""
    project.makepyfile(
        test_models="""
        import torch
        from gate import Gate

        class Other(Gate):
            pass

        def test_both(assert_exportable):
            for module in (Gate(), Other()):
                assert_exportable(module.eval(), (torch.ones(3),))
            raise ValueError("of a module that does not export")
        """
    )
    wrote = session(project, "--export-baseline", "known.json", "--export-ratchet", "-rx")
    wrote.assert_outcomes(xfailed=1)
    wrote.stdout.fnmatch_lines(["*0 of 2 checked modules export", "XFAIL *written into the baseline; then ValueError*"])
    baseline = project.path / "known.json"
    text = json.loads(baseline.read_text())
    assert set(text["failures"]) == {"test_models.py::test_both", "test_models.py::test_both#2"}
    del text["failures"]["test_models.py::test_both#2"]
    baseline.write_text(json.dumps(text))
    red = session(project, "--export-baseline", "known.json")
    red.assert_outcomes(failed=1)
    red.stdout.fnmatch_lines(["*broken: test_models.py::test_both#2*"])


VALUES = """
import functools, json, re, types
from dataclasses import dataclass
import pytest, torch
from torch import nn

@dataclass
class Settings:
    count: int
    names: frozenset = frozenset({"one", "other", "third"})

with open("settings.json") as file:
    HELD = types.SimpleNamespace(read=[Settings(json.load(file))], pattern=re.compile("a"), weight=torch.ones(3))
FLAGS = {"a", "b", "c"}
LATER = functools.partial(print, HELD)

class Gate(nn.Module):
    def forward(self, x):
        if HELD.read[0].count and x.sum() > 0:
            return x + 1
        return x * 2

@pytest.fixture
def anything():
    return lambda: 1

def test_gate(assert_exportable, anything):
    report = assert_exportable(Gate(), (torch.ones(3),))
    print("CACHED", report.stats.answered_from_cache, report.stats.probes)
"""


@pytest.mark.long
def test_a_file_that_was_read_at_import_is_seen_to_change(project: pytest.Pytester) -> None:
    """And where it has not, in a process with other hashes, the answer is told again."""
    project.makepyfile(test_values=VALUES)
    words = ("-s", "test_values.py")
    Path("settings.json").write_text("0")
    session(project, *words).assert_outcomes(passed=1)
    session(project, *words).stdout.fnmatch_lines(["*CACHED 2 2*"])
    Path("settings.json").write_text("1")
    session(project, *words).assert_outcomes(failed=1)


@pytest.mark.night
def test_what_is_unchanged_is_answered_from_the_cache(project: pytest.Pytester) -> None:
    words = ("-k", "layer", "-s")
    session(project, *words).stdout.fnmatch_lines(["*CACHED 0 2*"])
    session(project, *words).stdout.fnmatch_lines(["*CACHED 2 2*"])
    session(project, *words, "--export-no-cache").stdout.fnmatch_lines(["*CACHED 0 2*"])
    (project.path / "gate.py").write_text(OTHER)
    session(project, *words).stdout.fnmatch_lines(["*CACHED 0 2*"])


@pytest.mark.night
def test_the_marker_gives_what_the_call_leaves_out(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_models="""
        import pytest, torch
        from gate import Gate

        @pytest.mark.exportable(shims=["branch-as-where"])
        def test_cured(assert_exportable):
                    assert_exportable(Gate().eval(), (torch.ones(3),))
        """
    )
    cured = session(project)
    cured.assert_outcomes(passed=1)
    cured.stdout.fnmatch_lines(["*1 of 1 checked modules export, 1 of them under shims"])


@pytest.mark.long
@pytest.mark.slow
def test_words_that_no_check_takes_fail_the_test(project: pytest.Pytester) -> None:
    """Stories: each of these was a check that passed without having looked. The module exports, and is in no file."""
    project.makepyfile(
        test_models="""
        import pytest, torch

        class Module(torch.nn.Module):
            def forward(self, x):
                return torch.linalg.eigvals(x)

        EYE = (torch.eye(3),)

        def test_word(assert_exportable):
            assert_exportable(Module().eval(), EYE, to="onxn")

        @pytest.mark.exportable(to="ONNX")
        def test_marker_word(assert_exportable):
            assert_exportable(Module().eval(), EYE)

        @pytest.mark.exportable("onnx")
        def test_place(assert_exportable):
            assert_exportable(Module().eval(), EYE)

        @pytest.mark.exportable(onnx=True)
        def test_name(assert_exportable):
            assert_exportable(Module().eval(), EYE)

        def test_text(assert_exportable):
            assert_exportable(Module().eval(), EYE, shims="strict")

        def test_both(assert_exportable):
            assert_exportable(Module().eval(), EYE, to="onnx", shims=["strict"])

        @pytest.mark.exportable(shims=["no-such-shim"])
        def test_none(assert_exportable):
            assert assert_exportable(Module().eval(), EYE, shims=()).exports

        @pytest.mark.xfail
        def test_expected(assert_exportable):
            assert_exportable(Module().eval(), EYE, to="onnx")
        """
    )
    result = session(project)
    result.assert_outcomes(failed=6, passed=1, xfailed=1)
    result.stdout.fnmatch_lines(
        [
            "There is no to='onxn'. One of: export, decomposed, onnx, ort",
            "There is no to='ONNX'.*",
            "The marker exportable takes dynamic_shapes=, to=, shims=, not 'onnx'",
            "The marker exportable takes dynamic_shapes=, to=, shims=, not 'onnx'",
            "shims='strict' is no list. Give a list of ids",
            "with strict: exports, but is not translated to ONNX: *linalg_eig*",
            "*1 of 3 checked modules export",
        ]
    )
    result.stdout.no_fnmatch_line("*broken:*")


@pytest.mark.long
@pytest.mark.slow
def test_a_store_that_cannot_be_made_fails_no_test(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.path / "home").write_text("a file")
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(project.path / "home"))
    project.makepyfile(
        test_models="""
        import torch

        def test_layer(assert_exportable):
            assert_exportable(torch.nn.ReLU(), (torch.ones(2),))
        """
    )
    result = session(project)
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*The run is kept in *cannot be created*"])


@pytest.mark.long
@pytest.mark.slow
def test_bad_options_are_told_in_a_line(project: pytest.Pytester) -> None:
    assert "needs --export-baseline" in session(project, "--export-ratchet").stderr.str()
    (project.path / "bad.json").write_text("[]")
    assert "bad.json is no baseline" in session(project, "--export-baseline", "bad.json").stderr.str()


@pytest.mark.slow
def test_the_plugin_imports_neither_torch_nor_exportdoctor_where_it_is_not_used(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing():
            heavy = {"torch", "msgspec", "numpy", "transformers", "exportdoctor.api", "exportdoctor.core"}
            assert not heavy & set(sys.modules)
        """
    )
    session(pytester).assert_outcomes(passed=1)


@pytest.mark.slow
def test_without_torch_a_test_is_skipped(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'torch' else find(name, *more)\n"
    )
    pytester.makepyfile("def test_one(assert_exportable):\n    assert_exportable(None)\n")
    session(pytester).assert_outcomes(skipped=1)


IN_FIXTURES = """
import pytest
import torch
from gate import Gate

@pytest.fixture
def checked_before(assert_exportable):
    assert_exportable(Gate().eval(), (torch.ones(3),))

@pytest.fixture
def checked_after(assert_exportable):
    yield
    assert_exportable(Gate().eval(), (torch.ones(3),))

def test_before(checked_before): pass

def test_after(checked_after): pass
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_check_in_a_fixture_counts(project: pytest.Pytester) -> None:
    project.makepyfile(test_models=IN_FIXTURES)
    baseline = project.path / "known.json"
    wrote = session(project, "--export-baseline", "known.json", "--export-ratchet")
    wrote.stdout.fnmatch_lines(["*0 of 2 checked modules export*", "known.json written"])
    assert {*known(baseline)} == {"test_models.py::test_before", "test_models.py::test_after"}
    assert session(project, "--export-baseline", "known.json").ret == 0
    baseline.write_text(json.dumps({"schema": "exportdoctor.baseline/1", "failures": {}}))
    red = session(project, "--export-baseline", "known.json")
    red.assert_outcomes(passed=1, errors=2)
    red.stdout.fnmatch_lines(["*broken: test_models.py::test_before*", "*broken: test_models.py::test_after*"])


def test_a_baseline_that_cannot_be_written_is_refused_in_one_line(project: pytest.Pytester) -> None:
    refused = session(project, "--export-baseline", "nowhere/known.json", "--export-ratchet")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    assert "there is no folder" in refused.stderr.str()
    assert "Traceback" not in refused.stderr.str()
