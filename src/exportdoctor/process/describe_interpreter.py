"""Run by `start_module.py` in another interpreter: prints what it is and has, as one line of JSON behind a mark.

Neither torch nor transformers is imported: their versions are read from their metadata.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module, metadata
from importlib.util import find_spec

MARK = "exportdoctor describes: "
_USED = ("click", "filelock", "packaging", "platformdirs", "rich", "yaml", "exportdoctor.process.client")
_ASKED = ("torch", "transformers", "exportdoctor")


def main() -> None:
    """Print one line. What keeps exportdoctor from running here is its `lacks`."""
    lacks = ""
    try:
        for name in _USED:
            import_module(name)
    except Exception as error:
        lacks = f"{type(error).__name__}: {error}"
    facts = {
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "prefix": sys.prefix,
        "lacks": lacks,
        "versions": {name: _version(name) for name in _ASKED},
    }
    print(f"\n{MARK}{json.dumps(facts)}", flush=True)


def _version(name: str) -> str:
    """Empty if it is not there; a copy without metadata is there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown" if name != "exportdoctor" and find_spec(name) is not None else ""


if __name__ == "__main__":
    main()
