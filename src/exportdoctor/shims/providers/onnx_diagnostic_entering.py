"""What holds while one of onnx-diagnostic's patches is applied; its file is loaded only then, and by itself.

Its package imports all patches at once, so that one which no longer fits the installed transformers takes all others
with it. Here each file is loaded under the package's name but without the package's own code.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.installed_sources import folder_of
from exportdoctor.shims.record import Enter, NotApplicable
from exportdoctor.shims.rewriting import rebind_globals
from exportdoctor.targets.pytrees import temporary_registrations

ROOT = "onnx_diagnostic.torch_export_patches"


@contextmanager
def _bare_packages() -> Iterator[None]:
    """The packages on the way to a file, without their code, unless they are loaded already."""
    folder = folder_of("onnx_diagnostic")
    if folder is None:
        raise NotApplicable("onnx-diagnostic is not installed")
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
    """A file of patches by its module's name. Raises NotApplicable with the reason where it can't be loaded."""
    with _bare_packages():
        try:
            return importlib.import_module(module)
        except Exception as error:
            raise NotApplicable(f"its file can't be loaded: {type(error).__name__}: {error}") from error


def by_class(module: str, name: str) -> Enter:
    """A class of patches in place of its target's methods."""

    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        patch = getattr(load(module), name, None)
        if patch is None:
            raise NotApplicable("its file leaves it out for this transformers")
        owner = patch._PATCHED_CLASS_
        with ExitStack() as stack:
            for method in filter(None, patch._PATCHES_):
                if not hasattr(owner, method):
                    raise NotApplicable(f"{owner.__name__} has no {method} in this transformers")
                stack.enter_context(patch_attribute(owner, method, inspect.getattr_static(patch, method)))
            yield call

    return enter


def by_function(module: str, name: str, targets: tuple[str, ...]) -> Enter:
    """A function in place of each target, a dotted path."""

    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        patch = getattr(load(module), name, None)
        if patch is None:
            raise NotApplicable("its file leaves it out for this transformers")
        with ExitStack() as stack:
            for target in targets:
                stack.enter_context(_at(target, patch))
            yield call

    return enter


def _at(target: str, value: Any) -> Any:
    """The replacement at a dotted path. Raises NotApplicable where nothing is there."""
    holder_path, _, name = target.rpartition(".")
    try:
        holder = _resolve(holder_path)
    except (ImportError, AttributeError) as error:
        raise NotApplicable(f"there is no {target}: {error}") from error
    if not hasattr(holder, name):
        raise NotApplicable(f"there is no {target}")
    return patch_attribute(holder, name, value)


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


def by_torch_patch(name: str, targets: tuple[str, ...], value: Callable[[], Any] | None, *, wraps: bool) -> Enter:
    """A patch of torch in place of each target: `name` in the patch file, or what `value` makes."""

    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        with ExitStack() as stack:
            for target in targets:
                made = value() if value is not None else _resolve_in(load(f"{ROOT}.patches.patch_torch"), name)
                if wraps:
                    made = _wrap(made, _resolve(target))
                stack.enter_context(_at(target, made))
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
def rewrite(call: ExportCall) -> Iterator[ExportCall]:
    """Branches on tensors as `torch.cond`, in each forward where that can be done."""
    transform = load(f"{ROOT}.patch_module").transform_method
    with ExitStack() as stack:
        changed = False
        for owner in dict.fromkeys(type(module) for module in call.module.modules()):
            if owner.__module__.startswith("torch.") or "forward" not in vars(owner):
                continue
            made = _rewritten(transform, owner)
            if made is not None:
                changed = True
                stack.enter_context(patch_attribute(owner, "forward", made))
        if not changed:
            raise NotApplicable("no forward has an `if` that can be rewritten")
        yield call


def _rewritten(transform: Any, owner: type[Any]) -> Any:
    """The forward with its branches made into `torch.cond`, or `None` where that can't be done or there are none."""
    try:
        tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(owner.forward)))  # type: ignore[attr-defined]
        if not any(isinstance(node, ast.If) for node in ast.walk(tree)):
            return None
        made = transform(owner.forward).func  # type: ignore[attr-defined]
    except Exception:
        return None
    import torch

    return rebind_globals(made, {"torch": torch})  # the new code says torch.cond; the old may never have said torch
