"""What a forward leaves on its modules: set back before the export, and taken back before the tracer looks.

The rule is on code: an attribute that `__init__` sets to a literal and another method sets again is state of the last
call. Each call then starts from the same state, as the first one did.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from exportdoctor.core.failure.frames import is_defined_in_torch
from exportdoctor.core.patch_attribute import patch_attributes
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import Replacement, Shim
from exportdoctor.shims.rewriting import function_tree
from exportdoctor.shims.root_forward import Forward, patch_root_forward


@functools.lru_cache(maxsize=1024)
def state_of(owner: type[Any]) -> tuple[tuple[str, Any], ...]:
    """The attributes that are state, each with the literal that `__init__` gives it."""
    methods = {name: value for base in reversed(owner.__mro__) for name, value in vars(base).items()}
    set_later: set[str] = set()
    for name, method in methods.items():
        if inspect.isfunction(method) and name != "__init__" and not is_defined_in_torch(method):
            set_later |= {attribute for attribute, _ in _assignments(method)}
    initial = {
        attribute: value
        for base in reversed(owner.__mro__)
        if inspect.isfunction(init := vars(base).get("__init__")) and not is_defined_in_torch(init)
        for attribute, value in _assignments(init)
    }
    literals = ((name, _literal(initial[name])) for name in sorted(set_later & initial.keys()))
    return tuple((name, value[0]) for name, value in literals if value)


def _assignments(function: Callable[..., Any]) -> list[tuple[str, ast.expr]]:
    tree = function_tree(function)
    owner = next((one.arg for one in (*tree.args.posonlyargs, *tree.args.args)), "") if tree else ""
    found = []
    for node in ast.walk(tree) if tree else ():
        match node:
            case ast.Assign(targets=targets, value=value):
                found += [(name, value) for target in targets if (name := _own_attribute(target, owner))]
            case ast.AnnAssign(target=target, value=ast.expr() as value) if name := _own_attribute(target, owner):
                found.append((name, value))
    return found


def _own_attribute(target: ast.expr, owner: str) -> str:
    match target:
        case ast.Attribute(value=ast.Name(id=holder), attr=name) if holder == owner:
            return name
    return ""


def _literal(value: ast.expr) -> tuple[Any] | tuple[()]:
    return (value.value,) if isinstance(value, ast.Constant) else ()


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    initial = [
        (module, name, value)
        for module in call.module.modules()
        for name, value in state_of(type(module))  # type: ignore[arg-type]
        if name in vars(module)
    ]
    with patch_attributes(initial), patch_root_forward(call.module, partial(_forward_without_traces, call.module)):
        yield call


def _forward_without_traces(root: Any, forward: Forward) -> Forward:
    """The forward; whatever it set on the modules below `root` is undone before it returns."""

    def forward_without_traces(*args: Any, **kwargs: Any) -> Any:
        before = [(module, dict(vars(module)), dict(module._buffers)) for module in root.modules()]
        try:
            return forward(*args, **kwargs)
        finally:
            for module, attributes, buffers in before:
                _restore(vars(module), attributes)
                _restore(module._buffers, buffers)

    return forward_without_traces


def _restore(now: dict[str, Any], before: dict[str, Any]) -> None:
    for name in now.keys() - before.keys():
        del now[name]
    for name, value in before.items():
        if now.get(name, now) is not value:
            now[name] = value


SHIM = Shim(
    id="stateful-attr-reset",
    title="Resets state that forward leaves on modules before the export and after each call",
    soundness="precondition",
    enter=_enter,
    does=(
        "Attributes that `__init__` sets to a literal and another method sets again, such as "
        "`rope_deltas`, are reset to that literal. Assignments to modules in forward are undone before "
        "the tracer checks for them."
    ),
    precondition="no call needs state that an earlier call left on the modules",
    cures=(
        Cure(kinds=("attribute_mutation",)),
        Cure(message=r"FakeTensor|fake tensor|was assigned during export|rope_deltas"),
    ),
    needs={"torch": ">=2.8"},
    link="https://github.com/pytorch/pytorch/issues/155114",
    retire="torch.export restores the modules' attributes",
    rank=30,
    replaces=(
        Replacement(
            target="the attributes of the modules",
            before="model(**inputs)            # sets model.rope_deltas\ntorch.export.export(model, ...)\n",
            after="model(**inputs)\nmodel.rope_deltas = None   # as in __init__\ntorch.export.export(model, ...)\n",
        ),
    ),
)
