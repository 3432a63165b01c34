"""Replaces submodules by an opaque op with their captured output shapes: only the parent's own code can fail then.

A submodule is replaced in all of its calls, or in none and with a reason. Failures of the op itself are discarded.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from exportdoctor.core.exception_text import text_of
from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.torch_internals.trees import tree_leaves, tree_unflatten
from exportdoctor.worker.capture.call_shapes import CallShapes, OutputLeaf, Sizes, sizes_of
from exportdoctor.worker.capture.size_inference import SizeRules, infer_size

_OP = "exportdoctor::opaque_child"
_OP_SAYS = re.compile(r"exportdoctor[.:]+opaque_child(?:\.default)?: ")
# torch 2.9 hands a ScalarType[] to Python as bare integers
_DTYPES = tuple(sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str))


@cache
def _operator() -> Callable[..., list[torch.Tensor]]:
    """The custom op that replaces a submodule: new tensors of the given sizes, whatever the values of `inputs`.

    `sizes` are those of all outputs, split by `ranks`.
    """
    torch.library.define(
        _OP, "(Tensor[] inputs, SymInt[] sizes, int[] ranks, int[] dtypes, Device[] devices) -> Tensor[]"
    )
    torch.library.impl(_OP, "CompositeExplicitAutograd", _fresh)
    torch.library.register_fake(_OP, _fresh)
    operator: Callable[..., list[torch.Tensor]] = torch.ops.exportdoctor.opaque_child.default
    return operator


def _fresh(
    inputs: list[torch.Tensor],
    sizes: Sequence[int],
    ranks: Sequence[int],
    dtypes: Sequence[int],
    devices: Sequence[torch.device],
) -> list[torch.Tensor]:
    """New tensors with the given sizes; `dtypes` are indices into _DTYPES."""
    made, at = [], 0
    for rank, dtype, device in zip(ranks, dtypes, devices, strict=True):
        made.append(torch.zeros(tuple(sizes[at : at + rank]), dtype=_DTYPES[dtype], device=device))
        at += rank
    return made


@dataclass(frozen=True)
class _StandIn:
    """One call of a submodule with how to make each output leaf of it."""

    exchange: CallShapes
    choices: tuple[tuple[SizeRules, ...] | SizeRules | None, ...]


@dataclass
class _SubmoduleCalls:
    """Its calls within one call of its parent, in order, then again from the first: export may run it twice."""

    stands: list[_StandIn] = field(default_factory=list)
    turn: int = 0

    def next(self) -> _StandIn:
        stand = self.stands[self.turn % len(self.stands)]
        self.turn += 1
        return stand


@contextmanager
def replace_submodules(
    calls: Sequence[CallShapes], others: Sequence[CallShapes] | None, modules: Mapping[int, tuple[str, torch.nn.Module]]
) -> Iterator[tuple[str, ...]]:
    """Within it, opaque ops replace the submodules in `calls`; yields a reason for each that is kept.

    `others` are the same calls in the second capture. `modules` maps ids to names and modules.
    """
    if others is None or [one.child for one in others] != [one.child for one in calls]:
        others = calls
    actors: dict[int, _SubmoduleCalls] = {}
    kept: dict[int, str] = {}
    for one, other in zip(calls, others, strict=True):
        stand = _stand_in(one, other)
        if isinstance(stand, str):
            kept.setdefault(one.child, stand)
        else:
            actors.setdefault(one.child, _SubmoduleCalls()).stands.append(stand)
    with ExitStack() as stack:
        for child, actor in actors.items():
            if child not in kept:
                stack.enter_context(_patch_forward(modules[child][1], actor))
        yield tuple(f"{modules[child][0]}: {reason}" for child, reason in kept.items())


def blames_opaque_op(chain: Iterable[BaseException]) -> bool:
    """Whether the opaque op itself failed, or the code around it: the parent is not to blame then."""
    return any(_OP_SAYS.search(text_of(error)) or _raised_in_stand_in(error) for error in chain)


def _raised_in_stand_in(error: BaseException) -> bool:
    codes = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(code.co_filename == __file__ and code.co_name in ("forward", "_fresh") for code in codes)


def _stand_in(one: CallShapes, other: CallShapes) -> _StandIn | str:
    refusal = one.refusal or other.refusal
    if refusal:
        return refusal
    if len(one.given) != len(other.given):
        return "it returns another number of values at other sizes"
    choices = [_leaf_choices(mine, theirs, one, other) for mine, theirs in zip(one.given, other.given, strict=True)]
    unclear = next((reason for reason in choices if isinstance(reason, str)), None)
    if unclear is not None:
        return unclear
    return _StandIn(one, tuple(found for found in choices if not isinstance(found, str)))


def _leaf_choices(
    mine: OutputLeaf, theirs: OutputLeaf, one: CallShapes, other: CallShapes
) -> tuple[SizeRules, ...] | SizeRules | str | None:
    """How to compute a leaf's sizes; None for a plain value or an input itself."""
    if mine.same is not None and mine.same == theirs.same:
        return None
    match mine.sizes, theirs.sizes:
        case tuple(sizes), tuple(rest) if len(sizes) == len(rest):
            found = [infer_size(a, b, one.taken, other.taken) for a, b in zip(sizes, rest, strict=True)]
            known = tuple(entry for entry in found if entry is not None)
            return known if len(known) == len(found) else f"nothing explains its output's sizes {sizes} and {rest}"
        case int(size), int(rest):
            return (
                infer_size(size, rest, one.taken, other.taken) or f"nothing explains that it returns {size} and {rest}"
            )
        case None, None if mine.value == theirs.value:
            return None
    return "it returns something else at other sizes"


def _patch_forward(submodule: torch.nn.Module, calls: _SubmoduleCalls) -> AbstractContextManager[None]:
    operator = _operator()

    def forward(*args: Any, **kwargs: Any) -> Any:
        stand = calls.next()
        leaves = tree_leaves((args, kwargs))
        return tree_unflatten(_outputs(operator, stand, leaves), stand.exchange.layout)

    return patch_attribute(submodule, "forward", forward)


def _outputs(operator: Callable[..., list[torch.Tensor]], stand: _StandIn, leaves: list[Any]) -> list[Any]:
    taken = [sizes_of(leaf) for leaf in leaves]
    outputs: list[Any] = []
    wanted: list[tuple[int, OutputLeaf, list[Any]]] = []
    for given, how in zip(stand.exchange.given, stand.choices):
        if isinstance(how, tuple):
            wanted.append((len(outputs), given, [_size(one, taken) for one in how]))
        outputs.append(_plain(given, how, leaves, taken))
    if wanted:
        made = operator(
            [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)],
            [size for _, _, sizes in wanted for size in sizes],
            [len(sizes) for _, _, sizes in wanted],
            [_DTYPES.index(given.dtype) for _, given, _ in wanted],
            [given.device for _, given, _ in wanted],
        )
        for (index, _, _), tensor in zip(wanted, made):
            outputs[index] = tensor
    return outputs


def _plain(
    given: OutputLeaf, how: tuple[SizeRules, ...] | SizeRules | None, leaves: list[Any], taken: list[Sizes]
) -> Any:
    if isinstance(how, SizeRules):
        return _size(how, taken)
    return leaves[given.same] if given.same is not None else given.value


def _size(how: SizeRules, taken: list[Sizes]) -> Any:
    """The size for these inputs; the captured one if the inputs are unlike the captured ones."""
    try:
        return how.size(taken)
    except (IndexError, TypeError):
        if how.constant is None:
            raise
        return how.constant
