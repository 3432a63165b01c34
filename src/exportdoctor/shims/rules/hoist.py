"""What a function computes from whole numbers and the configuration alone becomes an input of the program.

The function is given by the failure; what is hoisted is the outermost call around it whose results are clean, in a
forward on each input set of the export call. Its results are computed before the call, by the function itself where all
its arguments are inputs or constants, else by running the untouched module up to there.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall, Inputs, Named, named_inputs
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.rules.clean_calls import CallRecord, record_calls
from exportdoctor.shims.rules.code_swap import compile_for, definition_of, function_of, swap_code
from exportdoctor.targets.eager import restore_afterwards
from exportdoctor.torch_internals.trees import tree_flatten, tree_unflatten

_NAME = re.compile(r"__\d+_\d+$")
"""The end of the names of inputs that are made here."""

_NUMBERS = itertools.count()
_PLAIN = (int, float, bool, str, type(None))
_NUMBERS_OR_NONE = (int, float, bool, type(None))


class _Recorded(BaseException):
    """All that was wanted of a forward is known."""


@dataclass(frozen=True, kw_only=True)
class HoistedCall:
    """A call of `function`, the `number`th that is not inside another hoisted one.

    `leaves` says what each leaf of its result is: `tensor`, `size` (a whole number, which becomes the size of a tensor
    without elements), `list` (of whole numbers), `fixed` (another number, which the program asserts) or `none`. It
    follows from one result, so that a conversion of other inputs makes the same inputs. `arguments` says where each
    argument comes from, where all are known: the name of an input, or a value in a tuple of one.
    """

    function: FunctionType
    number: int
    layout: Any
    leaves: tuple[str, ...]
    example: tuple[Any, ...]
    arguments: Mapping[str, str | tuple[Any]] | None

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs that its result makes, by leaf; empty for one that makes none."""
        stem = re.sub(r"\W+", "_", self.function.__name__).strip("_")
        return tuple(
            "" if kind == "none" else f"{stem}__{self.number}_{place}" for place, kind in enumerate(self.leaves)
        )

    def as_inputs(self, result: Any) -> dict[str, Any]:
        """A result as inputs of the program. Raises ValueError where it differs in what was taken as constant."""
        import torch

        leaves, layout = _flatten(result)
        if layout != self.layout:
            raise ValueError(f"{self.function.__qualname__} gives results of another structure than at the export")
        made = {}
        for name, kind, leaf in zip(self.names, self.leaves, leaves, strict=True):
            if kind != _kind(leaf):
                raise ValueError(
                    f"{self.function.__qualname__} gives {leaf!r:.40} where it gave a {kind} at the export"
                )
            if kind == "size":
                made[name] = torch.empty(leaf + 2, 0)  # torch fixes sizes of zero and one
            elif kind != "none":
                made[name] = leaf if kind == "tensor" else torch.tensor(leaf)
        return made

    def as_result(self, inputs: Named) -> Any:
        """The inputs as the result, while the program is traced."""
        import torch

        leaves = []
        for name, kind, example in zip(self.names, self.leaves, self.example, strict=True):
            value = inputs[name] if name else None
            if kind == "fixed":
                torch.ops.aten._assert_async.msg((value == example).all(), f"{name} is not {example}")
            leaves.append(
                example if kind == "fixed" else value.shape[0] - 2 if value is not None and kind == "size" else value
            )
        return tree_unflatten(leaves, self.layout)


def _flatten(result: Any) -> tuple[list[Any], Any]:
    """The leaves; a list of whole numbers is one, since its length may differ."""
    return tree_flatten(result, is_leaf=_is_number_list)


def _is_number_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


# --- which calls


def find_hoisted_calls(call: ExportCall, name: str) -> tuple[HoistedCall, ...]:
    """The clean calls around the calls of the function of that qualified name.

    Without a name: around all code that reads values, those whose arguments are known, if there are such. Raises
    NotApplicable where there is none.
    """
    inputs = [(call.args, call.kwargs), *call.more_inputs]
    runs = [record_calls(call.module, one) for one in inputs]
    chosen = [_choose(records, given, name, call) for records, given in runs]
    if not chosen[0]:
        what = f"no call around {name}" if name else "no call that reads values"
        raise NotApplicable(f"{what} computes only from whole numbers and the configuration")
    keys = [[(function, number) for function, number, _ in one] for one in chosen]
    if any(other != keys[0] for other in keys):
        raise NotApplicable("the calls come in another order for other inputs")
    found = []
    for place, (function, number, _) in enumerate(chosen[0]):
        found.append(_describe(function, number, [one[place][2] for one in chosen], [given for _, given in runs], call))
    return tuple(found)


def _choose(
    records: Sequence[CallRecord], given: Inputs, name: str, call: ExportCall
) -> list[tuple[FunctionType, int, CallRecord]]:
    """For each call that is looked for, the outermost one around it that can be hoisted; known arguments come first."""
    classes = _classes(call)
    known: dict[int, tuple[FunctionType, CallRecord]] = {}
    found: dict[int, tuple[FunctionType, CallRecord]] = {}
    for record in records:
        if record.frame.f_code.co_qualname != name if name else not record.asks:
            continue
        around = [one for one in _calls_around(records, record) if one.parent != -1 and one.clean and _has_value(one)]
        functions = [(function, one) for one in around if (function := function_of(one.frame, classes)) is not None]
        direct = [pair for pair in functions if _sources(pair[1], given, call) is not None]
        known.update({pair[1].place: pair for pair in direct[-1:]})
        found.update({pair[1].place: pair for pair in (direct or functions)[-1:]})
    found = found if name else known or found
    return _number_calls(records, found)


def _number_calls(
    records: Sequence[CallRecord], found: Mapping[int, tuple[FunctionType, CallRecord]]
) -> list[tuple[FunctionType, int, CallRecord]]:
    """Those that are in no other, in order, each with its number among the calls of its function outside of others."""
    outer = {place for place, (_, one) in found.items() if not _is_inside(records, one, found.keys() - {place})}
    functions = {found[place][1].frame.f_code: found[place][0] for place in outer}
    numbers: dict[FunctionType, Iterator[int]] = {}
    result = []
    for record in records:
        function = functions.get(record.frame.f_code)
        if function is not None and not _is_inside(records, record, outer - {record.place}):
            number = next(numbers.setdefault(function, itertools.count()))
            if record.place in outer:
                result.append((function, number, record))
    return result


def _classes(call: ExportCall) -> list[type[Any]]:
    return list(dict.fromkeys(kind for module in call.module.modules() for kind in type(module).__mro__))


def _calls_around(records: Sequence[CallRecord], record: CallRecord) -> Iterator[CallRecord]:
    """The call and those around it, outwards."""
    while True:
        yield record
        if record.parent == -1:
            return
        record = records[record.parent]


def _is_inside(records: Sequence[CallRecord], record: CallRecord, places: Any) -> bool:
    return any(one.place in places for one in _calls_around(records, record))


def _has_value(record: CallRecord) -> bool:
    """Whether its result has tensors or numbers, and nothing but them and plain values."""
    import torch

    leaves, _ = _flatten(record.result)
    known = all(
        isinstance(leaf, torch.Tensor) or type(leaf) in _NUMBERS_OR_NONE or _is_number_list(leaf) for leaf in leaves
    )
    return known and any(
        isinstance(leaf, torch.Tensor) or _is_number_list(leaf) or type(leaf) is int for leaf in leaves
    )


def _describe(
    function: FunctionType, number: int, records: Sequence[CallRecord], given: Sequence[Inputs], call: ExportCall
) -> HoistedCall:
    flat = [_flatten(record.result) for record in records]
    leaves, layout = flat[0]
    if any(other != layout for _, other in flat):
        raise NotApplicable(f"{function.__qualname__} gives results of other structure for other inputs")
    kinds = tuple(map(_kind, leaves))
    for place, kind in enumerate(kinds):
        if any(_kind(other[place]) != kind or (kind == "fixed" and other[place] != leaves[place]) for other, _ in flat):
            raise NotApplicable(f"a {kind} value of {function.__qualname__} differs between inputs")
    sources = [_sources(record, one, call) for record, one in zip(records, given, strict=True)]
    same = all(source is not None and _alike(source, sources[0]) for source in sources)
    example = tuple(leaf if kind == "fixed" else None for leaf, kind in zip(leaves, kinds, strict=True))
    return HoistedCall(
        function=function, number=number, layout=layout, leaves=kinds, example=example,
        arguments=sources[0] if same else None,
    )  # fmt: skip


def _kind(leaf: Any) -> str:
    import torch

    if isinstance(leaf, torch.Tensor):
        return "tensor"
    if _is_number_list(leaf):
        return "list"
    if leaf is None:
        return "none"
    return "size" if type(leaf) is int and leaf >= 0 else "fixed"


def _sources(record: CallRecord, given: Inputs, call: ExportCall) -> dict[str, Any] | None:
    """Where each argument comes from; `None` where one is neither an input, nor a module, nor a plain value."""
    import torch

    named = named_inputs(inspect.signature(call.module.forward), given)
    modules = list(call.module.modules())
    found: dict[str, Any] = {}
    for name, value in record.arguments.items():
        source = next((key for key, one in named.items() if one is value and isinstance(one, torch.Tensor)), None)
        if source is not None:
            found[name] = source
        elif isinstance(value, _PLAIN) or any(value is module for module in modules) or _is_setting(value):
            found[name] = (value,)
        else:
            return None
    return found


def _is_setting(value: Any) -> bool:
    """A value that says how to compute, and holds no tensor."""
    import torch

    return (
        isinstance(value, torch.dtype | torch.device | type)
        or value in ((), {})
        or type(value).__name__.endswith("Config")
    )


def _alike(one: Mapping[str, Any], other: Any) -> bool:
    return other is not None and one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        left, right = one[0], other[0]
        return left is right or (type(left) is type(right) and _is_comparable(left) and bool(left == right))
    return isinstance(one, str) and isinstance(other, str) and one == other


def _is_comparable(value: Any) -> bool:
    return isinstance(value, _PLAIN) or _is_setting(value)


# --- what stands in their place


@contextmanager
def _stand_in(
    calls: Sequence[HoistedCall], answer: Callable[[HoistedCall, Callable[[], Any]], Any]
) -> Iterator[Callable[[], None]]:
    """Within it `answer` gives the result of the hoisted calls; yields what starts the count anew.

    Calls inside a hoisted one are not counted, since the program does not make them.
    """
    changes: dict[FunctionType, Any] = {}
    names: dict[str, Any] = {}
    depth = [0]
    for function in dict.fromkeys(one.function for one in calls):
        wanted = {one.number: one for one in calls if one.function is function}
        name = f"_hoisted_{next(_NUMBERS)}"
        node = _delegate(function, name)
        code = compile_for(function, node) if node is not None else None
        if code is None:
            raise NotApplicable(f"{function.__qualname__} has no source that can be replaced")
        original = _copy_of(function)
        names[name] = _count_calls(wanted, original, answer, depth)
        changes[function] = code

    def start() -> None:
        for one in names.values():
            one.count = 0
        depth[0] = 0

    with swap_code(changes, names):
        yield start


def _count_calls(wanted: Mapping[int, HoistedCall], original: FunctionType, answer: Any, depth: list[int]) -> Any:
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        if depth[0]:
            return original(*args, **kwargs)
        number = stand_in.count  # type: ignore[attr-defined]
        stand_in.count += 1  # type: ignore[attr-defined]
        if number not in wanted:
            return original(*args, **kwargs)

        def compute() -> Any:
            depth[0] += 1
            try:
                return original(*args, **kwargs)
            finally:
                depth[0] -= 1

        return answer(wanted[number], compute)

    stand_in.count = 0  # type: ignore[attr-defined]
    return stand_in


def _copy_of(function: FunctionType) -> FunctionType:
    """The function as it is now, whatever code it gets later."""
    made = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _delegate(function: FunctionType, name: str) -> ast.FunctionDef | None:
    """The definition with a body that hands its arguments on to the global `name`."""
    node = definition_of(function)
    if node is None:
        return None
    given = node.args
    args: list[ast.expr] = [ast.Name(one.arg, ast.Load()) for one in (*given.posonlyargs, *given.args)]
    args += [ast.Starred(ast.Name(given.vararg.arg, ast.Load()), ast.Load())] if given.vararg else []
    keywords = [ast.keyword(one.arg, ast.Name(one.arg, ast.Load())) for one in given.kwonlyargs]
    keywords += [ast.keyword(None, ast.Name(given.kwarg.arg, ast.Load()))] if given.kwarg else []
    closed = ast.Tuple([ast.Name(one, ast.Load()) for one in function.__code__.co_freevars], ast.Load())
    node.body = [
        ast.If(ast.Constant(False), [ast.Expr(closed)], []),  # so that it closes over the same names
        ast.Return(ast.Call(ast.Name(name, ast.Load()), args, keywords)),
    ]
    return node


# --- the conversion function


def compute_inputs(module: Any, calls: Sequence[HoistedCall], named: Named) -> dict[str, Any]:
    """What the hoisted calls give for these inputs of the untouched module, by the names of the program's inputs."""
    import torch

    found: dict[str, Any] = {}
    with torch.no_grad():
        if all(one.arguments is not None for one in calls):
            for one in calls:
                found.update(one.as_inputs(_call_directly(one, named)))
            return found
        results = _run_up_to(module, calls, {name: value for name, value in named.items() if not _NAME.search(name)})
    for one in calls:
        if id(one) not in results:
            raise ValueError(f"{one.function.__qualname__} is not called for these inputs")
        found.update(one.as_inputs(results[id(one)]))
    return found


def _call_directly(one: HoistedCall, named: Named) -> Any:
    assert one.arguments is not None
    values = {name: named[source] if isinstance(source, str) else source[0] for name, source in one.arguments.items()}
    args, kwargs = [], {}
    for name, parameter in inspect.signature(one.function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            kwargs.update(values.get(name, {}))
        elif parameter.kind is parameter.VAR_POSITIONAL:
            args += values.get(name, ())
        elif parameter.kind is parameter.KEYWORD_ONLY:
            kwargs[name] = values[name]
        else:
            args.append(values[name])
    return one.function(*args, **kwargs)


def _run_up_to(module: Any, calls: Sequence[HoistedCall], named: Named) -> dict[int, Any]:
    """The results of the hoisted calls in a forward that ends with the last of them."""
    results: dict[int, Any] = {}

    def note(one: HoistedCall, compute: Callable[[], Any]) -> Any:
        results[id(one)] = compute()
        if len(results) == len(calls):
            raise _Recorded
        return results[id(one)]

    with _stand_in(calls, note), restore_afterwards(module):
        try:
            module(**copy.deepcopy(dict(named)))
        except _Recorded:
            pass
    return results


# --- the shim


def _tensors_stay() -> Any:
    """Within it `torch.tensor` of a tensor, which stands for a list, is that tensor."""
    import torch
    from torch.overrides import TorchFunctionMode

    class TensorsStay(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in (torch.tensor, torch.as_tensor) and args and isinstance(args[0], torch.Tensor):
                return args[0].to(**(kwargs or {}))
            return func(*args, **(kwargs or {}))

    return TensorsStay()


def _with_more_inputs(
    forward: Callable[..., Any], root: Any, names: Sequence[str], given: dict[str, Any], start: Callable[[], None]
) -> Callable[..., Any]:
    """The root's forward with more inputs, which it puts into `given`."""

    @functools.wraps(forward)
    def forward_taking(self: Any, *args: Any, **kwargs: Any) -> Any:
        taken = {name: kwargs.pop(name) for name in names if name in kwargs}
        if self is not root or not taken:
            return forward(self, *args, **kwargs)
        start()
        given.update(taken)
        try:
            with _tensors_stay():
                return forward(self, *args, **kwargs)
        finally:
            given.clear()

    signature = inspect.signature(forward)
    known = list(signature.parameters.values())
    last = [parameter for parameter in known if parameter.kind is parameter.VAR_KEYWORD]
    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in names]
    forward_taking.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*(one for one in known if one not in last), *more, *last]
    )
    return forward_taking


def _hoist(name: str) -> Any:
    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        calls = find_hoisted_calls(call, name)
        module, kind, flat = call.module, type(call.module), call.options.flat_forward
        given: dict[str, Any] = {}

        def answer(one: HoistedCall, compute: Callable[[], Any]) -> Any:
            return one.as_result(given) if given else compute()

        changed = call.with_inputs(lambda named: compute_inputs(module, calls, named))
        names = [one for made in calls for one in made.names if one]
        with _stand_in(calls, answer) as start:
            forward = _with_more_inputs(kind.forward, module, names, given, start)
            with patch_attribute(kind, "forward", forward):
                bundled = changed.kwargs.keys() - inspect.signature(module.forward).parameters.keys()
                yield changed.with_options(flat_forward=flat or bool(bundled))

    return enter


def of_function(name: str) -> Shim:
    """The shim that hoists what is computed around calls of the function of that qualified name."""
    return replace(
        SHIM,
        id=f"hoist:{name}",
        title=f"Computes what {name} makes of whole numbers outside the model and passes it in",
        enter=_hoist(name),
        rank=25,
    )


SHIM = Shim(
    id="hoist",
    title="Computes what follows from whole numbers alone outside the model and passes it in",
    soundness="signature",
    enter=_hoist(""),
    does=(
        "Grids, lengths, masks, positions and orders that follow from whole-number inputs and the configuration alone "
        "are found by following values through a forward. The outermost calls that read such values and compute from "
        "nothing else are made before the export, and their results become inputs of the program. `hoist:FUNCTION` "
        "does so for the calls around one function, also where their arguments come from the forward."
    ),
    cures=(
        Cure(
            kinds=(
                "data_dependent_value", "data_dependent_guard", "dynamic_dim_specialised", "unsupported_python",
                "attribute_mutation", "python_error",
            )
        ),
    ),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#data-and-shape-dependent-control-flow",
    retire="torch.export traces loops over the values of inputs",
    rank=18,
    replaces=(
        Replacement(
            target="the inputs of the program",
            before="encoder(hidden_states, grid_thw)\n",
            after=(
                "encoder(\n    hidden_states,\n    grid_thw,\n"
                "    get_window_index__0_0=get_window_index(grid_thw, ...)[0],\n)\n"
            ),
        ),
    ),
)  # fmt: skip
