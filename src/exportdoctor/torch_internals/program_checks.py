"""What an exported program asks of the sizes of its inputs: symbols in their shapes, ranges, compiled guards, and
assertions in its graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.torch_internals.hook import Hook

Shape = tuple[Any, ...]
"""Of each dimension a whole number, or the sympy expression of a symbolic size."""

ASSERTION = re.compile(r"Runtime assertion failed for expression (.+?)(?: on node .*)?$")
"""What torch raises where an assertion does not hold; the group is what it asks."""


def input_shapes(program: Any) -> list[Shape | Any]:
    """For each input of the user's, in the traced order: its shape; an int's own expression, None for others."""
    from torch.export.graph_signature import ConstantArgument, InputKind

    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    found: list[Shape | Any] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind != InputKind.USER_INPUT:
            continue
        value: Any = None if isinstance(spec.arg, ConstantArgument) else values.get(spec.arg.name)
        found.append(tuple(map(_expression, value.shape)) if hasattr(value, "shape") else _expression(value))
    return found


def user_input_names(program: Any) -> set[str]:
    """The placeholders of the user's inputs, those of constants included."""
    from torch.export.graph_signature import InputKind

    specs = program.graph_signature.input_specs
    return {str(spec.arg.name) for spec in specs if spec.kind == InputKind.USER_INPUT}


def _expression(size: Any) -> Any:
    expression = getattr(getattr(size, "node", None), "expr", size)
    return int(expression) if getattr(expression, "is_Integer", False) else expression


def size_ranges(program: Any) -> dict[Any, tuple[int, int | None]]:
    """Each symbol with its smallest and largest value; None where there is no largest.

    torch checks no lower bound of two or less: it stands for the sizes zero and one that tracing told apart.
    """
    found = {}
    for symbol, one in program.range_constraints.items():
        lower = int(one.lower) if one.lower.is_Integer and int(one.lower) > 2 else 0
        found[symbol] = (lower, int(one.upper) if one.upper.is_Integer else None)
    return found


def guards_of(module: Any) -> Callable[..., Any] | None:
    """What `ExportedProgram.module()` calls with its flat inputs first; raises AssertionError where a guard fails."""
    return getattr(module, "_guards_fn", None)


def guard_texts(guards: Callable[..., Any], leaves: Sequence[Any]) -> list[str]:
    """What each guard asks of flat inputs, in torch's words; for one that itself raises the exception's name."""
    return [text for text, _ in _ask_guards(guards, leaves)]


def violated_guards(guards: Callable[..., Any], leaves: Sequence[Any]) -> list[str]:
    """Those that these inputs violate."""
    return [text for text, holds in _ask_guards(guards, leaves) if not holds]


def _ask_guards(guards: Callable[..., Any], leaves: Sequence[Any]) -> list[tuple[str, bool]]:
    import torch

    found: list[tuple[str, bool]] = []

    def note(holds: Any, message: str) -> None:
        found.append((message.removeprefix("Guard failed: "), bool(holds)))

    with patch_attribute(torch, "_assert", note):
        try:
            guards(*leaves)
        except Exception as error:  # it divides by zero, say: those that come after it were not asked
            found.append((type(error).__name__, False))
    return found


def assertions_of(program: Any) -> list[Any]:
    """The nodes that assert something about numbers, of sizes or of values."""
    return [node for node in program.graph.nodes if assertion_message(node)]


def assertion_message(node: Any) -> str:
    """What a node raises where what it asserts does not hold; empty for one that asserts nothing."""
    if node.op == "call_function" and "_assert_scalar" in str(node.target) and len(node.args) > 1:
        return str(node.args[1])
    return ""


def asserted_text(node: Any) -> str:
    """What an assertion asks, in torch's words; empty for any other node."""
    message = assertion_message(node)
    text = ASSERTION.search(message)
    return text[1] if text else message


def size_assertions(program: Any) -> list[Any]:
    """The assertions that follow from the sizes of the user's inputs alone, after the inputs and the nodes that compute
    what they ask, in the order of the graph; empty where there are none."""
    user = user_input_names(program)
    found: dict[Any, None] = {}
    for node in program.graph.nodes:
        is_input = node.op == "placeholder" and node.name in user
        computes = node.op == "call_function" and (assertion_message(node) or _is_about_sizes(node))
        if is_input or (computes and node.all_input_nodes and all(one in found for one in node.all_input_nodes)):
            found[node] = None
    needed = {node for node in found if assertion_message(node)}
    for node in reversed(found):
        needed.update(node.all_input_nodes if node in needed else ())
    return [node for node in found if node in needed or node.op == "placeholder"] if needed else []


def violated_assertions(nodes: Sequence[Any], leaves: Sequence[Any]) -> Iterator[Any]:
    """Those among the nodes of `size_assertions` that do not hold for flat inputs. Nothing of the program runs but what
    computes with sizes."""
    from torch.fx.node import map_arg

    known: dict[Any, Any] = {}
    given = iter(leaves)
    for node in nodes:
        if node.op == "placeholder":
            known[node] = next(given, None)
        elif assertion_message(node):
            if node.args[0] in known and not known[node.args[0]]:
                yield node
        elif all(one in known for one in node.all_input_nodes):
            try:
                args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
                known[node] = node.target(*args, **kwargs)
            except Exception:  # a division by zero, say
                continue


def _is_about_sizes(node: Any) -> bool:
    target = node.target
    name = str(target)
    return "sym_size" in name or getattr(target, "__module__", "") in ("_operator", "builtins", "math") or (
        getattr(target, "__module__", "") == "torch" and getattr(target, "__name__", "").startswith("sym_")
    )  # fmt: skip


def _has_guards() -> bool:
    from torch.export import _unlift

    return hasattr(_unlift, "GuardsFn")


GUARDS_OF_PROGRAM = Hook(
    id="program-guards",
    api="torch.export._unlift.GuardsFn, ExportedProgram.module()._guards_fn",
    used_for="the sizes that an exported program refuses, without running it",
    lost="`domain` tells the sizes that guards refuse only where it tries them",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_guards,
)

HOOKS = (GUARDS_OF_PROGRAM,)
