"""A root that takes what was hoisted as further inputs, and the names by which it does."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from exportdoctor.shims.export_call import ExportCall, Named
from exportdoctor.shims.root_forward import Forward, patch_root_forward
from exportdoctor.shims.rules.hoisting.hoisted_results import HoistedResult

_NAME = re.compile(r"__\d+_\d+$")
"""The end of the names of inputs that are made here."""


class Recorded(BaseException):
    """All that was wanted of a forward is known."""


def is_made_here(name: str) -> bool:
    """Whether an input of that name was hoisted."""
    return _NAME.search(name) is not None


@contextmanager
def taking_more(
    call: ExportCall, results: Sequence[HoistedResult], take: Callable[[Named], AbstractContextManager[None]]
) -> Iterator[ExportCall]:
    """Within it the root's forward has a parameter for each input that the results make, and runs within `take` of
    those that it is given."""
    module = call.module
    names = [name for result in results for name in result.names if name]
    with patch_root_forward(module, partial(_make_forward, names, take)):
        bundled = call.kwargs.keys() - inspect.signature(module.forward).parameters.keys()
        yield call.with_options(flat_forward=call.options.flat_forward or bool(bundled))


def _make_forward(
    names: Sequence[str], take: Callable[[Named], AbstractContextManager[None]], forward: Forward
) -> Forward:
    def forward_taking(*args: Any, **kwargs: Any) -> Any:
        taken = {name: kwargs.pop(name) for name in names if name in kwargs}
        if not taken:
            return forward(*args, **kwargs)
        with take(taken):
            return forward(*args, **kwargs)

    forward_taking.__signature__ = with_parameters(inspect.signature(forward), names)  # type: ignore[attr-defined]
    return forward_taking


def with_parameters(signature: inspect.Signature, names: Sequence[str]) -> inspect.Signature:
    """The signature with further parameters, by keyword alone, that are None where they are not given."""
    known = list(signature.parameters.values())
    last = [parameter for parameter in known if parameter.kind is parameter.VAR_KEYWORD]
    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in names]
    return signature.replace(parameters=[*(one for one in known if one not in last), *more, *last])
