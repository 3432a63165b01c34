"""Parts that are submodules of the whole model: towers, projector, encoder, decoder, heads.

Which submodule it is follows from the configuration nested in the model's own and from the module tree. Its inputs are
those with which the whole model called it, at two sizes; where it does not call it, those that are made for it alone.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from exportdoctor.core.errors import NoPartError, TargetError
from exportdoctor.core.failure.messages import first_line
from exportdoctor.targets.built import BuiltPart
from exportdoctor.targets.eager import run_once, runs_in_eager
from exportdoctor.targets.parts.default_part import default_part
from exportdoctor.targets.parts.model_context import InputSearch, ModelContext, assemble
from exportdoctor.torch_internals.trees import tree_map

if TYPE_CHECKING:
    import torch
    from torch import nn

    from exportdoctor.targets.built import Inputs

HEADS = "heads"
_MOST_ALONE, _SECONDS_ALONE = 2, 12.0
_BY_NAME: Mapping[str, re.Pattern[str]] = {
    "projector": re.compile(r"projector|projection|connector|merger|aligner|adapter|resampler|perceiver"),
    "encoder": re.compile(r"^encoder$"),
    "decoder": re.compile(r"^decoder$"),
    "backbone": re.compile(r"backbone"),
}
"""What a part's submodule is called where no nested configuration says which it is; the outermost of them counts."""


def submodule_part(subject: ModelContext, name: str, make_whole: Callable[[], BuiltPart]) -> BuiltPart:
    """The part `name`, with the inputs that it gets in the whole; a model that the whole does not call, with its own.

    Raises NoPartError where there is none.
    """
    why = f"{type(subject.model).__name__} calls no submodule that is its {name}"
    try:
        whole = make_whole()
    except TargetError as error:
        if name == HEADS:
            raise
        return _part_alone(subject, name, first_line(error))
    if name == HEADS:
        return _heads_part(subject, whole)
    for prefix, module in _candidates(subject, name):
        found = _calls(whole, {prefix: module})
        if found is not None:
            first, second = ({**calls[prefix]} for calls in found)
            return _part(subject, name, module, prefix, first, second, whole)
    return _part_alone(subject, name, whole.because or why)


def _part_alone(subject: ModelContext, name: str, why: str) -> BuiltPart:
    """The submodule that is a model of its own, on inputs made for it alone. Raises NoPartError where none runs."""
    refusal: TargetError | None = None
    for prefix, module in _with_configuration(subject, name)[:_MOST_ALONE]:
        if not hasattr(module, "main_input_name"):
            continue
        alone = replace(subject, model=module, search=InputSearch(seconds=_SECONDS_ALONE))
        try:
            return replace(default_part(alone, name=name), prefix=prefix, alone=why)
        except TargetError as error:
            refusal = refusal or error
    what = f"{type(subject.model).__name__} calls no submodule that is its {name}"
    raise NoPartError(
        f"{what}, and alone: {first_line(refusal)}" if refusal else what, hint="exportdoctor parts lists others"
    )


def _candidates(subject: ModelContext, name: str) -> Iterator[tuple[str, nn.Module]]:
    """The submodules that the part may be, outermost first: those with its configuration, then those so called."""
    yield from _with_configuration(subject, name)
    pattern = _BY_NAME.get(name, re.compile(rf"^{re.escape(name)}(?:_|$)"))
    yield from (one for one in _submodules(subject) if pattern.search(one[0].rpartition(".")[2]))


def _with_configuration(subject: ModelContext, name: str) -> list[tuple[str, nn.Module]]:
    """The submodules that have the nested configuration of this name, else one of its class; outermost first."""
    config = getattr(subject.config, f"{name}_config", None)
    if config is None or isinstance(config, dict):
        return []
    modules = _submodules(subject)
    own = [(prefix, module) for prefix, module in modules if getattr(module, "config", None) is config]
    return own or [one for one in modules if type(getattr(one[1], "config", None)) is type(config)]


def _submodules(subject: ModelContext) -> list[tuple[str, nn.Module]]:
    """All of them by name, outermost first."""
    modules = ((prefix, module) for prefix, module in subject.model.named_modules() if prefix)
    return sorted(modules, key=lambda one: one[0].count("."))


def _calls(whole: BuiltPart, modules: Mapping[str, nn.Module]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The keyword arguments of each module's first call in the whole, at both of its sizes; None if one is not called.

    Both are equal where the whole has one size, or calls the module otherwise at the other.
    """
    first = _calls_in(whole, (whole.args, whole.kwargs), modules)
    if first is None:
        return None
    second = _calls_in(whole, whole.more_inputs[0], modules) if whole.more_inputs else None
    return first, second or first


def _calls_in(whole: BuiltPart, inputs: Inputs, modules: Mapping[str, nn.Module]) -> dict[str, Any] | None:
    calls: dict[str, Any] = {}

    def keep(prefix: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if prefix not in calls:
                calls[prefix] = _by_name(module, *tree_map(_copy, (args, kwargs)))

        return hook

    handles = [
        module.register_forward_pre_hook(keep(prefix), with_kwargs=True, prepend=True)
        for prefix, module in modules.items()
    ]
    try:
        with whole.prepare():
            run_once(whole.module, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return calls if calls.keys() == modules.keys() and None not in calls.values() else None


def _copy(leaf: Any) -> Any:
    """The leaf as it is now. The deep copy of a fake tensor would be of another fake mode than the next one's."""
    import torch

    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else copy.deepcopy(leaf)


def _by_name(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """All arguments by the names of their parameters; None where some have no name."""
    signature = inspect.signature(module.forward)
    with suppress(TypeError):
        bound = signature.bind(*args, **kwargs).arguments
        kinds = {name: signature.parameters[name].kind for name in bound}
        if inspect.Parameter.VAR_POSITIONAL in kinds.values():
            return None
        bundle = next((name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_KEYWORD), None)
        rest: dict[str, Any] = bound.pop(bundle) if bundle is not None else {}
        # of what is passed on in a bundle, settings that are not set say nothing
        return {**bound, **{name: value for name, value in rest.items() if value is not None}}
    return None


def _part(
    subject: ModelContext,
    name: str,
    module: nn.Module,
    prefix: str,
    first: dict[str, Any],
    second: dict[str, Any],
    whole: BuiltPart,
) -> BuiltPart:
    axes = _axes(first, second, _named_sizes(whole))
    named = inspect.signature(module.forward).parameters
    if not axes.keys() <= named.keys() or not runs_in_eager(module, ((), second)):
        axes = {}
    return assemble(name, subject, inputs=first, other_inputs=second, axes=axes, module=module, prefix=prefix)


def _axes(first: Mapping[str, Any], second: Mapping[str, Any], names: Mapping[tuple[int, int], str]) -> dict[str, Any]:
    """The dimensions in which the two calls differ; none where they differ in anything else."""
    import torch

    found: dict[str, Any] = {}
    for path, one in first.items():
        other = second.get(path)
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.dim() == other.dim():
            found[path] = _find_differing(path, one, other, names)
        elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
            if not all(isinstance(value, torch.Tensor) for value in (*one, *other)):
                continue
            pairs = enumerate(zip(one, other, strict=True))
            found[path] = [_find_differing(f"{path}[{place}]", *pair, names) for place, pair in pairs]
    return {path: spec for path, spec in found.items() if spec and (isinstance(spec, dict) or any(spec))}


def _find_differing(
    path: str, one: torch.Tensor, other: torch.Tensor, names: Mapping[tuple[int, int], str]
) -> dict[int, str]:
    sizes = enumerate(zip(one.shape, other.shape, strict=False))
    return {dim: names.get((a, b), f"{path}[{dim}]") for dim, (a, b) in sizes if a != b}


def _named_sizes(whole: BuiltPart) -> dict[tuple[int, int], str]:
    """The names of the whole's axes, by their two sizes."""
    if not whole.more_inputs:
        return {}
    other = whole.more_inputs[0][1]
    found: dict[tuple[int, int], str] = {}
    for name, places in whole.axes.items():
        for place in places:
            match = re.fullmatch(r"(\w+)\[(\d+)\]", place)
            if match and match[1] in whole.kwargs and hasattr(whole.kwargs[match[1]], "shape"):
                pair = (int(whole.kwargs[match[1]].shape[int(match[2])]), int(other[match[1]].shape[int(match[2])]))
                found.setdefault(pair, name)
    return found


def _heads_part(subject: ModelContext, whole: BuiltPart) -> BuiltPart:
    """What the model puts behind its base model: its other direct children, each on its own input."""
    base = getattr(subject.model, "base_model_prefix", "")
    children = {name: module for name, module in subject.model.named_children() if name != base}
    called = {
        name: module
        for name, module in children.items()
        if next(module.parameters(), None) is not None and _calls(whole, {name: module}) is not None
    }
    found = _calls(whole, called) if called and base in dict(subject.model.named_children()) else None
    if found is None:
        raise NoPartError(f"{type(subject.model).__name__} has no heads of its own", hint="Scan another part")
    first, second = ({name: next(iter(given.values())) for name, given in calls.items()} for calls in found)
    axes = _axes(first, second, _named_sizes(whole))
    part = assemble(HEADS, subject, inputs=first, other_inputs=second, axes=axes, module=_heads(called))
    shapes = {"inputs": part.dynamic_shapes} if part.dynamic_shapes else None
    more = tuple((args, {"inputs": kwargs}) for args, kwargs in part.more_inputs)
    # nothing is spelled out: the names of the children are keys of the one input
    return replace(
        part,
        kwargs={"inputs": part.kwargs},
        dynamic_shapes=shapes,
        more_inputs=more,
        prepare=nullcontext,
        prepare_fixed=None,
    )


def _heads(children: Mapping[str, nn.Module]) -> nn.Module:
    """A module that calls each child with the input of its name; the children keep their names."""
    from torch import nn

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, module in children.items():
                self.add_module(name, module)

        def forward(self, inputs: dict[str, Any]) -> dict[str, Any]:
            return {name: getattr(self, name)(value) for name, value in inputs.items()}

    return Heads()
