"""A target that is built: its model and how to make each of its parts. Inputs are made with their part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from exportdoctor.core.errors import UsageError
from exportdoctor.targets.sizes.dynamic_shapes import dynamic_title
from exportdoctor.targets.sizes.other_sizes import same_shapes

if TYPE_CHECKING:
    from torch import nn

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of one call."""


@dataclass(frozen=True, kw_only=True)
class BuiltPart:
    """One separately exported entry: `module(*args, **kwargs)` runs in eager, on every input set.

    `args`, `kwargs` and `dynamic_shapes` are exactly what `torch.export.export` takes; `dynamic_shapes` is
    `None` when every size is fixed. `more_inputs` are other sizes, of the same structure and under the same
    dynamic shapes. `prepare` surrounds an attempt, and any run of what it exported. `axes` names each dynamic
    axis in the user's words and lists the inputs that have it, as `input_ids[1]`. `left_out` are inputs of the
    model that eager did not take as they were made (`because`, empty where none were tried), so that the part goes
    without them. `not_made` are optional inputs that a processor can give and that were not tried. `alone` says
    why the whole does not call the part, whose inputs were then made for it alone. `several` makes the same part
    with several pictures in several rows, for a file that takes any number. `prepare_fixed` takes the place of
    `prepare` at fixed sizes, where that is for the sake of dynamic ones. `unused` counts the input sets of other
    sizes that were given without dynamic shapes.
    """

    name: str
    title: str
    module: nn.Module
    prefix: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic_shapes: dict[str, Any] | tuple[Any, ...] | list[Any] | None
    more_inputs: tuple[Inputs, ...] = ()
    prepare: Callable[[], AbstractContextManager[Any]] = nullcontext
    axes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    because: str = ""
    not_made: tuple[str, ...] = ()
    alone: str = ""
    several: Callable[[], BuiltPart] | None = None
    prepare_fixed: Callable[[], AbstractContextManager[Any]] | None = None
    unused: int = 0

    def at_fixed_sizes(self) -> BuiltPart:
        """The part with its first input set, those of the same sizes, and no dynamic ones."""
        first = self.args, self.kwargs
        return replace(
            self,
            title=dynamic_title({}),
            dynamic_shapes=None,
            more_inputs=tuple(one for one in self.more_inputs if same_shapes(one, first)),
            axes={},
            several=None,
            prepare=self.prepare_fixed or self.prepare,
        )


@dataclass(frozen=True)
class Substitution:
    """The model was built or run in another form (`what`), because of what came of the one that was asked."""

    what: str
    because: str


@dataclass(frozen=True, kw_only=True)
class BuiltTarget:
    """A target's model, in eval mode on its device. `parameters` counts unique elements, tied ones once.

    `weights` is `fake`, `random`, `checkpoint` or `as built`. `substitutions`: what was built in place of
    what the configuration says. `static`: every part is at fixed sizes, whatever its maker says.
    """

    model: nn.Module
    parameters: int
    device: str
    dtype: str
    weights: str
    makers: Mapping[str, Callable[[], BuiltPart]]
    substitutions: tuple[Substitution, ...] = ()
    static: bool = False

    def part(self, name: str) -> BuiltPart:
        """The part and its inputs. Raises `TargetError` where the model cannot provide it."""
        if name not in self.makers:
            raise UsageError(f"There is no part {name!r}", hint=f"Parts: {', '.join(self.makers)}")
        part = self.makers[name]()
        return part.at_fixed_sizes() if self.static else part
