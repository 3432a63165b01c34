"""The digest of the values in a file changes with each of them, and with nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from exportdoctor.targets.loaded_values import digest_values

ATOMS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    ATOMS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner), max_leaves=8
)


def file_with(**values: object) -> ModuleType:
    made = ModuleType("made")
    vars(made).update(values)
    return made


@given(VALUES, VALUES)
def test_equal_values_have_one_digest_and_others_have_others(first: object, second: object) -> None:
    same = repr(first) == repr(second)
    assert (digest_values([file_with(it=first)]) == digest_values([file_with(it=second)])) == same


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held: object) -> None:
        self.held = held


class Number(int):
    """A number of a class of its own."""


def around(value: object) -> object:
    def inner(default: object = value) -> object:
        return value, default

    inner.__module__ = "made"
    return inner


HOLDERS: dict[str, Callable[[int], object]] = {
    "an object": Slotted,
    "a function": around,
    "a class": lambda value: type("Kind", (), {"__module__": "made", "it": value}),
    "a list in a list": lambda value: [[value]],
    "a tensor": lambda value: torch.tensor([value]),
    "an array": lambda value: numpy.array([value]),
    "an attribute of a module": lambda value: torch.nn.BatchNorm1d(1, eps=value),
    "a number": Number,
    "a set": lambda value: {"a", "b", value},
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=list(HOLDERS))
def test_a_value_is_seen_wherever_it_stands(holder: Callable[[int], object]) -> None:
    one, other, again = (digest_values([file_with(it=holder(value))]) for value in (1, 2, 1))
    assert one == again
    assert one != other


def test_of_what_cannot_be_looked_at_no_two_digests_are_equal() -> None:
    held: list[object] = []
    for _ in range(5000):
        held = [held]
    with FakeTensorMode():
        without_values = torch.ones(3)
    for much in (held, list(range(300_000)), without_values):
        assert digest_values([file_with(it=much)]) != digest_values([file_with(it=much)])


CODE = """
import argparse, collections, enum, functools, json, logging, pathlib, re, sys, threading, types
from dataclasses import dataclass
import numpy, torch
from exportdoctor.targets.loaded_values import digest_values
class Colour(enum.Enum):
    RED = 1
@dataclass
class Settings:
    names: frozenset = frozenset("abc")
    lock: object = None
IT = [Settings(), Settings(lock=threading.Lock()),
      argparse.Namespace(a={"x", "y", "z"}), types.SimpleNamespace(b={1: 2}),
      colour := Colour.RED]
LOG, PATTERN, PLACE = logging.getLogger("x"), re.compile("a"), pathlib.Path("a")
TENSOR, ARRAY, LAYER = torch.arange(4), numpy.arange(3), torch.nn.ReLU()
CALLED, COUNTED = functools.partial(print, {"p", "q"}), collections.Counter("aab")
torch.nn.Linear(1, 1)
print(digest_values([sys.modules["__main__"]]))
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_digest_is_the_same_in_another_process(tmp_path: Path) -> None:
    """Which has other addresses, and other hashes of texts."""
    (tmp_path / "of_values.py").write_text(CODE)
    found = {
        subprocess.run(
            [sys.executable, "of_values.py"],
            cwd=tmp_path, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True, text=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(found) == 1, json.dumps(sorted(found))
