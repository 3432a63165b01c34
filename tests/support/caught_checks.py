"""Checks of the inputs whose exception leaves the model, and checks that somebody catches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


class Positive(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.min() < 0:
            raise ValueError("negative")
        return x.sqrt()


class Model(nn.Module):
    """Calls `check`, which takes the checked child and the input."""

    def __init__(self, call: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.child = Positive()
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.child, x)


class Own(nn.Module):
    """The check and the `try` are of one function."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            if x.min() < 0:
                raise ValueError("negative")
        except ValueError:
            x = x.abs()
        return x.sqrt()


class Absent(AttributeError):
    """What getattr catches, by another name."""


class Asking(nn.Module):
    """The check ends what getattr asks for."""

    @property
    def rows(self) -> Tensor:
        if self.given.min() < 0:
            raise Absent("negative")
        return self.given

    def check(self, x: Tensor) -> None:
        if x.min() < -3:
            raise Absent("negative")

    def __getattr__(self, name: str) -> Any:
        if name == "root":
            self.check(self.given)
            return self.given.abs().sqrt()
        return super().__getattr__(name)

    def forward(self, x: Tensor) -> Tensor:
        self.given = x
        found: Tensor = getattr(self, "root", x)
        return found


class Iterating(nn.Module):
    """A loop ends where the check says so."""

    def __iter__(self) -> Iterator[Tensor]:
        return self

    def __next__(self) -> Tensor:
        self.count += 1
        if self.rows[self.count].min() < 0:
            raise StopIteration
        return self.rows[self.count]

    def forward(self, x: Tensor) -> Tensor:
        self.count, self.rows = -1, x
        return torch.stack([x[0], *self]).sum(0)


class Counting(nn.Module):
    """A sequence without an iterator: Python counts up to an IndexError, and does without a length where a TypeError is
    raised."""

    def __init__(self, error: type[Exception]) -> None:
        super().__init__()
        self.error = error

    def __len__(self) -> int:
        if self.error is TypeError and self.rows.min() < 0:
            raise TypeError("no length")
        return len(self.rows)

    def __getitem__(self, place: int) -> Tensor:
        if place == len(self.rows):
            raise IndexError("the end")
        if self.error is IndexError and self.rows[place].min() < 0:
            raise IndexError("the first row that is negative")
        return self.rows[place]

    def forward(self, x: Tensor) -> Tensor:
        self.rows = x
        return torch.stack([x[0].abs(), *list(self)]).sum(0)  # type: ignore[call-overload]


class Index(nn.Module):
    """An IndexError that no loop ends with."""

    def forward(self, x: Tensor) -> Tensor:
        if x.min() < 0:
            raise IndexError(f"{int(x.min())} is negative")
        return x.sqrt()


@contextlib.contextmanager
def _lenient() -> Iterator[None]:
    with contextlib.suppress(ValueError):
        yield


def _plain(child: nn.Module, x: Tensor) -> Any:
    return child(x)


def _without_gradients(child: nn.Module, x: Tensor) -> Any:
    with torch.no_grad():
        return child(x)


def _explained(child: nn.Module, x: Tensor) -> Any:
    try:
        return child(x)
    except ValueError as error:
        raise RuntimeError("the input is wrong") from error


def _finished(child: nn.Module, x: Tensor) -> Any:
    try:
        return child(x)
    finally:
        child.eval()


def _clamped(child: nn.Module, x: Tensor) -> Any:
    try:
        return child(x)
    except ValueError:
        return child(x.clamp(min=0))


def _suppressed(child: nn.Module, x: Tensor) -> Any:
    with contextlib.suppress(ValueError):
        return child(x)
    return x


def _own_context(child: nn.Module, x: Tensor) -> Any:
    with _lenient():
        return child(x)
    return x


def _returned(child: nn.Module, x: Tensor) -> Any:
    found = x
    try:
        found = child(x)
    finally:
        return found  # noqa: B012


def _in_a_lambda(child: nn.Module, x: Tensor) -> Any:
    return _attempt(lambda: child(x), x)


def _attempt(call: Callable[[], Tensor], other: Tensor) -> Tensor:
    try:
        return call()
    except Exception:
        return other


def _in_a_list(child: nn.Module, x: Tensor) -> Any:
    try:
        return torch.stack([child(row) for row in x])
    except ValueError:
        return x


LEFT: dict[str, Callable[[], nn.Module]] = {
    one.__name__.strip("_"): partial(Model, one) for one in (_plain, _without_gradients, _explained, _finished)
} | {"index": Index}
"""The exception leaves the model."""

CAUGHT: dict[str, Callable[[], nn.Module]] = {
    one.__name__.strip("_"): partial(Model, one)
    for one in (_clamped, _suppressed, _own_context, _returned, _in_a_lambda, _in_a_list)
} | {
    "own": Own,
    "iterating": Iterating,
    "asking": Asking,
    "counting": partial(Counting, IndexError),
    "listing": partial(Counting, TypeError),
}
"""The model answers where the check fails."""
