"""Several shims at once: entered in order, left in reverse, each named where it makes trouble."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Shim


@contextmanager
def applying(shims: Sequence[Shim], call: ExportCall) -> Iterator[ExportCall]:
    """Within it all of `shims` hold; yields the call to export. Raises NotApplicable."""
    with ExitStack() as stack:
        for shim in shims:
            try:
                call = stack.enter_context(shim.apply(call))
            except NotApplicable as reason:
                raise NotApplicable(f"{shim.id}: {reason}") from None
        yield call
