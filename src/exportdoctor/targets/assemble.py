"""The only place that puts a part together: keyword arguments at two sizes and the names of their axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from exportdoctor.targets.built import BuiltPart
from exportdoctor.targets.dynamic_axes import Axes, axes_by_name, dynamic_shapes, dynamic_title

if TYPE_CHECKING:
    from torch import nn

    from exportdoctor.targets.subject import Subject


def assemble(
    name: str,
    subject: Subject,
    *,
    inputs: Mapping[str, Any],
    other_inputs: Mapping[str, Any],
    axes: Axes,
    module: nn.Module | None = None,
    prefix: str = "",
    prepare: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> BuiltPart:
    """The part with these axes dynamic, or with one fixed input set where static was asked for."""
    axes = {} if subject.options.static else {key: axes[key] for key in axes if key in inputs}
    names = axes_by_name(axes)
    return BuiltPart(
        name=name,
        title=dynamic_title(names),
        module=subject.model if module is None else module,
        prefix=prefix,
        args=(),
        kwargs=dict(inputs),
        dynamic_shapes=dynamic_shapes(axes, inputs=inputs) if axes else None,
        more_inputs=(((), dict(other_inputs)),) if axes else (),
        prepare=prepare,
        axes=names,
    )
