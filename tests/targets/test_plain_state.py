"""What a call leaves in plain values is seen, wherever it stands: torch.export drops it without a word."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from exportdoctor.targets.held_state import restore_held_state
from exportdoctor.targets.plain_state import plain_state
from exportdoctor.worker.capture.outside_mentions import find_mentioned
from strict_state import COUNTING, HARMLESS


@pytest.mark.parametrize("build", COUNTING, ids=lambda build: build.__name__)
def test_each_call_that_counts_leaves_another_state(build: Callable[[], nn.Module]) -> None:
    module, states = build(), []
    for _ in range(4):
        states.append(plain_state(module))
        module(torch.ones(3))
    assert all(one != other for one, other in pairwise(states))


@pytest.mark.parametrize(
    "build", [one for one in HARMLESS if one.__name__ != "Buffered"], ids=lambda build: build.__name__
)
def test_a_call_that_leaves_nothing_leaves_the_state(build: Callable[[], nn.Module]) -> None:
    module = build()
    before = plain_state(module)
    module(torch.ones(3))
    assert plain_state(module) == before


class Replacing(nn.Module):
    n: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n = self.n + 1
        return x + self.n


NAMED: Any = object()


def test_a_module_that_a_file_names_is_noted_by_its_own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a model that was a variable of the script was said to change what its class registers as a buffer."""
    module = Replacing()
    alone = plain_state(module)
    monkeypatch.setattr(sys.modules[__name__], "NAMED", module)
    assert plain_state(module) == alone


class Link:
    def __init__(self, following: Link | None) -> None:
        self.following = following
        self.calls = 0


@pytest.mark.slow
def test_a_long_chain_of_objects_is_walked_to_its_end() -> None:
    module, chain = nn.Linear(2, 2), (last := Link(None))
    for _ in range(5000):
        chain = Link(chain)
    module.chain = chain  # type: ignore[assignment]
    before = plain_state(module)
    last.calls += 1
    assert plain_state(module) != before


def test_a_generator_of_random_numbers_that_was_drawn_from_is_another_state() -> None:
    module = nn.Linear(2, 2)
    module.random = random.Random(0)  # type: ignore[assignment]
    before = plain_state(module)
    module.random.random()  # type: ignore[operator, union-attr]
    assert plain_state(module) != before


class RefusesToHash(type):
    """A metaclass whose classes can neither be hashed nor compared."""

    def __hash__(cls) -> int:
        raise TypeError("no hash")

    def __eq__(cls, other: object) -> bool:
        raise TypeError("no comparison")


class Unhashable(metaclass=RefusesToHash):
    """An object of such a class."""


def give_forever(value: object) -> Iterator[object]:
    while True:
        yield value


def held_alone() -> object:
    return Unhashable()


def held_by_a_generator() -> object:
    made = give_forever(Unhashable())
    next(made)
    return made


@pytest.mark.parametrize("make", [held_alone, held_by_a_generator])
def test_objects_of_classes_that_cannot_be_hashed_are_left_alone(make: Callable[[], Any]) -> None:
    module = nn.Linear(1, 1)
    module.held = held = make()
    plain_state(module)
    with restore_held_state(module):
        pass
    assert module.held is held


@pytest.mark.long
def test_a_checkout_of_torch_is_none_of_the_models_files(tmp_path: Path) -> None:
    def link(source: str, copy: str) -> None:
        try:
            os.link(source, copy)
        except OSError:  # another file system
            shutil.copy2(source, copy)

    shutil.copytree(Path(torch.__file__).parent, tmp_path / "torch", copy_function=link, symlinks=True)
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n\ncalls = 3\n\n\n"
        "class Net(nn.Module):\n    def forward(self, x):\n        return F.relu(x) * calls + torch.ones(2)\n"
    )
    script = (
        "import net, torch\nfrom exportdoctor.targets.plain_state import plain_state\n"
        "found = plain_state(net.Net())\nprint(torch.__file__)\n"
        "print('net.calls' in found, sum('torch' in key for key in found))\n"
    )
    paths = [str(tmp_path), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    file, found = done.stdout.splitlines()
    assert file.startswith(str(tmp_path))
    assert found == "True 0"


class AnswersAnything:
    """A lazily loaded library, say: it has no `__dict__`, and gives something for every name."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return 1


LIBRARY = AnswersAnything()


class NamesLibrary(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if LIBRARY is None else x + 1


def test_a_variable_that_answers_to_every_name_holds_nothing() -> None:
    """Story: the whole scan ended with an AttributeError of an int."""
    module = NamesLibrary()
    assert plain_state(module) == plain_state(module)
    assert find_mentioned([module]) == find_mentioned([module, NamesLibrary()])
