"""Geometry of an image grid computed before the call, where an encoder makes it by methods alone.

transformers before 5 has `self.rot_pos_emb(grid_thw)` and `self.get_window_index(grid_thw)`. The methods are found in
forward's statements: those that take the grid alone. Their results become inputs, under the names that forward uses.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute, patch_attributes
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall, Named
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rewriting import Overlay, function_tree, rebind_globals
from exportdoctor.shims.rules.hoisting.more_inputs import with_parameters

_GRID = "grid_thw"
_MEDIA = ("image", "video")


@dataclass(frozen=True, kw_only=True)
class MethodCall:
    """A statement of forward, `names = self.method(grid)`."""

    method: str
    names: tuple[str, ...]


def grid_method_calls(owner: type[Any]) -> tuple[MethodCall, ...]:
    """The statements of an encoder's forward that make something of the grid alone, by a method with a loop in it."""
    tree = function_tree(owner.forward)
    if tree is None or _GRID not in inspect.signature(inspect.unwrap(owner.forward)).parameters:
        return ()
    return tuple(
        MethodCall(method=name, names=_names(statement.targets[0]))
        for statement in tree.body
        if isinstance(statement, ast.Assign) and (name := _method(statement.value)) and _loops(owner, name)
    )


def _method(value: ast.expr) -> str:
    match value:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="self"), attr=name), args=[ast.Name(id=argument)], keywords=[]
        ) if argument == _GRID:
            return name
    return ""


def _loops(owner: type[Any], name: str) -> bool:
    method = getattr(owner, name, None)
    tree = function_tree(method) if method is not None else None
    return tree is not None and any(isinstance(node, ast.For) for node in ast.walk(tree))


def _names(target: ast.expr) -> tuple[str, ...]:
    return tuple(node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _compute_inputs(encoder: Any, grid: Any) -> dict[str, Any]:
    """What the methods make of a grid, int (images, 3), by name; a list of boundaries as int64 (boundaries,)."""
    import torch

    found: dict[str, Any] = {}
    with torch.no_grad():
        for made in grid_method_calls(type(encoder)):
            result = getattr(encoder, made.method)(grid)
            found.update(zip(made.names, result if len(made.names) > 1 else (result,), strict=True))
    return {
        name: torch.tensor(value, device=grid.device) if isinstance(value, list) else value
        for name, value in found.items()
    }


def _forward_with_results(forward: Callable[..., Any], given: list[tuple[Any, dict[str, Any]]]) -> Callable[..., Any]:
    """The encoder's forward, whose methods answer with what was given for its grid."""
    plain = inspect.unwrap(forward)
    signature = inspect.signature(plain)

    @functools.wraps(forward)
    def forward_taking(self: Any, *args: Any, **kwargs: Any) -> Any:
        grid = signature.bind(self, *args, **kwargs).arguments[_GRID]
        values = next((values for other, values in given if other is grid), None)
        if values is None:
            return forward(self, *args, **kwargs)
        answers = {
            made.method: tuple(values[name] for name in made.names) if len(made.names) > 1 else values[made.names[0]]
            for made in grid_method_calls(type(self))
        }
        torch = Overlay(plain.__globals__["torch"], tensor=_tensor)
        with patch_attributes((self, name, lambda _, answer=answer: answer) for name, answer in answers.items()):
            return rebind_globals(plain, {"torch": torch})(self, *args, **kwargs)

    return forward_taking


def _tensor(data: Any, **options: Any) -> Any:
    """As `torch.tensor`; what is one already is only cast."""
    import torch

    return data.to(**options) if isinstance(data, torch.Tensor) else torch.tensor(data, **options)


def _forward_with_inputs(
    forward: Callable[..., Any], grids: dict[str, str], names: tuple[str, ...], given: list[tuple[Any, dict[str, Any]]]
) -> Callable[..., Any]:
    """The root's forward with more inputs, that puts them down for the encoder. `grids`: prefix -> name of the grid."""
    signature = inspect.signature(forward)
    extra = [f"{prefix}{name}" for prefix in grids for name in names]

    @functools.wraps(forward)
    def forward_popping(self: Any, *args: Any, **kwargs: Any) -> Any:
        taken = {name: kwargs.pop(name) for name in extra if name in kwargs}
        bound = signature.bind(self, *args, **kwargs).arguments
        for prefix, grid in grids.items():
            values = {name: taken[f"{prefix}{name}"] for name in names if f"{prefix}{name}" in taken}
            if values:
                given.append((bound[grid], values))
        try:
            return forward(self, *args, **kwargs)
        finally:
            given.clear()

    forward_popping.__signature__ = with_parameters(signature, extra)  # type: ignore[attr-defined]
    return forward_popping


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    encoder = next((module for module in call.module.modules() if grid_method_calls(type(module))), None)
    named = call.named
    prefixes = {"": _GRID} if encoder is call.module else {f"{kind}_": f"{kind}_{_GRID}" for kind in _MEDIA}
    grids = {prefix: grid for prefix, grid in prefixes.items() if named.get(grid) is not None}
    if encoder is None or not grids:
        raise NotApplicable(f"no submodule is called with {_GRID} and computes tensors from it in methods")
    given: list[tuple[Any, dict[str, Any]]] = []
    names = tuple(name for made in grid_method_calls(type(encoder)) for name in made.names)

    def compute(named: Named) -> dict[str, Any]:
        values = {prefix: _compute_inputs(encoder, named[grid]) for prefix, grid in grids.items()}
        return {f"{prefix}{name}": value for prefix, made in values.items() for name, value in made.items()}

    root = type(call.module)
    with patch_attribute(type(encoder), "forward", _forward_with_results(type(encoder).forward, given)):
        call = call.with_inputs(compute)
        with patch_attribute(root, "forward", _forward_with_inputs(root.forward, grids, names, given)):
            yield call.with_options(flat_forward=False)


SHIM = Shim(
    id="precompute-grid-methods",
    title=("Computes what an encoder's methods derive from the image grid outside the model and passes it in"),
    soundness="signature",
    enter=_enter,
    does=(
        "Methods such as `rot_pos_emb(grid_thw)` and `get_window_index(grid_thw)` loop over the grid's "
        "values. Their results are computed before the call and become inputs, named as the variables in "
        "forward: `rotary_pos_emb`, `window_index`, `cu_window_seqlens`, with the prefix `image_` or "
        "`video_` on a whole model."
    ),
    cures=(
        Cure(
            kinds=("data_dependent_value", "data_dependent_guard", "dynamic_dim_specialised", "unsupported_python"),
            where=r"rot_pos_emb|get_window_index|\bin grid_thw\b",
        ),
    ),
    needs={"torch": ">=2.8", "transformers": ">=4.53,<5.20"},
    link="https://github.com/pytorch/pytorch/issues/158786",
    retire=("transformers 4 is no longer supported: the encoders of transformers 5 take these tensors as keywords"),
    rank=10,
    replaces=(
        Replacement(
            target="the inputs of the program",
            before="encoder(hidden_states, grid_thw)\n",
            after=(
                "encoder(\n    hidden_states,\n    grid_thw,\n    rotary_pos_emb=encoder.rot_pos_emb(grid_thw),\n"
                "    window_index=encoder.get_window_index(grid_thw)[0],\n"
                "    cu_window_seqlens=torch.tensor(encoder.get_window_index(grid_thw)[1]),\n)\n"
            ),
        ),
    ),
)
