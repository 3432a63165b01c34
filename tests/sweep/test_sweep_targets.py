"""What a sweep asks: lists as users write them, names that never collide, whole paths, kinds of model types."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exportdoctor.core.errors import UsageError
from exportdoctor.sweep.sweep_targets import find_model_types, make_tasks, name_targets, read_list
from exportdoctor.targets.configuration import read_config
from exportdoctor.worker.model_types import kinds_of_types

REFS = st.text(alphabet="ab/.:-_ é\x1b", min_size=1, max_size=12)


def _first_of_each_file(refs: list[str]) -> list[str]:
    """Of several names of a folder or file that is there, the first one."""
    found: dict[str, str] = {}
    for ref in refs:
        there = Path(ref).exists() and ("/" in ref or ref.startswith("."))
        found.setdefault(os.path.abspath(ref) if there else ref, ref)
    return list(found.values())


def test_a_file_that_is_named_in_two_ways_is_one_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.py").write_text("")
    monkeypatch.chdir(tmp_path)
    targets = name_targets(["./t.py:x", "t.py:x", "t.py:y", str(tmp_path / "t.py") + ":y"])
    assert [(one.name, one.ref) for one in targets] == [("t-x", "./t.py:x"), ("t-y", "t.py:y")]


@given(st.lists(REFS, max_size=8))
def test_every_target_has_a_name_of_its_own_that_is_a_folder_name(refs: list[str]) -> None:
    targets = name_targets(refs)
    assert [target.ref for target in targets] == _first_of_each_file(refs)
    names = [target.name for target in targets]
    assert len(set(names)) == len(names)
    assert all(name not in (".", "..") and "/" not in name and name.isprintable() for name in names)


def test_a_list_has_one_target_a_line(tmp_path: Path) -> None:
    file = tmp_path / "list"
    file.write_text("one\n\n  two  # why\n# none\n")
    assert read_list(file) == ["one", "two"]


@pytest.mark.parametrize("name", ["missing", "folder", "bytes", "/dev/zero"])
def test_what_is_no_list_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError):
        read_list(tmp_path / name)


def test_a_target_that_cannot_be_asked_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text("def build(): ...\n")
    there, missing = make_tasks(
        name_targets(["model.py:build", "no.py:build"]),
        Path("out"),
        sizes=("static",),
        words=(),
        timeout=1,
        memory_mb=1,
    )
    assert (there.ref, there.why) == (f"{tmp_path}/model.py:build", "")
    assert "no.py" in missing.why
    assert os.path.isabs(there.folder)


def test_a_type_has_the_first_kind_of_its_tables() -> None:
    tables: dict[str, dict[str, object]] = {
        "MODEL_MAPPING_NAMES": {"a": "A", "b": "B", "c": "C", "d": "D"},
        "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": {"a": "A", "b": "B"},
        "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES": {"b": "B"},
        "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES": {"c": "C"},
    }
    assert kinds_of_types(tables) == {"a": "text", "b": "multimodal", "c": "vision", "d": "other"}


@pytest.mark.long
@pytest.mark.slow
def test_model_types_have_few_layers_where_they_can(tmp_path: Path) -> None:
    """And the widths of their own configuration."""
    targets, sampled = find_model_types("audio", tmp_path / "all", sample=6, seed=3, few_folder=tmp_path / "few")
    assert sampled is not None
    assert len(targets) == 6
    assert any(one.few_layers for one in targets)
    for one in targets:
        whole = read_config(tmp_path / "all" / one.name / "config.json")
        assert (one.ref, one.whole) == (
            (str(tmp_path / "few" / one.name), str(tmp_path / "all" / one.name))
            if one.few_layers
            else (str(tmp_path / "all" / one.name), "")
        )
        asked = read_config(Path(one.ref) / "config.json")
        changed = {key for key in whole if asked[key] != whole[key]}
        assert not {
            key for key in changed if key in ("hidden_size", "d_model", "intermediate_size", "num_attention_heads")
        }
        for key in re.findall(r"(?:^|, )(\w+) \d", one.few_layers):
            assert 0 < asked[key] < whole[key]
