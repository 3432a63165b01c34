"""onnx-diagnostic's patches, each a shim of its own. Listed from the source files; a file is loaded only when used.

Its package imports all patches at once, so that one which no longer fits the installed transformers takes all others
with it. Here each file is loaded by itself, under the package's name but without the package's own code.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from exportdoctor.shims.cure import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.patching import rebound, replaced
from exportdoctor.shims.providers.onnx_diagnostic_table import FUNCTIONS, KNOWN, TORCH, Known, TorchPatch
from exportdoctor.shims.pytrees import registries_restored
from exportdoctor.shims.record import Enter, NotApplicable, Replacement, Shim
from exportdoctor.shims.sources import folder_of, tree_of_file

PROVIDER = "onnx-diagnostic"
_ROOT = "onnx_diagnostic.torch_export_patches"
_LINK = "https://github.com/sdpython/onnx-diagnostic"
_NEEDS = {"onnx-diagnostic": ">=0.9", "torch": ">=2.8", "transformers": ">=4.53", "scipy": "", "optree": ""}
_MARK = re.compile(r"\[patch:([\w.]+)\]")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One patch: the file's module, the name in it, and what it replaces, as dotted paths."""

    module: str
    name: str
    targets: tuple[str, ...]
    by_class: bool = False


def shims() -> tuple[Shim, ...]:
    """Every patch as a shim; one that tells that the package is missing where it is."""
    folder = folder_of("onnx_diagnostic")
    if folder is None:
        return (_missing(),)
    files = sorted((folder / "torch_export_patches" / "patches").glob("_patch_transformers_*.py"))
    entries = [entry for file in files for entry in _entries(file)]
    return (
        *(_of_torch(patch) for patch in TORCH),
        *(_of_transformers(entry) for entry in entries),
        _CACHES,
        _CONTROL_FLOW,
    )


def _missing() -> Shim:
    def enter(call: ExportCall) -> Any:
        raise NotApplicable("onnx-diagnostic is not installed")

    return Shim(
        id="od",
        title="The patches of onnx-diagnostic",
        soundness="precondition",
        provider=PROVIDER,
        enter=enter,
        link=_LINK,
        problem='onnx-diagnostic is not installed: pip install "exportdoctor[onnx-diagnostic]"',
    )


def _entries(file: Path) -> Iterator[Entry]:
    module = f"{_ROOT}.patches.{file.stem}"
    try:
        _, tree = tree_of_file(file)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and (targets := _patched(node)):
            yield Entry(module=module, name=node.name, targets=targets, by_class=True)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("patched_"):
            marked = tuple(_MARK.findall(ast.get_docstring(node) or "")) or FUNCTIONS.get(node.name, ())
            if marked:
                yield Entry(module=module, name=node.name, targets=marked)


def _patched(node: ast.ClassDef) -> tuple[str, ...]:
    """The methods that a class of patches replaces, as `Class.method` or longer."""
    given = {
        target.id: statement.value
        for statement in node.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    if not {"_PATCHES_", "_PATCHED_CLASS_"} <= given.keys():
        return ()
    names = [one.value for one in ast.walk(given["_PATCHES_"]) if isinstance(one, ast.Constant)]
    owner = ast.unparse(given["_PATCHED_CLASS_"])
    return tuple(f"{owner}.{name}" for name in names if isinstance(name, str) and name.isidentifier())


def _of_transformers(entry: Entry) -> Shim:
    name = entry.name.removeprefix("patched_")
    known = KNOWN.get(name, Known())
    return Shim(
        id=f"od.{name}",
        title=known.title or f"onnx-diagnostic's {name}",
        soundness=known.soundness,
        provider=PROVIDER,
        enter=_by_class(entry) if entry.by_class else _by_function(entry),
        does=f"Replaces {', '.join('.'.join(target.split('.')[-2:]) for target in entry.targets)}.",
        precondition=known.precondition,
        cures=_cures(entry),
        needs={**_NEEDS, **({"transformers": known.transformers} if known.transformers else {})},
        link=_LINK,
        retire=known.retire,
        rank=70,
        conflicts=known.conflicts,
        wants=tuple(_colon(target) for target in entry.targets if target.count(".") > 2),
        replaces=tuple(_replacement(entry, target) for target in entry.targets),
    )


def _replacement(entry: Entry, target: str) -> Replacement:
    by = f"{entry.name}.{target.rpartition('.')[2]}" if entry.by_class else entry.name
    return Replacement(target=_colon(target), by=f"{entry.module}:{by}")


def _cures(entry: Entry) -> tuple[Cure, ...]:
    names = ["\\.".join(map(re.escape, target.split(".")[-2:])) for target in entry.targets]
    return (Cure(where="|".join(rf":[^\n]*{name}:" for name in names)),)


@contextmanager
def _bare_packages() -> Iterator[None]:
    """The packages on the way to a file, without their code, unless they are loaded already."""
    folder = folder_of("onnx_diagnostic")
    assert folder is not None
    made = []
    for name in (_ROOT, f"{_ROOT}.patches"):
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


def _by_class(entry: Entry) -> Enter:
    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        patch = getattr(load(entry.module), entry.name, None)
        if patch is None:
            raise NotApplicable("its file leaves it out for this transformers")
        owner = patch._PATCHED_CLASS_
        with ExitStack() as stack:
            for name in filter(None, patch._PATCHES_):
                if not hasattr(owner, name):
                    raise NotApplicable(f"{owner.__name__} has no {name} in this transformers")
                stack.enter_context(replaced(owner, name, inspect.getattr_static(patch, name)))
            yield call

    return enter


def _by_function(entry: Entry) -> Enter:
    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        patch = getattr(load(entry.module), entry.name, None)
        if patch is None:
            raise NotApplicable("its file leaves it out for this transformers")
        with ExitStack() as stack:
            for target in entry.targets:
                stack.enter_context(_at(target, patch))
            yield call

    return enter


def _at(target: str, value: Any) -> Any:
    """The replacement at a dotted path. Raises NotApplicable where nothing is there."""
    holder_path, _, name = target.rpartition(".")
    try:
        holder = _resolved(holder_path)
    except (ImportError, AttributeError) as error:
        raise NotApplicable(f"there is no {target}: {error}") from error
    if not hasattr(holder, name):
        raise NotApplicable(f"there is no {target}")
    return replaced(holder, name, value)


def _resolved(path: str) -> Any:
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


def _of_torch(patch: TorchPatch) -> Shim:
    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        value = load(f"{_ROOT}.patches.patch_torch") if patch.value is None else None
        with ExitStack() as stack:
            for target in patch.targets:
                made = patch.value() if patch.value is not None else _resolved_in(value, patch.name)
                if patch.wraps:
                    made = _wrapping(made, _resolved(target))
                stack.enter_context(_at(target, made))
            yield call

    source = f"{_ROOT}.patches.patch_torch:{patch.name}"
    return Shim(
        id=f"od.torch.{patch.id}",
        title=patch.title,
        soundness=patch.soundness,
        provider=PROVIDER,
        enter=enter,
        does=f"Replaces {', '.join(patch.targets)}.",
        precondition=patch.precondition,
        cures=patch.cures,
        needs=_NEEDS,
        link=_LINK,
        retire="torch has it itself",
        rank=80,
        replaces=tuple(
            Replacement(target=target, after=f"{target} = {patch.name}\n")
            if patch.value is not None
            else Replacement(target=_colon(target), by=source)
            for target in patch.targets
        ),
    )


def _colon(target: str) -> str:
    holder, _, name = target.rpartition(".")
    module, _, owner = holder.rpartition(".")
    return f"{module}:{owner}.{name}" if owner[:1].isupper() else f"{holder}:{name}"


def _resolved_in(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = vars(module)[part] if isinstance(module, type) else getattr(module, part)
    return module


def _wrapping(made: Any, original: Any) -> Any:
    return lambda *args, **kwargs: made(original, *args, **kwargs)


@contextmanager
def _register_caches(call: ExportCall) -> Iterator[ExportCall]:
    with registries_restored():
        load(f"{_ROOT}.onnx_export_serialization").register_cache_serialization(patch_transformers=True)
        yield call


@contextmanager
def _rewrite(call: ExportCall) -> Iterator[ExportCall]:
    transform = load(f"{_ROOT}.patch_module").transform_method
    with ExitStack() as stack:
        changed = False
        for owner in dict.fromkeys(type(module) for module in call.module.modules()):
            if owner.__module__.startswith("torch.") or "forward" not in vars(owner):
                continue
            made = _rewritten(transform, owner)
            if made is not None:
                changed = True
                stack.enter_context(replaced(owner, "forward", made))
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

    return rebound(made, {"torch": torch})  # the new code says torch.cond; the old may never have said torch


_CACHES = Shim(
    id="od.cache-serialization",
    title="transformers' caches are registered as pytree nodes, onnx-diagnostic's way",
    soundness="exact",
    provider=PROVIDER,
    enter=_register_caches,
    does="`register_cache_serialization`, with the registrations undone afterwards, which it does not do in full.",
    cures=(Cure(kinds=("unregistered_pytree",), message=r"Cache"),),
    needs=_NEEDS,
    link=_LINK,
    retire="transformers registers its caches for whoever exports",
    rank=70,
    conflicts=("register-cache-pytree", "hf.cache-pytrees"),
    replaces=(
        Replacement(
            target="torch.utils._pytree.SUPPORTED_NODES",
            after="register_cache_serialization(patch_transformers=True)\n",
        ),
    ),
)

_CONTROL_FLOW = Shim(
    id="od.rewrite-control-flow",
    title="Branches on tensors are rewritten as torch.cond",
    soundness="precondition",
    provider=PROVIDER,
    enter=_rewrite,
    does="Each forward with an `if` that the rewriting understands gets its branches as functions of `torch.cond`.",
    precondition="both branches give tensors of the same shapes and dtypes, and change nothing else",
    cures=(Cure(kinds=("data_dependent_guard",), where=r"(?s):[^\n]*: if "),),
    needs=_NEEDS,
    link=_LINK,
    retire="torch.export traces branches on tensors",
    rank=70,
    replaces=(
        Replacement(
            target="a branch on a tensor",
            before="if x.sum() > 0:\n    return x\nreturn -x\n",
            after="return torch.cond(x.sum() > 0, lambda x: x.clone(), lambda x: -x, [x])\n",
        ),
    ),
)
