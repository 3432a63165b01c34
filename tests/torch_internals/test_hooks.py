"""Every private part of torch that exportdoctor uses is there; a scan works without one that is not essential."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from exportdoctor.cli.main import run
from exportdoctor.core.errors import ExitCode
from exportdoctor.torch_internals.hook import Hook
from exportdoctor.torch_internals.hook_table import HOOKS, missing_hooks
from exportdoctor.torch_internals.shape_env import after_each_new_symbol, before_each_guard

ROOM = Path(__file__).parents[2] / "src" / "exportdoctor" / "torch_internals"


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.id)
def test_the_installed_torch_has(hook: Hook) -> None:
    assert hook.is_there()  # raises what is missing, by name


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.id)
def test_a_hook_says_what_it_is_for_and_what_is_lost(hook: Hook) -> None:
    assert hook.api
    assert hook.used_for
    assert hook.lost
    assert hook.seen_on


def test_every_hook_has_its_own_name() -> None:
    assert len({hook.id for hook in HOOKS}) == len(HOOKS)


def test_every_hook_of_the_room_is_in_the_table() -> None:
    made = {
        keyword.value.value
        for file in ROOM.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Hook"
        for keyword in node.keywords
        if keyword.arg == "id" and isinstance(keyword.value, ast.Constant)
    }
    assert made == {hook.id for hook in HOOKS}


def test_the_room_is_imported_without_torch() -> None:
    program = "import sys, exportdoctor.torch_internals.hook_table; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_nothing_is_missing_and_nothing_is_noted() -> None:
    assert missing_hooks() == ()


class Data(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 3:
            x = x + 1
        return x + 1 if int(x.sum().to(torch.int64)) > 3 else x


def test_symbols_and_guards_are_heard_of_while_torch_makes_them() -> None:
    symbols: list[str] = []
    guards: list[str] = []
    with (
        after_each_new_symbol(symbols.append),
        before_each_guard(lambda _, expression: guards.append(str(expression)), lambda *_: None),
        pytest.raises(Exception, match="u0"),
    ):
        torch.export.export(Data(), (torch.ones(5),), dynamic_shapes=({0: torch.export.Dim("n")},), strict=False)
    assert "u0" in symbols
    assert guards


@pytest.mark.long
@pytest.mark.slow
def test_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version", "--internals"]) == ExitCode.EXPORTS
    told = capsys.readouterr().out
    assert all(hook.id in told for hook in HOOKS)
    assert f"{len(HOOKS)} of the {len(HOOKS)}" in told


LACKING = """
import torch
import torch.fx._lazy_graph_module
from torch.fx.experimental.symbolic_shapes import ShapeEnv

del torch.fx._lazy_graph_module._use_lazy_graph_module
del ShapeEnv.create_unbacked_symfloat

class Model(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x + 1
        return x - 1

def build():
    return Model(), (torch.ones(3),)
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_scan_works_without_some_hooks_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "target.py").write_text(LACKING)
    command = [sys.executable, "-m", "exportdoctor", "scan", f"{tmp_path / 'target.py'}:build", "--no-cure", "--json"]
    done = subprocess.run(
        command, env=os.environ | {"EXPORTDOCTOR_HOME": str(tmp_path)}, capture_output=True, check=False
    )
    assert done.returncode == ExitCode.FINDINGS, done.stderr
    report = json.loads(done.stdout)
    lacking = [note for note in report["notes"] if "lazy-graph-modules" in note and "new-symbols" in note]
    assert len(lacking) == 1, report["notes"]
    assert lacking[0].endswith("exportdoctor version --internals")
    assert [finding["kind"] for finding in report["findings"]] == ["data_dependent_guard"]


# Operators, whose names may begin with an underscore, and a function that torch documents
OPEN = ("torch.ops.", "torch._check")


@pytest.mark.long
def test_private_names_of_torch_are_used_in_this_room_alone() -> None:
    found = {
        ("/".join(file.relative_to(ROOM.parent).parts), name)
        for file in ROOM.parent.rglob("*.py")
        if ROOM not in file.parents
        if "torch" in (text := file.read_text())
        for node in ast.walk(ast.parse(text))
        for name in _torch_names(node)
        if _is_private(name)
    }
    assert found == set()


@pytest.mark.parametrize(
    "line",
    ["import torch._dynamo", "from torch.utils import _pytree", "torch.nn.modules.dropout._DropoutNd", "torch._C.x()"],
)
def test_a_private_name_is_recognised(line: str) -> None:
    assert any(_is_private(name) for node in ast.walk(ast.parse(line)) for name in _torch_names(node))


@pytest.mark.parametrize("line", ["torch.__version__", "from torch.fx import Node", "torch.ops.aten._local_scalar"])
def test_a_public_name_is_recognised(line: str) -> None:
    assert not any(_is_private(name) for node in ast.walk(ast.parse(line)) for name in _torch_names(node))


def _torch_names(node: ast.AST) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom(module=str(module), level=0):
            return [f"{module}.{alias.name}" for alias in node.names]
        case ast.Attribute():
            return [ast.unparse(node)]
    return []


def _is_private(name: str) -> bool:
    if name.partition(".")[0] != "torch" or name.startswith(OPEN):
        return False
    private = any(part.startswith("_") and not part.startswith("__") for part in name.split(".")[1:])
    return private or name.startswith("torch.fx.experimental")
