"""`torch.linspace` and its like with a symbolic number of values, which torch takes as a whole number alone.

The formulas are those of ATen's RangeFactories and of torch.fft: both halves of a linspace are counted from their end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.core.patch_attribute import patch_attributes
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.eager_run import calls_any
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim

_OPTIONS = frozenset({"requires_grad", "layout", "pin_memory", "out"})
"""With one of them torch's own function is called."""


def linspace(start: Any, end: Any, steps: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """As `torch.linspace`: (steps,) of a real floating dtype. `start` and `end` are numbers or tensors of one value."""
    import torch

    dtype = dtype or torch.get_default_dtype()
    exact = torch.float64 if dtype == torch.float64 else torch.float32

    def value(given: Any) -> Any:
        if isinstance(given, torch.Tensor):
            return given.to(device=device, dtype=exact)
        return torch.scalar_tensor(given, dtype=exact, device=device)

    first, last, index = value(start), value(end), torch.arange(steps, device=device)
    step = (last - first) / value(steps - 1).clamp(min=1)
    is_early = (index == 0) | (2 * index + 2 <= steps)
    return torch.where(is_early, first + step * index, last - step * (steps - 1 - index)).to(dtype)


def logspace(start: Any, end: Any, steps: Any, base: float = 10.0, *, dtype: Any = None, device: Any = None) -> Any:
    """As `torch.logspace`, of the same."""
    import torch

    exact = torch.float64 if dtype == torch.float64 else torch.float32
    found = torch.pow(base, linspace(start, end, steps, dtype=exact, device=device))
    return found.to(dtype or torch.get_default_dtype())


def fftfreq(n: Any, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Any:
    """As `torch.fft.fftfreq`: (n,)."""
    import torch

    index = torch.arange(n, device=device)
    return torch.where(2 * index < n, index, index - n).to(dtype or torch.get_default_dtype()) * (1 / (n * d))


def rfftfreq(n: Any, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Any:
    """As `torch.fft.rfftfreq`: (n // 2 + 1,)."""
    import torch

    return torch.arange(n // 2 + 1, dtype=dtype or torch.get_default_dtype(), device=device) * (1 / (n * d))


def _where_symbolic(plain: Callable[..., Any], own: Callable[..., Any], count: str) -> Callable[..., Any]:
    """`own` where the number of values is symbolic and the dtype is one that it computes, else `plain`."""
    import torch

    names = own.__code__.co_varnames[: own.__code__.co_argcount]

    @functools.wraps(plain)
    def make_range(*args: Any, **how: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **how}
        dtype = given.get("dtype") or torch.get_default_dtype()
        others = {
            name: value for name, value in given.items() if name in {"requires_grad", "layout", "pin_memory", "out"}
        }
        if (
            not isinstance(given.get(count), torch.SymInt)
            or any(others.values())
            or not dtype.is_floating_point
            or len(args) > len(names)
        ):
            return plain(*args, **how)
        return own(**{name: value for name, value in given.items() if name not in others})

    return make_range


def _functions() -> tuple[tuple[Any, str, Callable[..., Any], str], ...]:
    """Where torch's functions are, what stands for them, and the argument that is the number of values."""
    import torch

    return (
        (torch, "linspace", linspace, "steps"), (torch, "logspace", logspace, "steps"),
        (torch.fft, "fftfreq", fftfreq, "n"), (torch.fft, "rfftfreq", rfftfreq, "n"),
    )  # fmt: skip


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    if not calls_any(call, [(holder, name) for holder, name, _, _ in _functions()]):
        raise NotApplicable("forward makes no range of torch.linspace, logspace or fftfreq")
    changes = [
        (holder, name, _where_symbolic(getattr(holder, name), own, count)) for holder, name, own, count in _functions()
    ]
    with patch_attributes(changes):
        yield call


SHIM = Shim(
    id="ranges-by-arange",
    title="Makes `torch.linspace` and its like from `torch.arange`, so that their number of values stays dynamic",
    soundness="precondition",
    enter=_enter,
    precondition="no result depends on how the last digits of torch.linspace and torch.logspace are rounded",
    does=(
        "`torch.linspace`, `torch.logspace`, `torch.fft.fftfreq` and `torch.fft.rfftfreq` take the number of their "
        "values as a whole number, which fixes a symbolic one. Here they are computed from `torch.arange`, by the same "
        "formulas. The kernels of `torch.linspace` and `torch.logspace` round some values otherwise, so that "
        "last digits differ, most where a dtype has 16 bits. Of integer dtypes they stay as they are."
    ),
    cures=(
        Cure(kinds=("dynamic_dim_specialised",)),
        Cure(kinds=("data_dependent_value",), where=r"linspace|logspace|fftfreq"),
    ),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/generated/torch.linspace.html",
    retire="torch.linspace takes symbolic sizes",
    rank=20,
    replaces=(
        Replacement(
            target="torch.linspace, torch.logspace, torch.fft.fftfreq and torch.fft.rfftfreq",
            before="torch.linspace(-1, 1, x.shape[1])\n",
            after="torch.arange(x.shape[1]) * (2 / (x.shape[1] - 1)) - 1\n",
        ),
    ),
)
