"""Each of our own shims: without it its case fails as expected, with it the program agrees with eager."""

from __future__ import annotations

import copy
import functools
import re
from typing import Any

import pytest
import torch

import exportdoctor.shims as sh
from exportdoctor.core.versions import is_in_range
from exportdoctor.shims.leaks import changed_places, snapshot
from exportdoctor.shims.own import OWN
from shim_cases import CACHE, CASES, Growing, Store, after_prompt

TOLERANCE = 1e-5
SHIMS = {shim.id: shim for shim in OWN}
NO_PROGRAM = {"mask-without-vmap"}
"""Cases of the TorchScript exporter, which returns a file and no program."""

OF_THE_CLASS = {"precompute-grid-methods", "rnn-as-scan"}
"""Shims that need the forward of the root's class; the second says so."""

OTHERS: dict[str, Any] = {
    "suggested-constants": (torch.randn(3, 5),),
    "auto-dims": (torch.randn(3, 5),),
    "frozen-values": (torch.randn(3), torch.tensor([[3, 2, 1]])),
    "static-dim": (torch.randn(4, 4),),
    "register-cache-pytree-fixed": {"input_ids": after_prompt(13)[1], CACHE: after_prompt(13)[0]},
    "register-dataclass-pytree-fixed": (torch.randn(1, 3), Store(torch.randn(2, 3), 8)),
}
"""Inputs that the program of a specialised shim was not made for."""


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


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_without_the_shim_it_fails_as_expected(name: str) -> None:
    found = CASES[name]
    if found.mended and is_in_range(torch.__version__, found.mended):
        found.export(found.call())
        return
    try:
        found.export(found.call())
    except Exception as error:  # which kind of exception is torch's to choose
        said = f"{type(error).__name__}: {error}"
        assert re.search(found.fails, said), said[:500]
    else:
        pytest.fail(f"this passes without {name}: upstream no longer needs the shim, retire it")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_with_the_shim_it_exports_and_agrees_with_eager(name: str) -> None:
    found, shim = CASES[name], SHIMS[name]
    call = found.call()
    sets = ((call.args, call.kwargs), *found.others)
    before = [run(found.eager() if found.eager else call.module, inputs) for inputs in sets]
    with sh.apply_shims((shim,), call) as given:
        program = found.export(given)
        # the TorchScript exporter hands back a file; eager under the shim stands in for it
        after = program.module() if program is not None else given.module
        for inputs, value in zip(sets, before, strict=True):
            answer, want = flat(run(after, given.convert(inputs))), flat(value)
            assert max(float((a - b).abs().max()) for a, b in zip(answer, want, strict=True)) <= TOLERANCE


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_it_exports_also_where_a_module_has_two_names(name: str) -> None:
    """A non-strict export then runs forward on a proxy of each module, the root too."""
    found, call = CASES[name], CASES[name].call()
    one = torch.nn.Identity()
    call.module.add_module("first_name", one)
    call.module.add_module("second_name", one)
    with sh.apply_shims((SHIMS[name],), call) as given:
        found.export(given)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in OF_THE_CLASS])
def test_it_exports_also_where_the_instance_has_a_forward_of_its_own(name: str) -> None:
    """As the hooks of accelerate give it one."""
    found, call = CASES[name], CASES[name].call()
    before = call.module.forward

    @functools.wraps(before)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return before(*args, **kwargs)

    call.module.forward = forward
    with sh.apply_shims((SHIMS[name],), call) as given:
        found.export(given)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_everything_is_restored_also_when_the_body_raises(name: str) -> None:
    shim, call = SHIMS[name], CASES[name].call()
    with sh.apply_shims((shim,), call):  # imports what it needs
        pass
    before = snapshot(call)
    with pytest.raises(RuntimeError, match="from the body"), sh.apply_shims((shim,), call):
        raise RuntimeError("from the body")
    assert changed_places(before, snapshot(call)) == set()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in CASES if not name.startswith("register-") and name not in NO_PROGRAM]
)
def test_the_program_runs_after_the_shim_is_gone(name: str) -> None:
    """Except for registrations, which the program needs when it runs, as their records say."""
    found, shim = CASES[name], SHIMS[name]
    call = found.call()
    with sh.apply_shims((shim,), call) as given:
        program = found.export(given)
    inputs = (call.args, call.kwargs)
    answer, want = flat(run(program.module(), given.convert(inputs))), flat(run(call.module, inputs))
    assert all(torch.allclose(one, other, atol=TOLERANCE) for one, other in zip(answer, want, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", [shim.id for shim in OWN if shim.soundness == "specialised"])
def test_a_program_of_a_specialised_shim_refuses_what_it_was_not_made_for(name: str) -> None:
    """It must not answer with other numbers than eager."""
    found, call = CASES[name], CASES[name].call()
    assert found.others == ()
    other = OTHERS[name]
    with sh.apply_shims((SHIMS[name],), call) as given:
        program = found.export(given).module()
    with pytest.raises((ValueError, RuntimeError, AssertionError)):
        run(program, given.convert((other, {})))


def test_an_object_with_tensors_goes_in_and_out_and_is_forgotten_afterwards() -> None:
    from torch.utils._pytree import SUPPORTED_NODES

    inputs = (torch.randn(1, 3), Store(torch.randn(2, 3), 7))
    call = sh.ExportCall(module=Growing(), args=inputs)
    want = run(call.module, (inputs, {}))
    with sh.apply_shims((SHIMS["register-dataclass-pytree-fixed"],), call) as given:
        answer = run(sh.export_program(given).module(), (inputs, {}))
    assert isinstance(answer, Store)
    assert torch.equal(answer.rows, want.rows)
    assert answer.seen == want.seen == 8
    assert Store not in SUPPORTED_NODES
