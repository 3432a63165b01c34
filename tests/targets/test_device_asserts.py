"""What CUDA kernels only assert on raises before they run, for the values that the CPU refuses and for no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from exportdoctor.targets import device_asserts
from exportdoctor.targets.device_asserts import refuse_asserted_values
from exportdoctor.worker.child import fork

aten: Any = torch.ops.aten
BY_INDEX: dict[str, Callable[[Tensor, Tensor], object]] = {
    "x[i]": lambda x, i: x[i],
    "x[:, i]": lambda x, i: x[:, i],
    "x[mask, i]": lambda x, i: x[torch.ones(x.shape[0], dtype=torch.bool), i],
    "x[i] = 1": lambda x, i: x.__setitem__(i, 1.0),
    "gather": lambda x, i: x.flatten().gather(0, i),
    "scatter": lambda x, i: x.flatten().scatter(-1, i, 1.0),
    "scatter_add_": lambda x, i: x.flatten().scatter_add_(0, i, torch.ones(i.shape)),
    "scatter_reduce": lambda x, i: x.flatten().scatter_reduce(0, i, torch.ones(i.shape), "amax"),
    "index_select": lambda x, i: x.index_select(1, i),
    "index_add": lambda x, i: x.index_add(0, i, torch.ones(len(i), x.shape[1])),
    "index_copy": lambda x, i: x.index_copy(0, i, torch.ones(len(i), x.shape[1])),
    "index_reduce": lambda x, i: x.index_reduce(0, i, torch.ones(len(i), x.shape[1]), "prod"),
    "index_fill": lambda x, i: x.index_fill(1, i, 2.0),
    "take": lambda x, i: x.take(i),
    "put_": lambda x, i: x.put_(i, torch.ones(i.shape)),
    "embedding": lambda x, i: F.embedding(i, x),
    "embedding_bag": lambda x, i: F.embedding_bag(i[None], x),
    "nll_loss": lambda x, i: F.nll_loss(torch.zeros(len(i), max(1, x.shape[1])), i),
    "cross_entropy": lambda x, i: F.cross_entropy(torch.zeros(len(i), max(1, x.shape[1])), i, ignore_index=2),
}
BY_VALUE: dict[str, Callable[[Tensor], object]] = {
    "_assert_async": lambda x: torch._assert_async(x[0]),
    "_assert_async.msg": lambda x: aten._assert_async.msg(x[0], "first is zero"),
    "masked_scatter": lambda x: torch.zeros(4).masked_scatter(x > 0.5, torch.ones(1)),
    "masked_scatter, one mask for rows": lambda x: torch.zeros(2, 4).masked_scatter(x > 0.5, torch.ones(3)),
    "repeat_interleave": lambda x: torch.repeat_interleave(torch.ones(4), x.floor().to(torch.int64)),
    "multinomial": lambda x: x.multinomial(1, replacement=True),
    "bernoulli": lambda x: x.bernoulli(),
    "bernoulli_": lambda x: torch.ones(4).bernoulli_(x),
    "bernoulli_ of one number": lambda x: (x * 5).bernoulli_(),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x, torch.ones(4)),
}


def told(call: Callable[[], object]) -> BaseException | None:
    """What the call raises."""
    try:
        call()
    except Exception as error:
        return error
    return None


def agree(call: Callable[[], object]) -> None:
    """The call raises under the mode, in the mode's own code, where it raises without."""
    bare = told(call)
    with refuse_asserted_values():
        found = told(call)
    assert (found is None) == (bare is None), (bare, found)
    if found is not None:
        last = found.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        assert last is not None
        assert Path(last.tb_frame.f_code.co_filename) == Path(device_asserts.__file__), f"the kernel raised {found!r}"


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_INDEX)
@settings(deadline=None)
@given(rows=st.integers(1, 3), columns=st.integers(1, 3), index=st.lists(st.integers(-4, 3), min_size=1, max_size=3))
def test_an_index_is_refused_where_the_cpu_refuses_it(name: str, rows: int, columns: int, index: list[int]) -> None:
    if name == "x[mask, i]" and len(index) != rows:
        index = (index * rows)[:rows]
    agree(lambda: BY_INDEX[name](torch.ones(rows, columns), torch.tensor(index)))


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_VALUE)
@settings(deadline=None)
@given(values=st.lists(st.sampled_from([-1.0, 0.0, 0.25, 1.0, 2.0, float("nan")]), min_size=4, max_size=4))
def test_a_value_is_refused_where_the_cpu_refuses_it(name: str, values: list[float]) -> None:
    if name == "repeat_interleave":
        values = [0.0 if one != one else one for one in values]
    if name == "multinomial" and not any(one > 0 for one in values):
        values[0] = 1.0  # a sum of zero is refused by both, by another check
    agree(lambda: BY_VALUE[name](torch.tensor(values)))


def test_what_runs_inside_is_as_without() -> None:
    module = torch.nn.Sequential(torch.nn.Embedding(4, 8), torch.nn.LSTM(8, 8))
    ids = torch.tensor([[0, 3], [1, 2]])
    with torch.no_grad():
        wanted = module(ids)[0]
        # as eager is run: where dynamo meets a mode, it leaves out the code of torch.cond in this process from then on
        with torch.compiler.set_stance("force_eager"), refuse_asserted_values():
            inside = module(ids)[0]
            chosen = torch.cond(ids.sum() > 0, lambda x: x + 1, lambda x: x - 1, (ids,))
    assert torch.equal(inside, wanted)
    assert chosen.tolist() == [[1, 4], [2, 3]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_what_the_cpu_refuses_raises_and_the_context_stays_usable() -> None:
    numbers = ([0.0, 0.25, 2.0, -1.0], [0.25, 0.5, 1.0, 1.0])
    calls = [
        *((name, (lambda call=call, index=index: call(torch.ones(2, 3), torch.tensor(index))))
          for name, call in BY_INDEX.items() for index in ([5, 5], [-7, 0], [1, 0])),
        *((name, (lambda call=call, values=values: call(torch.tensor(values))))
          for name, call in BY_VALUE.items() for values in numbers),
    ]  # fmt: skip

    def work(_: int) -> bytes:
        unlike = []
        for name, call in calls:
            bare = told(call)
            with torch.device("cuda"), refuse_asserted_values():
                found = told(call)
            if (bare is None) != (found is None) or "CUDA error" in str(found):
                unlike.append((name, bare, found))
        with torch.device("cuda"):
            return f"{unlike} {torch.ones(3).sum().item()}".encode()

    end = fork(work).wait()
    assert end.data.decode() == "[] 3.0"
