"""What a call leaves in plain values is seen, wherever it stands: torch.export drops it without a word."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import nn

from exportdoctor.targets.plain_state import plain_state
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
