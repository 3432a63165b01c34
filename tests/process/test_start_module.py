"""A worker imports what the user's own Python would import, and this very exportdoctor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

import exportdoctor
from exportdoctor.process import client

_LOOK = """
import json, sys
import click, exportdoctor, exportdoctor.core.errors
print(json.dumps([sys.path, click.__file__, exportdoctor.__file__, exportdoctor.core.errors.__file__, sys.argv[1:]]))
"""
_INSTALLED = str(Path(click.__file__).parents[1])
_OURS = str(Path(exportdoctor.__file__).resolve().parent)


def look(folders: list[str]) -> tuple[list[str], str, str, str, list[str]]:
    """What a module sees that is started with these folders on PYTHONPATH."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    command = [sys.executable, "-P", client.START_MODULE, "look"]
    found: tuple[list[str], str, str, str, list[str]] = json.loads(
        subprocess.run(command, env=environment, check=True, capture_output=True).stdout
    )
    return found


@pytest.mark.parametrize("further", [[], [_INSTALLED], [str(Path(_OURS).parent)], ["other"]])
def test_the_users_folders_stay_first_and_exportdoctor_is_this_one(tmp_path: Path, further: list[str]) -> None:
    mine = tmp_path / "mine"
    (mine / "exportdoctor").mkdir(parents=True)
    (mine / "exportdoctor" / "__init__.py").write_text("raise SystemExit('another exportdoctor')")
    (mine / "look.py").write_text(_LOOK)
    (mine / "click.py").write_text("")
    path, package, ours, room, arguments = look([str(mine), *further])
    assert path[0] == str(mine)
    assert package == str(mine / "click.py")
    assert Path(ours).parent == Path(_OURS)
    assert Path(room).is_relative_to(_OURS)
    assert not arguments


def test_no_folder_comes_before_those_that_python_itself_would_search(tmp_path: Path) -> None:
    (tmp_path / "look.py").write_text(_LOOK)
    path = look([str(tmp_path), str(tmp_path / "second")])[0]
    plain = [sys.executable, "-P", "-c", "import json, sys; print(json.dumps(sys.path))"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{tmp_path / 'second'}"}
    wanted = json.loads(subprocess.run(plain, env=environment, check=True, capture_output=True).stdout)
    assert path[: len(wanted)] == wanted


def test_what_an_interpreter_prints_at_its_start_is_no_output_and_leaves_the_stream_usable(tmp_path: Path) -> None:
    """Until it runs us its stdout is our stderr, here a file; the real one is a pipe, which cannot seek."""
    (tmp_path / "sitecustomize.py").write_text("print('welcome')")
    (tmp_path / "tell.py").write_text("import sys\nsys.stdout.reconfigure(errors='replace')\nprint('answer')")
    reader, writer = os.pipe()
    with os.fdopen(reader) as real, (tmp_path / "errors").open("w") as errors:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "EXPORTDOCTOR_STDOUT": str(writer)}
        subprocess.run(
            [sys.executable, "-P", client.START_MODULE, "tell"],
            env=environment, check=True, stdout=errors, stderr=errors, pass_fds=(writer,),
        )  # fmt: skip
        os.close(writer)
        assert real.read() == "answer\n"
    assert (tmp_path / "errors").read_text() == "welcome\n"
