"""The sizes of a program's inputs as axes in the user's words, and what follows from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import sympy  # type: ignore[import-untyped]

from exportdoctor.torch_internals.trees import tree_flatten
from exportdoctor.worker.domain.sized_inputs import Place, SizedInputs

_DERIVED = re.compile(r"(?:(\d+)\*)?(.+?)(?: ([+-]) (\d+))?")


@dataclass(kw_only=True)
class Axis:
    """A size that callers choose. `rules` gives the size at each of its places; `same` names what follows from it."""

    name: str
    example: int
    rules: dict[Place, Callable[[int], int]]
    fixed: bool = False
    same: dict[str, Place] = field(default_factory=dict)

    def is_itself_at(self, place: Place) -> bool:
        """Whether the size at a place is the axis itself."""
        return all(self.rules[place](size) == size for size in (self.example, self.example + 1, self.example + 6))

    def follow(self, other: Axis, rule: Callable[[int], int]) -> None:
        """From now on `other` has the size that the rule gives for this one's."""
        self.rules.update({place: _after(rule, own) for place, own in other.rules.items()})
        self.same.update({other.name: next(iter(other.rules)), **other.same})


def declared_bounds(shapes: Any) -> dict[str, tuple[int | None, int | None]]:
    """The smallest and largest size that each `Dim` declares, by its name; None where it says none."""
    found: dict[str, tuple[int | None, int | None]] = {}
    for leaf in tree_flatten(shapes)[0]:
        lower, upper, name = (getattr(leaf, key, None) for key in ("min", "max", "__name__"))
        least = lower if isinstance(lower, int) and lower > 0 else None
        most = upper if isinstance(upper, int) else None
        if isinstance(name, str) and (least, most) != (None, None):
            found[name] = least, most
    return found


def find_axes(inputs: SizedInputs, named: Mapping[str, tuple[str, ...]]) -> list[Axis]:
    """The axes: those that are named, and what else the program leaves open; last the sizes that are declared fixed."""
    places = inputs.places()
    owners = {places[text]: name for name, texts in named.items() for text in texts if text in places}
    if inputs.order is None:
        return _axes_by_name(inputs, owners)
    exprs = {place: _expression_at(inputs, place) for place in places.values()}
    axes, met = [], set[Place]()
    for place, expr in sorted(exprs.items(), key=lambda one: not getattr(one[1], "is_Symbol", False)):
        if place in met:
            continue
        symbol = next(iter(getattr(expr, "free_symbols", ())), None)
        if symbol is None:
            name = owners.get(place)
            mine = [one for one in places.values() if one == place or (name and owners.get(one) == name)]
            mine = [one for one in mine if one not in met and not getattr(exprs[one], "free_symbols", ())]
            axes.append(_axis(inputs, name or inputs.place_name(place), mine, fixed=name is None))
            met.update(mine)
            continue
        follow = {one: other for one, other in exprs.items() if symbol in getattr(other, "free_symbols", ())}
        follow = {one: other for one, other in follow.items() if one not in met or len(other.free_symbols) > 1}
        follow = dict(sorted(follow.items(), key=lambda one: one[1] != expr))  # first the size itself
        name = owners.get(place) or inputs.place_name(place)
        axes.append(_axis(inputs, name, list(follow), exprs=follow, base=expr, symbol=symbol))
        named_follow = {owners.get(one) or inputs.place_name(one): one for one in follow}
        axes[-1].same = {other: one for other, one in named_follow.items() if one != place and other != name}
        met.update(follow)
    axes = _join_derived_names(_join_equal_names(axes))
    return sorted(axes, key=lambda one: (one.fixed, min(place[0] for place in one.rules)))


def _join_equal_names(axes: list[Axis]) -> list[Axis]:
    """One axis for each name: the declaration calls sizes equal for which the program has several symbols."""
    found: dict[str, Axis] = {}
    for axis in axes:
        known = found.setdefault(axis.name, axis)
        if known is not axis:
            known.rules.update(axis.rules)
            known.same.update(axis.same)
            known.fixed = known.fixed and axis.fixed
    return list(found.values())


def _join_derived_names(axes: list[Axis]) -> list[Axis]:
    """Without those that follow from another by their name: `length + 1` is tried together with `length`."""
    found = {axis.name: axis for axis in axes}
    for axis in axes:
        root, rule = _derived_rule(axis.name)
        if root in found and root != axis.name and not axis.fixed and rule(found[root].example) == axis.example:
            found[root].follow(axis, rule)
            del found[axis.name]
    return list(found.values())


def _after(rule: Callable[[int], int], own: Callable[[int], int]) -> Callable[[int], int]:
    return lambda size: own(rule(size))


def is_plain(name: str) -> bool:
    """Whether a name is not made of another, as `2*b` and `b + 1` are."""
    return _derived_rule(name)[0] == name


def _derived_rule(name: str) -> tuple[str, Callable[[int], int]]:
    """The name that `2*b` or `b + 1` is made of, and the size that follows from its size."""
    found = _DERIVED.fullmatch(name)
    factor, root, sign, rest = found.groups() if found else (None, name, None, None)
    times, plus = int(factor or 1), int(f"{sign or '+'}{rest or 0}")
    return root, lambda size: max(0, times * size + plus)


def _expression_at(inputs: SizedInputs, place: Place) -> Any:
    leaf, dimension = place
    shape = inputs.shapes.get(leaf)
    if dimension is None or not isinstance(shape, tuple):
        return shape
    return shape[dimension]


def _axis(
    inputs: SizedInputs,
    name: str,
    places: list[Place],
    *,
    exprs: Mapping[Place, Any] | None = None,
    base: Any = None,
    symbol: Any = None,
    fixed: bool = False,
) -> Axis:
    rules: dict[Place, Callable[[int], int]] = {place: lambda size: size for place in places}
    known = {
        expr: inputs.size_at(place)
        for place in inputs.places().values()
        if getattr(expr := _expression_at(inputs, place), "is_Symbol", False)
    }
    for place, expr in (exprs or {}).items():
        if expr != base:
            rules[place] = _follower(base, expr, symbol, known)
    first = next((place for place in places if exprs is None or exprs[place] == base), places[0])
    return Axis(name=name, example=inputs.size_at(first), rules=rules, fixed=fixed)


def _follower(base: Any, expr: Any, symbol: Any, known: Mapping[Any, int]) -> Callable[[int], int]:
    """The size that `expr` has where `base`, which is about one symbol, has a given one, and others are as `known`."""

    def follow(size: int) -> int:
        solved = solve_linear(base, symbol, size)
        others = {one: known.get(one, 2) for one in expr.free_symbols}
        return max(0, int(put_in(expr, {**others, symbol: size if solved is None else int(solved)})))

    return follow


def put_in(expr: Any, values: Mapping[Any, int]) -> Any:
    """The expression with values for symbols, all at once: `subs` decides in between by what a symbol may be."""
    return expr.xreplace({symbol: sympy.Integer(value) for symbol, value in values.items()})


def solve_linear(expr: Any, symbol: Any, size: int) -> Fraction | None:
    """The symbol's value with which an expression has a size; None if it is not linear in this symbol alone."""
    at = [expr.subs(symbol, number) for number in (2, 3, 4)]
    if not all(one.is_Integer for one in at) or at[2] - at[1] != at[1] - at[0] or at[1] == at[0]:
        return None
    return Fraction(size - int(at[0]), int(at[1] - at[0])) + 2


def _axes_by_name(inputs: SizedInputs, owners: Mapping[Place, str]) -> list[Axis]:
    """The named axes; `2*b` and `b + 1` follow b as in their names."""
    axes: dict[str, Axis] = {}
    for place, name in sorted(owners.items(), key=lambda one: any(mark in one[1] for mark in ("*", " + ", " - "))):
        root, rule = _derived_rule(name)
        axis = axes.get(root)
        if axis is None or root == name:
            axis = axes.setdefault(name, Axis(name=name, example=inputs.size_at(place), rules={}))
            axis.rules[place] = lambda size: size
            continue
        axis.rules[place] = rule
    return list(axes.values())


def sizes_of_axes(values: Mapping[str, int], axes: list[Axis]) -> dict[Place, int]:
    """The size at each place where these axes have these values."""
    return {
        place: rule(values[axis.name]) for axis in axes if axis.name in values for place, rule in axis.rules.items()
    }
