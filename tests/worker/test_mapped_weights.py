"""Weights that move to disk: what computes with them must not notice, and memory must be free of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from exportdoctor.worker.mapped_weights import map_weights, map_weights_if_short, release_mapped_weights


class Tied(nn.Module):
    """Ties a matrix, holds another transposed, a view into a third, and a buffer; the last bias is small."""

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.embed = nn.Embedding(width, width)
        self.head = nn.Linear(width, width, bias=False)
        self.head.weight = self.embed.weight
        self.turned = nn.Parameter(torch.randn(width, width).t())
        whole = torch.randn(2 * width, width)
        self.view = nn.Parameter(whole[width // 2 : width + width // 2], requires_grad=False)
        self.same: torch.Tensor
        self.register_buffer("same", whole)
        self.last = nn.Linear(width, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) @ self.turned @ self.view + self.same[: ids.shape[0]]
        return self.last(self.head(x))


def memory(kind: str) -> int:
    """MiB of this process, by the kernel's name for the kind."""
    found = re.search(rf"^{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) // 1024


def test_a_model_computes_the_same_with_its_weights_on_disk(tmp_path: Path) -> None:
    model, ids = Tied().eval(), torch.arange(7)
    wanted = model(ids)
    before = {name: (one.stride(), one.storage_offset(), one.clone()) for name, one in model.state_dict().items()}
    moved = map_weights(model, tmp_path)
    assert moved == 4 * 1024 * 1024 * 4  # the tied one once, the view with what it is of
    assert torch.equal(model(ids), wanted)
    for name, one in model.state_dict().items():
        stride, offset, values = before[name]
        assert (one.stride(), one.storage_offset()) == (stride, offset)
        assert torch.equal(one, values), name
    assert model.head.weight is model.embed.weight
    assert (model.view.requires_grad, model.turned.requires_grad) == (False, True)
    model.same.zero_()
    assert not model.view.any()  # they still share their storage
    assert not list(tmp_path.iterdir())  # nothing to clean up


@pytest.mark.slow
def test_weights_on_disk_need_no_memory_of_their_own(tmp_path: Path) -> None:
    model = nn.Linear(8192, 4096)
    before = memory("RssAnon")
    map_weights(model, tmp_path)
    assert before - memory("RssAnon") > 100  # of 128


def test_an_export_of_weights_on_disk_is_that_of_the_same_weights(tmp_path: Path) -> None:
    model, ids = Tied(), torch.arange(7)
    wanted = model(ids)
    map_weights(model, tmp_path)
    torch.export.save(torch.export.export(model.eval(), (ids,)), tmp_path / "tied.pt2")
    assert torch.equal(torch.export.load(tmp_path / "tied.pt2").module()(ids), wanted)


def test_weights_stay_where_memory_suffices(tmp_path: Path) -> None:
    model = Tied(64)
    at = model.turned.data_ptr()
    assert map_weights_if_short(model, tmp_path) == 0
    assert model.turned.data_ptr() == at


def test_fake_and_meta_weights_stay(tmp_path: Path) -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = nn.Linear(4096, 4096)
    assert map_weights(fake, tmp_path) == 0
    assert map_weights(nn.Linear(4096, 4096, device="meta"), tmp_path) == 0


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_weights_stay(layout: torch.layout, tmp_path: Path) -> None:
    """A sparse tensor has no storage to ask for its size: commands that run the program ended with code 4."""
    model = nn.Linear(2, 2)
    model.register_buffer("heads", torch.eye(3).to_sparse(layout=layout))
    assert map_weights_if_short(model, tmp_path) == 0


@pytest.mark.slow
def test_mapped_weights_leave_memory_and_come_back(tmp_path: Path) -> None:
    model, x = nn.Linear(8192, 4096), torch.randn(2, 8192)
    wanted = model(x)
    map_weights(model, tmp_path)
    assert torch.equal(model(x), wanted)
    before = memory("VmRSS")
    release_mapped_weights()
    assert before - memory("VmRSS") > 100  # of 128
    assert torch.equal(model(x), wanted)
