"""Conditions on numbers that another function has read from a tensor, or on sizes that it has found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agreeing_programs import assert_agrees, chosen_program, drawn_rows
from exportdoctor.shims import ExportCall
from exportdoctor.shims.rules.code.asked_lines import SizedByValues, asked_lines
from exportdoctor.shims.rules.code.followed_numbers import FollowedNumbers
from written_modules import net_with_forward

HEAD = """import torch
from torch import nn


class Found(nn.Module):
    def forward(self, x):
        found = x[x[:, 0] > 0.5]
        return found, found.shape[0]


class Counted(nn.Module):
    def forward(self, x):
        return x * 2, (x > 0).sum().item()


class Scaled(nn.Module):
    def forward(self, x, n):
        return x.sum(0) if n > 2 else x.amax(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.found, self.counted, self.scaled = Found(), Counted(), Scaled()

    def forward(self, x):
"""
CHOSEN = {
    "rows": "f, n = self.found(x)\ny = x\nif n > 0: y = y + f.sum(0)\nreturn y",
    "a count": "f, n = self.counted(x)\nif n == 0: return x\nreturn f / n",
    "its truth": "f, n = self.counted(x)\nif not n: return x\nreturn f",
    "reckoned with": "f, n = self.counted(x)\nreturn f if 2 * n - 3 > x.shape[1] else x",
    "both sides": "f, n = self.found(x)\nm = self.counted(x)[1]\nreturn x * 2 if n > 0 and 3 < m else x",
    "given on": "f, n = self.counted(x)\nreturn x + self.scaled(f, n)",
    "a mean of nothing": "f, n = self.found(x)\ny = x\nif n > 0: y = y + f.mean(0)\nreturn y",
}


@pytest.mark.slow
@pytest.mark.parametrize("body", CHOSEN.values(), ids=CHOSEN.keys())
def test_the_program_gives_what_eager_gives(body: str, tmp_path: Path) -> None:
    module = net_with_forward(HEAD, body, tmp_path)
    assert_agrees(chosen_program(module), module, [drawn_rows(seed) for seed in range(16)])


def test_lines_that_only_reckon_or_repeat_are_not_asked(tmp_path: Path) -> None:
    body = "f, n = self.counted(x)\nm = n > 1\nwhile n < 0: n = n + 1\nreturn x if n else x * 2"
    module = net_with_forward(HEAD, body, tmp_path)
    call = ExportCall(module=module, args=(torch.ones(2, 4),))
    lines = {function.__qualname__: found for function, found in asked_lines(call, sizes=SizedByValues()).items()}
    assert lines["Net.forward"] == {len(HEAD.splitlines()) + 4}


def test_followed_numbers_count_as_those_that_they_are() -> None:
    seen: list[int] = []
    follow = FollowedNumbers(lambda frame: seen.append(frame.f_lineno)).follow
    n, f = follow(3), follow(0.5)
    assert isinstance(n, int)
    assert {3: "a"}[n] == "a"
    assert list(range(n)) == [0, 1, 2]
    assert torch.zeros(n).shape == (3,)
    seen.clear()
    made = [1 + n, n - 1, -n, n / 2, n % 2, 2 * f, n + f]
    assert not seen
    assert made == [4, 2, -3, 1.5, 1, 1.0, 3.5]
    assert seen
    assert all(type(one).__bases__ == (type(plain),) for one, plain in zip(made, [4, 2, -3, 1.5, 1, 1.0, 3.5]))
    assert follow(True) is True
    assert follow("x") == "x"
    assert type(follow(torch.Size([2, 3]))) is torch.Size
