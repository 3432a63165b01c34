"""Objects with tensors among inputs: taken apart and put together again, whatever their classes are."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from exportdoctor.shims import ExportCall, apply_shims, export_program, find
from exportdoctor.shims.own.dataclass_pytrees import register_attributes
from exportdoctor.targets.input_objects import can_be_rebuilt, fields_of, flatten_inputs
from exportdoctor.torch_internals.pytree_registry import temporary_registrations
from exportdoctor.torch_internals.trees import tree_leaves


@dataclass(frozen=True)
class Frozen:
    x: Tensor
    y: Tensor | None = None
    made: list[Tensor] = field(default_factory=list)


@dataclass
class Cached:
    x: Tensor

    def __post_init__(self) -> None:
        self.cached = None


class Slotted:
    __slots__ = ("x", "y")

    def __init__(self, x: Tensor) -> None:
        self.x = x


class Within:
    def __init__(self, inner: Any) -> None:
        self.inner, self.more = inner, {"x": torch.ones(3)}


def attributes(value: Any) -> dict[str, Any]:
    names = [*getattr(value, "__dict__", ()), *(name for name in ("x", "y") if hasattr(value, name))]
    return {name: getattr(value, name) for name in names}


OBJECTS = (
    Frozen(torch.ones(2)),
    Frozen(torch.ones(2), torch.ones(1), [torch.ones(4)]),
    Cached(torch.ones(2)),
    Slotted(torch.ones(2)),
    SimpleNamespace(x=torch.ones(2), n=3),
    Within(Frozen(torch.ones(2))),
)


@pytest.mark.parametrize("value", OBJECTS, ids=lambda value: type(value).__name__)
def test_an_object_is_put_together_of_other_tensors(value: Any) -> None:
    """A dataclass lost what its `__post_init__` sets to None."""
    leaves, layout = flatten_inputs(((value,), {"k": [value]}))
    made = layout.unflatten([one * 2 if isinstance(one, Tensor) else one for one in leaves])
    for other in (made[0][0], made[1]["k"][0]):
        assert type(other) is type(value)
        assert attributes(other).keys() == attributes(value).keys()
    found = [one for one in leaves if isinstance(one, Tensor)]
    again = [one for one in flatten_inputs(made)[0] if isinstance(one, Tensor)]
    assert all(torch.equal(one * 2, other) for one, other in zip(found, again, strict=True))
    assert flatten_inputs(made)[1] == layout


def test_the_layout_is_the_same_whether_a_class_is_registered_or_not() -> None:
    value = (Frozen(torch.ones(2), None, [torch.ones(4)]),)
    leaves, layout = flatten_inputs(value)
    with temporary_registrations(lambda: register_attributes(Frozen)):
        assert flatten_inputs(value)[1] == layout
        assert all(one is other for one, other in zip(tree_leaves(value), leaves, strict=True))
        made = flatten_inputs(value)[1]
    assert isinstance(made.unflatten(leaves)[0], Frozen)


def test_what_holds_more_than_attributes_is_left_whole() -> None:
    class Counted(int):
        pass

    number = Counted(3)
    number.x = torch.ones(2)  # type: ignore[attr-defined]
    assert fields_of(number).keys() == {"x"}
    assert not can_be_rebuilt(number)
    (leaf,), layout = flatten_inputs((number,))
    assert leaf is number
    assert layout.unflatten([leaf]) == (3,)


@dataclass
class Masked:
    x: Tensor
    x_mask: Tensor


def test_fields_of_which_one_name_begins_with_another_export() -> None:
    """torch mistook `L['b'].x` for a part of `L['b'].x_mask`, and made guards that are no Python."""

    class Sum(nn.Module):
        def forward(self, b: Masked) -> Tensor:
            return (b.x * b.x_mask).sum(0)

    sizes = ([{0: Dim.DYNAMIC}, {0: Dim.DYNAMIC}],)
    call = ExportCall(module=Sum(), args=(Masked(torch.ones(3), torch.ones(3)),), dynamic_shapes=sizes)
    with apply_shims([find("register-dataclass-pytree")], call) as given:
        program = export_program(given).module()
        assert program(Masked(torch.ones(5), torch.ones(5))) == 5
