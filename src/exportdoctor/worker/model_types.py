"""The process behind `exportdoctor sweep --transformers KIND`: writes the default configurations of model types."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from types import ModuleType

from exportdoctor.core.codec import decode
from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.core.exception_text import summary
from exportdoctor.core.protocol.model_types import ModelTypes, ModelTypesReply, ModelTypesRequest
from exportdoctor.core.protocol.reply import Refused
from exportdoctor.targets.configuration import read_config
from exportdoctor.targets.model.model_class import import_transformers, load_config
from exportdoctor.targets.small_model import keep_few_layers
from exportdoctor.worker.standard_streams import take_line_streams, write_line

_TABLE = "_MAPPING_NAMES"
# words in the names of transformers' tables of model classes by task, first match first
_KIND_OF_TABLE = (
    ("multimodal", ("IMAGE_TEXT", "MULTIMODAL", "VISUAL_QUESTION", "DOCUMENT_QUESTION", "ZERO_SHOT", "RETRIEVAL")),
    ("audio", ("AUDIO", "SPEECH", "CTC", "RNNT", "TDT", "SPECTROGRAM", "WAVEFORM")),
    ("vision", ("IMAGE", "VIDEO", "SEGMENTATION", "DETECTION", "DEPTH", "KEYPOINT", "MASK_GENERATION", "ESTIMATION",
                "RECOGNITION", "BACKBONE")),
    ("text", ("CAUSAL_LM", "MASKED_LM", "SEQUENCE", "TOKEN", "TEXT", "QUESTION", "CHOICE", "SENTENCE")),
)  # fmt: skip


def kinds_of_types(tables: dict[str, dict[str, object]]) -> dict[str, str]:
    """Each model type that a table lists with a model class, and its kind: of the kinds of its tables the first.

    `other` is what stands in no table of a task of these kinds.
    """
    found: dict[str, str] = {}
    for kind, _ in _KIND_OF_TABLE:
        for name, table in tables.items():
            if _kind_of_table(name) == kind:
                found = dict.fromkeys(table, kind) | found
    return dict.fromkeys((model_type for table in tables.values() for model_type in table), "other") | found


def _kind_of_table(name: str) -> str:
    return next((kind for kind, words in _KIND_OF_TABLE if any(word in name for word in words)), "other")


def answer(request: ModelTypesRequest) -> ModelTypesReply:
    """Write the configurations; the refusal where transformers cannot be imported or the disk refuses."""
    try:
        transformers = import_transformers()
        types = sorted(name for name, kind in kinds_of_types(_read_tables()).items() if request.kind in ("all", kind))
        drawn = types
        if request.sample is not None and request.sample < len(types):
            drawn = random.Random(request.seed).sample(types, request.sample)  # in this order: a part is a sample, too
        whole = {name: _write(transformers, name, Path(request.folder) / name) for name in drawn}
        few = {}
        for name in whole if request.few_folder else ():
            if changed := _write_few(Path(request.folder) / name, Path(request.few_folder) / name):
                few[name] = changed
        return ModelTypes(types=whole, of=len(types), few_layers=few)
    except Exception as error:
        return Refused.from_error(error)


def _read_tables() -> dict[str, dict[str, object]]:
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return {
        name: {model_type: table[model_type] for model_type in table if model_type in CONFIG_MAPPING}
        for name, table in vars(modeling_auto).items()
        if name.startswith("MODEL_") and name.endswith(_TABLE)
    }


def _write(transformers: ModuleType, model_type: str, folder: Path) -> str:
    """Save the default configuration of a type, unless it is there; why that cannot be, else empty."""
    if (folder / "config.json").exists():
        return ""
    try:
        config = transformers.AutoConfig.for_model(model_type)
        text = config.to_json_string(use_diff=False)
    except Exception as error:
        return f"no default configuration: {summary(error)}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(text, encoding="utf-8")
    return ""


def _write_few(whole: Path, folder: Path) -> str:
    """Save the configuration in `whole` with few layers to `folder`; what that changes, empty where it is not done."""
    try:
        config = read_config(whole / "config.json")
        few, changed = keep_few_layers(config)
        load_config(few)
    except (ExportdoctorError, OSError):  # it is asked with all layers
        return ""
    if changed:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(few, indent=2), encoding="utf-8")
    return ", ".join(changed)


def main() -> None:
    """Answer one request and end."""
    requests, replies = take_line_streams()
    with os.fdopen(requests, "rb") as lines:
        write_line(replies, answer(decode(lines.readline(), ModelTypesRequest)))


if __name__ == "__main__":
    main()
