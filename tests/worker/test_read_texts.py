"""Where the text of a size is read while a model is exported, which is that of a symbol."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.cli.main import run
from exportdoctor.shims import ExportCall
from exportdoctor.shims.rules.code.number_types import symbolic_numbers
from exportdoctor.worker.prove.read_texts import watch_texts

TABLE = {"16": 3.0}


class Model(nn.Module):
    def __init__(self, scale: Callable[[Tensor], float]) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale(x)


def in_a_message(x: Tensor) -> float:
    logging.getLogger(__name__).debug("sizes %s", x.shape)
    logging.getLogger(__name__).debug(f"sizes {x.shape}")
    assert x.dim() == 2, f"{x.shape}"
    if x.dim() > 2:
        raise ValueError(f"{x.shape}")
    return 1.0


@pytest.mark.parametrize(
    "scale",
    [
        lambda x: TABLE.get(str(x.shape[0]), 1.0),
        lambda x: TABLE.get(f"{x.shape[0]}", 1.0),
        lambda x: TABLE.get(repr(x.shape), 1.0),
        lambda x: TABLE.get("x".join(map(str, x.shape)), 1.0),
    ],
)
def test_a_line_that_reads_the_text_of_a_size_is_told(scale: Callable[[Tensor], float]) -> None:
    with watch_texts() as say:
        torch.export.export(Model(scale), (torch.ones(5, 4),), dynamic_shapes=({0: Dim("b")},))
    assert say().startswith("at test_read_texts.py:")
    assert "which is 's" in say()


@pytest.mark.parametrize("scale", [in_a_message, lambda x: TABLE.get(str(x.shape[1]), 1.0)])
def test_messages_and_sizes_that_are_fixed_do_not_count(scale: Callable[[Tensor], float]) -> None:
    with watch_texts() as say:
        torch.export.export(Model(scale), (torch.ones(5, 4),), dynamic_shapes=({0: Dim("b")},))
    assert say() == ""


def test_what_a_shim_makes_of_the_text_stays() -> None:
    """Story: the watch stood between the shim and the model, which had the symbol's text again."""
    model, x = Model(lambda x: TABLE.get(str(x.shape[0]), 1.0)), torch.ones(16, 4)
    call = ExportCall(module=model, args=(x,), dynamic_shapes=({0: Dim.AUTO},))
    with watch_texts() as say, symbolic_numbers(call):
        program = torch.export.export(model, (x,), dynamic_shapes=({0: Dim.AUTO},))
    torch.testing.assert_close(program.module()(x), model(x))
    assert say() == ""


KEYED = """import torch
from torch import nn
from torch.export import Dim


class Keyed(nn.Module):
    table = {"16": 3.0}

    def forward(self, x):
        return x * self.table.get(str(x.shape[0]), 1.0)


def build():
    return Keyed(), (torch.randn(5, 4),), {}, {"x": {0: Dim("b")}}
"""


@pytest.mark.long
@pytest.mark.slow
def test_scan_and_domain_say_that_they_do_not_vouch_for_other_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: at b = 16 the program is wrong, and each of them said that it is right."""
    (tmp_path / "keyed.py").write_text(KEYED)
    monkeypatch.chdir(tmp_path)
    for verb in ("scan", "domain"):
        assert run([verb, "keyed.py:build"]) == 0
        assert "at keyed.py:10 the model reads the text of a number" in " ".join(capsys.readouterr().out.split())
