"""The worker holds the model on the CPU; each child moves its own question to the GPU or to what stands in for it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from exportdoctor.core.errors import UsageError
from exportdoctor.core.protocol.scan import Capture, Opened
from exportdoctor.core.records.outcome import OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.core.run.report import Report
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.engine.scan import ScanRequest, answerable
from exportdoctor.process.graphics_cards import Card
from exportdoctor.targets import plan_for_module, resolve
from exportdoctor.targets.build import build
from exportdoctor.targets.configuration import ConfigurationPlan
from exportdoctor.torch_internals.fake_tensors import is_fake
from exportdoctor.worker.attempt import torchscript
from exportdoctor.worker.attempt.export_attempt import attempt
from exportdoctor.worker.capture.carried_capture import pack_capture, unpack_capture
from exportdoctor.worker.capture.session import PartCapture, capture_part, capture_root_only
from exportdoctor.worker.child import fork
from exportdoctor.worker.open_target import OpenTarget
from exportdoctor.worker.placement import ChildPlacement, Placement, plan_placement
from exportdoctor.worker.read_log import LOG
from scanning import scan_file, scan_ref

FIXTURES = Path(__file__).parents[2] / "fixtures"
CUDA = BuildOptions(device="cuda")
CARD = Card(uuid="GPU-1", name="a card", total_mb=80_000.0, free_mb=40_000.0)


class Inner(nn.Module):
    def forward(self, hidden: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        return hidden[:, :2] * 2 + torch.zeros(2, device=state["device"])


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.inner = nn.Linear(4, 4), nn.Linear(4, 4), Inner()
        self.second.weight = self.first.weight
        self.register_buffer("ones", torch.ones(4))

    def forward(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        hidden = self.second(self.first(hidden)) * self.ones
        return self.inner(hidden[rows], {"device": hidden.device, "rows": rows})


def outer() -> PartCapture:
    inputs = (torch.ones(3, 4), torch.tensor([0, 2]))
    return capture_part(build(plan_for_module(Outer(), inputs)).part("default"), exporter="export")


def told(report: Report) -> tuple[object, ...]:
    """What a report says, without what names a device."""
    statuses = [(module.fqn, module.status) for part in report.parts for module in part.modules]
    return statuses, [(finding.kind, finding.module, finding.source) for finding in report.findings]


@pytest.mark.night
@pytest.mark.parametrize(
    "fixture", ["if_tensor", "child_fails_only_inside_parent", "dict_and_list_of_modules", "vmap_over_mask"]
)
def test_fake_cuda_tensors_give_the_answers_of_the_cpu(fixture: str) -> None:
    path = f"{FIXTURES / fixture}.py:build"
    assert told(scan_ref(path, build=CUDA, exhaustive=True)) == told(scan_ref(path, exhaustive=True))


@pytest.mark.night
def test_fake_cuda_tensors_give_the_answers_of_the_cpu_for_a_real_model() -> None:
    cpu, cuda = (scan_ref("Qwen2.5-VL-3B-tiny", build=BuildOptions(device=device)) for device in ("cpu", "cuda"))
    assert told(cuda) == told(cpu)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_no_more_is_claimed_than_was_asked() -> None:
    report = scan_ref(f"{FIXTURES / 'data_dependent_int'}.py:build", build=CUDA, cure=True)
    assert report.target.device == "cuda"
    assert any("no kernel" in note for note in report.notes)
    assert [finding.kind for finding in report.findings] == ["data_dependent_value"]
    assert report.parts[0].verdict == "fails"
    assert report.parts[0].prescription is None
    opened = Opened(
        environment={}, parameters=0, weights="fake", device="cuda", dtype="float32", isolation="fork", seconds=0.0,
        parts=(), runs_kernels=False,
    )  # fmt: skip
    for options in (ScanOptions(to="onnx"), ScanOptions(exporter="torchscript")):
        with pytest.raises(UsageError, match="no GPU"):
            answerable(ScanRequest(target=TargetRef(ref="any"), options=options), opened)
    with pytest.raises(UsageError, match=r"no cuda:1: this machine shows 0"):
        plan_placement(plan_for_module(Outer(), (), options=BuildOptions(device="cuda:1")), limit_mb=None)


FAULTY = """
import torch
from torch import nn

class Faulty(nn.Module):
    def forward(self, x):
        raise RuntimeError({message!r})

class Fine(nn.Module):
    def forward(self, x):
        return x + 1

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.faulty, self.fine = Faulty(), Fine()
    def forward(self, x):
        return self.fine(self.faulty(x) if torch.compiler.is_exporting() else x)

def build():
    return Model(), (torch.ones(2),)
"""


@pytest.mark.slow
def test_a_fault_of_the_device_costs_one_attempt_and_names_the_module(tmp_path: Path) -> None:
    message = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139.80 GiB"
    (tmp_path / "model.py").write_text(FAULTY.format(message=message))
    report = scan_file(tmp_path / "model.py", build=CUDA)
    assert [(finding.kind, finding.function) for finding in report.findings] == [("out_of_memory", "Faulty.forward")]
    assert report.stats.probes > 1


@pytest.mark.slow
def test_what_fails_for_want_of_a_gpu_is_no_failure_of_the_module(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(FAULTY.format(message="CUDA error: no CUDA-capable device is detected"))
    report = scan_file(tmp_path / "model.py", build=CUDA)
    assert (report.parts[0].verdict, report.findings) == ("unknown", ())
    assert any("a GPU is needed that does not answer (CUDA error: no CUDA-capable" in note for note in report.notes)


def placed(part: PartCapture, *probes: Probe) -> bytes:
    """What a child says of the part once the probes were placed in it."""

    def work(_: int) -> bytes:
        here = ChildPlacement(Placement(cards=()))
        for probe in probes:
            here.place(part, probe)
        root: Any = part.module_at("")
        told = [
            sorted({str(one.device) for one in (*root.parameters(), *root.buffers())}),
            root.first.weight is root.second.weight,
            str(part.calls_of("inner")[0].kwargs.get("state", part.calls_of("inner")[0].args[-1])["device"]),
            part.root.args[1] is part.built.args[1],
            sorted({str(leaf.device) for call in part.root.inner for leaf in call.given}),
        ]
        return repr(told).encode()

    child = fork(work)
    return child.wait().data


def test_what_a_question_holds_is_moved_whole_and_only_in_the_child() -> None:
    part = outer()
    told = placed(part, Probe(part="default", fqn="inner"), Probe(part="default", fqn=""))
    assert told.decode() == "[['cuda:0'], True, 'cuda:0', True, ['cuda:0']]"
    assert {str(one.device) for one in part.module_at("").parameters()} == {"cpu"}


def test_a_question_that_computes_with_values_needs_a_card() -> None:
    part, without, with_card = outer(), Placement(cards=()), Placement(cards=(CARD,))
    plain, shimmed = Probe(part="default", fqn=""), Probe(part="default", fqn="", shims=("one",))
    assert not without.needs_card(part, plain)
    assert without.needs_card(part, shimmed)
    assert with_card.needs_card(part, plain), "its weights are real"


def test_no_more_attempts_share_the_cards_than_fit() -> None:
    def started(placement: Placement, needed_mb: float) -> list[int]:
        taken: dict[int, float] = {}
        found = []
        for _ in range(9):
            card = placement.choose_card(needed_mb, taken)
            if card is not None:
                taken[card] = taken.get(card, 0.0) + needed_mb
                found.append(card)
        return found

    one, two = Placement(cards=(CARD,)), Placement(cards=(CARD, CARD))
    assert started(one, 15_000.0) == [0, 0]
    assert started(two, 15_000.0) == [0, 1, 0, 1]
    assert started(one, 90_000.0) == [0], "alone on a card, one that may not fit is tried"
    part, run = outer(), Probe(part="default", fqn="", to="run")
    assert Placement(cards=()).needed_mb(part, run) == 0
    assert Placement(cards=(CARD,), limit_mb=15_000.0).needed_mb(part, run) == 15_000
    assert 0 < one.needed_mb(part, run) < 4_000


def tiny_without_values(name: str) -> tuple[OpenTarget, PartCapture]:
    """A captured part of the tiny Qwen2.5-VL, whose random weights attempts draw on what stands here for a card."""
    LOG.start()
    target = OpenTarget()
    plan = resolve(TargetRef(ref="Qwen2.5-VL-3B-tiny", options=BuildOptions(device="cpu", weights="random")))
    assert isinstance(plan, ConfigurationPlan)
    target.plan = dataclasses.replace(plan, without_values=True)
    target.placement = Placement(cards=(CARD,), device=torch.device("cpu"))
    target.built = target._build()
    fact = target.capture(Capture(part=name))
    assert fact.has_values
    return target, target.parts[name]


def in_child(target: OpenTarget, part: PartCapture, probe: Probe, work: Callable[[PartCapture], object]) -> str:
    """What `work` says in a child in which the probe's question was placed."""
    assert target.placement is not None
    placement = target.placement

    def place(_: int) -> bytes:
        ChildPlacement(placement).place(part, probe)
        return str(work(part)).encode()

    return fork(place).wait().data.decode()


@pytest.mark.slow
def test_each_attempt_draws_the_same_random_weights_whichever_module_it_asks() -> None:
    target, part = tiny_without_values("vision")
    assert all(map(is_fake, part.built.module.parameters()))
    inner = f"{part.prefix}.blocks.1.mlp"

    def sums(part: PartCapture) -> list[tuple[str, float]]:
        values = part.module_at(inner).named_parameters()
        return [(name, float(value.double().square().sum())) for name, value in values]

    run = Probe(part="vision", fqn=part.prefix, to="run")
    whole, again = (in_child(target, part, run, sums) for _ in range(2))
    alone = in_child(target, part, msgspec.structs.replace(run, fqn=inner), sums)
    assert whole == again == alone
    assert "nan" not in whole
    assert all(map(is_fake, part.built.module.parameters())), "the worker itself holds none"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("name", "below"), [("decode", ""), ("vision", ".merger"), ("text", ".layers.0.mlp")])
def test_a_program_is_compared_with_eager_on_weights_and_inputs_drawn_in_the_attempt(name: str, below: str) -> None:
    """Eager computes the cache that `decode` takes. A submodule's inputs are those that the part's forward gives it."""
    target, part = tiny_without_values(name)
    assert ("attempts draw at random on the GPU" in " ".join(part.notes)) == (name == "decode")
    fqn = next(one for one in part.fqns if one.endswith(below))
    probe = Probe(part=name, fqn=fqn, to="compare", timeout=120.0)

    def compare(part: PartCapture) -> object:
        outcome = attempt(part, probe)
        return outcome.status, sum(not row.trouble for row in outcome.numbers) > 1

    assert in_child(target, part, probe, compare) == str((OutcomeStatus.PASSED, True))


@pytest.mark.slow
def test_a_capture_comes_back_from_a_child_as_it_was() -> None:
    here = outer()
    there = capture_root_only(here.built)
    child = fork(lambda _: pack_capture(capture_part(here.built, exporter="export")))
    unpack_capture(child.wait().data, there)
    assert {fqn: [one.full for one in asked] for fqn, asked in there.questions.items()} == {
        fqn: [one.full for one in asked] for fqn, asked in here.questions.items()
    }
    hidden, state = there.calls_of("inner")[0].args
    assert hidden.shape == (2, 4)
    assert state["rows"].tolist() == [0, 2]
    assert [call.child for call in there.root.inner] == [call.child for call in here.root.inner]


NVML = r"""
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory_t;
static const char *uuids[] = {"GPU-aaaa", "GPU-bbbb"};
int nvmlInit_v2(void) { return 0; }
int nvmlInit(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetHandleByUUID(const char *u, void **h) { return 6; }
int nvmlDeviceGetUUID(void *h, char *b, unsigned n) { strncpy(b, uuids[(long)h - 1], n); return 0; }
int nvmlDeviceGetName(void *h, char *b, unsigned n) { strncpy(b, "a card", n); return 0; }
int nvmlDeviceGetMemoryInfo(void *h, memory_t *m) { m->total = 80ULL << 30; m->free = 40ULL << 30; return 0; }
"""
ASK = """
import os
from exportdoctor.process.graphics_cards import visible_cards
for visible in {visible!r}:
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
    print([(card.uuid, card.name, card.free_mb) for card in visible_cards()])
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
def test_cards_are_those_that_cuda_would_show(tmp_path: Path) -> None:
    (tmp_path / "nvml.c").write_text(NVML)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "nvml.c"], check=True)
    a, b = ("GPU-aaaa", "a card", 40960.0), ("GPU-bbbb", "a card", 40960.0)
    expected = {None: [a, b], "1": [b], "1,0": [b, a], "": [], "-1": [], "0,7,1": [a], "GPU-b": [b], "MIG-x": []}
    asked = subprocess.run(
        [sys.executable, "-c", ASK.format(visible=list(expected))],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout.splitlines() == [str(cards) for cards in expected.values()]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_attempts_compute_with_values_in_children_alone() -> None:
    program = (
        "import torch\n"
        "from exportdoctor.core.protocol.scan import Capture, Open\n"
        "from exportdoctor.core.records.target import BuildOptions, TargetRef\n"
        "from exportdoctor.worker.open_target import OpenTarget\n"
        "target = OpenTarget()\n"
        f"ref = TargetRef(ref='{FIXTURES / 'passing'}.py:build', options=BuildOptions(device='cuda'))\n"
        "print(target.open(Open(target=ref)).isolation)\n"
        "target.capture(Capture(part='default'))\n"
        "print(torch.cuda.is_initialized())\n"
    )
    environment = {**os.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["fork", "False"]


def test_zeros_for_the_torchscript_exporter_take_no_memory_until_they_are_written() -> None:
    with FakeTensorMode():
        fake = torch.empty(1 << 15, 1 << 15).t()
    before = psutil.Process().memory_info().rss
    real = torchscript._real(fake)
    assert (real.shape, real.stride(), float(real[-1, -1])) == (fake.shape, fake.stride(), 0.0)
    assert psutil.Process().memory_info().rss - before < 1 << 28  # of 4 GiB
