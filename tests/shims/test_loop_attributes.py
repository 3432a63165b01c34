"""Loops that keep what ends them on the module: the program gives what eager gives, and the module holds it behind."""

from __future__ import annotations

import ast
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from exportdoctor.shims.rules.branches.loop_attributes import assign_behind_loops
from exportdoctor.shims.rules.code.code_swap import definition_of
from exportdoctor.shims.rules.code.pure_code import Purity
from written_modules import net_of

MODULE = """
import torch
from torch import nn

def size(module):
    return module.err

class Inner(nn.Module):
    def forward(self, x):
        return x * 0.5

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(()))
        self.layer, self.inner, self.weight = nn.Linear(2, 2), Inner(), nn.Parameter(torch.ones(()))
        self.steps, self.before, self.number = 6, torch.ones(()), 1.5

    def step(self, z):
        return torch.tanh(self.layer(z)) * self.number

    def shown(self, z):
        return z + self.err

    def shown_below(self, z):
        return self.shown(z) * 0.5

    def by_name(self, z):
        return z + getattr(self, "".join(["e", "rr"]))

    @property
    def seen(self):
        return self.err * 2
{rest}
    def forward(self, x):
{body}
"""
KEPT = {
    "what ends it": "z = x\nfor _ in range(self.steps):\n    new = self.step(z)\n    self.err = torch.norm(new - z)\n"
                    "    z = new\n    if self.err < 0.2: break\nreturn z",
    "read in the step and behind": "z = x\nfor t in range(5):\n    self.err = z.abs().max()\n"
                                   "    z = z / (1 + self.err)\n"
                                   "    if self.err < 0.3:\n        z = z + 1\n        break\nreturn z + self.err",
    "two, one of them there": "z = x\nfor _ in range(4):\n    self.before = z.mean()\n"
                              "    self.err = z.std() * self.before\n"
                              "    z = self.inner(z)\n    if self.err < 0.01: break\nreturn z, self.before",
    "a buffer": "z = x\nfor _ in range(4):\n    self.kept = z.abs().mean()\n    z = self.layer(z)\n"
                "    if self.kept < 0.4: break\nreturn z * self.kept",
    "assigned again": "z = x\nfor _ in range(4):\n    self.err = z.abs().sum()\n    z = z * 0.5\n"
                      "    if z[0, 0] > 0: self.err = z[0, 0] * 2\n    if self.err < 1: break\nreturn z",
    "beside a with": "with torch.no_grad():\n    z = self.layer(x)\nfor _ in range(3):\n    self.err = z.norm()\n"
                     "    z = z * 0.5\n    if self.err < 1: break\nreturn z",
    "a buffer of earlier calls": "x = x + self.kept\nfor _ in range(3):\n    self.kept = x.norm()\n    x = x * 0.5\n"
                                 "    if self.kept < 1: break\nreturn x",
    "a number before": "for _ in range(3):\n    self.number = x.mean() + 1\n    x = x * self.number\n"
                       "    if self.number > 2: break\nreturn x",
}  # fmt: skip
LOOP = "z = x\nfor _ in range(4):\n    self.err = z.norm()\n    z = {}\n    if self.err < 1: break\nreturn z"
SEEN = {
    "a method": LOOP.format("self.shown(z)"),
    "a method below": LOOP.format("self.shown_below(z)"),
    "a property": LOOP.format("z + self.seen"),
    "a name that is made": LOOP.format("self.by_name(z)"),
    "a function": LOOP.format("z + size(self)"),
    "the dict": LOOP.format("z + len(vars(self))"),
    "getattr": LOOP.format("z + getattr(self, 'err')"),
    "another name": "me = self\n" + LOOP.format("z + me.err"),
    "a function in it": "show = lambda: self.err\n" + LOOP.format("z + show()"),
    "rows made later": "rows = (self.err for _ in range(9))\n" + LOOP.format("z + next(rows)"),
    "a write": LOOP.format("z + self.err.add_(1)"),
    "read first": "z = x\nself.err = x.sum()\nfor _ in range(4):\n    z = z * self.err\n    self.err = z.norm()\n"
                  "    if self.err < 1: break\nreturn z",
    "of earlier calls": "z = x + self.before\nfor _ in range(4):\n    self.before = z.norm()\n    z = z * 0.5\n"
                        "    if self.before < 1: break\nreturn z",
    "left first": "z = x\nfor _ in range(4):\n    z = z * 0.5\n    if z.norm() < 1: break\n"
                  "    self.err = z.norm()\nreturn z",
    "in a loop": "z = x\nfor _ in range(2):\n    for _ in range(3):\n        self.err = z.norm()\n"
                 "        z = z * 0.5 + 0.1\n"
                 "        if self.err < 1: break\n    z = z + self.err\nreturn z",
    "assigned between": "z = x\nfor _ in range(3):\n    self.err = z.norm()\n    z = z * 0.5\n"
                        "    if self.err < 1: break\nself.err = z.sum()\nfor _ in range(z.dim() - 2):\n"
                        "    self.err = z.norm()\n"
                        "    if self.err < 1: break\nreturn z",
    "at times": "z = x\nfor t in range(4):\n    if t > 1: self.err = z.norm()\n    z = z * 0.5\n"
                "    if z.norm() < 1: break\nreturn z",
    "caught": "z = x\ntry:\n    for _ in range(4):\n        self.err = z.norm()\n        z = z * 0.5\n"
              "        if self.err < 1: break\nexcept ValueError:\n    pass\nreturn z",
    "a return": "z = x\nfor _ in range(4):\n    self.err = z.norm()\n    z = z * 0.5\n    if self.err < 1: return z\n"
                "return z + 1",
    "a parameter": "for _ in range(4):\n    self.weight = x.norm()\n    x = x * 0.5\n"
                   "    if self.weight < 1: break\nreturn x",
    "a count": "z = x\nfor _ in range(4):\n    self.number += 1\n    z = z * 0.5\n    if z.norm() < 1: break\nreturn z",
}  # fmt: skip
CODE = {
    "__setattr__": "    def __setattr__(self, name, value):\n        super().__setattr__(name, value)\n",
    "__getattr__": "    def __getattr__(self, name):\n        return super().__getattr__(name)\n",
    "a property of the name": "    @property\n    def err(self): return self.at\n    @err.setter\n"
                              "    def err(self, value): self.at = value\n",
    "a reference below": "    def train(self, mode=True):\n        self.inner.__dict__['above'] = [self]\n"
                         "        return super().train(mode)\n",
}  # fmt: skip


def module_of(body: str, folder: Path, rest: str = "") -> nn.Module:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return net_of(MODULE.format(body=lines, rest=rest), folder / "looping.py")


def inputs() -> list[Tensor]:
    torch.manual_seed(1)
    drawn = [torch.randn(3, 2) * scale for scale in (0.01, 0.5, 3, 40)]
    return [*drawn, -drawn[1], drawn[2].abs(), torch.zeros(3, 2), torch.full((3, 2), torch.nan)]


def rewrite_forward(module: nn.Module) -> str:
    """Give it the forward with its assignments behind the loops, whose text this is."""
    function: Any = type(module).forward
    assert isinstance(function, FunctionType)
    node = definition_of(function)
    assert node is not None
    before = ast.unparse(node)
    assign_behind_loops(node, lambda _: True, Purity(function=function, instances=(module,)))
    names: dict[str, Any] = {}
    exec(compile(ast.unparse(node), "<rewritten>", "exec"), function.__globals__, names)
    type(module).forward = names["forward"]
    return "" if ast.unparse(node) == before else ast.unparse(node)


def program_of(module: nn.Module, x: Tensor) -> Any:
    with torch.no_grad(), apply_shims([find("branch-as-where")], ExportCall(module=module, args=(x,))) as call:
        return export_program(call).module()


def held_by(module: nn.Module) -> dict[str, Any]:
    own = {name: value for name, value in vars(module).items() if isinstance(value, Tensor | float)}
    return {**own, **dict(module.named_buffers())}


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT.keys())
def test_the_module_holds_what_eager_leaves(body: str, tmp_path: Path) -> None:
    eager, changed = module_of(body, tmp_path), module_of(body, tmp_path)
    assert "_held_" in rewrite_forward(changed)
    with torch.no_grad():
        for given in inputs():
            torch.testing.assert_close(changed(given), eager(given), rtol=0, atol=0, equal_nan=True)
            assert held_by(changed).keys() == held_by(eager).keys()
            torch.testing.assert_close(held_by(changed), held_by(eager), rtol=0, atol=0, equal_nan=True)


def test_a_loop_without_steps_assigns_nothing(tmp_path: Path) -> None:
    changed: Any = module_of(KEPT["what ends it"], tmp_path)
    assert rewrite_forward(changed)
    changed.steps = 0
    assert "err" not in held_by(changed)
    changed(torch.ones(3, 2))
    assert "err" not in held_by(changed)


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT.keys())
def test_the_program_gives_what_eager_gives(body: str, tmp_path: Path) -> None:
    program = program_of(module_of(body, tmp_path), inputs()[1])
    eager = module_of(body, tmp_path)
    with torch.no_grad():
        for given in inputs():
            torch.testing.assert_close(program(given), eager(given), rtol=0, atol=0, equal_nan=True)
            for name, buffer in eager.named_buffers():
                torch.testing.assert_close(dict(program.named_buffers())[name], buffer, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("body", SEEN.values(), ids=SEEN.keys())
def test_what_something_else_could_see_stays(body: str, tmp_path: Path) -> None:
    assert not rewrite_forward(module_of(body, tmp_path))
    with pytest.raises(NotApplicable):
        program_of(module_of(body, tmp_path), torch.ones(3, 2))


@pytest.mark.parametrize("code", CODE.values(), ids=CODE.keys())
def test_attributes_that_run_code_or_are_seen_below_stay(code: str, tmp_path: Path) -> None:
    module = module_of(KEPT["what ends it"], tmp_path, code)
    assert not rewrite_forward(module)
