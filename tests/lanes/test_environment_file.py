"""What is read from a requirements or lock file is what an installer would take of it here; the rest is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from exportdoctor.core.errors import UsageError
from exportdoctor.lanes.bisect_environments import find_difference, read_environment
from exportdoctor.lanes.environment_file import Environment, read_environment_file

REQUIREMENTS = """
# of `uv pip compile --universal`
einops==0.8.0 ; python_version >= "3.11" \\
    --hash=sha256:00 --hash=sha256:11
einops==0.7.0 ; python_version < "3.11"
Typing_Extensions[extra]===4.12.0  # a comment
pywin32==310 ; sys_platform == "win32"
-rmore/base.txt
--constraint=limits.txt
--index-url https://example.org/simple
-e git+https://example.org/own.git#egg=own
tool @ https://example.org/tool-1.0-py3-none-any.whl
loose>=1
limited
wild==1.*
not a requirement
"""
UV = """
version = 1
[[package]]
name = "app"
version = "0.1.0"
source = { virtual = "." }
[[package]]
name = "einops"
version = "0.7.0"
source = { registry = "https://pypi.org/simple" }
resolution-markers = ["python_full_version < '3.11'"]
[[package]]
name = "einops"
version = "0.8.0"
source = { registry = "https://pypi.org/simple" }
resolution-markers = ["python_full_version >= '3.11'", "python_full_version < '3.2'"]
wheels = [{ url = "https://files.example.org/a/einops-0.8.0-py3-none-any.whl", size = 1 }]
[[package]]
name = "pywin32"
version = "310"
source = { registry = "https://pypi.org/simple" }
wheels = [{ url = "https://files.example.org/a/pywin32-310-cp311-cp311-win_amd64.whl", size = 1 }]
[[package]]
name = "forked"
version = "1.0"
source = { git = "https://example.org/forked.git" }
"""
POETRY = """
[[package]]
name = "einops"
version = "0.8.0"
markers = {main = "python_version < '3'", dev = "python_version >= '3'"}
files = [{file = "einops-0.8.0-py3-none-any.whl", hash = "x"}, {file = "einops-0.8.0.tar.gz", hash = "x"}]
[[package]]
name = "old"
version = "1.0"
markers = "python_version < '3'"
[[package]]
name = "mirrored"
version = "1.0"
[package.source]
type = "legacy"
url = "https://example.org/simple"
[[package]]
name = "own"
version = "1.0"
[package.source]
type = "directory"
url = "own"
[[package]]
name = "source-only"
version = "1.0"
files = [{file = "source_only-1.0.tar.gz", hash = "x"}]
"""
PYLOCK = """
lock-version = "1.0"
[[packages]]
name = "einops"
version = "0.8.0"
marker = "python_version >= '3' or 'dev' in dependency_groups"
wheels = [{name = "einops-0.8.0-py3-none-any.whl", url = "https://example.org/x"}]
[[packages]]
name = "own"
directory = {path = "."}
[[packages]]
name = "source-only"
version = "1.0"
sdist = {name = "source_only-1.0.tar.gz"}
[[packages]]
name = "other"
version = "1.0"
marker = "sys_platform == 'win32'"
"""


def left_out(found: Environment) -> set[str]:
    return {said.split()[0] for said in found.left_out}


def test_requirements_are_read_as_pip_reads_them(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "base.txt").write_text("-r ../main.txt\n-r deeper.txt\n")  # a circle, and a path of its own
    (tmp_path / "more" / "deeper.txt").write_text("tqdm==4.66.0\n")
    (tmp_path / "limits.txt").write_text("limited==3.0\nunused==1.0\n")
    (tmp_path / "main.txt").write_text(REQUIREMENTS)
    found = read_environment_file(tmp_path / "main.txt")
    assert found.versions == {"einops": "0.8.0", "typing-extensions": "4.12.0", "tqdm": "4.66.0", "limited": "3.0"}
    assert left_out(found) == {"git+https://example.org/own.git#egg=own", "tool", "loose>=1", "wild==1.*", "'not"}


@pytest.mark.parametrize(
    ("lock", "versions", "out"),
    [
        (UV, {"einops": "0.8.0"}, {"app", "pywin32", "forked"}),
        (POETRY, {"einops": "0.8.0", "mirrored": "1.0"}, {"own", "source-only"}),
        (PYLOCK, {"einops": "0.8.0"}, {"own", "source-only"}),
    ],
    ids=["uv", "poetry", "pylock"],
)
def test_of_a_lock_file_what_is_for_this_python_is_taken(
    lock: str, versions: dict[str, str], out: set[str], tmp_path: Path
) -> None:
    (tmp_path / "any.lock").write_text(lock)
    found = read_environment_file(tmp_path / "any.lock")
    assert found.versions == versions
    assert left_out(found) == out


def test_a_package_that_is_pinned_twice_keeps_its_first_version_and_is_told(tmp_path: Path) -> None:
    (tmp_path / "twice.txt").write_text("a==1\na==2\na==1\n")
    found = read_environment_file(tmp_path / "twice.txt")
    assert (found.versions, found.left_out) == ({"a": "1"}, ("a is pinned twice; 1 is taken, 2 is not",))


@pytest.mark.parametrize(
    ("text", "said"), [("-r gone.txt", "gone.txt cannot be read"), ("a>=1", "pins no package (a>=1 names no version")]
)
def test_a_file_that_gives_no_versions_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "none.txt").write_text(text)
    with pytest.raises(UsageError) as told:
        read_environment(str(tmp_path / "none.txt"))
    assert said in told.value.message


def test_a_build_of_a_release_is_no_other_release() -> None:
    """Lock files name no builds: a second torch was installed for `2.13.0` beside `2.13.0+cpu`."""
    works = Environment({"torch": "2.13.0+cpu", "a": "1", "b": "1+x", "c": "1"})
    fails = Environment({"torch": "2.13.0", "a": "2", "b": "1+y", "d": "1"})
    changed = [(one.package, one.works, one.fails) for one in find_difference(works, fails)]
    assert changed == [("a", "1", "2"), ("b", "1+x", "1+y"), ("c", "1", ""), ("d", "", "1")]
