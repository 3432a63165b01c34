"""Where the model's own code reads the text of a size or another symbolic number while it is exported.

It is that of the symbol then, `s77`, and fixes no value: a table that is asked by `str(x.shape[0])` gives what it gives
for a key that it lacks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from exportdoctor.core.failure.frames import is_user_file
from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.report.wording.export import text_of_number
from exportdoctor.shims.rules.code.number_types import is_in_message

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


@contextmanager
def watch_texts() -> Iterator[Callable[[], str]]:
    """Within it lines are noted that read the text of a symbolic number, but for messages. Yields what says so; that is
    empty where there are none. Shims that change the text are applied inside."""
    found: dict[str, str] = {}

    def say() -> str:
        line = next(iter(found), "")
        return text_of_number(line, found[line], others=len(found) - 1) if line else ""

    def wrap(plain: Callable[[Any], str]) -> Callable[[Any], str]:
        def text_of(number: Any) -> str:
            text, frame = plain(number), sys._getframe(1)
            if is_user_file(frame.f_code.co_filename) and number.node.is_symbolic() and not is_in_message(frame):
                found.setdefault(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}", text)
            return text

        return text_of

    with ExitStack() as stack:
        for kind in _NUMBERS:
            stack.enter_context(patch_attribute(kind, "__repr__", wrap(kind.__repr__)))
        yield say
