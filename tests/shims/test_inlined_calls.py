"""Arms that call a method which writes into what the module holds: the program writes what eager writes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from exportdoctor.targets.factory.factory_file import import_factory_file

HEAD = """import torch
from torch import nn


class Base(nn.Module):
    def note(self, x):
        self.mean.mul_(0.5)
        self.mean.add_(x.mean(0))


class Net(Base):
    def __init__(self):
        super().__init__()
        self.lin, self.steps, self.__times = nn.Linear(4, 4), 0, 2
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("mean", torch.ones(4))
        self.register_buffer("seen", torch.zeros(()))

"""
"""What follows are the methods and the statements of forward."""

CHOSEN = {
    "statistics of the first batch": (
        """
        def start(self, x):
            with torch.no_grad():
                flat = x.permute(1, 0).contiguous().view(x.shape[1], -1)
                mean, std = flat.mean(1), flat.std(1)
                self.mean.data.copy_(-mean)
                self.scale.data.copy_(1 / (std + 1e-6))
        """,
        "if self.seen.item() == 0:\n    self.start(x)\n    self.seen.fill_(1)\nreturn self.scale * (x + self.mean)",
    ),
    "what it gives": (
        "def update(self, x):\n    self.mean.add_(x.mean(0))\n    return self.mean * 2",
        "y = x[0]\nif x.sum() > 0: y = self.update(x)\nreturn y + self.mean",
    ),
    "what it gives without gradients": (
        "def update(self, x):\n    with torch.no_grad():\n        self.mean.add_(x[0])\n        return self.mean * 2",
        "y = x[0] * 0\nif x.sum() > 0: y = self.update(x)\nreturn y + self.mean",
    ),
    "decorated, with defaults": (
        """
        @torch.no_grad()
        def update(self, x, k=3, *, by=1.5):
            y = x * k
            self.mean.add_(y.mean(0) * by)
            return y
        """,
        "y = x\nif x.sum() > 0: y = self.update(x, by=2)\nreturn y + self.mean",
    ),
    "one in another one": (
        """
        def update(self, x):
            t = x * 2
            self.count(t)
            self.mean.add_(t.mean(0))

        def count(self, t):
            x = t + 1
            self.seen.add_(x.sum())
        """,
        "t = x + 5\nif x.sum() > 0: self.update(x - 3)\nreturn t + self.mean + self.seen",
    ),
    "of the base class, in both arms": (
        "",
        "if x.sum() > 0: self.note(x)\nelse: self.note(-x)\nreturn x + self.mean",
    ),
    "parameters under each other's names": (
        "def update(self, x, y):\n    self.mean.add_(x.mean(0))\n    self.seen.add_(y.mean())",
        "y = x * 3\nif x.sum() > 0: self.update(y=x, x=y)\nreturn x + self.mean + self.seen",
    ),
    "branches and loops in it": (
        """
        def update(self, x):
            if x.max() > 1: self.mean.add_(1)
            else: self.mean.sub_(x.mean(0))
            for i in range(4): self.mean[i] += x[:, i].sum()
        """,
        "if x.sum() > 0: self.update(x)\nreturn x + self.mean",
    ),
    "nested branches without gradients": (
        """
        def update(self, x):
            with torch.no_grad():
                if x.max() > 1:
                    self.mean.add_(x.mean(0))
                    if x.min() < -1: self.mean.mul_(2)
                else: self.mean.data.sub_(1)
            self.seen += self.mean.sum()
        """,
        "if x.sum() > 0: self.update(self.lin(x))\nreturn x * self.mean + self.seen",
    ),
    "in a loop": (
        "def update(self, x):\n    t = x.mean(0)\n    self.mean.add_(t * 2)",
        "for k in range(3):\n    if x.sum() > k: self.update(x * k)\nreturn x + self.mean",
    ),
    "a buffer as argument, and a private name": (
        "def update(self, x):\n    self.mean.mul_(self.__times)\n    self.seen.add_(x.sum())",
        "if x.sum() > 0: self.update(self.mean)\nreturn x + self.mean + self.seen",
    ),
    "an attribute": (
        "def update(self, x):\n    self.mean = x.mean(0)",
        "if x.sum() > 0: self.update(x)\nreturn x + self.mean",
    ),
    "items of data": (
        """
        def update(self, x):
            self.mean.data[0] = x.mean()
            self.mean.data[1:].mul_(2).add_(self.mean.data[0])
        """,
        "if x.sum() > 0: self.update(x)\nreturn x + self.mean",
    ),
    "without gradients in the arm": (
        "",
        """
        y = self.lin(x)
        if x.sum() > 0:
            with torch.no_grad():
                self.mean.add_(x.mean(0))
                y.mul_(2)
        return y * y + self.mean
        """,
    ),
    "early return": (
        "def update(self, x):\n    if x.max() > 1: return\n    self.mean.add_(1)",
        "if x.sum() > 0: self.update(x)\nreturn x + self.mean",
    ),
    "return in its last branch": (
        "def update(self, x):\n    self.mean.add_(1)\n    if x.dim() == 2: return 3",
        "k = 3\nif x.sum() > 0: k = self.update(x)\nreturn x + self.mean + k",
    ),
    "early returns without gradients": (
        """
        @torch.no_grad()
        def update(self, x):
            if self.steps: return 5
            if x.max() > 1:
                self.mean.add_(x.mean(0))
                if x.min() < -1: return x[0]
            else: return x[1]
            self.seen += 1
            return x[0] * 2
        """,
        "y = x[0]\nif x.sum() > 0: y = self.update(x)\nreturn y + self.mean + self.seen",
    ),
    "a return within no_grad": (
        """
        def update(self, x):
            with torch.no_grad():
                if x.max() > 1: return x[0]
                self.mean.add_(x.mean(0))
                return self.mean * 2
        """,
        "y = x[0]\nif x.sum() > 0: y = self.update(x)\nreturn y + self.mean + self.seen",
    ),
    "an early return of the branch itself": (
        """
        def start(self, x):
            if self.seen: return
            flat = x - x.mean(0)
            self.mean.data.copy_(flat.std(0))
            self.seen.data.copy_(torch.ones(()))
        """,
        "self.start(x)\nreturn x + self.mean",
    ),
    "early returns that follow each other": (
        """
        def start(self, x):
            if self.steps: return
            few = self.mean < 1
            if not torch.any(few): return
            y = x.reshape(-1, 4)
            self.note(y)
            if y.sum() > 3: return
            self.seen.data.copy_(torch.where(few, y[0], self.mean).sum())
        """,
        "self.start(x)\nreturn x + self.mean + self.seen",
    ),
    "an early return of values": (
        "def update(self, x):\n    self.mean.add_(1)\n    return x * 2",
        "if x.sum() < 0: return x - self.mean\nx = self.lin(self.update(x))\nreturn x + self.mean",
    ),
    "in an expression": (
        "def update(self, x):\n    self.mean.add_(x.mean(0))\n    return x * 2",
        "if x.sum() > 0: x = self.lin(self.update(x)) * 2\nreturn x + self.mean",
    ),
    "behind and before what is read": (
        "def update(self, x):\n    self.mean.add_(x.mean(0))\n    return x * 2",
        """
        y = x
        if x.sum() > 0: y = self.mean - self.update(x) + self.mean * 2 - self.update(x + self.mean).clamp(max=2)
        return y + self.mean
        """,
    ),
    "in calls, conditions and updates": (
        """
        def update(self, x):
            self.mean.add_(x.mean(0))
            return x[0] + self.mean
        """,
        """
        y, z = x.sum(0), x[0]
        if x.sum() > 0:
            y += self.update(x)
            if self.update(x).sum() > 4: z = torch.add(z * 1, self.update(-x))
            self.seen.data.copy_(self.update(x)[0])
        return y + z + self.mean + self.seen
        """,
    ),
    "in what a method gives": (
        """
        def twice(self, x): return self.update(self.update(x))
        def update(self, x):
            self.mean.add_(x.mean(0))
            return x * 2
        """,
        "if x.sum() > 0: x = torch.relu(self.twice(x))\nreturn x + self.mean",
    ),
    "whose attribute was read": (
        "def update(self, x):\n    self.mean = x.mean(0)\n    return x * 2",
        "if x.sum() > 0: x = self.mean * 2 + self.update(x)\nreturn x + self.mean",
    ),
    "a part of it, read before": (
        "def update(self, x):\n    self.mean.add_(x.mean(0))\n    return x * 2",
        "y = x[:, 0]\nif x.sum() > 0: y = self.mean[0] + self.update(x)[:, 0]\nreturn y + self.mean.sum()",
    ),
}
KEPT = {
    "in what it gives itself": (
        "def update(self, x):\n    self.mean.add_(1)\n    return self.update(x)",
        "if x.sum() > 1e9: x = self.update(x)\nreturn x + self.mean",
    ),
    "a return in a loop": (
        "def update(self, x):\n    self.mean.add_(1)\n    for i in range(4):\n        if x[0, i] > 1: return x[i]\n"
        "    return x[0]",
        "y = x[0]\nif x.sum() > 0: y = self.update(x)\nreturn y + self.mean",
    ),
    "an item of it, added to": (
        "def update(self, x):\n    self.mean.add_(x.mean(0))\n    return x.sum()",
        "if x.sum() > 0: self.mean[self.mean > 0] += self.update(x)\nreturn x + self.mean",
    ),
    "where Python may not call it": (
        "def update(self, x):\n    self.mean.add_(x.mean(0))\n    return x.sum()",
        "y = x\nif x.sum() > 0: y = x + (self.update(x) if x.max() > 1 else 1)\nreturn y + self.mean",
    ),
    "an attribute that it assigns, read before": (
        "def update(self, x):\n    self.mean = x.mean(0)\n    return x * 2",
        "if x.sum() > 0: x = self.mean + self.update(x)\nreturn x + self.mean",
    ),
    "itself": (
        "def update(self, x):\n    self.mean.add_(1)\n    self.update(x)",
        "if x.sum() > 1e9: self.update(x)\nreturn x + self.mean",
    ),
    "what it is given": (
        "def update(self, y):\n    y.mul_(2)\n    self.mean.add_(1)",
        "x = x * 1\nif x.sum() > 0: self.update(x)\nreturn x + self.mean",
    ),
    "data of what it is given": (
        "def update(self, y):\n    y.data.mul_(2)\n    self.mean.add_(1)",
        "x = x * 1\nif x.sum() > 0: self.update(x)\nreturn x + self.mean",
    ),
    "other memory": (
        "def update(self, x):\n    self.mean.data = x.mean(0)",
        "if x.sum() > 0: self.update(x)\nreturn x + self.mean",
    ),
    "a view of what it writes into": (
        "def update(self, y):\n    self.mean.add_(1)\n    self.seen.add_(y.sum())",
        "v = self.mean[:2]\nif x.sum() > 0: self.update(v)\nreturn x + self.mean + self.seen",
    ),
    "the buffer itself": (
        "def update(self, x):\n    self.mean.add_(1)\n    return self.mean",
        "y = x[0]\nif x.sum() > 0: y = self.update(x)\nreturn y + self.mean",
    ),
    "another name of a buffer": (
        "def update(self, x):\n    self.mean.data.add_(1)\n    self.seen.add_(self.same.sum())",
        "self.same = self.mean\nif x.sum() > 0: self.update(x)\nreturn x + self.mean + self.seen",
    ),
    "read by another method": (
        "def twice(self): return self.mean * 2\n"
        "def update(self, x):\n    self.mean.add_(1)\n    self.seen.add_(self.twice().sum())",
        "if x.sum() > 0: self.update(x)\nreturn x + self.mean + self.seen",
    ),
    "with and without gradients": (
        "def update(self, x):\n    self.mean.add_(1)\n    with torch.no_grad(): self.mean.add_(x.mean(0))",
        "if x.sum() > 0: self.update(x)\nreturn x + self.mean",
    ),
    "a number": (
        "def update(self, x):\n    self.steps += 1\n    self.mean.add_(1)",
        "if x.sum() > 0: self.update(x)\nreturn x + self.mean",
    ),
    "a default that may change": (
        "def update(self, x, more=[1]):\n    self.mean.add_(more[0])",
        "if x.sum() > 0: self.update(x)\nreturn x + self.mean",
    ),
    "any arguments": (
        "def update(self, *given):\n    self.mean.add_(given[0].mean(0))",
        "if x.sum() > 0: self.update(x)\nreturn x + self.mean",
    ),
    "arguments of a list": (
        "def update(self, x):\n    self.mean.add_(x.mean(0))",
        "if x.sum() > 0: self.update(*[x])\nreturn x + self.mean",
    ),
    "a name that is another one here": (
        "def update(self, x):\n    self.mean.add_(torch.ones(4))",
        "torch = 3\nif x.sum() > 0: self.update(x)\nreturn x + self.mean",
    ),
    "raises": (
        "def update(self, x):\n    self.mean.add_(1)\n    if x.max() > 2: raise ValueError",
        "if x.sum() > 0: self.update(x)\nreturn x + self.mean",
    ),
    "draws": (
        "def update(self, x):\n    self.mean.add_(torch.rand(4))",
        "if x.sum() > 0: self.update(x)\nreturn x + self.mean",
    ),
    "another mode": (
        "def update(self, x):\n    with torch.inference_mode(): self.mean.add_(1)",
        "if x.sum() > 0: self.update(x)\nreturn x + self.mean",
    ),
}


def module_of(methods: str, body: str, folder: Path) -> Any:
    path = folder / f"calls_{abs(hash((methods, body)))}.py"
    text = indent(dedent(methods).strip(), " " * 4) + "\n\n    def forward(self, x):\n"
    path.write_text(HEAD + text + indent(dedent(body).strip(), " " * 8) + "\n")
    torch.manual_seed(0)
    return import_factory_file(path).Net().eval()


def exported_of(module: Any) -> Any:
    call = ExportCall(module=copy.deepcopy(module), args=(torch.randn(3, 4),), dynamic_shapes=({0: Dim.DYNAMIC},))
    with apply_shims([find("branch-as-where")], call) as changed:
        return export_program(changed)


@pytest.mark.slow
@pytest.mark.parametrize("grads", [False, True])
@pytest.mark.parametrize(("methods", "body"), CHOSEN.values(), ids=CHOSEN.keys())
def test_an_arm_writes_what_the_method_writes(methods: str, body: str, grads: bool, tmp_path: Path) -> None:
    module = module_of(methods, body, tmp_path)
    with torch.set_grad_enabled(grads):
        exported = exported_of(module)
        if ".data[" not in methods:  # which torch cannot load, nor where the model has it under `no_grad` itself
            torch.export.save(exported, file := BytesIO())
            file.seek(0)
            torch.export.load(file)
        program = exported.module()
        for seed in range(12):
            torch.manual_seed(seed)
            x = torch.randn(2 + seed % 3, 4) * (1 + seed % 3) + (seed % 5 - 2) * 0.7
            pairs = [(program, x.clone().requires_grad_(grads)), (module, x.clone().requires_grad_(grads))]
            found, wanted = (one(given) for one, given in pairs)
            torch.testing.assert_close(found, wanted)
            for state in ("named_buffers", "named_parameters"):
                held = [dict(getattr(one, state)()) for one, _ in pairs]
                names = held[0].keys() & held[1].keys()
                torch.testing.assert_close(*({name: one[name].detach() for name in names} for one in held))
            if grads and found.requires_grad and wanted.requires_grad:
                found.sum().backward()
                wanted.sum().backward()
                first, second = (torch.zeros(()) if given.grad is None else given.grad for _, given in pairs)
                torch.testing.assert_close(*torch.broadcast_tensors(first, second))
            for one, _ in pairs:
                for buffer in one.buffers():
                    buffer.detach_()


@pytest.mark.parametrize(("methods", "body"), KEPT.values(), ids=KEPT.keys())
def test_a_call_that_is_not_its_statements_stays_one(methods: str, body: str, tmp_path: Path) -> None:
    with pytest.raises((NotApplicable, RuntimeError), match=r"arms that only compute|data-dependent"), torch.no_grad():
        exported_of(module_of(methods, body, tmp_path))


class Norm(nn.Module):
    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def update(self, x: torch.Tensor) -> None:
        self.mean.copy_(x.mean(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            self.update(x)
        return x - self.mean


class OfItsOwn(Norm):
    def update(self, x: torch.Tensor) -> None:
        self.mean.copy_(x.amax(0))


def with_update_of_its_own() -> nn.Module:
    module = Norm()
    module.__dict__["update"] = lambda x: module.get_buffer("mean").copy_(x.amin(0))
    return module


@pytest.mark.parametrize(
    ("others", "works"),
    [((), True), ((Norm,), True), ((OfItsOwn,), False), ((with_update_of_its_own,), False)],
)
def test_a_method_of_which_a_module_has_another_one_stays_a_call(
    others: tuple[Callable[[], nn.Module], ...], works: bool
) -> None:
    module = nn.Sequential(Norm(), *(make() for make in others))
    if not works:
        with pytest.raises(NotApplicable), torch.no_grad():
            exported_of(module)
        return
    with torch.no_grad():
        program = exported_of(module).module()
        for x in (torch.randn(3, 4) + 1, torch.randn(2, 4) - 1):
            torch.testing.assert_close(program(x), module(x))


def test_modules_of_one_class_that_all_have_a_method_of_their_own_use_that() -> None:
    with torch.no_grad():
        module = nn.Sequential(OfItsOwn())
        program = exported_of(module).module()
        for x in (torch.randn(3, 4) + 1, torch.randn(2, 4) - 1):
            torch.testing.assert_close(program(x), module(x))


class CountsUnder(nn.Module):
    """Counts as batch norm does, under `no_grad` in an arm."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            with torch.no_grad():
                self.seen += 1
        return x * 1


def test_a_counter_that_an_arm_raises_under_no_grad_is_kept() -> None:
    """Story: torch's verifier refused the program for the write behind the branch."""
    module = CountsUnder()
    call = ExportCall(module=copy.deepcopy(module), args=(torch.ones(3),))
    with apply_shims([find("branch-as-where")], call) as given:
        program = export_program(given).module()
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        assert torch.equal(program(x), module(x))
        assert int(program.seen) == int(module.seen)
    assert int(module.seen) == 2
