"""Complex tensors in ONNX: what is computed on the parts equals the operator itself, and is translated."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from decompositions import Computes, Operator, assert_same_results, translate
from exportdoctor.shims import NotApplicable
from exportdoctor.shims.own.complex_parts import without_complex_operators


def written(z: Tensor, w: Tensor) -> Tensor:
    """A spectrum of which some modes are set, as in a Fourier neural operator; one is doubled through a view."""
    made = torch.zeros_like(z)
    made[:, :2] = z[:, :2] * w[:, :2]
    made[0].mul_(2)
    return made


OPERATORS: dict[str, Operator] = {
    "unsqueeze": lambda z, w: (z.unsqueeze(1), w.unsqueeze(-1)),
    "squeeze": lambda z, w: z.unsqueeze(1).squeeze(1) + w[:, None].squeeze(),
    "expand": lambda z, w: z.expand(3, *z.shape),
    "repeat": lambda z, w: (z.repeat(2, 1), w.tile(2), z.repeat_interleave(2, 0)),
    "indices": lambda z, w: (z[0], z[:, torch.tensor([1, 0])], z.index_select(0, torch.tensor([1]))),
    "gather": lambda z, w: z.gather(1, torch.zeros(2, 1, dtype=torch.int64)),
    "pieces": lambda z, w: (*z.chunk(2, -1), *w.split(2, -1), *z.unbind(0), z.unfold(1, 2, 1)),
    "triangle": lambda z, w: (z.tril(), w.triu(), z.diagonal()),
    "sums": lambda z, w: z.cumsum(-1) + w.cumsum(0),
    "where": lambda z, w: (torch.where(z.real > 0, z, w), torch.where(w.real > 0, 0.5, z), z.where(z.real > 0, 1)),
    "masked": lambda z, w: (z.masked_fill(w.real > 0, 0.5), z.masked_fill(w.real > 0, -math.inf)),
    "padded": lambda z, w: (nn.functional.pad(z, (1, 1), value=2.0), nn.functional.pad(w, (0, 1))),
    "scattered": lambda z, w: z.scatter(1, torch.zeros(2, 1, dtype=torch.int64), w[:, 1:2]),
    "put": lambda z, w: z.index_put((torch.tensor([0]),), w[:1]),
    "written": written,
    "made": lambda z, w: (torch.ones_like(z) + w, torch.zeros(2, 4, dtype=torch.cfloat) + z, z.new_zeros(2, 4) + w),
    "flags": lambda z, w: (torch.full((2, 4), True, dtype=torch.cfloat) * w, torch.full_like(z, True) + w),
    "full": lambda z, w: (torch.full((2, 4), 2 + 1j) * w, torch.full_like(z, 3) + w, z.new_full((2, 4), 1j) * w),
    "taken by real numbers": lambda z, w: (z.real.clone().copy_(w), z.real.index_put((torch.tensor([0]),), w.real[:1])),
    "converted": lambda z, w: (z.real.to(torch.complex64) * w, z[None].to(torch.float32), z[None].to(torch.complex128)),
    "einsum": lambda z, w: torch.einsum("ij,kj->ik", z, w),
    "products": lambda z, w: (torch.bmm(z[None], w.mT[None]), z.mm(w.T), z[0].dot(w[1]), torch.outer(z[0], w[0])),
    "linear": lambda z, w: (nn.functional.linear(z, w), nn.functional.linear(z, w, w[:, 0])),
    "imaginary unit": lambda z, w: (torch.exp(1j * z.real), w.real * (2 - 3j), z * 1j),
    "powers": lambda z, w: (z**2, w**3, (-z).sqrt(), z.exp(), w.log()),
    "norm": lambda z, w: torch.linalg.vector_norm(z, dim=-1),
}  # fmt: skip


class OnComplex(Computes):
    """The operators on two complex numbers a row and column; complex results as pairs."""

    def forward(self, radius: Tensor, angle: Tensor) -> tuple[Tensor, ...]:
        results = super().forward(torch.polar(radius, angle), torch.polar(angle.abs() + 0.5, radius))
        return tuple(torch.view_as_real(one) if one.is_complex() else one for one in results)


def inputs(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(2, 4, generator=generator) + 0.5, torch.randn(2, 4, generator=generator) * 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("name", OPERATORS)
def test_what_is_computed_on_the_parts_equals_the_operator(name: str) -> None:
    module = OnComplex(OPERATORS[name])
    program = without_complex_operators(torch.export.export(module, inputs()))
    assert_same_results(program.module(), module, map(inputs, range(5)))


def test_logarithm_and_root_reach_to_the_end_of_the_range() -> None:
    largest = torch.finfo(torch.float32).max
    sizes = torch.tensor([[largest, largest / 2, 1e30, 1e-30], [0.0, torch.finfo(torch.float32).tiny, 1.0, 3.0]])
    angles = torch.tensor([[0.5, math.pi / 4, 3.0, -2.0], [0.0, 1.0, -0.5, math.pi / 2]])
    module = Computes(
        lambda z, w: (torch.view_as_real(torch.polar(z, w).log()), torch.view_as_real(torch.polar(z, w).sqrt()))
    )
    program = without_complex_operators(torch.export.export(module, inputs()))
    assert_same_results(program.module(), module, [(sizes, angles)])


@pytest.mark.long
@pytest.mark.slow
def test_all_of_them_are_translated_and_run_in_onnx_runtime() -> None:
    """ONNX has no infinite complex number: `0 * inf` is NaN in a product of parts."""
    module = OnComplex(*(operator for name, operator in OPERATORS.items() if name != "masked"))
    run = translate(module, inputs(), "complex-as-parts")
    assert_same_results(run, module, map(inputs, range(3)), rtol=1e-4, atol=1e-5)


def test_guards_and_dynamic_sizes_stay() -> None:
    """A rotation of any number of positions from two on; what the program refused it refuses."""

    class Rotation(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            turned = torch.polar(torch.ones(x.shape[1] // 2), torch.arange(x.shape[1] // 2) * 0.1)
            pairs = torch.view_as_complex(x.reshape(x.shape[0], -1, 2))
            return torch.view_as_real(pairs * turned.unsqueeze(0)).flatten(1)

    module = Rotation()
    shapes = {"x": {1: 2 * Dim("pairs", min=2)}}
    plain = torch.export.export(module, (torch.randn(2, 8),), dynamic_shapes=shapes)
    program = without_complex_operators(plain)
    for width in (4, 6, 10, 32):
        x = torch.randn(2, width)
        torch.testing.assert_close(program.module()(x), module(x))
    for refused in (torch.randn(2, 7), torch.randn(3, 8), torch.randn(2, 2)):
        for one in (plain, program):
            with pytest.raises((RuntimeError, AssertionError)):
                one.module()(refused)


def test_a_program_without_such_operators_is_left_alone() -> None:
    class Product(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.unsqueeze(0).exp()

    with pytest.raises(NotApplicable, match="no operator on complex tensors"):
        without_complex_operators(torch.export.export(Product(), (torch.randn(3),)))
