"""Functions of the user's with a cache of functools, and eager runs that do not ask it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.core.patch_attribute import patch_attributes

METHOD_KINDS = (staticmethod, classmethod)
_past: list[None] = []


def _has_cache(value: Any) -> bool:
    function = value.__func__ if isinstance(value, METHOD_KINDS) else value
    return isinstance(function, functools._lru_cache_wrapper)


def find_cached() -> list[tuple[Any, str, Any]]:
    """Each function with a cache in the user's modules and their classes: what has it, its name there, and it."""
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not is_user_file(file):
            continue
        classes = [
            value for value in list(vars(module).values()) if isinstance(value, type) and value.__module__ == name
        ]
        for holder in (module, *classes):
            found += [(holder, key, value) for key, value in list(vars(holder).items()) if _has_cache(value)]
    return found


@contextmanager
def past_all_caches() -> Iterator[None]:
    """Within it functions with a cache run: what an earlier call has kept would hide what they call."""
    changes = ((holder, name, _plain(value)) for holder, name, value in find_cached())
    with patch_attributes(changes):
        _past.append(None)
        try:
            yield
        finally:
            _past.pop()


def is_past_caches() -> bool:
    """Whether `past_all_caches` holds, for what stands in for a function with a cache."""
    return bool(_past)


def _plain(cached: Any) -> Any:
    if isinstance(cached, METHOD_KINDS):
        function: Any = cached.__func__
        return type(cached)(function.__wrapped__)
    return cached.__wrapped__
