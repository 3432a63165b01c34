"""`x[rows.tolist()]`: a list of a tensor's values, or a numpy array of them, of which torch makes a tensor again.

Here such a list or array remembers the tensor it is made of, and torch is given that. Whatever else is done with it is
done with the values, which a traced tensor may not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.known_tensors import torch_name
from exportdoctor.shims.record import Replacement, Shim
from exportdoctor.shims.root_forward import Forward, patch_root_forward
from exportdoctor.torch_internals.fake_tensors import around_tolist, is_fake
from exportdoctor.torch_internals.trees import tree_leaves, tree_map

_INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
_READS = (
    r"\.numpy\(|\[[^\]\n]*\.tolist\(|[^=!<>]=[^=\n]*\.tolist\(\)\s*$"
    r"|(?:pack_padded_sequence|tensor)\([^\n]*\.tolist\("
)
_TENSOR_MAKERS = frozenset({"tensor", "as_tensor"})


class NumberList(list[Any]):
    """The numbers of a tensor of one dimension. As long as it holds those that it was made with, `tensor` is it."""

    def __init__(self, numbers: list[Any], tensor: Any) -> None:
        super().__init__(numbers)
        self._first, self._tensor = tuple(numbers), tensor

    @property
    def tensor(self) -> Any:
        """None where the list was changed."""
        same = len(self) == len(self._first) and all(a is b for a, b in zip(self, self._first, strict=True))
        return self._tensor if same else None


class TensorValues:
    """Stands for a list, or an array, of values that a traced tensor does not have. `read` gives them, or fails."""

    def __init__(self, kind: type[Any], tensor: Any, read: Callable[[], Any]) -> None:
        vars(self).update(_kind=kind, tensor=tensor, _read=read)

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        return self._kind

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # torch asks for such attributes, as of any argument
            raise AttributeError(name)
        return getattr(self._read(), name)

    def __len__(self) -> int:
        length = self.tensor.shape[0]
        if not isinstance(length, int):  # torch asks for the length of an index
            raise TypeError("the length of a list of a traced tensor's values is not known")
        return length

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist() if _holds_integers(self.tensor, "int64") and self._kind is not list else self._read())

    def __getitem__(self, index: Any) -> Any:
        if self._kind is list or type(index) is not int or not _holds_integers(self.tensor, "int64"):
            return self._read()[index]
        return self.tensor[index].item()

    def tolist(self) -> Any:
        """The numbers of an array of one dimension, as those of the tensor."""
        if self._kind is list or not _holds_integers(self.tensor, *_INTEGERS):
            return self._read().tolist()
        return self.tensor.tolist()


def _holds_integers(tensor: Any, *dtypes: str) -> bool:
    """Whether they are of those dtypes, in one dimension. Numpy's shorter integers overflow, which symbols do not."""
    return tensor.dim() == 1 and str(tensor.dtype).removeprefix("torch.") in dtypes


def _forward_method(name: str) -> Callable[..., Any]:
    def call(self: TensorValues, *args: Any) -> Any:
        return getattr(self._read(), name)(*args)

    return call


for _name in (
    *("setitem", "delitem", "contains", "reversed", "bool", "int", "float", "index"),
    *("add", "radd", "iadd", "mul", "rmul", "imul", "sub", "rsub", "truediv", "rtruediv", "floordiv", "rfloordiv"),
    *("mod", "rmod", "pow", "rpow", "neg", "abs", "and", "or", "xor", "invert", "matmul", "rmatmul"),
    *("eq", "ne", "lt", "le", "gt", "ge", "str", "repr", "format", "array"),
):
    setattr(TensorValues, f"__{_name}__", _forward_method(f"__{_name}__"))


def tensor_of(values: Any) -> Any:
    """The tensor whose values these are; None where that is not known."""
    return values.tensor if type(values) in (NumberList, TensorValues) else None


def _read(leaf: Any) -> Any:
    return vars(leaf)["_read"]() if type(leaf) is TensorValues else leaf


def _is_remembered(leaf: Any) -> bool:
    return type(leaf) in (NumberList, TensorValues)


class _Reader:
    """What reads a tensor's values, with `plain` as it is without this shim."""

    def __init__(self) -> None:
        self.plain = False

    def read(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        before, self.plain = self.plain, True
        try:
            return func(*args, **kwargs)
        finally:
            self.plain = before

    def to_list(self, _: Any, plain: Any) -> Any:
        """`given.tolist()`: whole numbers or flags in one dimension are remembered, as they are now."""
        import torch

        (given,) = plain.args  # of a method
        if self.plain or given.dim() != 1 or given.is_floating_point() or given.is_complex():
            return plain()
        dtype = torch.bool if given.dtype is torch.bool else torch.int64  # a tensor of uint8 would be a mask
        kept = given.detach().to(dtype, copy=True)
        if isinstance(given.shape[0], int):
            return NumberList(plain(), kept)
        return TensorValues(list, kept, lambda: self.read(plain, (), {}))


def _index_for(tensor: Any, index: Any) -> Any:
    """The index with tensors in the place of what remembers them, where a list of such a kind is an index."""

    def one(part: Any) -> Any:
        kept = tensor_of(part)
        if kept is None or kept.is_floating_point() or kept.is_complex():
            return part
        is_mask = str(kept.dtype) == "torch.uint8"  # an array of them; torch.export refuses a tensor of them
        return kept.to(tensor.device).bool() if is_mask else kept.to(tensor.device)

    return tuple(map(one, index)) if type(index) is tuple else one(index)


def _make_tensor(name: str, data: Any, named: dict[str, Any]) -> Any:
    """`torch.tensor(data)` and its like of what remembers its tensor."""
    import torch

    kept = tensor_of(data)
    device = "cpu" if name == "from_numpy" else named.get("device") or torch.get_default_device()
    made = kept.to(
        device=device, dtype=named.get("dtype") or kept.dtype, copy=name == "tensor" or type(data) is NumberList
    )
    return made.requires_grad_() if named.get("requires_grad") else made


def _mode(reader: _Reader) -> Any:
    import numpy as np
    from torch.compiler import is_dynamo_compiling
    from torch.overrides import TorchFunctionMode

    class Remembers(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if reader.plain or is_dynamo_compiling():  # a function that torch.cond, say, is given
                return func(*args, **kwargs)
            name = torch_name(func)
            if name == "numpy" and is_fake(args[0]):
                return TensorValues(np.ndarray, args[0], lambda: reader.read(func, args, kwargs))
            if not any(map(_is_remembered, tree_leaves((args, kwargs)))):
                return func(*args, **kwargs)
            if name in {"__getitem__", "__setitem__"}:
                tensor, index, *value = args
                return func(tensor, _index_for(tensor, index), *value)
            if name in _TENSOR_MAKERS and len(args) == 1 and tensor_of(args[0]) is not None:
                return _make_tensor(name, args[0], kwargs)
            args, kwargs = tree_map(_read, (args, kwargs))
            return func(*args, **kwargs)

    return Remembers()


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    import torch

    reader, plain = _Reader(), torch.from_numpy

    def from_numpy(array: Any) -> Any:  # no mode is asked
        return plain(array) if tensor_of(array) is None else _make_tensor("from_numpy", array, {})

    def wrap(forward: Forward) -> Forward:
        def with_values(*args: Any, **kwargs: Any) -> Any:
            with _mode(reader), around_tolist(reader.to_list), patch_attribute(torch, "from_numpy", from_numpy):
                return forward(*args, **kwargs)

        return with_values

    with patch_root_forward(call.module, wrap):
        yield call


SHIM = Shim(
    id="list-as-tensor",
    title="Gives torch the tensor itself, where it is given a list or a numpy array of its values",
    soundness="exact",
    enter=_enter,
    does=(
        "`tolist` and `numpy` read values that a traced tensor does not have. Where torch makes a tensor of them "
        "again, as of an index, of the lengths of packed sequences or of the argument of `torch.tensor`, it is given "
        "that tensor. The whole numbers of an array are those of `item`. All else reads the values, as before."
    ),
    cures=(
        Cure(kinds=("data_dependent_value", "data_dependent_guard", "python_error"), where=_READS),
        Cure(kinds=("dynamic_dim_specialised",), guard=_READS),
    ),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="the code gives torch the tensor instead",
    rank=16,
    conflicts=("strict",),
    replaces=(
        Replacement(
            target="`x[rows.tolist()]`",
            before="chosen = x[rows.tolist()]\n",
            after="chosen = x[rows]\n",
        ),
    ),
)
