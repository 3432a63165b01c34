"""Watches an arm of a branch while it runs: what it may refuse, what it writes into, and whose code it calls."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import zip_longest
from types import CodeType, FrameType, ModuleType
from typing import Any

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.shims.rules.branches.arm_writes import is_copy
from exportdoctor.shims.rules.branches.found_places import FoundPlaces
from exportdoctor.shims.rules.code.code_swap import definition_of, function_of
from exportdoctor.shims.rules.code.pure_callees import init_wrappers_of_model_output, method_of_model_output
from exportdoctor.shims.rules.code.pure_code import Purity
from exportdoctor.targets.eager import hold_storage_id, storage_id
from exportdoctor.targets.held_state import attributes_of
from exportdoctor.torch_internals.pytree_registry import flatten_once, node_kind
from exportdoctor.torch_internals.shape_env import has_unbacked_size, same_strides
from exportdoctor.torch_internals.tracing_modes import outside_function_modes
from exportdoctor.torch_internals.trees import tree_flatten

_REFUSES = frozenset({
    "argwhere", "bincount", "cholesky", "cross_entropy", "eigh", "embedding", "embedding_bag", "gather", "index_add",
    "index_copy", "index_fill", "index_put", "index_reduce", "index_select", "inv", "inverse", "lstsq", "lu_factor",
    "masked_scatter", "masked_select", "nll_loss", "nonzero", "one_hot", "pinverse", "put", "repeat_interleave",
    "scatter", "scatter_add", "scatter_reduce", "solve", "take", "take_along_dim", "unique", "unique_consecutive",
})  # fmt: skip
_DIVIDES = frozenset({
    "div", "divide", "floor_divide", "remainder", "fmod", "__floordiv__", "__rfloordiv__", "__ifloordiv__", "__mod__",
    "__rmod__", "__imod__",
})  # fmt: skip
"""Functions that may refuse values: places out of range, singular matrices, nothing found; whole numbers by zero."""
_REFUSES_NOTHING = frozenset({
    "amax", "amin", "aminmax", "argmax", "argmin", "kthvalue", "max", "median", "min", "mode", "nanmedian",
    "nanquantile", "quantile", "select", "topk",
})  # fmt: skip
"""Functions that may refuse a tensor without elements."""
_WRITES = frozenset({
    "__setitem__", "__iadd__", "__iand__", "__idiv__", "__ifloordiv__", "__ilshift__", "__imod__", "__imul__",
    "__ior__", "__ipow__", "__irshift__", "__isub__", "__itruediv__", "__ixor__",
})  # fmt: skip
_CHANGES = frozenset({"add", "put", "resize", "sort", "subtract"})
_READ_ATTRIBUTES = frozenset({"__getattr__", "__getattribute__"})
"""What gives an attribute is taken to do nothing else."""


class Unmergeable(Exception):
    """The results of two arms cannot be chosen between by `torch.where`."""


class RefusesNothing(Exception):
    """An arm calls what may refuse a tensor of which only a run of the program knows whether it has elements; `watch`
    saw it."""

    def __init__(self, watch: Any) -> None:
        super().__init__("a function may refuse that nothing was found")
        self.watch = watch


def watch_arm(
    codes: Collection[CodeType], *, calls: bool, nothing: bool = False, places: FoundPlaces | None = None
) -> Any:
    """Its `run(arm, before)` gives the arm's result, and raises Unmergeable for an arm that leaves something behind: it
    writes into a tensor that is older, or calls code of the user's, none of `codes`, that does more than compute
    (looked for if `calls`). `refuses` then says whether a function may refuse values, `finds` whether one looks up
    places that were found, in the arm or, as `places` knows, before it: that refuses none. Behind such a one, and with
    `nothing` anywhere, it raises RefusesNothing before an arm calls what may refuse that nothing was found."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Watch(TorchFunctionMode):
        refuses = False
        finds = False

        def __init__(self) -> None:
            super().__init__()
            self.made: set[int] = set()  # storages
            self.old: list[tuple[Any, int]] = []
            self.known: set[int] = set()
            self.kept: list[Any] = []  # so that no storage gets the identity of another
            self.copied: list[int] = []  # storages of which the arm writes into a copy
            self.copies: list[int] = []
            self.reached: set[int] = set()
            self.places = places or FoundPlaces()

        def run(self, arm: Callable[..., Any], before: tuple[Any, ...]) -> Any:
            containers = _containers_of(arm, before)
            self.reached = _containers_of(arm, _without_copies(arm, before))
            with self, _watched_calls(codes) if calls else _nothing_watched():
                found = arm(*before)
            if any(tensor._version != version for tensor, version in self.old):
                raise Unmergeable("an arm writes into a tensor")
            if any(id(one) in containers for one in _containers(found)):
                raise Unmergeable("an arm gives a list, dict or object that it did not make")
            tensors = [leaf for leaf in tree_flatten(found)[0] if isinstance(leaf, torch.Tensor)]
            counts = Counter(map(storage_id, tensors))
            if any(counts[one] for one in self.copied) or any(counts[one] > 1 for one in self.copies):
                raise Unmergeable("an arm gives a view of a tensor that it writes into")
            return found

        def copy(self, tensor: Any) -> Any:
            """A copy that the arm writes into; it may not use the memory of `tensor` by another name."""
            made = tensor.clone()
            if not same_strides(made, tensor):  # a write into the copy may then do something else
                raise Unmergeable("an arm writes into a tensor whose memory overlaps, or has gaps")
            self.copied.append(_storage_of(tensor))
            self.copies.append(_storage_of(made))
            return made

        def copy_container(self, container: Any) -> Any:
            """A copy of a list or dict in which the arm replaces items: the arm has no other name for it."""
            if len([*_containers(container)]) > 1 or id(container) in self.reached:
                raise Unmergeable("an arm writes into a list or dict that it may also reach by another name")
            return container.copy()

        def write_back(self, tensor: Any, copy: Any, *, recorded: bool) -> None:
            """Gives the tensor the values of its copy. A view of that would be one of something else from here on."""
            if _storage_of(tensor) in self.copied:
                self.copied.remove(_storage_of(tensor))
            copy_values(tensor, copy, recorded=recorded)
            self.copied.append(_storage_of(copy))

        def new_ones(self, result: Any) -> set[int]:
            """The tensors of the arm's result, by identity, that were made in it and share values with no other."""
            tensors = [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor)]
            count = Counter(map(storage_id, tensors))
            return {id(one) for one in tensors if storage_id(one) in self.made and count[storage_id(one)] == 1}

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name, kwargs = getattr(func, "__name__", ""), kwargs or {}
            given = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
            into_own = bool(args) and isinstance(args[0], torch.Tensor) and storage_id(args[0]) in self.made
            if (_writes(name) and not into_own) or kwargs.get("out") is not None:
                raise Unmergeable(f"an arm calls {name}")
            if any(storage_id(one) in self.copied for one in given):
                raise Unmergeable("an arm writes into a tensor that it reads by another name")
            if (nothing or self.finds) and _may_refuse_nothing(name, args) and any(map(has_unbacked_size, given)):
                raise RefusesNothing(self)
            self._note(given)
            base = name if name.endswith("__") else name.removesuffix("_")
            finds = self.places.holds(base, args, kwargs)
            found = func(*args, **kwargs)
            self._keep_new(found, given)
            places = tree_flatten(args[1:2] if name in ("__getitem__", "__setitem__") else ())[0]
            masks = name == "__setitem__" and not any(_is_tensor(one) and one.dtype != torch.bool for one in places)
            looks_up = any(map(_is_tensor, places)) and not masks
            divides = base in _DIVIDES and isinstance(found, torch.Tensor) and not found.is_floating_point()
            may_refuse = looks_up or base.removeprefix("linalg_") in _REFUSES
            self.finds |= finds
            self.refuses |= (may_refuse and not finds) or (divides and not _divides_by_number(name, args))
            self.places.note(base, args, kwargs, found)
            return found

        def _note(self, given: list[Any]) -> None:
            """The version of what is older than the arm, when it is first seen."""
            for one in given:
                if id(one) not in self.known and storage_id(one) not in self.made and not one.is_inference():
                    self.known.add(id(one))
                    self.old.append((one, one._version))

        def _keep_new(self, found: Any, given: list[Any]) -> None:
            if not isinstance(found, torch.Tensor | list | tuple):
                return
            taken = {storage_id(one) for one in given}
            for leaf in tree_flatten(found)[0]:
                if isinstance(leaf, torch.Tensor) and storage_id(leaf) not in taken:
                    self.made.add(storage_id(leaf))
                    self.kept.append(hold_storage_id(leaf))

    return Watch()


def copy_values(tensor: Any, other: Any, *, recorded: bool) -> None:
    """Gives the tensor the values of another one. Where that is not `recorded`, autograd takes it for what it was."""
    import torch

    if recorded or not torch.is_grad_enabled() or not (tensor.is_floating_point() or tensor.is_complex()):
        tensor.copy_(other)
    else:
        tensor.detach().copy_(other.detach())


def _writes(name: str) -> bool:
    """Whether a function of this name writes into the first tensor that it is given."""
    return name in _WRITES or (name.endswith("_") and not name.endswith("__"))


def _divides_by_number(name: str, args: tuple[Any, ...]) -> bool:
    """Whether whole numbers are divided by a number of Python that is not zero."""
    by = args[1] if len(args) > 1 and not name.startswith("__r") else None
    return type(by) is int and by != 0


def _may_refuse_nothing(name: str, args: tuple[Any, ...]) -> bool:
    """Whether a function of this name may refuse a tensor without elements; an index does that is a number."""
    places = args[1] if name == "__getitem__" else ()
    return name in _REFUSES_NOTHING or any(
        type(one) is int for one in (places if isinstance(places, tuple) else (places,))
    )


def _storage_of(tensor: Any) -> int:
    """As `storage_id`, which no watch of an arm around sees."""
    with outside_function_modes():
        return storage_id(tensor)


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


# --- lists, dicts and objects


def _containers(value: Any) -> Iterator[Any]:
    """What can be changed: lists, dicts, sets, and objects of classes that are registered as pytree nodes."""
    is_object = not isinstance(value, tuple | dict) and node_kind(value) == "registered"
    if is_object or isinstance(value, list | dict | set):
        yield value
    if is_object or isinstance(value, list | tuple | dict):
        children = flatten_once(value)[0] if is_object else value.values() if isinstance(value, dict) else value
        for one in children:
            yield from _containers(one)


def reachable(arm: Callable[..., Any]) -> list[Any]:
    """The values of the names of functions around an arm."""
    found = []
    for cell in getattr(arm, "__closure__", None) or ():
        with suppress(ValueError):  # not bound yet
            found.append(cell.cell_contents)
    return found


def _containers_of(arm: Callable[..., Any], before: Iterable[Any]) -> set[int]:
    """Those that an arm can reach without a call, by identity: in its names, and in the attributes of these."""
    values = [*before, *reachable(arm)]
    attributes = [one for value in values for one in attributes_of(value).values()]
    return {id(one) for value in (*values, *attributes) for one in _containers(value)}


def _without_copies(arm: Callable[..., Any], before: tuple[Any, ...]) -> list[Any]:
    names = arm.__code__.co_varnames[: arm.__code__.co_argcount]
    return [one for name, one in zip_longest(names, before) if name is None or not is_copy(name)]


# --- whose code is called


@contextmanager
def _nothing_watched() -> Iterator[None]:
    yield


@contextmanager
def _watched_calls(codes: Collection[CodeType]) -> Iterator[None]:
    """Raises Unmergeable at its end where code of the user's ran, none of `codes`, that does more than compute:
    properties, operators and methods too, whose names in the arm do not show whose they are."""
    others: set[CodeType] = set()
    changing: list[str] = []
    judged: dict[tuple[CodeType, int], bool] = {}
    held: list[Any] = []  # so that no address is used twice

    def see(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event not in ("call", "c_call") or code in others:
            return
        if not is_user_file(code.co_filename):
            others.add(code)
            return
        if event == "c_call":
            if _changes_its_object(argument):
                changing.append(f"{code.co_qualname}: {argument.__name__}")  # type: ignore[attr-defined]
            return
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if (code, id(first)) not in judged:
            held.append(first)
            judged[code, id(first)] = _only_computes(frame, first, codes, judged)

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()  # a collection calls what others have registered
    sys.setprofile(see)
    try:
        yield
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    impure = next((code.co_qualname for (code, _), pure in judged.items() if not pure), "")
    if impure or changing:
        raise Unmergeable(f"an arm calls {impure or changing[0]}, which may do more than compute")


def _changes_its_object(function: object) -> bool:
    """Whether it is a method of a list, a set or an array that may change it, and has the name of one of a tensor that
    does not."""
    import torch

    owner = getattr(function, "__self__", None)
    if owner is None or isinstance(owner, type | ModuleType | torch.Tensor):
        return False
    return getattr(function, "__name__", "") in _CHANGES


def _makes_model_output(frame: FrameType | None) -> bool:
    """Whether it is part of the making of an output object of transformers: its fields are set, then checked."""
    setter, checker = (
        getattr(method_of_model_output(name), "__code__", None) for name in ("__setattr__", "__post_init__")
    )
    whole = (checker, *init_wrappers_of_model_output())
    while frame is not None and frame.f_code not in whole and not _is_generated_init(frame.f_code):
        caller = frame.f_back
        if frame.f_code is setter and caller is not None and _is_generated_init(caller.f_code):
            return True
        frame = caller
    return frame is not None and frame.f_code in whole


def _is_generated_init(code: CodeType) -> bool:
    return (code.co_filename, code.co_name) == ("<string>", "__init__")


def _only_computes(
    frame: FrameType, first: Any, codes: Collection[CodeType], judged: dict[tuple[CodeType, int], bool]
) -> bool:
    """Whether code of the user's, whose first argument is given, does."""
    code = frame.f_code
    if code in codes or code.co_name in _READ_ATTRIBUTES or _makes_model_output(frame):
        return True
    around = frame.f_back.f_code if frame.f_back is not None else None
    if code.co_name.startswith("<"):  # part of an expression that was judged with its function
        pure = [pure for (known, _), pure in judged.items() if known is around]
        return around in codes or (bool(pure) and all(pure))
    function = function_of(code, frame.f_globals, frame.f_locals, ())
    node = definition_of(function) if function is not None else None
    if function is None or node is None:
        return False
    instances = (first,) if code.co_varnames[:1] == ("self",) else ()
    return Purity(function=function, instances=instances).of_statements(node.body)
