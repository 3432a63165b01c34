"""A loop over the numbers that a tensor has goes over all that it may have, and does nothing for those it has not."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find
from found_numbers import EXPERTS, SHIMMED, WIDTH, Experts

_SHIMS = ("found-numbers-as-range",)


def _call(module: nn.Module, example: Tensor | None = None, *, dynamic: bool = True) -> ExportCall:
    x = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(0)) if example is None else example
    return ExportCall(module=module.eval(), args=(x,), dynamic_shapes=({0: Dim.DYNAMIC},) if dynamic else None)


def _program(call: ExportCall, shims: Sequence[str] = _SHIMS) -> nn.Module:
    with torch.no_grad(), apply_shims([find(one) for one in shims], call) as changed:
        return export_program(changed).module()


def _inputs() -> list[Tensor]:
    """Of several sizes, with all experts, few, one or none, and experts with one row."""
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(rows, WIDTH, generator=generator) * scale for rows in (6, 2, 1, 0, 9) for scale in (0.1, 4)]
    return [*drawn, *(one[:1].expand(rows, WIDTH).clone() for one, rows in itertools.product(drawn[:3], (2, 5)))]


def _compare(program: nn.Module, module: nn.Module) -> None:
    for x in _inputs():
        with torch.no_grad():
            torch.testing.assert_close(program(x.clone()), module(x.clone()), rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("make", SHIMMED)
def test_the_program_answers_as_eager_whatever_is_found(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module = make()
    call = _call(module)
    with pytest.raises(Exception, match=r"data-dependent|Could not (guard|extract)|unhashable"):
        export_program(call)
    _compare(_program(call), module)


@pytest.mark.slow
def test_the_body_that_is_more_than_its_rows_runs_only_for_what_is_found() -> None:
    class Noting(Experts):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            best, seen = self.gate(x).argmax(-1), torch.zeros(EXPERTS, dtype=torch.long)
            total = x.new_zeros(())
            for e in best.unique().tolist():
                total = total * 2 + self.experts[e](x[best == e]).sum() + 1
                seen[e] = e + 1
            return total, seen

    torch.manual_seed(0)
    module = Noting()
    _compare(_program(_call(module)), module)


class Given(nn.Module):
    """The numbers are an input, so that others than those of experts come, too."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.tensor(0.5 + one)) for one in range(3))

    def forward(self, best: Tensor) -> Tensor:
        out = best * 1.5
        for e in best.unique().tolist():
            out = out * self.scales[e] + e
        return out


@pytest.mark.slow
def test_numbers_that_are_none_of_an_expert_are_refused_by_the_program() -> None:
    module = Given()
    program = _program(_call(module, torch.tensor([0, 2, 2, 1])))
    for allowed in ([0], [2, 1], [1, 1, 1], [], [2, 0, 1, 1, 0]):
        numbers = torch.tensor(allowed, dtype=torch.long)
        with torch.no_grad():
            torch.testing.assert_close(program(numbers), module(numbers))
    for other in ([-1, 0], [0, 3], [-3], [7, 1]):  # eager takes -1 for the last one
        with pytest.raises(RuntimeError, match="others than 0 to 2"):
            program(torch.tensor(other))


_STATEMENTS = (
    "state = state * 0.5 + self.experts[e](x[best == e]).sum(0)",
    "out[best == e] = self.experts[e](x[best == e])[..., :8] + out[best == e]",
    "out = out.index_add(0, torch.where(best == e)[0], self.experts[e](x[torch.where(best == e)[0]]))",
    "count = count + 1",
    "state = torch.sin(state + e)",
    "last = e * 10",
    "sel = best == e\n            out[sel] += self.experts[e](x[sel])",
    "if (best == e).sum() > 2:\n                state = state - 1",
)
_HEADERS = ("for e in best.unique().tolist():", "for e in sorted(set(best.flatten().tolist())):")


@pytest.mark.long
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(header=st.sampled_from(_HEADERS), body=st.lists(st.sampled_from(_STATEMENTS), min_size=1, max_size=3))
def test_drawn_loops_answer_as_eager_or_are_refused(
    header: str, body: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    lines = "\n".join(f"            {one}" for one in ["scale = self.experts[e][0].weight.sum()", *body])
    text = (
        "import torch\nfrom found_numbers import Experts\n\n\nclass Drawn(Experts):\n    def forward(self, x):\n"
        "        best = self.gate(x).argmax(-1)\n        out, state = torch.zeros_like(x), x.new_zeros(8)\n"
        f"        count, last = 0, -1\n        {header}\n{lines}\n        return out, state, count, last\n"
    )
    path = tmp_path_factory.mktemp("drawn") / "drawn_loop.py"
    path.write_text(text)
    names: dict[str, object] = {"__name__": "drawn_loop", "__file__": str(path)}
    exec(compile(text, str(path), "exec"), names)
    torch.manual_seed(0)
    module = names["Drawn"]()  # type: ignore[operator]
    try:
        program = _program(_call(module))
    except NotApplicable:  # nothing is prescribed
        return
    _compare(program, module)


class Left(Experts):
    def forward(self, x: Tensor) -> Tensor:
        for e in x[:, 0].long().unique().tolist():
            x = self.experts[e](x)
            if e > 1:
                break
        return x


class Otherwise(Experts):
    def forward(self, x: Tensor) -> Tensor:
        for e in x[:, 0].long().unique().tolist():
            x = self.experts[e](x)
        else:
            x = x + 1
        return x


class ReadBehind(Experts):
    def forward(self, x: Tensor) -> Tensor:
        for e in x[:, 0].long().unique().tolist():
            x = self.experts[e](x)
        return x + e


class BoundHere(Experts):
    def forward(self, x: Tensor) -> Tensor:
        for e in x[:, 0].long().unique().tolist():
            y = self.experts[e](x)
        return y


class WithoutLength(Experts):
    def forward(self, x: Tensor) -> Tensor:
        for e in x[:, 0].long().unique().tolist():
            x = x + e
        return x


class OffByOne(Experts):
    def forward(self, x: Tensor) -> Tensor:
        for e in x[:, 0].long().unique().tolist():
            x = self.experts[e - 1](x)
        return x


class Rebound(Experts):
    def forward(self, x: Tensor) -> Tensor:
        for e in x[:, 0].long().unique().tolist():
            e = 3 - e
            x = self.experts[e](x)
        return x


class Counts(Experts):
    def forward(self, x: Tensor) -> Tensor:
        numbers = x[:, 0].long().unique().tolist()
        for e in numbers:
            x = self.experts[e](x) / len(numbers)
        return x


class Changed(Experts):
    def forward(self, x: Tensor) -> Tensor:
        numbers = x[:, 0].long().unique()
        numbers[0] = 2
        for e in numbers:
            x = self.experts[e](x)
        return x


class Descending(Experts):
    def forward(self, x: Tensor) -> Tensor:
        for e in x[:, 0].long().unique().tolist()[::-1]:
            x = self.experts[e](x)
        return x


class InOrderOfRows(Experts):
    def forward(self, x: Tensor) -> Tensor:
        for e in dict.fromkeys(x[:, 0].long().tolist()):
            x = self.experts[e](x)
        return x


class Repeated(Experts):
    def forward(self, x: Tensor) -> Tensor:
        for e in torch.unique_consecutive(x[:, 0].long()).tolist():
            x = self.experts[e](x)
        return x


class OfRows(Experts):
    def forward(self, x: Tensor) -> Tensor:
        for row in (x[:, 0] > 0).nonzero():  # the rows are no fixed number
            x = x + x[row]
        return x


class OfTwoDimensions(Experts):
    def forward(self, x: Tensor) -> Tensor:
        for e in torch.where(x[:4, :4] > 0)[0].tolist():
            x = self.experts[e](x)
        return x


class Floats(Experts):
    def forward(self, x: Tensor) -> Tensor:
        for e in x[:, 0].unique().tolist():
            x = x + self.experts[e].in_features
        return x


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Left, "left before its end"),
        (Otherwise, "an `else`"),
        (ReadBehind, "`e` is read behind the loop"),
        (BoundHere, "`y` is bound in the loop alone"),
        (WithoutLength, "nothing says how many"),
        (OffByOne, "nothing says how many"),
        (Rebound, "nothing says how many"),
        (Counts, "the list `numbers` is read elsewhere"),
        (Changed, "`numbers` is written into"),
        (Descending, "no function has a loop"),
        (InOrderOfRows, "no function has a loop"),
        (Repeated, "no function has a loop"),
    ],
)
def test_loops_that_are_refused_by_their_code(make: type[nn.Module], why: str) -> None:
    with pytest.raises(NotApplicable, match=why), apply_shims([find(_SHIMS[0])], _call(make())):
        pass


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (OfRows, "nothing of a fixed length"),
        (OfTwoDimensions, "one dimension"),
        (Floats, "no whole numbers"),
    ],
)
def test_loops_that_are_refused_by_what_they_go_over(make: type[nn.Module], why: str) -> None:
    with pytest.raises(NotApplicable, match=why):
        _program(_call(make()))


def test_the_order_of_a_set_is_known_for_few_numbers_alone() -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.Parameter(torch.randn(9))

        def forward(self, x: Tensor) -> Tensor:
            state = x.sum()
            for e in set(x.long().flatten().tolist()):
                state = state * 2 + self.scales[e]
            return state

    assert list({8, 1, 0}) != sorted({8, 1, 0}) or list({16, 1}) != [1, 16]
    with pytest.raises(NotApplicable, match="order of a set"):
        _program(_call(Many()))


@pytest.mark.parametrize("numbers", [[*range(8)], [7, 0, 3], [5], [], [6, 6, 1, 0, 7]])
def test_small_numbers_are_in_their_order_in_a_set(numbers: list[int]) -> None:
    for order in itertools.islice(itertools.permutations(numbers), 200):
        assert list(set(order)) == sorted(set(order))


@pytest.mark.long
def test_a_value_that_the_body_changes_is_gone_over_as_it_was() -> None:
    """In eager, under the shim alone."""
    torch.manual_seed(0)
    for make in SHIMMED:
        module = make().eval()
        plain = copy.deepcopy(module)
        with torch.no_grad(), apply_shims([find(_SHIMS[0])], _call(module)) as changed:
            found = [changed.module(x.clone()) for x in _inputs()]
        with torch.no_grad():
            for x, one in zip(_inputs(), found, strict=True):
                torch.testing.assert_close(one, plain(x.clone()), equal_nan=True)


@pytest.mark.slow
def test_the_shim_for_branches_beside_it_changes_nothing() -> None:
    class Clamped(Experts):
        def forward(self, x: Tensor) -> Tensor:
            if x.abs().sum() > 30:
                x = x / 2
            for e in x[:, 0].abs().clamp(max=3).long().unique().tolist():
                x = self.experts[e](x)
            return x

    torch.manual_seed(0)
    module = Clamped()
    for shims in (_SHIMS, (*_SHIMS, "branch-as-where")):
        _compare(_program(_call(module), shims), module)


@pytest.mark.long
@pytest.mark.slow
def test_functions_that_refuse_nothing_found_are_not_run_for_it() -> None:
    class Largest(Experts):
        def forward(self, x: Tensor) -> Tensor:
            best, total = self.gate(x).argmax(-1), x.new_zeros(())
            for e in best.unique().tolist():
                total = total + self.experts[e](x[best == e]).amax()
            return total

    torch.manual_seed(0)
    module = Largest()
    _compare(_program(_call(module)), module)
