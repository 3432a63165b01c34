"""With the example's branches a program gives eager's outputs where the same are taken, and refuses other inputs."""

from __future__ import annotations

import itertools
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from exportdoctor.torch_internals.example_values import decide_by_example
from found_rows import inputs_of, module_of
from scanning import scan_file

CONDITIONS = (
    "mask.all()",
    "not mask.any()",
    "rows.shape[0] > 1",
    "mask.sum() >= x.shape[0] - 1",
    "x[rows].sum().item() > 9.5",
    "rows.shape[0] % 2 == 1 or rows.numel() < 3",
)
BODIES = (
    "kept = None if {} else x[rows]\n        return y if kept is None else y.sum(0) + kept.sum(0)",
    "if {}:\n            y = self.proj(y)\n            print(end='')\n        return y",
    "return {{'y': y}} if {} else {{'rows': rows}}",
)
FOUND: tuple[list[int], ...] = ([], [1], [0, 2], [0, 1, 2], [0, 1, 2, 3])


def export(module: nn.Module, args: tuple[Any, ...]) -> Any:
    with apply_shims([find("branches-as-example")], ExportCall(module=module, args=args)) as call:
        return export_program(call)


@pytest.mark.slow
@pytest.mark.parametrize(("condition", "body"), itertools.product(CONDITIONS, BODIES))
def test_the_program_takes_all_inputs_that_take_the_examples_branch_and_no_others(
    condition: str, body: str, tmp_path: Any
) -> None:
    module = module_of(condition, body, tmp_path)
    exported = 0
    for example in FOUND:
        try:
            program = export(module, inputs_of(example)).module()
        except (NotApplicable, torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode):
            continue  # it would fix a number
        exported += 1
        for found in FOUND:
            inputs = inputs_of(found)
            names = {"x": inputs[0], "mask": inputs[1], "rows": torch.nonzero(inputs[1]).squeeze(-1)}
            first = {**names, **dict(zip(("x", "mask"), inputs_of(example)))}
            first["rows"] = torch.nonzero(first["mask"]).squeeze(-1)
            if bool(eval(condition, {}, names)) != bool(eval(condition, {}, first)):
                with pytest.raises(RuntimeError, match="assertion failed"):
                    program(*inputs)
            elif "or" not in condition or found == example:
                torch.testing.assert_close(program(*inputs), module(*inputs))
            else:  # the other side may lead to the same branch: it is refused, or right
                with suppress(RuntimeError):
                    torch.testing.assert_close(program(*inputs), module(*inputs))
    assert exported


class Chance(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if torch.rand([]) > 0.5 else x


class ChanceInPlace(nn.Module):
    """The numbers are drawn into a tensor by a call whose result is not used."""

    def forward(self, x: Tensor) -> Tensor:
        drawn = torch.zeros(1)
        drawn.uniform_(0, 1)
        return x * 2 if drawn > 0.5 else x


class Counting(nn.Module):
    """Each step of the loop is a condition; together they leave one number."""

    def forward(self, x: Tensor, steps: Tensor) -> Tensor:
        count, done = steps.item(), 0
        while done < count:
            x, done = x + 1, done + 1
        return x


class Choosing(nn.Module):
    """A list needs a number."""

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        return x * [1, 2, 3][int(place)]


class Plain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.shape[0] > 1 else x


@pytest.mark.parametrize(
    ("module", "args", "said"),
    [
        (Chance(), (torch.ones(2),), "rand"),
        (ChanceInPlace(), (torch.ones(2),), "uniform"),
        (Counting(), (torch.ones(2), torch.tensor(3)), "one number"),
        (Counting(), (torch.ones(2), torch.tensor(1)), "one number"),
        (Choosing(), (torch.ones(2), torch.tensor(1)), "specialized integer"),
        (Plain(), (torch.ones(2),), "no condition"),
    ],
)
def test_what_would_fix_a_number_or_is_left_to_chance_is_refused(
    module: nn.Module, args: tuple[Any, ...], said: str
) -> None:
    with pytest.raises(Exception, match=said):
        export(module, args)


class Weighted(nn.Module):
    """A condition on what comes of its weights, one of which is a parameter of a class of its own."""

    class Scale(nn.Parameter):
        pass

    def __init__(self, most: float) -> None:
        super().__init__()
        self.most = most
        self.layer = nn.Linear(4, 4)
        self.scale = self.Scale(torch.full((4,), 2.0))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.layer(x) * self.scale)
        if y.abs().max() > self.most:
            return y * 2
        return y


def test_conditions_on_weights_are_decided_by_their_values() -> None:
    for seed in range(4):
        torch.manual_seed(seed)
        module, x = Weighted(0.0).eval(), torch.randn(3, 4)
        most = module(x).abs().max().item() / 2
        for module.most in (most * 0.9, most * 1.1):
            torch.testing.assert_close(export(module, (x,)).module()(x), module(x))


def test_dropout_at_inference_is_no_chance() -> None:
    class Dropping(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if torch.nn.functional.dropout(x, 0.5, training=False).sum() > 1 else x

    program = export(Dropping().eval(), (torch.ones(2),)).module()
    torch.testing.assert_close(program(torch.full((2,), 3.0)), torch.full((2,), 6.0))


def test_neither_random_numbers_nor_settings_nor_inputs_are_touched() -> None:
    class Writing(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            if mask.any():
                x.add_(torch.rand(3) * 0)
            return x

    import torch._functorch.config as config

    torch.manual_seed(1)
    state, x = torch.get_rng_state(), torch.ones(3)
    export(Writing(), (x, torch.tensor([True])))
    assert torch.equal(torch.get_rng_state(), state)
    assert not config.fake_tensor_propagate_real_tensors
    assert torch.equal(x, torch.ones(3))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_whether_it_cures_is_no_chance_of_the_example(seed: int, tmp_path: Path) -> None:
    """Where a random example's other values took the other branch, the same model failed that was cured else."""
    (tmp_path / "net.py").write_text(f"""
import torch
class Telling(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            self.seen = True
            return x.sin()
        return x.cos()

def build():
    torch.manual_seed({seed})
    return Telling(), (torch.randn(2, 4),)
""")
    report = scan_file(tmp_path / "net.py", cure=True, alternatives=False)
    (part,) = report.parts
    assert part.prescription is not None
    assert part.prescription.shims == ("branches-as-example",)
    assert part.prescription.proof is not None
    assert part.prescription.proof.refused


class Chunks(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x * 2 if 4 * mask.nonzero().shape[0] < x.shape[0] else x * 3


def test_a_question_that_may_not_be_assumed_ends_in_torchs_own_exception() -> None:
    """Longformer's, of a value and a dynamic size, ended in a KeyError: torch's exception has the example's size."""
    refused = torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode
    args, shapes = (torch.ones(9), torch.tensor([True, False])), ({0: torch.export.Dim("n")}, None)
    with pytest.raises(refused, match=r"4\*u\d+ < 9 \(unhinted: 4\*u\d+ < s\d+\)"), decide_by_example(lambda *_: False):
        torch.export.export(Chunks(), args, dynamic_shapes=shapes)
