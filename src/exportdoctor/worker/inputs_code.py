"""Writes the inputs of a part as Python code that makes them again: to be copied and changed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

import torch

from exportdoctor.targets.built import BuiltPart
from exportdoctor.targets.sizes.dynamic_shapes import is_dynamic

_MOST_VALUES = 4096
"""Integers are written out up to so many: placeholders and grids must stay what they are."""

_RUN = 5
_OF_THE_MODEL = '''"""Inputs of the part `{part}` of {target}, as exportdoctor made them. Change what you need, then run

    exportdoctor scan {target} --inputs THIS_FILE.py:inputs
"""
'''
_OF_A_SUBMODULE = '''"""Inputs of the submodule `{prefix}` of {target}, its part `{part}`, as exportdoctor made them."""
'''
_FUNCTION = """
import torch
from torch.export import Dim


def inputs(model):
    \"\"\"`kwargs` (and `args`) of one call; `more_inputs` are other sizes that `dynamic_shapes` allow.\"\"\"
    return {
"""


def inputs_code(part: BuiltPart, *, target: str) -> str:
    """A Python file with a function `inputs(model)` that returns the part's inputs and dynamic shapes."""
    head = _OF_A_SUBMODULE if part.prefix else _OF_THE_MODEL
    lines = [head.format(part=part.name, target=target, prefix=part.prefix), _FUNCTION]
    if part.args:
        lines.append(f"        'args': {_code(part.args)},\n")
    lines.append(f"        'kwargs': {_code(part.kwargs, depth=2)},\n")
    if part.dynamic_shapes:
        lines.append(f"        'dynamic_shapes': {_code(part.dynamic_shapes, depth=2)},\n")
    for args, kwargs in part.more_inputs[:1]:
        lines.append(f"        'more_inputs': [({_code(args)}, {_code(kwargs, depth=2)})],\n")
    return "".join(lines).replace("'", '"') + "    }\n"


def _code(value: Any, *, depth: int = 0) -> str:
    """The expression of a value; `depth` in indents breaks a dict over lines."""
    match value:
        case torch.Tensor():
            return _tensor(value)
        case Mapping() if depth and value:
            inner = "    " * (depth + 1)
            rows = "".join(f"{inner}{key!r}: {_code(item)},\n" for key, item in value.items())
            return "{\n" + rows + "    " * depth + "}"
        case Mapping():
            return "{" + ", ".join(f"{key!r}: {_code(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(_code(item) for item in value) + "]"
        case tuple():
            return "(" + ", ".join(_code(item) for item in value) + ("," if len(value) == 1 else "") + ")"
        case None | bool() | int() | float() | str():
            return repr(value)
        case torch.dtype():
            return str(value)
    if is_dynamic(value):
        return "Dim.DYNAMIC"
    return f"...  # a {type(value).__name__}: write how it is made"


def _tensor(tensor: torch.Tensor) -> str:
    """How a tensor of this shape, dtype and range of values is made."""
    shape, dtype = tuple(tensor.shape), tensor.dtype
    typed = "" if dtype == torch.float32 else f", dtype={dtype}"
    if tensor.is_floating_point() or tensor.is_complex():
        return f"torch.randn({shape}{typed})"
    integer = "" if dtype == torch.int64 else f", dtype={dtype}"
    low, high = (int(tensor.min()), int(tensor.max())) if tensor.numel() else (0, 0)
    if dtype == torch.bool or low == high:
        value = bool(low) if dtype == torch.bool else low
        return (
            f"torch.full({shape}, {value})"
            if not integer or dtype == torch.bool
            else f"torch.full({shape}, {low}{integer})"
        )
    if tensor.numel() <= _MOST_VALUES:
        return f"torch.tensor({_list(tensor.tolist())}{integer})"
    return f"torch.randint({low}, {high + 1}, {shape}{integer})"


def _list(values: Any) -> str:
    """A nested list of integers, long runs of one value written as `*[value] * count`."""
    if not isinstance(values, list):
        return repr(values)
    pieces: list[str] = []
    for text, group in groupby(_list(value) for value in values):
        count = len(list(group))
        pieces += [f"*[{text}] * {count}"] if count >= _RUN else [text] * count
    return f"[{', '.join(pieces)}]"
