"""Inputs from transformers' own documentation: `name (`torch.FloatTensor` of shape `(batch_size, width)`)`.

The documentation of a forward states the shape of nearly every tensor in symbols. A symbol that names an axis becomes
dynamic, one that names a setting takes its value from the configuration, and an unknown one gets a small size.
"""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from exportdoctor.targets.parts.input_layouts import GRID, ExampleSizes, Layout
from exportdoctor.targets.parts.model_context import forward_names, nested_configurations

if TYPE_CHECKING:
    import torch

    from exportdoctor.targets.parts.model_context import ModelContext

_ENTRY = re.compile(r"^\s*(?P<name>\w+) \((?P<type>[^\n]*?)of\s+shape\s+`?\(?(?P<shape>[^)\n]*)\)", re.MULTILINE)
_HEADING = re.compile(r"^\s*(\w+):? \((?=`)", re.MULTILINE)
_GIVEN = re.compile(r"obtained\s+(?:using|with|by)\b[^.]*?(?:[Tt]okenizer|[Pp]rocessor|[Ee]xtractor)")
_AXES = {
    "batch": ("batch_size", "batch", "bsz", "num_images", "num_samples"),
    "sequence": (
        "sequence_length",
        "seq_len",
        "seq_length",
        "text_sequence_length",
        "text_seq_len",
        "source_len",
        "max_patches",
    ),
    "decoder sequence": ("target_sequence_length", "decoder_sequence_length", "target_seq_len", "tgt_len"),
    "samples": ("num_samples_audio", "raw_audio_length", "audio_length", "time_steps", "num_raw_samples"),
    "frames": ("audio_sequence_length", "num_mel_frames", "feature_length", "spectrogram_length"),
}
_AXIS_OF = {symbol: axis for axis, symbols in _AXES.items() for symbol in symbols}
_OTHER_NAMES = {
    "num_channels": ("in_channels", "in_chans", "audio_channels"),
    "hidden_size": ("d_model", "embed_dim", "hidden_dim", "dim", "n_embd"),
    "feature_dim": ("num_mel_bins", "input_dim", "feature_size", "input_feat_per_channel"),
    "feature_size": ("num_mel_bins", "input_dim", "input_feat_per_channel"),
    "embed_dim": ("hidden_size", "d_model"),
    "hidden_dim": ("hidden_size", "d_model"),
    "num_codebooks": ("num_quantizers", "n_codebooks"),
}
_SIDES = ("height", "width", "image_size", "frame_size", "image_height", "image_width")
_COUNTED_BY_GRID = re.compile(r"num_(?:image_)?(?:tokens|patches)$")
_TEMPLATE = {"{0}": ("batch_size", "sequence_length")}
"""What transformers leaves unfilled in some documentation, and what it stands for."""
_SMALL = 2


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """A tensor input: a size or the name of an axis for each dimension, and what its values are.

    Integers lie in [0, `below`); a mask is all ones, `bool` one of truth values; a row of a grid counts the patches of
    one picture.
    """

    dims: tuple[int | str, ...]
    kind: Literal["float", "integer", "mask", "bool", "grid"]
    below: int = 2

    def layout(self) -> Layout:
        """How to make it, and its named axes."""
        axes = {place: size for place, size in enumerate(self.dims) if isinstance(size, str)}
        return Layout(make=partial(_make, self), axes=axes)


def _make(spec: TensorSpec, subject: ModelContext, sizes: ExampleSizes) -> torch.Tensor:
    import torch

    shape = [getattr(sizes, size.replace(" ", "_")) if isinstance(size, str) else size for size in spec.dims]
    if spec.kind == "float":
        return subject.floats(*shape)
    if spec.kind == "mask":
        return torch.ones(shape, dtype=torch.int64, device=subject.device)
    if spec.kind == "bool":
        return torch.ones(shape, dtype=torch.bool, device=subject.device)
    if spec.kind == "grid":
        return subject.integers([GRID] * shape[0])
    if spec.below >= subject.vocabulary_size and len(shape) == 2:
        return subject.sentence_ids(*shape)
    return torch.randint(spec.below, shape, generator=torch.Generator().manual_seed(7)).to(subject.device)


def documented_inputs(subject: ModelContext) -> Mapping[str, TensorSpec]:
    """The inputs of the model's forward whose shape is documented, by name."""
    names = inspect.signature(subject.model.forward).parameters
    documentation = inspect.getdoc(subject.model.forward) or ""
    found: dict[str, TensorSpec] = {}
    for entry in _ENTRY.finditer(documentation):
        if entry["name"] in names:
            stated = (symbol.strip(" `") for symbol in entry["shape"].split(","))
            symbols = [one for symbol in stated if symbol for one in _TEMPLATE.get(symbol, (symbol,))]
            dims = tuple(
                subject.image_size[1] if symbol in _SIDES and symbol == before else _size(subject, symbol)
                for before, symbol in itertools.pairwise(("", *symbols))
            )
            spec = _spec(subject, entry["name"], entry["type"], dims)
            is_picture = spec.kind == "mask" and "num_channels" in symbols
            found.setdefault(entry["name"], TensorSpec(dims=dims, kind="float") if is_picture else spec)
    return found


def processor_inputs(subject: ModelContext) -> tuple[str, ...]:
    """The tensor inputs of which the documentation of the model's forward says that a processor can give them; not
    what a model is to answer, which is for training."""
    names = forward_names(subject.model)
    _, *parts = _HEADING.split(inspect.getdoc(subject.model.forward) or "")
    told = zip(parts[::2], parts[1::2], strict=True)
    tensors = [(name, text) for name, text in told if name in names and "Tensor" in text.partition("\n")[0]]
    return tuple(name for name, text in tensors if _GIVEN.search(text) and not name.endswith("labels"))


def guessed_input(subject: ModelContext, name: str) -> TensorSpec:
    """The spec of an input whose shape is not documented, from its name alone: where a repair starts."""
    if "mask" in name or name.endswith("_ids"):
        return _spec(subject, name, "", ("batch", "sequence"))
    return TensorSpec(dims=("batch", "sequence", _size(subject, "hidden_size")), kind="float")


def _spec(subject: ModelContext, name: str, type_: str, dims: tuple[int | str, ...]) -> TensorSpec:
    if "mask" in name:
        return TensorSpec(dims=dims, kind="mask")
    if name.endswith("grid_thw"):
        return TensorSpec(dims=(1, len(GRID)), kind="grid")
    if "Long" in type_ or "Int" in type_ or "Bool" in type_ or name.endswith(("_ids", "_indices")):
        tokens = name.endswith("input_ids")
        return TensorSpec(dims=dims, kind="integer", below=subject.vocabulary_size if tokens else _SMALL)
    return TensorSpec(dims=dims, kind="float")


def _size(subject: ModelContext, symbol: str) -> int | str:
    if symbol.isdigit():
        return int(symbol)
    factors = [_size(subject, one.strip()) for one in symbol.split("*")] if "*" in symbol else []
    if factors:
        return math.prod(one if isinstance(one, int) else _SMALL for one in factors)
    if _COUNTED_BY_GRID.match(symbol) and any(name.endswith("grid_thw") for name in forward_names(subject.model)):
        return math.prod(GRID)
    if symbol in _AXIS_OF:
        return _AXIS_OF[symbol]
    if symbol in _SIDES:
        return subject.image_size[symbol.endswith("width")]
    for name in (symbol.removeprefix("config."), *_OTHER_NAMES.get(symbol, ())):
        for config in nested_configurations(subject.config):
            value = getattr(config, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return 3 if symbol == "num_channels" else _SMALL
