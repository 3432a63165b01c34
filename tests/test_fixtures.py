"""Each fixture's disease is found where its own file says it lies, by real scans in real worker processes."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from exportdoctor.core.report import Report
from scanning import scan_file

pytestmark = pytest.mark.slow

FIXTURES = sorted(p for p in (Path(__file__).parents[1] / "fixtures").glob("*.py") if not p.stem.startswith("_"))
# How a fixture is scanned where the defaults would wait for a minute or fill the machine
LIMITS = {"hang": {"timeout": 8.0}, "memory_eater": {"memory_mb": 1500.0}}


def expected_of(path: Path) -> dict[str, Any]:
    """The literal EXPECTED of a fixture, read without importing it.

    EXPECTED_DYNAMIC, where there is one, tells what holds when the submodules' inputs are dynamic too, as in a scan.
    """
    literals = {
        getattr(node.target if isinstance(node, ast.AnnAssign) else node.targets[0], "id", ""): node.value
        for node in ast.parse(path.read_text()).body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
    }
    found: dict[str, Any] = ast.literal_eval(literals.get("EXPECTED_DYNAMIC") or literals["EXPECTED"])
    return found


@pytest.fixture(scope="module", params=FIXTURES, ids=lambda path: path.stem)
def scanned(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Report]:
    path: Path = request.param
    expected = expected_of(path)
    report = scan_file(path, exporter=expected["exporter"], exhaustive=True, **LIMITS.get(path.stem, {}))
    return expected, report


def test_every_module_has_its_expected_verdict(scanned: tuple[dict[str, Any], Report]) -> None:
    expected, report = scanned
    found = {module.fqn: module.status for module in report.parts[0].modules}
    assert {fqn: found[fqn] for fqn in expected["statuses"]} == expected["statuses"]
    assert all(status == "not_called" for fqn, status in found.items() if fqn not in expected["statuses"])


def test_findings_are_the_expected_ones(scanned: tuple[dict[str, Any], Report]) -> None:
    expected, report = scanned

    def told(module: str, function: str | None, source: str | None, kind: str) -> tuple[str, ...]:
        return module, (function or "").rpartition(".")[2], source or "", kind

    chance = expected["findings"] and expected["findings"][0]["kind"] == "out_of_memory"  # no line is to blame
    wanted = sorted(told(f["module"], f["function"], f["source"], f["kind"]) for f in expected["findings"])
    found = sorted(told(f.module, f.function, "" if chance else f.source, f.kind) for f in report.findings)
    assert found == wanted


def test_the_expected_exception_is_told(scanned: tuple[dict[str, Any], Report]) -> None:
    expected, report = scanned
    wanted = {(f["module"], f["exception"]) for f in expected["findings"] if f["exception"]}
    assert wanted <= {(f.module, f.exception.type.rpartition(".")[2]) for f in report.findings}


def test_the_expected_op_is_named(scanned: tuple[dict[str, Any], Report]) -> None:
    expected, report = scanned
    wanted = {(f["module"], f["op"]) for f in expected["findings"] if f["op"]}
    assert wanted <= {(finding.module, finding.op) for finding in report.findings}
