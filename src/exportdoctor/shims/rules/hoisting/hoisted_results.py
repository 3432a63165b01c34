"""What a call or a read gives becomes inputs of the program: what the inputs are, and how they become it again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from exportdoctor.shims.export_call import Named
from exportdoctor.shims.record import NotApplicable
from exportdoctor.shims.rules.hoisting.hoisted_lists import ListStandIn
from exportdoctor.targets.eager import storage_id
from exportdoctor.torch_internals.trees import tree_flatten, tree_unflatten

CONDITION = (
    "the structure of what is passed in, and its negative numbers, fractions and flags, are the example's, and "
    "branches on its other numbers go as for the example; others are refused"
)
"""Of a shim that hoists; see `HoistedResult.as_inputs` and `as_result`."""


@dataclass(frozen=True, kw_only=True)
class Outline:
    """`owner` with this `code` calls `blocks`, functions that are globals by their names, in place of statements."""

    owner: FunctionType
    code: CodeType
    blocks: tuple[FunctionType, ...]


@dataclass(frozen=True, kw_only=True)
class HoistedResult:
    """What `title` gave, the `number`th time. `stem` is how the names of its inputs begin, by its title if empty.

    `leaves` says what each leaf of it is: `tensor`, `size` (a whole number, which becomes the size of a tensor
    without elements), `list` (of whole numbers), `fixed` (another number, which the program asserts) or `none`. It
    follows from one result, so that a conversion of other inputs makes the same inputs.
    """

    title: str
    number: int
    layout: Any
    leaves: tuple[str, ...]
    example: tuple[Any, ...]
    stem: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs that its result makes, by leaf; empty for one that makes none."""
        stem = f"{self.stem or input_stem(self.title)}{self.number}"
        return tuple("" if kind == "none" else f"{stem}_{place}" for place, kind in enumerate(self.leaves))

    def as_inputs(self, result: Any) -> dict[str, Any]:
        """A result as inputs of the program, which share no memory. Raises ValueError where it differs in what was
        taken as constant."""
        import torch

        leaves, layout = flatten(result)
        if layout != self.layout:
            raise ValueError(f"{self.title} gives results of another structure than at the export")
        made, held = {}, set[int]()
        for name, kind, leaf in zip(self.names, self.leaves, leaves, strict=True):
            if kind != kind_of(leaf):
                raise ValueError(f"{self.title} gives {leaf!r:.40} where it gave a {kind} at the export")
            if kind == "size":
                made[name] = torch.empty(leaf + 2, 0, dtype=torch.float32)  # torch fixes sizes of zero and one
            elif kind == "tensor":  # a write into one would be seen in the other, as long as the inputs are these
                made[name] = leaf.clone() if storage_id(leaf) in held else leaf
                held.add(storage_id(leaf))
            elif kind != "none":
                made[name] = torch.tensor(leaf, dtype=torch.float32 if isinstance(leaf, float) else None)
        return made

    def as_result(self, inputs: Named) -> Any:
        """The inputs as the result, while the program is traced."""
        import torch

        leaves: list[Any] = []
        for name, kind, example in zip(self.names, self.leaves, self.example, strict=True):
            value = inputs[name] if name else None
            match kind:
                case "fixed":
                    assert value is not None
                    same = value.reshape(()) == example  # which a tensor without elements is not
                    torch.ops.aten._assert_async.msg(same, f"{name} is not {example}")
                    leaves.append(example)
                case "size" if value is not None:
                    leaves.append(value.shape[0] - 2)
                case "list":
                    leaves.append(ListStandIn(value))
                case _:
                    leaves.append(value)
        return tree_unflatten(leaves, self.layout)


@dataclass(frozen=True, kw_only=True)
class HoistedCall(HoistedResult):
    """A call of `function`, numbered among those that are not inside another hoisted one.

    `arguments` says where each argument comes from, where all are known and the call gives the same by itself: the
    name of an input, or a value in a tuple of one. `recorded` are its results for the known inputs, empty where they
    follow from weights without values. `outline` says where a function stands that was made of statements. `unseen` are
    the attributes and globals that the rest of the forward reads and that the call did not set at the export, `sets`
    those that it did set.
    """

    function: FunctionType
    arguments: Mapping[str, str | tuple[Any]] | None
    recorded: tuple[Any, ...] = ()
    outline: Outline | None = None
    unseen: frozenset[str] = frozenset()
    sets: frozenset[str] = frozenset()


def input_stem(title: str, *, whole: bool = False) -> str:
    """How the names of all inputs begin that calls of a function, or reads, make: by the last part of its name, or the
    `whole` of it."""
    return re.sub(r"\W+", "_", title if whole else title.rpartition(".")[2]).strip("_") + "__"


def facts_of_results(results: Iterable[HoistedResult]) -> dict[str, str]:
    """The structure of each, with the numbers in it that the program has as constants, such as the keys of a dict."""
    found = {}
    for one in results:
        leaves = [
            str(example) if kind == "fixed" else kind for kind, example in zip(one.leaves, one.example, strict=True)
        ]
        text = re.sub(r" at 0x[0-9a-f]+", "", repr(tree_unflatten(leaves, one.layout)))
        other = f" ({one.stem})" if one.stem not in ("", input_stem(one.title)) else ""  # a function of the same name
        found[f"{one.title}{other}, call {one.number}"] = f"{text} of {', '.join(leaves)}" if "object" in text else text
    return found


def global_names(outlines: Iterable[Outline]) -> dict[str, FunctionType]:
    """The globals that the code of these outlines needs."""
    return {block.__name__: block for one in outlines for block in one.blocks}


def describe_results(title: str, number: int, results: Sequence[Any]) -> HoistedResult:
    """What these results of other input sets have in common. Raises NotApplicable where that is not enough."""
    flat = [flatten(result) for result in results]
    leaves, layout = flat[0]
    if any(other != layout for _, other in flat):
        raise NotApplicable(f"{title} gives results of other structure for other inputs")
    kinds = tuple(map(kind_of, leaves))
    for place, kind in enumerate(kinds):
        others = [other[place] for other, _ in flat]
        if any(kind_of(other) != kind or (kind == "fixed" and other != leaves[place]) for other in others):
            raise NotApplicable(f"a {kind} value of {title} differs between inputs")
    example = tuple(leaf if kind == "fixed" else None for leaf, kind in zip(leaves, kinds, strict=True))
    return HoistedResult(title=title, number=number, layout=layout, leaves=kinds, example=example)


def flatten(result: Any) -> tuple[list[Any], Any]:
    """The leaves; a list of whole numbers is one, since its length may differ."""
    return tree_flatten(result, is_leaf=is_number_list)


def is_number_list(value: Any) -> bool:
    """Whether it is a list of whole numbers alone, at least one."""
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def kind_of(leaf: Any) -> str:
    """What a leaf of a result is, in the words of `HoistedCall.leaves`."""
    import torch

    if isinstance(leaf, torch.Tensor):
        return "tensor"
    if is_number_list(leaf):
        return "list"
    if leaf is None:
        return "none"
    return "size" if type(leaf) is int and leaf >= 0 else "fixed"
