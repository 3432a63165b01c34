"""Where a finding is put by code hosts: in the repository, with columns; and JUnit counts own failures only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from exportdoctor.core.records.outcome import Frame
from exportdoctor.core.run.report import Report
from exportdoctor.core.run.run_state import fold
from exportdoctor.report import render, repository_paths
from synthetic import qwen_scan

SOURCE = "def forward(self, x, n):\n    return library.take(x, int(n))\n"


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Report]:
    """A failure in an installed library that a file of the repository, with a comma and a percent, called."""
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    repository_paths.repository_root.cache_clear()
    file = tmp_path / "models" / "a, 5%.py"
    file.parent.mkdir()
    file.write_text(SOURCE)
    own = Frame(file=str(file), line=2, function="Model.forward", source=SOURCE.splitlines()[1].strip(), user=True,
                expression="int(n)")  # fmt: skip
    report = fold(tuple(qwen_scan())).report()
    first = msgspec.structs.replace(report.findings[0], stack=(own, *report.findings[0].stack))
    yield msgspec.structs.replace(report, findings=(first, *report.findings[1:]))
    repository_paths.repository_root.cache_clear()


def test_an_annotation_stands_at_the_innermost_line_of_the_repository(found: Report) -> None:
    first, second = render(found, "github").splitlines()
    head = "::error file=models/a%2C 5%25.py,line=2,title=torch.export%3A data dependent value,col=28,endColumn=34::"
    assert first.startswith(head)
    assert "%0A" in first
    assert second.startswith("::error title="), "an installed file is nothing that GitHub could show"


def test_no_annotation_leaves_a_run_green_that_was_cut_off_or_a_part_without_a_verdict(found: Report) -> None:
    cut = fold(tuple(qwen_scan())[:-1]).report()
    assert not cut.complete
    assert (
        render(cut, "github").splitlines()[-1].startswith("::error title=exportdoctor::Qwen2.5-VL-3B: This run was cut")
    )
    assert json.loads(render(cut, "brief"))["next"] == [f"exportdoctor scan --resume {cut.run}"]
    parts = tuple(msgspec.structs.replace(part, verdict="unknown") for part in found.parts)
    (line,) = render(msgspec.structs.replace(found, findings=(), parts=parts), "github").splitlines()
    assert line.startswith("::error title=exportdoctor::Qwen2.5-VL-3B full ")


def test_a_failure_that_a_baseline_has_is_none_for_continuous_integration(found: Report) -> None:
    """The exit code was 0, and what reads JUnit or SARIF was red."""
    first, second = (finding.id for finding in found.findings)
    plain = ElementTree.fromstring(render(found, "junit"))
    for known, accepted in ((frozenset({first}), 1), (frozenset({first, second}), 2)):
        results = json.loads(render(found, "sarif", known=known))["runs"][0]["results"]
        assert sum(result.get("baselineState") == "unchanged" for result in results) == accepted
        assert (
            sum(result["level"] == "note" and bool(result["suppressions"]) for result in results[:accepted]) == accepted
        )
        root = ElementTree.fromstring(render(found, "junit", known=known))
        told = [case.get("message", "") for case in root.iter("skipped")]
        assert any(text.startswith("a known failure, as in the baseline: ") for text in told)
        counts = {name: int(root.get(name, "")) for name in ("tests", "failures", "skipped")}
        assert counts["failures"] == len([*root.iter("failure")]) < int(plain.get("failures", ""))
        assert counts["skipped"] == len(told)
        assert counts["tests"] == int(plain.get("tests", ""))
    assert counts["failures"] == 0


def test_sarif_is_placed_in_the_repository_and_tells_of_the_library(found: Report) -> None:
    result = json.loads(render(found, "sarif"))["runs"][0]["results"][0]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "models/a%2C%205%25.py", "uriBaseId": "%SRCROOT%"}
    assert (place["region"]["startColumn"], place["region"]["endColumn"]) == (28, 34)
    (related,) = result["relatedLocations"]
    assert "site-packages" in related["physicalLocation"]["artifactLocation"]["uri"]


def test_junit_counts_own_failures_only(found: Report) -> None:
    root = ElementTree.fromstring(render(found, "junit"))
    modules = [module.status for part in found.parts for module in part.modules]
    assert len(root.findall(".//failure")) == modules.count("fails_own") == int(root.attrib["failures"])
    through = [case.attrib["message"] for case in root.findall(".//skipped") if "child" in case.attrib["message"]]
    assert len(through) == modules.count("fails_child") > 0
