"""Shims of the user: found in files, noticed and named when they misbehave, and no harm to the others."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

import exportdoctor.shims as sh
from exportdoctor.core.errors import UsageError
from exportdoctor.shims import ExportCall, NotApplicable, Shim, ShimTrouble

FILE = """
from contextlib import contextmanager
from exportdoctor.shims import Cure, Shim

@contextmanager
def enter(call):
    yield call

SHIMS = (Shim(id="mine", title="Mine", soundness="exact", enter=enter, cures=(Cure(kinds=("vmap",)),)),)
"""


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((300, 3), 1.5).T)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def call() -> ExportCall:
    return ExportCall(module=Plain(), args=(torch.randn(3),))


def shim(enter: object, *, name: str = "mine") -> Shim:
    return Shim(id=name, title="", soundness="exact", enter=enter, provider="user")  # type: ignore[arg-type]


@contextmanager
def quiet(given: ExportCall) -> Iterator[ExportCall]:
    yield given


@contextmanager
def raises_on_entry(given: ExportCall) -> Iterator[ExportCall]:
    raise ValueError("no entry")
    yield given


@contextmanager
def raises_on_exit(given: ExportCall) -> Iterator[ExportCall]:
    yield given
    raise ValueError("no exit")


@contextmanager
def leaves_an_attribute(given: ExportCall) -> Iterator[ExportCall]:
    given.module.forward = given.module.forward  # type: ignore[method-assign]
    yield given


@contextmanager
def leaves_a_patch(given: ExportCall) -> Iterator[ExportCall]:
    torch.nn.functional.relu = lambda x: x  # type: ignore[assignment, misc]
    yield given


@contextmanager
def leaves_numbers(given: ExportCall) -> Iterator[ExportCall]:
    with torch.no_grad():
        given.module.scale.mul_(2)  # type: ignore[operator, union-attr]
    yield given


@contextmanager
def restores_numbers(given: ExportCall) -> Iterator[ExportCall]:
    with torch.no_grad():
        given.module.scale.mul_(2)  # type: ignore[operator, union-attr]
    yield given
    with torch.no_grad():
        given.module.scale.div_(2)  # type: ignore[operator, union-attr]


@contextmanager
def yields_nothing(given: ExportCall) -> Iterator[None]:
    yield None


@pytest.fixture(autouse=True)
def functional_restored() -> Iterator[None]:
    before = torch.nn.functional.relu
    yield
    torch.nn.functional.relu = before


def test_a_file_of_shims_joins_the_registry(tmp_path: Path) -> None:
    file = tmp_path / "my_shims.py"
    file.write_text(FILE)
    found = sh.find("mine", files=[str(file)])
    assert (found.id, found.provider) == ("mine", "user")
    assert sh.registry([str(file)])[-1].id == found.id


def test_a_file_of_shims_may_import_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_my_shims.py").write_text("NAME = 'mine'\n")
    file = tmp_path / "my_shims.py"
    file.write_text(f"from beside_my_shims import NAME\n{FILE}".replace('id="mine"', "id=NAME"))
    assert sh.find("mine", files=[str(file)]).file == str(file)


@pytest.mark.parametrize(
    ("text", "says"),
    [("1 / 0", "ZeroDivisionError"), ("x = 1", "defines no shims"), ("SHIMS = (1,)", "is no Shim"), (None, "no file")],
)
def test_a_file_that_cannot_be_used_is_told_in_one_line(tmp_path: Path, text: str | None, says: str) -> None:
    file = tmp_path / "my_shims.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=says):
        sh.registry([str(file)])


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ('kinds=("timed_out",)', r"kinds has 'timed_out'.*The kinds are data_dependent_value, .*timeout.*numbers\. "),
        ('kinds=("vmaps",)', r"kinds has 'vmaps'\. Did you mean 'vmap'"),
        ('kinds=("vmap")', "must be a tuple"),
        ('exporters=("onx",)', r"exporters has 'onx'\. .*The exporters are export, "),
    ],
)
def test_a_pattern_that_could_never_match_is_refused_in_one_line(tmp_path: Path, pattern: str, says: str) -> None:
    file = tmp_path / "my_shims.py"
    file.write_text(FILE.replace('kinds=("vmap",)', pattern))
    with pytest.raises(UsageError) as caught:
        sh.registry([str(file)])
    assert re.search(says, caught.value.line()), caught.value.line()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("enter", "says"),
    [
        (raises_on_entry, "the shim mine could not be entered: ValueError: no entry"),
        (raises_on_exit, "the shim mine could not be left: ValueError: no exit"),
        (leaves_an_attribute, r"the shim mine did not restore the module\.forward"),
        (leaves_a_patch, r"the shim mine did not restore torch\.nn\.functional\.relu"),
        (leaves_numbers, r"the shim mine did not restore the module\.scale"),
        (yields_nothing, "the shim mine yields a NoneType"),
    ],
)
def test_a_shim_that_misbehaves_is_noticed_and_named(enter: object, says: str) -> None:
    with pytest.raises(ShimTrouble, match=says), sh.apply_shims((shim(enter),), call()):
        pass


@pytest.mark.slow
def test_a_leak_does_not_hide_the_failure_of_the_body() -> None:
    with pytest.raises(KeyError) as caught, sh.apply_shims((shim(leaves_an_attribute),), call()):
        raise KeyError("the body's own")
    assert any("did not restore" in note for note in caught.value.__notes__)


@pytest.mark.slow
@pytest.mark.parametrize("enter", [quiet, restores_numbers])
def test_a_well_behaved_shim_is_not_accused(enter: object) -> None:
    with sh.apply_shims((shim(enter),), call()) as changed:
        assert sh.export_program(changed) is not None


@pytest.mark.slow
def test_shims_are_left_in_reverse_when_a_later_one_cannot_be_entered() -> None:
    left: list[str] = []

    @contextmanager
    def noting(given: ExportCall) -> Iterator[ExportCall]:
        try:
            yield given
        finally:
            left.append("first")

    with pytest.raises(ShimTrouble), sh.apply_shims((shim(noting, name="first"), shim(raises_on_entry)), call()):
        pass
    assert left == ["first"]


def test_what_does_not_apply_is_told_with_its_name() -> None:
    with (
        pytest.raises(NotApplicable, match="block-diagonal-attention: no submodule splits"),
        sh.apply_shims((sh.find("block-diagonal-attention"),), call()),
    ):
        pass


def test_conflicting_shims_are_refused() -> None:
    with (
        pytest.raises(ShimTrouble, match="strict and non-strict cannot be combined"),
        sh.apply_shims((sh.find("strict"), sh.find("non-strict")), call()),
    ):
        pass


def test_an_entry_point_that_cannot_be_loaded_is_listed_with_its_reason(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    from exportdoctor.shims.providers.user import shims_of_entry_points

    folder = tmp_path / "broken_shims-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: broken-shims\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[exportdoctor.shims]\nbroken = no_such_package:SHIMS\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = [one for one in shims_of_entry_points() if one.id == "broken"]
    assert [one.fits({}) for one in found] == [
        "no_such_package:SHIMS can't be loaded: ModuleNotFoundError: No module named 'no_such_package'"
    ]
