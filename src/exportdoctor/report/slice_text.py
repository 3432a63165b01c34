"""A slice of the traced graph as text, DOT and Mermaid: pure functions, one line for each node, in tracing order."""

from __future__ import annotations

from collections.abc import Callable

from exportdoctor.core.records.outcome import GraphSlice, SliceNode
from exportdoctor.report.wording.formatting import count, short_path

_MERMAID = str.maketrans({'"': "#quot;", "<": "#lt;", ">": "#gt;", "`": "#96;", "#": "#35;"})


def as_text(found: GraphSlice) -> str:
    """One line for each value: name, operator and inputs, shape, place; `▶` marks the failure's own values."""
    calls = [_call(found, index) for index in range(len(found.nodes))]
    widths = [max(map(len, column), default=0) for column in (calls, [node.shape for node in found.nodes])]
    lines = [f"  … {count(found.left_out, 'value')} farther away"] if found.left_out else []
    last_place = ""
    for index, (call, node) in enumerate(zip(calls, found.nodes, strict=True)):
        place = _place(node)
        mark = "▶" if index in found.targets else " "
        shown = place if place != last_place else ""
        last_place = place or last_place
        lines.append(f"{mark} {call:{widths[0]}}  {node.shape:{widths[1]}}  {shown}".rstrip())
    return "\n".join(lines)


def as_dot(found: GraphSlice) -> str:
    """A Graphviz digraph."""
    nodes = [
        f'  n{index} [label="{_lines(node, _dot, chr(92) + "n")}"{_dot_style(found, index)}];'
        for index, node in enumerate(found.nodes)
    ]
    edges = [f"  n{start} -> n{end};" for start, end in found.edges]
    return "\n".join(["digraph slice {", "  node [shape=box, fontname=monospace];", *nodes, *edges, "}"])


def as_mermaid(found: GraphSlice) -> str:
    """A Mermaid flowchart, as Markdown viewers draw it."""
    nodes = [
        f'  n{index}["{_lines(node, lambda text: text.translate(_MERMAID), "<br/>")}"]'
        for index, node in enumerate(found.nodes)
    ]
    edges = [f"  n{start} --> n{end}" for start, end in found.edges]
    marks = [f"  style n{index} stroke:#d00,stroke-width:3px" for index in found.targets]
    return "\n".join(["flowchart TD", *nodes, *edges, *marks])


def _call(found: GraphSlice, index: int) -> str:
    """`item = aten.item.default(max_1)`, or the bare name of an input."""
    node = found.nodes[index]
    if node.op == "input":
        return _name(node)
    given = (_name(found.nodes[start]) for start, end in sorted(found.edges) if end == index)
    return f"{_name(node)} = {node.op}({', '.join(given)})"


def _name(node: SliceNode) -> str:
    return node.label or node.name


def _place(node: SliceNode) -> str:
    return f"{short_path(node.file)}:{node.line}  {node.source}".rstrip() if node.file else ""


def _lines(node: SliceNode, escape: Callable[[str], str], newline: str) -> str:
    where = f"{short_path(node.file)}:{node.line}" if node.file else ""
    head = f"{_name(node)}: {node.op}"
    return newline.join(escape(line) for line in (head, node.shape, where, node.source) if line)


def _dot(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _dot_style(found: GraphSlice, index: int) -> str:
    return ", color=red, penwidth=2" if index in found.targets else ""
