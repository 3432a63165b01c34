"""Builds a model at its real size without its weights, then gives it fake or random ones.

Fake parameters are `FakeTensor`s: sizes without values, tied ones still tied. Buffers and other tensors that the model
computes at construction are real, so that index arithmetic on them works.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.torch_internals.fake_tensors import fake_tensor_class, is_fake, new_fake_mode

if TYPE_CHECKING:
    import torch
    from torch import nn

SEED = 20250201
_VECTOR_SPREAD = 0.2
_HUGE = 2**27
"""Numbers in a tensor."""


def build_without_weights(build: Callable[[], nn.Module]) -> nn.Module:
    """What `build` returns, a transformers model, with every parameter on the meta device and everything else real."""
    with _parameters_on_meta(), _without_initialisation():
        model: Any = build()
    model.tie_weights()  # transformers ties them in the step that is skipped
    _fill_forgotten_tensors(model)
    return model  # type: ignore[no-any-return]


def fake_parameters(model: nn.Module, *, device: torch.device) -> Callable[[Any], Any]:
    """Replace each meta parameter by a fake one on the device; move buffers there.

    Returns a function that makes fake tensors of the same mode out of real or meta ones: for the inputs that
    carry no indices. The mode has no shape environment: sizes are plain integers, and export brings its own.
    """
    fake_tensor, mode = fake_tensor_class(), new_fake_mode()

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = fake_tensor(mode, tensor.detach().to("meta"), device)
        return made

    replace_parameters(model, lambda _, parameter: fake(parameter))
    move_buffers(model, device)
    return fake


def random_parameters(model: nn.Module, *, device: torch.device) -> None:
    """Give each meta parameter normally distributed values on the device, under which every submodule matters.

    A matrix or kernel has the spread 1/sqrt(fan in), so that what goes through it keeps its size (LeCun et al. 1998,
    Efficient BackProp, 4.6). What is looked up or added (embeddings, tensors with a leading 1) has a spread of one.
    Vectors called `weight`, the scales of norms, lie about one, all other vectors about zero, with a spread of 0.2.
    """
    import torch

    generator = torch.Generator(device=device).manual_seed(SEED)
    planned = plan_random_values(model)
    replace_parameters(model, lambda _, parameter: planned[id(parameter)].fill(parameter, device, generator))
    model.to(device)


@dataclass(frozen=True)
class RandomValues:
    """A normal distribution, and the seed of the values that are drawn of it where no generator is given."""

    mean: float = 0.0
    spread: float = 1.0
    seed: int = SEED

    def fill(self, like: torch.Tensor, device: torch.device, generator: torch.Generator | None = None) -> torch.Tensor:
        """A tensor of the shape and dtype of `like`, which may be fake, on the device."""
        import torch

        generator = generator or torch.Generator(device=device).manual_seed(self.seed)
        values = torch.empty(like.shape, dtype=like.dtype, device=device)
        return values.normal_(self.mean, self.spread, generator=generator)


def plan_random_values(model: nn.Module) -> dict[int, RandomValues]:
    """What `random_parameters` draws of for each parameter, by the parameter's id; its seed follows from its name."""
    owners = {id(parameter): module for module in model.modules() for parameter in module.parameters(recurse=False)}
    found = {}
    for name, parameter in model.named_parameters():
        is_scale = parameter.dim() == 1 and name.endswith("weight")
        spread = _spread(parameter, owners[id(parameter)])
        found[id(parameter)] = RandomValues(1.0 if is_scale else 0.0, spread, SEED + zlib.crc32(name.encode()))
    return found


def _spread(parameter: nn.Parameter, owner: nn.Module) -> float:
    """The standard deviation of a parameter's random values.

    Classes outside `torch.nn` lay out their matrices in either order, so their fan in is the mean of both sides.
    """
    from torch import nn

    shape = parameter.shape
    if len(shape) < 2:
        return _VECTOR_SPREAD
    if isinstance(owner, nn.Embedding | nn.EmbeddingBag) or shape[0] == 1:
        return 1.0
    if isinstance(owner, nn.Linear | nn.modules.conv._ConvNd):
        place = 1 if getattr(owner, "transposed", False) else 0
        fan_in = parameter.numel() / max(1, shape[place])  # a layer may have no outputs
    else:
        fan_in = (shape[-1] + shape[-2]) / 2
    return float(max(fan_in, 1.0) ** -0.5)


def replace_parameters(model: nn.Module, make: Callable[[str, nn.Parameter], torch.Tensor]) -> None:
    """Replace each parameter by `make(name, parameter)`, a new tensor, once for those that share it."""
    made: dict[int, nn.Parameter] = {}
    originals = []
    for prefix, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            originals.append(parameter)
            if id(parameter) not in made:
                full_name = f"{prefix}.{name}" if prefix else name
                made[id(parameter)] = _as_parameter(make(full_name, parameter), requires_grad=parameter.requires_grad)
            module._parameters[name] = made[id(parameter)]


def _as_parameter(tensor: torch.Tensor, *, requires_grad: bool) -> nn.Parameter:
    """A parameter of a new tensor. `nn.Parameter` would detach a fake one, which takes longer than all else here."""
    from torch import nn

    if not is_fake(tensor):
        return nn.Parameter(tensor, requires_grad=requires_grad)
    parameter: Any = tensor.requires_grad_(requires_grad)
    parameter._is_param = True  # what `nn.Parameter` makes of a subclass of Tensor
    return parameter  # type: ignore[no-any-return]


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Uninitialised and random tensors are created on meta, and a parameter moves there when it is registered.

    So are zeros that would take gigabytes, as for all experts of a layer; what is no parameter gets them back.
    """
    import torch
    from torch import nn
    from torch.overrides import TorchFunctionMode

    without_values = {torch.empty, torch.empty_strided, torch.rand, torch.randn}
    fillers = {torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.zero_, torch.Tensor.fill_}

    class SkipInitMode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in fillers and args and args[0].device.type == "meta":
                return args[0]  # it holds no values that could change
            kwargs = kwargs or {}
            is_huge = func is torch.zeros and args and all(isinstance(one, int) for one in args)
            is_huge = is_huge and math.prod(args) > _HUGE
            if (func in without_values or is_huge) and kwargs.get("device") is None:
                kwargs = {**kwargs, "device": "meta"}
            return func(*args, **kwargs)

    def register(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and param.device.type != "meta":
            param = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
        original(self, name, param)

    original = nn.Module.register_parameter
    with patch_attribute(nn.Module, "register_parameter", register), SkipInitMode():
        yield


def _without_initialisation() -> AbstractContextManager[None]:
    """Parameters on meta have no values to initialise; without the attempt, Qwen2.5-VL-3B is built in half the time.

    transformers offers this from version 5 on.
    """
    try:
        from transformers.initialization import no_init_weights
    except ImportError:
        return nullcontext()
    return no_init_weights()  # type: ignore[no-any-return]


def _fill_forgotten_tensors(model: nn.Module) -> None:
    """Give zeros to buffers and plain attributes that were made by `torch.empty` or at random, hence on meta."""
    import torch

    for module in model.modules():
        for holder in (module._buffers, module.__dict__):
            for name, value in list(holder.items()):
                if isinstance(value, torch.Tensor) and value.device.type == "meta":
                    holder[name] = torch.zeros(value.shape, dtype=value.dtype)


def move_buffers(model: nn.Module, device: torch.device) -> None:
    """Every buffer on the device; parameters stay."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)
