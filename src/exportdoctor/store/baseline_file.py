"""Reads and writes a baseline: a JSON file that is kept in a repository."""

from __future__ import annotations

from pathlib import Path

from exportdoctor.core.codec import decode, pretty
from exportdoctor.core.errors import StoreError, UsageError
from exportdoctor.core.run.known_failures import BASELINE_SCHEMA, Baseline
from exportdoctor.store.atomic_write import replace_file


def read_baseline(path: Path, *, missing_ok: bool = False) -> Baseline:
    """The baseline in a file. Raises UsageError where there is none."""
    try:
        found: Baseline = decode(path.read_bytes(), Baseline)
    except FileNotFoundError:
        if missing_ok:
            return Baseline()
        raise UsageError(f"there is no baseline {path}", hint="Write one with --update-baseline") from None
    except (OSError, StoreError) as error:
        raise UsageError(f"{path} is no baseline: {error}", hint="Delete it, and write it anew") from error
    if found.schema != BASELINE_SCHEMA:
        raise UsageError(f"{path} is no baseline: its schema is {found.schema!r}", hint=f"Expected {BASELINE_SCHEMA}")
    return found


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Replace the file, so that equal baselines are equal bytes. Raises StoreError."""
    replace_file(path, pretty(baseline))
