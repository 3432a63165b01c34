"""The line that a finding names is the line that fails, whatever construct of Python leads there."""

from __future__ import annotations

from pathlib import Path

import pytest

import culprit_constructs
import culprit_idioms
from culprit_constructs import CONSTRUCTS, Construct, ReturnsBox, ReturnsBoxInTuple
from culprit_idioms import IDIOMS
from exportdoctor.core.failure.finding import Finding
from scanning import scan_file

pytestmark = pytest.mark.slow

FILE = Path(culprit_constructs.__file__)


def marked_line(mark: str, construct: type[Construct], *, file: Path = FILE) -> int:
    """The number of the line with this mark."""
    wanted = f"<- {mark}: {construct.__name__}"
    return next(number for number, text in enumerate(file.read_text().splitlines(), 1) if text.endswith(wanted))


def finding_of(construct: type[Construct], folder: Path, *, exporter: str = "export") -> Finding:
    """The only finding of a scan of it."""
    name, file = construct.__name__, construct.__module__
    imports = f"from culprit_constructs import example_of\nfrom {file} import {name}\n\n\n"
    factory = f"{imports}def build():\n    return example_of({name})\n"
    path = folder / f"{name}.py"
    path.write_text(factory)
    report = scan_file(path, exporter=exporter)
    assert len(report.findings) == 1, [finding.exception for finding in report.findings]
    return report.findings[0]


@pytest.mark.parametrize("construct", [ReturnsBox, ReturnsBoxInTuple], ids=lambda construct: construct.__name__)
def test_the_line_of_an_output_that_strict_mode_refuses_is_the_one_that_returns_it(
    construct: type[Construct], tmp_path: Path
) -> None:
    frame = finding_of(construct, tmp_path, exporter="export-strict").value_origin
    assert frame is not None
    assert (frame.file, frame.line) == (str(FILE), marked_line("here", construct))


@pytest.mark.long
@pytest.mark.parametrize("construct", CONSTRUCTS, ids=lambda construct: construct.__name__)
def test_the_line_of_a_failure_is_the_line_that_fails(construct: type[Construct], tmp_path: Path) -> None:
    finding = finding_of(construct, tmp_path)
    frame = finding.guard or finding.value_origin
    told = (finding.file, finding.line) if frame is None else (frame.file, frame.line)
    assert told == (str(FILE), marked_line("here", construct))
    assert construct.KIND in ("", finding.kind)


@pytest.fixture(scope="module")
def idioms() -> dict[str, Finding]:
    """The findings of one scan of all, by submodule."""
    return {finding.module: finding for finding in scan_file(Path(culprit_idioms.__file__)).findings}


@pytest.mark.parametrize("construct", IDIOMS, ids=lambda construct: construct.__name__)
def test_the_line_is_right_also_where_a_submodule_is_one_of_many(
    construct: type[Construct], idioms: dict[str, Finding]
) -> None:
    finding = next(found for name, found in idioms.items() if name.startswith(f"each.{construct.__name__}"))
    frame = finding.guard or finding.value_origin
    told = (finding.file, finding.line) if frame is None else (frame.file, frame.line)
    file = Path(culprit_idioms.__file__)
    assert told == (str(file), marked_line("here", construct, file=file))
    assert construct.KIND in ("", finding.kind)


@pytest.mark.long
def test_a_failure_is_told_once_of_the_module_in_which_it_lies() -> None:
    report = scan_file(Path(culprit_idioms.__file__), factory="build_blamed", exhaustive=True)
    told = {finding.module: (finding.modules, finding.kind) for finding in report.findings}
    assert told == {
        "by_tensor": (("by_tensor",), "data_dependent_value"),  # and not the list, which no one calls
        "by_hook.proj": (("by_hook.proj",), "data_dependent_guard"),  # whose hook is a method of its parent
        "script.scale.0": (("script.scale.0",), "python_error"),
        "mapped": (("mapped",), "vmap"),  # and not its child, which gets one row at a time
    }
    statuses = {module.fqn: module.status for module in report.parts[0].modules}
    assert statuses["mapped.proj"] == "pass"
    assert statuses["script"] == statuses["script.scale"] == statuses["by_hook"] == "fails_child"


def test_strict_mode_blames_no_list_of_modules_either(tmp_path: Path) -> None:
    assert finding_of(culprit_idioms.ModuleByTensor, tmp_path, exporter="export-strict").module == ""
