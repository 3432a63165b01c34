"""Geometry of an image grid computed before the call: what an encoder makes of `grid_thw` by loops over its values.

transformers 5 lets a caller pass these tensors: a helper pops them from `kwargs` where they are given. Which ones they
are is read from forward's own statements, and their values come from running those statements on the real grid.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall, Named
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rewriting import function_tree

GRID = "grid_thw"
MEDIA = ("image", "video")


class PoppedNames(dict[str, Any]):
    """Keyword arguments that note which names are popped, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def pop(self, key: str, default: Any = None) -> Any:
        """Note the name, and return the default as if the argument were missing."""
        self.names.append(key)
        return default


def compute_geometry(encoder: Any, grid: Any) -> dict[str, Any]:
    """The tensors that the encoder's forward would make of `grid`, int (images, 3), by the keyword it takes them."""
    forward = inspect.unwrap(type(encoder).forward)
    scope: dict[str, Any] = {"self": encoder, GRID: grid}
    found: dict[str, Any] = {}
    for statement in _keyword_statements(forward):
        scope["kwargs"] = asked = PoppedNames()
        try:
            exec(compile(ast.Module([statement], []), "<geometry>", "exec"), forward.__globals__, scope)
        except NameError:
            continue  # it rests on what only a whole forward knows
        values = _targets(statement, scope)
        found.update(zip(asked.names, values, strict=False))
    return {name: value for name, value in found.items() if hasattr(value, "shape")}


def _keyword_statements(forward: Callable[..., Any]) -> list[ast.Assign]:
    """The assignments of forward's body that hand `kwargs` on to be popped from."""
    tree = function_tree(forward)
    return [node for node in tree.body if isinstance(node, ast.Assign) and _hands_kwargs_on(node)] if tree else []


def _hands_kwargs_on(statement: ast.Assign) -> bool:
    call = statement.value
    return isinstance(call, ast.Call) and any(
        keyword.arg == "kwargs" and isinstance(keyword.value, ast.Name) for keyword in call.keywords
    )


def _targets(statement: ast.Assign, scope: dict[str, Any]) -> list[Any]:
    target = statement.targets[0]
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    return [scope[name.id] for name in names if isinstance(name, ast.Name)]


def takes_grid(module: Any) -> bool:
    """Whether a module takes a grid, and tensors made of it in its place."""
    forward = type(module).forward
    return GRID in inspect.signature(inspect.unwrap(forward)).parameters and bool(
        _keyword_statements(inspect.unwrap(forward))
    )


def _plan(root: Any) -> dict[str, tuple[str, Any]]:
    """Prefix of the keywords -> the input that holds the grid, and the encoder that takes it."""
    if takes_grid(root):
        return {"": (GRID, root)}
    encoder = next((module for module in root.modules() if takes_grid(module)), None)
    parameters = inspect.signature(root.forward).parameters
    bundle = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if encoder is None or not bundle:
        return {}
    return {f"{kind}_": (f"{kind}_{GRID}", encoder) for kind in MEDIA if f"{kind}_{GRID}" in parameters}


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    plan = {prefix: found for prefix, found in _plan(call.module).items() if call.named.get(found[0]) is not None}
    if not plan:
        raise NotApplicable(f"no submodule is called with {GRID} and takes tensors computed from it")

    def compute(named: Named) -> dict[str, Any]:
        made = {prefix: compute_geometry(encoder, named[name]) for prefix, (name, encoder) in plan.items()}
        return {f"{prefix}{name}": value for prefix, values in made.items() for name, value in values.items()}

    yield call.with_inputs(compute)


SHIM = Shim(
    id="precompute-grid",
    title="Computes positions and windows of the image grid outside the model and passes them in",
    soundness="signature",
    enter=_enter,
    does=(
        "The encoder computes positions, segment boundaries and a window order from the patch grid, with "
        "Python loops over the grid's values. They are computed before the call and become inputs: "
        "`position_ids`, `cu_seqlens`, `window_index`, `cu_window_seqlens`, with the prefix `image_` or "
        "`video_` on a whole model."
    ),
    cures=(
        Cure(
            kinds=("data_dependent_value", "data_dependent_guard", "dynamic_dim_specialised", "unsupported_python"),
            where=r"get_vision_|vision_utils\.py|grid_thw.*tolist\(\)",
        ),
    ),
    needs={"torch": ">=2.8", "transformers": ">=5"},
    link="https://github.com/huggingface/transformers/pull/41992",
    retire="torch.export can trace get_vision_window_index with a dynamic grid",
    rank=10,
    replaces=(
        Replacement(
            target="the inputs of the program",
            before="encoder(pixel_values, grid_thw)\n",
            after=(
                "encoder(\n    pixel_values,\n    grid_thw,\n    position_ids=position_ids,\n"
                "    cu_seqlens=cu_seqlens,\n    window_index=window_index,\n"
                "    cu_window_seqlens=cu_window_seqlens,\n)\n"
            ),
        ),
    ),
)
