"""Dynamic shapes in another structure than the inputs, and those that torch wants in their place."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict, deque, namedtuple
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim, register_dataclass

from exportdoctor.targets.sizes.dynamic_shapes import axes_of, map_inputs
from exportdoctor.targets.sizes.fitted_shapes import fit_shapes, has_structure_of_inputs, shapes_code

Two = namedtuple("Two", "left right")


@dataclasses.dataclass
class Batch:
    left: Any
    right: Any


register_dataclass(Batch)


class OneInput(nn.Module):
    """Adds up all tensors among its inputs."""

    def forward(self, x: Any) -> torch.Tensor:
        return torch.stack([leaf.sum() for leaf in torch.utils._pytree.tree_leaves(x)]).sum()


ROWS, COLUMNS = Dim("rows"), Dim("columns", max=50)


def leaves() -> st.SearchStrategy[tuple[Any, Any]]:
    """A tensor and its shapes."""
    shapes = st.sampled_from([None, {0: ROWS}, {1: COLUMNS}, {0: ROWS, 1: COLUMNS}, (ROWS, None), {-1: COLUMNS}])
    return shapes.map(lambda spec: (torch.ones(3, 4), spec))


def nodes(children: st.SearchStrategy[tuple[Any, Any]]) -> st.SearchStrategy[tuple[Any, Any]]:
    """Containers of inputs with what torch wants for them."""
    two = st.tuples(children, children)
    return st.one_of(
        st.lists(children, min_size=1, max_size=3).map(lambda pairs: ([a for a, _ in pairs], [b for _, b in pairs])),
        two.map(lambda pairs: (tuple(a for a, _ in pairs), tuple(b for _, b in pairs))),
        two.map(lambda pairs: ({"p": pairs[0][0], "q": pairs[1][0]}, {"p": pairs[0][1], "q": pairs[1][1]})),
        two.map(lambda pairs: (Two(pairs[0][0], pairs[1][0]), Two(pairs[0][1], pairs[1][1]))),
        two.map(lambda pairs: (Batch(pairs[0][0], pairs[1][0]), [pairs[0][1], pairs[1][1]])),
    )


INPUTS = st.recursive(leaves(), nodes, max_leaves=6)


def is_static(spec: Any) -> bool:
    return all(leaf is None for leaf in torch.utils._pytree.tree_leaves(spec))


def miswrite(value: Any, spec: Any, draw: Any) -> Any:
    """The shapes as somebody may have written them who takes one container for another."""
    if isinstance(value, torch.Tensor):
        return spec
    if is_static(spec) and draw(st.booleans()):
        return None
    match value:
        case Batch():
            named = dict(zip(("left", "right"), spec, strict=True))
            written = {name: miswrite(getattr(value, name), one, draw) for name, one in named.items()}
        case Two():
            written = {name: miswrite(getattr(value, name), getattr(spec, name), draw) for name in Two._fields}
        case dict():
            written = {name: miswrite(value[name], spec[name], draw) for name in value}
            for name in [name for name, one in spec.items() if one is None and draw(st.booleans())]:
                del written[name]
            return written
        case _:
            items = [miswrite(one, shape, draw) for one, shape in zip(value, spec, strict=True)]
            return draw(st.sampled_from([list, tuple]))(items)
    return draw(st.sampled_from([dict, lambda named: list(named.values()), lambda named: tuple(named.values())]))(
        written
    )


@settings(max_examples=200, deadline=None)
@given(pair=INPUTS, data=st.data())
def test_any_way_to_write_them_gives_those_that_torch_wants(pair: tuple[Any, Any], data: st.DataObject) -> None:
    value, wanted = pair
    written = miswrite(value, wanted, data.draw)
    module = OneInput()
    inputs: Any = ((value,), {})
    fitted = fit_shapes(module, inputs, {"x": written})
    assert fitted is not None
    assert shapes_code(fitted) == shapes_code({"x": wanted})
    assert has_structure_of_inputs(module, inputs, {"x": wanted})
    assert has_structure_of_inputs(module, inputs, {"x": written}) == (shapes_code(written) == shapes_code(wanted))
    assert axes_of(module, inputs, {"x": written}) == axes_of(module, inputs, {"x": wanted})


def message_of_export(inputs: Any, shapes: Any) -> str:
    """What torch refuses, empty where it exports."""
    try:
        torch.export.export(OneInput(), *inputs, dynamic_shapes=shapes)
    except Exception as error:
        return str(error)
    return ""


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(pair=INPUTS.filter(lambda pair: not isinstance(pair[0], torch.Tensor)), data=st.data())
def test_torch_takes_what_is_called_its_structure_and_refuses_what_is_not(
    pair: tuple[Any, Any], data: st.DataObject
) -> None:
    value, wanted = pair
    written = miswrite(value, wanted, data.draw)
    inputs: Any = ((value,), {})
    for shapes in ({"x": wanted}, {"x": written}):
        said = message_of_export(inputs, shapes)
        assert re.search("^$|Constraints violated|dynamic_shapes|mismatch", said)
        # torch relates no -1 of one tensor with the 1 of another
        taken = not said or "Constraints violated" in said
        assert taken == has_structure_of_inputs(OneInput(), inputs, shapes)


class Several(nn.Module):
    def forward(self, a: Any, b: Any = None, *rest: Any, flag: bool = True, **more: Any) -> Any:
        return a


class Holder:
    """An object of a class that torch does not know, and of which no other can be made."""

    __slots__ = ("_x",)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)


X, D = torch.ones(3, 4), {0: ROWS}
FITS: dict[str, tuple[Any, Any, str]] = {
    "an argument that is left out": (((X, X), {}), {"a": D}, '{"a": R, "b": None}'),
    "trailing ones in a tuple": (((X, X), {}), (D,), '{"a": R, "b": None}'),
    "an entry for what is left at its default": (((X,), {}), (D, None), '{"a": R}'),
    "one by name for what is left at its default": (((X,), {}), {"a": D, "flag": None, "b": [None, {}]}, '{"a": R}'),
    "an entry for one in the middle that is left at its default": (
        ((X,), {"flag": X}),
        (D, None, None, D),
        '{"a": R, "flag": R}',
    ),
    "sizes of what is None": (((X, None), {}), {"a": D, "b": D}, '{"a": R, "b": None}'),
    "sizes of a number": (((X, 3), {}), {"a": D, "b": D}, '{"a": R, "b": None}'),
    "a dynamic number": (((X, 3), {}), {"a": D, "b": Dim.AUTO}, '{"a": R, "b": Dim.AUTO}'),
    "what *args takes, by place": (((X, X, X, X), {}), (D, None, D, None), '{"a": R, "b": None, "rest": (R, None)}'),
    "what **kwargs takes, by name": (((X,), {"c": X}), {"a": D, "c": D}, '{"a": R, "more": {"c": R}}'),
    "the dict that is the only argument": ((({"p": X, "q": X},), {}), {"p": D}, '{"a": {"p": R, "q": None}}'),
    "the list that is the only argument": ((([X, X],), {}), (D, D), '{"a": [R, R]}'),
    "an entry for each field, one of which is None": (((Batch(X, None),), {}), {"a": [D, None]}, '{"a": [R]}'),
    "a dict of fields, one of them None": (
        ((Batch(X, None),), {}),
        {"a": {"left": D, "right": None}},
        '{"a": [R]}',
    ),
    "a dict of the fields of the only argument": (((Batch(X, None),), {}), {"left": D, "right": None}, '{"a": [R]}'),
    "an object of its fields' shapes": (((Batch(X, X),), {}), {"a": Batch(D, None)}, '{"a": [R, None]}'),
}


@pytest.mark.parametrize(("inputs", "shapes", "wanted"), FITS.values(), ids=list(FITS))
def test_what_is_meant_is_found(inputs: Any, shapes: Any, wanted: str) -> None:
    fitted = fit_shapes(Several(), inputs, shapes)
    code = shapes_code(fitted).replace("'", '"')
    assert code == wanted.replace("R", '{0: Dim("rows")}')
    assert not has_structure_of_inputs(Several(), inputs, shapes) or code == shapes_code(shapes).replace("'", '"')


REFUSED: dict[str, tuple[Any, Any]] = {
    "a name that forward has not": (((X,), {}), {"a": D, "c": D}),
    "more entries than arguments": (((X,), {}), (D, D)),
    "a dimension that the tensor has not": (((X,), {}), {"a": {2: ROWS}}),
    "more dimensions than the tensor has": (((X,), {}), {"a": (ROWS, None, None)}),
    "one entry for a list of tensors": ((([X, X],), {}), {"a": D}),
    "a list of another length": ((([X, X],), {}), {"a": [D]}),
    "a key that the dict has not": ((({"p": X},), {}), {"a": {"q": D}}),
    "a field that the object has not": (((Batch(X, X),), {}), {"a": {"middle": D}}),
    "sizes of a field that is None": (((Batch(X, None),), {}), {"a": {"left": D, "right": D}}),
    "sizes of a field that is None, in a list": (((Batch(X, None),), {}), {"a": [D, D]}),
    "sizes of an object that nobody takes apart": (((X, Holder()), {}), {"a": D, "b": [D]}),
    "sizes, for which torch takes no shapes": (((X, torch.Size([2, 3])), {}), {"a": D}),
    "a mapping of another class for a tensor": (((X,), {}), {"a": MappingProxyType({0: ROWS})}),
    "a list for one tensor": (((X,), {}), {"a": [D, D]}),
    "inputs that forward does not take": (((), {}), {"a": D}),
}


@pytest.mark.parametrize(("inputs", "shapes"), REFUSED.values(), ids=list(REFUSED))
def test_what_is_not_clear_is_left_to_torch(inputs: Any, shapes: Any) -> None:
    assert fit_shapes(Several(), inputs, shapes) is None
    assert not has_structure_of_inputs(Several(), inputs, shapes)


def test_sizes_in_a_deque_are_known() -> None:
    inputs: Any = ((deque([X, X]),), {})
    for shapes in (deque([D, None]), [D, None], (D, None)):
        assert axes_of(OneInput(), inputs, {"x": shapes}) == {"rows": ("x[0][0]",)}


def test_inputs_in_a_dict_of_another_class_keep_it() -> None:
    inputs: Any = ((defaultdict(torch.Tensor, {"p": X, "q": X}),), {})
    seen: dict[str, Any] = {}

    def visit(path: str, leaf: Any, spec: Any) -> Any:
        seen[path] = spec
        return leaf

    (made,), _ = map_inputs(visit, OneInput(), inputs, {"x": {"p": D}})
    assert type(made) is defaultdict
    assert made["other"].numel() == 0
    assert list(seen) == ["x['p']", "x['q']"]


@pytest.mark.parametrize(
    "shapes", [{0: 3.5}, {0: object()}, deque([None]), {0: torch.ones(2)}], ids=["float", "object", "deque", "tensor"]
)
def test_what_is_no_dimension_has_no_code(shapes: Any) -> None:
    with pytest.raises(ValueError, match="is no dimension"):
        shapes_code(shapes)


def test_code_makes_the_same_dimensions_again() -> None:
    length = Dim("length", min=4, max=64)
    few = Dim.DYNAMIC(min=2, max=7)
    shapes = {"x": [{0: length}, (2 * length + 1, Dim.AUTO)], "y": Two(few, {1: Dim.STATIC}), "z": ()}
    code = shapes_code(shapes)
    made = eval(code, {"Dim": Dim, "Two": Two})
    assert shapes_code(made) == code
    assert (made["x"][0][0].min, made["x"][0][0].max) == (4, 64)
    assert (made["y"].left.min, made["y"].left.max) == (2, 7)
    assert made["x"][1][0].__name__ == "2*length + 1"
