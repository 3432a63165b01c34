"""What a part is made from: a built model, its configuration and the options; and putting a part together."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from exportdoctor.core.exception_text import text_of
from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.targets.built import BuiltPart
from exportdoctor.targets.model.device import move
from exportdoctor.targets.sizes.dynamic_shapes import Axes, axes_by_name, dynamic_shapes, dynamic_title
from exportdoctor.targets.sizes.image_sizes import ImageSize, pair
from exportdoctor.torch_internals.trees import tree_map_only

if TYPE_CHECKING:
    import torch
    from torch import nn

    from exportdoctor.core.records.target import BuildOptions

SEED = 7
_SMALLEST_VOCABULARY = 32
PLACEHOLDER_TOKENS = tuple(f"{kind}_token_{end}" for kind in ("image", "video", "audio") for end in ("id", "index"))
"""The settings that name the tokens for which a model puts in features of what is no text."""


_OF_FORM = re.compile(r"expected scalar type|dtype|BF16|[Bb][Ff]loat16|Fake|subclass|meta tensor")
"""What a real kernel, another dtype or values would not say."""


def refuses_fake(error: Exception) -> bool:
    """Whether it is about fake tensors: the code asked for values, or for a size that follows from values."""
    return type(error).__module__.startswith(("torch._subclasses", "torch.fx"))


@dataclass
class InputSearch:
    """What the search for inputs has met: the first refusal, that of the most complete inputs; whether one came that
    another form of the model (experts, dtype, values) would not make; whether to repair what is refused, the
    seconds of processor time that are left for it, and the repaired inputs that came furthest."""

    first: Exception | None = None
    form_matters: bool = False
    repairs: bool = True
    furthest: Sequence[Any] = ()
    seconds: float = 40.0

    def note(self, error: Exception) -> None:
        """Keep it if it is the first; others keep the tensors of their frames alive."""
        self.first = self.first or error
        said = _OF_FORM.search(text_of(error)) and not isinstance(error, AttributeError)
        self.form_matters |= bool(refuses_fake(error) or said or isinstance(error, NotImplementedError))


@dataclass(frozen=True, kw_only=True)
class ModelContext:
    """A transformers model on its device. Where its weights are fake, `fake` makes fake tensors of real ones.

    `left_out` are the names of a checkpoint's values that it has no place for.
    """

    model: nn.Module
    options: BuildOptions
    device: torch.device
    fake: Callable[[Any], Any] | None = None
    left_out: tuple[str, ...] = ()
    search: InputSearch = field(default_factory=InputSearch, compare=False)

    @property
    def config(self) -> Any:
        """The model's own configuration."""
        return self.model.config

    @property
    def is_fake(self) -> bool:
        """Whether the weights have sizes and no values."""
        return self.fake is not None

    @property
    def text_config(self) -> Any:
        """The configuration of the text model: nested, or the whole."""
        getter = getattr(self.config, "get_text_config", None)
        with suppress(ValueError):  # an encoder and a decoder of text, each with its own: transformers names neither
            return getter() if getter else getattr(self.config, "text_config", self.config)
        nested = (one for one in nested_configurations(self.config) if getattr(one, "vocab_size", None))
        return next(nested, self.config)

    @property
    def vision_config(self) -> Any:
        """The configuration of the image encoder: nested, or the whole."""
        return getattr(self.config, "vision_config", None) or self.config

    @property
    def audio_config(self) -> Any:
        """The configuration of the audio encoder: nested, or the whole."""
        return getattr(self.config, "audio_config", None) or self.config

    @property
    def image_size(self) -> ImageSize:
        """Height and width in pixels: from the options, else from the configuration, else 224."""
        nested = list(nested_configurations(self.vision_config))
        stated = (getattr(one, name, None) for name in ("image_size", "max_img_size", "input_size") for one in nested)
        return self.options.image_size or pair(next((size for size in stated if size), 224))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the model's floating inputs."""
        import torch

        floating = (parameter.dtype for parameter in self.model.parameters() if parameter.is_floating_point())
        return next(floating, torch.float32)

    def token_ids(self, batch: int, length: int) -> torch.Tensor:
        """Token ids that mean nothing special, int64 of shape (batch, length), the same at every call."""
        import torch

        special = self._special_ids()
        words = [token for token in range(min(self.vocabulary_size, 1000)) if token not in special] or [0]
        chosen = torch.randint(len(words), (batch, length), generator=torch.Generator().manual_seed(SEED))
        return torch.tensor(words)[chosen].to(self.device)

    def sentence_ids(self, batch: int, length: int) -> torch.Tensor:
        """As `token_ids`, each row ending in the end token where the model has one: some pool there."""
        ids = self.token_ids(batch, length)
        end = _flat(getattr(self.text_config, "eos_token_id", None))[0]
        if isinstance(end, int) and 0 <= end < self.vocabulary_size:
            ids[:, -1] = end
        return ids

    @property
    def vocabulary_size(self) -> int:
        """How many token ids the text model knows."""
        sizes = (getattr(config, "vocab_size", None) for config in (self.text_config, self.config))
        return next((int(size) for size in sizes if size), _SMALLEST_VOCABULARY)

    def floats(self, *shape: int) -> torch.Tensor:
        """A floating input without indices in it: normal values, or a fake tensor beside fake weights."""
        import torch

        if self.fake is not None:
            return self.fake(torch.empty(shape, dtype=self.dtype, device="meta"))  # type: ignore[no-any-return]
        values = torch.randn(shape, generator=torch.Generator().manual_seed(SEED))
        return values.to(device=self.device, dtype=self.dtype)

    def place_given(self, value: Any) -> Any:
        """As `place` for what the user gave: of another dtype only where `--dtype` asks for it, or the small model has
        another one. float64, which no model has unless it is asked for, stays."""
        import torch

        if self.options.dtype == "auto":
            return self._fake(move(value, device=self.device, dtype=None))

        def convert(tensor: torch.Tensor) -> torch.Tensor:
            return tensor if tensor.dtype is torch.float64 else move(tensor, device=None, dtype=self.dtype)

        return self._fake(move(tree_map_only(torch.Tensor, convert, value), device=self.device, dtype=None))

    def place(self, value: Any) -> Any:
        """Every tensor in `value` on the device, floating ones in the model's dtype, fake beside fake weights."""
        return self._fake(move(value, device=self.device, dtype=self.dtype))

    def _fake(self, placed: Any) -> Any:
        import torch

        fake = self.fake
        if fake is None:
            return placed
        return tree_map_only(
            torch.Tensor, lambda tensor: fake(tensor) if tensor.is_floating_point() else tensor, placed
        )

    def integers(self, values: Any) -> torch.Tensor:
        """A small integer input, always real: the model computes indices from it."""
        import torch

        return torch.tensor(values, device=self.device)

    def _special_ids(self) -> set[int]:
        found: set[int] = set()
        for config in (self.config, self.text_config):
            for name, value in vars(config).items():
                if name.endswith(("token_id", "token_index", "token_ids")):
                    found.update(item for item in _flat(value) if isinstance(item, int))
        return found


def assemble(
    name: str,
    subject: ModelContext,
    *,
    inputs: Mapping[str, Any],
    other_inputs: Mapping[str, Any],
    axes: Axes,
    module: nn.Module | None = None,
    prefix: str = "",
    prepare: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> BuiltPart:
    """The part with these axes dynamic."""
    axes = {key: axes[key] for key in axes if key in inputs}
    names = axes_by_name(axes)
    module = subject.model if module is None else module
    bundled = tuple(key for key in inputs if key not in forward_names(module)) if axes else ()
    return BuiltPart(
        name=name,
        title=dynamic_title(names),
        module=module,
        prefix=prefix,
        args=(),
        kwargs=dict(inputs),
        dynamic_shapes=dynamic_shapes(axes, inputs=inputs) if axes else None,
        more_inputs=(((), dict(other_inputs)),) if axes else (),
        prepare=partial(_spelled_out, module, bundled, prepare) if bundled else prepare,
        axes=names,
        prepare_fixed=prepare,
    )


@contextmanager
def _spelled_out(
    module: nn.Module, names: tuple[str, ...], prepare: Callable[[], AbstractContextManager[Any]]
) -> Iterator[None]:
    """Within it, inputs that go into `**kwargs` are parameters of forward: torch 2.13 matches no dynamic shapes with a
    bundle (`torch.export._trace._get_range_constraints`)."""
    forward = module.forward
    signature = inspect.signature(forward)
    own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]

    @functools.wraps(forward)
    def spelled_out(*given: Any, **named: Any) -> Any:
        return forward(*given, **named)

    spelled_out.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    with prepare(), patch_attribute(module, "forward", spelled_out):
        yield


def takes_input(model: nn.Module, name: str) -> bool:
    """Whether the model takes an input: by name, or for a submodule to which it passes its keywords on."""
    parameters = inspect.signature(model.forward).parameters
    if name in parameters:
        return True
    passes_on = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    return passes_on and any(takes_input(child, name) for child in model.children())


def forward_names(module: nn.Module) -> tuple[str, ...]:
    """The names of the parameters of the module's forward, in order."""
    return tuple(inspect.signature(module.forward).parameters)


def nested_configurations(config: Any) -> Iterator[Any]:
    """The configuration and those nested in it, outermost first."""
    from transformers import PretrainedConfig

    yield config
    for value in vars(config).values():
        if isinstance(value, PretrainedConfig):
            yield from nested_configurations(value)


def _flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
