"""Whether a target draws from a generator of random numbers that nobody seeded: Python's, or numpy's."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.machinery import SourceFileLoader
from typing import Any

from exportdoctor.core.failure.frames import is_local_file

OUR_WRAPPERS = __file__
"""Between an installed module and the one that imports it there is a function of this file on the stack."""


class DrawnNumbers:
    """Calls `note` where numbers were drawn since `start_anew`.

    What an installed module draws while it is imported is left out: packages count by their versions.
    """

    def __init__(self, note: Callable[[], None]) -> None:
        self._note = note
        self._states: list[object] = []
        self._seeded: set[int] = set()
        self._imports_library = False

    def start_anew(self) -> None:
        """Draws from now on count."""
        self._states = _states()

    def start_in_fork(self) -> None:
        """Draws from now on count; a fork's generator of random numbers has just been seeded anew, by chance."""
        self.start_anew()
        self._seeded.discard(0)

    def look(self) -> None:
        """Note numbers drawn until now."""
        if self._imports_library:
            return
        for index, (before, now) in enumerate(zip(self._states, _states(), strict=True)):
            if before is not None and before != now and index not in self._seeded:
                self._note()

    def wrappers(self) -> Iterator[tuple[Any, str, Any]]:
        """Wrappers of what gives a generator of random numbers its state, and of what runs an imported module."""
        numpy: Any = sys.modules.get("numpy")
        places = [(0, random, "seed"), (0, random, "setstate")]
        places += [(1, numpy.random, "seed"), (1, numpy.random, "set_state")] if hasattr(numpy, "random") else []
        for index, module, name in places:
            yield module, name, partial(self._give_state, index, getattr(module, name))
        yield SourceFileLoader, "exec_module", self._tell_libraries(SourceFileLoader.exec_module)

    def _give_state(self, index: int, give: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.look()  # what was drawn before
        given = give(*args, **kwargs)
        has_value = any(value is not None for value in (*args, *kwargs.values()))
        (self._seeded.add if has_value else self._seeded.discard)(index)
        return given

    def _tell_libraries(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def run_module(*args: Any, **kwargs: Any) -> Any:
            before, of_library = self._imports_library, not is_local_file(args[0].path)
            if before == of_library:
                return run(*args, **kwargs)
            self._turn(of_library)
            try:
                return run(*args, **kwargs)
            finally:
                self._turn(before)

        return run_module

    def _turn(self, to_library: bool) -> None:
        self.look()
        self.start_anew()
        self._imports_library = to_library


def _states() -> list[object]:
    numpy: Any = sys.modules.get("numpy")
    drawn = numpy.random.get_state() if numpy is not None and hasattr(numpy, "random") else None
    return [random.getstate(), (drawn[1].tobytes(), drawn[2:]) if drawn else None]
