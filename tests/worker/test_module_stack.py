"""Whose method a frame runs: that of its first argument, whatever the argument is called."""

from __future__ import annotations

import functools
import sys
from types import FrameType
from typing import Any

from torch import nn

from exportdoctor.worker.describe.module_stack import module_of_method


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def around(*args: Any) -> Any:
        return function(*args)

    return around


class Layer(nn.Module):
    def plain(self) -> FrameType:
        return sys._getframe()

    def renamed(this) -> FrameType:
        return sys._getframe()

    @decorated
    def behind_a_decorator(me) -> FrameType:
        return sys._getframe()


class Derived(Layer):
    pass


def helper(layer: nn.Module) -> FrameType:
    return sys._getframe()


def renamed(layer: nn.Module) -> FrameType:
    """Called like a method, and none."""
    return sys._getframe()


def test_the_module_of_a_method_is_its_first_argument() -> None:
    layer = Derived()
    for frame in (layer.plain(), layer.renamed(), layer.behind_a_decorator()):
        assert module_of_method(frame) is layer


def test_a_function_that_is_given_a_module_is_no_method_of_it() -> None:
    layer = Derived()
    assert module_of_method(helper(layer)) is None
    assert module_of_method(renamed(layer)) is None
    assert module_of_method(sys._getframe()) is None
