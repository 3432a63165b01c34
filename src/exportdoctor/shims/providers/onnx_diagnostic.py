"""onnx-diagnostic's patches, each a shim of its own: their records, listed from the source files. Imports none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.installed_sources import as_target, folder_of, tree_of_file
from exportdoctor.shims.providers.onnx_diagnostic_patches import (
    ROOT,
    patch_by_class,
    patch_by_function,
    patch_torch,
    register_caches,
    rewrite_control_flow,
)
from exportdoctor.shims.providers.onnx_diagnostic_table import (
    FUNCTIONS,
    TORCH,
    TRANSFORMERS_PATCHES,
    TorchPatch,
    TransformersPatch,
)
from exportdoctor.shims.record import Enter, NotApplicable, Replacement, Shim

PROVIDER = "onnx-diagnostic"
_LINK = "https://github.com/sdpython/onnx-diagnostic"
_NEEDS = {"onnx-diagnostic": ">=0.9", "torch": ">=2.8", "transformers": ">=4.53", "scipy": "", "optree": ""}
_MARK = re.compile(r"\[patch:([\w.]+)\]")


@dataclass(frozen=True, kw_only=True)
class OnnxDiagnosticPatch:
    """One patch: the file's module, the name in it, and what it replaces, as dotted paths."""

    module: str
    name: str
    targets: tuple[str, ...]
    by_class: bool = False


def shims() -> tuple[Shim, ...]:
    """Every patch as a shim; if the package is not installed, a single shim with that problem."""
    folder = folder_of("onnx_diagnostic")
    if folder is None:
        return (_missing_package(),)
    files = sorted((folder / "torch_export_patches" / "patches").glob("_patch_transformers_*.py"))
    entries = [entry for file in files for entry in _entries(file)]
    return (
        *(_of_torch(patch) for patch in TORCH),
        *(_of_transformers(entry) for entry in entries),
        _CACHES,
        _CONTROL_FLOW,
    )


def _missing_package() -> Shim:
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


def _entries(file: Path) -> Iterator[OnnxDiagnosticPatch]:
    module = f"{ROOT}.patches.{file.stem}"
    try:
        _, tree = tree_of_file(file)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and (targets := _patched_methods(node)):
            yield OnnxDiagnosticPatch(module=module, name=node.name, targets=targets, by_class=True)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("patched_"):
            marked = tuple(_MARK.findall(ast.get_docstring(node) or "")) or FUNCTIONS.get(node.name, ())
            if marked:
                yield OnnxDiagnosticPatch(module=module, name=node.name, targets=marked)


def _patched_methods(node: ast.ClassDef) -> tuple[str, ...]:
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


def _of_transformers(entry: OnnxDiagnosticPatch) -> Shim:
    name = entry.name.removeprefix("patched_")
    known = TRANSFORMERS_PATCHES.get(name, TransformersPatch())
    return Shim(
        id=f"od.{name}",
        title=known.title or f"onnx-diagnostic's {name}",
        soundness=known.soundness,
        provider=PROVIDER,
        enter=_enter(entry),
        does=f"Replaces {', '.join('.'.join(target.split('.')[-2:]) for target in entry.targets)}.",
        precondition=known.precondition,
        cures=_cures(entry),
        needs={**_NEEDS, **({"transformers": known.transformers} if known.transformers else {})},
        link=_LINK,
        retire=known.retire,
        rank=70,
        conflicts=known.conflicts,
        wants=tuple(as_target(target) for target in entry.targets if target.count(".") > 2),
        replaces=tuple(_replacement(entry, target) for target in entry.targets),
    )


def _enter(entry: OnnxDiagnosticPatch) -> Enter:
    if entry.by_class:
        return patch_by_class(entry.module, entry.name)
    return patch_by_function(entry.module, entry.name, entry.targets)


def _replacement(entry: OnnxDiagnosticPatch, target: str) -> Replacement:
    by = f"{entry.name}.{target.rpartition('.')[2]}" if entry.by_class else entry.name
    return Replacement(target=as_target(target), by=f"{entry.module}:{by}")


def _cures(entry: OnnxDiagnosticPatch) -> tuple[Cure, ...]:
    names = ["\\.".join(map(re.escape, target.split(".")[-2:])) for target in entry.targets]
    return (Cure(where="|".join(rf":[^\n]*{name}:" for name in names)),)


def _of_torch(patch: TorchPatch) -> Shim:
    source = f"{ROOT}.patches.patch_torch:{patch.name}"
    return Shim(
        id=f"od.torch.{patch.id}",
        title=patch.title,
        soundness=patch.soundness,
        provider=PROVIDER,
        enter=patch_torch(patch.name, patch.targets, patch.value, wraps=patch.wraps),
        does=f"Replaces {', '.join(patch.targets)}.",
        precondition=patch.precondition,
        cures=patch.cures,
        needs=_NEEDS,
        link=_LINK,
        retire="torch includes it",
        rank=80,
        replaces=tuple(
            Replacement(target=target, after=f"{target} = {patch.name}\n")
            if patch.value is not None
            else Replacement(target=as_target(target), by=source)
            for target in patch.targets
        ),
    )


_CACHES = Shim(
    id="od.cache-serialization",
    title="transformers' caches are registered as pytree nodes, onnx-diagnostic's way",
    soundness="exact",
    provider=PROVIDER,
    enter=register_caches,
    does="`register_cache_serialization`, with the registrations undone afterwards, which it does not do in full.",
    cures=(Cure(kinds=("unregistered_pytree",), message=r"Cache"),),
    needs=_NEEDS,
    link=_LINK,
    retire="transformers registers its caches for every export",
    rank=70,
    conflicts=("register-cache-pytree", "register-cache-pytree-fixed", "hf.cache-pytrees"),
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
    enter=rewrite_control_flow,
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
