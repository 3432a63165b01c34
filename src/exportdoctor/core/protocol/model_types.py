"""What `exportdoctor sweep --transformers KIND` asks of a worker process, and the reply."""

from __future__ import annotations

import msgspec

from exportdoctor.core.protocol.reply import Refused, Reply

MODEL_KINDS = ("all", "text", "vision", "audio", "multimodal", "other")


class ModelTypesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Write the default configuration of each model type of a kind to `folder`/TYPE/config.json.

    With `sample`, of that many types, drawn with `seed`. With `few_folder` also each with few layers, experts and
    tokens, to `few_folder`/TYPE/config.json.
    """

    kind: str
    folder: str
    sample: int | None = None
    seed: int = 0
    few_folder: str = ""


class ModelTypes(Reply, frozen=True, kw_only=True, tag="model_types"):
    """The types, each with why there is no configuration for it, empty where it was written. `of` = all of the kind.

    `few_layers` are those written with few layers, each with what that changes: `num_hidden_layers 2 for 40`.
    """

    types: dict[str, str]
    of: int
    few_layers: dict[str, str] = msgspec.field(default_factory=dict)


ModelTypesReply = ModelTypes | Refused
