"""transformers.exporters' registries, each entry a shim of its own. Listed from the source files, imported on use."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exportdoctor.core.patch_attribute import patch_attribute
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall, Named
from exportdoctor.shims.installed_sources import as_target, folder_of, tree_of_file
from exportdoctor.shims.own.cache_pytrees import counts_tokens
from exportdoctor.shims.own.dataclass_pytrees import find_numbered
from exportdoctor.shims.record import NotApplicable, Replacement, Shim, Soundness, Unfit
from exportdoctor.torch_internals.graph_modules import after_onnx_preparation
from exportdoctor.torch_internals.pytree_registry import temporary_registrations

PROVIDER = "transformers.exporters"
_PACKAGE = "transformers.exporters"
_BACKENDS = ("dynamo", "onnx")
_LINK = "https://github.com/huggingface/transformers/tree/main/src/transformers/exporters"
_REGISTRAR = "transformers.exporters.exporter_dynamo:register_cache_pytrees_for_model"
_NEEDS = {"torch": ">=2.11", "transformers": ">=5.10"}
_TITLE = 80

_CONDITIONS: dict[str, tuple[Soundness, str]] = {
    "_patch_chunked_vision_attention": ("precondition", "all segments have the same length"),
    "_patch_sliding_window_layer": ("precondition", "a cache that comes back may be longer than the window"),
    "_patch_classifier_cast": ("precondition", "the classifier already has the dtype it would be cast to"),
    "_patch_prepare_for_export": ("unsound", "it runs every graph fix, also the one that erases assertions"),
    "_fix_assertion": ("unsound", "the erased assertions would have held"),
    "_fix_ir_constant_gather_nd": ("precondition", "the mask is indexed by constant grids"),
    "_prepare_image_sizes_as_ints": ("specialised", "the images have the sizes of the example"),
}
"""What is known of entries that are not as sound as their kind, by the name of their function."""

_EXACT = frozenset({
    "patch_optimize_ir", "patch_sdpa", "patch_is_kernels_available", "patch_where", "patch_unsqueeze",
    "patch_rms_norm_forward", "patch_split", "patch_randperm", "patch_opset13_constant", "patch_chunk", "patch_exp",
    "patch_irfft", "patch_full", "patch_masked_mean", "patch_masked_var", "patch_masked_scatter", "patch_roll",
    "fix_dead_comparison", "fix_bfloat16_convolution", "fix_alias", "fix_detach_inplace", "fix_slice_implicit_start",
    "fix_index_put_last_dim_index", "fix_index_put_inplace", "fix_fill_diagonal_inplace", "fix_triu_inplace",
    "fix_sort_stable", "fix_integral_tensor_float_scalar", "fix_mul_scalar_symbolic", "fix_remainder_scalar",
    "patch_byte_group_hash", "patch_histc", "patch_searchsorted", "patch_bucketize",
    "patch_broadcast_mask_expansion", "patch_reshape", "patch_cummax", "patch_cummin", "fix_scatter_reduce",
})  # fmt: skip
"""Entries of transformers 5.23 that are meant to compute the same, without the leading underscore of their names."""

_NO_TRANSLATION = "No ONNX function found"
"""How `torch.onnx` says that it has no translation of an operator, which it names."""

_GENERAL_WORDS = frozenset({
    "dead", "implicit", "start", "last", "dim", "index", "inplace", "integral", "tensor", "float", "scalar", "symbolic",
    "bfloat16", "assertion",
})  # fmt: skip
"""Words in the names of graph fixes that are not of an operator."""

_UNKNOWN: tuple[Soundness, str] = ("precondition", "it is not of transformers 5.23, and rests on its proof alone")


@dataclass(frozen=True, kw_only=True)
class TransformersEntry:
    """A decorated function: its registry, what it is registered for, and the first paragraph of its docstring."""

    registry: str
    backend: str
    module: str
    function: str
    path: str
    summary: str


def shims() -> tuple[Shim, ...]:
    """Every entry as a shim; none where this transformers has no exporters."""
    folder = folder_of("transformers")
    files = sorted((folder / "exporters").glob("*.py")) if folder else []
    entries = [entry for file in files for entry in _entries(file)]
    several = {entry.function for entry in entries if sum(one.function == entry.function for one in entries) > 1}
    made = [_shim(entry, alone=entry.function not in several) for entry in entries]
    found = {shim.id: shim for shim in made}
    return (*found.values(), *((_CACHES,) if entries else ()))


def _entries(file: Path) -> Iterator[TransformersEntry]:
    try:
        _, tree = tree_of_file(file)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return
    for node in tree.body:
        for call in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and isinstance(node, ast.FunctionDef):
                yield from _entries_of(node, call, f"{_PACKAGE}.{file.stem}")


def _entries_of(node: ast.FunctionDef, call: ast.Call, module: str) -> Iterator[TransformersEntry]:
    words = [word.value for word in call.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    summary = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
    registry = getattr(call.func, "id", "")
    match registry:
        case "register_patch" if words and words[0] in _BACKENDS:
            backend, paths = words[0], words[1:]
        case "register_fx_node_fix" | "register_fx_program_fix" if words and words[0] in _BACKENDS:
            backend, paths = words[0], [""]
        case "register_export_input_preparer":
            backend, paths = "inputs", ["+".join(words)]
        case _:
            return
    for path in paths:
        yield TransformersEntry(
            registry=registry, backend=backend, module=module, function=node.name, path=path, summary=summary
        )


def _shim(entry: TransformersEntry, *, alone: bool) -> Shim:
    exact = entry.function.removeprefix("_") in _EXACT
    soundness, condition = ("exact", "") if exact else _CONDITIONS.get(entry.function, _UNKNOWN)
    name = _words(entry).replace(" ", "-")
    short = ".".join(entry.path.split(".")[-2:])
    prefix = "hf" if entry.backend == "dynamo" else f"hf.{entry.backend}"
    own = {"enter": _patch(entry), "cures": _cures(entry), "soundness": soundness}
    if entry.registry == "register_export_input_preparer":
        soundness, condition = _CONDITIONS.get(entry.function, ("signature", ""))
        own = {"enter": _preparer(entry), "cures": _cures_of_inputs(entry), "soundness": soundness}
    elif entry.registry != "register_patch":
        own["enter"] = _graph_fix(entry)
    return Shim(
        id=f"{prefix}.{name}" if alone or not short else f"{prefix}.{name}:{short}",
        title=_title(entry, alone=alone),
        provider=PROVIDER,
        does=entry.summary,
        precondition=condition,
        needs=_NEEDS,
        link=_LINK,
        retire="transformers removes it from its registry",
        rank=60,
        wants=(as_target(entry.path),) if entry.path.startswith("transformers.") else (),
        replaces=(Replacement(target=as_target(entry.path), by=f"{entry.module}:{entry.function}"),),
        **own,
    )


def _words(entry: TransformersEntry) -> str:
    """The words of the function's name."""
    return entry.function.removeprefix("_").removeprefix("patch_").removeprefix("prepare_").replace("_", " ")


def _title(entry: TransformersEntry, *, alone: bool) -> str:
    """The first sentence of its docstring; of one of several targets, or without a sentence, what stands for what."""
    sentence = _sentence(entry.summary)
    holder, _, attribute = entry.path.rpartition(".")
    if sentence and (alone or not attribute):
        return sentence
    where = holder.rpartition(".")[2]
    if not where:
        return f"Graph fix for {entry.backend.upper()}: {_words(entry).removeprefix('fix ')}"
    if _words(entry).replace(" ", "_") in attribute:
        return f"{attribute} of {where} rewritten for export"
    words = _words(entry)
    return f"{words[0].upper()}{words[1:]} in place of {where}.{attribute}"


def _sentence(text: str) -> str:
    """The first sentence of a comment as a title; a long one ends at a break, and is none where there is no break."""
    plain = re.sub(r"`+", "", re.split(r"(?<=\w|`|\))[.](?:\s|$)| — |; ", text)[0]).strip().rstrip(".")
    if len(plain) <= _TITLE:
        return plain
    heads = (plain[: found.start()] for found in re.finditer(r" \(|: |, | by | so | via | for | during | when ", plain))
    heads = (head for head in heads if head.count("(") == head.count(")"))
    return max((head for head in heads if _TITLE // 4 <= len(head) <= _TITLE), key=len, default="")


def _cures(entry: TransformersEntry) -> tuple[Cure, ...]:
    if entry.backend == "onnx":
        return _cures_behind_the_export(entry)
    name = ".".join(entry.path.split(".")[-2:])
    names = (name, entry.path.split(".")[-1]) if not name[:1].isupper() else (name,)
    return (Cure(where="|".join(rf":[^\n]*\b{one}\b".replace(".", r"\.", 1) for one in names)),)


def _cures_behind_the_export(entry: TransformersEntry) -> tuple[Cure, ...]:
    """Any failure; but where an operator has no translation, only what is named after that operator, or after the
    function in the line."""
    stages = ("translate", "load", "run")
    if entry.path.startswith("transformers."):
        return (Cure(kinds=stages),)
    holder, _, function = entry.path.rpartition(".")
    if function == "forward":  # its class is of modules, the entry's own name of an operator
        function = "_".join(word for word in _words(entry).split() if word != function)
    namespace = holder.removeprefix("torch.")  # ATen's operators of torch.fft are called `_fft_...`
    words = [word for word in _words(entry).removeprefix("fix ").split() if word not in _GENERAL_WORDS]
    named = {"_".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}
    if function:
        head, several, _ = function.rpartition("_")
        named = {function, *([head] if "_" in head and several else []), *([namespace] if namespace.islower() else [])}
    operator = rf"(?:\w*_)?(?:{'|'.join(sorted(named))})(?:_\w+)?'"
    no_translation = rf"{_NO_TRANSLATION} for <OpOverload\(op='\w+[.]{operator}"
    return (
        Cure(kinds=stages, message=rf"^(?!.*{_NO_TRANSLATION})"),
        *((Cure(kinds=stages, message=no_translation),) if named else ()),
        *((Cure(kinds=stages, where=rf":[^\n]*\b{function}\("),) if function else ()),
    )


def _cures_of_inputs(entry: TransformersEntry) -> tuple[Cure, ...]:
    """Numbers that are read out of one of the inputs it is registered for, or by the helpers that it calls before."""
    read = "|".join(rf"{marker}\b.*(?:tolist\(|item\()|int\(.*{marker}" for marker in entry.path.split("+"))
    helpers = "vision_utils|" if "grid_thw" in entry.path else ""
    return (Cure(kinds=("data_dependent_value", "data_dependent_guard"), where=helpers + read),)


def _patch(entry: TransformersEntry) -> Any:
    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        path, _, attribute = entry.path.rpartition(".")
        module = ".".join(path.split(".")[:4])  # `transformers.models.blt.modeling_blt`
        if module.startswith("transformers.models.") and module not in sys.modules:
            raise NotApplicable(f"the model does not use {module}")
        factory = _function(entry)
        holder = _object_at(path)
        if holder is None or not hasattr(holder, attribute):
            raise Unfit(f"there is no {entry.path}")
        original = getattr(holder, attribute)
        made = _with_signature(factory(original), original)
        if _is_module_class(holder) and not any(isinstance(module, holder) for module in call.module.modules()):
            raise NotApplicable(f"no submodule is a {holder.__name__}")
        with patch_attribute(holder, attribute, made):
            yield call

    return enter


def _function(entry: TransformersEntry) -> Any:
    try:
        return getattr(importlib.import_module(entry.module), entry.function)
    except (ImportError, AttributeError) as error:
        raise Unfit(f"there is no {entry.module}.{entry.function}: {error}") from error


def _object_at(path: str) -> Any:
    """The module or class at a dotted path, None where there is none: not each release has a function for it."""
    module, *names = path.split(".")
    found: Any = None
    try:
        found = importlib.import_module(module)
        for place, name in enumerate(names, start=2):
            if inspect.ismodule(found) and not hasattr(found, name):
                importlib.import_module(".".join(path.split(".")[:place]))
            found = getattr(found, name)
    except (ImportError, AttributeError):
        return None
    return found


def _is_module_class(holder: Any) -> bool:
    from torch import nn

    return isinstance(holder, type) and issubclass(holder, nn.Module)


def _with_signature(made: Any, original: Any) -> Any:
    """`made` with the original's signature: torch.export matches dynamic_shapes to parameter names."""
    try:
        return functools.update_wrapper(made, original)
    except (AttributeError, TypeError):
        return made


def _preparer(entry: TransformersEntry) -> Any:
    markers = entry.path.split("+")

    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        named, prepare = call.named, _function(entry)
        if any(named.get(marker) is None for marker in markers):
            raise NotApplicable(f"the module is not called with {' and '.join(markers)}")

        def compute(named: Named) -> dict[str, Any]:
            inputs = dict(named)
            prepare(call.module, inputs)
            return {name: value for name, value in inputs.items() if named.get(name) is not value}

        yield call.with_inputs(compute)

    return enter


def _graph_fix(entry: TransformersEntry) -> Any:
    """A fix of single nodes runs where the exporter for ONNX has decomposed the program, and nowhere else."""

    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        fix = _function(entry)

        def fix_program(program: Any) -> None:
            if entry.registry == "register_fx_program_fix":
                fix(program)
                return
            for graph in (module for module in program.graph_module.modules() if hasattr(module, "graph")):
                for node in list(graph.graph.nodes):
                    meta = node.meta
                    if fix(graph, node):
                        _keep_meta(graph, meta)
                graph.recompile()

        with after_onnx_preparation(fix_program):
            yield call

    return enter


def _keep_meta(graph: Any, meta: dict[str, Any]) -> None:
    """Give what a fix put in a node's place the node's shape and line, where the fix gave it none."""
    for node in reversed(graph.graph.nodes):
        if node.op == "call_function" and "val" not in node.meta:
            node.meta.update(meta)
            return


@contextmanager
def _caches(call: ExportCall) -> Iterator[ExportCall]:
    importlib.import_module(f"{_PACKAGE}.utils")
    exporter = importlib.import_module(f"{_PACKAGE}.exporter_dynamo")
    if numbered := find_numbered(call) or "cache" * counts_tokens(call):
        raise NotApplicable(f"a number of the {numbered} among the inputs would be a constant")
    with temporary_registrations(lambda: exporter.register_cache_pytrees_for_model(call.module)):
        yield call


_CACHES = Shim(
    id="hf.cache-pytrees",
    title="Every cache class that the model can make is registered as a pytree node",
    soundness="exact",
    enter=_caches,
    provider=PROVIDER,
    does="`register_cache_pytrees_for_model`, with the registrations undone afterwards, which it does not do itself. "
    "Numbers in a cache are constants of the program: not for caches among the inputs that count tokens.",
    cures=(Cure(kinds=("unregistered_pytree",), message=r"Cache"),),
    needs=_NEEDS,
    link=_LINK,
    retire="transformers registers its caches for every export",
    rank=60,
    conflicts=("register-cache-pytree", "register-cache-pytree-fixed", "od.cache-serialization"),
    wants=(_REGISTRAR,),
    replaces=(
        Replacement(target="torch.utils._pytree.SUPPORTED_NODES", after="register_cache_pytrees_for_model(model)\n"),
    ),
)
