"""Runs the target's own code: on copies of its inputs, without traces in the model, its exceptions as `TargetError`."""

from __future__ import annotations

import copy
import errno
import logging
import re
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from exportdoctor.core.errors import ExportdoctorError, MissingPackageError, TargetError
from exportdoctor.core.exception_text import summary, text_of
from exportdoctor.core.failure.frames import is_our_file, is_user_file
from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.targets.call_limit import limit_call, time_call
from exportdoctor.targets.held_state import restore_held_state
from exportdoctor.targets.plain_state import plain_state
from exportdoctor.torch_internals.fake_tensors import is_fake, select_as_real_tensors_do
from exportdoctor.torch_internals.tensor_subclasses import copy_with_class, has_own_functions
from exportdoctor.torch_internals.trees import tree_map

if TYPE_CHECKING:
    import torch
    from torch import nn

    from exportdoctor.targets.built import Inputs

_Result = TypeVar("_Result")
_INSTALL = re.compile(r"pip install (?:-U |--upgrade )?([\w.\[\],=-]+)")
_REQUIRES = re.compile(r"requires the ([\w.-]+) library")
_BUILT_FOR_TORCH = frozenset({"torchvision", "torchaudio", "torchcodec"})
_LONGEST_LINE, _LINES = 300, 8
"""Characters of a line of a stack, and lines of the exception at its end."""
_NEEDS_GRADIENTS = re.compile(r"(?:does not|doesn't) require grad|requires_grad=False")
FIX_FIRST = "The model fails before any export; fix the model or its inputs first"


def copy_inputs(value: Any) -> Any:
    """A deep copy of a call's inputs or outputs, also of compressed sparse tensors, of tensor subclasses and of tensors
    that a graph of gradients made, of which torch makes none."""
    from torch import Tensor
    from torch.overrides import TorchFunctionMode

    class Copies(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is not Tensor.__deepcopy__:
                return func(*args, **(kwargs or {}))
            tensor, memo = args
            if has_own_functions(tensor):
                return memo.setdefault(id(tensor), copy_with_class(tensor))
            if tensor.layout not in _compressed_layouts() and tensor.is_leaf:
                return func(*args, **(kwargs or {}))
            if tensor.layout not in _compressed_layouts():
                copied = copy.deepcopy(tensor.detach(), memo).requires_grad_(tensor.requires_grad)
                return memo.setdefault(id(tensor), copied)
            return memo.setdefault(id(tensor), tensor.detach().clone().requires_grad_(tensor.requires_grad))

    with Copies():
        return copy.deepcopy(value)


def _compressed_layouts() -> tuple[Any, ...]:
    import torch

    return torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc


_with_gradients: dict[int, weakref.ref[nn.Module]] = {}
"""The modules whose forward fails where no gradients are recorded, because it computes some itself, by id: a module may
refuse to be hashed."""


def needs_gradients(module: nn.Module) -> bool:
    """Whether eager runs of the module record gradients, because its forward failed without."""
    known = _with_gradients.get(id(module))
    return known is not None and known() is module


def run_forward(module: nn.Module, run: Callable[[], _Result]) -> _Result:
    """What `run` gives, which calls the module, without gradients; with them where its forward needs some.

    Raises what the module raises, as it does where gradients are recorded if it was asked so. `run` may be called
    twice. The gradients of parameters are restored.
    """
    import torch

    known = needs_gradients(module)
    if not known:
        try:
            with torch.no_grad():
                return run()
        except Exception as error:
            if not _NEEDS_GRADIENTS.search(text_of(error)):
                raise
    _with_gradients[id(module)] = weakref.ref(module)
    grads = [(parameter, parameter.grad) for parameter in module.parameters()]
    try:
        with torch.enable_grad():
            return run()
    except BaseException:  # NoEnd, too
        if not known:
            del _with_gradients[id(module)]
        raise
    finally:
        for parameter, grad in grads:
            parameter.grad = grad


def run_once(module: nn.Module, inputs: Inputs) -> Any:
    """The module's output without gradients. Raises what the module raises."""
    args, kwargs = inputs
    return run_method_once(module, module, *args, **kwargs)


@dataclass(frozen=True, kw_only=True)
class CallResult:
    """What one call gave and left: `after` are its arguments when it was over, `buffers` by name those of the module
    that were there before the first call and have other values now; one with several names is one tensor. `output` and
    `after` share what they shared.
    `numbers` are the `plain_state` of the modules and of their code; empty where it was not noted."""

    output: Any
    after: Inputs
    buffers: dict[str, torch.Tensor]
    numbers: dict[str, Any] = field(default_factory=dict)


def run_calls(
    module: nn.Module,
    calls: Sequence[Inputs],
    *,
    how: Callable[[Inputs], Any] | None = None,
    notes_state: bool = False,
    must_end: bool = False,
) -> tuple[CallResult, ...]:
    """The results of the calls one after the other, without gradients; state is kept between them.

    `how` calls the module with a copy of the inputs. `notes_state`: the results have their `numbers`. The module is
    restored afterwards. Raises what the module raises, and NoEnd, if they `must_end`, where a call takes far longer
    than others did.
    """

    def run() -> tuple[CallResult, ...]:
        results = []
        with _quiet(), restore_afterwards(module), _on_gpu():
            first = _copied_buffers(module)
            for call in calls:
                given = copy_inputs(call)
                with limit_call(module) if must_end else time_call(module):
                    made = how(given) if how is not None else module(*given[0], **given[1])
                output, after = copy_inputs(_without_graph((made, given), module))
                buffers = {
                    name: buffer
                    for name, buffer in _copied_buffers(module).items()
                    if name in first and not same_values(buffer, first[name])
                }
                numbers = plain_state(module) if notes_state else {}
                results.append(CallResult(output=output, after=after, buffers=buffers, numbers=numbers))
        return tuple(results)

    return run_forward(module, run)


def _without_graph(value: Any, module: nn.Module) -> Any:
    """The value with tensors that carry no gradients, where the module's forward records some."""
    import torch

    if not needs_gradients(module):
        return value
    return tree_map(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, value)


def _copied_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of each buffer by name; one with several names has one copy."""
    copies: dict[int, torch.Tensor] = {}
    named = list(module.named_buffers(remove_duplicate=False))
    for _, buffer in named:
        if id(buffer) not in copies:
            copies[id(buffer)] = buffer.detach().clone()
    return {name: copies[id(buffer)] for name, buffer in named}


def run_example(module: nn.Module, part: str, example: Inputs) -> tuple[CallResult, ...]:
    """What the module gives for the example of a part. What it raises is a `TargetError`, whoever wrote its code."""

    def call(given: Inputs) -> Any:
        with blame_target(f"The eager forward of part {part} fails", hint=FIX_FIRST):
            return module(*given[0], **given[1])

    return run_calls(module, [example], how=call, notes_state=True)


def same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same dtype, shape and values, NaN in the same places."""
    import torch

    if one is other:
        return True
    if one.is_nested or other.is_nested:
        alike = one.is_nested and other.is_nested and one.layout == other.layout and one.size(0) == other.size(0)
        return alike and all(map(same_values, one.unbind(), other.unbind()))
    if one.layout != torch.strided:
        return one.layout == other.layout and same_values(one.to_dense(), other.to_dense())
    if one.dtype != other.dtype or one.shape != other.shape or one.device != other.device:
        return False
    if one.dtype == torch.complex32:  # for which torch has no comparisons
        one, other = (torch.view_as_real(value.resolve_conj()) for value in (one, other))
    if torch.equal(one, other):
        return True
    missing = one != one  # NaN
    return bool(missing.any()) and bool(((one == other) | (missing & (other != other))).all())


def run_method_once(module: nn.Module, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a method of the module without gradients; its exceptions pass through."""

    def run() -> Any:
        with _quiet(), restore_afterwards(module), _on_gpu():
            own_args, own_kwargs = copy_inputs((args, kwargs))
            return _without_graph(method(*own_args, **own_kwargs), module)

    return run_forward(module, run)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's messages on stderr about fake tensors: of the data pointer when one is copied (torch 2.13),
    and of an operator that refuses one, which is an expected result here."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    with patch_attribute(logger, "disabled", True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        yield


@contextmanager
def _on_gpu() -> Iterator[None]:
    """Where a CUDA context is open: torch's deterministic algorithms (an operator that has none warns), and exceptions
    in place of device-side asserts, which would lose the context."""
    import torch

    if not torch.cuda.is_initialized():
        yield
        return
    from exportdoctor.targets.device_asserts import refuse_asserted_values

    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with refuse_asserted_values():
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def runs_in_eager(module: nn.Module, inputs: Inputs) -> bool:
    """Whether the module accepts the inputs."""
    try:
        run_once(module, inputs)
    except Exception:
        return False
    return True


@contextmanager
def restore_afterwards(module: nn.Module) -> Iterator[None]:
    """Restore attributes, hooks, tensors and the random state on exit; see `restore_held_state`.

    What the model compiles, and torch itself for `torch.cond`, runs in eager within, which is what an export traces:
    compiled code would take minutes, and calls of submodules in it are not seen.

    Hooks and the flags about them must go together: transformers adds output hooks to a model at its first run
    and notes so in an attribute; with only one of the two undone, later runs would be hooked twice.
    """
    import torch

    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    masks = select_as_real_tensors_do() if any(map(is_fake, module.parameters())) else nullcontext()
    chance = torch.random.fork_rng(devices=devices)
    with chance, torch.compiler.set_stance("force_eager"), masks, restore_held_state(module):
        yield


@contextmanager
def blame_target(what: str, *, hint: str = "") -> Iterator[None]:
    """Raise the target's own exceptions as `TargetError`: `what`, the exception, and the frames that are not ours."""
    try:
        yield
    except ExportdoctorError:
        raise
    except BaseException as error:  # also what ends a process: KeyboardInterrupt, SystemExit, GeneratorExit
        message = f"{what}: {summary(error)}"
        if isinstance(error, ImportError):
            raise MissingPackageError(message, hint=install_command(error), stack=own_stack(error)) from error
        raise TargetError(message, hint=hint, stack=own_stack(error)) from error


@contextmanager
def blame_running_code(what: str) -> Iterator[None]:
    """As `blame_target` where the target's code was running when it was raised; other exceptions are faults of ours."""
    try:
        yield
    except ExportdoctorError:
        raise
    except BaseException as error:
        if not (_ran_below_ours(error) or _is_exhausted(error)):
            raise
        raise TargetError(f"{what}: {summary(error)}", stack=own_stack(error)) from error


def _ran_below_ours(error: BaseException) -> bool:
    """Whether a call of ours had led to code of the target."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = max((index for index, file in enumerate(files) if is_our_file(file)), default=-1)
    return any(map(is_user_file, files[ours + 1 :]))


def _is_exhausted(error: BaseException) -> bool:
    """Whether the process has no more of what the system gives it: memory, descriptors, stack."""
    has_no_descriptors = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
    return has_no_descriptors or isinstance(error, MemoryError | RecursionError)


def install_command(error: ImportError) -> str:
    """The pip command for all packages that the message names, or that the name of the missing module suggests.

    Packages that are built for one torch are asked for with the installed one, which stays.
    """
    text = " ".join(text_of(error).split())
    said = [_INSTALL.search(one) or _REQUIRES.match(one) for one in re.split(f"(?={_REQUIRES.pattern})", text)]
    names = [one[1].rstrip(".") for one in said if one]
    if not names and isinstance(error, ModuleNotFoundError) and error.name:
        names = [error.name.partition(".")[0]]
    names = list(dict.fromkeys(name.lower() if name.lower() in _BUILT_FOR_TORCH else name for name in names))
    if not _BUILT_FOR_TORCH & set(names):
        return f"pip install {' '.join(names)}" if names else ""
    from importlib.metadata import version

    torch = version("torch")
    plain, _, build = torch.partition("+")
    where = f" (from the index of torch {torch})" if build else ""
    return f"pip install {' '.join(names)} torch=={plain}{where}"


def own_stack(error: BaseException) -> tuple[str, ...]:
    """One line for each frame that is not ours, outermost first, then the exception itself in a few lines."""
    stack = traceback.extract_tb(error.__traceback__)
    lines = [stack_line(frame.filename, frame.lineno or 0, frame.name, frame.line or "") for frame in stack]
    try:
        exception = "".join(traceback.format_exception_only(error))
    except BaseException:  # its class has code of its own
        exception = summary(error)
    return (*filter(None, lines), *(line.rstrip()[:_LONGEST_LINE] for line in text_of(exception).splitlines()[:_LINES]))


def stack_line(file: str, line: int, function: str, source: str) -> str:
    """A frame of a target's stack in one line; empty for one of ours or of Python's import."""
    if is_our_file(file) or file.startswith("<frozen"):
        return ""
    return f"{file}:{line} in {function}: {source}"[:_LONGEST_LINE].rstrip(": ")


def storage_id(tensor: Any) -> int:
    """The identity, while it lives, of the memory that a tensor is a view of; its own where it has none."""
    storage = _storage(tensor)
    return id(tensor) if storage is None else int(storage._cdata)


def hold_storage_id(tensor: Any) -> Any:
    """As long as what this returns lives, no other memory gets the tensor's `storage_id`; its values may be freed."""
    from torch.multiprocessing.reductions import StorageWeakRef

    storage = _storage(tensor)
    return tensor if storage is None else StorageWeakRef(storage)


def _storage(tensor: Any) -> Any:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse tensors and some subclasses
        return None
