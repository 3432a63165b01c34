"""Context managers for onnx-diagnostic's patches; a patch's file is loaded when the patch is applied, and alone.

The package imports all patches at once, so that none works if one of them does not fit the installed transformers. Here
each file is loaded under the package's name but without the package's own code.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from exportdoctor.core.failure.frames import is_defined_in_torch
from exportdoctor.core.parse_indented import parse_indented
from exportdoctor.core.patch_attribute import patch_attributes
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.installed_sources import folder_of
from exportdoctor.shims.record import Enter, NotApplicable, Unfit
from exportdoctor.shims.rewriting import rebind_globals
from exportdoctor.torch_internals.pytree_registry import temporary_registrations

ROOT = "onnx_diagnostic.torch_export_patches"


@contextmanager
def _bare_packages() -> Iterator[None]:
    """The packages on the way to a file, without their code, unless they are loaded already."""
    folder = folder_of("onnx_diagnostic")
    if folder is None:
        raise Unfit("onnx-diagnostic is not installed")
    made = []
    for name in (ROOT, f"{ROOT}.patches"):
        if name not in sys.modules:
            package = ModuleType(name)
            package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
            sys.modules[name] = package
            made.append(name)
    try:
        yield
    finally:
        for name in made:
            sys.modules.pop(name, None)


def load(module: str) -> ModuleType:
    """A file of patches by its module's name. Raises Unfit with the reason where it can't be loaded."""
    with _bare_packages():
        try:
            return importlib.import_module(module)
        except Exception as error:
            raise Unfit(f"its file can't be loaded: {type(error).__name__}: {error}") from error


def patch_by_class(module: str, name: str) -> Enter:
    """A class of patches in place of its target's methods."""

    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        patch = _load_patch(module, name)
        owner, methods = patch._PATCHED_CLASS_, [method for method in patch._PATCHES_ if method]
        for method in methods:
            if not hasattr(owner, method):
                raise Unfit(f"{owner.__name__} has no {method} in this transformers")
        with patch_attributes((owner, method, inspect.getattr_static(patch, method)) for method in methods):
            yield call

    return enter


def patch_by_function(module: str, name: str, targets: tuple[str, ...]) -> Enter:
    """A function in place of each target, a dotted path."""

    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        patch = _load_patch(module, name)
        with patch_attributes((*_find_holder(target), patch) for target in targets):
            yield call

    return enter


def _load_patch(module: str, name: str) -> Any:
    patch = getattr(load(module), name, None)
    if patch is None:
        raise Unfit("its file leaves it out for this transformers")
    return patch


def _find_holder(target: str) -> tuple[Any, str]:
    """The holder of the attribute at a dotted path, and its name. Raises Unfit if there is none."""
    holder_path, _, name = target.rpartition(".")
    try:
        holder = _resolve(holder_path)
    except (ImportError, AttributeError) as error:
        raise Unfit(f"there is no {target}: {error}") from error
    if not hasattr(holder, name):
        raise Unfit(f"there is no {target}")
    return holder, name


def _resolve(path: str) -> Any:
    names = path.split(".")
    for length in range(len(names), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(names[:length]))
        except ModuleNotFoundError:
            continue
        for name in names[length:]:
            found = getattr(found, name)
        return found
    raise ImportError(path)


def patch_torch(name: str, targets: tuple[str, ...], value: Callable[[], Any] | None, *, wraps: bool) -> Enter:
    """A patch of torch in place of each target: `name` in the patch file, or what `value` makes."""

    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        changes = []
        for target in targets:
            made = value() if value is not None else _resolve_in(load(f"{ROOT}.patches.patch_torch"), name)
            holder, attribute = _find_holder(target)
            original = getattr(holder, attribute)
            changes.append((holder, attribute, _wrap(made, original) if wraps else made))
        with patch_attributes(changes):
            yield call

    return enter


def _resolve_in(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = vars(module)[part] if isinstance(module, type) else getattr(module, part)
    return module


def _wrap(made: Any, original: Any) -> Any:
    return lambda *args, **kwargs: made(original, *args, **kwargs)


@contextmanager
def register_caches(call: ExportCall) -> Iterator[ExportCall]:
    """transformers' caches as pytree nodes; unlike in the package, nothing stays registered."""
    serialization = load(f"{ROOT}.onnx_export_serialization")
    with temporary_registrations(lambda: serialization.register_cache_serialization(patch_transformers=True)):
        yield call


@contextmanager
def rewrite_control_flow(call: ExportCall) -> Iterator[ExportCall]:
    """Branches on tensors as `torch.cond`, in each forward where that can be done."""
    transform = load(f"{ROOT}.patch_module").transform_method
    owners = [
        owner
        for owner in dict.fromkeys(type(module) for module in call.module.modules())
        if not is_defined_in_torch(owner) and "forward" in vars(owner)
    ]
    changes = [(owner, "forward", made) for owner in owners if (made := _rewrite_forward(transform, owner)) is not None]
    if not changes:
        raise NotApplicable("no forward has an `if` that can be rewritten")
    with patch_attributes(changes):
        yield call


def _rewrite_forward(transform: Any, owner: type[Any]) -> Any:
    """The forward with its branches made into `torch.cond`, or `None` where that can't be done or there are none."""
    try:
        tree = parse_indented(inspect.getsource(owner.forward))  # type: ignore[attr-defined]
        if not any(isinstance(node, ast.If) for node in ast.walk(tree)):
            return None
        made = transform(owner.forward).func  # type: ignore[attr-defined]
    except Exception:
        return None
    import torch

    return rebind_globals(made, {"torch": torch})  # the new code uses torch.cond, the old may not import torch
