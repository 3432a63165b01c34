"""Real architectures: sizes without weights, parts that run in eager at two sizes, weights from a checkpoint."""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree
from transformers import CLIPVisionConfig, CLIPVisionModel, PretrainedConfig
from transformers.cache_utils import DynamicCache

from exportdoctor.core.errors import NoPartError, TargetError, UnreadableCheckpointError, UsageError
from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.targets import BuiltPart, BuiltTarget, build, resolve
from exportdoctor.targets.eager import run_once
from exportdoctor.targets.model.weights import fake_parameters
from exportdoctor.targets.parts.decode import cache_input
from exportdoctor.targets.parts.dynamic_cache import cache_from, registered_cache, tensors_of
from exportdoctor.targets.parts.model_context import ModelContext
from exportdoctor.targets.parts.submodule_part import submodule_part
from exportdoctor.targets.parts.vision_language import other_grid
from exportdoctor.targets.preset_files import find_preset
from tiny_configs import FAMILIES, write_config

if TYPE_CHECKING:
    from pathlib import Path

TINY = "Qwen2.5-VL-3B-tiny"
PARTS = ("vision", "projector", "text", "decode", "prefill", "full", "video")


def built(ref: object, *parts: str, **options: Any) -> BuiltTarget:
    return build(resolve(TargetRef(ref=str(ref), parts=parts, options=BuildOptions(**options))))


def run(part: BuiltPart, inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None) -> Any:
    return run_once(part.module, inputs or (part.args, part.kwargs))


def export(part: BuiltPart) -> torch.export.ExportedProgram:
    with part.prepare():
        return torch.export.export(
            part.module, part.args, part.kwargs, dynamic_shapes=part.dynamic_shapes, strict=False
        )


def save(model: BuiltTarget, folder: Path, **options: Any) -> None:
    transformers_model: Any = model.model
    transformers_model.save_pretrained(folder, **options)


def sizes(value: Any, path: str) -> dict[str, int]:
    """Every dimension of every tensor: `input_ids[1]` -> its size."""
    if isinstance(value, DynamicCache):
        value = tensors_of(value)
    if isinstance(value, torch.Tensor):
        return {f"{path}[{dimension}]": size for dimension, size in enumerate(value.shape)}
    if isinstance(value, dict):
        return {key: size for name, item in value.items() for key, size in sizes(item, name).items()}
    if isinstance(value, list):
        return {k: size for index, item in enumerate(value) for k, size in sizes(item, f"{path}[{index}]").items()}
    return {}


def check_part(part: BuiltPart) -> None:
    """Eager runs at both sizes, which differ in the dynamic axes and nowhere else."""
    run(part)
    for args, kwargs in part.more_inputs:
        run(part, (args, kwargs))
        first, second = sizes(part.kwargs, ""), sizes(kwargs, "")
        assert first.keys() == second.keys()
        assert list(part.kwargs) == list(kwargs)
        dynamic = {place for places in part.axes.values() for place in places}
        assert {place for place, size in first.items() if second[place] != size} == dynamic
        assert all(first[place] > 1 and second[place] > 1 for place in dynamic)
    assert bool(part.axes) == bool(part.more_inputs) == (part.dynamic_shapes is not None)


@pytest.fixture(scope="module")
def tiny() -> BuiltTarget:
    return built(TINY)


@pytest.fixture(scope="module")
def tiny_fake(tmp_path_factory: pytest.TempPathFactory) -> BuiltTarget:
    preset = find_preset(TINY)
    assert preset is not None
    folder = write_config(tmp_path_factory.mktemp("fake") / "tiny", preset.config)
    return built(folder, image_size=preset.image_size)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen2.5-VL-3B", 3_754_622_976),
        ("Qwen2.5-VL-7B", 8_292_166_656),
        ("Qwen2.5-VL-32B", 33_452_718_336),
        ("Qwen2.5-VL-72B", 73_410_777_344),
    ],
)
def test_a_preset_is_built_at_its_real_size_without_weights(name: str, parameters: int) -> None:
    model = built(name)
    assert (model.parameters, model.weights, model.device, model.dtype) == (parameters, "fake", "cpu", "float32")
    assert all(isinstance(parameter, FakeTensor) for parameter in model.model.parameters())
    assert not any(isinstance(buffer, FakeTensor) or buffer.is_meta for buffer in model.model.buffers())
    assert not model.model.training
    named = dict(model.model.named_parameters(remove_duplicate=False))
    tied = named["lm_head.weight"] is named["model.language_model.embed_tokens.weight"]
    assert tied == (name == "Qwen2.5-VL-3B")


@pytest.mark.night
def test_a_672x672_image_calls_837_modules_of_the_full_3b() -> None:
    part = built("Qwen2.5-VL-3B", static=True).part("full")
    called: set[str] = set()
    for name, module in part.module.named_modules():
        module.register_forward_pre_hook(lambda *_, name=name: called.add(name))
    run(part)
    assert len(called) == 837
    assert (part.title, part.dynamic_shapes, part.more_inputs) == ("static", None, ())
    assert part.kwargs["image_grid_thw"].tolist() == [[1, 48, 48]]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_each_part_runs_at_two_sizes_that_differ_in_its_dynamic_axes_alone(
    tiny: BuiltTarget, tiny_fake: BuiltTarget, name: str
) -> None:
    for model in (tiny, tiny_fake):
        part = model.part(name)
        check_part(part)
        assert model.model.get_submodule(part.prefix) is part.module


def test_index_inputs_are_real_and_activations_fake(tiny_fake: BuiltTarget) -> None:
    kinds = {
        name: {key: isinstance(value, FakeTensor) for key, value in tiny_fake.part(name).kwargs.items()}
        for name in ("full", "video")
    }
    assert kinds["full"].pop("pixel_values")
    assert kinds["video"].pop("pixel_values_videos")
    assert not any(value for part in kinds.values() for value in part.values())


def test_a_fake_parameter_is_what_torch_makes_of_a_fake_tensor() -> None:
    first, second = (nn.Linear(3, 2, device="meta") for _ in range(2))
    second.weight = first.weight
    second.bias.requires_grad_(False)
    made = nn.Parameter(fake_parameters(nn.Sequential(first, second), device=torch.device("cpu"))(torch.empty(2, 3)))
    facts = ("shape", "dtype", "device", "is_leaf", "requires_grad", "grad_fn")
    assert [getattr(first.weight, name) for name in facts] == [getattr(made, name) for name in facts]
    assert first.weight._is_view() == made._is_view()
    assert vars(first.weight).keys() == vars(made).keys()
    assert isinstance(first.weight, nn.Parameter)
    assert second.weight is first.weight
    assert not second.bias.requires_grad


def test_titles_and_axes_are_in_the_users_words(tiny: BuiltTarget) -> None:
    titles = {name: tiny.part(name).title for name in PARTS}
    assert titles == {
        "vision": "patches dynamic",
        "projector": "patches dynamic",
        "text": "batch, sequence dynamic",
        "decode": "batch, cache length dynamic",
        "prefill": "batch, sequence dynamic",
        "full": "sequence, patches dynamic",
        "video": "sequence, patches dynamic",
    }
    assert tiny.part("text").axes["sequence"] == ("input_ids[1]", "attention_mask[1]")


@pytest.mark.slow
def test_static_fixes_every_part() -> None:
    model = built(TINY, static=True)
    parts = [model.part(name) for name in PARTS]
    assert all((part.title, part.dynamic_shapes, part.more_inputs) == ("static", None, ()) for part in parts)


@pytest.mark.night
def test_the_text_part_exports_with_fake_weights_and_with_real_ones(tiny: BuiltTarget, tiny_fake: BuiltTarget) -> None:
    assert len(export(tiny.part("text")).graph.nodes) == len(export(tiny_fake.part("text")).graph.nodes)


@pytest.mark.long
@pytest.mark.slow
def test_the_decode_part_exports_and_gives_eagers_numbers_at_another_size(tiny: BuiltTarget) -> None:
    part = tiny.part("decode")
    program = export(part)
    args, kwargs = part.more_inputs[0]
    with part.prepare():
        found = program.module()(*args, **copy.deepcopy(kwargs))
    expected = run(part, (args, kwargs))
    assert torch.allclose(found.logits, expected.logits, atol=1e-5)
    caches = [output[cache_input(part.module)] for output in (found, expected)]
    pairs = zip(*map(tensors_of, caches), strict=True)
    assert all(torch.allclose(left, right, atol=1e-5) for left, right in pairs)


@pytest.mark.slow
def test_the_vision_part_fails_where_it_is_known_to_fail(tiny_fake: BuiltTarget) -> None:
    with pytest.raises(GuardOnDataDependentSymNode, match="specialized integer"):
        export(tiny_fake.part("vision"))


@pytest.mark.parametrize("grid", [(2, 2), (2, 4), (4, 2), (12, 16), (48, 48), (34, 34)])
def test_the_other_image_has_another_number_of_patches_and_windows_not_all_full(grid: tuple[int, int]) -> None:
    height, width = other_grid(*grid, merge=2)
    assert height * width != grid[0] * grid[1]
    assert height % 2 == width % 2 == 0
    assert grid[0] % 8 or grid[1] % 8 or height % 8 or width % 8


def test_the_cache_is_a_pytree_node_for_as_long_as_an_attempt_lasts() -> None:
    tensors = [torch.full((2, 2, 3, 4), float(number)) for number in range(4)]
    before = (dict(pytree.SUPPORTED_NODES), dict(pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE))
    with registered_cache():
        leaves, structure = pytree.tree_flatten({"cache": cache_from(tensors)})
        assert all(left is right for left, right in zip(leaves, tensors, strict=True))
        again = pytree.tree_unflatten(leaves, structure)["cache"]
        assert (type(again), again.get_seq_length(), len(again)) == (DynamicCache, 3, 2)
    assert (dict(pytree.SUPPORTED_NODES), dict(pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE)) == before
    assert pytree.tree_leaves(cache := cache_from(tensors)) == [cache]


def test_what_another_library_registered_for_the_cache_is_put_back() -> None:
    pytree._private_register_pytree_node(DynamicCache, lambda cache: ([], None), lambda *_: None)
    theirs = pytree.SUPPORTED_NODES[DynamicCache]
    try:
        with registered_cache():
            assert pytree.SUPPORTED_NODES[DynamicCache] is not theirs
        assert pytree.SUPPORTED_NODES[DynamicCache] is theirs
    finally:
        pytree._deregister_pytree_node(DynamicCache)


BY_NIGHT = {"mixtral", "resnet", "detr", "t5", "mamba", "siglip", "llava", "xlnet"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.night if name in BY_NIGHT else pytest.mark.slow) for name in FAMILIES],
)
def test_every_family_gets_inputs_that_eager_accepts(tmp_path: Path, name: str) -> None:
    model = built(write_config(tmp_path / name, FAMILIES[name]))
    part = model.part("full" if name == "llava" else "default")
    check_part(part)
    assert part.left_out == ()
    assert part.axes
    main = model.model.main_input_name
    assert main in part.kwargs
    assert model.weights == "fake"
    forms = [form.what for form in model.substitutions]
    assert forms == (["with the experts implementation 'batched_mm'"] if name == "mixtral" else [])


@pytest.mark.slow
def test_a_checkpoint_that_is_not_whole_is_no_fault_of_a_class(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "whole", FAMILIES["gpt2"])
    save(built(folder, weights="random"), folder)
    assert built(folder, weights=str(folder)).weights == "checkpoint"
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(UnreadableCheckpointError, match=r"Loading .* failed: SafetensorError") as told:
        built(folder, weights=str(folder))
    assert "Nor" not in told.value.message
    assert "whole" in told.value.hint
    assert not told.value.stack


@pytest.mark.slow
def test_values_that_fit_no_class_are_told_as_not_fitting(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "more", FAMILIES["gpt2"])
    save(built(folder, weights="random"), folder)
    file = folder / "model.safetensors"
    save_file({**load_file(file), "foo.bar": torch.ones(2)}, file, metadata={"format": "pt"})
    write_config(folder, {key: value for key, value in FAMILIES["gpt2"].items() if key != "architectures"})
    with pytest.raises(TargetError, match=r"no place for: foo\.bar\. Nor does it fit GPT2"):
        built(folder, weights=str(folder))


@pytest.mark.slow
def test_values_without_a_place_are_left_out_of_the_class_that_the_configuration_names(tmp_path: Path) -> None:
    """As transformers does, which warns: older checkpoints hold buffers that the class has no more."""
    folder = write_config(tmp_path / "older", FAMILIES["gpt2"])
    whole = built(folder, weights="random")
    save(whole, folder)
    file = folder / "model.safetensors"
    more = {f"transformer.h.{number}.attn.other": torch.ones(2) for number in range(5)}
    save_file({**load_file(file), **more}, file, metadata={"format": "pt"})
    found = built(folder, weights=str(folder))
    (told,) = found.substitutions
    assert told.what == "without some of the checkpoint's values"
    assert "GPT2LMHeadModel has no place for transformer.h.0.attn.other, " in told.because
    assert told.because.endswith(" and 2 more")
    name = next(iter(whole.model.state_dict()))
    assert torch.equal(found.model.state_dict()[name], whole.model.state_dict()[name])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "what", "told"),
    [
        (
            {"auto_map": {"AutoConfig": "configuration_x.XConfig", "AutoModelForCausalLM": "modeling_x.XForCausalLM"}},
            "as transformers' own GPT2LMHeadModel",
            "not run (modeling_x.XForCausalLM in auto_map)",
        ),
        ({"architectures": ["GPT2ForNothing"]}, "as transformers' own ", "has no GPT2ForNothing"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "without its quantization", "(gptq)"),
    ],
)
def test_what_a_checkpoint_has_and_the_scanned_model_has_not_is_told(
    tmp_path: Path, changed: dict[str, Any], what: str, told: str
) -> None:
    content = {"architectures": ["GPT2LMHeadModel"], **FAMILIES["gpt2"]}
    for named in (["GPT2LMHeadModel"], [], None):
        assert built(write_config(tmp_path / "plain", content | {"architectures": named})).substitutions == ()
    (found,) = built(write_config(tmp_path / "changed", content | changed)).substitutions
    assert found.what.startswith(what)
    assert told in found.because


@pytest.mark.night
@pytest.mark.parametrize("name", ["llama", pytest.param("gemma3", marks=pytest.mark.night)])
def test_a_text_generator_decodes(tmp_path: Path, name: str) -> None:
    part = built(write_config(tmp_path / name, FAMILIES[name]), "decode").part("decode")
    check_part(part)
    export(part)


PARTS_BY_DAY = [("llava", "vision", "model.vision_tower"), ("gpt2", "prefill", "")]
PARTS_BY_NIGHT = [
    ("t5", "encoder", "encoder"),
    ("llava", "projector", "model.multi_modal_projector"),
    ("llava", "decode", ""),
    ("clip", "text", "text_model"),
    ("t5", "decoder", "decoder"),
    ("detr", "backbone", "model.backbone.model"),
    ("detr", "heads", ""),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "part", "prefix"),
    [
        *(pytest.param(*one, marks=pytest.mark.slow) for one in PARTS_BY_DAY),
        *(pytest.param(*one, marks=pytest.mark.night) for one in PARTS_BY_NIGHT),
    ],
)
def test_a_part_is_the_submodule_with_the_inputs_of_the_whole(
    tmp_path: Path, name: str, part: str, prefix: str
) -> None:
    content = FAMILIES[name] | ({"is_encoder_decoder": True} if name == "t5" else {})
    made = built(write_config(tmp_path / name, content), part).part(part)
    assert made.prefix == prefix
    assert made.axes
    for inputs in ((made.args, made.kwargs), *made.more_inputs):
        run(made, inputs)
    export(made)


@pytest.mark.slow
def test_a_model_that_keeps_nothing_says_that_it_has_no_decode(tmp_path: Path) -> None:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99, "n_positions": 64}
    config = {"model_type": "openai-gpt", "architectures": ["OpenAIGPTLMHeadModel"], **sizes}
    with pytest.raises(NoPartError, match="no part decode"):
        built(write_config(tmp_path / "gpt", config), "decode").part("decode")


@pytest.mark.slow
def test_every_class_that_cannot_be_built_is_named(tmp_path: Path) -> None:
    config = write_config(tmp_path / "emu", {"model_type": "emu3"})  # transformers' own default cannot be built
    with pytest.raises(TargetError, match=r"Emu3ForCausalLM .*Nor can it build Emu3ForConditionalGeneration, ") as told:
        built(config)
    assert told.value.stack


@pytest.mark.slow
def test_random_weights_are_the_same_every_time() -> None:
    first, second = (built(TINY).model.state_dict() for _ in range(2))
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert all(value.isfinite().all() for value in first.values())


@pytest.mark.slow
def test_a_checkpoint_gives_its_own_numbers(tmp_path: Path, tiny: BuiltTarget) -> None:
    save(tiny, tmp_path, max_shard_size="200KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    loaded = built(tmp_path, weights=str(tmp_path), image_size=(168, 224))
    assert (loaded.weights, loaded.parameters) == ("checkpoint", tiny.parameters)
    expected, found = (run(model.part("full")).logits for model in (tiny, loaded))
    assert torch.equal(expected, found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda weights, name: weights.pop(name), "no values for"),
        (lambda weights, name: weights.update({name: torch.ones(2)}), "other shapes for"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_in_one_line(
    tmp_path: Path, tiny: BuiltTarget, change: Any, said: str
) -> None:
    save(tiny, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    change(weights, next(name for name in weights if name.endswith("merger.ln_q.weight")))
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TargetError, match=said) as caught:
        built(TINY, weights=str(tmp_path))
    assert "\n" not in caught.value.line()
    assert "merger.ln_q" in caught.value.message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"model_type": "no_such_model"}, "does not know the model type 'no_such_model'"),
        ({"model_type": "llama", "hidden_size": "wide"}, "rejects the configuration"),
        ({"model_type": "bert", "hidden_size": 30, "num_attention_heads": 4}, "cannot build|refuses"),
    ],
)
def test_a_configuration_that_transformers_refuses_is_the_targets_fault(
    tmp_path: Path, content: dict[str, Any], said: str
) -> None:
    with pytest.raises(TargetError, match=said):
        built(write_config(tmp_path / "bad", content))


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_said_so() -> None:
    with pytest.raises(UsageError, match="is not available to torch"):
        built(TINY, device="cuda")


def test_parts_take_only_what_the_installed_forward_takes(tiny: BuiltTarget) -> None:
    for name in PARTS:
        part = tiny.part(name)
        assert set(part.kwargs) <= set(inspect.signature(part.module.forward).parameters)


class Unequal(torch.nn.Module):
    """Its image encoder does not fit the rest of it, so that the whole never calls it."""

    def __init__(self) -> None:
        super().__init__()
        tower = CLIPVisionConfig(
            hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4
        )
        self.config = PretrainedConfig()
        self.config.vision_config = tower
        self.tower = CLIPVisionModel(tower).eval()


def test_a_model_that_the_whole_does_not_call_has_inputs_of_its_own() -> None:
    def make_whole() -> BuiltPart:
        raise TargetError("the whole fails")

    subject = ModelContext(model=Unequal(), options=BuildOptions(), device=torch.device("cpu"))
    part = submodule_part(subject, "vision", make_whole)
    assert (part.prefix, part.alone) == ("tower", "the whole fails")
    assert part.kwargs["pixel_values"].shape == (2, 3, 8, 8)
    with pytest.raises(NoPartError, match="calls no submodule that is its audio"):
        submodule_part(subject, "audio", make_whole)
    with pytest.raises(TargetError, match="the whole fails"):
        submodule_part(subject, "heads", make_whole)
