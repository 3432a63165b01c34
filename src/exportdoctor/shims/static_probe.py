"""A probe, no cure: an export under it stops at the line that makes a dynamic dimension static.

torch itself complains of such a dimension only at the end, where no line is to blame any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.shims.patching import replaced


class DimensionMadeStatic(RuntimeError):
    """A dynamic dimension is given a constant size; the traceback leads to the line that asks for it."""


@contextmanager
def stopping_where_static() -> Iterator[None]:
    """Within it, an export raises DimensionMadeStatic where a dimension marked dynamic is first taken for a number."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    original = ShapeEnv._set_replacement

    def stop(self: Any, symbol: Any, target: Any, message: str) -> None:
        sources = self.var_to_sources.get(symbol, ())
        if sources and target.is_number:
            raise DimensionMadeStatic(f"{sources[0].name} becomes {target}")
        original(self, symbol, target, message)

    with replaced(ShapeEnv, "_set_replacement", stop):
        yield
