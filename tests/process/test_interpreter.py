"""Another interpreter runs exportdoctor with its own packages; one that cannot is refused in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from exportdoctor.core.errors import UsageError
from exportdoctor.process import client, interpreter
from exportdoctor.process.interpreter import find_interpreter, find_project_python


def make_environment(folder: Path, **files: str) -> Path:
    """A virtual environment without packages but these files, by name with __ for a slash; its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    for name, text in files.items():
        path = site / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "bin" / "python"


def with_torch(folder: Path, version: str = "2.13.0", code: str = "") -> Path:
    """An environment with something that calls itself torch."""
    metadata = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
    python = make_environment(folder)
    site = next(folder.glob("lib/python3*/site-packages"))
    for path, text in ((f"torch-{version}.dist-info/METADATA", metadata), ("torch/__init__.py", code)):
        (site / path).parent.mkdir(exist_ok=True)
        (site / path).write_text(text)
    return python


def run(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line in `folder`, with its runs there."""
    known = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [sys.executable, "-P", client.START_MODULE, "exportdoctor", *arguments],
        cwd=folder,
        env={**known, "EXPORTDOCTOR_HOME": str(folder / "home"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def write_model(folder: Path) -> None:
    """A target that needs torch only."""
    (folder / "model.py").write_text(
        "import torch\n\n\ndef build():\n    return torch.nn.Linear(2, 2), (torch.ones(1, 2),)\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("#!/bin/sh\nexit 7\n", "does not work as a Python interpreter: it prints nothing"),
        ("#!/bin/sh\nyes\n", "does not work as a Python interpreter: y"),
        ('#!/bin/sh\necho "$@"\n', "does not work as a Python interpreter"),
        ("#!/bin/sh\necho broken >&2\necho 'See the manual' >&2\nexit 1\n", "as a Python interpreter: broken\n"),
        ("#!/bin/sh\ncase $2 in *sys.version*) echo exportdoctor sees 3.8;; *) exit 2;; esac\n", "is Python 3.8;"),
        ("no program", "cannot be run"),
    ],
)  # fmt: skip
def test_what_is_no_interpreter_is_refused_in_one_line(tmp_path: Path, script: str, said: str) -> None:
    path = tmp_path / "python"
    path.write_text(script)
    path.chmod(0o755 if script.startswith("#!") else 0o644)
    done = run("scan", "model.py:build", "--python", str(path), folder=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_one_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\nsleep 30\n")
    path.chmod(0o755)
    monkeypatch.setattr(interpreter, "INTERPRETER_SECONDS", 0.2)
    with pytest.raises(UsageError, match="does not answer within"):
        find_interpreter(str(path))


@pytest.mark.long
@pytest.mark.slow
def test_an_environment_that_cannot_be_diagnosed_is_refused_in_one_line(tmp_path: Path) -> None:
    write_model(tmp_path)
    empty, old = make_environment(tmp_path / "empty"), with_torch(tmp_path / "old", "2.4.1")
    crash = make_environment(
        tmp_path / "crash", **{"sitecustomize.py": "import os; print('boom', flush=True); os._exit(9)"}
    )
    broken = with_torch(tmp_path / "broken", code="raise ImportError('libcudart.so.12 is missing')")
    loud = make_environment(
        tmp_path / "loud", **{"sitecustomize.py": "import os; os.write(1, b'x' * 2_000_000); os._exit(0)"}
    )
    for python, said in (
        (empty, "has no torch"),
        (old, "torch 2.4.1; exportdoctor needs torch>=2.8"),
        (crash, "does not work as a Python interpreter: boom"),
        (broken, "cannot import torch: ImportError: libcudart.so.12 is missing"),
        (with_torch(tmp_path / "hollow", code=""), "cannot import torch: ModuleNotFoundError"),
        (loud, "does not work as a Python interpreter: xxx"),
        (tmp_path, "a folder without bin/python"),
        ("", "There is no interpreter ''"),
        ("nowhere", "There is no interpreter 'nowhere'"),
    ):
        done = run("scan", "model.py:build", "--python", str(python), "-q", folder=tmp_path)
        assert (done.returncode, said in done.stderr, done.stderr.count("\n")) == (2, True, 1), done.stderr
        assert len(done.stderr) < 500


@pytest.mark.slow
def test_the_folder_of_an_environment_names_its_interpreter(tmp_path: Path) -> None:
    python = with_torch(tmp_path / "env")
    found = find_interpreter(str(tmp_path / "env"))
    assert found.path == str(python)
    assert found.versions == {"torch": "2.13.0", "transformers": "", "exportdoctor": ""}
    assert not found.is_ours


def test_a_package_of_the_other_side_is_never_shadowed_and_no_other_package_travels_along(tmp_path: Path) -> None:
    code = "import json, sys\nimport click, msgspec, exportdoctor\n"
    code += "from importlib.util import find_spec\n"
    code += "print(json.dumps([click.__file__, exportdoctor.__file__, find_spec('torch') is None, "
    code += "find_spec('numpy') is None, find_spec('pytest') is None, find_spec('networkx') is None]))\n"
    python = make_environment(tmp_path / "env", **{"click.py": "", "look.py": code})
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), "-P", client.START_MODULE, "look"],
        env={**environment, "EXPORTDOCTOR_CARRIED": sysconfig.get_path("purelib")},
        capture_output=True,
        text=True,
        check=True,
    )
    click, ours, *absent = json.loads(done.stdout)
    assert click.startswith(str(tmp_path))
    assert Path(ours).parent == Path(client.START_MODULE).parents[1]
    assert absent == [True, True, True, False]


def test_the_projects_environment_is_the_nearest_up_to_the_projects_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    deep = project / "src" / "deep"
    deep.mkdir(parents=True)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").touch()
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.chdir(deep)
    assert find_project_python() == str(tmp_path / ".venv" / "bin" / "python")
    (project / "pyproject.toml").touch()
    assert find_project_python() == ""
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    assert find_project_python() == ""


@pytest.mark.long
@pytest.mark.slow
def test_a_scan_runs_in_the_projects_environment_with_its_packages(tmp_path: Path) -> None:
    write_model(tmp_path)
    talk = {"all.pth": sysconfig.get_path("purelib") + "\n", "sitecustomize.py": "print('hello')\n"}
    python = make_environment(tmp_path / ".venv", **talk)
    done = run("scan", "model.py:build", "--python", str(python), "-q", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parts"][0]["verdict"] == "passes"
    [events] = (tmp_path / "home" / "runs").glob("*/events.jsonl")
    first = json.loads(events.read_text().splitlines()[0])
    assert first["python"] == str(python)
