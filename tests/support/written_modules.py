"""Models whose source a test writes: shims that rewrite code read it from a file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from textwrap import dedent, indent

import torch
from torch import nn


def net_of(text: str, path: Path) -> nn.Module:
    """An instance of the class `Net` of this source, which is written to `path`, in eval mode and with the same weights
    each time."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    torch.manual_seed(0)
    found: nn.Module = made.Net().eval()
    return found


def net_with_forward(head: str, body: str, folder: Path) -> nn.Module:
    """An instance of the class `Net` of `head`, which ends with the line of its forward, and these statements."""
    return net_of(head + indent(dedent(body).strip(), " " * 8) + "\n", folder / "net.py")
