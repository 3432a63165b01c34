"""Registrations of pytree nodes last as long as they are needed, and no longer."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import SUPPORTED_NODES, register_pytree_node, tree_leaves

from exportdoctor.torch_internals.pytree_registry import register_node, temporary_registrations


class Pair:
    def __init__(self, left: torch.Tensor, right: torch.Tensor) -> None:
        self.left, self.right = left, right


class Other(Pair):
    """Registered by the body, as an import of a library's module does it."""


def children(pair: Pair) -> list[torch.Tensor]:
    return [pair.left, pair.right]


def register_pair() -> None:
    register_node(Pair, children, lambda values: Pair(*values))


def test_a_class_is_a_node_within_and_unknown_afterwards() -> None:
    pair = Pair(torch.ones(1), torch.zeros(2))
    with temporary_registrations(register_pair):
        assert [leaf.shape for leaf in tree_leaves(pair)] == [(1,), (2,)]
    assert tree_leaves(pair) == [pair]


def test_an_earlier_registration_is_put_back() -> None:
    with temporary_registrations(register_pair):
        outer = SUPPORTED_NODES[Pair]
        with temporary_registrations(register_pair):
            assert SUPPORTED_NODES[Pair] is not outer
        assert SUPPORTED_NODES[Pair] is outer
    assert Pair not in SUPPORTED_NODES


def test_what_the_body_registers_stays() -> None:
    with temporary_registrations(register_pair):
        register_pytree_node(Other, lambda pair: (children(pair), None), lambda values, _: Other(*values))
    try:
        assert Other in SUPPORTED_NODES
    finally:
        del SUPPORTED_NODES[Other]


def test_half_a_registration_is_undone() -> None:
    def fail() -> None:
        register_pair()
        raise RuntimeError("half")

    with pytest.raises(RuntimeError, match="half"), temporary_registrations(fail):
        pass
    assert Pair not in SUPPORTED_NODES
