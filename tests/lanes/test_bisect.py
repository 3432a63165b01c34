"""Where a failure came or went is told as far as it was seen, and what changed is read from both releases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exportdoctor.cli import main
from exportdoctor.core.codec import decode
from exportdoctor.core.errors import UsageError
from exportdoctor.core.run.bisection import VersionBisection
from exportdoctor.core.run.lane_matrix import FailureName, StackLine
from exportdoctor.lanes.bisect_environments import bisect_environments, read_environment
from exportdoctor.lanes.bisect_versions import VersionRange, bisect_versions
from exportdoctor.lanes.code_changes import code_changes
from exportdoctor.lanes.environment_file import Environment
from exportdoctor.lanes.lane import Lane, LaneSpec
from exportdoctor.lanes.lane_question import script_question
from exportdoctor.lanes.releases import releases_between
from exportdoctor.report.bisection_text import render_bisection
from exportdoctor.report.wording.version_searches import changes_title
from lane_wheels import fast_variables, write_wheel

SCRIPT = "import oddity.torch.export as it\nit.export()\n"
EXPORT = """from {other} import LIMIT

def check(value):
    if value > {limit}:
        raise RuntimeError("a value of %d is too large" % value)

def export():
    check(LIMIT)
"""
OTHER = "try:\n    from strange import LIMIT\nexcept ImportError:\n    LIMIT = 5\n"


def release(folder: Path, version: str, limit: int, before: str = "") -> None:
    """oddity with a function that fails for a value above `limit`; its file lies where torch's exporter would."""
    files = {"oddity/__init__.py": before, "oddity/torch/__init__.py": "", "oddity/other.py": OTHER}
    text = EXPORT.format(other="oddity.other", limit=limit)
    write_wheel(folder / "wheels", version, files={**files, "oddity/torch/export/__init__.py": text})


def strange(folder: Path, version: str, limit: int) -> None:
    """A package that changes the value that oddity checks."""
    write_wheel(folder / "wheels", version, "strange", {"strange.py": f"LIMIT = {limit}\n"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the script; pip finds the wheels that a test puts there."""
    (tmp_path / "script.py").write_text(SCRIPT)
    for name, value in fast_variables(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.long
@pytest.mark.slow
def test_the_release_that_mends_is_found_around_one_that_cannot_be_imported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for version, limit, before in [("1.0", 3, ""), ("1.1", 3, ""), ("1.2", 9, "import nowhere\n"), ("1.10", 9, "")]:
        release(folder, version, limit, before)
    assert main.run(["bisect", "script.py", "--package", "oddity", "--format", "json"]) == 0
    out, said = capsys.readouterr()
    answer = json.loads(out)
    [turn] = answer["turns"]
    assert (turn["failing"], turn["passing"], turn["came"], turn["pin"]) == ("1.1", "1.10", False, "oddity>=1.10")
    states = {trial["name"]: trial["cell"]["state"] for trial in answer["trials"]}
    assert states == {"1.0": "same failure", "1.1": "same failure", "1.2": "unknown", "1.10": "passes"}
    check, export = turn["changes"]
    assert (check["function"], export["function"]) == ("check", "export")
    assert "-    if value > 3:\n+    if value > 9:" in check["diff"]
    assert not export["diff"]
    assert "exportdoctor: 1.10: passes, asked again" in said
    text = render_bisection(decode(out.encode(), VersionBisection), "md")
    assert "Gone: oddity 1.1 fails, 1.10 passes; each was asked twice. Of 1.2 in between it is not known" in text
    assert "```python\nimport oddity.torch.export as it\n" in text
    other = {"oddity/torch/export/other.py": "import json\nTEXT = json.loads('{')\n", "oddity/torch/__init__.py": ""}
    other |= {"oddity/__init__.py": "", "oddity/torch/export/__init__.py": "from oddity.torch.export.other import TEXT"}
    write_wheel(folder / "wheels", "1.11", files=other)
    releases = VersionRange("oddity", ("1.0", "1.1", "1.11"), {})
    text = render_bisection(bisect_versions(script_question("script.py", SCRIPT), releases, print), "md")
    assert "Turned into another failure: oddity 1.1 shows another one, 1.11 this (RuntimeError: a value" in text
    alike = bisect_versions(script_question("script.py", SCRIPT), VersionRange("oddity", ("1.0", "1.1"), {}), print)
    assert not alike.turns
    assert "1.0 and 1.1 both fail in the same way" in render_bisection(alike, "md")


THING = "class Thing:\n    size = {size}\n\n\nclass Other(Thing):\n    pass\n\n\n{registered}"


def test_where_no_function_of_the_package_is_on_the_stack_what_the_message_names_is_compared(folder: Path) -> None:
    lanes = []
    for version, size, registered in [("1.0", 1, "Thing.registered = True\n"), ("1.1", 2, ""), ("1.2", 2, "")]:
        lane = Lane(name=version, spec=LaneSpec(packages={"oddity": version}), prefix="")
        (lane.folder / "site-packages" / "oddity").mkdir(parents=True)
        (lane.folder / "site-packages" / "oddity" / "things.py").write_text(
            THING.format(size=size, registered=registered)
        )
        (lane.folder / "site-packages" / "oddity" / "dummies.py").write_text("class Thing: ...\n")
        lanes.append(lane)
    passing, failing, alike = lanes
    message = "Unsupported input type <class 'oddity.things.Thing'>"
    failure = FailureName(exception="ValueError", message=message, stack=(StackLine(file="torch/x.py", line=1),))
    mentions, code = changes = code_changes("oddity", failure, failing, passing)
    assert (mentions.file, mentions.function, code.function) == ("oddity/things.py", "what mentions Thing", "Thing")
    assert "+Thing.registered = True" in mentions.diff
    assert "-    size = 2\n+    size = 1" in code.diff
    assert changes_title(changes).startswith("The failing stack has no function of the package. What changed")
    silent = FailureName(exception="ValueError", message="?")
    assert code_changes("oddity", silent, failing, passing, script="from oddity import Thing") == changes
    for script in ("import oddity", "from oddity import Nobody", "no python"):
        assert not code_changes("oddity", silent, failing, passing, script=script)
    assert not code_changes("oddity", failure, failing, alike)
    assert "Nor does the message or the script name anything of it that changed" in changes_title(())


@pytest.mark.long
@pytest.mark.slow
def test_packages_that_fail_only_together_are_told_as_such(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    release(folder, "1.0", 9)
    release(folder, "1.1", 6)
    for version, limit in [("1.0", 5), ("1.1", 7), ("1.2", 10)]:
        strange(folder, version, limit)
    (folder / "good.txt").write_text("# as pip freeze\noddity==1.0\nstrange==1.0\n-e git+nowhere\n")
    (folder / "pair.lock").write_text(
        '[[package]]\nname = "oddity"\nversion = "1.1"\n[[package]]\nname = "Strange"\nversion = "1.1"\n'
    )
    question = script_question("script.py", SCRIPT)
    works = read_environment("good.txt")
    answer = bisect_environments(question, works, read_environment("pair.lock"), print)
    assert [one.package for one in answer.together] == ["oddity", "strange"]
    assert not answer.alone
    assert not answer.unknown
    assert any("-    if value > 6:\n+    if value > 9:" in change.diff for change in answer.changes)
    answer = bisect_environments(question, works, Environment({"oddity": "1.1", "strange": "1.2"}), print)
    assert [one.line for one in answer.alone] == ["strange 1.0 -> 1.2"]
    assert "Fails with this alone: strange 1.0 -> 1.2." in render_bisection(answer, "md")
    (folder / "gone.txt").write_text("oddity==1.1\nstrange==7\n")
    assert main.run(["bisect", "script.py", "--works", "good.txt", "--fails", "gone.txt", "-q"]) == 1
    assert "the environment that fails: unknown" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("script.py",), "Give --package NAME"),
        (("script.py", "--package", "nobody"), "no index that can be reached has nobody"),
        (("script.py", "--package", "od/d"), "is no package"),
        (("script.py", "--works", "script.py", "--fails", "here"), "script.py pins no package"),
        (("script.py", "--works", "here", "--fails", "."), "cannot be read"),
        (("nowhere.py:build", "--package", "oddity"), "nowhere.py"),
        (("norun", "F1", "--package", "oddity"), "there is no run 'norun'"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main.run(["bisect", *words]) == 2
    out, errors = capsys.readouterr()
    assert not out
    assert said in errors
    assert errors.count("\n") == 1
    assert not (folder / "home" / "cache" / "lanes").exists()


def test_only_releases_that_there_are_can_be_ends() -> None:
    there = ("4.52.0", "4.53.0", "5.0.0", "5.1.0")
    assert releases_between("transformers", there, "", "") == there[1:]
    assert releases_between("transformers", there, "4.52.0", "5.0.0") == there[:3]
    assert releases_between("transformers", there, "5.0", "5.1") == there[2:]
    for first, last, said in [
        ("4.99", "", "The nearest are 4.53.0 and 5.0.0"),
        ("", "6", "The nearest is 5.1.0"),
        ("new", "", "The nearest is 5.1.0"),
        ("5.1.0", "", "no two"),
    ]:
        with pytest.raises(UsageError) as error:
            releases_between("transformers", there, first, last)
        assert said in error.value.line()


MODEL = """import torch

class Inner(torch.nn.Module):
    def forward(self, x):
        {line}
        return x + 1

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x) * 2
"""
FACTORY = "import torch\nfrom oddity import Model\n\ndef build():\n    return Model(), (torch.ones(3),)\n"


@pytest.mark.night
def test_a_target_is_searched_on_its_failing_submodule_and_confirmed_on_the_whole(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for version, line in [
        ("1.0", "pass"),
        ("1.1", "x = -x if x.sum() > 0 else x"),
        ("1.2", "x = x if x.sum() > 1 else -x"),
    ]:
        write_wheel(folder / "wheels", version, files={"oddity/__init__.py": MODEL.format(line=line)})
    (folder / "model.py").write_text(FACTORY)
    assert main.run(["bisect", "model.py:build", "--package", "oddity", "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["about"] == "submodule inner of part default"
    [turn] = answer["turns"]
    assert (turn["failing"], turn["passing"], turn["came"], turn["pin"]) == ("1.1", "1.0", True, "oddity<=1.0")
    whole = {one["name"]: one["cell"]["state"] for one in turn["whole"]}
    assert whole == {"1.1": "same failure", "1.0": "passes"}
    change = turn["changes"][0]
    assert change["function"] == "Inner.forward"
    assert "+        pass" in change["diff"]
