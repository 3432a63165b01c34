"""Ways in which Python code can lead to a failure of an export, each with its line marked `# <- here: Name`.

`Name` is the class of the module that fails there. A class may name the `KIND` that its failure has, and whether its
size is `DYNAMIC`. A mark `# <- born: Name` is where the unbacked symbol was made.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Construct(nn.Module):
    KIND = "data_dependent_guard"
    DYNAMIC = False


# --- branches and values


class IfTensor(Construct):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # <- here: IfTensor
            return x + 1
        return x


class WhileTensor(Construct):
    def forward(self, x: Tensor) -> Tensor:
        while x.sum() > 0:  # <- here: WhileTensor
            x = x - 1
        return x


class AssertTensor(Construct):
    def forward(self, x: Tensor) -> Tensor:
        y = x.abs()
        assert (y < 1000).all(), "too large"  # <- here: AssertTensor
        return y


class Ternary(Construct):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        return y if y.max() > 1 else x  # <- here: Ternary


class IntOfItem(Construct):
    KIND = "data_dependent_value"

    def forward(self, x: Tensor) -> Tensor:
        n = x.abs().sum().long().item()  # <- born: IntOfItem
        return x * int(n)  # <- here: IntOfItem


class ListOfSizes(Construct):
    KIND = "data_dependent_value"

    def forward(self, x: Tensor) -> Tensor:
        sizes = x.abs().sum(1).long().tolist()  # <- born: ListOfSizes
        total = x.sum()
        for size in sizes:
            for step in range(size):  # <- here: ListOfSizes
                total = total + step
        return total


class SeveralLines(Construct):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where(
            x > 0,
            x,
            x
            * (
                1 if x.min() < 0 else 2  # <- here: SeveralLines
            ),
        )


# --- helpers of every shape


def _double_or_not(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x  # <- here: Helper


class Helper(Construct):
    def forward(self, x: Tensor) -> Tensor:
        return _double_or_not(x)


class Closure(Construct):
    def forward(self, x: Tensor) -> Tensor:
        limit = x.mean()

        def above(value: Tensor) -> bool:
            return bool(value.sum() > limit)  # <- here: Closure

        return x if above(x) else -x


class Lambda(Construct):
    def forward(self, x: Tensor) -> Tensor:
        positive: Callable[[Tensor], bool] = lambda value: bool(value.sum() > 0)  # noqa: E731  <- here: Lambda
        return x if positive(x) else -x


class Comprehension(Construct):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([
            row
            for row in x.unbind()
            if row.sum() > -1000  # <- here: Comprehension
        ])  # fmt: skip


def _positive_rows(x: Tensor) -> Iterator[Tensor]:
    for row in x.unbind():
        if row.sum() > -1000:  # <- here: Generator
            yield row


class Generator(Construct):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(list(_positive_rows(x)))


def _rows_again(x: Tensor) -> Iterator[Tensor]:
    for row in x.unbind():
        yield row if row.mean() > -1000 else -row  # <- here: YieldFrom


class YieldFrom(Construct):
    def rows(self, x: Tensor) -> Iterator[Tensor]:
        yield from _rows_again(x)

    def forward(self, x: Tensor) -> Tensor:
        return sum(self.rows(x))  # type: ignore[return-value]


class GeneratorExpression(Construct):
    def forward(self, x: Tensor) -> Tensor:
        wanted = (bool(row.sum() > 0) for row in x.unbind())  # <- here: GeneratorExpression
        return x if any(wanted) else -x


class MapBuiltin(Construct):
    def choose(self, row: Tensor) -> Tensor:
        return row if row.sum() > 0 else -row  # <- here: MapBuiltin

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(list(map(self.choose, x.unbind())))


class SortKey(Construct):
    KIND = "data_dependent_value"

    def forward(self, x: Tensor) -> Tensor:
        rows = sorted(x.unbind(), key=lambda row: float(row.sum()))  # <- here: SortKey
        return torch.stack(rows)


class MaxBuiltin(Construct):
    def forward(self, x: Tensor) -> Tensor:
        return x + max(x.unbind(), key=torch.sum)  # <- here: MaxBuiltin


class ReduceBuiltin(Construct):
    def larger(self, one: Tensor, other: Tensor) -> Tensor:
        return one if one.sum() > other.sum() else other  # <- here: ReduceBuiltin

    def forward(self, x: Tensor) -> Tensor:
        return functools.reduce(self.larger, x.unbind())


def _logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Decorated(Construct):
    @_logged
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # <- here: Decorated
            return x
        return -x


class Property(Construct):
    @property
    def sign(self) -> int:
        return 1 if vars(self)["seen"].sum() > 0 else -1  # <- here: Property

    def forward(self, x: Tensor) -> Tensor:
        object.__setattr__(self, "seen", x)
        return x * self.sign


class _Measured:
    def __init__(self, value: Tensor) -> None:
        self.value = value

    def __lt__(self, other: _Measured) -> bool:
        return bool((self.value < other.value).all())  # <- here: OperatorOverload

    def __call__(self, limit: float) -> bool:
        return bool(self.value.sum() > limit)  # <- here: CallableObject


class OperatorOverload(Construct):
    def forward(self, x: Tensor) -> Tensor:
        return x if _Measured(x) < _Measured(x + 1) else -x


class CallableObject(Construct):
    def forward(self, x: Tensor) -> Tensor:
        return x if _Measured(x)(0.0) else -x


class Partial(Construct):
    def forward(self, x: Tensor) -> Tensor:
        choose = functools.partial(self.choose, limit=0.0)
        return choose(x)

    def choose(self, x: Tensor, *, limit: float) -> Tensor:
        return x if x.sum() > limit else -x  # <- here: Partial


class _Base(Construct):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.prod() > 0 else -x  # <- here: Inherited


class Inherited(_Base):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 1)


class OperatorModule(Construct):
    def forward(self, x: Tensor) -> Tensor:
        return x if operator.truth(x.sum() > 0) else -x  # <- here: OperatorModule


class Coroutine(Construct):
    async def choose(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x  # <- here: Coroutine

    def forward(self, x: Tensor) -> Tensor:
        try:
            self.choose(x).send(None)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        raise AssertionError


class ContextBody(Construct):
    @contextlib.contextmanager
    def region(self) -> Iterator[None]:
        yield

    def forward(self, x: Tensor) -> Tensor:
        with self.region():
            return x if x.sum() > 0 else -x  # <- here: ContextBody


class PreHook(Construct):
    def __init__(self) -> None:
        super().__init__()
        self.register_forward_pre_hook(self.check)

    def check(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if args[0].sum() > 1e9:  # <- here: PreHook
            raise ValueError("too large")

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


class Checkpoint(Construct):
    def block(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x  # <- here: Checkpoint

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.block, x, use_reentrant=False)  # type: ignore[no-any-return]


class ReentrantCheckpoint(Construct):
    def block(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x  # <- here: ReentrantCheckpoint

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.block, x, use_reentrant=True)  # type: ignore[no-any-return]


class _Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x  # <- here: AutogradFunction

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class AutogradFunction(Construct):
    def forward(self, x: Tensor) -> Tensor:
        return _Clamp.apply(x)  # type: ignore[no-any-return,no-untyped-call]


# --- raised again


class ImplicitContext(Construct):
    def inner(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x  # <- here: ImplicitContext

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.inner(x)
        except Exception:
            raise RuntimeError("the block failed")  # noqa: B904


class FromNone(Construct):
    def inner(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x  # <- here: FromNone

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.inner(x)
        except Exception:
            raise RuntimeError("the block failed") from None


class FromError(Construct):
    def inner(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x  # <- here: FromError

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.inner(x)
        except Exception as error:
            raise RuntimeError("the block failed") from error


class RaisedAgain(Construct):
    def forward(self, x: Tensor) -> Tensor:
        try:
            return x if x.sum() > 0 else -x  # <- here: RaisedAgain
        except Exception:
            print("failed", file=sys.stderr)
            raise


class RaisedTwice(Construct):
    def forward(self, x: Tensor) -> Tensor:
        try:
            try:
                return x if x.sum() > 0 else -x  # <- here: RaisedTwice
            except Exception:
                raise ValueError("inner")  # noqa: B904
        except ValueError:
            raise RuntimeError("outer") from None


class FailingExit(Construct):
    @contextlib.contextmanager
    def region(self) -> Iterator[None]:
        done = False
        try:
            yield
            done = True
        finally:
            if not done:
                raise RuntimeError("the region was left by an error")

    def forward(self, x: Tensor) -> Tensor:
        with self.region():
            return x if x.sum() > 0 else -x  # <- here: FailingExit


class _Translating:
    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            raise RuntimeError("translated")


class ExitMethod(Construct):
    def forward(self, x: Tensor) -> Tensor:
        with _Translating():
            return x if x.sum() > 0 else -x  # <- here: ExitMethod


class KeptAndRaised(Construct):
    def forward(self, x: Tensor) -> Tensor:
        kept: Exception | None = None
        try:
            x = x if x.sum() > 0 else -x  # <- here: KeptAndRaised
        except Exception as error:
            kept = error
        if kept is not None:
            raise kept
        return x


class HandledThenAnother(Construct):
    """The first failure is handled well: what is raised later has nothing to do with it."""

    KIND = "data_dependent_value"

    def forward(self, x: Tensor) -> Tensor:
        with contextlib.suppress(Exception):
            x = x if x.sum() > 0 else -x
        return x * float(x.mean())  # <- here: HandledThenAnother


class OwnErrorWhileHandling(Construct):
    """The way round a failure fails for a reason of its own, which is told; the first failure is its context."""

    KIND = "data_dependent_value"

    def forward(self, x: Tensor) -> Tensor:
        try:
            return x if x.sum() > 0 else -x
        except Exception:
            return x * float(x.mean())  # <- here: OwnErrorWhileHandling


class Thread(Construct):
    """Threads have no tracer; the failure comes back with the thread's stack."""

    KIND = ""

    def choose(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x  # <- here: Thread

    def forward(self, x: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self.choose, x).result()


# --- TorchScript


@torch.jit.script
def _scripted_choice(x: Tensor) -> Tensor:
    y = x * 2
    if bool(y.sum() > 0):  # <- here: ScriptFunction
        y = y + 1
    return y


class ScriptFunction(Construct):
    KIND = ""

    def forward(self, x: Tensor) -> Tensor:
        return _scripted_choice(x)  # type: ignore[no-any-return]


# --- operators


class NoFakeKernel(Construct):
    KIND = "data_dependent_value"

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy())  # <- here: NoFakeKernel


# --- found when tracing is over


class _Box:
    def __init__(self, value: Tensor) -> None:
        self.value = value


class ReturnsBox(Construct):
    KIND = "unregistered_pytree"

    def forward(self, x: Tensor) -> Any:
        if x.shape[0] > 100:
            return x
        return _Box(x * 2)  # <- here: ReturnsBox


def _boxed(x: Tensor) -> Any:
    return _Box(x + 1)


class ReturnsBoxInTuple(Construct):
    KIND = "unregistered_pytree"

    def forward(self, x: Tensor) -> Any:
        box = _boxed(x)
        if x.ndim == 1:
            return box
        return x, {"box": box}  # <- here: ReturnsBoxInTuple


class ReturnsBoxThroughAHook(Construct):
    KIND = "unregistered_pytree"

    def __init__(self) -> None:
        super().__init__()
        self.register_forward_hook(lambda module, args, output: output)

    def forward(self, x: Tensor) -> Any:
        return _Box(x * 3)  # <- here: ReturnsBoxThroughAHook


class LeakByData(Construct):
    KIND = "input_mutation"

    def forward(self, x: Tensor) -> Tensor:
        first = x.data[:, 0]  # <- here: LeakByData
        first.zero_()
        return x * 2


# --- sizes


class SizeCompared(Construct):
    KIND = "dynamic_dim_specialised"
    DYNAMIC = True

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] == 3:  # <- here: SizeCompared
            return x + 1
        return x


class SizeBroadcast(Construct):
    KIND = "dynamic_dim_specialised"
    DYNAMIC = True

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        return y + torch.ones(3, 4)  # <- here: SizeBroadcast


class SizeAsInt(Construct):
    KIND = "dynamic_dim_specialised"
    DYNAMIC = True

    def forward(self, x: Tensor) -> Tensor:
        rows = int(x.shape[0])  # <- here: SizeAsInt
        return x.reshape(3, 4) + len(range(rows))


class SizeInDict(Construct):
    KIND = "dynamic_dim_specialised"
    DYNAMIC = True

    def forward(self, x: Tensor) -> Tensor:
        factors = {3: 1.0, 5: 2.0}
        rows = x.shape[0]
        return x * factors[operator.index(rows)]  # <- here: SizeInDict


class SizeBounded(Construct):
    KIND = "dynamic_dim_specialised"
    DYNAMIC = True

    def forward(self, x: Tensor) -> Tensor:
        if x.size(0) < 100:  # <- here: SizeBounded
            return x + 1
        return x


def example_of(construct: type[Construct]) -> tuple[Any, ...]:
    """What a factory returns for it."""
    torch.manual_seed(0)
    example = (torch.rand(3, 4) + 0.5,)
    if not construct.DYNAMIC:
        return construct().eval(), example
    return construct().eval(), example, {}, ({0: torch.export.Dim("rows", min=2, max=4096)},)


CONSTRUCTS = [
    kind for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, Construct) and not kind.__name__.startswith("_")
    and kind is not Construct
]  # fmt: skip
