"""The only place where targets/ runs a model: once, on copies of its inputs, leaving no trace in the model."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from exportdoctor.targets.built import Inputs


def run_once(module: nn.Module, inputs: Inputs) -> Any:
    """The module's output without gradients. Raises what the module raises."""
    args, kwargs = inputs
    return run_method_once(module, module, *args, **kwargs)


def run_in_a_row(module: nn.Module, inputs: Inputs, *, times: int = 1) -> tuple[Any, ...]:
    """The outputs of so many calls one after the other, without gradients; state that a call leaves, the next one sees.

    The module is then as it was. Raises what the module raises.
    """
    import torch

    outputs = []
    with torch.no_grad(), _quiet(), left_as_it_was(module):
        for _ in range(times):
            args, kwargs = copy.deepcopy(inputs)
            outputs.append(copy.deepcopy(module(*args, **kwargs)))
    return tuple(outputs)


def run_method_once(module: nn.Module, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a method of the module returns without gradients. Raises what it raises."""
    import torch

    with torch.no_grad(), _quiet(), left_as_it_was(module):
        args, kwargs = copy.deepcopy((args, kwargs))
        return method(*args, **kwargs)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says on stderr of fake tensors: of the data pointer when one is copied (torch 2.13),
    and of an operator that refuses one, which is an answer here."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.disabled
    logger.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
            yield
    finally:
        logger.disabled = before


def runs_in_eager(module: nn.Module, inputs: Inputs) -> bool:
    """Whether the module accepts the inputs."""
    try:
        run_once(module, inputs)
    except Exception:
        return False
    return True


@contextmanager
def left_as_it_was(module: nn.Module) -> Iterator[None]:
    """Restore attributes, hooks, buffers and the random state on exit. In-place writes to parameters stay.

    Hooks and the flags about them must go together: transformers adds output hooks to a model at its first run
    and notes so in an attribute; with only one of the two undone, later runs would be hooked twice.
    """
    import torch

    children = [(child, dict(child.__dict__), _containers(child)) for child in module.modules()]
    values = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            for child, attributes, contents in children:
                child.__dict__.clear()
                child.__dict__.update(attributes)
                _restore(child, contents)
            with torch.no_grad():
                for buffer, value in values:
                    buffer.copy_(value)


def _containers(module: nn.Module) -> dict[str, Any]:
    """What the module's own dicts, lists and sets hold now, its hooks and buffers among them."""
    return {name: copy.copy(value) for name, value in module.__dict__.items() if isinstance(value, dict | list | set)}


def _restore(module: nn.Module, contents: dict[str, Any]) -> None:
    for name, content in contents.items():
        container = module.__dict__[name]
        container.clear()
        if isinstance(container, list):
            container.extend(content)
        else:
            container.update(content)
