"""Symbolic sizes: the symbols that torch makes, the guards that it puts on them, and the inputs that they stand for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.torch_internals.hook import Hook

_MAKERS = ("create_unbacked_symint", "create_unbacked_symfloat", "create_unbacked_symbool")


@contextmanager
def after_each_new_symbol(note: Callable[[str], None]) -> Iterator[None]:
    """Within it, torch calls `note` with the name of each new unbacked symbol, from the frame that created it."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    def wrap(make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def make_and_note(env: Any, *args: Any, **kwargs: Any) -> Any:
            made = make(env, *args, **kwargs)
            for symbol in symbols_in(made):  # a SymBool is the expression Eq(u0, 1); the others are the symbol itself
                note(symbol)
            return made

        return make_and_note

    with ExitStack() as stack:
        for name in _MAKERS:
            if hasattr(ShapeEnv, name):
                stack.enter_context(patch_attribute(ShapeEnv, name, wrap(getattr(ShapeEnv, name))))
        yield


def _has_makers() -> bool:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return all(hasattr(ShapeEnv, name) for name in _MAKERS)


NEW_SYMBOLS = Hook(
    id="new-symbols",
    api=f"ShapeEnv.{{{', '.join(_MAKERS)}}}",
    used_for="the line where the symbol of a data-dependent failure was created",
    lost="findings do not say where their symbols were created, and cures are sought less precisely",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_makers,
)


def fill_in_sizes(env: Any, expression: Any) -> Any:
    """The expression with the example's number for each symbol of an input's size."""
    known = getattr(env, "backed_var_to_val", None) or env.var_to_val  # its name until 2.9
    return expression.xreplace({symbol: known[symbol] for symbol in expression.free_symbols if symbol in known})


_EXPRESSION = "orig_expr"


def expression_in(frame: FrameType) -> Any:
    """The symbolic expression that torch evaluates in this frame; None in any other frame."""
    code = frame.f_code
    if _EXPRESSION not in code.co_varnames or not code.co_filename.endswith("symbolic_shapes.py"):
        return None
    return frame.f_locals.get(_EXPRESSION)


def _has_evaluation() -> bool:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return _EXPRESSION in ShapeEnv._evaluate_expr.__code__.co_varnames


EVALUATION = Hook(
    id="symbolic-evaluation",
    api=f"the variable {_EXPRESSION} of ShapeEnv._evaluate_expr",
    used_for="the symbolic expression on which a slow export spends its time",
    lost="findings about slow exports do not quote the expression",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_evaluation,
)


def symbols_in(value: Any) -> tuple[str, ...]:
    """The names of the symbols in a SymInt, SymFloat or SymBool; none for any other value."""
    expression = getattr(getattr(value, "node", None), "expr", None)
    return tuple(map(str, getattr(expression, "free_symbols", ())))


def is_surely(condition: Any) -> bool:
    """Whether a condition on sizes is known to hold; asking adds no guard where data decides it."""
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return bool(guard_or_false(condition))


def is_always(condition: Any) -> bool:
    """Whether a condition on sizes holds for all of them, as far as torch knows; asking adds no guard."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(condition))


def same_sizes(one: Any, other: Any) -> bool:
    """Whether two tensors are known to have equal sizes; asking adds no guard on a size that depends on data."""
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    if one.dim() != other.dim():
        return False
    return all(guard_or_false(a == b) for a, b in zip(one.shape, other.shape, strict=True))


def same_strides(one: Any, other: Any) -> bool:
    """Whether two tensors of equal sizes are known to lie in memory in the same way; asking adds no guard."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return all(statically_known_true(a == b) for a, b in zip(one.stride(), other.stride(), strict=True))


def has_unbacked_size(tensor: Any) -> bool:
    """Whether a size of the tensor depends on data."""
    from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

    return bool(has_free_unbacked_symbols(tensor))


def count_assertions(value: Any) -> int:
    """How many conditions on sizes that depend on data the program will assert so far; `value` is a symbolic size, or a
    tensor of the trace."""
    holder = getattr(value, "node", None) or getattr(value, "fake_mode", None)
    env = getattr(holder, "shape_env", None)
    return getattr(env, "num_deferred_runtime_asserts", 0)


def may_get_guards(tensor: Any) -> bool:
    """Whether a question about the layout of this dense tensor may add a guard: a size or a stride has a symbol of the
    inputs' sizes. Where symbols depend on data alone, torch answers what it knows and adds none.
    """
    if not tensor._has_symbolic_sizes_strides:
        return False
    return not all(map(_depends_on_data_alone, (*tensor.shape, *tensor.stride(), tensor.storage_offset())))


def _depends_on_data_alone(size: Any) -> bool:
    """Whether it is a number, or all of its symbols depend on data."""
    if type(size) is int:
        return True
    expression, env = getattr(size.node, "expr", None), getattr(size.node, "shape_env", None)
    if expression is None or env is None:
        return False
    return all(map(env.is_unbacked_symint, expression.free_symbols))


def truth_of_nothing(value: Any) -> bool | None:
    """Of a condition that asks whether a size which depends on data is zero, its answer for zero; else None.

    A size by itself asks that, too: whether it is another number than zero.
    """
    import torch

    if not isinstance(value, torch.SymBool | torch.SymInt):
        return None
    expression, env = value.node.expr, value.node.shape_env
    symbols = list(getattr(expression, "free_symbols", ()))
    if len(symbols) != 1 or symbols[0] not in env.size_like:
        return None
    answers = [bool(expression.subs(symbols[0], size)) for size in (0, 1, 2, 3, 64)]
    return answers[0] if set(answers[1:]) == {not answers[0]} else None


def is_decided(value: Any) -> bool:
    """Whether a condition, or a number as one, is no symbol that hangs on data, or torch knows its answer."""
    import torch
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    if not isinstance(value, torch.SymBool | torch.SymInt):
        return True
    env = value.node.shape_env
    if not any(map(env.is_unbacked_symint, getattr(value.node.expr, "free_symbols", ()))):
        return True
    holds = value if isinstance(value, torch.SymBool) else value != 0
    return bool(guard_or_false(holds) or guard_or_false(torch.sym_not(holds)))  # type: ignore[no-untyped-call]


def _has_expressions() -> bool:
    from torch.fx.experimental.sym_node import SymNode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv, has_free_unbacked_symbols

    return hasattr(SymNode, "expr") and callable(has_free_unbacked_symbols) and hasattr(ShapeEnv(), "size_like")


EXPRESSIONS = Hook(
    id="symbolic-expressions",
    api="SymNode.expr, ShapeEnv.size_like, torch.fx.experimental.symbolic_shapes.has_free_unbacked_symbols",
    used_for="the symbols in a size, which lead from a failure to the value that it is about",
    lost="findings about data-dependent sizes have no slice of the graph",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_expressions,
)


def symbols_of_condition(errors: Iterable[BaseException]) -> frozenset[str]:
    """The symbols in the conditions that could not be decided (`GuardOnDataDependentSymNode.cond`)."""
    conditions = (getattr(error, "cond", None) for error in errors)
    return frozenset(str(symbol) for cond in conditions for symbol in getattr(cond, "free_symbols", ()))


def _has_condition() -> bool:
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    return hasattr(GuardOnDataDependentSymNode(None, "text"), "cond")


CONDITION = Hook(
    id="undecided-condition",
    api="GuardOnDataDependentSymNode.cond",
    used_for="the symbols that a data-dependent failure is about",
    lost="findings about data-dependent sizes have no symbols and no slice of the graph",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_condition,
)


@contextmanager
def before_each_guard(
    on_guard: Callable[[Any, Any], None], on_replacement: Callable[[Any, Any, Any], None]
) -> Iterator[None]:
    """Within it, `on_guard(env, expression)` and `on_replacement(env, symbol, target)` are called before torch acts."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    def log_guard(env: Any, prefix: str, expression: Any, *rest: Any, **kwargs: Any) -> Any:
        on_guard(env, expression)
        return before["_log_guard"](env, prefix, expression, *rest, **kwargs)

    def set_replacement(env: Any, symbol: Any, target: Any, *rest: Any, **kwargs: Any) -> Any:
        on_replacement(env, symbol, target)
        return before["_set_replacement"](env, symbol, target, *rest, **kwargs)

    ours: dict[str, Callable[..., Any]] = {"_log_guard": log_guard, "_set_replacement": set_replacement}
    before = {name: getattr(ShapeEnv, name) for name in ours if hasattr(ShapeEnv, name)}
    with ExitStack() as stack:
        for name, original in before.items():
            stack.enter_context(patch_attribute(ShapeEnv, name, functools.wraps(original)(ours[name])))
        yield


def _has_guards() -> bool:
    import inspect

    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    found = [list(inspect.signature(getattr(ShapeEnv, name)).parameters) for name in ("_log_guard", "_set_replacement")]
    return [len(names) >= 4 for names in found] == [True, True]


GUARDS = Hook(
    id="guards",
    api="ShapeEnv.{_log_guard, _set_replacement}",
    used_for="the line of the guard that a declared dynamic dimension violates",
    lost="findings about violated dynamic shapes do not say which line made the guard",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_guards,
)


def is_number_taken(frame: FrameType) -> bool:
    """Whether this frame makes a number of a symbolic size, which fixes it."""
    return frame.f_code.co_name == "guard_int" and frame.f_code.co_filename.endswith("sym_node.py")


def _has_guard_int() -> bool:
    from torch.fx.experimental.sym_node import SymNode

    code = getattr(getattr(SymNode, "guard_int", None), "__code__", None)
    return code is not None and bool(code.co_filename.endswith("sym_node.py"))


NUMBERS = Hook(
    id="numbers-of-sizes",
    api="torch.fx.experimental.sym_node.SymNode.guard_int",
    used_for="whether torch's own code fixes a size, below a call that could keep it symbolic",
    lost="findings about such sizes are told as limits of the model's code",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_guard_int,
)


def sources_by_symbol(env: Any) -> dict[Any, tuple[str, ...]]:
    """Each backed symbol with the inputs that it is the size of, as `L['x'].size()[0]`."""
    return {
        # a method in torch 2.8, a property later
        symbol: tuple(one.name() if callable(one.name) else one.name for one in sources)
        for symbol, sources in getattr(env, "var_to_sources", {}).items()
    }


def dim_names_by_source(env: Any) -> dict[str, str]:
    """The names of `Dim`s by the input size that they were declared for."""
    names: dict[str, str] = getattr(env, "source_name_to_debug_name", {})
    return names


def _has_sources() -> bool:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    env = ShapeEnv()
    return hasattr(env, "var_to_sources") and hasattr(env, "source_name_to_debug_name")


SOURCES = Hook(
    id="symbol-sources",
    api="ShapeEnv.{var_to_sources, source_name_to_debug_name}",
    used_for="which input's size a symbol stands for",
    lost="findings about violated dynamic shapes do not say which line made the guard",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_sources,
)


class UnknownSize:
    """One size of at least two that nothing is known of, and fake tensors that have it; `mode` is their mode."""

    _HINT = 31

    def __init__(self) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        self._env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self._env, allow_non_fake_inputs=True)

    def make(self, shape: Sequence[int | None], dtype: Any) -> Any:
        """A fake tensor of that shape, in which None is the unknown size."""
        import torch
        from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

        kinds = [DimDynamic.DUCK if size is None else DimDynamic.STATIC for size in shape]
        tensor = torch.empty([self._HINT if size is None else size for size in shape], dtype=dtype)
        return self.mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(dynamic_sizes=kinds))

    def is_asked_for(self) -> bool:
        """Whether something was decided by it: it was compared, or taken as a number."""
        return bool(self._env.guards or self._env.replacements)


def is_symbolic(value: Any) -> bool:
    """Whether it is a number that is not known while torch traces."""
    import torch

    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def example_size(size: Any) -> int:
    """A size as a number, without a guard: that of the example where it is symbolic, one where that has none."""
    hint = size.node.hint if is_symbolic(size) else size
    return 1 if hint is None else int(hint)


def _has_unknown_sizes() -> bool:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    env = ShapeEnv()
    return (
        hasattr(env, "guards")
        and hasattr(env, "replacements")
        and hasattr(DimDynamic, "DUCK")
        and callable(StatelessSymbolicContext)
        and hasattr(FakeTensorMode, "from_tensor")
    )


UNKNOWN_SIZES = Hook(
    id="unknown-sizes",
    api="ShapeEnv.{guards, replacements}, torch.fx.experimental.symbolic_shapes.{StatelessSymbolicContext, DimDynamic}",
    used_for="whether a user's attention function does the same for any number of rows",
    lost="the shim block-diagonal-attention is applied to attention functions of torch and transformers alone",
    seen_on=("2.13.0", "2.14.1", "2.15.0"),
    is_there=_has_unknown_sizes,
)

HOOKS = (NEW_SYMBOLS, EVALUATION, EXPRESSIONS, CONDITION, GUARDS, NUMBERS, SOURCES, UNKNOWN_SIZES)
