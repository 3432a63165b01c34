"""Whether an exception is a mistake of exportdoctor's code that runs beside the target's: its hooks and wrappers."""

from __future__ import annotations

import dis
import os
from collections import Counter
from types import TracebackType

from exportdoctor.core.failure.frames import OUR_FOLDER, is_entrance, is_our_file
from exportdoctor.core.failure.messages import first_line
from exportdoctor.worker.describe.describe_failure import cause_chain
from exportdoctor.worker.describe.python_frames import RAISE, is_user_frame, tracebacks

_WORKER = os.path.join(OUR_FOLDER, "worker", "")
_PASS_ON = frozenset({dis.opmap["CALL_FUNCTION_EX"]})
"""`function(*args, **kwargs)`: how a wrapper calls what it wraps."""


def own_fault(error: BaseException) -> str:
    """Where and how our code failed; empty if the failure is the target's or torch's.

    It is ours where our code raised it: neither with a `raise`, which is a refusal that we mean, nor while it passed on
    a call to what it wraps. Within an export it is also ours where torch raised it in a call that a hook of the worker
    made; what torch refuses in a shim is an answer about the shim.
    """
    *_, root = cause_chain(error)
    if isinstance(root, MemoryError):  # whose line asked last for what is not there is chance
        return ""
    links = list(tracebacks(root))
    if isinstance(root, RecursionError):  # who came last is chance: it is the fault of whoever calls itself
        codes = Counter(link.tb_frame.f_code for link in links).most_common(1)
        if not codes or not is_our_file(codes[0][0].co_filename):
            return ""
    place = next((n for n, link in reversed(list(enumerate(links))) if _is_of_someone(link)), None)
    if place is None or not is_our_file(links[place].tb_frame.f_code.co_filename):
        return ""
    link, below = links[place], links[place + 1 :]
    instruction = link.tb_frame.f_code.co_code[link.tb_lasti] if link.tb_lasti >= 0 else RAISE
    if instruction in _PASS_ON or (instruction == RAISE and not isinstance(root, AssertionError)):
        return ""
    code = link.tb_frame.f_code
    beside = code.co_filename.startswith(_WORKER) and _is_within_export(links[:place])
    if below and (not beside or _is_within_export(below)):
        return ""
    where = f"{code.co_filename}:{link.tb_lineno} in {code.co_qualname}"
    return f"{type(root).__name__}: {first_line(str(root), 200)} at {where}"


def _is_of_someone(link: TracebackType) -> bool:
    """Whether it runs the user's code or ours, and not torch's, Python's or generated code."""
    return is_user_frame(link.tb_frame) or is_our_file(link.tb_frame.f_code.co_filename)


def _is_within_export(links: list[TracebackType]) -> bool:
    return any(is_entrance(link.tb_frame.f_code.co_filename) for link in links)
