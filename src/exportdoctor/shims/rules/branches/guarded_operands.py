"""The second side of `and` and `or`, which Python computes only where the first one does not decide.

A program computes both. So where the second one may refuse that nothing was found, as in `f.shape[0] > 0 and f.max() >
2`, it is computed of the rows and of some more, which change nothing where there are enough of them. The program
asserts that there are wherever Python computes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from exportdoctor.torch_internals.shape_env import has_unbacked_size, is_surely

_EXTREMES = {"max": "least", "amax": "least", "min": "greatest", "amin": "greatest"}
"""Functions of the greatest and the least value of a tensor, and which value more changes neither."""
_NEEDED: list[Any] = []
"""For each of the sides that are computed now, where Python computes it: tensors, bool ()."""


def compute_guarded(needed: Any, compute: Callable[[], Any]) -> Any:
    """What `compute` gives, where Python calls it only if the tensor `needed`, bool (), is true."""
    import torch

    if torch.compiler.is_dynamo_compiling():  # which takes no function mode
        return compute()
    _NEEDED.append(_NEEDED[-1] & needed if _NEEDED else needed)
    try:
        with _guard():
            return compute()
    finally:
        _NEEDED.pop()


def _guard() -> Any:
    from torch.overrides import TorchFunctionMode

    class Guard(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            more = _with_more(getattr(func, "__name__", ""), args, kwargs)
            return func(*args, **kwargs) if more is None else func(more, *args[1:], **kwargs)

    return Guard()


def _with_more(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The tensor of which a function of that name is computed, with more values; None where it is to be as it is."""
    import torch

    of = args[0] if args else None
    if not isinstance(of, torch.Tensor) or not of.dim() or not has_unbacked_size(of) or of.layout != torch.strided:
        return None
    if name in _EXTREMES and len(args) == 1 and not kwargs and not of.is_complex():
        return _with_value(of, _EXTREMES[name])
    if name == "__getitem__":
        places = args[1] if isinstance(args[1], tuple) else (args[1],)
        return _with_rows(of, places[0]) if places and type(places[0]) is int else None
    return None


def _with_value(of: Any, kind: str) -> Any:
    """The values of a tensor, and one more, the least or the greatest that there is."""
    import torch

    if is_surely(of.numel() > 0):
        return None
    _assert(of.numel() > 0)
    flat = of.reshape(-1)
    if of.dtype is torch.bool:
        value: Any = kind == "greatest"
    elif of.is_floating_point():
        value = float("inf") if kind == "greatest" else float("-inf")
    else:
        limits = torch.iinfo(of.dtype)
        value = limits.max if kind == "greatest" else limits.min
    return torch.cat((flat, flat.new_full((1,), value)))


def _with_rows(of: Any, place: int) -> Any:
    """The tensor, and so many rows more, behind it or before it, that it has one at this place."""
    import torch

    count = place + 1 if place >= 0 else -place
    if is_surely(of.shape[0] >= count):
        return None
    _assert(of.shape[0] >= count)
    rows = of.new_zeros((count, *of.shape[1:]))
    return torch.cat((of, rows) if place >= 0 else (rows, of))


def _assert(enough: Any) -> None:
    """The program asserts it where Python computes the side that needs it."""
    import torch

    holds = torch.scalar_tensor(torch.sym_ite(enough, 1, 0), dtype=torch.int64) != 0
    why = "a condition asks for values of what has none"
    torch.ops.aten._assert_async.msg(~_NEEDED[-1] | holds.to(_NEEDED[-1].device), why)
