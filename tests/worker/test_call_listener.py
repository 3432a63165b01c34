"""What code of the user's asks is heard when it asks, and not when its text only names it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exportdoctor.worker.call_listener import CallListener
from exportdoctor.worker.read_log import ReadLog


@pytest.fixture
def told() -> Iterator[list[str]]:
    reasons: list[str] = []
    before, of_threads = sys.getprofile(), threading.getprofile()
    sys.setprofile(None)  # that of an earlier test, whose target was built in this process and named a clock
    assert CallListener(reasons.append).start()
    yield reasons
    sys.setprofile(before)
    threading.setprofile(of_threads)  # type: ignore[arg-type]


def run(folder: Path, code: str) -> None:
    space: dict[str, Any] = {}
    exec(compile(code, str(folder / "target.py"), "exec"), space)


@pytest.mark.parametrize(
    ("code", "source"),
    [
        ("import time; time.time()", "the clock"),
        ("from time import perf_counter_ns as now; now()", "the clock"),
        ("import timeit; timeit.default_timer()", "the clock"),
        ("import time; time.strftime('%Y')", "the clock"),
        ("from datetime import datetime; datetime.now()", "the clock"),
        ("import datetime\nclass Day(datetime.date): pass\nDay.today()", "the clock"),
        ("exec('import time; time.time()')", "the clock"),
        ("import os; os.urandom(1)", "chance"),
        ("import uuid; uuid.uuid4()", "chance"),
        ("import secrets; secrets.token_bytes()", "chance"),
        ("import random; random.Random()", "chance"),
        ("import random; random.seed()", "chance"),
        ("import random; random.SystemRandom().random()", "chance"),
        ("import numpy; numpy.random.default_rng()", "chance"),
        ("import torch; torch.seed()", "chance"),
        ("import torch; torch.Generator().seed()", "chance"),
        ("import os; os.getpid()", "the process's number"),
        ("import threading, time\nt = threading.Thread(target=lambda: time.time())\nt.start(); t.join()", "the clock"),
    ],
)
def test_what_is_asked_is_told(code: str, source: str, told: list[str], tmp_path: Path) -> None:
    run(tmp_path, code)
    assert f"{source}, in target.py" in told


@pytest.mark.parametrize(
    "code",
    [
        "import time, random, secrets, uuid\ndef unused(): return time.time(), secrets.randbits(1), uuid.uuid4()",
        "import time; time.sleep(0)",
        "import random; random.Random(3).random()",
        "import random; random.seed(3)",
        "import numpy; numpy.random.default_rng(3)",
        "import torch; torch.manual_seed(3); torch.Generator().manual_seed(3)",
        "from datetime import datetime; datetime(2020, 1, 1).today",
        "import logging; logging.getLogger('x').error('y')",
        "class A:\n    def now(self): return 1\nA().now()",
    ],
)
def test_what_is_only_named_is_not(code: str, told: list[str], tmp_path: Path) -> None:
    run(tmp_path, code)
    assert told == []


def test_another_profiler_is_left_alone() -> None:
    def other(*_: object) -> None:
        """Hears everything."""

    sys.setprofile(other)
    try:
        assert not CallListener(print).start()
        assert sys.getprofile() is other
    finally:
        sys.setprofile(None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "reasons"),
    [
        ("random.random()", ("chance",)),
        ("random.seed(1); random.random()", ()),
        ("random.random(); random.seed(1)", ("chance",)),
        ("random.seed(1); random.seed(); random.random()", ("chance",)),
        ("numpy.random.seed(1); random.random()", ("chance",)),
        ("numpy.random.seed(1); numpy.random.rand()", ()),
    ],
)
def test_numbers_drawn_from_a_generator_that_nobody_seeded_are_chance(code: str, reasons: tuple[str, ...]) -> None:
    log = ReadLog()
    log.forget()
    with log.watch():
        exec(f"import numpy, random\n{code}")
    log.collect()
    assert log.reasons() == reasons
