"""`python -m exportdoctor.torch_internals` prints the table of hooks for the installed torch as JSON."""

from __future__ import annotations

import json


def main() -> None:
    """Print the versions and the hooks on standard output."""
    from importlib.metadata import version

    from exportdoctor.torch_internals.hook_table import hook_records

    print(json.dumps({"torch": version("torch"), "hooks": hook_records()}, indent=2))


if __name__ == "__main__":
    main()
