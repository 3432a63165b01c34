"""A tensor that is split by lengths read from another tensor, and joined again, stays whole.

`torch.split(x, sizes.tolist())` fixes how many lengths there are. Where the pieces are only joined in their order, as
transformers does with the features of several pictures, the answer is the tensor itself, for any number of them.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

from exportdoctor.shims.caught_exceptions import find_catcher, stack_lines
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.code.code_swap import compile_for, definition_of, inside_decorators, swap_code

_NAME, _READ, _MAP, _LIST = "_split_to_join", "_lengths_to_split", "_map_to_join", "_list_to_join"
_ROWS = (
    "{0}.reshape(-1, {0}.shape[-1])", "{0}.reshape(-1, {0}.size(-1))", "{0}.view(-1, {0}.shape[-1])",
    "{0}.view(-1, {0}.size(-1))", "{0}.flatten(0, 1)", "{0}.flatten(end_dim=1)",
)  # fmt: skip
"""What gives the same of all rows at once as of pieces that are joined along the first of two or more dimensions."""

_JOINS = frozenset({"cat", "concat", "concatenate"})


class _Pieces:
    """The pieces of a split, which are made only if something else than joining them is done.

    `rows` is what was done with each piece, and gives the same of all rows at once.
    """

    whole: Any
    sizes: Any
    dim: int
    rows: Callable[[Any], Any] | None

    @classmethod
    def of(cls, whole: Any, sizes: Any, dim: int, rows: Callable[[Any], Any] | None = None) -> Any:
        """The pieces of `whole` along `dim`, counted from the first, of lengths int (pieces,)."""
        one = _OnePiece()
        made: Any = cls((one,))  # type: ignore[call-arg]
        made.whole, made.sizes, made.dim, made.rows = whole, sizes, dim, rows
        return made

    def make(self) -> Any:
        """The pieces themselves."""
        import torch

        made = torch.split(self.whole, self.sizes.tolist(), self.dim)
        return made if self.rows is None else [self.rows(one) for one in made]

    def join(self) -> Any:
        """A copy of the tensor, as a join is; the program asserts what the split would check."""
        import torch

        fits = (self.sizes >= 0).all() & (self.sizes.sum() == self.whole.shape[self.dim])
        torch.ops.aten._assert_async.msg(fits, "the lengths of a split are not those of its tensor")
        copy = self.whole.clone(memory_format=torch.contiguous_format)
        return copy if self.rows is None else self.rows(copy)

    def place_of(self, dim: Any) -> int | None:
        """The dimension of the pieces as counted from the first; `None` where they have no such dimension."""
        return _place_of(dim, self.whole.dim())

    def __getitem__(self, place: Any) -> Any:
        return self.make()[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make())

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self.make())

    def __len__(self) -> int:
        return len(self.make())

    def __contains__(self, one: object) -> bool:
        return one in self.make()

    def index(self, *given: Any) -> int:
        """As that of the pieces."""
        return int(self.make().index(*given))

    def count(self, one: Any) -> int:
        """As that of the pieces."""
        return int(self.make().count(one))

    def __add__(self, other: Any) -> Any:
        made = self.make()
        return made + type(made)(other)

    def __radd__(self, other: Any) -> Any:
        return other + self.make()

    def __mul__(self, times: Any) -> Any:
        return self.make() * times

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return bool(self.make() == other)

    __hash__ = object.__hash__


class SplitPieces(_Pieces, tuple[Any, ...]):
    """What `torch.split` gives."""


def _refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("a list of pieces that are joined later is changed")


class MappedPieces(_Pieces, list[Any]):  # type: ignore[misc]
    """What a comprehension makes of them. It cannot be changed."""

    append = extend = insert = pop = remove = clear = sort = reverse = copy = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse


class ListedRows(MappedPieces):
    """What `list(whole)` gives: the rows of a tensor, which have a dimension less."""

    def make(self) -> Any:
        """The rows themselves."""
        return list(self.whole)

    def join(self) -> Any:
        """A copy of the tensor with its first two dimensions joined."""
        import torch

        return self.whole.clone(memory_format=torch.contiguous_format).flatten(0, 1)

    def place_of(self, dim: Any) -> int | None:
        """As that of the rows."""
        return _place_of(dim, self.whole.dim() - 1)


class _OnePiece:
    """What torch finds in the pieces that it is given, so that it asks here."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        pieces = args[0] if args else kwargs.get("tensors")
        dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
        known = len(args) + len(kwargs) < 3 and kwargs.keys() <= {"tensors", "dim"}
        joins = getattr(func, "__name__", "") in _JOINS and known
        if joins and isinstance(pieces, _Pieces) and pieces.place_of(dim) == pieces.dim:
            return pieces.join()
        made = [one.make() if isinstance(one, _Pieces) else one for one in args]
        return func(*made, **{name: one.make() if isinstance(one, _Pieces) else one for name, one in kwargs.items()})


def _place_of(dim: Any, many: int) -> int | None:
    """The dimension of so many as counted from the first; `None` where there is no such dimension."""
    return dim % many if isinstance(dim, int) and -many <= dim < many else None


class ReadLengths:
    """What `sizes.tolist()` would have read, as a tensor (pieces,) that nothing changes any more."""

    def __init__(self, sizes: Any) -> None:
        self.sizes = sizes.clone()


def lengths_to_split(sizes: Any) -> Any:
    """As `sizes.tolist()`, for `split_to_join` alone."""
    import torch

    return ReadLengths(sizes) if isinstance(sizes, torch.Tensor) and sizes.dim() == 1 else sizes.tolist()


def split_to_join(tensor: Any, lengths: Any, dim: int = 0) -> Any:
    """As `torch.split(tensor, lengths, dim)`; the pieces wait for being joined, but in a program whose code may catch
    that a split refuses the lengths."""
    import torch

    place = _place_of(dim, tensor.dim()) if isinstance(tensor, torch.Tensor) else None
    caught = torch.compiler.is_exporting() and find_catcher(stack_lines(sys._getframe(1), globals()))
    if isinstance(lengths, ReadLengths) and place is not None and not caught:
        return SplitPieces.of(tensor, lengths.sizes, place)
    read = lengths.sizes.tolist() if isinstance(lengths, ReadLengths) else lengths
    return tensor.split(read, dim)


def map_to_join(pieces: Any, rows: Callable[[Any], Any]) -> list[Any]:
    """As `[rows(one) for one in pieces]`, for what gives the same of all rows at once."""
    if isinstance(pieces, SplitPieces) and pieces.dim == 0 and pieces.whole.dim() > 1:
        found: list[Any] = MappedPieces.of(pieces.whole, pieces.sizes, 0, rows)
        return found
    return [rows(one) for one in pieces]


def list_to_join(value: Any) -> list[Any]:
    """As `list(value)`; the rows of a tensor wait for being joined."""
    import torch

    if isinstance(value, torch.Tensor) and value.dim() > 1:
        found: list[Any] = ListedRows.of(value, None, 0)
        return found
    return list(value)


class _KeepWhole(ast.NodeTransformer):
    """`torch.split(x, sizes.tolist())`, also with a name for the list that nothing else uses, calls `split_to_join`; a
    comprehension over it whose pieces lose dimensions calls `map_to_join`, and `list(x)` calls `list_to_join`."""

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
        own = {one.arg for one in ast.walk(tree) if isinstance(one, ast.arg)} | stored.keys()
        self.knows_list = "list" not in own
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
        match node:
            case ast.Call(func=ast.Name(id="list"), args=[ast.Name()], keywords=[]) if self.knows_list:
                return ast.Call(ast.Name(_LIST, ast.Load()), node.args, [])
        sizes = _sizes_of(node)
        if not (_is_list(sizes) or (isinstance(sizes, ast.Name) and sizes.id in self.names)):
            return node
        tensor, _, *rest = _arguments(node)
        read = sizes if isinstance(sizes, ast.Name) else _read(sizes)
        return ast.Call(ast.Name(_NAME, ast.Load()), [tensor, read, *rest], node.keywords)

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        """A comprehension over a split that joins the first dimensions of each piece."""
        self.generic_visit(node)
        match node:
            case ast.ListComp(
                elt=elt, generators=[ast.comprehension(target=ast.Name(id=name), iter=pieces, ifs=[], is_async=0)]
            ) if _is_call_of(pieces, _NAME) and ast.unparse(elt) in (form.format(name) for form in _ROWS):
                rows = ast.Lambda(ast.arguments([], [ast.arg(name)], None, [], [], None, []), elt)
                return ast.Call(ast.Name(_MAP, ast.Load()), [pieces, rows], [])
        return node


def _arguments(node: ast.Call) -> list[ast.expr]:
    """The positional arguments of `torch.split(x, lengths, ...)`, also where it is written as `x.split(lengths, ...)`;
    empty for another call."""
    function = node.func
    if not (isinstance(function, ast.Attribute) and function.attr == "split"):
        return []
    return node.args if ast.unparse(function.value) == "torch" else [function.value, *node.args]


def _sizes_of(node: ast.Call) -> ast.expr | None:
    """The lengths of a split."""
    given = _arguments(node)
    return given[1] if len(given) > 1 else None


def _is_call_of(node: ast.expr, name: str) -> bool:
    """Whether an expression calls the function of that name."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


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


def _makes_pieces(code: CodeType) -> bool:
    names = set(_all_names(code))
    return "list" in names or {"split", "tolist"} <= names


def _all_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _all_names(constant)


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    owners = {owner for module in call.module.modules() for owner in type(module).__mro__}
    methods = [value for owner in owners for value in vars(owner).values() if callable(value)]
    functions = {found for value in methods for found in inside_decorators(value, _makes_pieces)}
    changes = {function: code for function in functions if (code := _keep_whole(function)) is not None}
    if not changes:
        raise NotApplicable("no method splits a tensor by lengths that it reads, or lists its rows")
    with swap_code(changes, {_NAME: split_to_join, _READ: lengths_to_split, _MAP: map_to_join, _LIST: list_to_join}):
        yield call


SHIM = Shim(
    id="joined-split",
    title="Keeps a tensor whole that is split by lengths from another tensor and joined again",
    soundness="exact",
    enter=_enter,
    does=(
        "`torch.split(x, sizes.tolist())` in a method fixes the number of pieces. The pieces are made only where "
        "something else is done with them than joining them in their order along the same dimension; a join gives a "
        "copy of the tensor. So are the rows of `list(x)`, and a list of pieces whose first dimensions are joined, "
        "each by itself. The program asserts that the lengths are the tensor's, as a split does; a split whose refusal "
        "may be caught stays as it is."
    ),
    cures=(Cure(kinds=("dynamic_dim_specialised",)),),
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
