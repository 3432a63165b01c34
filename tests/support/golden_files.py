"""Golden files: what a function writes, compared with the bytes kept in tests/report/golden.

Renew them with `EXPORTDOCTOR_RENEW_GOLDEN=1 pytest tests/report/test_report.py`; read the difference before a commit.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "report" / "golden"


def assert_golden(text: str, name: str) -> None:
    """`text` must be, byte for byte, what the golden file `name` holds."""
    file = FOLDER / name
    if os.environ.get("EXPORTDOCTOR_RENEW_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(text.encode())
    assert file.exists(), f"{file} is missing: renew it with EXPORTDOCTOR_RENEW_GOLDEN=1"
    assert text.encode() == file.read_bytes()
