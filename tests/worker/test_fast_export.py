"""The fast export gives the same graph and the same failure, or says that the outcome may differ."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.run.events import ProbeFinished, ProbeStarted
from exportdoctor.targets.built import BuiltPart
from exportdoctor.torch_internals.graph_modules import finish_graphs
from exportdoctor.worker.attempt import shimmed_export
from exportdoctor.worker.attempt.export_attempt import attempt, attempt_fast, attempt_without_shortcuts
from exportdoctor.worker.attempt.fast_export import FastExport, NextAttempt, has_no_side_effects
from exportdoctor.worker.attempt_child import AttemptChild
from exportdoctor.worker.capture.session import capture_part, capture_root_only
from exportdoctor.worker.child import fork
from scanning import events_of

Given = tuple[nn.Module, tuple[Any, ...], Any]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        with torch.no_grad():
            return nn.functional.scaled_dot_product_attention(q, k, v)


class Chosen(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x[x > 0] * 2).sum()


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = int(x.sum())
        return torch.cond(x.mean() > 0, lambda t: t + 1, lambda t: t - 1, (x,)) if n > 3 else x


class Looping(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for row in range(x.shape[0]):
            x = x + row
        return x


class Segments(nn.Module):
    """Sizes of data, of a dimension, and of both."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        sizes = lengths.tolist()
        for size in sizes:
            torch._check(size >= 2)
        torch._check(sum(sizes) == 9)
        first, second = torch.ones(9, 4).split(sizes)
        chosen = x[x[:, 0] > 0]
        pairs = first.T.contiguous()[:, None] * x[:, :4].T[:, :, None]
        image = second.T.reshape(1, 2, 2, -1).contiguous(memory_format=torch.channels_last)
        return chosen.sum() + pairs.permute(2, 0, 1).sum() + image.sum() + torch.zeros(sizes[0], x.shape[0]).sum()


def segments() -> Given:
    return Segments(), (torch.randn(5, 4), torch.tensor([4, 5])), ({0: Dim.DYNAMIC}, None)


def static_segments() -> Given:
    return *segments()[:2], None


class Drawing(nn.Module):
    """torch calls the operator `aten.random_.from`: the code of the graph is no Python."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.empty(x.shape, dtype=torch.int64).random_(2, 7)


def drawing() -> Given:
    return Drawing(), (torch.randn(6),), None


def attention() -> Given:
    return Attention(), (torch.randn(2, 5, 8),), ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)


def chosen() -> Given:
    return Chosen(), (torch.randn(6),), None


def branching() -> Given:
    return Branching(), (torch.ones(6),), None


def specialised() -> Given:
    return Looping(), (torch.randn(4, 3),), ({0: Dim("rows")},)


def part_of(given: Given) -> BuiltPart:
    module, args, shapes = given
    return BuiltPart(name="default", title="", prefix="", module=module, args=args, kwargs={}, dynamic_shapes=shapes)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("given", [attention, chosen, segments, static_segments])
def test_a_program_made_thriftily_has_the_same_graph_and_code(given: Callable[[], Given]) -> None:
    module, args, shapes = given()
    plain = torch.export.export(module, args, dynamic_shapes=shapes, strict=False)
    with FastExport().within():
        thrifty = torch.export.export(module, args, dynamic_shapes=shapes, strict=False)
        finish_graphs(thrifty)
    assert thrifty.graph_module.code == plain.graph_module.code
    assert [str(node.meta.get("val")) for node in thrifty.graph.nodes] == [
        str(node.meta.get("val")) for node in plain.graph.nodes
    ]
    assert str(thrifty.range_constraints) == str(plain.range_constraints)
    stacks = [[node.meta.get("stack_trace") for node in one.graph.nodes] for one in (plain, thrifty)]
    assert stacks[0] == stacks[1]


def test_nothing_of_torch_stays_replaced() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx import _lazy_graph_module
    from torch.utils import _traceback

    def held() -> tuple[Any, ...]:
        lazy = _lazy_graph_module._use_lazy_graph_module_flag
        return FakeTensorMode._make_cache_entry, _traceback._extract_symbolized_tb, lazy

    before = held()
    try:
        with FastExport().within():
            assert all(one != other for one, other in zip(held(), before, strict=True))
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert held() == before


def test_a_saving_that_this_torch_has_no_hook_for_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils import _traceback

    monkeypatch.delattr(_traceback, "_extract_symbolized_tb")
    with FastExport().within():
        assert not hasattr(_traceback, "_extract_symbolized_tb")


@pytest.mark.long
@pytest.mark.slow
def test_code_is_compiled_less_often_and_none_is_left_when_the_program_is_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.fx import graph_module

    compiled: list[str] = []
    compiles = graph_module._forward_from_src

    def counting(source: str, *rest: Any) -> Any:
        compiled.append(source)
        return compiles(source, *rest)

    monkeypatch.setattr(graph_module, "_forward_from_src", counting)
    module, args, shapes = attention()
    torch.export.export(module, args, dynamic_shapes=shapes, strict=False)
    plain = len(compiled)
    with FastExport().within():
        program = torch.export.export(module, args, dynamic_shapes=shapes, strict=False)
    finish_graphs(program)
    assert len(compiled) - plain < plain
    graphs = [one for one in program.graph_module.modules() if hasattr(one, "_needs_recompile")]
    assert graphs
    assert not any(graph._needs_recompile() for graph in graphs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "in_doubt"),
    [
        (attention, False),  # passes, and no check was left out
        (branching, False),  # fails while the forward is traced
        (chosen, True),  # passes, with a result of unbacked size
        (specialised, True),  # fails after the forward was traced
        (drawing, True),  # passes, with code that each of torch's passes would have refused
    ],
)
def test_an_answer_that_a_saving_may_have_changed_is_none(given: Callable[[], Given], *, in_doubt: bool) -> None:
    probe = Probe(part="default", fqn="")
    assert isinstance(attempt_fast(capture_root_only(part_of(given())), probe), NextAttempt) is in_doubt


@pytest.mark.slow
def test_what_will_probably_pass_is_asked_with_all_checks_and_once() -> None:
    probe = Probe(part="default", fqn="", to="compare")
    outcome = attempt_fast(capture_root_only(part_of(chosen())), probe)
    plain = attempt(capture_root_only(part_of(chosen())), probe)
    assert isinstance(outcome, Outcome)
    assert (outcome.status, len(outcome.numbers)) == (plain.status, len(plain.numbers))
    assert outcome.passed
    sure = attempt_fast(capture_root_only(part_of(chosen())), Probe(part="default", fqn=""), will_pass=True)
    assert isinstance(sure, Outcome)


def test_an_answer_without_doubt_is_the_plain_one() -> None:
    probe = Probe(part="default", fqn="")
    thrifty = attempt_fast(capture_root_only(part_of(branching())), probe)
    plain = attempt(capture_root_only(part_of(branching())), probe)
    assert isinstance(thrifty, Outcome)
    assert (thrifty.status, thrifty.failure) == (plain.status, plain.failure)


def test_an_outcome_in_doubt_is_asked_for_again(tmp_path: Path) -> None:
    part, probe, log = capture_root_only(part_of(chosen())), Probe(part="default", fqn=""), str(tmp_path / "log")
    again = attempt_fast(part, probe)
    assert again == NextAttempt.IN_FULL
    child = fork(lambda _: NextAttempt.IN_FULL, log=log)
    running, end = AttemptChild(child, probe, log, None), child.wait()
    assert running.next_attempt(end) == NextAttempt.IN_FULL
    assert running.outcome(end).signal == "exit code 76"


def test_an_exit_of_the_target_is_asked_for_again_at_most_twice() -> None:
    """Also with the exit codes that an attempt in doubt ends with."""
    probe = Probe(part="default", fqn="")
    for code in (1, *NextAttempt):
        asked: list[NextAttempt | None] = [None]
        while True:
            child = fork(partial(lambda end, _: end, int(code)))
            running = AttemptChild(child, probe, None, asked[-1])
            if (again := running.next_attempt(end := child.wait())) is None:
                break
            asked.append(again)
        assert len(asked) <= 2
        assert running.outcome(end).signal == f"exit code {code}"


TARGET = """
import torch

class Chosen(torch.nn.Module):
    def forward(self, x):
        return (x[x > 0] * 2).sum()

def passing():
    return Chosen(), (torch.tensor([1.0, -1.0, 2.0]),)

class Looping(torch.nn.Module):
    def forward(self, x):
        for row in range(x.shape[0]):
            x = x + row
        return x

def failing():
    return Looping(), (torch.randn(4, 3),), {}, ({0: torch.export.Dim("rows")},)
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("factory", "status"), [("passing", "passed"), ("failing", "failed")])
def test_what_is_in_doubt_is_attempted_again_in_a_fresh_process(tmp_path: Path, factory: str, status: str) -> None:
    (tmp_path / "target.py").write_text(TARGET)
    events = events_of(f"{tmp_path / 'target.py'}:{factory}")
    root = Probe(part="default", fqn="").id
    pids = [event.pid for event in events if isinstance(event, ProbeStarted) and event.probe.id == root]
    answers = [event.outcome for event in events if isinstance(event, ProbeFinished) and event.probe.id == root]
    assert len(set(pids)) == len(pids) == 2
    assert [answer.status for answer in answers] == [status]


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.plain, self.hooked, self.odd = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm, self.own = nn.BatchNorm1d(4), Chosen()
        self.hooked.register_forward_hook(lambda *_: None)
        self.odd.forward = self.plain.forward  # type: ignore[method-assign]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.own(self.norm(self.odd(self.hooked(self.plain(x)))))


def test_only_plain_layers_of_torch_need_no_process_of_their_own() -> None:
    model = Layers().eval()
    part = capture_part(part_of((model, (torch.randn(3, 4),), None)), exporter="export")
    asked = {fqn: has_no_side_effects(part, Probe(part="default", fqn=fqn)) for fqn in part.distinct}
    assert asked == {"": False, "plain": True, "hooked": False, "odd": False, "norm": False, "own": False}
    assert not has_no_side_effects(part, Probe(part="default", fqn="plain", shims=("no-grad",)))
    model.plain.train()
    assert not has_no_side_effects(part, Probe(part="default", fqn="plain"))


LAYERS = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = torch.nn.Linear(4, 5), torch.nn.Linear(5, 6), torch.nn.Linear(6, 7)
        self.loss = torch.nn.CTCLoss()

    def forward(self, x, targets, lengths, target_lengths):
        x = self.third(self.second(self.first(x)))
        return self.loss(x.log_softmax(-1).unsqueeze(1), targets, lengths, target_lengths)

def build():
    return Model().eval(), (torch.ones(6, 4), torch.tensor([[1, 2]]), torch.tensor([6]), torch.tensor([2]))
"""


@pytest.mark.long
@pytest.mark.slow
def test_plain_layers_share_a_process_and_one_that_fails_is_asked_again_in_its_own(tmp_path: Path) -> None:
    (tmp_path / "target.py").write_text(LAYERS)
    events = events_of(f"{tmp_path / 'target.py'}:build", exhaustive=True)
    outcomes = {event.probe.fqn: event.outcome for event in events if isinstance(event, ProbeFinished)}
    pids: dict[str, list[int]] = {}
    for event in events:
        if isinstance(event, ProbeStarted):
            pids.setdefault(event.probe.fqn, []).append(event.pid)
    plain = ("first", "second", "third")
    assert all(outcomes[fqn].passed and len(pids[fqn]) == 1 for fqn in plain)
    assert len({pids[fqn][0] for fqn in plain}) < 3  # the loss's failure ends the child that they share
    assert len(set(pids["loss"])) == 2
    assert not {pids["loss"][1], *pids[""]} & {pids[fqn][0] for fqn in plain}
    assert outcomes["loss"].status == "failed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "noted"),
    [(attention, True), (lambda: (*attention()[:2], None), False), (chosen, False), (segments, True)],
)
def test_a_node_notes_its_memory_format_only_where_asking_may_add_a_guard(
    given: Callable[[], Given], *, noted: bool
) -> None:
    """Such a guard a program must have. Asked of sizes that depend on data alone, torch adds none."""
    module, args, shapes = given()
    with FastExport().within():
        program = torch.export.export(module, args, dynamic_shapes=shapes, strict=False)
    formats = [node.meta["tensor_meta"].memory_format for node in program.graph.nodes if "tensor_meta" in node.meta]
    assert formats
    assert any(formats) == noted


RUNS: list[int] = []


class Counted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        RUNS.append(len(x))
        return (x[x > 0] * 2).sum()


@pytest.mark.slow
def test_a_program_that_is_made_again_is_compared_once() -> None:
    """Also the small model's proof of thirty input sets was made twice."""
    runs = []
    probe = Probe(part="default", fqn="", to="run")
    for made in (attempt_fast, attempt):
        part = capture_root_only(part_of((Counted(), (torch.randn(6),), None)))
        RUNS.clear()
        outcome = made(part, probe)
        runs.append(len(RUNS))
    assert isinstance(outcome, Outcome)
    assert outcome.passed
    assert runs[0] < runs[1] / 2


class CountedRows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        RUNS.append(len(x))
        for row in range(x.shape[0]):
            x = x + row
        return x


@pytest.mark.long
@pytest.mark.slow
def test_where_eager_is_slow_all_input_sets_are_made_for_shims_that_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vision encoder (Pixtral) took half a minute for each of its shims that do not apply."""
    runs = []
    for slow, shim, ask in (
        (1e9, "static-dim", attempt_fast),
        (0.0, "static-dim", attempt_fast),
        (0.0, "static-dim", attempt_without_shortcuts),
        (0.0, "static-dim:columns", attempt_without_shortcuts),
        (0.0, "max-pool-1d-as-2d", attempt_fast),
        (0.0, "static-dim", partial(attempt_fast, will_pass=True)),
    ):
        monkeypatch.setattr(shimmed_export, "_SLOW_SET", slow)
        part = capture_root_only(part_of((CountedRows(), (torch.randn(4, 3),), ({0: Dim("rows"), 1: Dim("columns")},))))
        RUNS.clear()
        outcome = ask(part, Probe(part="default", fqn="", to="run", shims=(shim,)))
        runs.append((outcome if isinstance(outcome, NextAttempt) else outcome.status, len(RUNS)))
    (passed, all_runs), *brief, expected = runs
    assert expected == (passed, all_runs)
    assert passed == OutcomeStatus.PASSED
    again = NextAttempt.IN_FULL
    assert [outcome for outcome, _ in brief] == [again, again, OutcomeStatus.FAILED, OutcomeStatus.NOT_APPLICABLE]
    assert max(few for _, few in brief) < all_runs / 2
