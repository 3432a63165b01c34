"""A configuration made small: few layers of each kind, narrow ones, few experts and a short vocabulary. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from exportdoctor.targets.recipes import EXPERTS, LAYERS
from exportdoctor.targets.sizes.image_sizes import vision_settings

SettingPath = tuple[str, ...]
"""The name of a setting, behind those of the settings that it is nested in."""

_INDICES = re.compile(r"ind(?:ex(?:es)?|ices)$|_layers$")
_LAYER_NUMBER = re.compile(r"\d+$")
_STAGE = re.compile(r"stage(\d+)$")
_FEATURE_LAYERS = re.compile(r"feature_layers?$|select_layer$|hook_ids$")
_LAYER_PLACE = re.compile(r"(?:merge_index|layer_id|layer_idx|layer_index)$")
_STAGES = ("out_indices", "out_features")
"""Settings that count the stem of an encoder as stage 0 and its layers from 1."""
_DEPTHS = re.compile(r"(?:^|_)depths?$|^block_sizes$|^stage_num\w*_(?:blocks|layers)$|^n_attn_blocks$")
"""Lists of the number of layers in each stage."""
_CHOSEN_EXPERTS = re.compile(r"_per_tok(?:en)?$|^moe_top_?k$|^moe_k$|^top_k(?:_experts)?$")
_PERIOD = re.compile(r"_(?:interval|pattern|freq|step|period|every_n_layers)$")
_KINDS = re.compile(r"(?:block|layer)s?_types?$")
"""Kinds of layers; fewer than there are layers come again and again."""
_HEADS = re.compile(r"(?:^|_)(?:num|n)_(?:attention_)?heads?$|(?:^|_)(?:en|de)coder_attention_heads$")
_KEY_VALUE_HEADS = re.compile(r"num_key_value_heads$|^n_head_kv$")
_WIDTH = re.compile(r"^(?:hidden_size|d_model|n_embd|embed_dim|dim)$")
_OUTPUT = re.compile(r"^out(?:put)?_(?:hidden_size|dim)$")
"""The width of what an encoder gives. Where its configuration stands alone, no other width follows from it."""
_INNER = re.compile(r"(?:^|_)(?:intermediate_size|ffn_dim|ffn_hidden_size|d_ff|n_inner|mlp_dim)$")
_HEAD_GROUPS = re.compile(r"(?:^|_)n_?groups$")
"""Of heads that share their states, at most one a head."""
_OTHER_WIDTH = re.compile(r"(?:hidden|embd|embed|proj|dim|out)\w*$|_size$|_groups$")
_NO_WIDTH = re.compile(r"image|patch|window|vocab|kernel|position|head_dim|merge|group_")
_VOCABULARIES = re.compile(r"(?:^|_)vocab_size(?:_per_\w+)?$|_vocab$")
_TOKEN = re.compile(r"token_(?:id|index)s?$|token_ids$")
_FEW, _HEADS_KEPT, _VOCABULARY = 2, 2, 512
_MOST_LAYERS = 8


def shrink_config(config: Mapping[str, Any], *, narrow: bool = True) -> dict[str, Any]:
    """The configuration with fewer layers, heads and tokens and smaller widths; one layer of each kind stays.

    Unless `narrow`, the heads and widths stay.
    """
    widths = {width: _narrow(nested, width) for nested in _nested_settings(config) for width in _widths(nested)}
    widest = max(widths.values(), default=0)
    for nested in _nested_settings(config):
        outputs = (value for key, value in nested.items() if _OUTPUT.search(key) and _is_count(value))
        widths |= {value: min(value, widest) for value in outputs if widest and value not in widths}
    tokens = _tokens(config)
    return _with_layers_named(_shrink(config, widths if narrow else None, tokens))


def changed_settings(config: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[SettingPath]:
    """The settings of which the two configurations have other values."""
    for key, value in config.items():
        one = other.get(key)
        if isinstance(value, Mapping) and isinstance(one, Mapping) and set(value) == set(one):
            yield from ((key, *path) for path in changed_settings(value, one))
        elif value != one:
            yield (key,)


def keep_settings(config: Mapping[str, Any], other: Mapping[str, Any], kept: Collection[SettingPath]) -> dict[str, Any]:
    """`other`, but with those settings as `config` has them."""
    result = dict(other)
    for key in {path[0] for path in kept}:
        below = [path[1:] for path in kept if path[0] == key]
        result[key] = config[key] if () in below else keep_settings(config[key], other[key], below)
    return result


def counts_changed(config: Mapping[str, Any], few: Mapping[str, Any], around: str = "") -> Iterator[str]:
    """Which numbers of layers and of experts are others in `few`, as `num_hidden_layers 2 for 40`."""
    for key, value in config.items():
        if isinstance(value, Mapping) and isinstance(few.get(key), Mapping):
            yield from counts_changed(value, few[key], f"{around}{key}.")
        elif few.get(key) != value and any(one.search(str(key)) for one in (LAYERS, EXPERTS, _DEPTHS)):
            yield f"{around}{key} {few.get(key)} for {value}"


def _with_layers_named(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the layers of an encoder whose output is used, which have become fewer."""
    depths = [
        nested[key] for nested in _nested_settings(vision_settings(config)) for key in nested if LAYERS.search(key)
    ]
    deepest = max((depth for depth in depths if _is_count(depth)), default=None)

    def clamp(value: Any) -> Any:
        if isinstance(value, list):
            kept = list(map(clamp, value))
            return kept if all(one >= 0 for one in value if type(one) is int) else list(dict.fromkeys(kept))
        return max(-deepest, min(value, deepest - 1)) if type(value) is int and deepest else value

    def walk(value: Any, key: str = "") -> Any:
        if isinstance(value, Mapping):
            return {name: walk(one, str(name)) for name, one in value.items()}
        return clamp(value) if _FEATURE_LAYERS.search(key) else value

    found: dict[str, Any] = walk(config)
    return found


def _shrink(config: Mapping[str, Any], widths: Mapping[int, int] | None, tokens: Mapping[int, int]) -> dict[str, Any]:
    depths = {key: value for key, value in config.items() if LAYERS.search(key) and _is_count(value)}
    kept = max((_layers_kept(config, depth) for depth in depths.values()), default=_FEW)
    result: dict[str, Any] = {}
    for key, value in config.items():
        match value:
            case Mapping() if depths and value and all(_LAYER_NUMBER.match(str(name)) for name in value):
                result[key] = {name: one for name, one in value.items() if int(name) < kept}
            case Mapping() if _is_settings(value):
                result[key] = _shrink(value, widths, tokens)
            case list() if _DEPTHS.search(key) and all(map(_is_count, value)):
                result[key] = [min(_FEW, depth) for depth in value]
            case list() if depths and key in _STAGES and any(_is_stage_beyond(one, kept, depths) for one in value):
                result[key] = _last_stages(value, kept)
            case list() if depths and len(value) in depths.values():
                result[key] = value[:kept]
                if _INNER.search(key):
                    result[key] = [_scalar(config, key, one, widths, tokens, kept=kept) for one in value[:kept]]
            case list() if depths and value and _INDICES.search(key) and _are_layers(value, depths):
                result[key] = [layer for layer in value if layer < kept] or [kept - 1]
            case _:
                result[key] = _scalar(config, key, value, widths, tokens, kept=min(kept, depths.get(key, kept)))
    return result


def _scalar(
    config: Mapping[str, Any],
    key: str,
    value: Any,
    widths: Mapping[int, int] | None,
    tokens: Mapping[int, int],
    *,
    kept: int,
) -> Any:
    if _TOKEN.search(key):
        return [tokens.get(item, item) for item in value] if isinstance(value, list) else tokens.get(value, value)
    if not _is_count(value):
        return value
    if LAYERS.search(key):
        return 0 if "shared" in key else kept  # what is shared needs a layer of its kind before it
    if _VOCABULARIES.search(key):
        return min(value, _VOCABULARY)
    if EXPERTS.search(key) and "shared" not in key:
        return _experts_kept(config, value)
    if widths is None:
        return value
    if _HEADS.search(key):
        return min(value, _HEADS_KEPT)
    if _HEAD_GROUPS.search(key):
        return min(value, _HEADS_KEPT)
    if _KEY_VALUE_HEADS.search(key):
        return _key_value_heads(config, value)
    if _INNER.search(key):
        return min(value, 2 * max([width for old, width in widths.items() if old in config.values()] or [value]))
    if (_WIDTH.search(key) or _OTHER_WIDTH.search(key)) and not _NO_WIDTH.search(key):
        return widths.get(value, value)
    return value


def _layers_kept(config: Mapping[str, Any], depth: int) -> int:
    """The fewest layers from the first on that are of every kind there is, at least two, and at most `_MOST_LAYERS`."""
    needed = min(_FEW, depth)
    for key, value in config.items():
        if isinstance(value, list) and key in _STAGES:
            needed = max(needed, len(value))
        elif isinstance(value, list) and value and (len(value) == depth or _KINDS.search(key)):
            if value == list(range(depth)):
                continue  # the numbers of layers, not their kinds
            firsts = [place for place, kind in enumerate(value) if kind not in value[:place]]
            needed = max(needed, firsts[-1] + 1)
        elif _LAYER_PLACE.search(key) and _is_count(value) and value < depth:
            needed = max(needed, value + 2)
        elif _PERIOD.search(key) and _is_count(value):
            first = config.get(re.sub(r"period$", "offset", key)) if key.endswith("period") else None
            needed = max(needed, first + 1 if type(first) is int else value)
    return min(needed, depth, _MOST_LAYERS)


def _experts_kept(config: Mapping[str, Any], value: int) -> int:
    """As few experts as leave a choice in each group of them; all where nothing says how many are chosen."""
    chosen = max((one for key, one in config.items() if _CHOSEN_EXPERTS.search(key) and _is_count(one)), default=value)
    stated = (config.get(key) for key in ("n_group", "topk_group"))
    groups, taken = (int(one) if one and _is_count(one) else 1 for one in stated)
    kept = groups * max(2, -(-2 * chosen // min(taken, groups)))
    return min(value, kept)


def _is_stage_beyond(stage: Any, kept: int, depths: Mapping[str, int]) -> bool:
    """Whether it is a layer that is not kept, by its number from 1 or as `stage12`."""
    found = _STAGE.match(stage) if isinstance(stage, str) else None
    number = int(found[1]) if found else stage
    return _is_count(number) and kept < number <= max(depths.values())


def _last_stages(value: list[Any], kept: int) -> list[Any]:
    """As many of the last stages, named as before; the stem stays."""
    stem = value[:1] if value[0] in ("stem", 0) else []
    stages = range(max(1, kept + 1 - (len(value) - len(stem))), kept + 1)
    return [*stem, *(f"stage{place}" if isinstance(value[-1], str) else place for place in stages)]


def _are_layers(values: list[Any], depths: Mapping[str, int]) -> bool:
    return all(isinstance(value, int) and 0 <= value < max(depths.values()) for value in values)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _nested_settings(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield config
    for value in config.values():
        if isinstance(value, Mapping) and _is_settings(value):
            yield from _nested_settings(value)


def _is_settings(value: Mapping[Any, Any]) -> bool:
    return all(isinstance(key, str) for key in value)


def _widths(config: Mapping[str, Any]) -> list[int]:
    return [value for key, value in config.items() if _WIDTH.search(key) and _is_count(value)]


def _narrow(config: Mapping[str, Any], width: int) -> int:
    """As many heads as are kept, each as wide as before: rotary sections and norms of heads stay as they are.

    The width of a head is stated where heads do not divide the width.
    """
    heads = [value for key, value in config.items() if _HEADS.search(key) and _is_count(value)]
    stated = config.get("head_dim")
    if not heads or (width % max(heads) and not _is_count(stated)):
        return width
    head = width // max(heads) if not width % max(heads) else int(stated or 0)
    return min(width, head * min(_HEADS_KEPT, max(heads)))


def _key_value_heads(config: Mapping[str, Any], value: int) -> int:
    heads = [count for key, count in config.items() if _HEADS.search(key) and _is_count(count)]
    return min(value, _HEADS_KEPT) if heads and value >= max(heads) else 1


def _tokens(config: Mapping[str, Any]) -> dict[int, int]:
    """Special tokens by their new, low numbers, in the old order."""
    found: set[int] = set()
    for nested in _nested_settings(config):
        for key, value in nested.items():
            if _TOKEN.search(key):
                items = value if isinstance(value, list) else [value]
                found.update(item for item in items if isinstance(item, int) and item >= 0)
    sizes = [nested["vocab_size"] for nested in _nested_settings(config) if _is_count(nested.get("vocab_size"))]
    if not sizes or max(sizes) <= _VOCABULARY:
        return {}
    return {token: number for number, token in enumerate(sorted(found))}
