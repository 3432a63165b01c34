"""What a shim changes: one call of `torch.export.export`, and how other inputs are converted to its program's inputs.

A call is immutable: a shim returns a changed copy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import nn

    from exportdoctor.targets.built import BuiltPart

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of one call."""

Named = Mapping[str, Any]
"""The arguments of one call, each under the name of its parameter."""

Facts = Mapping[str, str]
"""What of the example is part of a program, by what it is of. Inputs that are converted for it must give the same."""

MADE_INPUTS = "inputs that are computed"
"""The fact of which inputs shims make."""

SuggestedFixes = Literal["none", "relations", "any"]


def _as_given(inputs: Inputs) -> Inputs:
    return inputs


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """How `torch.export.export` is called.

    `flat_forward`: keywords that would be bundled in `**kwargs` get a name in forward's signature. `suggested_fixes`:
    whether to try again with the dynamic shapes that torch proposes, and whether one may become a constant.
    """

    strict: bool = False
    prefer_deferred_runtime_asserts_over_guards: bool = False
    flat_forward: bool = False
    suggested_fixes: SuggestedFixes = "none"


@dataclass(frozen=True, kw_only=True)
class ExportCall:
    """One call of `torch.export.export`; `more_inputs` are other sizes under the same dynamic shapes.

    `passes` change the program, in their order; `checks` are then called with it. Both raise NotApplicable where a shim
    was no cure.

    `convert` turns inputs of the untouched module into inputs of the program that this call makes. It stays good after
    the shims are gone, so that the program can be compared with eager. `made` are the inputs that it computes, and
    `sets` the attributes that it sets for the example as it computes them. `converts_for` are those of the program for
    which this call's arguments are converted; None where they are what is exported. `facts` say what of the example is
    part of the program, `wanted` those of the programs for which arguments are converted, None where they are not
    known. `notes` say what shims took for granted: on what the program hangs that no input shows.
    """

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    dynamic_shapes: Any = None
    more_inputs: tuple[Inputs, ...] = ()
    options: ExportOptions = ExportOptions()
    passes: tuple[Callable[[Any], Any], ...] = ()
    checks: tuple[Callable[[Any], None], ...] = ()
    convert: Callable[[Inputs], Inputs] = _as_given
    made: frozenset[str] = frozenset()
    sets: frozenset[str] = frozenset()
    converts_for: frozenset[str] | None = None
    facts: Facts = field(default_factory=dict)
    wanted: tuple[Facts, ...] | None = None
    notes: tuple[str, ...] = ()

    @property
    def named(self) -> dict[str, Any]:
        """The arguments by parameter name, a bundle of `**kwargs` spelled out."""
        return named_inputs(inspect.signature(self.module.forward), (self.args, self.kwargs))

    def export(self) -> Any:
        """The `ExportedProgram` of this call. Raises what torch raises."""
        from exportdoctor.shims.torch_export import export_program

        return export_program(self)

    @property
    def all_facts(self) -> dict[str, str]:
        """The facts, with the names of the inputs that are made; empty where there is nothing of the kind."""
        made = {MADE_INPUTS: ", ".join(sorted(self.made))} if self.made else {}
        return made | dict(self.facts)

    def with_facts(self, facts: Facts) -> ExportCall:
        """The call with more facts."""
        return replace(self, facts={**self.facts, **facts})

    @property
    def wanted_inputs(self) -> frozenset[str] | None:
        """The inputs that shims make for the programs for which arguments are converted; None if that is not known."""
        if self.wanted is None:
            return None
        names = (name for facts in self.wanted for name in facts.get(MADE_INPUTS, "").split(", "))
        return frozenset(filter(None, names))

    def with_options(self, **changes: Any) -> ExportCall:
        """The call with these options changed."""
        return replace(self, options=replace(self.options, **changes))

    def with_inputs(self, compute: Callable[[Named], dict[str, Any]]) -> ExportCall:
        """The call with the inputs that `compute` makes of the named ones; an input that it gives as `None` is left
        out. All of them go by keyword then."""
        signature = inspect.signature(self.module.forward)  # a shim may give forward another one later

        def convert(inputs: Inputs) -> Inputs:
            named = named_inputs(signature, inputs)
            changed = {**named, **compute(named)}
            return (), {name: value for name, value in changed.items() if value is not None or name in named}

        before = self.named
        kwargs = _without_dropped(before, convert((self.args, self.kwargs))[1])
        more = tuple(((), _without_dropped(before, convert(inputs)[1])) for inputs in self.more_inputs)
        shapes, made = _shapes(self, kwargs, more), self.made | (kwargs.keys() - before.keys())
        call = replace(self, args=(), kwargs=kwargs, more_inputs=more, dynamic_shapes=shapes, made=made)
        call = replace(call, convert=lambda inputs: ((), _without_dropped(before, convert(self.convert(inputs))[1])))
        return call.with_options(flat_forward=True) if has_bundle(self.module, kwargs) else call


def require_facts(call: ExportCall) -> None:
    """Raise ValueError where converted inputs give other facts than each of the programs was made for."""
    found, programs = call.all_facts, call.wanted or ()
    differ = [[one for one in (*facts, *found) if not _is_given(call, facts, one)] for facts in programs]
    if programs and all(differ):
        what = differ[0][0]
        wanted, given = (one.get(what, "nothing") for one in (programs[0], found))
        raise ValueError(f"the program was made for one value of {what}, {wanted}, and found another, {given}")


def _is_given(call: ExportCall, facts: Facts, what: str) -> bool:
    """Whether one of the facts is as a program wants it. An input that it computes may be given as well."""
    if what != MADE_INPUTS:
        return facts.get(what) == call.facts.get(what)
    names = frozenset(filter(None, facts.get(MADE_INPUTS, "").split(", ")))
    return call.made <= names <= call.kwargs.keys()


def named_inputs(signature: inspect.Signature, inputs: Inputs) -> dict[str, Any]:
    """The arguments of forward by name, in the order of its signature."""
    args, kwargs = inputs
    named: dict[str, Any] = {}
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        match signature.parameters[name].kind:
            case inspect.Parameter.VAR_KEYWORD:
                named.update(value)
            case inspect.Parameter.VAR_POSITIONAL:
                raise TypeError(f"forward takes *{name}: its inputs have no names")
            case _:
                named[name] = value
    return named


def shapes_by_name(call: ExportCall) -> dict[str, Any] | None:
    """The dynamic shapes by parameter name, `None` where every size is fixed."""
    given = call.dynamic_shapes
    if given is None:
        return None
    if not isinstance(given, Mapping):
        return dict(zip(call.named, given, strict=False))
    flat = dict(given)
    for parameter in inspect.signature(call.module.forward).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD and isinstance(flat.get(parameter.name), Mapping):
            flat.update(flat.pop(parameter.name))
    return flat


def map_dims(shapes: Any, change: Callable[[Any], Any]) -> Any:
    """Dynamic shapes with `change` applied to every dimension that is a `Dim` or a hint."""
    match shapes:
        case dict():
            return {key: map_dims(value, change) for key, value in shapes.items()}
        case tuple() if hasattr(shapes, "_fields"):
            return tuple.__new__(type(shapes), (map_dims(value, change) for value in shapes))
        case list() | tuple():
            return type(shapes)(map_dims(value, change) for value in shapes)
        case None | int():
            return shapes
    return change(shapes)


def _without_dropped(before: Named, after: dict[str, Any]) -> dict[str, Any]:
    """Without the inputs that had a value and were given up."""
    return {name: value for name, value in after.items() if value is not None or before.get(name) is None}


def _shapes(call: ExportCall, kwargs: dict[str, Any], more: tuple[Inputs, ...]) -> dict[str, Any] | None:
    """Those of the inputs that the call has, and all dimensions of new inputs: their sizes follow from values, which a
    call without dynamic shapes does not fix either."""
    known = shapes_by_name(call)
    made = {
        name: _dynamic_dims(value, [other.get(name) for _, other in more])
        for name, value in kwargs.items()
        if name not in call.named
    }
    if known is None and not any(made.values()):
        return None
    return {name: made[name] if name in made else (known or {}).get(name) for name in kwargs}


def _dynamic_dims(value: Any, others: list[Any]) -> Any:
    """Dimensions whose sizes differ between the input sets stay dynamic, and a size of zero or one is fixed.

    torch decides about the others, since two images can have as many windows by chance; `torch.export.AdditionalInputs`
    would fix those."""
    import torch
    from torch.export import Dim

    if not isinstance(value, torch.Tensor):
        return None
    sizes = zip(value.shape, *(other.shape for other in others if other is not None), strict=True)
    found = {place: set(several) for place, several in enumerate(sizes)}
    return {
        place: Dim.DYNAMIC if len(several) > 1 else Dim.AUTO
        for place, several in found.items()
        if several not in ({0}, {1})
    }


def has_bundle(module: nn.Module, kwargs: Mapping[str, Any]) -> bool:
    """Whether one of these keywords has no parameter of its own."""
    return not kwargs.keys() <= inspect.signature(module.forward).parameters.keys()


def call_for_part(part: BuiltPart) -> ExportCall:
    """The export of a target's part, as yet without shims."""
    return ExportCall(
        module=part.module,
        args=part.args,
        kwargs=part.kwargs,
        dynamic_shapes=part.dynamic_shapes,
        more_inputs=part.more_inputs,
    )
