"""Forwards as people write them, drawn: branches in functions that forward makes, in hooks and behind private names,
and with writes into tensors, views of them, inputs and buffers."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from textwrap import indent

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.export import Dim

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from exportdoctor.targets.factory.factory_file import import_factory_file

CONDITIONS = (
    "{name}.sum() > {limit}",
    "{name}.mean() < {limit} and {name}.max() > 0",
    "not {name}.min() > {limit}",
    "({name} > {limit}).any()",
    "torch.isnan({name}).any() or {name}.sum() < {limit}",
)
VALUES = ("{name} * 2", "{name} - k", "{name} + self.w", "{name} * size", "-{name}", "{name} / (1 + {name}.abs())")
WRITES = (
    "{name}[:, 0] = {value}[:, 1]",
    "{name}[0] += {value}[0]",
    "{name}.mul_(2).sub_(k)",
    "{name} += {value}",
    "{name}[{name} > {limit}] = k",
    "{name}.T[1] = {limit}",
    "{name}[:, 1].copy_({value}[:, 2])",
    "{name}[:, {name}.sum(0).argmax()] = {limit}",
    "view[:2] = {value}[0, :2]",
    "self.seen.mul_(0.5).add_({value}.mean(0))",
    "self.seen[1] = {value}[0, 1]",
    "items[0] = {value}",
    "items[0][1] = {limit}",
)
OTHERS = (
    "{name} = {name} + view",
    "view = {name}[1]",
    "{name} = {name}.clone()",
    "{name} = {name} + self.seen",
    "{name}[0] = view",
    "{name} = {name} - items[0]",
    "items = [items[-1], {name}]",
    "own = torch.zeros_like({name}); own[0] = k; {name} = {name} - own",
    "rows = []; rows.append({name}); {name} = rows[0] * 2",
)
HEAD = """import torch
from torch import nn


class Drawn(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4) * 0.1)
        self.register_buffer("seen", torch.zeros(4))
        self.__private = 3

    def forward(self, x):
        k = 0.25
        size = x.shape[0]
        view, items = x[0], [x * 2, x]
"""


def value(name: str, chance: random.Random) -> str:
    return chance.choice(VALUES).format(name=name)


def condition(name: str, chance: random.Random) -> str:
    return chance.choice(CONDITIONS).format(name=name, limit=chance.choice(("0", "0.5", "-1", "k")))


def write(name: str, chance: random.Random) -> str:
    drawn = value(name, chance)
    return chance.choice(WRITES).format(name=name, value=f"({drawn})", limit=chance.choice(("0", "0.5", "k")))


def statements(name: str, chance: random.Random, depth: int = 0) -> list[str]:
    """Statements that give the tensor of that name other values."""
    made: list[str] = []
    for _ in range(chance.randint(1, 3)):
        match chance.choice(("assign", "if", "else", "choose", "loop", "function", "return", *["write"] * 3, "rest")):
            case "write":
                body = [write(name, chance) for _ in range(chance.randint(1, 2))]
                if chance.random() < 0.3:
                    body += [f"if {condition(name, chance)}:", *(f"    {write(name, chance)}" for _ in range(2))]
                made += [f"if {condition(name, chance)}:", *(f"    {one}" for one in body)]
                if chance.random() < 0.5:
                    made += ["else:", f"    {write(name, chance)}"]
            case "rest":
                made.append(chance.choice(OTHERS).format(name=name))
            case "if":
                made += [f"if {condition(name, chance)}:", f"    {name} = {value(name, chance)}"]
            case "else":
                made += [f"if {condition(name, chance)}:", f"    {name} = {value(name, chance)}"]
                made += ["else:", f"    {name} = {value(name, chance)}"]
            case "choose":
                made.append(f"{name} = {value(name, chance)} if {condition(name, chance)} else {name}")
            case "loop":
                over = chance.choice(("range(3)", "(1, 2)", "[3, 1]"))
                leaves = f"    if {condition(name, chance)}: {chance.choice(('break', 'continue'))}"
                made += [f"for i in {over}:", leaves, f"    {name} = {value(name, chance)} + i"]
            case "function" if depth < 2:
                function = f"step_{chance.randint(0, 999)}"
                last = f"return a * {chance.choice(('b', '1'))}"
                inner = ["view, items = a[0], [a * 2, a]", *statements("a", chance, depth + 1), last]
                made += [f"def {function}(a, b=2):", *(f"    {line}" for line in inner), f"{name} = {function}({name})"]
            case "return":
                made.append(f"if {condition(name, chance)}: return {value(name, chance)}")
            case _:
                made.append(f"{name} = {value(name, chance)}")
    return made


def check(seed: int, folder: Path) -> None:
    """What the program gives for values of many sizes is what eager gives, where it does not refuse the size."""
    chance = random.Random(seed)
    last = chance.choice(("return x", "return x * self.__private"))
    source = HEAD + indent("\n".join([*statements("x", chance), last]), " " * 8) + "\n"
    path = folder / f"drawn_functions_{seed}.py"
    path.write_text(source)
    module = import_factory_file(path).Drawn().eval()
    before = type(module).forward.__code__
    call = ExportCall(module=copy.deepcopy(module), args=(torch.ones(3, 4),), dynamic_shapes=({0: Dim.DYNAMIC},))
    try:
        with torch.no_grad(), apply_shims([find("branch-as-where")], call) as changed:
            program = export_program(changed).module()
    except NotApplicable:
        return
    except Exception as error:  # of the export, as without the shim; another one would be the shim's own fault
        if "data-dependent" not in str(error):
            raise
        return
    finally:
        assert type(module).forward.__code__ is before
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for scale in (-4.0, -1.0, -0.1, 0.1, 1.0, 4.0):
            for rows in (2, 5):
                x = torch.randn(rows, 4, generator=generator) * scale + scale / 2
                given = x.clone(), x.clone()
                wanted = module(given[0]), given[0], module.seen
                found = (
                    program(given[1]),
                    given[1],
                    program.seen if "seen" in dict(program.named_buffers()) else wanted[2],
                )
                torch.testing.assert_close(found, wanted, equal_nan=True, msg=lambda said: source + said)


@pytest.mark.slow
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_programs_of_drawn_functions_compute_what_eager_does(tmp_path: Path, seed: int) -> None:
    check(seed, tmp_path)


@pytest.mark.night
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_programs_of_many_drawn_functions_compute_what_eager_does(tmp_path: Path, seed: int) -> None:
    check(seed, tmp_path)
