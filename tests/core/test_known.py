"""Known issues: each entry fits its failure and not a near miss, no entry is another's false friend, nothing raises."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from exportdoctor.core.failure import known_issues as known
from exportdoctor.core.failure.known_issues import Clause, KnownIssue
from exportdoctor.core.records.outcome import ExceptionFact, Failure, Frame, OpFact, Stage
from exportdoctor.core.versions import is_in_range, is_range

MAIN_LANE = {"torch": "2.13.0+cpu", "transformers": "5.23.0"}
CASES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("known_cases.yaml").read_text())
NAMES = [f"{case['id']}-{number}" for number, case in enumerate(CASES)]


@dataclass(frozen=True)
class Seen:
    """A failure as a test describes it."""

    exceptions: tuple[ExceptionFact, ...]
    frames: tuple[Frame, ...]
    stage: Stage
    exporter: str
    dynamic: bool
    versions: dict[str, str]
    guard: Frame | None = None
    takes: tuple[str, ...] = ()

    def matches(self) -> list[str]:
        found = known.match(self.failure, exporter=self.exporter, dynamic=self.dynamic, versions=self.versions)
        return [issue.id for issue, _ in found]

    @property
    def failure(self) -> Failure:
        op = OpFact(name="Op", arguments=self.takes, raised=True) if self.takes else None
        return Failure(stage=self.stage, exceptions=self.exceptions, frames=self.frames, guard=self.guard, op=op)

    def told_as_known(self) -> list[str]:
        """The issues that are named as being about this code."""
        found = known.match(self.failure, exporter=self.exporter, dynamic=self.dynamic, versions=self.versions)
        return [issue.id for issue, elsewhere in found if not elsewhere]


def seen(told: dict[str, Any]) -> Seen:
    return Seen(
        exceptions=tuple(exception(text) for text in told["exceptions"]),
        frames=tuple(frame(text) for text in told.get("frames", ())),
        stage=told.get("stage", "export"),
        exporter=told.get("exporter", "export"),
        dynamic=told.get("dynamic", False),
        versions={name: str(version) for name, version in told.get("versions", MAIN_LANE).items()},
        guard=frame(f"> model.py|Model.forward|{told['guard']}") if "guard" in told else None,
        takes=tuple(told.get("takes", ())),
    )


def exception(text: str) -> ExceptionFact:
    kind, _, message = text.partition(": ")
    return ExceptionFact(type=kind, message=message)


def frame(text: str) -> Frame:
    file, function, source = text.removeprefix("> ").split("|", 2)
    return Frame(file=file, line=1, function=function, source=source, user=text.startswith("> "))


def entry(name: str) -> KnownIssue:
    return next(issue for issue in known.load() if issue.id == name)


def test_every_entry_has_a_case() -> None:
    assert {case["id"] for case in CASES} == {issue.id for issue in known.load()}


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_an_entry_fits_its_failure_and_no_other_entry_does(case: dict[str, Any]) -> None:
    found = seen(case["fits"]).matches()
    assert case["id"] in found
    assert set(found) <= {case["id"], *entry(case["id"]).alternatives}


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_an_entry_does_not_fit_a_near_miss(case: dict[str, Any]) -> None:
    changes = {name: value for name, value in case["misses"].items() if name != "why"}
    assert changes, "a near miss differs in something"
    assert case["id"] not in seen({**case["fits"], **changes}).matches()


def in_own_file(told: dict[str, Any]) -> dict[str, Any]:
    """The same failure with all code outside torch moved into a file of the user's; names and lines stay."""
    moved = [
        re.sub(r"^> [^|]*?([^|/]*)\|", r"> /home/me/transformers/models/\1|", text) for text in told.get("frames", ())
    ]
    return {**told, "frames": moved}


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_an_issue_of_a_library_is_not_known_of_the_same_names_in_own_code(case: dict[str, Any]) -> None:
    """The class or the operator that a message names, and torch's own code below the user's, are still theirs."""
    issue, told = entry(case["id"]), in_own_file(case["fits"])
    by_torch = issue.named or issue.operation or (issue.upstream or "").startswith(("^torch", "^(?:torch"))
    if by_torch or not any(text.startswith("> ") for text in told["frames"]):
        return
    assert case["id"] not in seen(told).told_as_known()


KNOWN_HERE = {
    "dynamic-cache-unregistered-output", "cache-unregistered-input", "vision-attention-split-lengths",
    "qwen-vl-rot-pos-emb-grid", "qwen25vl-window-index", "mrope-get-rope-index", "vmap-mask-proxy-mode-not-registered",
    "idefics3-patch-mask-loop", "longrope-seq-len-branch", "moe-expert-hit-loop", "static-cache-frozen-storage",
    "torchscript-vmap-mask-map-at", "ort-trilu-bool",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(KNOWN_HERE))
def test_an_issue_is_known_of_the_code_that_it_is_about(name: str) -> None:
    told = next(case["fits"] for case in CASES if case["id"] == name)
    assert name in seen(told).told_as_known()


GUARD = "GuardOnDataDependentSymNode: Could not guard on data-dependent expression Eq(u0, 1) (unhinted: Eq(u0, 1))."
VALUE = (
    "GuardOnDataDependentSymNode: Could not extract specialized integer from data-dependent expression u0 (unhinted)."
)
POINTER = "RuntimeError: Cannot access data pointer of Tensor (e.g. FakeTensor, FunctionalTensor)."
LOOK_ALIKES: dict[str, dict[str, Any]] = {
    "a function called rot_pos_emb": {"frames": ["> /home/me/model.py|Model.rot_pos_emb|n = int(grid[0])"]},
    "a function called get_rope_index": {"frames": ["> /home/me/model.py|Model.get_rope_index|n = int(lengths)"]},
    "a function called get_window_index": {"frames": ["> /home/me/model.py|Model.get_window_index|n = int(lengths)"]},
    "a function called dynamic_frequency_update": {
        "exceptions": [GUARD], "frames": ["> /home/me/rope.py|dynamic_frequency_update|if seq_len > limit:"]},
    "a loop called enumerate(patch_attention_mask)": {
        "frames": ["> /home/me/m.py|forward|for i, m in enumerate(patch_attention_mask): int(m)"]},
    "range over cu_seqlens": {"frames": ["> /home/me/m.py|forward|for i in range(1, len(cu_seqlens)): int(i)"]},
    "torch.split by lengths.tolist()": {
        "frames": ["> /home/me/m.py|forward|torch.split(tensor, lengths.tolist(), dim=2)"]},
    "a variable called expert_mask": {"exceptions": [GUARD], "frames": ["> /home/me/m.py|forward|if expert_mask:"]},
    "a variable called use_flash_attn": {
        "exceptions": [POINTER], "frames": ["> /home/me/m.py|forward|run(x, use_flash_attn)"]},
    "a file called flash_attn.py": {"exceptions": [POINTER], "frames": ["> /home/me/flash_attn.py|go|run(x)"]},
    "a mask that is all ones": {"exceptions": [GUARD], "frames": ["> /home/me/m.py|forward|if (mask == 1).all():"]},
    "a file called modeling_phi4_multimodal.py": {
        "exceptions": [GUARD], "frames": ["> /home/me/modeling_phi4_multimodal.py|forward|if n:"]},
    "a class called MyCache in an output": {
        "exceptions": ["RuntimeError: Found <class '__main__.MyCache'> in output, which is not a known type."]},
    "a class called MyCache in an input": {
        "exceptions": ["ValueError: Unsupported input type <class '__main__.MyCache'>. Export only supports pytree "
                       "containers of basic types (Tensor, int, float, ...) as input."]},
    "mark_dynamic by the user": {
        "exceptions": ["ConstraintViolationError: You marked L['x'].size()[0] as dynamic but your code specialized it "
                       "to be a constant (3)."], "frames": ["> /home/me/m.py|forward|return x.view(3, 4)"]},
    "own code that transformers calls": {
        "frames": ["> /x/site-packages/transformers/models/qwen2_vl/modeling_qwen2_vl.py|M.rot_pos_emb|f(x)",
                   "> /home/me/m.py|f|return int(x)"]},
    "a folder called transformers": {
        "exceptions": [GUARD],
        "frames": ["> /home/me/transformers/modeling_rope_utils.py|longrope_frequency_update|if n > 1:"]},
    "another operator that onnxruntime lacks": {
        "stage": "load",
        "exceptions": ["NotImplemented: [ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation "
                       "for ArgMax(13) node with name 'node_argmax'"]},
}  # fmt: skip


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_a_look_alike_is_not_told_as_known(name: str) -> None:
    assert seen({"exceptions": [VALUE], **LOOK_ALIKES[name]}).told_as_known() == []


def test_a_value_asked_for_among_the_arguments_of_an_operator_is_not_that_operators_failure() -> None:
    call = "F.scaled_dot_product_attention(q, k, v, is_causal=bool(x.sum() > 0))"
    told = {"exceptions": [GUARD], "frames": [f"> /home/me/m.py|forward|{call}"]}
    assert "sdpa-unbacked-batch-cpu" in matches_while_evaluating(told, call)
    assert matches_while_evaluating(told, "bool(x.sum() > 0)") == []


def matches_while_evaluating(told: dict[str, Any], expression: str) -> list[str]:
    failure = seen(told).failure
    frames = (msgspec.structs.replace(failure.frames[0], expression=expression),)
    failure = msgspec.structs.replace(failure, frames=frames)
    found = known.match(failure, exporter="export", dynamic=False, versions=MAIN_LANE)
    return [issue.id for issue, elsewhere in found if not elsewhere]


@pytest.mark.parametrize("expression", ["u0", "u0 > 1", "Eq(u0, 0)", "Eq(u0, 1)", "Ne(u3, 2*u4)"])
@pytest.mark.parametrize("asked", ["guard on", "extract specialized integer from"])
def test_words_that_any_guard_has_accuse_no_issue(asked: str, expression: str) -> None:
    message = f"Could not {asked} data-dependent expression {expression} (unhinted: {expression})."
    told = {"exceptions": [f"GuardOnDataDependentSymNode: {message}"], "frames": ["> model.py|forward|y = f(x)"]}
    assert seen(told).matches() == []


def test_a_fallback_is_silent_where_a_specific_entry_speaks() -> None:
    told = next(case["fits"] for case in CASES if case["id"] == "torchscript-vmap-mask-map-at")
    function = "torch/autograd/function.py|Function.apply|return super().apply(*args, **kwargs)"
    assert seen({**told, "frames": [*told["frames"], function]}).matches() == ["torchscript-vmap-mask-map-at"]


def test_an_export_that_torch_onnx_wrapped_is_recognised_by_its_cause() -> None:
    told = next(case["fits"] for case in CASES if case["id"] == "dynamic-cache-unregistered-output")
    wrapped = ["torch.onnx._internal.exporter._errors.TorchExportError: Failed to export", *told["exceptions"]]
    assert seen({**told, "stage": "translate", "exceptions": wrapped}).matches() == [
        "dynamic-cache-unregistered-output"
    ]
    assert seen({**told, "stage": "translate"}).matches() == []


def test_another_version_than_the_one_it_was_seen_with_does_not_hide_an_issue() -> None:
    told = seen(next(case["fits"] for case in CASES if case["id"] == "sdpa-unbacked-batch-cpu"))
    ((issue, _),) = known.match(told.failure, exporter="export", dynamic=False, versions=MAIN_LANE)
    assert issue.seen_with == {"torch": "<2.13"}
    assert issue.links[0] == "pytorch/pytorch#180202"


def test_the_text_tower_of_the_older_lanes_leads_to_both_upstream_issues() -> None:
    links = entry("torchscript-vmap-mask-map-at").links
    assert {"pytorch/pytorch#172880", "pytorch/pytorch#106972", "NVIDIA/TransformerEngine#269"} <= set(links)
    assert "pytorch/pytorch#163713" in entry("symint-not-tracked-with-proxy").links
    assert "pytorch/pytorch#174063" in entry("vmap-mask-proxy-mode-not-registered").links


TEXT = st.text(max_size=300) | st.sampled_from([case["fits"]["exceptions"][0] for case in CASES])


@pytest.mark.long
@given(
    kind=st.text(max_size=40),
    message=TEXT,
    file=st.text(max_size=60),
    source=TEXT,
    user=st.booleans(),
    stage=st.sampled_from(["export", "translate", "load", "run", "nonsense"]),
    exporter=st.sampled_from(["export", "export-strict", "torchscript", ""]),
    version=st.text(max_size=12),
)
def test_matching_never_raises(
    kind: str, message: str, file: str, source: str, user: bool, stage: str, exporter: str, version: str
) -> None:
    failure = Failure(
        stage=stage,  # type: ignore[arg-type]
        exceptions=(ExceptionFact(type=kind, message=message),),
        frames=(Frame(file=file, line=1, function=file, source=source, user=user),),
    )
    known.match(failure, exporter=exporter, dynamic=user, versions={"torch": version, "transformers": version})


def test_a_message_of_a_megabyte_is_matched_at_once() -> None:
    told = {"exceptions": ["AssertionError: " + "Not all values of rows > differ (u0, " * 30_000]}
    assert seen(told).matches() == []


@pytest.mark.parametrize(
    ("text", "version", "expected"),
    [
        ("<2.13", "2.13.0+cpu", False),
        ("<2.13", "2.12.1", True),
        ("<2.13", "2.9", True),
        (">=2.14", "2.14.0.dev2026", True),
        ("<2.14", "2.14.0a0+git1a2b3c", False),
        ("", "2.13", None),
        (">=4.53,<5", "4.57.1", True),
        (">=4.53,<5", "5.0.0.dev0", False),
        ("==2.13", "2.13.0", True),
        ("<2.13", "nightly", None),
        ("<2.13", None, None),
        ("about 2", "2.13", None),
    ],
)
def test_a_range_holds_for_releases(text: str, version: str | None, expected: bool | None) -> None:
    assert is_in_range(version, text) is expected


def test_a_search_finds_by_words_in_any_case_titles_first() -> None:
    found = [issue.id for issue in known.search("Window INDEX qwen")]
    assert found[0] == "qwen25vl-window-index"
    assert [issue.id for issue in known.search("172880")] == ["torchscript-vmap-mask-map-at"]
    assert known.search("no such words") == ()
    assert len(known.search("")) == len(known.load())


@pytest.mark.parametrize("issue", known.load(), ids=lambda issue: issue.id)
def test_an_entry_can_be_used(issue: KnownIssue) -> None:
    ids = [one.id for one in known.load()]
    assert ids.count(issue.id) == 1
    assert issue.match
    assert issue.links
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", link) for link in issue.links)
    assert set(issue.alternatives) <= set(ids)
    assert all(is_range(text) for text in (*issue.only_with.values(), *issue.seen_with.values()))


@pytest.mark.parametrize("clause", [clause for issue in known.load() for clause in issue.match])
def test_a_clause_can_be_used_and_does_not_fit_every_data_dependent_guard(clause: Clause) -> None:
    patterns = (clause.message, clause.frames, clause.culprit, clause.raised_in, clause.unless, clause.guard)
    assert all(re.compile(pattern) for pattern in patterns if pattern)
    assert clause.message
    assert clause.places or not clause.frames_needed
    asked = ("guard on", "extract specialized integer from")
    guards = [f"Could not {what} data-dependent expression {text}" for what in asked for text in ("u0", "Eq(u0, 1)")]
    assert clause.frames_needed or not any(re.search(clause.message, text, re.S) for text in guards)


def test_the_catalogue_is_read_only_when_it_is_asked() -> None:
    code = "import sys; from exportdoctor.core.failure import explanations, kinds, known_issues; "
    code += "assert not {'yaml', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_no_workaround_compares_in_a_chain() -> None:
    """`0 <= n <= size` takes the truth of `0 <= n`, which is a guard on a number that is read out of a tensor."""
    chained = re.compile(r"torch\._check\([^()]*[<>]=?[^()]*[<>]=?[^()]*\)")
    assert chained.search("torch._check(0 <= n <= size)")
    assert not [issue.id for issue in known.load() if chained.search(issue.workaround)]


@pytest.mark.slow
def test_the_checks_that_a_slice_is_told_to_make_export() -> None:
    class Rows(torch.nn.Module):
        def forward(self, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            n: Any = k.item()
            torch._check(n >= 0)  # type: ignore[no-untyped-call]
            torch._check(n <= x.shape[0])  # type: ignore[no-untyped-call]
            return x.narrow(0, 0, n)

    program = torch.export.export(Rows(), (torch.randn(6, 3), torch.tensor(3)))
    assert program.module()(torch.ones(6, 3), torch.tensor(2)).shape == (2, 3)
