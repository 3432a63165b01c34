"""The only place that plans a user's own module: from `file.py:factory`, or handed over in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from exportdoctor.core.errors import UsageError
from exportdoctor.core.target import BuildOptions
from exportdoctor.targets.checkpoint_files import NO_CHECKPOINT
from exportdoctor.targets.factory_file import check_factory, source_hashes
from exportdoctor.targets.named_parts import choose_parts

if TYPE_CHECKING:
    from torch import nn

    from exportdoctor.core.target import TargetRef
    from exportdoctor.targets.built import Built, Inputs

_PARTS = ("default",)


@dataclass(frozen=True, kw_only=True)
class FactoryPlan:
    """A callable that returns a module and its inputs. `sources` is empty for a module made in this process."""

    ref: str
    title: str
    options: BuildOptions
    call: Callable[[], Any]
    parts: tuple[str, ...] = _PARTS
    available_parts: tuple[str, ...] = _PARTS
    sources: dict[str, str] = field(default_factory=dict)

    def identity(self) -> dict[str, object]:
        """The name, the options and the hashes of the factory's file and of the neighbours it imports."""
        return {
            "factory": self.title,
            "sources": self.sources,
            "parts": list(self.parts),
            "options": msgspec.to_builtins(self.options),
        }

    @property
    def has_twin(self) -> bool:
        """Nothing is known of how to make the module small."""
        return False

    def twin(self) -> None:
        """None: a factory's module has values of its own."""
        return

    def build(self) -> Built:
        """Call the factory, check what it returns, and move it to the device and dtype asked for."""
        from exportdoctor.targets.build_factory import build_factory

        return build_factory(self)


def factory_plan(target: TargetRef, *, file: Path, name: str) -> FactoryPlan:
    """Plan `file.py:factory`. The file is read, not run."""
    check_factory(file, name=name)
    _check_options(target.options)

    def call() -> Any:
        from exportdoctor.targets.build_factory import call_factory

        return call_factory(file, name=name)

    return FactoryPlan(
        ref=target.ref,
        title=f"{file.name}:{name}",
        options=target.options,
        call=call,
        parts=choose_parts(target.parts, available=_PARTS, default=_PARTS),
        sources=source_hashes(file),
    )


def plan_for_module(
    module: nn.Module,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    more_inputs: Sequence[Inputs] = (),
    options: BuildOptions | None = None,
) -> FactoryPlan:
    """Plan a module that exists already, in eval or training mode as it is.

    `more_inputs` are `(args, kwargs)` at other sizes, of the same structure.
    """
    answer = {
        "module": module,
        "args": tuple(args),
        "kwargs": kwargs or {},
        "dynamic_shapes": dynamic_shapes,
        "more_inputs": tuple(more_inputs),
    }
    name = type(module).__name__
    return FactoryPlan(ref=name, title=name, options=options or BuildOptions(), call=lambda: answer)


def _check_options(options: BuildOptions) -> None:
    if options.weights not in NO_CHECKPOINT:
        raise UsageError("A factory brings its own weights", hint="Load them in the factory")
    if options.image_size is not None:
        raise UsageError("A factory brings its own inputs", hint="Choose the image size in the factory")
