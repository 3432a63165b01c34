"""Each of our own shims: without it its case fails as expected, with it the program agrees with eager."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import exportdoctor.shims as sh
from exportdoctor.shims.leaks import changed, snapshot
from exportdoctor.shims.own import OWN
from shim_cases import CASES

pytestmark = pytest.mark.slow

TOLERANCE = 1e-5
SHIMS = {shim.id: shim for shim in OWN}


def flat(value: Any) -> list[torch.Tensor]:
    """The tensors of an output; what is in a class that is no pytree node only counts where it is registered."""
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def run(module: Any, inputs: sh.Inputs) -> Any:
    args, kwargs = copy.deepcopy(inputs)
    with torch.no_grad():
        return module(*args, **kwargs)


def test_every_shim_of_ours_has_a_case() -> None:
    assert SHIMS.keys() == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_without_the_shim_it_fails_as_expected(name: str) -> None:
    found = CASES[name]
    try:
        found.export(found.call())
    except Exception as error:  # which kind of exception is torch's to choose
        said = f"{type(error).__name__}: {error}"
        assert re.search(found.fails, said), said[:500]
    else:
        pytest.fail(f"this passes without {name}: upstream no longer needs the shim, retire it")


@pytest.mark.parametrize("name", CASES)
def test_with_the_shim_it_exports_and_agrees_with_eager(name: str) -> None:
    found, shim = CASES[name], SHIMS[name]
    call = found.call()
    sets = ((call.args, call.kwargs), *found.others)
    before = [run(found.eager() if found.eager else call.module, inputs) for inputs in sets]
    with sh.applying((shim,), call) as given:
        program = found.export(given)
        # the legacy exporter hands back a file; eager under the shim stands in for it
        after = program.module() if program is not None else given.module
        for inputs, value in zip(sets, before, strict=True):
            answer, want = flat(run(after, given.convert(inputs))), flat(value)
            assert max(float((a - b).abs().max()) for a, b in zip(answer, want, strict=True)) <= TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_everything_is_restored_also_when_the_body_raises(name: str) -> None:
    shim, call = SHIMS[name], CASES[name].call()
    with sh.applying((shim,), call):  # imports what it needs
        pass
    before = snapshot(call)
    with pytest.raises(RuntimeError, match="from the body"), sh.applying((shim,), call):
        raise RuntimeError("from the body")
    assert changed(before, snapshot(call)) == set()


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("register-")])
def test_the_program_runs_after_the_shim_is_gone(name: str) -> None:
    """But for registrations, which running the program needs, too, as their records say."""
    found, shim = CASES[name], SHIMS[name]
    call = found.call()
    with sh.applying((shim,), call) as given:
        program = found.export(given)
    if program is not None:
        inputs = (call.args, call.kwargs)
        answer, want = flat(run(program.module(), given.convert(inputs))), flat(run(call.module, inputs))
        assert [one.shape for one in answer] == [one.shape for one in want]


def test_a_specialised_shim_is_not_needed_by_other_sizes() -> None:
    """A case of a specialised shim has one input set alone: the others would fail, and are not promised."""
    assert all(not CASES[shim.id].others for shim in OWN if shim.soundness == "specialised")


def test_the_probe_stops_at_the_line_that_makes_a_dimension_static() -> None:
    call = CASES["static-dim"].call()
    with pytest.raises(sh.DimensionMadeStatic, match=r"becomes 4") as caught, sh.stopping_where_static():
        sh.export_program(call)
    assert any((Path(frame.path).name, frame.name) == ("shim_cases.py", "forward") for frame in caught.traceback)


class Store:
    """A cache of one's own: no dataclass, and no pytree node."""

    def __init__(self, rows: torch.Tensor, seen: int) -> None:
        self.rows, self.seen = rows, seen


class Growing(torch.nn.Module):
    """Adds a row to the store that it is given."""

    def forward(self, x: torch.Tensor, store: Store) -> Store:
        store.rows = torch.cat([store.rows, x])
        store.seen += 1
        return store


def test_an_object_with_tensors_goes_in_and_out_and_is_forgotten_afterwards() -> None:
    from torch.utils._pytree import SUPPORTED_NODES

    inputs = (torch.randn(1, 3), Store(torch.randn(2, 3), 7))
    call = sh.ExportCall(module=Growing(), args=inputs)
    want = run(call.module, (inputs, {}))
    with sh.applying((SHIMS["register-dataclass-pytree"],), call) as given:
        answer = run(sh.export_program(given).module(), (inputs, {}))
    assert isinstance(answer, Store)
    assert torch.equal(answer.rows, want.rows)
    assert answer.seen == want.seen == 8
    assert Store not in SUPPORTED_NODES
