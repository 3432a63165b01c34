"""Arms that assign to tensors of the module: the program leaves what eager leaves, call after call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from written_modules import net_of

MODULE = """
import torch
from torch import nn

class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.layer = nn.Linear(2, 2)
        self.weight, self.number = nn.Parameter(torch.ones(2)), 1

    def update(self):
        return self.mean + 1

class Net(Base):
{rest}
    def forward(self, x):
{body}
"""
CHOSEN = {
    "one arm": "if x.sum() > 0: self.mean = x.mean(0)\nreturn x - self.mean",
    "what it was": "self.mean = self.mean * 0.5 + x.mean(0)\n"
                   "if self.mean.sum() > 1: self.mean = self.mean / 2\nreturn x - self.mean",
    "both arms": "if self.count == 0:\n    self.mean = x.mean(0)\n"
                 "else:\n    self.mean = self.mean * 0.9 + x.mean(0) * 0.1\n"
                 "self.count = self.count + 1\nreturn x - self.mean",
    "two of them": "if x.sum() > 0:\n    self.mean = x[0]\n    self.count = self.count + 1\n"
                   "return x + self.mean + self.count",
    "read after it is assigned": "if x.sum() > 0:\n    self.mean = x[0] * 2\n    x = x + self.mean\nreturn x",
    "elif": "if x.sum() > 1:\n    self.mean = x[0]\nelif self.mean.sum() < 0:\n    self.mean = -self.mean\n"
            "return x + self.mean",
    "inside": "if x.sum() > 0:\n    if self.count > 1:\n        self.mean = x[0]\n    self.count = self.count + 1\n"
              "return x * self.mean",
    "a submodule": "if x.sum() > 0: self.mean = self.layer(x)[0].detach()\nreturn x - self.mean",
    "a write into what it was": "if x.sum() > 0:\n    self.mean.mul_(2)\n    self.count = self.count + 1\n"
                                "return x - self.mean",
    "an early return": "if x.sum() > 0:\n    self.mean = x[0]\n    return x\nreturn x - self.mean",
    "what was read before": "before = self.mean\nif x.sum() > 0: self.mean = x[0]\nreturn before + x, self.mean",
}  # fmt: skip
KEPT = {
    "a method": "if x.sum() > 0:\n    self.mean = x[0]\n    x = x + self.update()\nreturn x",
    "the module itself": "if x.sum() > 0:\n    self.mean = x[0]\n    x = x + len(vars(self))\nreturn x",
    "a parameter": "if x.sum() > 0: self.weight = self.weight\nreturn x * self.weight",
    "a number": "if x.sum() > 0: self.number = 2\nreturn x * self.number",
    "a write into what is assigned": "if x.sum() > 0:\n    self.mean = x[0]\n    self.mean.add_(1)\nreturn x",
}
CODE = {
    "__setattr__": "    def __setattr__(self, name, value):\n        super().__setattr__(name, value)\n",
    "__getattr__": "    def __getattr__(self, name):\n        return super().__getattr__(name)\n",
}


def module_of(body: str, folder: Path, rest: str = "") -> nn.Module:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return net_of(MODULE.format(body=lines, rest=rest), folder / "net.py")


def program_of(module: nn.Module, x: Tensor) -> Any:
    with torch.no_grad(), apply_shims([find("branch-as-where")], ExportCall(module=module, args=(x,))) as call:
        return export_program(call).module()


@pytest.mark.parametrize("body", CHOSEN.values(), ids=CHOSEN.keys())
def test_the_program_leaves_what_eager_leaves(body: str, tmp_path: Path) -> None:
    x = torch.tensor([[0.5, 1.0], [2.0, -0.5]])
    program = program_of(module_of(body, tmp_path), x)
    eager = module_of(body, tmp_path)
    with torch.no_grad():
        for given in (x, -x, x * 3, -x / 4, x - 0.5, x):
            torch.testing.assert_close(program(given), eager(given), rtol=0, atol=0)
            for name, buffer in eager.named_buffers():
                torch.testing.assert_close(dict(program.named_buffers())[name], buffer, rtol=0, atol=0)


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT.keys())
def test_an_arm_that_does_more_with_the_module_stays_a_branch(body: str, tmp_path: Path) -> None:
    module = module_of(body, tmp_path)
    with pytest.raises(NotApplicable):
        program_of(module, torch.ones(2, 2))


@pytest.mark.parametrize("code", CODE.values(), ids=CODE.keys())
def test_attributes_that_run_code_stay(code: str, tmp_path: Path) -> None:
    module = module_of(CHOSEN["one arm"], tmp_path, code)
    with pytest.raises(NotApplicable):
        program_of(module, torch.ones(2, 2))
