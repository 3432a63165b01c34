"""Arms of branches that write into tensors: they write into copies, and what the choice gives is written back.

`if c: y[:, 0] = 0` becomes `copy = y`, `if c: copy = copy_to_write(copy); copy[:, 0] = 0`, `write_back(y, copy)`. So
views of `y`, and whoever gave it, see the write. Within the arm only the copy may be read: `arm_watch.py` refuses an
arm that reads the same memory by another name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from exportdoctor.shims.rules.code.code_swap import ARM
from exportdoctor.shims.rules.code.made_code import call_of, load, thunk
from exportdoctor.shims.rules.code.name_flow import all_names, is_arm, names_in_other_scopes, stored_names
from exportdoctor.shims.rules.code.name_uses import bindings_of, identified_names
from exportdoctor.shims.rules.code.pure_callees import has_pure_name
from exportdoctor.shims.rules.loops.own_containers import own_containers

WRITTEN, COPY, WRITE_BACK, OWN_TENSOR = "_value_to_write", "_copy_to_write", "_write_back", "_own_tensor"
"""The names by which the code calls what reads, copies and writes back. Both ends are given the value as a function,
for its name may not be bound where no arm that writes into it is taken."""
_COPIES = f"{ARM}_copy"
"""How the names of copies begin."""
VIEWS = frozenset({"diagonal", "narrow", "select", "squeeze", "swapaxes", "swapdims", "t", "transpose", "unsqueeze",
                    "view"})  # fmt: skip
"""Methods whose result shares the memory of their tensor, however it is laid out."""
_WITHOUT_TWIN = frozenset({"copy_", "fill_", "fill_diagonal_", "zero_"})
_OF_METADATA = frozenset(f"{one}_" for one in ("as_strided", "detach", "rename", "resize", "resize_as", "set", *VIEWS))
_LEAVES = (
    ast.Return, ast.Break, ast.Continue, ast.Raise, ast.Try, ast.With, ast.FunctionDef, ast.Lambda, ast.ClassDef,
    ast.Global, ast.Nonlocal, ast.Delete, ast.NamedExpr,
)  # fmt: skip
ADDS = frozenset({"append", "extend", "insert"})
"""Methods that add to a list."""
Holder = Literal["name", "own list", "attribute"]
"""What holds the value that is copied: a name, one of a list or dict of the function's own, an attribute."""


def is_copy(name: str) -> bool:
    """Whether it is the name of such a copy, into which an arm may write."""
    return name.startswith(_COPIES)


def write_into_copies(
    function: ast.FunctionDef, is_open: Callable[[ast.expr], bool], is_plain: Callable[[ast.Attribute], bool]
) -> None:
    """Rewrites, in place, the branches whose condition `is_open`, and those inside of them. `is_plain` says whether an
    attribute is a value that its object holds, and no property."""
    if not any(isinstance(one, ast.Global | ast.Nonlocal) for one in ast.walk(function)):
        identified = {name for one in ast.walk(function) for name in identified_names(one)}
        containers = own_containers(function) - identified
        rewrite = _Copies(is_open, is_plain, names_in_other_scopes(function), containers)
        function.body = rewrite.of_block(function.body, inside=False)
        ast.fix_missing_locations(function)


@dataclass
class _Copies:
    is_open: Callable[[ast.expr], bool]
    is_plain: Callable[[ast.Attribute], bool]
    others: set[str]
    """Names that functions inside may read or bind."""
    containers: set[str]
    """Names of lists and dicts that the function makes, and that no other name can stand for."""
    count: int = 0

    def of_block(self, statements: Sequence[ast.stmt], *, inside: bool) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for one in statements:
            chosen = isinstance(one, ast.If) and (inside or self.is_open(one.test))
            if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                for name in ("body", "orelse", "finalbody"):
                    if isinstance(block := getattr(one, name, None), list):
                        setattr(one, name, self.of_block(block, inside=inside or chosen))
            made += self._of_branch(one) if isinstance(one, ast.If) and chosen else [one]
        return made

    def _of_branch(self, node: ast.If) -> list[ast.stmt]:
        """The branch, with what each arm writes into as a copy."""
        arms = [*node.body, *node.orelse]
        if any(isinstance(one, _LEAVES) and not is_arm(one) for arm in arms for one in ast.walk(arm)):
            return [node]
        written: dict[str, list[Write]] = {}
        for one in (each for arm in arms for each in ast.walk(arm)):
            for write in writes_of(one):
                written.setdefault(ast.unparse(write.root), []).append(write)
        added = {write.root.id for writes in written.values() for write in writes
                 if write.rebinds and isinstance(write.root, ast.Name)}  # fmt: skip
        bound = {one.id for arm in arms for one in stored_names(arm) if one.id not in added} | self.others
        bound |= {name for name in added if _is_bound_otherwise(name, arms)}
        before: list[ast.stmt] = []
        after: list[ast.stmt] = []
        for text, writes in written.items():
            root = writes[0].root
            if text.partition(".")[0] in bound or (isinstance(root, ast.Attribute) and not self.is_plain(root)):
                continue
            self.count += 1
            name = f"{_COPIES}_{self.count}"
            holder = ast.Constant(self._holder(root, writes))
            renaming = _Renaming(text, name)
            node.body, node.orelse = (
                [_bind(name, call_of(COPY, load(name), holder)), *map(renaming.visit, arm)]
                for arm in (node.body, node.orelse)
            )
            before.append(_bind(name, call_of(WRITTEN, thunk(root))))
            back = call_of(WRITE_BACK, thunk(root), load(name))
            rebinds = any(write.rebinds for write in writes)
            after.append(ast.Assign([_to_store(root)], back) if rebinds else ast.Expr(back))
        return [ast.copy_location(one, node) for one in (*before, node, *after)]

    def _holder(self, root: ast.expr, writes: Sequence[Write]) -> Holder:
        if isinstance(root, ast.Attribute):
            return "attribute"
        own = isinstance(root, ast.Name) and root.id in self.containers and all(write.is_direct for write in writes)
        return "own list" if own else "name"


def _is_bound_otherwise(name: str, arms: Sequence[ast.stmt]) -> bool:
    every = (one for arm in arms for one in ast.walk(arm))
    added = {id(one.target) for one in every if isinstance(one, ast.AugAssign) and is_in_place_update(one)}
    return any(one.id == name and id(one) not in added for arm in arms for one in stored_names(arm))


def _bind(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _to_store(root: ast.expr) -> ast.expr:
    match root:
        case ast.Attribute(value=value, attr=name):
            return ast.Attribute(value, name, ast.Store())
        case ast.Name(id=name):
            return ast.Name(name, ast.Store())
    raise TypeError(ast.dump(root))


class _Renaming(ast.NodeTransformer):
    """Gives what the code calls `text`, a name or an attribute, another name."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.copy_location(ast.Name(self.name, node.ctx), node) if node.id == self.text else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if ast.unparse(node) == self.text:
            return ast.copy_location(ast.Name(self.name, node.ctx), node)
        return self.generic_visit(node)


# --- what a statement writes into


@dataclass(frozen=True)
class Write:
    """A write into the value of a name or an attribute, `root`. It `is_direct` where it stores an item of that itself,
    as in `root[0] = value`, and `rebinds` where it also binds the root, as `root += value` does."""

    root: ast.expr
    is_direct: bool = False
    rebinds: bool = False


def writes_of(node: ast.AST) -> Iterator[Write]:
    """What a statement itself writes into, as in `root[0] = value`, `root += value` and `root.view(-1).mul_(2)`."""
    match node:
        case ast.Assign(targets=targets):
            stores = [one for target in targets for one in parts_of(target) if isinstance(one, ast.Subscript)]
            yield from (_write(one.value, is_direct=_is_root(one.value)) for one in stores if root_of(one.value))
        case ast.AugAssign(target=ast.Subscript(value=value)) if root_of(value):
            yield _write(value)
        case ast.AugAssign(target=target) if is_in_place_update(node) and root_of(target):
            yield _write(target, rebinds=True)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=value, attr=name))) if is_in_place(name) and root_of(
            value
        ):
            yield _write(value)
        case ast.Call(func=ast.Name(id=name), args=[ast.Lambda(body=value), _]) if name == WRITE_BACK:
            yield _write(value, is_direct=True)


def _write(value: ast.expr, *, is_direct: bool = False, rebinds: bool = False) -> Write:
    root = root_of(value)
    assert root is not None
    return Write(root, is_direct, rebinds)


def _is_root(value: ast.expr) -> bool:
    return isinstance(value, ast.Name | ast.Attribute)


def is_in_place_update(node: ast.AST) -> bool:
    """`x += y` and its like, which write into a tensor; `x @= y` binds a new one."""
    return isinstance(node, ast.AugAssign) and not isinstance(node.op, ast.MatMult)


def parts_of(target: ast.expr) -> Iterator[ast.expr]:
    """The targets in one of an assignment."""
    match target:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for one in parts:
                yield from parts_of(one)
        case ast.Starred(value=one):
            yield from parts_of(one)
        case _:
            yield target


def is_in_place(name: str) -> bool:
    """Whether a method of this name writes values into its tensor: none that draws them, or that gives it another shape
    or memory."""
    import torch

    if not name.endswith("_") or name.startswith("_") or name in _OF_METADATA:
        return False
    twin = name.removesuffix("_")
    return name in _WITHOUT_TWIN or (callable(getattr(torch.Tensor, twin, None)) and has_pure_name(twin))


def root_of(node: ast.expr) -> ast.expr | None:
    """The name, or attribute of one, of whose memory an expression is the whole, or a part; None for others."""
    match node:
        case ast.Name(id=name):
            return load(name)
        case ast.Subscript(value=value) | ast.Attribute(value=value, attr="T" | "mT"):
            return root_of(value)
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in VIEWS or is_in_place(name):
            return root_of(value)
        case ast.Attribute(value=value, attr=name):
            holder = value
            while isinstance(holder, ast.Attribute):
                holder = holder.value
            return ast.Attribute(value, name, ast.Load()) if isinstance(holder, ast.Name) else None
    return None


# --- what an arm makes for itself


def own_of_arm(
    arm: Sequence[ast.stmt], function: ast.FunctionDef, gives_tensor: Callable[[ast.expr], bool]
) -> tuple[frozenset[str], frozenset[str]]:
    """The names of tensors and numbers, and those of lists and dicts, that an arm makes before it writes into them, and
    that nothing outside the arm binds or writes into. `gives_tensor` says whether a call does."""
    inside = {id(one) for part in arm for one in ast.walk(part)}
    every = [*ast.walk(function)]
    outside = {name.id for one in every if id(one) not in inside for name in _names_changed_by(one)}
    outside |= names_in_other_scopes(function) | {
        one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)
    }
    values = _values_bound(arm)
    tensors, containers = set[str](), set[str]()
    for place, one in enumerate(arm):
        earlier = {name for part in arm[:place] for name in all_names(part)}
        for name in {of.id for of, _ in bindings_of(one)} - outside - earlier:
            if all(value is not None and _is_new_container(value) for value in values[name]):
                containers.add(name)
            elif all(value is not None and (_is_number(value) or gives_tensor(value)) for value in values[name]):
                tensors.add(name)
        if isinstance(one, ast.If):  # what its arms make for themselves is the arm's own, too
            for inner in (one.body, one.orelse):
                found = own_of_arm(inner, function, gives_tensor)
                tensors |= found[0]
                containers |= found[1]
    return frozenset(tensors), frozenset(containers)


def _names_changed_by(node: ast.AST) -> Iterator[ast.Name]:
    """The names that a node binds, or into which it writes."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name() as of, attr=name)) if name in ADDS:
            yield of
    yield from (one.root for one in writes_of(node) if isinstance(one.root, ast.Name))


def _values_bound(arm: Sequence[ast.stmt]) -> dict[str, list[ast.expr | None]]:
    """What the arm binds each name to, but for `+=` and its like; None where that does not show."""
    every = [one for part in arm for one in ast.walk(part)]
    shown: dict[int, ast.expr] = {}
    for one in every:
        shown.update((id(name), value) for name, value in bindings_of(one))
    added = {id(one.target) for one in every if isinstance(one, ast.AugAssign) and is_in_place_update(one)}
    found: dict[str, list[ast.expr | None]] = {}
    for name in (one for part in arm for one in stored_names(part)):
        if id(name) not in added:
            found.setdefault(name.id, []).append(shown.get(id(name)))
    return found


def _is_new_container(node: ast.expr) -> bool:
    match node:
        case ast.List() | ast.ListComp() | ast.Dict() | ast.DictComp():
            return True
        case ast.Call(func=ast.Name(id="list" | "dict"), args=[]):
            return True
    return False


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)
