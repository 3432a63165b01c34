"""Each fixture's failure is found where its own file says it is, by real scans in real worker processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from exportdoctor.core.errors import UsageError
from exportdoctor.core.failure.identity import name_free_signature
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.core.records.target import BuildOptions
from exportdoctor.core.run.events import AnyEvent, ProbeFinished
from exportdoctor.core.run.report import Report
from exportdoctor.core.run.run_state import fold
from exportdoctor.core.versions import is_in_range
from exportdoctor.repro.candidates.candidate_runner import CandidateRunner
from scanning import events_of

FIXTURES = sorted(p for p in (Path(__file__).parents[2] / "fixtures").glob("*.py") if not p.stem.startswith("_"))
QUICK = {"if_tensor", "segfault"}
"""A failure and a crash that `make quick` looks at, too: the way from a worker's attempt to a finding."""
_LONG = {
    "attribute_mutation", "autograd_state_change", "boolean_mask", "called_twice_different_inputs",
    "child_fails_only_inside_parent", "child_never_called", "constraint_between_inputs", "deepcopy_in_forward",
    "dict_and_list_of_modules", "equal_class_unequal_answer", "function_without_source", "gradient_in_forward", "hang",
    "higher_order_op", "inplace_on_view", "kwargs_and_nested_inputs", "long_loop", "memory_eater", "shared_module",
    "specialised_dynamic_dim", "tolist_loop", "torchscript_only", "unbacked_size_comparison", "unregistered_pytree_in",
    "unregistered_between_modules", "unsupported_python_strict", "vmap_over_mask", "wrong_fake_kernel",
}  # fmt: skip
"""Those in `make long`: that wait, and whose kind of failure or place another one has."""


def _marks_of(fixture: str) -> list[pytest.MarkDecorator]:
    if fixture in QUICK:
        return []
    return [pytest.mark.slow, pytest.mark.long] if fixture in _LONG else [pytest.mark.slow]


SCANS = [pytest.param(path, marks=_marks_of(path.stem)) for path in FIXTURES]
# How a fixture is scanned where the defaults would wait for a minute, fill the machine or not see it
LIMITS: dict[str, dict[str, Any]] = {
    "hang": {"timeout": 4.0},
    "memory_eater": {"memory_mb": 1500.0},
    "long_loop": {"slow": 0.4},
    "device_mismatch": {"build": BuildOptions(device="cuda")},
}


def expected_of(path: Path) -> dict[str, Any]:
    """The literal EXPECTED of a fixture, read without importing it.

    EXPECTED_DYNAMIC, where there is one, states what holds when the submodules' inputs are dynamic too, as in a scan.
    On the releases that are MENDED all modules pass.
    """
    literals = {
        getattr(node.target if isinstance(node, ast.AnnAssign) else node.targets[0], "id", ""): node.value
        for node in ast.parse(path.read_text()).body
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
    }
    found: dict[str, Any] = ast.literal_eval(literals.get("EXPECTED_DYNAMIC") or literals["EXPECTED"])
    if "MENDED" in literals and is_in_range(torch.__version__, ast.literal_eval(literals["MENDED"])):
        return {**found, "statuses": dict.fromkeys(found["statuses"], "pass"), "findings": []}
    return found


@pytest.fixture(scope="module")
def bench() -> Iterator[CandidateRunner]:
    with CandidateRunner(timeout=60.0, memory_mb=400.0) as process:
        yield process


@pytest.mark.parametrize("path", SCANS, ids=[path.stem for path in FIXTURES])
def test_the_failure_is_found_where_it_lies_and_the_minimum_has_it_too(path: Path, bench: CandidateRunner) -> None:
    expected = expected_of(path)
    events = events_of(f"{path}:build", exporter=expected["exporter"], exhaustive=True, **LIMITS.get(path.stem, {}))
    report = fold(events).report()
    for script in minima_of(path):
        assert shown(bench.run(script), exporter=expected["exporter"]) in failures(events)
    assert verdicts(report) == {fqn: s for fqn, s in expected["statuses"].items() if s != "not_called"}
    assert told(report, expected) == wanted(expected)
    ops = {(finding["module"], finding["op"]) for finding in expected["findings"] if finding["op"]}
    assert ops <= {(finding.module, finding.op) for finding in report.findings}
    types = {(finding["module"], finding["exception"]) for finding in expected["findings"] if finding["exception"]}
    assert types <= {(finding.module, finding.exception.type.rpartition(".")[2]) for finding in report.findings}


def minima_of(path: Path) -> list[str]:
    """The scripts by hand beside a fixture; none beside one that passes."""
    assigned = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign)]
    found = [ast.literal_eval(node.value) for node in assigned if ast.unparse(node.targets[0]).startswith("MINIMUM")]
    return [script for script in found if script]


def shown(outcome: Outcome, *, exporter: str) -> tuple[object, ...]:
    """Kind, exceptions and message of a failure, names left out."""
    signature = name_free_signature(outcome, exporter=exporter)
    return () if signature is None else (signature.kind, signature.exceptions, signature.message)


def failures(events: list[AnyEvent]) -> list[tuple[object, ...]]:
    """The same of each attempt of a scan."""
    return [shown(event.outcome, exporter=event.probe.exporter) for event in events if isinstance(event, ProbeFinished)]


def verdicts(report: Report) -> dict[str, str]:
    """The called modules' statuses."""
    return {module.fqn: module.status for module in report.parts[0].modules if module.status != "not_called"}


def wanted(expected: dict[str, Any]) -> list[tuple[str, ...]]:
    """Module, function, source line and kind of each expected finding."""
    return sorted(
        (f["module"], (f["function"] or "").rpartition(".")[2], f["source"] or "", f["kind"])
        for f in expected["findings"]
    )


def told(report: Report, expected: dict[str, Any]) -> list[tuple[str, ...]]:
    """The same of the findings in the report."""
    chance = expected["findings"] and expected["findings"][0]["kind"] == "out_of_memory"  # no line is to blame
    return sorted(
        (f.module, (f.function or "").rpartition(".")[2], "" if chance else f.source or "", f.kind)
        for f in report.findings
    )


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ["if_tensor", "nonzero", "parent_own_code_and_child", "segfault", "passing"])
def test_without_a_search_each_part_is_asked_once_and_the_line_is_the_same(name: str) -> None:
    ref = f"{FIXTURES[0].parent / name}.py:build"
    found, whole = (fold(events_of(ref, search=search)).report() for search in (False, True))
    assert [part.asked for part in found.parts] == [1]
    lines = {(one.kind, one.file, one.line) for one in whole.findings}
    assert {(one.kind, one.file, one.line) for one in found.findings} <= lines
    assert bool(found.findings) == bool(whole.findings)
    passed = {module.fqn for module in found.parts[0].modules if module.status == "pass"}
    assert passed <= {module.fqn for module in whole.parts[0].modules if module.status == "pass"}


def test_every_submodule_and_none_cannot_both_be_asked() -> None:
    with pytest.raises(UsageError, match="--exhaustive asks every submodule"):
        events_of(f"{FIXTURES[0].parent / 'passing'}.py:build", exhaustive=True, search=False)
