"""Run as a file by a new interpreter: runs a module of the very exportdoctor that this file belongs to.

Nothing is put before what the interpreter would import by itself. With our parent folder on PYTHONPATH, which may be
site-packages, another transformers would be diagnosed than the one that the user put first.

If exportdoctor is not installed there (`process/interpreter.py`), EXPORTDOCTOR_CARRIED names the folders that hold what
it needs. A finder that is asked last takes from them the packages of `_NEEDED` and nothing else: the folders hold
another torch, too, and packages whose presence changes what a model does.

EXPORTDOCTOR_STDOUT is the descriptor of the real stdout (`hand_over`).
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

CARRIED = "EXPORTDOCTOR_CARRIED"
STDOUT = "EXPORTDOCTOR_STDOUT"
_NEEDED = frozenset({"click", "filelock", "jinja2", "markdown_it", "markupsafe", "mdurl", "msgspec", "networkx",
                     "packaging", "platformdirs", "psutil", "pygments", "rich", "yaml"})  # fmt: skip


class CarriedPackages(MetaPathFinder):
    """Finds in `places` what exportdoctor needs and the interpreter lacks."""

    def __init__(self, places: list[str]) -> None:
        self.places = places

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a package that is needed; its submodules are found by its own path."""
        return PathFinder.find_spec(fullname, self.places, target) if fullname in _NEEDED else None


def main() -> None:
    """Run the module that the first argument names as `__main__`, with the other arguments."""
    if kept := os.environ.pop(STDOUT, ""):
        sys.stdout.flush()
        os.dup2(int(kept), 1)
        os.close(int(kept))
        # the old stream believes that it can seek where stderr could
        old = sys.stdout
        sys.stdout = open(1, "w", encoding=old.encoding, errors=old.errors, closefd=False)  # noqa: SIM115
    package = Path(__file__).resolve().parents[1]
    spec = spec_from_file_location(package.name, package / "__init__.py", submodule_search_locations=[str(package)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[package.name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    if places := os.environ.get(CARRIED):
        sys.meta_path.append(CarriedPackages(places.split(os.pathsep)))
    elif str(package.parent) not in sys.path:
        sys.path.append(str(package.parent))  # what exportdoctor needs may be installed beside it only
    name = sys.argv.pop(1)
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
