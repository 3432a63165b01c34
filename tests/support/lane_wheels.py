"""Wheels in a local folder that tests make, and the variables with which pip finds them and nothing else."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path


def write_wheel(folder: Path, version: str, name: str = "oddity", files: Mapping[str, str] | None = None) -> None:
    """A wheel of a package that is nowhere else; by default of one module with its version."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in (files or {f"{name}.py": f"__version__ = {version!r}\n"}).items():
            wheel.writestr(path, text)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def offline_variables(folder: Path) -> dict[str, str]:
    """pip finds the wheels in folder/wheels, uv is not there, and everything is kept in folder/home."""
    return {
        **os.environ,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder / "wheels"),
        "PIP_CONFIG_FILE": os.devnull,
        "PATH": "/usr/bin:/bin",
        "EXPORTDOCTOR_HOME": str(folder / "home"),
    }


_INSTALLER = """#!{python} -IS
import os, sys, zipfile
pins = [word.split("==") for word in sys.argv if "==" in word]
for name, version in pins:
    wheel = os.environ["PIP_FIND_LINKS"] + f"/{{name}}-{{version}}-py3-none-any.whl"
    if not os.path.exists(wheel):
        sys.exit(f"error: there is no {{name}} {{version}}")
    if "--dry-run" in sys.argv:
        print(f" + {{name}}=={{version}}")
    else:
        zipfile.ZipFile(wheel).extractall(sys.argv[sys.argv.index("--target") + 1])
"""


def fast_variables(folder: Path) -> dict[str, str]:
    """As `offline_variables`, with a script that plays uv: pip takes a second for each lane."""
    uv = folder / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(_INSTALLER.format(python=sys.executable))
    uv.chmod(0o755)
    found = offline_variables(folder)
    return {**found, "PATH": f"{uv.parent}:{found['PATH']}"}
