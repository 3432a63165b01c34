"""Whether anything is done with what eager draws from the random numbers of Python and of NumPy.

Layers that a model drops while it is trained draw a number in evaluation too, and compare it with nothing.
"""

from __future__ import annotations

import gc
import pickle
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from exportdoctor.core.patch_attribute import patch_attributes

_OPERATIONS = (
    "abs add and array array_interface array_struct bool bytes call ceil complex contains copy deepcopy delitem "
    "divmod enter eq exit float floor floordiv format ge getitem gt hash index int invert iter le len length_hint "
    "lshift lt matmul mod mul ne neg next or pos pow radd rand rdivmod reduce reduce_ex repr reversed rfloordiv "
    "rlshift rmatmul rmod rmul ror round rpow rrshift rshift rsub rtruediv rxor setitem str sub truediv trunc xor"
)
_OTHERS = frozenset({
    "seed", "getstate", "setstate", "get_state", "set_state", "shuffle", "choice", "choices", "sample", "permutation",
})  # fmt: skip
"""They return no number that was drawn, but nothing, or objects of the caller's, whose identity may matter."""


class DrawnNumberUsed(Exception):
    """Something was done with a number that was drawn."""


class _Drawn:
    """Stands for what was drawn. Every operation on it is noted, and raises."""

    used = False

    def __getattr__(self, name: str) -> Any:
        self._use()

    def _use(self, *args: Any) -> Any:
        _Drawn.used = True
        raise DrawnNumberUsed


for _name in _OPERATIONS.split():
    setattr(_Drawn, f"__{_name}__", _Drawn._use)


def states_of_generators() -> tuple[bytes, ...]:
    """The states of the generators of Python's `random` and of NumPy."""
    numpy = sys.modules.get("numpy")
    states = (random.getstate(), numpy.random.get_state() if numpy is not None else None)
    return tuple(map(pickle.dumps, states))


def uses_draws(run: Callable[[], object]) -> bool:
    """Whether `run`, which calls a module in eager, does anything with a number that it draws: computes with it, keeps
    it or returns it. Where that is not known, as where it draws by other functions than those of the modules `random`
    and `numpy.random`, it counts as used.
    """
    before, drawn = states_of_generators(), list[weakref.ref[_Drawn]]()

    def draw(*args: Any, **kwargs: Any) -> _Drawn:
        made = _Drawn()
        drawn.append(weakref.ref(made))
        return made

    _Drawn.used = False
    try:
        with patch_attributes((holder, name, draw) for holder, name in _drawing_functions()):
            results = run()
    except Exception:
        return True
    if not results or _Drawn.used or states_of_generators() != before:
        return True
    gc.collect()
    return any(one() is not None for one in drawn)


def _drawing_functions() -> Iterator[tuple[Any, str]]:
    """The functions that draw and return what they drew, each as a module and its name there."""
    numpy = sys.modules.get("numpy")
    modules = (random, numpy.random) if numpy is not None else (random,)
    for module in modules:
        generator = module.random.__self__  # of which all functions that draw are methods
        for name in module.__all__:
            if name not in _OTHERS and getattr(getattr(module, name, None), "__self__", None) is generator:
                yield module, name
