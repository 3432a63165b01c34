"""Writes the inputs of a part as Python code that makes them again: to be copied and changed."""

from __future__ import annotations

import enum
import math
import operator
import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import groupby
from typing import Any

import torch

from exportdoctor.targets.built import BuiltPart
from exportdoctor.targets.sizes.dynamic_shapes import is_dynamic
from exportdoctor.targets.sizes.fitted_shapes import dim_code

_MOST_VALUES = 4096
"""Integers are written out up to so many: placeholders and grids must stay what they are."""

_RUN = 5
_OF_THE_MODEL = '''"""Inputs of the part `{part}` of {target}, as exportdoctor made them. Change what you need, then run

    exportdoctor scan {target} --inputs THIS_FILE.py:inputs
"""
'''
_OF_A_FACTORY = '''"""Inputs of {target}, as its factory gives them; floating-point values are drawn here.

Change them there: with a factory --inputs is refused.
"""
'''
_OF_A_SUBMODULE = '''"""Inputs of the submodule `{prefix}` of {target}, its part `{part}`, as exportdoctor made them."""
'''
_IMPORTS = """
import torch
from torch.export import Dim
"""
_STUB = '''

def {name}():
    """Write how a {kind} is made."""
    raise NotImplementedError
'''
_FILL = '''

def fill(kind, attributes):
    """An object of a class with these attributes, without a call of its constructor."""
    made = object.__new__(kind)
    vars(made).update(attributes)
    return made
'''
_FUNCTION = """

def inputs(model):
    \"\"\"`kwargs` (and `args`) of one call; `more_inputs` are other sizes that `dynamic_shapes` allow.\"\"\"
    return {
"""


def inputs_code(part: BuiltPart, *, target: str, by_factory: bool = False) -> str:
    """A Python file with a function `inputs(model)` that returns the part's inputs and dynamic shapes."""
    head = _OF_A_FACTORY if by_factory else _OF_A_SUBMODULE if part.prefix else _OF_THE_MODEL
    code = _Code(config=None if by_factory or part.prefix else getattr(part.module, "config", None))
    lines = [f'        "args": {code.of(part.args)},\n'] if part.args else []
    lines.append(f'        "kwargs": {code.of(part.kwargs, depth=2)},\n')
    if part.dynamic_shapes:
        lines.append(f'        "dynamic_shapes": {code.of(part.dynamic_shapes, depth=2)},\n')
    for args, kwargs in part.more_inputs[:1]:
        lines.append(f'        "more_inputs": [({code.of(args)}, {code.of(kwargs, depth=2)})],\n')
    before = [head.format(part=part.name, target=target, prefix=part.prefix), _IMPORTS, *sorted(code.imports.values())]
    before += [_FILL] if code.fills else []
    stubs = [_STUB.format(name=name, kind=kind) for name, kind in sorted(code.stubs.items())]
    return "".join((*before, *stubs, _FUNCTION, *lines, "    }\n"))


@dataclass
class _Code:
    """Writes values as expressions. `imports` are the lines for their classes by name, `stubs` functions that the user
    writes, `fills` says that the function `fill` is called. An object of the class of `config` is the model's."""

    config: Any = None
    imports: dict[str, str] = field(default_factory=dict)
    stubs: dict[str, str] = field(default_factory=dict)
    fills: bool = False
    _inside: list[int] = field(default_factory=list)  # the objects that are being written

    def of(self, value: Any, *, depth: int = 0) -> str:
        """The expression of a value; `depth` in indents breaks a dict over lines."""
        match value:
            case torch.Tensor():
                return _tensor(value)
            case Mapping() if type(value) is not dict:
                return self._write_mapping(value)
            case Mapping() if depth and value:
                inner = "    " * (depth + 1)
                rows = "".join(f"{inner}{_quote(key)}: {self.of(item)},\n" for key, item in value.items())
                return "{\n" + rows + "    " * depth + "}"
            case Mapping():
                return "{" + ", ".join(f"{_quote(key)}: {self.of(item)}" for key, item in value.items()) + "}"
            case list():
                return self._list(value)
            case tuple() if hasattr(value, "_fields") and (kind := self._class(type(value))):
                return f"{kind}({', '.join(map(self.of, value))})"
            case tuple():
                return "(" + ", ".join(map(self.of, value)) + ("," if len(value) == 1 else "") + ")"
            case enum.Enum() if kind := self._class(type(value)):
                return f"{kind}[{_quote(value.name)}]"
            case None | bool() | int() | str():
                return _quote(value)
            case float():
                return repr(value) if math.isfinite(value) else f'float("{value}")'
            case torch.dtype():
                return str(value)
            case torch.device():
                return f'torch.device("{value}")'
            case type() if kind := self._class(value):
                return kind
        return dim_code(value) if is_dynamic(value) else self._object(value)

    def _write_mapping(self, value: Mapping[Any, Any]) -> str:
        """A mapping of another class than dict: what its class makes of a dict, if that is the same."""
        kind = type(value)
        if isinstance(value, defaultdict) and kind is defaultdict:
            factory = self._class(value.default_factory) if isinstance(value.default_factory, type) else ""
            return f"{self._class(kind)}({factory}, {self.of(dict(value))})" if factory else self._object(value)
        if not is_dataclass(kind) and _is_made_of_dict(value) and (name := self._class(kind)):
            return f"{name}({self.of(dict(value))})"
        return self._object(value)

    def _list(self, values: list[Any]) -> str:
        """A list; of objects that are written alike, such as the layers of a cache, the code of one stands for all."""
        items = [self.of(value) for value in values]
        if len(items) > 1 and len(set(items)) == 1 and items[0].startswith("fill("):
            return f"[{items[0]} for _ in range({len(items)})]"
        return f"[{', '.join(items)}]"

    def _class(self, kind: type) -> str:
        """The name of a class after its import; "" for one that cannot be imported by its name."""
        module, name = kind.__module__, kind.__qualname__
        try:
            found = operator.attrgetter(name)(sys.modules[module])
        except (AttributeError, KeyError):
            return ""
        first = name.partition(".")[0]
        line = f"from {module} import {first}\n"
        if found is not kind or self.imports.get(first, line) != line:
            return ""
        if module != "builtins":
            self.imports[first] = line
        return name

    def _object(self, value: Any) -> str:
        """An instance: of a dataclass by its fields, another by its attributes, else by a function the user writes."""
        kind = type(value)
        if self.config is not None and kind is type(self.config):  # a copy of the inputs has a copy of it
            return "model.config"
        if id(value) not in self._inside and not isinstance(value, torch.nn.Module) and (name := self._class(kind)):
            self._inside.append(id(value))
            try:
                if is_dataclass(kind) and all(one.init for one in fields(kind)):
                    given = (f"{one.name}={self.of(getattr(value, one.name))}" for one in fields(kind))
                    return f"{name}({', '.join(given)})"
                if _is_its_attributes(kind):
                    self.fills = True
                    return f"fill({name}, {self.of(vars(value))})"
            finally:
                self._inside.pop()
        stub = f"make_{re.sub(r'[^a-z0-9]+', '_', kind.__name__.lower())}"
        self.stubs[stub] = kind.__name__
        return f"{stub}()"


def _is_made_of_dict(value: Mapping[Any, Any]) -> bool:
    """Whether its class makes the same of a dict of what it holds, as OrderedDict does."""
    try:
        made = type(value)(dict(value))  # type: ignore[call-arg]
        attributes = [vars(one) if hasattr(one, "__dict__") else {} for one in (made, value)]
        return _holds_the_same(dict(made), dict(value)) and _holds_the_same(*attributes)
    except Exception:  # of the user's class
        return False


def _holds_the_same(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    """Whether the values under the same keys are the same objects, equal numbers and texts, or dicts of such."""
    if list(one) != list(other):
        return False
    for mine, theirs in zip(one.values(), other.values(), strict=True):
        inner = type(mine) is type(theirs) is dict and _holds_the_same(mine, theirs)
        plain = type(mine) is type(theirs) and type(mine) in (bool, int, float, str) and mine == theirs
        if not (mine is theirs or inner or plain):
            return False
    return True


def _is_its_attributes(kind: type) -> bool:
    """Whether an object of this class is what its attributes are: it has no slots, and no memory of another kind."""
    if not getattr(kind, "__dictoffset__", 0) or any(vars(base).get("__slots__") for base in kind.__mro__):
        return False
    try:
        object.__new__(kind)
    except TypeError:
        return False
    return True


def _quote(value: Any) -> str:
    """As `repr`, a text in double quotes unless it has some."""
    text = repr(value)
    return f'"{text[1:-1]}"' if isinstance(value, str) and text[0] == "'" and '"' not in text else text


def _tensor(tensor: torch.Tensor) -> str:
    """How a tensor of this shape, dtype and range of values is made."""
    shape, dtype = tuple(tensor.shape), tensor.dtype
    typed = "" if dtype == torch.float32 else f", dtype={dtype}"
    if tensor.is_floating_point() or tensor.is_complex():
        narrow = dtype.itemsize == 1  # torch draws no float8
        return f"torch.randn({shape}).to({dtype})" if narrow else f"torch.randn({shape}{typed})"
    integer = "" if dtype == torch.int64 else f", dtype={dtype}"
    wide = tensor.to(torch.int64)  # torch has no order of uint16 and its like
    low, high = (int(wide.min()), int(wide.max())) if tensor.numel() else (0, 0)
    if low == high:
        return f"torch.full({shape}, {bool(low)})" if dtype == torch.bool else f"torch.full({shape}, {low}{integer})"
    if tensor.numel() <= _MOST_VALUES:
        return f"torch.tensor({_list(tensor.tolist())}{'' if dtype == torch.bool else integer})"
    drawn = f"torch.randint({low}, {high + 1}, {shape}"
    return f"{drawn}).bool()" if dtype == torch.bool else f"{drawn}{integer})"


def _list(values: Any) -> str:
    """A nested list of integers, long runs of one value written as `*[value] * count`."""
    if not isinstance(values, list):
        return repr(values)
    pieces: list[str] = []
    for text, group in groupby(_list(value) for value in values):
        count = len(list(group))
        pieces += [f"*[{text}] * {count}"] if count >= _RUN else [text] * count
    return f"[{', '.join(pieces)}]"
