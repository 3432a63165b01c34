"""Calls `torch.export.export` with the options of an export call, and gives bundled keywords of a forward names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from exportdoctor.core.exception_text import text_of
from exportdoctor.core.failure.messages import suggested_fixes
from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.shims.export_call import ExportCall, map_dims, shapes_by_name
from exportdoctor.targets.held_state import restore_held_state
from exportdoctor.torch_internals.trees import tree_leaves

_SIZE = re.compile(r"L\['(?P<name>\w+)'\]\.size\(\)\[(?P<place>\d+)\] = (?P<expression>.+)")
_LONGEST_PROPOSAL = 1_000_000
"""Characters of a message that may propose dynamic shapes: it does so at its end."""
_ROUNDS = 4
"""One fix can bring the next to light; torch.onnx stops after one."""


def export_program(call: ExportCall) -> Any:
    """The `ExportedProgram` of this call. Raises what torch raises.

    What forward leaves on modules while it is traced, such as a cache of a fake tensor, is taken off them.
    """
    if call.options.suggested_fixes == "none" and not call.made:
        return _export(call)
    for _ in range(_ROUNDS):
        try:
            return _export(call)
        except Exception as error:
            message = text_of(error, _LONGEST_PROPOSAL)
            refined = _relate_made_inputs(call, message) or _refine_shapes(call, message)
            if refined is None:
                raise
            call = refined
    return _export(call)


def _export(call: ExportCall) -> Any:
    import torch

    options = call.options
    newer: dict[str, Any] = {}  # what torch 2.8 does not take
    if options.prefer_deferred_runtime_asserts_over_guards:
        newer["prefer_deferred_runtime_asserts_over_guards"] = True
    with ExitStack() as stack:
        if options.flat_forward:
            call = stack.enter_context(flat_forward(call))
        stack.enter_context(restore_held_state(call.module))
        program = torch.export.export(
            call.module,
            call.args,
            call.kwargs,
            dynamic_shapes=call.dynamic_shapes,
            strict=options.strict,
            **newer,
        )
    for change in call.passes:
        program = change(program)
    for check in call.checks:
        check(program)
    return program


@contextmanager
def flat_forward(call: ExportCall) -> Iterator[ExportCall]:
    """Within it, every keyword of the call is a parameter of forward, and the dynamic shapes are by name.

    torch 2.13 matches dynamic shapes once with the keywords bundled as in the signature and once spelled out; no spec
    fits both. The class's forward is looked up at each call, so that changes of the class still take effect.
    """
    module = call.module
    own, signature = vars(module).get("forward"), inspect.signature(module.forward)
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        yield call
        return

    def forward(*args: Any, **kwargs: Any) -> Any:
        return type(module).forward(module, *args, **kwargs) if own is None else own(*args, **kwargs)

    forward.__signature__ = spell_out(signature, bundled_keywords(signature, call.args, call.kwargs))  # type: ignore[attr-defined]
    shapes = shapes_by_name(call)
    with patch_attribute(module, "forward", forward):
        yield replace(call, dynamic_shapes=shapes)


def bundled_keywords(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
    """The names of the arguments that this call passes in `**kwargs`; none where the call does not fit."""
    bundle = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
    try:
        return tuple(signature.bind(*args, **kwargs).arguments.get(bundle, {})) if bundle is not None else ()
    except TypeError:
        return ()


def spell_out(signature: inspect.Signature, names: tuple[str, ...]) -> inspect.Signature:
    """The signature with keyword-only parameters of these names in place of `**kwargs`."""
    plain = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    named = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    return signature.replace(parameters=[*plain, *named])


def _relate_made_inputs(call: ExportCall, message: str) -> ExportCall | None:
    """The call in which sizes of inputs that shims make follow from named ones as torch says that they must.

    Their conversion computes them from the others, so the relation holds for whatever the caller passes.
    """
    import sympy  # type: ignore[import-untyped]

    if not isinstance(call.dynamic_shapes, dict):
        return None
    named = {dim.__name__: dim for dim in tree_leaves(call.dynamic_shapes) if hasattr(dim, "__name__")}
    changed = dict(call.dynamic_shapes)
    for line in suggested_fixes(message):
        size = _SIZE.match(line)
        if size is None or size["name"] not in call.made or not isinstance(changed.get(size["name"]), dict):
            continue
        expression = sympy.sympify(size["expression"])
        root = next((symbol for symbol in expression.free_symbols if symbol.name in named), None)
        if root is not None and expression.is_polynomial(root):
            factor, rest = sympy.div(expression, root)
            if factor.is_Integer and rest.is_Integer:
                dim = named[root.name] if factor == 1 else int(factor) * named[root.name]
                dims = {int(size["place"]): dim + int(rest) if rest else dim}
                changed[size["name"]] = {**changed[size["name"]], **dims}
    return None if changed == call.dynamic_shapes else replace(call, dynamic_shapes=changed)


def _refine_shapes(call: ExportCall, message: str) -> ExportCall | None:
    """The call with the dynamic shapes that torch suggests, or `None` where it suggests none that may be taken."""
    from torch.export import Dim
    from torch.export.dynamic_shapes import refine_dynamic_shapes_from_suggested_fixes

    if call.options.suggested_fixes == "none":
        return None
    lines = suggested_fixes(message)
    if call.options.suggested_fixes == "relations":
        lines = [line for line in lines if not line.partition(" = ")[2].strip().isdigit()]
    given = call.dynamic_shapes
    if not lines or not isinstance(given, dict | tuple | list):
        return None
    hints: dict[str, Any] = {}

    def with_name(dim: Any) -> Any:
        """A stand-in for a hint, such as Dim.AUTO, which torch does not refine."""
        if hasattr(dim, "__name__"):
            return dim
        stand_in = Dim(f"_exportdoctor_hint_{len(hints)}")
        hints[stand_in.__name__] = dim
        return stand_in

    try:
        named = map_dims(given, with_name)
        refined = refine_dynamic_shapes_from_suggested_fixes("\n".join(["Suggested fixes:", *lines]), named)
    except Exception:
        return None  # a proposal that torch itself cannot read, such as one about a hint
    shapes: Any = map_dims(refined, lambda dim: hints.get(dim.__name__, dim))
    return None if shapes == given else replace(call, dynamic_shapes=shapes)
