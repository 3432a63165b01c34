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
from exportdoctor.shims.rules.code.own_containers import own_containers
from exportdoctor.shims.rules.code.writes import (
    ADDS,
    WRITE_BACK,
    Write,
    is_in_place_update,
    is_without_gradients,
    writes_of,
)

WRITTEN, COPY, OWN_TENSOR = "_value_to_write", "_copy_to_write", "_own_tensor"
"""The names by which the code calls what reads, copies and checks. What reads, and what writes back, is given the value
as a function, for its name may not be bound where no arm that writes into it is taken."""
_COPIES = f"{ARM}_copy"
"""How the names of copies begin."""
_RECORDED = "recorded"
"""The argument that says whether autograd records what is written back."""
_LEAVES = (
    ast.Return, ast.Break, ast.Continue, ast.Raise, ast.Try, ast.With, ast.FunctionDef, ast.Lambda, ast.ClassDef,
    ast.Global, ast.Nonlocal, ast.Delete, ast.NamedExpr,
)  # fmt: skip
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

    def of_block(self, statements: Sequence[ast.stmt], *, inside: bool, recorded: bool = True) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for one in statements:
            chosen = isinstance(one, ast.If) and (inside or self.is_open(one.test))
            is_recorded = recorded and not is_without_gradients(one)
            if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                for name in ("body", "orelse", "finalbody"):
                    if isinstance(block := getattr(one, name, None), list):
                        setattr(one, name, self.of_block(block, inside=inside or chosen, recorded=is_recorded))
            made += self._of_branch(one, recorded) if isinstance(one, ast.If) and chosen else [one]
        return made

    def _of_branch(self, node: ast.If, may_record: bool) -> list[ast.stmt]:
        """The branch, with what each arm writes into as a copy; autograd records nothing of it unless it `may_record`
        it."""
        arms = [*node.body, *node.orelse]
        every = [one for arm in arms for one in ast.walk(arm)]
        if any(isinstance(one, _LEAVES) and not is_arm(one) and not is_without_gradients(one) for one in every):
            return [node]
        silent = {id(part) for one in every if isinstance(one, ast.With) for part in ast.walk(one)}
        written: dict[str, list[Write]] = {}
        recorded: dict[str, set[bool]] = {}
        for one in every:
            for write in writes_of(one):
                written.setdefault(ast.unparse(write.root), []).append(write)
                recorded.setdefault(ast.unparse(write.root), set()).add(
                    may_record and _is_recorded(one) and id(one) not in silent
                )
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
            if len(recorded[text]) > 1:  # autograd records one write and not the other
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
            if False in recorded[text]:
                back.keywords.append(ast.keyword(_RECORDED, ast.Constant(False)))
            after.append(ast.Assign([_to_store(root)], back) if rebinds else ast.Expr(back))
        return [ast.copy_location(one, node) for one in (*before, node, *after)]

    def _holder(self, root: ast.expr, writes: Sequence[Write]) -> Holder:
        if isinstance(root, ast.Attribute):
            return "attribute"
        own = isinstance(root, ast.Name) and root.id in self.containers and all(write.is_direct for write in writes)
        return "own list" if own else "name"


def _is_recorded(node: ast.AST) -> bool:
    """Whether autograd records the write, unless there is something around it in which it records none."""
    call = node.value if isinstance(node, ast.Assign | ast.Expr) else node
    return not (isinstance(call, ast.Call) and any(one.arg == _RECORDED for one in call.keywords))


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
