"""Drafts of scripts: what stands in for a library's classes, and which call shows a failure of the call or of ONNX."""

from __future__ import annotations

import ast
import importlib
import linecache
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from exportdoctor.core.errors import WorkerLost
from exportdoctor.core.failure.identity import name_free_signature
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.reduce import Verdict
from exportdoctor.repro.candidates.candidate_judge import CandidateJudge
from exportdoctor.repro.candidates.candidate_runner import CandidateRunner
from exportdoctor.repro.candidates.other_causes import fails_earlier, without_other_causes
from exportdoctor.repro.candidates.verdict_log import VerdictLog
from exportdoctor.repro.script import code_lines
from exportdoctor.repro.verify import verify
from exportdoctor.worker.repro.script.literals import tensor_code, torch_module_code
from exportdoctor.worker.repro.script.operator_schemas import declare_operators
from exportdoctor.worker.repro.torch_calls import as_ending

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runner() -> Iterator[CandidateRunner]:
    with CandidateRunner(width=1, memory_mb=2500) as process:
        yield process


def judge_of(runner: CandidateRunner, script: str, *, exporter: str = "export") -> CandidateJudge:
    """The judge of what `script` shows."""
    wanted = name_free_signature(runner.run(script), exporter=exporter)
    assert wanted is not None
    return CandidateJudge(runner=runner, wanted=wanted, exporter=exporter, log=VerdictLog(None))


_LIBRARY = "a cache of a library"
REFUSED = {
    _LIBRARY: ("class Cache:\n    def __init__(self, keys):\n        self.keys = keys", "Cache(x)"),
    "a dict with attributes": ("class Output(dict):\n    pass", "Output(hidden=x)"),
    "a mapping": ("from collections import UserDict", "UserDict(hidden=x)"),
    "a dataclass": ("from dataclasses import make_dataclass\nOut = make_dataclass('Out', ['hidden'])", "Out(x)"),
    "a builtin class": ("", "frozenset([1])"),
    "a part of an output": ("class Cache:\n    pass", "(x, [Cache()])"),
}
RETURNS = """
class M(torch.nn.Module):
    def forward(self, x):
        return {made}
torch.export.export(M(), (torch.ones(3),), strict={strict})
"""
TAKES = """
x = torch.ones(3)
class M(torch.nn.Module):
    def forward(self, given):
        return x
torch.export.export(M(), ({made},), strict={strict})
"""


@pytest.mark.parametrize(
    "refused",
    [pytest.param(one, id=name, marks=pytest.mark.long if name == _LIBRARY else []) for name, one in REFUSED.items()],
)
@pytest.mark.parametrize("call", [RETURNS, TAKES], ids=["returned", "given"])
def test_a_class_that_pytree_does_not_know_has_a_stand_in_of_two_lines(
    refused: tuple[str, str], call: str, runner: CandidateRunner
) -> None:
    from exportdoctor.worker.repro.stand_ins import write_stand_ins

    definition, made = refused
    script = f"import torch\n{definition}\n{call.format(made=made, strict=False)}"
    judge, outcome = judge_of(runner, script), runner.run(script)
    assert judge.wanted.kind is FailureKind.UNREGISTERED_PYTREE
    fitting = next((draft for draft in write_stand_ins(outcome, "export") if judge(draft.source) is Verdict.YES), None)
    assert fitting is not None
    assert [line for line in fitting.source.splitlines() if "import" in line] == ["import torch"]
    assert code_lines(fitting.source) <= 7
    assert judge.with_eager(True)(fitting.source) is Verdict.YES


USED_CLASSES = """\
from collections.abc import MutableMapping
from typing import Union
import torch

class Table(MutableMapping):
    first: Union[str, int] = "a"
    def __init__(self):
        self.rows = {"a": 1}
    def __getitem__(self, name):
        return self.rows[name]
    def __setitem__(self, name, value):
        self.rows[name] = value
    def __delitem__(self, name):
        del self.rows[name]
    def __iter__(self):
        return iter(self.rows)
    def __len__(self):
        return len(self.rows)

TABLE = Table()

class Config:
    def __init__(self):
        self.width, self.never_read = 3, object()

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()
    def forward(self, x):
        return x + TABLE["a"] + self.config.width
"""


@pytest.fixture
def used_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "used_classes.py").write_text(USED_CLASSES)
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module("used_classes")


def test_a_carried_class_can_be_made_and_an_object_that_only_holds_values_needs_no_import(
    used_classes: ModuleType, tmp_path: Path
) -> None:
    """A MutableMapping that its file made and of which one method ran stays one; a configuration has its values."""
    import torch

    from exportdoctor.worker.repro.script.prune import CodeSelection
    from exportdoctor.worker.repro.script.recorder import Recorder, read_record
    from exportdoctor.worker.repro.script.script_builder import ScriptBuilder

    model, path = used_classes.Model(), tmp_path / "record"
    with open(path, "wb") as file:
        Recorder(file.fileno(), {}).run(lambda: model(torch.ones(2)))
    script = ScriptBuilder(CodeSelection.of(read_record(str(path)), substitute=False, decorators=False), {})
    text = script.render([f"model = {script.module_code(model)}"])
    assert "import types" not in text
    assert "typing.Union[str, int]" in text
    assert "class Config:\n    width = 3\n" in text
    space: dict[str, object] = {}
    exec(text, space)
    assert space["model"](torch.ones(2)).tolist() == [5.0, 5.0]  # type: ignore[operator]


CACHED = """import torch
class Layers:
    def __init__(self): self.layers = []
    def width(self): return self.layers[0]["keys"].shape[1]
class Cache(Layers):
    pass
class Model(torch.nn.Module):
    def forward(self, x, cache):
        keys = cache.layers[0]["keys"]
        return x[:, :cache.width()] + keys if keys.sum() > 0 else x
def made(children):
    cache = Cache()
    cache.layers = [{"keys": children[0]}]
    return cache
"""


@pytest.mark.long
def test_an_input_of_a_class_that_the_part_registers_is_taken_apart_in_a_script_too(
    runner: CandidateRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache: outside of an attempt it is no container, and its dynamic sizes would be those of other inputs."""
    from exportdoctor.core.records.probe import Probe
    from exportdoctor.targets.built import BuiltPart
    from exportdoctor.torch_internals.pytree_registry import register_node, temporary_registrations
    from exportdoctor.worker.capture.session import capture_root_only
    from exportdoctor.worker.repro.draft_variants import write_drafts
    from exportdoctor.worker.repro.watched_run import run_watched

    (tmp_path / "of_caches.py").write_text(CACHED)
    monkeypatch.syspath_prepend(tmp_path)
    of_caches = importlib.import_module("of_caches")
    dynamic = {0: torch.export.Dim.DYNAMIC}
    part = capture_root_only(
        BuiltPart(
            name="all",
            title="all",
            module=of_caches.Model(),
            prefix="",
            args=(torch.ones(2, 5), of_caches.made([torch.ones(2, 3)])),
            kwargs={},
            dynamic_shapes=(dynamic, [dynamic]),
            prepare=lambda: temporary_registrations(
                lambda: register_node(of_caches.Cache, lambda cache: [cache.layers[0]["keys"]], of_caches.made)
            ),
        )
    )
    probe = Probe(part="all", fqn="")
    outcome, record = run_watched(part, probe, exporting=True)
    wanted = name_free_signature(outcome, exporter="export")
    assert wanted is not None
    assert wanted.kind == FailureKind.DATA_DEPENDENT_GUARD
    judge = CandidateJudge(runner=runner, wanted=wanted, exporter="export", log=VerdictLog(None))
    fitting = {
        draft.what for draft in write_drafts(part, probe, outcome, record, []) if judge(draft.source) is Verdict.YES
    }
    assert {"what ran", "the torc"} <= {what[:8] for what in fitting}, "of the source, and of torch's functions"


KEYWORDS = """
import torch

class Model(torch.nn.Module):
    def forward(self, x, **kwargs):
        return self.scaled(x, **kwargs)

    def scaled(self, x, factor=2, mask=None):
        if x.sum() > factor:
            x = x * factor
        return x if mask is None else x + mask
"""


@pytest.mark.parametrize("code", ["x[1:n] = torch.ones((n, 4))", "torch.add(x, y)", "x.y = z", "(x, y)[0]"])
def test_the_last_line_of_a_draft_returns_what_is_an_expression(code: str) -> None:
    ast.parse(f"def f():\n    {as_ending(code)}")
    assert as_ending(code).startswith("return ") == ("=" not in code)


ANSWERED = """
import functools
import torch

class Version:
    def __init__(self, text):
        self.parts = [int(part) for part in text.split(".")]

@functools.lru_cache
def is_new(text):
    return Version(text).parts > [1]

IS_NEW = is_new("2.0")

class Model(torch.nn.Module):
    def forward(self, x):
        if is_new("2.0"):
            x = x + 1
        return x if x.sum() > 0 else -x
"""


@pytest.mark.long
def test_where_the_process_of_the_candidates_has_ended_it_is_said_how() -> None:
    with CandidateRunner() as runner, pytest.raises(WorkerLost, match=r"has ended \(SIGKILL\)"):
        runner.run("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)")


def source_drafts(folder: Path, source: str, **given: Any) -> dict[str, tuple[str, Verdict]]:
    """The drafts of the file's code, by what they are made of, for the failure of its `Model`, with their verdicts."""
    from exportdoctor.core.records.probe import Probe
    from exportdoctor.targets.built import BuiltPart
    from exportdoctor.worker.capture.session import capture_root_only
    from exportdoctor.worker.repro.draft_variants import write_drafts
    from exportdoctor.worker.repro.watched_run import run_watched

    (folder / "of_source.py").write_text(source)
    sys.modules.pop("of_source", None)
    built = BuiltPart(
        **{
            "name": "all",
            "title": "all",
            "module": importlib.import_module("of_source").Model(),
            "prefix": "",
            "args": (torch.ones(3),),
            "kwargs": {},
            "dynamic_shapes": None,
            **given,
        }
    )
    part, probe = capture_root_only(built), Probe(part="all", fqn="")
    outcome, record = run_watched(part, probe, exporting=True)
    wanted = name_free_signature(outcome, exporter="export")
    assert wanted is not None
    with CandidateRunner(width=1, memory_mb=2500) as runner:
        judge = CandidateJudge(runner=runner, wanted=wanted, exporter="export", log=VerdictLog(None))
        drafts = list(write_drafts(part, probe, outcome, record, []))
        return {draft.what: (draft.source, judge(draft.source)) for draft in drafts}


@pytest.mark.long
def test_dynamic_sizes_of_keywords_are_by_name_where_a_script_spells_them_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    sizes = {0: torch.export.Dim.DYNAMIC}
    drafts = source_drafts(
        tmp_path,
        KEYWORDS,
        kwargs={"factor": 3, "mask": torch.ones(3)},
        dynamic_shapes={"x": sizes, "kwargs": {"factor": None, "mask": sizes}},
    )
    source, verdict = next(found for what, found in drafts.items() if what.startswith("what ran"))
    assert verdict is Verdict.YES, source


BY_SUBCLASSES = """
import torch

_KNOWN = {}

def backend_of(value):
    if type(value) in _KNOWN:
        return _KNOWN[type(value)]
    for kind in Backend.__subclasses__():
        if kind.takes(value):
            _KNOWN[type(value)] = kind()
            return _KNOWN[type(value)]
    raise RuntimeError(f"unknown: {type(value)}")

class Backend:
    pass

class OfTorch(Backend):
    def __init__(self):
        from . import of_nobody

    @staticmethod
    def takes(value):
        return isinstance(value, torch.Tensor)

    def twice(self, value):
        return value * 2

class OfLists(Backend):
    @staticmethod
    def takes(value):
        return isinstance(value, list)

class Model(torch.nn.Module):
    def forward(self, x):
        x = backend_of(x).twice(x)
        return x if x.sum() > 0 else -x
"""


@pytest.mark.long
def test_classes_that_code_finds_as_subclasses_are_carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: einops asks each subclass of its backends, which it does not name, and imports relatively."""
    package = tmp_path / "of_backends"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "of_nobody.py").write_text("")
    (package / "backends.py").write_text(BY_SUBCLASSES)
    monkeypatch.syspath_prepend(tmp_path)
    source, verdict = source_drafts(tmp_path, "from of_backends.backends import Model\n")["everything"]
    assert verdict is Verdict.YES, source
    assert "of_nobody" not in source


@pytest.mark.long
def test_code_whose_result_was_kept_in_a_cache_can_run_in_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source, verdict = source_drafts(tmp_path, ANSWERED)["what runs in eager"]
    assert verdict is Verdict.YES, source
    assert "def __init__" in source


WRAPPED = """import functools
import torch

class Version:
    def __init__(self, text): self.parts = text.split(".")

def is_new(): return Version(torch.__version__).parts[0] > "1"

KERNELS = {"quick": "new" if is_new() else "old", "exact": "slow"}

def plain_or_tuple(method):
    @functools.wraps(method)
    def wrapper(self, *args, **kwargs):
        kwargs.pop("as_dict", None)
        return method(self, *args, **kwargs)
    return wrapper

class Inner(torch.nn.Module):
    @plain_or_tuple
    def forward(self, x, **kwargs):
        y = x * 2 if KERNELS["quick"] == "new" else x
        return y if y.sum() > 0 else -y

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    @plain_or_tuple
    def encode(self, x, **kwargs):
        return self.inner(x, as_dict=True, **kwargs)

    def forward(self, x):
        return self.encode(x, as_dict=True)
"""


@pytest.mark.long
def test_keywords_that_a_decorator_takes_and_what_ran_at_import_do_not_break_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`got multiple values for keyword argument 'return_dict'`, and `Version() takes no arguments`, ended drafts of a
    model of transformers."""
    monkeypatch.syspath_prepend(tmp_path)
    drafts = source_drafts(tmp_path, WRAPPED)
    source, verdict = next(found for what, found in drafts.items() if what.startswith("what ran"))
    assert verdict is Verdict.YES, source
    assert "class Version" not in source


FIRST = "if x.sum() > 0:\n            raise ValueError('negative')"
SECOND = "return torch.zeros(int(x.abs().sum().item()))"
TWO = "import torch\nclass M(torch.nn.Module):\n    def forward(self, x):\n        {}\n        {}\n{}"
CALL = "torch.export.export(M(), (torch.ones(3),), strict=False)"


@pytest.mark.parametrize(
    "first",
    [
        FIRST,
        "n = int(x.max())",
        "assert x.min() > 0",
        "while x.sum() > 9: x = x - 1",
        "for _ in range(int(x.max())): x = x + 1",
        "y = x.reshape(int((x > 0).sum()), 1)",
        "y = [x[:n].reshape(int((x[:n] > 0).sum()), 1) for n in (2, 3)]",
    ],
)
def test_a_failure_behind_another_one_gets_a_script_without_the_first_cause(
    first: str, runner: CandidateRunner
) -> None:
    judge = judge_of(runner, TWO.format("pass", SECOND, CALL))
    both = TWO.format(first, SECOND, CALL)
    assert judge(both) is Verdict.UNKNOWN
    found = without_other_causes(judge, both)
    assert found is not None
    assert judge(found) is Verdict.YES


@pytest.mark.parametrize("output", ["return Out(x=y)", "found = Out(y)\n        return found"])
def test_an_output_of_a_class_of_its_own_does_not_hide_what_fails_when_the_forward_is_over(
    output: str, runner: CandidateRunner
) -> None:
    call = CALL.replace("strict", "dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), strict")
    judge = judge_of(runner, TWO.format("y = x + torch.ones(3)", "return y", call))
    source = TWO.format("y = x + torch.ones(3)", output, call)
    source = source.replace("class M", "class Out:\n    def __init__(self, x):\n        self.x = x\nclass M")
    assert judge(source) is Verdict.UNKNOWN
    found = without_other_causes(judge, source)
    assert found is not None
    assert judge(found) is Verdict.YES


def test_causes_are_taken_out_of_drafts_that_fail_in_another_way_only(runner: CandidateRunner) -> None:
    judge = judge_of(runner, TWO.format("pass", SECOND, CALL))
    assert fails_earlier(judge, TWO.format(FIRST, SECOND, CALL))
    assert not fails_earlier(judge, TWO.format("pass", SECOND, CALL))
    assert not fails_earlier(judge, "no script")


STRICT = """
import torch
class M(torch.nn.Module):
    def forward(self, x):
        q, n = torch.ones(1, 1, 3, 3), x.nonzero().shape[0]
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, torch.ones(1, 1, n, n))
torch.export.export(M(), (torch.ones(3),), strict=True)
"""


@pytest.mark.long
def test_a_candidate_of_strict_mode_knows_what_asked_for_a_number_and_what_made_it(runner: CandidateRunner) -> None:
    wanted = judge_of(runner, STRICT, exporter="export-strict").wanted
    assert (wanted.asked_by, wanted.born_by) == ("scaled_dot_product_attention", ("nonzero",))
    assert verify(STRICT, wanted).verified


def test_only_the_calls_of_the_last_forward_are_in_a_draft(tmp_path: Path) -> None:
    from exportdoctor.worker.repro.call_log import CallLog, read_calls

    path, module = tmp_path / "facts", torch.nn.ReLU()
    with open(path, "wb") as file:
        log = CallLog(file.fileno())
        module.register_forward_pre_hook(log.enter, with_kwargs=True)
        module.register_forward_hook(log.leave)
        for _ in range(2):
            module(torch.ones(3))
    assert [fact[0] for fact in read_calls(str(path))].count("input") == 1


def test_nothing_that_runs_behind_an_export_that_raised_is_in_a_draft(tmp_path: Path) -> None:
    """torch calls no hook of a forward that raises while it is exported."""
    from exportdoctor.worker.repro.call_log import CallLog, read_calls

    class Raises(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin() if x.sum() > 0 else x

    path, module = tmp_path / "facts", Raises()
    with open(path, "wb") as file:
        log = CallLog(file.fileno())
        module.register_forward_pre_hook(log.enter, with_kwargs=True)
        module.register_forward_hook(log.leave, always_call=True)
        with pytest.raises(RuntimeError):
            torch.export.export(module, (torch.ones(3),))
        torch.ones(3).cos()
        log.leave()
    facts = read_calls(str(path))
    assert facts[-1][0] == "failed"
    assert "cos" not in str(facts)


@pytest.mark.night
def test_a_script_that_never_fails_as_wanted_has_no_version_without_other_causes(runner: CandidateRunner) -> None:
    judge = judge_of(runner, TWO.format("pass", SECOND, CALL))
    assert without_other_causes(judge, TWO.format("pass", "return x if x.sum() > 0 else -x", CALL)) is None


UNTRANSLATED = TWO.format(
    "y = x + 1", "return torch.linalg.eigvals(y).real", "torch.onnx.export(M(), (torch.ones(2, 2),), dynamo=True)"
)


@pytest.mark.night
def test_a_failed_translation_is_known_by_its_cause_in_a_candidate_and_in_a_fresh_process(
    runner: CandidateRunner,
) -> None:
    judge = judge_of(runner, UNTRANSLATED)
    assert judge.wanted.kind is FailureKind.TRANSLATE
    assert judge.wanted.exceptions[0].endswith("DispatchError")
    assert verify(UNTRANSLATED, judge.wanted).verified
    assert judge(UNTRANSLATED.replace("eigvals(y).real", "matrix_exp(y)")) is not Verdict.YES


@pytest.mark.parametrize(
    ("module", "code"),
    [
        (torch.nn.LSTM(3, 4, 2, batch_first=True), "torch.nn.LSTM(3, 4, num_layers=2, batch_first=True)"),
        (torch.nn.GRU(3, 4, bias=False), "torch.nn.GRU(3, 4, bias=False)"),
        (torch.nn.Linear(2, 3, bias=False), "torch.nn.Linear(2, 3, bias=False)"),
        (torch.nn.Tanh(), "torch.nn.Tanh()"),
    ],
)
def test_a_module_of_torch_is_made_again_with_its_arguments(module: torch.nn.Module, code: str) -> None:
    assert torch_module_code(module) == code


CALLED = {
    "a number that Python reads": "return x[: int(x.abs().max())]",
    "a branch": "if x.sum() > 0:\n        return x\n    return -x",
    "a branch under a mode": "with torch.no_grad():\n        y = x.sin()\n        return y if y.sum() > 0 else -y",
    "a size that is compared": "n = x.nonzero().shape[0]\n    if n == 3:\n        return x\n    return -x",
    "what was written in place": (
        "y = torch.zeros(3)\n    y[0] = x[0]\n    y.add_(1)\n    y -= x\n    return torch.zeros(int(y.sum()))"
    ),
    "a number in a list of lists": "for a, _ in x[:2].long().view(1, 2).tolist():\n        return x[: int(a)]",
    "a number of a list that is compared": "n = x.long().tolist()[0]\n    return x if n > 1 and x.dim() else -x",
    "a number of rows": "return x[: len(x.nonzero())]",
    "many calls before": (
        "y = x\n    for _ in range(30):\n        y = torch.relu(y.sin() + x)\n    return y if y.sum() > 0 else -y"
    ),
    "a list of numbers": "y = x.nonzero()[1:, 0]\n    return y.tolist()",
    "sizes without a value": (
        "q, n = x.expand(1, 1, 3, 3), x.nonzero().shape[0]\n"
        "    return torch.nn.functional.scaled_dot_product_attention(q, q, q, torch.ones(1, 1, n, n))"
    ),
}


def fitting_draft(
    body: str,
    runner: CandidateRunner,
    dynamic_shapes: Any = None,
    inputs: tuple[torch.Tensor, ...] = (),
    before: str = "",
    **asked: Any,
) -> str:
    """The first script of the functions called by that `forward`, made without a file, that fails as it does."""
    from exportdoctor.core.records.probe import Probe
    from exportdoctor.targets.built import BuiltPart
    from exportdoctor.worker.attempt.export_attempt import attempt
    from exportdoctor.worker.capture.session import capture_root_only
    from exportdoctor.worker.repro.torch_calls import write_call_drafts

    text, names = (
        f"{before}def forward(self, {'x, n' if inputs else 'x'}):\n    {body}\n",
        {"torch": torch, "F": torch.nn.functional, "__name__": "template"},
    )
    linecache.cache["template.py"] = (len(text), None, text.splitlines(keepends=True), "template.py")
    exec(compile(text, "template.py", "exec"), names)
    made = type("Made", (torch.nn.Module,), {"forward": names["forward"]})()
    made.child = torch.nn.Linear(3, 3)
    given = inputs or (torch.ones(3),)
    built = BuiltPart(
        name="all", title="all", module=made, prefix="", args=given, kwargs={}, dynamic_shapes=dynamic_shapes
    )
    part, probe = capture_root_only(built), Probe(part="all", fqn="", **asked)
    wanted = name_free_signature(outcome := attempt(part, probe), exporter=probe.exporter)
    assert wanted is not None
    judge = CandidateJudge(runner=runner, wanted=wanted, exporter=probe.exporter, log=VerdictLog(None))
    drafts = [draft.source for draft in write_call_drafts(part, probe, outcome)]
    return next((source for source in drafts if judge(source) is Verdict.YES), f"none of {drafts}")


@pytest.mark.parametrize("body", CALLED.values(), ids=list(CALLED))
def test_code_that_was_made_by_a_template_has_a_script_of_the_torch_functions_that_it_called(
    body: str, runner: CandidateRunner
) -> None:
    assert code_lines(draft := fitting_draft(body, runner)) in range(5, 13), draft


PADDED = """x = F.conv1d(F.pad(x, (n, n)), torch.ones(4, 4, 3), stride=2)
    rows = F.pad(torch.relu(x), (n + 1, n)).transpose(1, 2)
    return x * 2 if rows.shape[1] > 1 else x"""


def test_a_question_about_a_size_whose_symbols_have_no_name_is_asked_of_the_size(runner: CandidateRunner) -> None:
    draft = fitting_draft(PADDED, runner, inputs=(torch.ones(2, 4, 40), torch.tensor(3)))
    assert code_lines(draft) in range(5, 14), draft


TABLE = """
import torch
class M(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.most = 16
        self.register_buffer("table", torch.ones(16))
    def forward(self, x):
        {body}
torch.export.export(M(), (torch.ones(2, 5),), dynamic_shapes={{"x": {{1: torch.export.Dim("n", max=64)}}}})
"""
RECURRENT = """
import torch
torch.export.export({module}, (torch.ones({sizes}),), dynamic_shapes={{"input": {{1: torch.export.Dim.DYNAMIC}}}})
"""
SELECTED = """
import torch
class M(torch.nn.Module):
    def forward(self, x):
        if {condition}:
            return x
        return -x
torch.export.export(M(), (torch.ones(3),))
"""
FIXING = {
    "if x.shape[0] == 3:": "y = self.child(torch.ones(3))\n    if x.shape[0] == 3:\n        return y\n    return -y",
    "range(x.shape[0] - 1)": "rows = [x[n] for n in range(x.shape[0] - 1)]\n    return torch.stack(rows)",
    "[0][:x.shape[0] - 1]": "return self.child(torch.ones(3)) * (0.0, 1.0, 2.0)[x.shape[0] - 1]",
    "torch.ones((3))": "y = x.sin()\n    return y + torch.ones(3)",
}


@pytest.mark.parametrize("named", [False, True], ids=["hint", "name"])
@pytest.mark.parametrize("kept", FIXING)
def test_a_fixed_size_has_one_that_ends_with_what_fixed_it(kept: str, named: bool, runner: CandidateRunner) -> None:
    rows = torch.export.Dim("rows") if named else torch.export.Dim.DYNAMIC
    draft = fitting_draft(FIXING[kept], runner, dynamic_shapes=({0: rows},))
    assert code_lines(draft) in range(5, 10), draft
    assert kept.replace("x.", "x0.") in draft or kept.startswith("torch")
    assert "linear" not in draft


OTHER_CAUSES = {
    "a slice of a short table for a branch on a size": (
        TABLE.format(body="if x.shape[1] > self.most:\n            return x * 2\n        return x"),
        TABLE.format(body="return self.table[:x.shape[1]]"),
    ),
    "a list repeated for a loop": (
        TABLE.format(body="return [x for _ in range(x.shape[1])]"),
        TABLE.format(body="return [x] * x.shape[1]"),
    ),
    "the features for the sequence of a recurrence": (
        RECURRENT.format(module="torch.nn.GRU(2, 1, batch_first=True)", sizes="1, 5, 2"),
        RECURRENT.format(module="torch.nn.GRU(2, 1)", sizes="1, 2"),
    ),
    "a linear layer for a recurrence": (
        RECURRENT.format(module="torch.nn.GRU(2, 1, batch_first=True)", sizes="1, 5, 2"),
        RECURRENT.format(module="torch.nn.Linear(2, 1)", sizes="1, 2"),
    ),
    "a value for the size of what a mask selects": (
        SELECTED.format(condition="x[x != 0].shape[0] == 0"),
        SELECTED.format(condition="x[0] == 0"),
    ),
    "a number that is read for the size of what a mask selects": (
        SELECTED.format(condition="x[x != 0].shape[0] == 0"),
        SELECTED.format(condition="x.long()[0].item() == 0"),
    ),
    "a number that an operator reads for one that it is given": (
        SELECTED.format(condition="torch.nn.functional.one_hot(x.long(), x.long().max() + 1) is None"),
        SELECTED.format(condition="torch.nn.functional.one_hot(x.long()) is None"),
    ),
}


@pytest.mark.parametrize(("script", "other"), OTHER_CAUSES.values(), ids=list(OTHER_CAUSES))
def test_an_equal_message_with_another_cause_is_another_failure(
    script: str, other: str, runner: CandidateRunner
) -> None:
    judge = judge_of(runner, script)
    assert judge(script) is Verdict.YES
    seen = name_free_signature(runner.run(other), exporter="export")
    assert seen is not None
    assert seen.raised == judge.wanted.raised
    assert judge(other) is Verdict.UNKNOWN


def test_what_a_shim_gives_by_name_is_an_input_of_the_script_too(runner: CandidateRunner) -> None:
    body = "rows = n.tolist()\n    return x.sin()[rows[0]:rows[1]]"
    rows = {"x": {0: torch.export.Dim("rows")}, "n": None}
    given = (torch.ones(3), torch.tensor([1, 3]))
    draft = fitting_draft(body, runner, rows, inputs=given, to="run", shims=("frozen-values",))
    assert "def forward(self, x0):" in draft, draft
    assert "[1:3]" in draft


def test_sizes_that_a_list_gave_are_read_by_tolist_in_a_script_too(runner: CandidateRunner) -> None:
    body = "rows = [part for part in x.split(n.tolist(), 2)]\n    return F.scaled_dot_product_attention(*rows[:1] * 3)"
    draft = fitting_draft(body, runner, inputs=(torch.ones(1, 2, 5, 4), torch.tensor([2, 3])), to="run")
    assert code_lines(draft) in range(5, 12), draft
    assert ".tolist()[0]" in draft


def test_an_input_that_a_shim_makes_is_one_of_the_script(runner: CandidateRunner) -> None:
    before = "def table(n):\n    return torch.tensor([place for size in n.tolist() for place in range(size)])\n"
    body = "y = x + table(n)\n    return y if y.sum() > 0 else -y"
    given = (torch.ones(5), torch.tensor([2, 3]))
    draft = fitting_draft(body, runner, inputs=given, before=before, to="run", shims=("hoist:table",))
    assert "def forward(self, x0, x2):" in draft, draft
    assert "torch.tensor([0, 1, 0, 1, 2])" in draft


def test_a_strict_export_has_one_of_the_calls_on_the_line_where_dynamo_ended(runner: CandidateRunner) -> None:
    body = "y = x.sin()\n    z = (y + 1).sum()\n    if z > 0:\n        return y\n    return -y"
    draft = fitting_draft(body, runner, exporter="export-strict")
    assert code_lines(draft) in range(5, 12), draft
    assert "strict=True" in draft
    assert "linear" not in draft


def test_code_whose_children_are_replaced_has_one_with_new_tensors_in_place_of_what_they_return(
    runner: CandidateRunner,
) -> None:
    draft = fitting_draft("y = self.child(x)\n    return y if y.sum() > 0 else -y", runner, opaque=True)
    assert code_lines(draft) in range(5, 12), draft
    assert "exportdoctor" not in draft


def test_what_the_torchscript_exporter_cannot_translate_has_one_too(runner: CandidateRunner) -> None:
    body = "q = self.child(x).view(1, 1, 1, 3)\n    return F.scaled_dot_product_attention(q, q, q, enable_gqa=True)"
    draft = fitting_draft(body, runner, exporter="torchscript")
    assert code_lines(draft) in range(5, 12), draft
    assert "enable_gqa=True" in draft


@pytest.mark.night
def test_a_failed_translation_has_one_of_the_calls_on_its_line(runner: CandidateRunner) -> None:
    draft = fitting_draft("y = x.sin().expand(3, 3) + 1\n    return torch.linalg.eigvals(y).real", runner, to="onnx")
    assert code_lines(draft) in range(5, 12), draft
    assert "torch.onnx.export" in draft


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
def test_a_sparse_input_keeps_its_layout(layout: str) -> None:
    blocks = (2, 2) if layout.startswith("bs") else None
    sparse = torch.ones(4, 4, dtype=torch.float64).to_sparse(
        layout=getattr(torch, f"sparse_{layout}"), blocksize=blocks
    )
    made = eval(tensor_code(sparse))
    assert (made.layout, made.dtype, made.shape) == (sparse.layout, sparse.dtype, sparse.shape)
    assert (
        made._values().shape == sparse._values().shape
        if layout == "coo"
        else made.values().shape == sparse.values().shape
    )


@pytest.mark.long
def test_a_script_defines_the_operators_that_other_code_registers() -> None:
    """There was none for a model that names such an operator by torch.ops: `'_OpNamespace' object has no attribute`."""
    make: Any = torch.library.Library
    library = make("of_other_code", "DEF")
    library.define("twice(Tensor x, *, int[] pads=[1, 2], str mode='a') -> (Tensor, Tensor[])")
    library.define("twice.both(Tensor x, Tensor y) -> Tensor")
    forward = """
class M(torch.nn.Module):
    def forward(self, x):
        return torch.ops.of_other_code.twice(torch.ops.aten.relu(x), mode="b")[0]
torch.export.export(M(), (torch.ones(3),))
"""
    script = declare_operators("import torch\n" + forward)
    assert [line.partition(", ")[0] for line in script.splitlines() if "define" in line] == [
        "torch.library.define('of_other_code::twice'",
        "torch.library.define('of_other_code::twice.both'",
    ]
    other = declare_operators("import torch, msgspec\nfrom torch import nn\n" + forward)
    assert "if not hasattr(torch.ops.of_other_code, 'twice'):\n    torch.library.define(" in other
    for source in (script, other):
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
        assert "UnsupportedOperatorException: of_other_code.twice.default" in done.stderr


def test_a_script_with_operators_of_torch_or_of_its_own_stays() -> None:
    body = '\n@torch.library.custom_op("own::one", mutates_args=())\ndef one(x: torch.Tensor) -> torch.Tensor: ...\n'
    for source in ("import torch\ntorch.ops.aten.add(1, 2)\n", f"import torch{body}torch.ops.own.one(torch.ones(2))\n"):
        assert declare_operators(source) == source
