"""A hoisted list of whole numbers, while the program is traced: only what means the same of it may be done with it.

Its numbers are an input of the program, a tensor. Lists and tensors differ in most of what can be done with them: the
sum of two lists joins them, that of two tensors adds their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from exportdoctor.shims.record import NotApplicable


class ListStandIn:
    """Stands for the list of the numbers of `numbers`, int64 (length,), at least one.

    It may be made a tensor, indexed by a number, iterated over, taken as an index of a tensor or as the sizes of a
    split. Its length is fixed where it is asked for, as torch fixes a size. All else is refused.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        """What `isinstance` sees: in eager it is a list."""
        return list

    def __getitem__(self, place: Any) -> Any:
        if not _is_number(place):
            raise _refusal("slice")
        return self.numbers[place].item()

    def __len__(self) -> int:
        return int(self.numbers.shape[0])

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        return (self[place] for place in range(len(self)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _refusal(name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Its uses in torch functions are told by `lists_in_torch`."""
        raise _refusal(getattr(func, "__name__", "a torch function"))


Sequence.register(ListStandIn)  # so that a pattern of `match` takes it for a list


def _refusal(what: str) -> NotApplicable:
    return NotApplicable(f"a hoisted list of numbers is used for {what}, which would mean something else of a tensor")


def _is_number(value: Any) -> bool:
    import torch

    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)


def _refuse_operator(name: str) -> Any:
    def refuse(self: Any, *others: Any) -> Any:
        raise _refusal(name)

    return refuse


for _name in (
    "add", "radd", "iadd", "mul", "rmul", "imul", "eq", "ne", "lt", "le", "gt", "ge", "contains", "setitem", "delitem",
    "reversed", "sub", "rsub", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "pow", "rpow", "matmul",
    "rmatmul", "neg", "and", "rand", "or", "ror", "copy", "deepcopy", "repr", "str", "format",
):  # fmt: skip
    setattr(ListStandIn, f"__{_name}__", _refuse_operator(_name))


def lists_in_torch() -> Any:
    """A context in which torch functions take stand-ins for lists, where those mean the same."""
    import torch
    from torch.overrides import TorchFunctionMode

    class ListsInTorch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if not any(map(_has_stand_in, (*args, *kwargs.values()))):
                return func(*args, **kwargs)
            name = getattr(func, "__name__", "")
            if func in (torch.tensor, torch.as_tensor) and args and _is_stand_in(args[0]):
                return _make_tensor(*args, **kwargs)
            if name == "new_tensor" and len(args) == 2 and _is_stand_in(args[1]):
                return _make_tensor(args[1], **{"dtype": args[0].dtype, "device": args[0].device, **kwargs})
            if name in ("split", "split_with_sizes") and not _has_stand_in(args[0]):
                args = tuple(list(one) if _is_stand_in(one) else one for one in args)
                kwargs = {key: list(one) if _is_stand_in(one) else one for key, one in kwargs.items()}
            elif name == "__getitem__":
                places = args[1] if type(args[1]) is tuple else (args[1],)
                args = args[0], tuple(one.numbers.clone() if _is_stand_in(one) else one for one in places)
            if any(map(_has_stand_in, (*args, *kwargs.values()))):
                raise _refusal(name)
            return func(*args, **kwargs)

    return ListsInTorch()


def _make_tensor(given: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
    """A new tensor of its numbers, as `torch.tensor` makes one of a list."""
    import torch

    if requires_grad:
        raise _refusal("a tensor with a gradient")
    return given.numbers.to(dtype=dtype or torch.int64, device=device or given.numbers.device, copy=True)


def _is_stand_in(value: Any) -> bool:
    return type(value) is ListStandIn


def _has_stand_in(value: Any) -> bool:
    """Whether it is one, or a container has one."""
    if type(value) in (tuple, list):
        return any(map(_has_stand_in, value))
    if type(value) is dict:
        return any(map(_has_stand_in, value.values()))
    return _is_stand_in(value)
