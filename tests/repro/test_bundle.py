"""The bundle as its reader sees it: who should get it, what is documented, and what is said first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from exportdoctor.core.failure.identity import NameFreeSignature
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.records.outcome import GraphSlice, SliceNode
from exportdoctor.repro.bundle import guide, issue
from exportdoctor.repro.candidates.reduction import ReductionResult
from exportdoctor.repro.pipeline import ReproResult
from exportdoctor.repro.recipient import recipient_of, search_terms
from exportdoctor.repro.script import Header, with_header
from exportdoctor.repro.verify import Sighting
from exportdoctor.store.runs import StoredRun
from synthetic import WINDOWS, qwen_scan

SLICE = GraphSlice(
    nodes=(SliceNode(name="x", op="input"), SliceNode(name="item", op="aten.item")), edges=((0, 1),), targets=(1,)
)
RUN = StoredRun(run="20231114-221320-qwen2.5-vl-3b-x7", path=Path(), events=tuple(qwen_scan()), running=False)
MADE = ReproResult(
    finding=msgspec.structs.replace(WINDOWS, slice=SLICE),
    signature=NameFreeSignature(WINDOWS.kind, ("GuardOnDataDependentSymNode",), "m"),
    text="# Made by: exportdoctor repro RUN F1\nimport torch\n",
    source="import torch\nprint(1)",
    reduction=ReductionResult(source="import torch\nprint(1)", closest="import torch\nprint(2)", eager=True),
    sighting=Sighting(verified=True, exception="X", message="Could not extract u0"),
    environment={"torch": "2.13.0", "transformers": "5.23.0"},
    exporter="export",
    others=(),
    notes=(),
)


def test_a_documented_limit_in_a_librarys_code_goes_to_that_library() -> None:
    text = guide(MADE)
    assert "Send it to huggingface/transformers, whose code this is, and not to pytorch/pytorch." in text
    assert "#data-and-shape-dependent-control-flow" in text
    assert '"Could not extract specialized integer from data-dependent expression" get_vision_window_index' in text
    assert "repo%3Ahuggingface/transformers" in text


@pytest.mark.parametrize(
    ("changed", "package", "documented"),
    [
        ({"file": "/home/me/net.py"}, "", True),
        ({"file": None}, "torch", False),
        ({"kind": FailureKind.CRASH}, "torch", False),
        ({"kind": FailureKind.MISSING_FAKE_KERNEL, "op": "aten.foo.default"}, "torch", False),
        ({"kind": FailureKind.PYTHON_ERROR}, "transformers", False),
        ({"kind": FailureKind.RUN}, "onnxruntime", False),
        ({"kind": FailureKind.DIMS_RELATED, "file": None}, "", True),
        ({"kind": FailureKind.DIMS_RELATED, "file": None, "guard": WINDOWS.stack[-1]}, "transformers", True),
    ],
)
def test_who_should_get_a_failure(changed: dict[str, object], package: str, documented: bool) -> None:
    found = recipient_of(msgspec.structs.replace(WINDOWS, **changed))
    assert (found.package, bool(found.page)) == (package, documented)


def test_the_issue_names_model_versions_and_options_and_nothing_of_ours() -> None:
    text = issue(MADE, RUN, "env")
    assert "Met while exporting Qwen2.5-VL-3B (part full) with torch 2.13.0 and transformers 5.23.0" in text
    assert "strict=False" in text
    assert "torch documents that this is not supported" in text
    assert "```mermaid\nflowchart" in text
    assert "[huggingface/transformers#41992](https://github.com/huggingface/transformers/issues/41992)" in text
    assert "exportdoctor" not in text
    assert "20231114" not in text


def test_a_message_ends_no_block_and_controls_no_terminal() -> None:
    """Its fence is longer than any in the message; control characters are made visible, in a script's head, too."""
    message = "a <img src=x>\x1b[2J\n```\n# Injected\n@everyone\x00"
    text = issue(replace(MADE, sighting=replace(MADE.sighting, message=message)), RUN, "env")
    assert "````\na <img src=x>\\x1b[2J\n```\n# Injected\n@everyone\\x00\n````" in text
    assert text.startswith("# torch.export: X: a \\<img src=x>\\x1b[2J\n")
    header = Header(origin="", expected=message, environment={}, made_by="")
    assert not any(ord(one) < 32 and one != "\n" for one in text + with_header("import torch\n", header))


def test_a_script_that_does_not_run_in_eager_mode_says_so_first() -> None:
    made = replace(MADE, reduction=replace(MADE.reduction, eager=False))
    for text in (issue(made, RUN, "env").partition("\n\n")[2], guide(made)):
        assert text.startswith("**This script was not seen to run without export**")


def test_a_long_way_to_the_closest_variant_is_left_out() -> None:
    many = "\n".join(f"x{number} = 1" for number in range(9))
    made = replace(MADE, reduction=replace(MADE.reduction, closest=many))
    assert "## Closest" in issue(MADE, RUN, "env")
    assert "## Closest" not in issue(made, RUN, "env")


def test_search_terms_are_those_of_any_model() -> None:
    local = msgspec.structs.replace(WINDOWS, file="/home/me/net.py", function="Net.forward")
    assert search_terms(local) == '"Could not extract specialized integer from data-dependent expression"'
