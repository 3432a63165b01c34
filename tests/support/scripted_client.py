"""Starts a script that plays a worker, and speaks with it as with a worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from exportdoctor.process.client import LineClient

_HERE = Path(__file__).parent


def start_script(name: str, **environment: str) -> LineClient:
    """The script of that name beside this file, in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, str(_HERE / name)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
        process_group=0,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    return LineClient(process.pid, process.stdin, process.stdout, process)
