"""Runs the target's own code: on copies of its inputs, without traces in the model, its exceptions as `TargetError`."""

from __future__ import annotations

import copy
import logging
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from exportdoctor.core.errors import ExportdoctorError, MissingPackageError, TargetError
from exportdoctor.core.failure.frames import is_our_file
from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.patch_attribute import patch_attribute

if TYPE_CHECKING:
    import torch
    from torch import nn

    from exportdoctor.targets.built import Inputs


def run_once(module: nn.Module, inputs: Inputs) -> Any:
    """The module's output without gradients. Raises what the module raises."""
    args, kwargs = inputs
    return run_method_once(module, module, *args, **kwargs)


@dataclass(frozen=True, kw_only=True)
class CallResult:
    """What one call gave and left: `after` are its arguments when it was over, `buffers` by name those of the module
    that were there before the first call and have other values now. `output` and `after` share what they shared."""

    output: Any
    after: Inputs
    buffers: dict[str, torch.Tensor]


def run_calls(
    module: nn.Module, calls: Sequence[Inputs], *, how: Callable[[Inputs], Any] | None = None
) -> tuple[CallResult, ...]:
    """The results of the calls one after the other, without gradients; state is kept between them.

    `how` calls the module with a copy of the inputs. The module is restored afterwards. Raises what the module raises.
    """
    import torch

    results = []
    with torch.no_grad(), _quiet(), restore_afterwards(module):
        first = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
        for call in calls:
            given = copy.deepcopy(call)
            made = how(given) if how is not None else module(*given[0], **given[1])
            output, after = copy.deepcopy((made, given))
            buffers = {
                name: buffer.detach().clone()
                for name, buffer in module.named_buffers()
                if name in first and not same_values(buffer, first[name])
            }
            results.append(CallResult(output=output, after=after, buffers=buffers))
    return tuple(results)


def same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same dtype, shape and values, NaN in the same places."""
    if one is other:
        return True
    if one.dtype != other.dtype or one.shape != other.shape or one.device != other.device:
        return False
    same = one == other
    return bool((same | ((one != one) & (other != other))).all())


def run_method_once(module: nn.Module, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a method of the module without gradients; its exceptions pass through."""
    import torch

    with torch.no_grad(), _quiet(), restore_afterwards(module):
        args, kwargs = copy.deepcopy((args, kwargs))
        return method(*args, **kwargs)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's messages on stderr about fake tensors: of the data pointer when one is copied (torch 2.13),
    and of an operator that refuses one, which is an expected result here."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    with patch_attribute(logger, "disabled", True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        yield


def runs_in_eager(module: nn.Module, inputs: Inputs) -> bool:
    """Whether the module accepts the inputs."""
    try:
        run_once(module, inputs)
    except Exception:
        return False
    return True


@contextmanager
def restore_afterwards(module: nn.Module) -> Iterator[None]:
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
    """A snapshot of the module's own dicts, lists and sets, its hooks and buffers among them."""
    return {name: copy.copy(value) for name, value in module.__dict__.items() if isinstance(value, dict | list | set)}


def _restore(module: nn.Module, contents: dict[str, Any]) -> None:
    for name, content in contents.items():
        container = module.__dict__[name]
        container.clear()
        if isinstance(container, list):
            container.extend(content)
        else:
            container.update(content)


@contextmanager
def blame_target(what: str, *, hint: str = "") -> Iterator[None]:
    """Raise the target's own exceptions as `TargetError`: `what`, the exception, and the frames that are not ours."""
    try:
        yield
    except ExportdoctorError:
        raise
    except (Exception, SystemExit) as error:
        message = ": ".join(filter(None, (what, type(error).__name__, first_line(error))))
        if isinstance(error, ImportError):
            raise MissingPackageError(message, hint=_install_command(error) or hint, stack=own_stack(error)) from error
        raise TargetError(message, hint=hint, stack=own_stack(error)) from error


def _install_command(error: ImportError) -> str:
    """The pip command that the message gives, or that the name of the missing module suggests."""
    command = re.search(r"pip install (?:-U |--upgrade )?[\w.\[\],=-]+", " ".join(str(error).split()))
    if command:
        return command[0].rstrip(".")
    return (
        f"pip install {error.name.partition('.')[0]}" if isinstance(error, ModuleNotFoundError) and error.name else ""
    )


def own_stack(error: BaseException) -> tuple[str, ...]:
    """One line for each frame that is not ours, outermost first, then the exception itself."""
    stack = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in stack if not (is_our_file(frame.filename) or frame.filename.startswith("<frozen"))]
    lines = [f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line or ''}" for frame in frames]
    exception = (line.rstrip() for line in traceback.format_exception_only(error))
    return (*(line.rstrip(": ") for line in lines), *exception)
