"""Operators without a fake kernel get one, which gives what the operator does at sizes that nobody has seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, NotApplicable, apply_shims, export_program, find

SPACE = "without_fake_kernels"


def pool(x: Tensor) -> Tensor:
    return x[::2].clone()


def stack_twice(x: Tensor) -> Tensor:
    return torch.cat([x, x, x[:1]])


def table(x: Tensor) -> Tensor:
    return x.sum(0, keepdim=True).repeat(7, 1)


def positive(x: Tensor) -> Tensor:
    return x[x[:, 0] > 0]


def top(x: Tensor, k: int) -> Tensor:
    return x.topk(k, 1).indices


def pairs(x: Tensor) -> Tensor:
    return (x[:, :, None] * x[:, None]).flatten()


def turned(x: Tensor) -> Tensor:
    return x.t().contiguous().t()


def parts(x: Tensor) -> list[Tensor]:
    return [x.sum(1), (x > 0).to(torch.uint8)]


def scaled(x: Tensor, mode: str) -> Tensor:
    return x.double() if mode == "fine" else x[:, :1].clone()


RAN: list[int] = []


def once(x: Tensor) -> Tensor:
    RAN.append(len(x))
    if len(RAN) > 3:
        raise KeyError("it ran before")
    return x * 2


OPERATORS: dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    "a part of the rows": ("(Tensor x) -> Tensor", pool, lambda run, x: run(x) * 2),
    "more rows": ("(Tensor x) -> Tensor", stack_twice, lambda run, x: run(x) + 1),
    "rows of a fixed number": ("(Tensor x) -> Tensor", table, lambda run, x: run(x) + 1),
    "rows of which only a run can tell": ("(Tensor x) -> Tensor", positive, lambda run, x: run(x).sum(0)),
    "a size that is an argument": ("(Tensor x, int k) -> Tensor", top, lambda run, x: run(x, 2) + 1),
    "a product of sizes": ("(Tensor x) -> Tensor", pairs, lambda run, x: run(x).sum()),
    "another layout": ("(Tensor x) -> Tensor", torch.clone, lambda run, x: run(x.t().contiguous().t()) + x),
    "several results": ("(Tensor x) -> Tensor[]", parts, lambda run, x: run(x)[0][:, None] + run(x)[1]),
    "two kinds of calls": (
        "(Tensor x, str mode) -> Tensor", scaled, lambda run, x: run(x, "fine") + run(x, "coarse"),
    ),
}  # fmt: skip
REFUSED: dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    "its argument": ("(Tensor x) -> Tensor", lambda x: x, lambda run, x: run(x) + 1),
    "a dtype of the values": (
        "(Tensor x) -> Tensor",
        lambda x: x.double() if bool(x.any()) else x * 2,
        lambda run, x: run(x) + 1,
    ),
    "a number": ("(Tensor x) -> int", len, lambda run, x: x * run(x)),
    "a call that is over": ("(Tensor x) -> Tensor", once, lambda run, x: run(x) + 1),
    "a layout of its own": ("(Tensor x) -> Tensor", turned, lambda run, x: run(x) + x),
}


class Runs(nn.Module):
    """Calls an operator as `use` says."""

    def __init__(self, operator: Any, use: Callable[..., Any]) -> None:
        super().__init__()
        self.operator, self.use = operator, use
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return self.use(self.operator, self.lin(x))


@pytest.fixture
def library() -> Iterator[Any]:
    make: Any = torch.library.Library
    library = make(SPACE, "FRAGMENT")
    yield library
    library._destroy()


def model_of(library: Any, case: tuple[str, Callable[..., Any], Callable[..., Any]]) -> tuple[Runs, ExportCall]:
    schema, kernel, use = case
    library.define(f"asked{schema}")
    library.impl("asked", kernel, "CPU")
    torch.manual_seed(0)
    model = Runs(getattr(torch.ops, SPACE).asked, use)
    others: Any = tuple(
        ((torch.randn(rows, 4),), {}) for rows in (4, 8)
    )  # half of an even number may be rounded in any way
    call = ExportCall(module=model, args=(torch.randn(6, 4),), dynamic_shapes=({0: Dim.DYNAMIC},), more_inputs=others)
    return model, call


@pytest.mark.parametrize("case", OPERATORS.values(), ids=OPERATORS.keys())
def test_a_program_with_it_computes_what_eager_does(case: Any, library: Any) -> None:
    model, call = model_of(library, case)
    with torch.no_grad(), pytest.raises(Exception, match="asked"):
        export_program(call)
    with torch.no_grad(), apply_shims([find("fake-kernels")], call) as changed:
        program = export_program(changed).module()
    for rows in (3, 7, 13, 32):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(program(x), model(x))
    with torch.no_grad(), pytest.raises(Exception, match="asked"):  # as before
        export_program(call)


SAID = {
    "a part of the rows": "float32[(x.shape[0] + 1) // 2, x.shape[1]]",
    "more rows": "float32[2 * x.shape[0] + 1, x.shape[1]]",
    "rows of a fixed number": "float32[7, x.shape[1]]",
    "rows of which only a run can tell": "float32[any size, x.shape[1]]",
    "a size that is an argument": "int64[x.shape[0], k]",
    "a product of sizes": "float32[16 * x.shape[0]]",
    "another layout": "float32 in the sizes and the layout of x",
    "several results": "float32[x.shape[0]] and uint8[x.shape[0], x.shape[1]]",
    "two kinds of calls": "float64[x.shape[0], x.shape[1]]; for other arguments float32[x.shape[0], 1]",
}


@pytest.mark.parametrize("name", OPERATORS)
def test_what_the_fake_kernel_gives_is_told(name: str, library: Any) -> None:
    _, call = model_of(library, OPERATORS[name])
    with torch.no_grad(), apply_shims([find("fake-kernels")], call) as changed:
        assert changed.notes == (f"the fake kernel of {SPACE}::asked gives {SAID[name]}",)


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_what_calls_do_not_show_alike_is_refused(case: Any, library: Any) -> None:
    _, call = model_of(library, case)
    with torch.no_grad(), pytest.raises(NotApplicable), apply_shims([find("fake-kernels")], call) as changed:
        export_program(changed)


def test_an_operator_made_in_python_gets_one_for_a_while() -> None:
    @torch.library.custom_op(f"{SPACE}::made", mutates_args=())
    def made(x: Tensor) -> Tensor:
        return x[x[:, 0] > 0].clone()

    model = Runs(made, lambda run, x: run(x).sum(0))
    call = ExportCall(module=model, args=(torch.randn(5, 4),), dynamic_shapes=({0: Dim.DYNAMIC},))
    with torch.no_grad(), apply_shims([find("fake-kernels")], call) as changed:
        program = export_program(changed).module()
    for rows in (3, 12):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(program(x), model(x))
    with torch.no_grad(), pytest.raises(RuntimeError, match="no fake impl registered"):
        export_program(call)


def test_an_operator_beside_a_condition_gets_one(library: Any) -> None:
    """torch's operators that take functions refuse a mode that does not say that it takes them."""

    def use(run: Any, x: Tensor) -> Tensor:
        chosen: Tensor = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))
        made: Tensor = run(chosen)
        return made * 2

    model, call = model_of(library, ("(Tensor x) -> Tensor", pool, use))
    with torch.no_grad(), apply_shims([find("fake-kernels")], call) as changed:
        program = export_program(changed).module()
        for x in (torch.ones(7, 4), -torch.ones(6, 4)):
            torch.testing.assert_close(program(x), model(x))


def test_an_operator_of_each_layer_is_run_for_a_few(library: Any) -> None:
    ran: list[int] = []

    def count(x: Tensor) -> Tensor:
        ran.append(len(x))
        return x * 2

    def use(run: Any, x: Tensor) -> Tensor:
        for _ in range(20):
            x = run(x)
        return x

    model, call = model_of(library, ("(Tensor x) -> Tensor", count, use))
    model(*call.args)
    with torch.no_grad(), apply_shims([find("fake-kernels")], call):
        pass
    assert ran[:20] == [6] * 20
    of_the_shim = ran[20:]
    assert len(of_the_shim) < 3 * 20 + 3 * 20


def test_a_model_of_torchs_operators_alone_is_none_for_it() -> None:
    call = ExportCall(module=nn.Linear(4, 4), args=(torch.randn(5, 4),))
    with pytest.raises(NotApplicable, match="no operator from outside of torch"):
        find("fake-kernels").apply(call).__enter__()
