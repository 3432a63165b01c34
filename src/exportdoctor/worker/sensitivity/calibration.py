"""Input sets for calibration, search and proof: from a file that the user gives, or made for a file's own inputs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import torch

from exportdoctor.core.errors import UsageError
from exportdoctor.core.failure.messages import first_line
from exportdoctor.targets import BuiltPart
from exportdoctor.worker.sensitivity.quantisers import Feed
from exportdoctor.worker.sensitivity.short_floats import as_array

_FORMS = "Give a .pt file with a list of dicts of tensors, a .npz file, or a folder of .npz files"
_OPEN_SIZE = 4
_KINDS = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(int64)": "int64", "tensor(int32)": "int32",
          "tensor(bool)": "bool"}  # fmt: skip


def read_sets(given: str) -> list[dict[str, torch.Tensor]]:
    """The sets of a file or folder, by the inputs' names. Raises UsageError where it is none."""
    path = Path(given)
    try:
        if path.is_dir():
            found = [one for file in sorted(path.glob("*.npz")) for one in _arrays(file)]
        elif path.suffix == ".npz":
            found = list(_arrays(path))
        else:
            loaded = torch.load(path, weights_only=True)
            found = loaded if isinstance(loaded, list) else [loaded]
    except Exception as error:
        raise UsageError(f"{path} cannot be read: {type(error).__name__}: {_reason(error)}", hint=_FORMS) from error
    fits = all(isinstance(one, dict) and all(isinstance(leaf, torch.Tensor) for leaf in one.values()) for one in found)
    if not found or not fits:
        raise UsageError(f"{path} holds no input sets", hint=_FORMS)
    return found


def _reason(error: Exception) -> str:
    """Its first sentence: torch goes on with advice to load files that may run code."""
    return first_line(error).partition(". ")[0]


def _arrays(file: Path) -> Iterator[dict[str, torch.Tensor]]:
    """The sets of one archive: one, or several whose names are `0/x`, `1/x`, ..."""
    with numpy.load(file, allow_pickle=False) as arrays:
        sets: dict[str, dict[str, torch.Tensor]] = {}
        for name in arrays.files:
            number, slash, rest = name.partition("/")
            key, inner = (number, rest) if slash and number.isdigit() else ("", name)
            sets.setdefault(key, {})[inner] = torch.from_numpy(arrays[name])
    yield from sets.values()


def name_inputs(part: BuiltPart, given: dict[str, torch.Tensor], file: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The part's inputs with those of a set in their places. Raises UsageError for a name that forward has not."""
    signature = inspect.signature(part.module.forward)
    places = {name: at for at, name in enumerate(_positional(signature))}
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in signature.parameters.values())
    args, kwargs = list(part.args), dict(part.kwargs)
    for name, value in given.items():
        if (place := places.get(name, len(args))) < len(args):
            args[place] = _in_dtype_of(args[place], value)
        elif name in kwargs or name in signature.parameters or takes_all:
            kwargs[name] = _in_dtype_of(kwargs.get(name), value)
        else:
            raise UsageError(
                f"{file} has an input {name!r}, which {type(part.module).__name__}.forward does not take",
                hint=f"It takes {', '.join(signature.parameters)}",
            )
    return tuple(args), kwargs


def _in_dtype_of(example: Any, value: torch.Tensor) -> torch.Tensor:
    """Floating-point numbers in the example's dtype: numpy has no bfloat16."""
    floats = isinstance(example, torch.Tensor) and example.is_floating_point() and value.is_floating_point()
    return value.to(example.dtype) if floats else value


def _positional(signature: inspect.Signature) -> Iterator[str]:
    """The parameters that a call may give by their place, in their order."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return (name for name, one in signature.parameters.items() if one.kind in kinds)


def unnamed_sets(path: Path, calibration: str, count: int) -> list[Feed]:
    """Sets for a file: those that are given, else random numbers. Raises UsageError where numbers would not do."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        inputs = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).get_inputs()
    except Exception as error:
        raise UsageError(f"{path} cannot be loaded: {type(error).__name__}: {first_line(error, 160)}") from error
    if calibration:
        sets = read_sets(calibration)
        missing = [one.name for one in inputs if any(one.name not in each for each in sets)]
        if missing:
            raise UsageError(f"{calibration} has no input {missing[0]!r}", hint=f"The file takes {_names(inputs)}")
        return [{one.name: as_array(each[one.name]) for one in inputs} for each in sets]
    others = [one.name for one in inputs if _KINDS.get(one.type) not in ("float32", "float64")]
    if others:
        raise UsageError(f"Input {others[0]!r} takes no floats, and its values cannot be guessed",
                         hint=f"Give --calibration. {_FORMS}")  # fmt: skip
    chance = numpy.random.default_rng(0)
    return [{one.name: _draw(one, chance) for one in inputs} for _ in range(count)]


def _names(inputs: Any) -> str:
    return ", ".join(one.name for one in inputs)


def _draw(one: Any, chance: Any) -> Any:
    shape = [size if isinstance(size, int) and size > 0 else _OPEN_SIZE for size in one.shape]
    return chance.standard_normal(shape).astype(_KINDS[one.type])
