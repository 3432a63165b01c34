"""The called modules of a part: their tree, as a graph in which parents point to submodules, and their names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import networkx as nx

from exportdoctor.core.protocol.scan import Captured, ModuleFact


@dataclass(frozen=True)
class CallSite:
    """One distinct call of one module."""

    fqn: str
    call: int


def call_tree(captured: Captured) -> nx.DiGraph:
    """Called modules, each below its nearest called ancestor: a list or dict of modules is no stop on the way."""
    called = {fact.fqn for fact in captured.modules if fact.calls}
    tree = nx.DiGraph()
    for fact in captured.modules:
        if fact.fqn not in called:
            continue
        tree.add_node(fact.fqn, fact=fact)
        parent = next((name for name in ancestors(fact.fqn) if name in called), None)
        if parent is not None and fact.fqn != captured.prefix:
            tree.add_edge(parent, fact.fqn)
    return tree


def ancestors(fqn: str) -> Iterable[str]:
    """`a.b.c` gives `a.b`, `a` and the root's empty name."""
    while fqn:
        fqn = fqn.rpartition(".")[0]
        yield fqn


def below(tree: nx.DiGraph, fqn: str) -> set[str]:
    """Every called descendant of `fqn`."""
    return set(nx.descendants(tree, fqn))


def depth(fqn: str) -> int:
    """How deep a name lies; the root has depth 0."""
    return fqn.count(".") + 1 if fqn else 0


def module_facts(tree: nx.DiGraph) -> dict[str, ModuleFact]:
    """The facts of all called modules by name."""
    return {name: data["fact"] for name, data in tree.nodes(data=True)}


def translate_fqn(fqn: str, *, asked: str, member: str) -> str:
    """The name in `member` of the submodule that is called `fqn` in `asked`, where both are equal modules."""
    if fqn == asked:
        return member
    rest = fqn[len(asked) + 1 :] if asked and fqn.startswith(f"{asked}.") else fqn if not asked else None
    if rest is None:
        return fqn
    return f"{member}.{rest}" if member else rest
