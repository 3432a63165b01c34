"""The part of a traced graph that leads to a failure, as plain data: what a report draws."""

from __future__ import annotations

import msgspec


class SliceNode(msgspec.Struct, frozen=True, kw_only=True):
    """One operation. `label` is the user's own name for its value, `shape` its dtype and symbolic shape.

    `file`, `line` and `source` are the user's line that asked for it, as far as torch noted it.
    """

    name: str
    op: str
    shape: str = ""
    label: str = ""
    file: str = ""
    line: int = 0
    source: str = ""


class GraphSlice(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes in the order of tracing, edges from value to user, both by index.

    `targets` are the nodes whose value the failure is about; `left_out` counts what lies farther from them.
    """

    nodes: tuple[SliceNode, ...]
    edges: tuple[tuple[int, int], ...] = ()
    targets: tuple[int, ...] = ()
    left_out: int = 0
