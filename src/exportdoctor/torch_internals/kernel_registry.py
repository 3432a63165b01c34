"""Fake kernels of operators: whether one is there, and one that is registered for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.torch_internals.fake_tensors import new_fake_mode
from exportdoctor.torch_internals.hook import Hook
from exportdoctor.torch_internals.trees import tree_map_only

_WORDS = ("There was no fake impl registered for", "no fake impl or Meta kernel")


def lacks_fake_kernel(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether torch has no way to run the operator on fake tensors of these arguments."""
    import torch
    from torch._subclasses.fake_tensor import UnsupportedOperatorException

    mode = new_fake_mode()
    with mode:
        try:
            given = tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
            operator(*given[0], **given[1])
        except UnsupportedOperatorException:
            return True
        except Exception as error:
            return any(words in str(error) for words in _WORDS)
    return False


@contextmanager
def registered_fake_kernel(operator: Any, kernel: Callable[..., Any]) -> Iterator[None]:
    """Within it the operator has this fake kernel. Raises RuntimeError where torch does not take one for it."""
    import torch
    from torch import library as public

    library: Any = public
    name = operator.name()
    if (made_in_python := library._maybe_get_opdef(name)) is not None:
        with patch_attribute(made_in_python, "_abstract_fn", kernel):
            yield
        return
    with library._scoped_library(operator.namespace, "FRAGMENT") as fragment:
        torch.library.register_fake(name, kernel, lib=fragment)
        yield


def _has_registry() -> bool:
    from torch import library as public

    library: Any = public
    return all(map(callable, (library.CustomOpDef, library._maybe_get_opdef, library._scoped_library)))


HOOKS = (
    Hook(
        id="fake-kernels",
        api="torch.library.{_maybe_get_opdef, _scoped_library}, torch.library.CustomOpDef._abstract_fn",
        used_for="fake kernels of operators that have none",
        lost="the shim fake-kernels is not applicable",
        seen_on=("2.13.0",),
        is_there=_has_registry,
    ),
)
FAKE_KERNELS = HOOKS[0]
