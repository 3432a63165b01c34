"""Functions of torch for which others stand in while a module's forward is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from exportdoctor.shims.known_tensors import torch_name
from exportdoctor.shims.root_forward import Forward, patch_root_forward
from exportdoctor.torch_internals.fake_tensors import is_fake
from exportdoctor.torch_internals.trees import tree_leaves


@contextmanager
def stand_in_for_functions(module: Any, others: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Within it, the forward of `module` calls these for functions of torch of that name that are given a traced
    tensor."""

    def wrap(forward: Forward) -> Forward:
        def with_others(*args: Any, **kwargs: Any) -> Any:
            with _mode(others):
                return forward(*args, **kwargs)

        return with_others

    with patch_root_forward(module, wrap):
        yield


def _mode(others: Mapping[str, Callable[..., Any]]) -> Any:
    import torch
    from torch.overrides import TorchFunctionMode

    class StandsIn(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if torch.compiler.is_dynamo_compiling():  # a function that torch.cond, say, is given
                return func(*args, **kwargs)
            other = others.get(torch_name(func))
            if other is None or not any(map(is_fake, tree_leaves((args, kwargs)))):
                return func(*args, **kwargs)
            return other(*args, **{"input" if name == "self" else name: value for name, value in kwargs.items()})

    return StandsIn()
