"""The cause of wrong numbers, at the node that makes them."""

from __future__ import annotations

from exportdoctor.core.protocol.numbers_ladder import CauseKind, LadderCause, Side
from exportdoctor.worker.numbers.expression import expression_of
from exportdoctor.worker.translate.failed_node import NodeFact, user_frame


def make_cause(
    kind: CauseKind, message: str, fact: NodeFact | None, *, title: str, prefix: str, right: Side = "unknown"
) -> LadderCause:
    """The cause at a node."""
    if fact is None:
        return LadderCause(kind=kind, inputs=title, message=message, right=right)
    frame = user_frame(fact)
    return LadderCause(
        kind=kind, inputs=title, message=message, node=fact.name, op=fact.op,
        module=".".join(filter(None, (prefix, fact.module))), module_class=fact.module_class, right=right,
        file=frame.file if frame else "", line=frame.line if frame else 0, source=frame.source if frame else "",
        expression=expression_of(frame.file, frame.line, fact.op) if frame else "",
    )  # fmt: skip


def join_facts(fact: NodeFact | None, other: NodeFact | None) -> NodeFact:
    """The candidate's node, with the reference's submodule and line where it has none of its own."""
    if fact is None or other is None:
        return fact or other or NodeFact(name="", op="")
    if fact.stack:
        return fact
    return NodeFact(name=fact.name, op=fact.op, module=other.module, module_class=other.module_class, stack=other.stack)
