"""Every rewrite is run: what it replaces fails with its kind, and what it gives exports and computes the same."""

from __future__ import annotations

import copy
import importlib.util
import io
import logging
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.core.failure.classify import kind_of
from exportdoctor.core.failure.explanations import Rewrite, explain, summary
from exportdoctor.core.failure.kinds import KINDS
from exportdoctor.core.records.outcome import Frame, OpFact, Outcome, OutcomeStatus
from exportdoctor.core.versions import is_in_range
from exportdoctor.repro.candidates.candidate_runner import CandidateRunner

PAGES_OF = "2.13.0"
REWRITES = [(kind, rewrite) for kind in KINDS for rewrite in explain(kind).rewrites]
NAMES = [f"{kind}-{rewrite.title.lower().replace(' ', '-')}" for kind, rewrite in REWRITES]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_explained(kind: str) -> None:
    told = explain(kind)
    assert told.kind == kind
    assert told.rewrites
    sentences = re.split(r"(?<=[.!?]) ", told.paragraph)
    assert len(sentences) >= 3, "what the tracer knows, what the code needs, why that fails"
    assert max(len(sentence.split()) for sentence in sentences) <= 45, "a sentence that must be read twice"
    assert told.next_step.endswith(".") or "exportdoctor " in told.next_step
    assert told.next_step not in told.summary
    assert summary(kind) == told.summary
    assert told.summary.endswith(".")
    assert told.summary.count(". ") == 0


def test_an_unknown_kind_is_told_with_those_that_exist() -> None:
    with pytest.raises(ExportdoctorError, match="Unknown kind") as raised:
        explain("nonsense")
    assert "data_dependent_guard" in raised.value.hint
    assert summary("a_kind_of_tomorrow") == "Tracing raises an exception that eager does not."


def test_each_rewrite_shows_what_to_change() -> None:
    assert [name for name, (_, rewrite) in zip(NAMES, REWRITES, strict=True) if rewrite.before == rewrite.code] == []


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rewrite"), REWRITES, ids=NAMES)
def test_a_rewrite_cures_what_it_replaces(kind: str, rewrite: Rewrite) -> None:
    missing = [name for name in rewrite.example.get("needs", ()) if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    before, after = Snippet(rewrite.before, rewrite), Snippet(rewrite.code, rewrite)
    with torch.no_grad():
        before.fails(kind)
        after.computes_the_same(before)


@pytest.mark.night
def test_the_pages_on_failures_are_as_they_are_generated() -> None:
    torch, pages = pytest.importorskip("torch"), _writer()
    if not torch.__version__.startswith(PAGES_OF):
        pytest.skip(f"the pages show what torch {PAGES_OF} says")
    with CandidateRunner(memory_mb=400) as bench:
        for kind in KINDS:
            kept = (pages.PAGES / f"{kind}.md").read_text()
            made = pages.page(kind, bench, said=pages.said_in(kept))
            assert made == kept, f"{kind}.md is not as tools/write_failures.py makes it: run it again"
            _names_the_culprit(pages, kind, pages.said_in(kept))
    assert (pages.PAGES / "README.md").read_text() == pages.listing()


def test_the_fixtures_are_listed_as_they_are() -> None:
    readme = (Path(__file__).parents[2] / "fixtures" / "README.md").read_text()
    assert _writer().with_fixtures_listed(readme) == readme, "run tools/write_failures.py again"


def _writer() -> Any:
    path = Path(__file__).parents[2] / "tools" / "write_failures.py"
    spec = importlib.util.spec_from_file_location("write_failures", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _names_the_culprit(pages: Any, kind: str, said: str) -> None:
    fixture = explain(kind).fixture
    if fixture:
        (finding, *_) = pages.literal(pages.FIXTURES / f"{fixture}.py", "EXPECTED")["findings"]
        assert finding["kind"] == kind
        assert finding["source"] is None or finding["source"] in said
        assert finding["module"] in said


class Snippet:
    """One side of a rewrite: its module, its inputs, and how it is exported."""

    def __init__(self, code: str, rewrite: Rewrite) -> None:
        import torch
        from torch import nn

        self.example = rewrite.example
        self.rewritten = code is rewrite.code
        self.names: dict[str, Any] = {"torch": torch, "nn": nn, "Dim": torch.export.Dim}
        if self.rewritten or self.example.get("fails", True):
            exec(compile(code, "<rewrite>", "exec"), self.names)

    def model(self) -> Any:
        if "Model" in self.names:
            model = self.names["Model"]()
            return model if self.example.get("differs") else model.eval()
        forward = self.names["forward"]
        wrapper = type("Model", (self.names["nn"].Module,), {})()
        wrapper.forward = forward
        return wrapper

    def inputs(self, name: str) -> Any:
        own = self.example.get(f"after_{name}") if self.rewritten else None
        text = own or self.example.get(name)
        if text is None:
            return self.names["example"]() if name == "inputs" else []
        return eval(text, self.names)

    def export(self, model: Any, args: tuple[Any, ...]) -> Any:
        torch = self.names["torch"]
        if "export" in self.names:
            return self.names["export"](model, args)
        exporter = self.example.get("exporter", "export")
        if exporter == "torchscript":
            written = io.BytesIO()
            torch.onnx.export(model, args, written, dynamo=False)
            return written
        shapes = self.names.get("dynamic_shapes")
        return torch.export.export(model, args, dynamic_shapes=shapes, strict=exporter == "export-strict")

    def fails(self, kind: str) -> None:
        """Export, load or run it, wherever the kind says that it fails, and look at the kind of that failure."""
        if not self.example.get("fails", True):
            return
        if self.example.get("differs"):
            assert not self._equal_to_eager(self.model(), self.model())
            return
        stage = "run" if self.example.get("runs") else self.example.get("stage", "export")
        if is_in_range(self.names["torch"].__version__, self.example.get("mended", "")):
            self._goes_through(stage)
            return
        with pytest.raises(Exception) as raised:
            self._goes_through(stage)
        assert self._kind_of(raised.value, stage) == kind

    def _goes_through(self, stage: str) -> None:
        program = self.export(self.model(), self.inputs("inputs"))
        match stage:
            case "run":
                program.module()(*self.inputs("other")[0])
            case "load":
                _session(program)

    def _kind_of(self, error: BaseException, stage: str) -> str:
        from exportdoctor.worker.describe.describe_failure import describe_failure

        failure = describe_failure(error, stage=stage, names={})  # type: ignore[arg-type]
        if "op" in self.example:
            failure = msgspec.structs.replace(failure, op=OpFact(name=self.example["op"]))
        if "made_by" in self.example:
            made = Frame(file="model.py", line=1, function="forward", source=self.example["made_by"])
            failure = msgspec.structs.replace(failure, value_origin=made)
        outcome = Outcome(probe="p", status=OutcomeStatus.FAILED, failure=failure)
        return kind_of(outcome, exporter=self.example.get("exporter", "export"))

    def computes_the_same(self, before: Snippet) -> None:
        if "calls" in self.example:
            self.names[self.example["calls"]]()
            return
        model, inputs = self.model(), self.inputs("inputs")
        if self._comparable():
            self._same(model(*_copies(inputs)), _eager(before, model)(*_copies(inputs)))
        assert self._equal_to_eager(model, model)

    def _comparable(self) -> bool:
        """Whether both sides take the same inputs and give the same outputs in eager."""
        apart = {"after_inputs", "outputs_differ", "differs", "stage"} & set(self.example)
        return not apart and "inputs" in self.example and bool(self.example.get("fails", True))

    def _equal_to_eager(self, exported: Any, eager: Any) -> bool:
        program = self.export(exported, self.inputs("inputs"))
        eager = copy.deepcopy(eager)  # a program shares its tensors with the module
        for inputs in (self.inputs("inputs"), *self.inputs("other")):
            run = _runner(program)
            if not self._close(run(*_copies(inputs)), eager(*_copies(inputs))):
                return False
        return True

    def _same(self, one: Any, other: Any) -> None:
        assert self._close(one, other)

    def _close(self, one: Any, other: Any) -> bool:
        torch = self.names["torch"]
        left, right = (torch.utils._pytree.tree_leaves(value) for value in (one, other))
        return len(left) == len(right) and all(
            torch.allclose(a.float(), b.float(), atol=1e-5) for a, b in zip(left, right, strict=True)
        )


def _eager(before: Snippet, model: Any) -> Any:
    """What the rewrite replaces, with the rewrite's own weights where they have the same names."""
    eager = before.model()
    ours = model.state_dict()
    if ours and set(ours) == set(eager.state_dict()):
        eager.load_state_dict(ours)
    return eager


def _copies(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.clone() if hasattr(value, "clone") else value for value in inputs)


def _session(program: Any) -> Any:
    import onnxruntime

    target = program
    if not isinstance(program, io.BytesIO):  # the TorchScript exporter gives bytes, the other one a program
        target = io.BytesIO()
        program.save(target)
    return onnxruntime.InferenceSession(target.getvalue(), providers=["CPUExecutionProvider"])


def _runner(program: Any) -> Any:
    if hasattr(program, "module"):
        return program.module()
    import torch

    session = _session(program)

    def run(*inputs: Any) -> list[Any]:
        feeds = {arg.name: value.numpy() for arg, value in zip(session.get_inputs(), inputs, strict=True)}
        return [torch.from_numpy(out) for out in session.run(None, feeds)]

    return run
