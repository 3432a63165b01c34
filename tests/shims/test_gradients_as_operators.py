"""Modules that compute gradients in forward: the program computes what eager does, at other sizes too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx

from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from exportdoctor.targets.eager import needs_gradients, run_example, run_once
from exportdoctor.torch_internals.trees import tree_leaves
from scanning import scan_file


class Model(nn.Module):
    def __init__(self, step: Callable[[Model, Tensor], Any]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 1))
        self.attention = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)
        self.count: Tensor
        self.register_buffer("count", torch.zeros(()))
        self.step = step

    def forward(self, x: Tensor) -> Any:
        return self.step(self, x)


def forces(model: Model, x: Tensor) -> Any:
    at = x.requires_grad_()
    energy = model.layers(at).sum()
    (slope,) = torch.autograd.grad(energy, at)
    return {"energy": energy, "forces": -slope, "size": at.shape[0], "none": None}


def forces_of_a_copy(model: Model, x: Tensor) -> Any:
    with torch.enable_grad():
        at = x.detach().clone().requires_grad_()
        model.layers(at).sum().backward()
    return at.grad


def counts(model: Model, x: Tensor) -> Any:
    model.count += x.shape[0]
    at = x.requires_grad_()
    (slope,) = torch.autograd.grad(model.layers(at).pow(2).sum(), at, create_graph=True)
    return slope * model.count


def learns(model: Model, x: Tensor) -> Any:
    weights = list(model.layers.parameters())
    slopes = torch.autograd.grad(model.layers(x).pow(2).mean(), weights)
    return torch.func.functional_call(
        model.layers,
        {name: one - 0.1 * slope for (name, one), slope in zip(model.layers.named_parameters(), slopes, strict=True)},
        (x,),
    )


def saliency(model: Model, x: Tensor) -> Any:
    at = x[None].requires_grad_()
    return torch.autograd.grad(model.attention(at).sum(), at)[0]


def slopes(model: Model, x: Tensor) -> Any:
    return torch.func.grad(lambda at: model.layers(at).sum())(x)


def jacobian(model: Model, x: Tensor) -> Any:
    return torch.vmap(torch.func.jacrev(lambda row: torch.tanh(model.layers(row))))(x)


STEPS = [forces, forces_of_a_copy, counts, learns, saliency, slopes, jacobian]


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_a_program_computes_the_gradients_that_eager_computes(step: Callable[[Model, Tensor], Any]) -> None:
    module = Model(step).eval()
    call = ExportCall(module=module, args=(torch.randn(3, 4),), dynamic_shapes=({0: Dim.DYNAMIC},))
    with apply_shims([find("gradients-as-operators")], call) as given:
        exported = export_program(given)
    assert not exported.constants
    program, module = exported.module(), copy.deepcopy(module)  # a program shares its tensors with the module
    for rows in (3, 5, 2):
        x = torch.randn(rows, 4)
        found, wanted = (tree_leaves(one(x.clone())) for one in (program, module))
        assert len(found) == len(wanted)
        for mine, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, theirs.detach() if isinstance(theirs, Tensor) else theirs)
        torch.testing.assert_close(program.state_dict()["count"], module.count)


@pytest.mark.slow
@pytest.mark.parametrize("step", [forces, slopes, jacobian], ids=lambda step: step.__name__)
def test_what_is_advised_exports_with_dynamic_sizes(step: Callable[[Model, Tensor], Any]) -> None:
    """A graph of make_fx alone has the example's sizes as constants."""
    module = Model(lambda model, x: tree_leaves(step(model, x))[0]).eval()
    x = torch.randn(3, 4)
    graph = make_fx(module, tracing_mode="symbolic", _allow_non_fake_inputs=True)(x)
    program = torch.export.export(graph, (x,), dynamic_shapes=({0: Dim.DYNAMIC},)).module()
    more = torch.randn(5, 4)
    torch.testing.assert_close(program(more.clone()), module(more.clone()).detach())
    (replaced,) = find("gradients-as-operators").replaces
    assert 'make_fx(model, tracing_mode="symbolic", _allow_non_fake_inputs=True)' in replaced.after


def test_a_forward_that_computes_gradients_runs_with_them_and_others_without() -> None:
    module, plain = Model(forces), Model(lambda model, x: model.layers(x))
    output = run_once(module, ((torch.ones(2, 4),), {}))
    assert needs_gradients(module)
    assert not output["forces"].requires_grad
    assert not run_once(plain, ((torch.ones(2, 4),), {})).requires_grad
    assert not needs_gradients(plain)


def keeps_activations(model: Model, x: Tensor) -> Any:
    found: list[Tensor] = []
    rows = model.layers[0](x)  # type: ignore[operator]
    rows.register_hook(found.append)
    kept = rows.tanh()
    kept.retain_grad()
    kept.sum().backward()
    return found[0] * kept.grad


def test_hooks_on_activations_run_with_gradients() -> None:
    module = Model(keeps_activations)
    x = torch.ones(2, 4)
    torch.testing.assert_close(run_once(module, ((x,), {})), module(x).detach())


def test_what_it_raises_is_known_behind_an_exception_of_our_own() -> None:
    """`export` said that the eager forward fails, of a model that the scan had cured."""
    module = Model(forces)
    (result,) = run_example(module, "default", ((torch.ones(2, 4),), {}))
    assert not result.output["forces"].requires_grad


def test_gradients_of_parameters_are_left_as_they_were() -> None:
    def accumulates(model: Model, x: Tensor) -> Any:
        model.layers(x).sum().backward()
        return model.layers[0].weight.grad.clone()  # type: ignore[union-attr, operator]

    module = Model(accumulates)
    first, second = (run_once(module, ((torch.ones(2, 4),), {})) for _ in range(2))
    assert all(one.grad is None for one in module.parameters())
    torch.testing.assert_close(first, second)


def test_a_forward_that_assigns_a_buffer_is_refused() -> None:
    """torch.export took the value of a node of the same name, and the buffer never changed."""

    def assigns(model: Model, x: Tensor) -> Any:
        at = x.detach().requires_grad_()
        slope = torch.autograd.grad(model.layers(at).sum(), at)[0]
        model.count = slope.mean().detach()
        return slope

    call = ExportCall(module=Model(assigns), args=(torch.randn(3, 4),))
    shims = [find("gradients-as-operators")]
    with pytest.raises(NotApplicable, match="assigns a buffer"), apply_shims(shims, call) as given:
        export_program(given)


def test_what_fails_with_gradients_too_raises_what_it_raises_there() -> None:
    def fails(model: Model, x: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise ValueError("with gradients")
        return torch.autograd.grad(model.layers(x).sum(), x)

    module = Model(fails)
    with pytest.raises(ValueError, match="with gradients"):
        run_once(module, ((torch.ones(2, 4),), {}))
    assert not needs_gradients(module)


FORCES = """
import torch
from torch import nn
from torch.export import Dim

class Forces(nn.Module):
    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, positions):
        positions = positions.requires_grad_()
        energy = self.energy(positions).sum()
        return energy, -torch.autograd.grad(energy, positions)[0]

def build():
    return Forces(), (torch.randn(4, 3),), {}, ({0: Dim("atoms")},)
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_model_of_forces_is_scanned_and_cured(tmp_path: Any) -> None:
    """Its eager forward was said to fail, because it ran without gradients."""
    (tmp_path / "model.py").write_text(FORCES)
    report = scan_file(tmp_path / "model.py", cure=True)
    (finding,), (part,) = report.findings, report.parts
    assert (finding.kind, finding.module) == (FailureKind.AUTOGRAD_STATE, "")
    assert finding.value_origin is not None
    assert "torch.autograd.grad" in finding.value_origin.source
    assert part.prescription is not None
    assert [step.shim for step in part.prescription.steps] == ["gradients-as-operators"]
    assert part.prescription.soundness == "exact"
    assert any("fails under torch.no_grad()" in note for note in report.notes)
