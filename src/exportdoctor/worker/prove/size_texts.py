"""Where the model's own code makes the text of a dynamic size: in an export that is the name of a symbol.

`len(f"{x.shape[0]}")` is then a number that has nothing to do with the size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.report.wording.export import makes_text_of_size
from exportdoctor.worker.describe.python_frames import is_user_frame


@contextmanager
def watch_size_texts() -> Iterator[list[tuple[str, str]]]:
    """The lines of the user's at which such texts are made inside, each with the text."""
    found: list[tuple[str, str]] = []
    before = torch.SymInt.__repr__

    def make_text(size: torch.SymInt) -> str:
        text, frame = before(size), sys._getframe(1)
        if is_user_frame(frame):
            found.append((f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}", text))
        return text

    with patch_attribute(torch.SymInt, "__repr__", make_text):
        yield found


def name_size_text(export: Callable[[], Any]) -> str:
    """The note on the first of them, found by exporting again; empty where there is none."""
    with watch_size_texts() as found, suppress(Exception):
        export()
    return makes_text_of_size(*found[0]) if found else ""
