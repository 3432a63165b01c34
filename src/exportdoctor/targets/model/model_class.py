"""Finds the transformers class of a configuration, and imports transformers without its messages on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Any

from exportdoctor.core.errors import TargetError
from exportdoctor.core.exception_text import summary

_SAYS_DTYPE = (4, 56)
_FLOATS = ("Infinity", "-Infinity", "NaN")
_SEQ2SEQ = ("AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq", "AutoModelForTextToSpectrogram")
_FIRST_AUTO_CLASSES = ("AutoModelForCausalLM", *_SEQ2SEQ, "AutoModelForImageTextToText", "AutoModel")


def import_transformers() -> ModuleType:
    """transformers, without its advice and progress bars on stderr."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        import transformers
        from transformers.utils import logging
    except ImportError as error:
        hint = f"{sys.executable} -m pip install transformers"
        raise TargetError(f"transformers cannot be imported: {error}", hint=hint) from error
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return transformers


def dtype_argument(dtype: Any) -> dict[str, Any]:
    """The keyword by which this transformers takes a dtype: it was `torch_dtype` before 4.56."""
    transformers = import_transformers()
    release = tuple(int(number) for number in transformers.__version__.split(".")[:2])
    return {"dtype" if release >= _SAYS_DTYPE else "torch_dtype": dtype}


def load_config(content: dict[str, Any]) -> Any:
    """The configuration object of its own class, from the content of a config.json."""
    transformers = import_transformers()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = str(content.get("model_type") or _type_of_architecture(transformers, content))
    if model_type not in CONFIG_MAPPING:
        own_code = " (it brings its own code, which is not run)" if "auto_map" in content else ""
        raise TargetError(
            f"transformers {transformers.__version__} does not know the model type {model_type!r}{own_code}",
            hint="Install a version that does, or give file.py:factory",
        )
    try:
        return CONFIG_MAPPING[model_type].from_dict(_with_floats(content))
    except Exception as error:  # the stack is transformers' own check
        raise TargetError(f"transformers rejects the configuration: {summary(error)}") from error


def _with_floats(value: Any) -> Any:
    """A copy with the numbers that JSON does not know, which transformers writes as `{"__float__": "Infinity"}`."""
    if isinstance(value, dict):
        named = value.get("__float__") if len(value) == 1 else None
        return float(named) if named in _FLOATS else {key: _with_floats(one) for key, one in value.items()}
    return [_with_floats(one) for one in value] if isinstance(value, list) else value


def left_out_code(content: dict[str, Any]) -> str:
    """Why another class is built than the one that a config.json names; empty where transformers has that class.

    A checkpoint may bring its own code, also for a model type that transformers knows. It is not run.
    """
    transformers = import_transformers()
    given = content.get("architectures") or []
    names = [str(name) for name in (given if isinstance(given, list) else [given])]
    own = content.get("auto_map")
    listed = [str(value) for key, value in own.items() if "Model" in key] if isinstance(own, dict) else []
    if listed:
        return (
            f"the checkpoint's own code is not run ({', '.join(listed)} in auto_map); give file.py:factory to scan it"
        )
    if names and not any(hasattr(transformers, name) for name in names):
        return f"transformers {transformers.__version__} has no {' or '.join(names)}, which `architectures` names"
    return ""


def quantization_method(content: dict[str, Any]) -> str:
    """How a config.json says that the checkpoint is quantized; empty if it is not."""
    for one in (content, content.get("text_config")):
        found = one.get("quantization_config") if isinstance(one, dict) else None
        if found:
            return str(found.get("quant_method") or "quantization_config") if isinstance(found, dict) else str(found)
    return ""


def find_model_classes(config: Any) -> Iterator[Any]:
    """The classes that can be built from the configuration, likeliest first. Raises TargetError if there is none.

    Those named in `architectures`, the auto classes that know it, and the model classes of its package.
    """
    transformers = import_transformers()
    listed: dict[Any, bool] = {}
    for kind in _candidates(transformers, config):
        if kind not in listed:
            listed[kind] = _has_forward(kind)
            if listed[kind]:
                yield kind
    if any(listed.values()):
        return
    if listed:
        nested, first = _nested_types(config), next(iter(listed))
        raise TargetError(
            f"{first.__name__} has no forward of its own" + (", but models that it calls in turn" if nested else ""),
            hint=f"Give the configuration of one of them: {', '.join(nested)}"
            if nested
            else "Give file.py:factory, with a module whose forward calls the method that you want to export",
        )
    raise TargetError(
        f"transformers {transformers.__version__} has no model class for {type(config).__name__}",
        hint="Name one in the configuration's `architectures`",
    )


def _nested_types(config: Any) -> list[str]:
    """The model types of the configurations in a configuration."""
    nested = (value for name, value in sorted(vars(config).items()) if not name.startswith("_"))
    return [str(kind) for value in nested if (kind := getattr(value, "model_type", None))]


def _has_forward(model_class: Any) -> bool:
    """Whether a class computes something by itself: some only hold models that `generate` calls one after the other."""
    from torch import nn

    try:
        return getattr(model_class, "forward", None) is not nn.Module.forward
    except ImportError:  # a stand-in for want of a package, which building it will name
        return True


def _candidates(transformers: ModuleType, config: Any) -> Iterator[Any]:
    for name in getattr(config, "architectures", None) or ():
        if model_class := getattr(transformers, name, None):
            yield model_class
    others = sorted(name for name in dir(transformers) if name.startswith("AutoModelFor"))
    first = _SEQ2SEQ if getattr(config, "is_encoder_decoder", False) else ()  # its decoder alone is less
    for auto in (*first, *_FIRST_AUTO_CLASSES, *others, "AutoBackbone"):
        mapping = getattr(getattr(transformers, auto, None), "_model_mapping", {})
        if type(config) in mapping:
            listed: Any = ()
            with suppress(ValueError):  # a table may name a class that is not there
                listed = mapping[type(config)]
            yield from listed if isinstance(listed, tuple | list) else (listed,)
    yield from _package_classes(transformers, type(config))


def _package_classes(transformers: ModuleType, config_class: type) -> Iterator[Any]:
    """Model classes beside the configuration class that are made for it: parts that no auto class lists."""
    package, _, stem = config_class.__module__.rpartition(".")
    name = f"{package}.{stem.replace('configuration_', 'modeling_', 1)}"
    try:
        module = import_module(name)
    except ImportError:
        return
    classes = (value for value in vars(module).values() if isinstance(value, type) and value.__module__ == name)
    models: list[Any] = [value for value in classes if issubclass(value, transformers.PreTrainedModel)]
    own = [kind for kind in models if kind.config_class is config_class]
    yield from (kind for kind in own if "forward" in vars(kind))
    yield from (kind for kind in own if not any(kind in other.__bases__ for other in own) and not _has_forward(kind))


def _type_of_architecture(transformers: ModuleType, content: dict[str, Any]) -> str | None:
    for name in content.get("architectures") or ():
        config_class = getattr(getattr(transformers, name, None), "config_class", None)
        if config_class is not None:
            return str(config_class.model_type)
    return None
