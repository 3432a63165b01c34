"""What a target is before and after it is built: the only place for what the worker sees of a target.

A plan is torch-free and cheap; torch is imported when it is built. Inputs are made when a part is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from exportdoctor.core.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

    from exportdoctor.core.target import BuildOptions

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of one call."""


class Plan(Protocol):
    """A target that was found and checked, not yet built."""

    @property
    def ref(self) -> str:
        """The target as typed."""

    @property
    def title(self) -> str:
        """The target's name for a report's first line."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that will be scanned, in this order."""

    @property
    def available_parts(self) -> tuple[str, ...]:
        """Every part that can be asked for."""

    @property
    def options(self) -> BuildOptions:
        """How it will be built, with what the target itself decides filled in."""

    def identity(self) -> dict[str, object]:
        """Everything on disk and on the command line that the answers depend on, ready for JSON."""

    @property
    def has_twin(self) -> bool:
        """Whether `twin` gives one."""

    def twin(self) -> Plan | None:
        """A small model of the same kind with real values, `None` where there is none. May import torch."""

    def build(self) -> Built:
        """Import torch and build. Raises `TargetError`, with the target's own stack where its code failed."""


@dataclass(frozen=True, kw_only=True)
class BuiltPart:
    """One separately exported entry: `module(*args, **kwargs)` runs in eager, on every input set.

    `args`, `kwargs` and `dynamic_shapes` are exactly what `torch.export.export` takes; `dynamic_shapes` is
    `None` when every size is fixed. `more_inputs` are other sizes, of the same structure and under the same
    dynamic shapes. `prepare` surrounds an attempt, and any run of what it exported. `axes` names each dynamic
    axis in the user's words and lists the inputs that have it, as `input_ids[1]`.
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


@dataclass(frozen=True, kw_only=True)
class Built:
    """A target's model, in eval mode on its device. `parameters` counts unique elements, tied ones once.

    `weights` is `fake`, `random`, `checkpoint` or `as built`.
    """

    model: nn.Module
    parameters: int
    device: str
    dtype: str
    weights: str
    makers: Mapping[str, Callable[[], BuiltPart]]

    def part(self, name: str) -> BuiltPart:
        """The part and its inputs. Raises `TargetError` where the model cannot provide it."""
        if name not in self.makers:
            raise UsageError(f"There is no part {name!r}", hint=f"Parts: {', '.join(self.makers)}")
        return self.makers[name]()
