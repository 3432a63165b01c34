"""From a target's part to the export call that shims change. Apart from the call, which travels into shims files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exportdoctor.shims.export_call import ExportCall

if TYPE_CHECKING:
    from exportdoctor.targets.built import BuiltPart


def call_of(part: BuiltPart) -> ExportCall:
    """The part's own export. The other sizes are those of the part: they say what is dynamic."""
    return ExportCall(
        module=part.module,
        args=part.args,
        kwargs=part.kwargs,
        dynamic_shapes=part.dynamic_shapes,
        more_inputs=part.more_inputs,
    )
