"""What every test may rely on: the width of a report is not the accident of who started pytest."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
"""The suite keeps all processors busy: threads that wait for each other would only take them from other tests."""

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
"""A GPU is looked for without CUDA's driver: a process that has started it cannot fork attempts that use it."""

settings.register_profile("day", derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "day"))
"""By day each search draws the same cases, so that a change is to blame for what it finds; by night others. No case
has a deadline: the machine may be busy."""


@pytest.fixture(autouse=True)
def _no_terminal_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest-xdist gives its workers COLUMNS, which a report would obey."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("LINES", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home in which the newest run is the test's: tests that run beside it write theirs into the user's."""
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path / "home"))


def pytest_collection_finish() -> None:
    """What imports and collection made stays: no collection of garbage walks it again, here or in a fork."""
    gc.freeze()
