"""Reads and writes a baseline: a JSON file that is kept in a repository."""

from __future__ import annotations

from pathlib import Path

import msgspec

from exportdoctor.core.codec import decode, pretty
from exportdoctor.core.errors import StoreError, UsageError
from exportdoctor.core.run.known_failures import BASELINE_SCHEMA, Baseline
from exportdoctor.store.atomic_write import replace_file


class _Kind(msgspec.Struct):
    """What a JSON file says that it is."""

    schema: str = ""


def read_baseline(path: Path, *, missing_ok: bool = False) -> Baseline:
    """The baseline in a file. Raises UsageError where there is none."""
    try:
        content = path.read_bytes()
        schema: str = decode(content, _Kind).schema
        found = decode(content, Baseline) if schema == BASELINE_SCHEMA else None
    except FileNotFoundError:
        if missing_ok:
            return Baseline()
        raise UsageError(f"there is no baseline {path}", hint="Write one with --update-baseline") from None
    except (OSError, StoreError) as error:
        raise UsageError(f"{path} is no baseline: {error}", hint="Delete it, and write it anew") from error
    if found is None:
        what = f"its schema is {schema!r}" if schema else "it names no schema"
        raise UsageError(f"{path} is no baseline: {what}", hint=f"Expected {BASELINE_SCHEMA}")
    return found


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Replace the file, so that equal baselines are equal bytes. Raises StoreError."""
    replace_file(path, pretty(baseline))
