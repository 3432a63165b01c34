"""Dimensions that are declared `Dim.AUTO`: torch may fix them, in a submodule as in the whole model."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanning import scan_file

MODEL = """
import torch
from torch import nn
from torch.export import Dim

class Fixes(nn.Module):
    def forward(self, x, m):
        return x if x.shape[0] == 3 and m.shape[1] == 4 else x * 2

class Asks(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else x * 2

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fixes, self.asks = Fixes(), Asks()

    def forward(self, x, m):
        return self.asks(self.fixes(x, m))

def declared(one, other):
    return Model().eval(), (torch.randn(3, 5), torch.randn(6, 4)), {}, {"x": {0: one}, "m": {1: other}}

def auto():
    return declared(Dim.AUTO, Dim.AUTO)

def dynamic():
    return declared(Dim.DYNAMIC, Dim.DYNAMIC)

def both():
    return declared(Dim.AUTO, Dim.DYNAMIC)
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_submodule_that_fixes_a_size_fails_only_where_it_is_declared_dynamic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its failure with other declarations is in the cache."""
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path / "home"))
    path = tmp_path / "sized.py"
    path.write_text(MODEL)
    found = {}
    for factory in ("dynamic", "auto", "both"):
        report = scan_file(path, factory=factory, use_cache=True)
        found[factory] = [(one.module, one.dimensions) for one in report.findings if one.module == "fixes"]
    assert found == {"dynamic": [("fixes", ("x[0]",))], "auto": [], "both": [("fixes", ("m[1]",))]}
