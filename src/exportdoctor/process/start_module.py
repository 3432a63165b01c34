"""Run as a file by a new interpreter: runs a module of the very exportdoctor that this file belongs to.

Nothing is put before what the interpreter would import by itself. With our parent folder on PYTHONPATH, which may be
site-packages, another transformers would be diagnosed than the one that the user put first.
"""

from __future__ import annotations

import runpy
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def main() -> None:
    """Run the module that the first argument names as `__main__`, with no arguments."""
    package = Path(__file__).resolve().parents[1]
    spec = spec_from_file_location(package.name, package / "__init__.py", submodule_search_locations=[str(package)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[package.name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    if str(package.parent) not in sys.path:
        sys.path.append(str(package.parent))  # what exportdoctor needs may be installed beside it only
    name = sys.argv.pop(1)
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
