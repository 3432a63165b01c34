"""Rewritten functions of which eager runs are observed before the export: they show how the program can be made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType
from typing import Any

from exportdoctor.core.patch_attribute import patch_item
from exportdoctor.shims.export_call import ExportCall, Inputs
from exportdoctor.shims.record import NotApplicable
from exportdoctor.shims.rules.code.asked_lines import run_known
from exportdoctor.shims.rules.code.code_swap import all_code, swap_code
from exportdoctor.shims.rules.code.later_writes import LaterWrites
from exportdoctor.shims.rules.code.number_types import symbolic_numbers
from exportdoctor.shims.rules.code.pure_callees import only_computes

UNBOUND = object()
"""The value of a name that has none before rewritten code binds it."""
_LOOKS_BACK = "exportdoctor looks back"
"""The name of a hook, where torch has numbers that it counts up."""


@dataclass
class ObservedRewrite:
    """What rewritten code calls, and what was observed of it. `writes` are those that would reach a copy alone."""

    writes: LaterWrites
    observing: bool = False
    codes: set[CodeType] = field(default_factory=set)
    """The code that was rewritten: pieces of it may run it. What else they call is judged when it is called."""
    refused: list[str] = field(default_factory=list)

    @contextmanager
    def observe(self) -> Iterator[None]:
        """Within it, what eager runs of the code show is noted."""
        self.observing = True
        try:
            yield
        finally:
            self.observing = False

    def look_back(self) -> None:
        """Called where an eager run has just ended, before what it left is taken back."""

    def further_inputs(self, call: ExportCall) -> Iterable[Inputs]:
        """Those of which eager runs are observed beside the known ones; asked for one after the other."""
        return ()

    def refuse(self, why: str) -> NotApplicable:
        """Why the shim does not apply. It is noted as well, for forward may catch what is raised; not while dynamo
        traces a step or an arm, where it takes no such note."""
        import torch

        if not torch.compiler.is_dynamo_compiling():
            self.refused.append(why)
        return NotApplicable(why)


@only_computes
def value_of(read: Callable[[], Any]) -> Any:
    """What `read` gives, or a mark where the name is not bound yet."""
    try:
        return read()
    except NameError:
        return UNBOUND


@contextmanager
def run_rewritten(
    call: ExportCall, rewrite: ObservedRewrite, names: Mapping[str, Any], changes: Mapping[FunctionType, CodeType]
) -> Iterator[ExportCall]:
    """Within it the functions have their new code, in which `names` are what it calls, and of which eager runs were
    observed. Raises NotApplicable for what was refused, also in the export."""
    rewrite.codes.update(inner for code in changes.values() for inner in all_code(code))
    with symbolic_numbers(call), swap_code(changes, names):
        ended = patch_item(call.module._forward_hooks, _LOOKS_BACK, lambda *_: rewrite.look_back())
        with ended, rewrite.observe():
            run_known(call, more=rewrite.further_inputs(call))
        if rewrite.refused:
            raise NotApplicable(rewrite.refused[0])
        try:
            yield replace(call, checks=(*call.checks, rewrite.writes.check))
        finally:
            if rewrite.refused:
                raise NotApplicable(rewrite.refused[0])
