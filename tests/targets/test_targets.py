"""What a reference means, and that everything wrong with it is said in one line before torch is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import huggingface_hub.constants
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exportdoctor.core.errors import ExportdoctorError, TargetError, UsageError
from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.targets import Plan, preset_names, resolve
from exportdoctor.targets.configuration import ConfigurationPlan
from tiny_configs import FAMILIES, write_config

SEVEN = ("vision", "projector", "text", "decode", "prefill", "full", "video")
DEFAULT = ("vision", "text", "decode", "full")
FACTORY = "def build():\n    raise RuntimeError('run')\n\nif True:\n    def other(): ...\n"


def plan(ref: object, *parts: str, **options: object) -> Plan:
    return resolve(TargetRef(ref=str(ref), parts=parts, options=BuildOptions(**options)))  # type: ignore[arg-type]


def refusal(ref: object, *parts: str, **options: object) -> ExportdoctorError:
    with pytest.raises((UsageError, TargetError)) as caught:
        plan(ref, *parts, **options)
    assert "\n" not in caught.value.line()
    return caught.value


@pytest.fixture
def factory(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(FACTORY)
    return file


def test_resolving_imports_neither_torch_nor_transformers(factory: Path, tmp_path: Path) -> None:
    folder = write_config(tmp_path / "tiny", FAMILIES["llama"])
    script = f"""
import sys
from exportdoctor.core.records.target import TargetRef
from exportdoctor.targets import preset_names, resolve
for ref in (*preset_names(), {str(folder)!r}, {str(factory) + ":build"!r}):
    resolve(TargetRef(ref=ref)).identity()
print([name for name in ("torch", "transformers", "huggingface_hub", "numpy") if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("ref", ["Qwen2.5-VL-3B", "qwen2.5-vl-3b", "Qwen/Qwen2.5-VL-3B-Instruct"])
def test_a_preset_is_found_by_its_name_in_any_case_and_by_its_hub_id(ref: str) -> None:
    found = plan(ref)
    assert (found.title, found.parts, found.available_parts) == ("Qwen2.5-VL-3B", DEFAULT, SEVEN)
    assert found.options == BuildOptions(weights="fake", image_size=(672, 672))


def test_every_size_has_a_tiny_twin_with_random_weights() -> None:
    sizes = [name for name in preset_names() if not name.endswith("-tiny")]
    assert sizes == ["Qwen2.5-VL-3B", "Qwen2.5-VL-7B", "Qwen2.5-VL-32B", "Qwen2.5-VL-72B"]
    assert all(plan(f"{name}-tiny").options.weights == "random" for name in sizes)


def test_an_unknown_preset_is_answered_with_near_ones() -> None:
    error = refusal("Qwen2.5-VL-5B")
    assert isinstance(error, UsageError)
    assert "Qwen2.5-VL-7B" in error.hint


def test_parts_keep_the_order_of_the_target_and_unknown_ones_are_refused() -> None:
    assert plan("Qwen2.5-VL-3B", "full", "vision").parts == ("vision", "full")
    error = refusal("Qwen2.5-VL-3B", "visoin")
    assert "vision" in error.hint
    assert "video" in error.hint


@given(st.integers(1, 900), st.integers(1, 900))
def test_a_wrong_image_size_is_answered_with_right_ones(height: int, width: int) -> None:
    try:
        plan("Qwen2.5-VL-3B", image_size=(height, width))
    except UsageError as error:
        near = [tuple(map(int, word.split("x"))) for word in error.hint.split() if "x" in word]
        assert near
        assert all(abs(side - asked) < 28 or side == 28 for pair in near for side, asked in zip(pair, (height, width)))
        assert all(plan("Qwen2.5-VL-3B", image_size=pair).options.image_size == pair for pair in near)
    else:
        assert height % 28 == 0
        assert width % 28 == 0


def test_an_image_size_is_refused_where_there_are_no_images(factory: Path, tmp_path: Path) -> None:
    assert "no images" in refusal(write_config(tmp_path / "t", FAMILIES["llama"]), image_size=(28, 28)).message
    assert "own inputs" in refusal(f"{factory}:build", image_size=(28, 28)).message


def test_a_vision_language_configuration_in_a_folder_has_the_same_parts(tmp_path: Path) -> None:
    preset = plan("Qwen2.5-VL-3B")
    assert isinstance(preset, ConfigurationPlan)
    folder = write_config(tmp_path / "model", preset.config)
    found = plan(folder)
    assert (found.title, found.available_parts) == ("model", SEVEN)
    heard = plan(write_config(tmp_path / "heard", {**preset.config, "audio_config": {"hidden_size": 8}}))
    assert heard.available_parts == ("vision", "audio", *SEVEN[1:])


def test_a_text_generator_offers_decode_and_scans_default(tmp_path: Path) -> None:
    found = plan(write_config(tmp_path / "t", FAMILIES["gpt2"]))
    assert (found.parts, found.available_parts) == (("default",), ("default", "decode", "prefill"))
    assert plan(write_config(tmp_path / "b", FAMILIES["bert"])).available_parts == ("default",)


@pytest.mark.parametrize(
    ("name", "scanned", "more"),
    [
        ("llava", ("vision", "text", "decode", "full"), {"projector", "prefill"}),
        ("clip", ("default",), {"vision", "text"}),
        ("bart", ("default",), {"encoder", "decoder"}),
        ("detr", ("default",), {"backbone", "encoder", "decoder", "heads"}),
    ],
)
def test_parts_follow_from_the_configuration(
    tmp_path: Path, name: str, scanned: tuple[str, ...], more: set[str]
) -> None:
    content = FAMILIES[name] | ({"is_encoder_decoder": True} if name in ("bart", "detr") else {})
    found = plan(write_config(tmp_path / name, content))
    assert (found.parts, set(found.available_parts)) == (scanned, {*scanned, *more})


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "no config.json"), ("{", "not JSON"), ("[1]", "no model_type"), ('{"hidden_size": 3}', "hidden_size")],
)
def test_a_folder_without_a_usable_configuration_is_refused(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert said in refusal(tmp_path).message


@pytest.mark.parametrize("ref", ["", "./nothing", "a/b/c", "nothing/"])
def test_a_path_that_does_not_exist_is_refused(ref: str) -> None:
    assert isinstance(refusal(ref), UsageError)


def test_a_path_that_exists_wins_over_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path / "org" / "name", FAMILIES["bert"])
    assert plan("org/name").title == "name"


def test_a_hub_id_is_refused_at_once_when_the_hub_is_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    error = refusal("org/name")
    assert "cannot be reached" in error.message
    assert "Download it first" in error.hint


def test_a_hub_id_in_the_local_cache_needs_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--org--name"
    write_config(repository / "snapshots" / "abc", FAMILIES["bert"])
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    assert plan("org/name").title == "org/name"


def test_a_factory_is_looked_up_without_running_its_file(factory: Path) -> None:
    factory.write_text(FACTORY + "raise SystemExit('was run')\n")
    assert plan(f"{factory}:build").title == "mine.py:build"
    assert plan(f"{factory}:other").parts == ("default",)


@pytest.mark.parametrize(
    ("name", "said"), [(":biuld", "'build'"), ("", ":build"), (":", ":build"), (":nothing", "It defines build")]
)
def test_a_factory_that_is_not_there_is_answered_with_those_that_are(factory: Path, name: str, said: str) -> None:
    assert said in refusal(f"{factory}{name}").hint


def test_a_factory_file_that_is_missing_or_no_python_is_refused(factory: Path) -> None:
    assert isinstance(refusal(factory.with_name("none.py:build")), UsageError)
    factory.write_text("def build(:\n")
    assert "line 1" in refusal(f"{factory}:build").message


def test_weights_must_be_a_folder_with_safetensors(tmp_path: Path) -> None:
    assert "neither" in refusal("Qwen2.5-VL-3B", weights=str(tmp_path / "none")).message
    (tmp_path / "pytorch_model.bin").touch()
    assert "pytorch_model.bin" in refusal("Qwen2.5-VL-3B", weights=str(tmp_path)).message
    (tmp_path / "model.safetensors").touch()
    assert plan("Qwen2.5-VL-3B", weights=str(tmp_path)).options.weights == str(tmp_path)


def test_an_identity_is_json_and_changes_with_what_the_answers_depend_on(factory: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"1")
    folder = write_config(tmp_path / "t", FAMILIES["llama"])
    identities = [
        plan(folder).identity(),
        plan(folder, "decode").identity(),
        plan(folder, static=True).identity(),
        plan(folder, weights=str(weights)).identity(),
    ]
    (weights / "model.safetensors").write_bytes(b"12")
    identities.append(plan(folder, weights=str(weights)).identity())
    write_config(folder, {**FAMILIES["llama"], "vocab_size": 100})
    identities.append(plan(folder).identity())
    identities.append(plan(f"{factory}:build").identity())
    factory.write_text("import neighbour\n" + FACTORY)
    (tmp_path / "neighbour.py").write_text("x = 1\n")
    identities.append(plan(f"{factory}:build").identity())
    (tmp_path / "neighbour.py").write_text("x = 2\n")
    identities.append(plan(f"{factory}:build").identity())
    texts = [json.dumps(identity, sort_keys=True) for identity in identities]
    assert len(set(texts)) == len(texts)
    assert json.dumps(plan(f"{factory}:build").identity(), sort_keys=True) == texts[-1]
