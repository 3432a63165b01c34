"""Arms of branches that write into tensors: the program writes what eager writes, and into what eager writes."""

from __future__ import annotations

import copy
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest
import torch
from torch.export import Dim

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from exportdoctor.targets.factory.factory_file import import_factory_file

HEAD = """import torch
from torch import nn


class Batch(dict):
    def to(self, device):
        return self


class Writes(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("seen", torch.ones(4))
        self.flag, self.on, self.steps = False, True, 0
        self.past = [torch.zeros(4), torch.ones(4)]

    @property
    def doubled(self):
        return self.seen * 2

    def latest(self):
        return self.past[0]

    def forward(self, x):
"""

CHOSEN = {
    "item": "y = x * 2\nif x.sum() > 0: y[:, 0] = 0\nreturn y",
    "view read later": "y = x * 2\nv = y[0]\nif x.sum() > 0: y[:, 0] = 0\nreturn y.sum() + v",
    "methods": "y = x.clone()\nif x.sum() > 0: y.mul_(2).add_(1)\nelse: y.zero_()\nreturn y",
    "part": "y = x.clone()\nif x.sum() > 0: y.view(-1)[1:3].mul_(2); y.T[0] = 1\nreturn y",
    "input": "if x.sum() > 0: x.mul_(2)\nreturn x + 1",
    "buffer": "if x.sum() > 0: self.seen.mul_(0.9).add_(x.mean(0))\nreturn x + self.seen",
    "item of a buffer": "if x.sum() > 0: self.seen[0] = x[0, 0]\nreturn x + self.seen",
    "added to a buffer": "if x.sum() > 0: self.seen += x.mean(0)\nreturn x * self.seen",
    "added to": "y = x * 1\nif x.sum() > 0: y += 1; y[0] += x[0]; y[:, 1] *= 2\nreturn y",
    "whole numbers": """
        n, y = (x > 0).sum(1), torch.arange(x.shape[0]) + 6
        if (n > 0).all(): y //= n
        return y""",
    "number": "n = 0\nif x.sum() > 0: n += 2\nreturn x + n",
    "branch in an arm": """
        y = x * 1
        if x.sum() > 0:
            y[:, 0] = 1
            if x.max() > 1: y[:, 1] = 2
            else: y.sub_(3)
        return y""",
    "elif": """
        y = x * 1
        if x.sum() > 2: y[0] = 1
        elif x.sum() > 0: y[0] = 2
        else: y.neg_()
        return y""",
    "branch of Python in an arm": """
        y = x * 1
        if x.sum() > 0:
            if self.on: y[0] = 1
            for i in range(4):
                if i % 2 == 0: y[:, i] = 0
            y[1] += 2
        return y""",
    "loop": "y = x * 1\nfor i in range(4):\n    if x[:, i].sum() > 0: y[:, i] = 0\nreturn y",
    "mask": "y = x.clone()\nif (x > 1).any(): y[x > 1] = 1\nreturn y",
    "places": "y = x * 1\nif x.sum() > 0: y[torch.arange(x.shape[0]), x.argmax(1)] = 9.0\nreturn y",
    "items of a list": "ys = [x * 1, x * 2]\nif x.sum() > 0: ys[0] = x * 3\nreturn ys[0] + ys[1]",
    "items of a dict": "ys = {'a': x}\nif x.sum() > 0: ys['a'] = x * 2\nreturn ys['a']",
    "made in the arm": """
        y = x * 1
        if x.sum() > 0:
            t = self.lin(x)
            t[:, 0] = 0
            total = 0
            for i in range(2): total += t * i
            y = total
        return y""",
    "early return": """
        if (x < 0).all(): return x
        out, rows = torch.zeros_like(x), []
        out = self.lin(x)
        if x.sum() > 0: out[:, 0] = 0
        else: out.clamp_(min=0)
        for i in range(2): rows.append(out * i)
        return torch.stack(rows).sum(0)""",
    "continue": """
        order, keep = x.sum(1).argsort(), torch.ones(x.shape[0], dtype=torch.bool)
        for i in range(2):
            if not keep[i]: continue
            near = (x - x[i]).abs().sum(1) < 2
            near[: i + 1] = False
            keep[near] = False
        return order * keep""",
    "views of one tensor": """
        a, b = x.T[0], x.T[1]
        differ = a.sign() != b.sign()
        if not differ.all(): a, b = a[differ], b[differ]
        return a.sum() - b.sum()""",
    "several early returns": """
        y = x + 1
        if x.sum() > 2: return y * 2
        y = y * 1.5
        if x.max() > 1:
            if x.min() < -1: return y * 5
            return y * 4
        elif x.sum() < -2: return y
        z = self.lin(y)
        if z.sum() > 0: z[0] = 0
        return z""",
    "not bound": "if self.flag: y = x\nif self.flag and x.sum() > 0: y[0] = 1\nreturn x.abs() if x.sum() > 1 else x",
    "no attribute": "if hasattr(self, 'no') and x.sum() > 0: self.no[0] = 1\nreturn x.abs() if x.sum() > 1 else x",
}
KEPT = {
    "view read in the arm": "y = x * 2\nv, z = y[0], x\nif x.sum() > 0:\n    y[:, 0] = 0\n    z = v * 3\nreturn y + z",
    "view that leaves the arm": "y, z = x * 1, x\nif x.sum() > 0:\n    y[0] = 1\n    z = y[1:]\nreturn z.sum() + y",
    "two names": "y = x * 1\nz = y\nif x.sum() > 0:\n    y[0] = 1\n    z[1] = 2\nreturn y",
    "attribute": "y = x * 1\nself.kept = y\nif x.sum() > 0:\n    y[0] = 1\n    y[1] = self.kept[0]\nreturn y",
    "input under another name": "y = x * 1\nif x.sum() > 0:\n    t = x\n    t[0] = 1\n    y = t * 2\nreturn y",
    "tensor in a list": "ys = [x * 1, x * 2]\nif x.sum() > 0: ys[0].mul_(3)\nreturn ys[0] + ys[1]",
    "list under two names": """
        ys = [x * 1, x * 2]
        zs = ys
        if x.sum() > 0:
            ys[0] = x * 3
            x = zs[0] + 1
        return ys[0] + x""",
    "another shape": "y = x[:2, :2].clone()\nif x.sum() > 0: y.t_()\nreturn y",
    "random values": "y = x * 1\nif x.sum() > 0: y.uniform_()\nreturn y",
    "overlapping": "y = x[:1].expand(3, 4)\nif x.sum() > 100: y[0] = 1\nreturn y",
    "bound anew": "y = x\nif x.sum() > 0: y @= self.lin.weight\nreturn y - x",
    "list of a module": "if x.sum() > 0:\n    self.past[0] = x[0]\n    x = x + self.latest()\nreturn x",
    "two names of a list": """
        ys = [x * 1, x * 2]
        zs = ys
        if x.sum() > 0: ys[0] = x * 3
        else: zs[1] = x * 4
        return ys[0] + ys[1]""",
    "number of a module": "if x.sum() > 0: self.steps += 1\nreturn x + self.steps",
    "overlapping by a window": "y = x * 1\nv = y.unfold(0, 2, 1)\nif x.sum() > 0: v[0] = 5\nreturn y",
    "gaps in memory": """
        y = (x * 1)[:, :2]
        if x.sum() > 0:
            y[0] = 5
            t = y.reshape(-1)
            t[1] = 9
        return y""",
    "property": "if x.sum() > 0:\n    self.doubled[0] = 7\n    x = x + self.doubled\nreturn x",
    "container of a class": """
        b = Batch(a=x)
        if x.sum() > 0:
            t = b.to("cpu")
            t["a"] = x * 3
        return b["a"]""",
    "view of a copy that was written back": """
        y = x * 1
        if x.sum() > 0:
            z = y[1]
            if self.on:
                y[0] = 1
                z = y[0]
            y[0] = 7
            y = y + z
        return y""",
    "identity of a number": "done = False\nif x.sum() > 0: done = True\nreturn x * 2 if done is True else x",
    "identity of a tensor": "y = x\nif x.sum() > 0: y = x * 2\nreturn x + 1 if y is x else y",
}


def module_of(body: str, folder: Path) -> Any:
    path = folder / f"writes_{abs(hash(body))}.py"
    path.write_text(HEAD + indent(dedent(body).strip(), " " * 8) + "\n")
    torch.manual_seed(0)
    return import_factory_file(path).Writes().eval()


def program_of(module: Any) -> Any:
    call = ExportCall(module=copy.deepcopy(module), args=(torch.randn(3, 4),), dynamic_shapes=({0: Dim.DYNAMIC},))
    with torch.no_grad(), apply_shims([find("branch-as-where")], call) as changed:
        return export_program(changed).module()


@pytest.mark.slow
@pytest.mark.parametrize("body", CHOSEN.values(), ids=CHOSEN.keys())
def test_an_arm_writes_into_what_eager_writes_into(body: str, tmp_path: Path) -> None:
    module = module_of(body, tmp_path)
    program = program_of(module)
    has_buffer = "seen" in dict(program.named_buffers())
    with torch.no_grad():
        for seed in range(12):
            torch.manual_seed(seed)
            x = torch.randn(2 + seed % 3, 4) * (1 + seed % 3) + (seed % 5 - 2) * 0.7
            given, same = x.clone(), x.clone()
            for _ in range(2):  # the second call sees what the first has written
                found, wanted = program(given), module(same)
                torch.testing.assert_close((found, given), (wanted, same))
                assert not has_buffer or torch.equal(program.seen, module.seen)


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT.keys())
def test_an_arm_is_no_choice_where_a_copy_would_be_seen(body: str, tmp_path: Path) -> None:
    refusals = (NotApplicable, RuntimeError)
    with pytest.raises(refusals, match=r"arms that only compute|data-dependent|single memory location"):
        program_of(module_of(body, tmp_path))
