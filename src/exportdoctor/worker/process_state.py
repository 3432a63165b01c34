"""Keeps a worker usable after the target's code ran in it: what that took away from the process is put back.

What it replaced stays replaced: the target may mean it, and an attempt must meet what its own program would.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.core.errors import ExportdoctorError, TargetError
from exportdoctor.core.exception_text import summary
from exportdoctor.worker.standard_streams import ForgivingStream, leave


@contextmanager
def keep_process() -> Iterator[None]:
    """Put back modules, builtins, import paths and standard streams that are gone; end a copy made by `os.fork`.

    Raises TargetError where something failed for want of them.
    """
    process, names, modules, paths = os.getpid(), dict(vars(builtins)), dict(sys.modules), list(sys.path)
    finders, recursion = list(sys.meta_path), sys.getrecursionlimit()
    try:
        yield
    except ExportdoctorError:
        raise
    except BaseException as error:
        gone = [*_put_back(vars(builtins), names), *_put_back(sys.modules, modules)]
        if not gone:
            raise
        what = ", ".join(sorted(gone)[:3])
        raise TargetError(f"The target's code took away what Python needs ({what}): {summary(error)}") from error
    finally:
        if os.getpid() != process:
            leave(0)
        sys.setrecursionlimit(max(recursion, sys.getrecursionlimit()))
        _put_back(vars(builtins), names)
        _put_back(sys.modules, modules)
        sys.modules.update(sys=sys, builtins=builtins)  # imported anew they lack what the interpreter has set
        sys.path[:] = sys.path or paths
        sys.meta_path[:] = sys.meta_path or finders
        _open_standard_streams()


def _put_back(holder: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """The names that were gone."""
    gone = [name for name in before if name not in holder]
    holder.update({name: before[name] for name in gone})
    return gone


def _open_standard_streams() -> None:
    """Descriptors 0 to 2 are open: what is opened next must not get one of their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name, None)
        if stream is None or getattr(stream, "closed", False):
            setattr(sys, name, ForgivingStream(number))
