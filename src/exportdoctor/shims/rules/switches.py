"""Every implementation that transformers lets a configuration choose, as a shim: attention, experts, masks.

They are read from the registries in transformers' source: subclasses of `GeneralInterface` with a `_global_mapping`.
One whose `get_interface` takes `x_implementation` is chosen by `config._x_implementation`; another is looked up by the
attention's name.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exportdoctor.core.patch_attribute import patch_attributes, patch_item
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.installed_sources import folder_of, tree_of_file
from exportdoctor.shims.record import Enter, NotApplicable, Replacement, Shim
from exportdoctor.targets.eager import run_calls
from exportdoctor.torch_internals.fake_tensors import is_fake

PROVIDER = "transformers.registries"
_LINK = "https://huggingface.co/docs/transformers/attention_interface"
_DEFAULT = "eager"
"""The modelling code's own function, which no registry of functions lists."""

_FOLDERS = ("", "integrations")
"""Of transformers, where its registries of implementations are; those of parallel execution are elsewhere."""


@dataclass(frozen=True, kw_only=True)
class ImplementationRegistry:
    """`functions` are the names of what it holds, by key. Empty `setting`: looked up by the name of the attention."""

    module: str
    owner: str
    setting: str
    functions: tuple[tuple[str, str], ...]

    @property
    def kind(self) -> str:
        """What is chosen, as ids have it: `attn`, `experts`, `attention-mask`."""
        words = re.findall(r"[A-Z][a-z]+", self.owner.removesuffix("Interface"))
        return self.setting.removesuffix("_implementation").strip("_") or "-".join(words).lower()


def shims() -> tuple[Shim, ...]:
    """One for each implementation; none without transformers."""
    folder = folder_of("transformers")
    files = [file for name in _FOLDERS for file in sorted((folder / name).glob("*.py"))] if folder else []
    registries = [found for file in files for found in _registries(file)]
    settings = [one for one in registries if one.setting]
    return tuple(
        _shim(registry, key)
        for registry in registries
        if registry.setting or settings
        for key in dict.fromkeys([key for key, _ in registry.functions] + [_DEFAULT])
        if (registry.kind, key) != ("attn", _DEFAULT)  # it is `attn-eager`
    )


def _registries(file: Path) -> Iterator[ImplementationRegistry]:
    try:
        if b"(GeneralInterface)" not in file.read_bytes():
            return  # parsing all files takes seconds
        _, tree = tree_of_file(file)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return
    package = ["transformers", *([file.parent.name] if file.parent.name in _FOLDERS else []), file.stem]
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "GeneralInterface" for base in node.bases):
            functions = tuple(pair for part in node.body for pair in _entries_of(part))
            setting = next((name for part in node.body if (name := _setting_of(part))), "")
            if functions:
                yield ImplementationRegistry(
                    module=".".join(package), owner=node.name, setting=setting, functions=functions
                )


def _entries_of(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """The entries of `_global_mapping = {key: function}`."""
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_global_mapping":
        entries = node.value if isinstance(node.value, ast.Dict) else ast.Dict([], [])
        for key, value in zip(entries.keys, entries.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, ast.unparse(value)


def _setting_of(node: ast.stmt) -> str:
    """The attribute of a configuration whose value `get_interface(self, x_implementation, default)` takes."""
    if isinstance(node, ast.FunctionDef) and node.name == "get_interface" and len(node.args.args) > 1:
        return f"_{node.args.args[1].arg}"
    return ""


def _shim(registry: ImplementationRegistry, key: str) -> Shim:
    names = "|".join(sorted({re.escape(name) for _, name in registry.functions}))
    stem = registry.owner.removesuffix("Interface")
    enter = _choose(registry.setting, key) if registry.setting else _mask_of(registry.module, registry.owner, key)
    what = registry.kind.replace("attn", "attention").replace("-", " ")
    return Shim(
        id=f"{registry.kind}:{key.replace('|', '-')}",
        title=f"Uses the {what} implementation `{key}` of transformers",
        soundness="precondition",
        enter=enter,
        provider=PROVIDER,
        does=(
            f"transformers' {registry.owner} offers several implementations of one function; during the export the "
            f"model uses `{key}`. It applies only where the model runs in eager with it."
        ),
        precondition="this implementation computes what the model's own does, as it did on the inputs of the proof",
        cures=(Cure(where=rf"{stem}\.forward|(?i:eager_{stem})|\b(?:{names})\b"), Cure(message=rf"\b(?:{names})\b")),
        needs={"torch": ">=2.8", "transformers": ">=4.53"},
        link=_LINK,
        retire="all implementations export",
        rank=45,
        conflicts=(registry.kind, *(("attn-eager",) if registry.kind == "attn" else ())),
        replaces=(
            Replacement(
                target="the configuration of the model",
                before=f"config.{registry.setting or 'mask of the attention'} = ...\n",
                after=f"config.{registry.setting or 'mask of the attention'} = {key!r}\n",
            ),
        ),
    )


def _choose(setting: str, key: str) -> Enter:
    """Every configuration of the model that has the setting gets this value."""

    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        others = [one for one in _configurations(call) if getattr(one, setting, None) not in (None, key)]
        if not others:
            raise NotApplicable(f"no submodule has {setting} other than {key}")
        with patch_attributes((config, f"{setting}_internal", key) for config in others):
            _require_eager(call, f"{setting} = {key}")
            yield call

    return enter


def _mask_of(module: str, owner: str, key: str) -> Enter:
    """The registry answers with this entry for the attention that the model uses."""

    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        mapping = getattr(importlib.import_module(module), owner)._global_mapping
        used = {getattr(config, "_attn_implementation", None) for config in _configurations(call)}
        others = [name for name in used & mapping.keys() if key in mapping and mapping[name] is not mapping[key]]
        if not others:
            raise NotApplicable(f"no submodule uses an attention with a mask other than that of {key}")
        with ExitStack() as stack:
            for name in others:
                stack.enter_context(patch_item(mapping, name, mapping[key]))
            _require_eager(call, f"the mask of {key}")
            yield call

    return enter


def _configurations(call: ExportCall) -> list[Any]:
    found = {id(config): config for module in call.module.modules() if (config := getattr(module, "config", None))}
    return list(found.values())


def _require_eager(call: ExportCall, what: str) -> None:
    """Raises NotApplicable where the model does not run; a kernel may be missing, or made for another device.

    A model without values was tried as its small model.
    """
    if any(is_fake(value) for value in (*call.module.parameters(), *call.named.values())):
        return
    try:
        run_calls(call.module, [(call.args, call.kwargs)])
    except Exception as error:
        raise NotApplicable(f"the model does not run in eager with {what}: {type(error).__name__}") from None
