"""What begins as a number and is added to in an arm is a tensor for one value, and a number for another."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from agreeing_programs import assert_agrees, chosen_program, drawn_rows
from written_modules import net_with_forward

HEAD = "import torch\nfrom torch import nn\n\nclass Net(nn.Module):\n    def forward(self, x):\n"
CHOSEN = {
    "a loss": "total = 0\nfor i in range(3):\n    if x[i].sum() > 0: total += x[i].mean()\nreturn x + total",
    "of a float": "total = 0.0\nfor i in range(3):\n    if x[i].sum() > 0: total -= x[i].mean()\nreturn x * total",
    "rows that are found": """
        total, steps = 0, 0
        for i in range(3):
            f = x[x[:, i] > 0.3]
            if f.shape[0] > 0:
                total += f.mean()
                steps += 1
        return x + total / max(steps, 1)""",
    "several branches": """
        total = 0
        if x.sum() > 0: total += x.mean()
        if x[0].sum() > 0: total *= 2
        else: total -= x.amax()
        return x + total""",
    "read and added to elsewhere": """
        total = 0
        for i in range(3):
            if x[i].sum() > 0: total += (x[i] + total).mean()
            total *= 0.5
        return x + total""",
    "in each step of a loop": """
        y = x
        for k in range(2):
            total = 0
            for i in range(3):
                if x[i, k] > 0: total += x[i].mean()
            y = y * 2 + total
        return y""",
}
REFUSED = {
    "of another size": "total = 0\nfor i in range(3):\n    if x[i].sum() > 0: total += x[i]\nreturn x + total",
    "with another name": """
        total = 0
        for i in range(3):
            if x[i].sum() > 0: total += x[i].mean()
            kept = total
            if x[i].max() > 1: total += 1.5 * x[i].amax()
        return x + total + kept""",
}


@pytest.mark.slow
@pytest.mark.parametrize("body", CHOSEN.values(), ids=CHOSEN.keys())
def test_the_program_gives_what_eager_gives(body: str, tmp_path: Path) -> None:
    module = net_with_forward(HEAD, body, tmp_path)
    assert_agrees(chosen_program(module, least=3), module, [drawn_rows(seed, least=3) for seed in range(16)])


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_sum_of_its_own_is_refused(body: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"written into|data-dependent"):
        chosen_program(net_with_forward(HEAD, body, tmp_path), least=3)


def drawn_body(seed: int) -> str:
    draw = random.Random(seed)
    added = ("x[i].mean()", "x[i].amax() * 2", "(x[i] * total).sum()", "1", "x[0].mean() + total")

    def update(indented: str) -> str:
        return f"{indented}total {draw.choice(('+=', '-=', '*='))} {draw.choice(added)}\n"

    lines = f"total = {draw.choice(('0', '0.0', '1.5'))}\nfor i in range({draw.randrange(1, 4)}):\n"
    lines += f"    if x[i].sum() > {draw.choice((0, 1))}:\n{update(' ' * 8)}"
    if draw.random() < 0.5:
        lines += update(" " * 8)
    if draw.random() < 0.5:
        lines += f"    else:\n{update(' ' * 8)}"
    if draw.random() < 0.4:
        lines += update(" " * 4)
    return f"{lines}return x + total"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_drawn_sums_are_those_of_eager(seed: int, tmp_path: Path) -> None:
    module = net_with_forward(HEAD, drawn_body(seed), tmp_path)
    assert_agrees(chosen_program(module, least=3), module, [drawn_rows(one, least=3) for one in range(12)])
