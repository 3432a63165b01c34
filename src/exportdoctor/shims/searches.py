"""What a shim finds by running the model, kept while the same shims are applied to the same call several times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

Found = TypeVar("Found")

_KEPT: ContextVar[dict[tuple[str, int], Any] | None] = ContextVar("kept_searches", default=None)


@contextmanager
def keep_searches() -> Iterator[None]:
    """Within it each search of a shim is made once. Only the same shims may be applied there, in the same order to
    the same call, whose module and inputs stay as they are."""
    before = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(before)


def search_once(shim: str, module: Any, search: Callable[[], Found]) -> Found:
    """What `search` gives, or gave for this shim and module within `keep_searches`. Raises what it raises."""
    kept = _KEPT.get()
    if kept is None:
        return search()
    key = (shim, id(module))
    if key not in kept:
        kept[key] = search()
    found: Found = kept[key]
    return found
