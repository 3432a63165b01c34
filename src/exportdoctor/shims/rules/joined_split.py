"""A tensor that is split by lengths read from another tensor, and joined again, stays whole.

`torch.split(x, sizes.tolist())` fixes how many lengths there are. Where the pieces are only joined in their order, as
transformers does with the features of several pictures, the answer is the tensor itself, for any number of them.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.code_swap import compile_for, definition_of, inside_decorators, swap_code

_NAME, _READ = "_split_to_join", "_lengths_to_split"
_JOINS = frozenset({"cat", "concat", "concatenate"})


class SplitPieces(tuple[Any, ...]):
    """The pieces of a split, which are made only if something else than joining them is done."""

    whole: Any
    sizes: Any
    dim: int

    @classmethod
    def of(cls, whole: Any, sizes: Any, dim: int) -> SplitPieces:
        """The pieces of `whole` along `dim`, counted from the first, of lengths int (pieces,)."""
        made = cls((_OnePiece(),))
        made.whole, made.sizes, made.dim = whole, sizes, dim
        made[()].of = made
        return made

    def make(self) -> tuple[Any, ...]:
        """The pieces themselves."""
        import torch

        return torch.split(self.whole, self.sizes.tolist(), self.dim)

    def join(self) -> Any:
        """A copy of the tensor, as a join is; the program asserts what the split would check."""
        import torch

        fits = (self.sizes >= 0).all() & (self.sizes.sum() == self.whole.shape[self.dim])
        torch.ops.aten._assert_async.msg(fits, "the lengths of a split are not those of its tensor")
        return self.whole.clone(memory_format=torch.contiguous_format)

    def __getitem__(self, place: Any) -> Any:
        return tuple.__getitem__(self, 0) if place == () else self.make()[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make())

    def __len__(self) -> int:
        return len(self.make())

    def __contains__(self, one: object) -> bool:
        return one in self.make()

    def __add__(self, other: Any) -> Any:
        return self.make() + tuple(other)

    def __radd__(self, other: Any) -> Any:
        return other + self.make()

    def __mul__(self, times: Any) -> Any:
        return self.make() * times

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return self.make() == other

    __hash__ = object.__hash__  # type: ignore[assignment]


class _OnePiece:
    """What torch finds in the pieces that it is given, so that it asks here."""

    of: SplitPieces

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        pieces = args[0] if args else kwargs.get("tensors")
        dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
        known = len(args) + len(kwargs) < 3 and kwargs.keys() <= {"tensors", "dim"}
        joins = getattr(func, "__name__", "") in _JOINS and known
        if joins and isinstance(pieces, SplitPieces) and _place_of(dim, pieces.whole) == pieces.dim:
            return pieces.join()
        made = [one.make() if isinstance(one, SplitPieces) else one for one in args]
        return func(
            *made, **{name: one.make() if isinstance(one, SplitPieces) else one for name, one in kwargs.items()}
        )


def _place_of(dim: Any, tensor: Any) -> int | None:
    """The dimension as counted from the first; `None` where the tensor has no such dimension."""
    is_one = isinstance(dim, int) and -tensor.dim() <= dim < tensor.dim()
    return dim % tensor.dim() if is_one else None


class ReadLengths:
    """What `sizes.tolist()` would have read, as a tensor (pieces,) that nothing changes any more."""

    def __init__(self, sizes: Any) -> None:
        self.sizes = sizes.clone()


def lengths_to_split(sizes: Any) -> Any:
    """As `sizes.tolist()`, for `split_to_join` alone."""
    import torch

    return ReadLengths(sizes) if isinstance(sizes, torch.Tensor) and sizes.dim() == 1 else sizes.tolist()


def split_to_join(tensor: Any, lengths: Any, dim: int = 0) -> Any:
    """As `torch.split(tensor, lengths, dim)`; the pieces wait for being joined."""
    import torch

    if not isinstance(lengths, ReadLengths):
        return torch.split(tensor, lengths, dim)
    place = _place_of(dim, tensor) if isinstance(tensor, torch.Tensor) else None
    if place is not None:
        return SplitPieces.of(tensor, lengths.sizes, place)
    return torch.split(tensor, lengths.sizes.tolist(), dim)


class _KeepWhole(ast.NodeTransformer):
    """`torch.split(x, sizes.tolist())`, also with a name for the list that nothing else uses, calls `split_to_join`."""

    def __init__(self, tree: ast.FunctionDef) -> None:
        stored, loaded, split = Counter[str](), Counter[str](), Counter[str]()
        lists: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                (loaded if isinstance(node.ctx, ast.Load) else stored)[node.id] += 1
            if isinstance(node, ast.Call) and isinstance(sizes := _sizes_of(node), ast.Name):
                split[sizes.id] += 1
            if isinstance(node, ast.Assign) and _is_list(node.value) and isinstance(node.targets[0], ast.Name):
                lists.add(node.targets[0].id)
        self.names = {name for name in lists if stored[name] == 1 and loaded[name] == split[name] > 0}

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """The name stands for what the tensor holds here: it may be changed before the split."""
        self.generic_visit(node)
        target = node.targets[0]
        if isinstance(target, ast.Name) and target.id in self.names and _is_list(node.value):
            node.value = _read(node.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """A split by such a name, or by a list that is made in the call."""
        self.generic_visit(node)
        sizes = _sizes_of(node)
        if not (_is_list(sizes) or (isinstance(sizes, ast.Name) and sizes.id in self.names)):
            return node
        if not isinstance(sizes, ast.Name):
            node.args[1] = _read(sizes)
        node.func = ast.Name(_NAME, ast.Load())
        return node


def _sizes_of(node: ast.Call) -> ast.expr | None:
    """The lengths in `torch.split(x, lengths, ...)`."""
    function = node.func
    named = isinstance(function, ast.Attribute) and function.attr == "split" and ast.unparse(function.value) == "torch"
    return node.args[1] if named and len(node.args) > 1 else None


def _read(tolist: Any) -> ast.Call:
    """The call that takes the place of `sizes.tolist()`."""
    return ast.Call(ast.Name(_READ, ast.Load()), [tolist.func.value], [])


def _is_list(node: Any) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "tolist"
        and not node.args
        and not node.keywords
    )


def _keep_whole(function: FunctionType) -> CodeType | None:
    """The function's code with its splits kept whole; `None` where it has none."""
    node = definition_of(function)
    if node is None:
        return None
    before = ast.dump(node)
    changed = _KeepWhole(node).visit(node)
    return None if ast.dump(changed) == before else compile_for(function, changed)


def _splits_by_list(code: CodeType) -> bool:
    return {"split", "tolist"} <= set(_all_names(code))


def _all_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _all_names(constant)


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    owners = {owner for module in call.module.modules() for owner in type(module).__mro__}
    methods = [value for owner in owners for value in vars(owner).values() if callable(value)]
    functions = {found for value in methods for found in inside_decorators(value, _splits_by_list)}
    changes = {function: code for function in functions if (code := _keep_whole(function)) is not None}
    if not changes:
        raise NotApplicable("no method splits a tensor by lengths that it reads")
    with swap_code(changes, {_NAME: split_to_join, _READ: lengths_to_split}):
        yield call


SHIM = Shim(
    id="joined-split",
    title="Keeps a tensor whole that is split by lengths from another tensor and joined again",
    soundness="exact",
    enter=_enter,
    does=(
        "`torch.split(x, sizes.tolist())` in a method fixes the number of pieces. The pieces are made only where "
        "something else is done with them than joining them in their order along the same dimension; a join gives a "
        "copy of the tensor. The program asserts that the lengths are the tensor's, as a split does."
    ),
    cures=(Cure(kinds=("dynamic_dim_specialised",), where=r"split|tolist\(\)"),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="torch.export traces a split by a list of any length",
    rank=21,
    replaces=(
        Replacement(
            target="the method that splits",
            before="pieces = torch.split(features, sizes.tolist())\n...\nfeatures = torch.cat(pieces)\n",
            after="...\nfeatures = features\n",
        ),
    ),
)
