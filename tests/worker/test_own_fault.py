"""A mistake of exportdoctor's own code is told as its own, never as a finding of the target."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from exportdoctor.worker.attempt import export_attempt
from exportdoctor.worker.capture.dynamic_dims import spell_out_kwargs
from exportdoctor.worker.describe import guard_origin
from exportdoctor.worker.describe.own_fault import own_fault
from scanning import scan_file

MODEL = """
import torch
from torch import nn

class Child(nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] > 2 else x

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.child = Child()

    def forward(self, x):
        return self.child(x)

def build():
    return Model().eval(), (torch.randn(4, 3),), {}, {"x": {0: torch.export.Dim("b", min=2)}}
"""


def as_ours(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as if its code stood in a file of exportdoctor's."""
    code = function.__code__.replace(co_filename=guard_origin.__file__)
    return types.FunctionType(code, function.__globals__, closure=function.__closure__)


def raised_by(function: Callable[[], Any]) -> BaseException:
    with pytest.raises(Exception) as caught:
        function()
    return caught.value


def call_hook() -> Any:
    return (7).detach()  # type: ignore[attr-defined]


@pytest.mark.long
@pytest.mark.slow
def test_a_fault_in_a_hook_is_unknown_and_not_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook that looks for the user's line of each guard runs while torch traces."""
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    monkeypatch.setattr(guard_origin, "user_frame_of", as_ours(lambda _: (7).detach()))  # type: ignore[attr-defined]
    report = scan_file(path)
    assert not report.findings
    assert report.parts[0].verdict == "unknown"
    assert not report.exports
    assert {module.status for module in report.parts[0].modules} == {"unknown"}
    assert any("exportdoctor itself failed (AttributeError: 'int' object" in note for note in report.notes)


@pytest.mark.long
@pytest.mark.slow
def test_a_fault_while_a_failure_is_described_is_no_crash_of_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt's process ended with it, and was told to have crashed."""

    def wrong(*args: Any, **kwargs: Any) -> Any:
        return reversed(iter(()))  # type: ignore[call-overload]

    monkeypatch.setattr(export_attempt, "slice_trace", as_ours(wrong))
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    report = scan_file(path)
    assert not report.findings
    assert report.parts[0].verdict == "unknown"
    assert any("exportdoctor itself failed (TypeError: " in note for note in report.notes)


def test_what_our_code_trips_over_is_ours() -> None:
    def broken_assertion() -> None:
        assert not guard_origin

    for function in (call_hook, broken_assertion, lambda: torch.ones(2)[7], lambda: len(3)):  # type: ignore[arg-type]
        assert guard_origin.__file__ in own_fault(raised_by(as_ours(function)))
        assert not own_fault(raised_by(function))


def test_memory_that_is_not_there_is_nobodys_mistake() -> None:
    assert not own_fault(raised_by(as_ours(lambda: bytearray(1 << 62))))


def test_what_our_code_refuses_is_no_fault() -> None:
    def refuse() -> None:
        raise TypeError("ONNX Runtime is not fed with complex numbers here")

    assert not own_fault(raised_by(as_ours(refuse)))


def test_what_a_wrapper_passes_on_is_the_targets() -> None:
    class Own(nn.Module):
        def forward(self, x: Any, **kwargs: Any) -> Any:
            return x.no_such(**kwargs)

    class Torchs(nn.Linear):
        pass

    for module in (Own(), Torchs(3, 4), torch.jit.script(nn.Linear(3, 4))):
        with spell_out_kwargs(module, (torch.ones(2),), {}):
            assert not own_fault(raised_by(lambda m=module: m(torch.ones(2))))  # type: ignore[misc]
    with spell_out_kwargs(Own(), (torch.ones(2),), {"scale": 2}):
        assert not own_fault(raised_by(lambda: Own()(torch.ones(2), scale=2)))


def test_what_the_export_itself_refuses_is_no_fault_of_ours() -> None:
    class Guarded(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.reshape(4, 3)

    export = as_ours(
        lambda: torch.export.export(Guarded(), (torch.ones(4, 3),), dynamic_shapes=({0: torch.export.Dim("b")},))
    )
    assert not own_fault(raised_by(export))


def test_an_endless_recursion_is_the_fault_of_who_calls_himself() -> None:
    """Whoever comes last: the deepest frame may be a hook's."""
    beside = as_ours(lambda depth: len(str(depth)))

    def endless(depth: int) -> int:
        return beside(depth) + endless(depth + 1)

    def ours() -> Any:
        return calls[0]()

    calls = [as_ours(ours)]
    assert not own_fault(raised_by(lambda: endless(0)))
    assert own_fault(raised_by(calls[0]))


SIZES_AS_ARGUMENTS = """
import torch
from torch import nn


class Places(nn.Module):
    def forward(self, shape, more):
        if not all(isinstance(one, torch.Size) for one in (shape, more["nested"][0])):
            raise TypeError(shape)
        return torch.arange(shape[1]) + more["nested"][0][0]


class Chosen(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.places, self.chosen = Places(), Chosen()

    def forward(self, x):
        return self.chosen(x) + self.places(x.size(), more={"nested": [x.shape[1:]]})


def build():
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    return Model(), (torch.randn(3, 5),), {}, {"x": {0: batch, 1: length}}
"""


@pytest.mark.slow
def test_a_size_that_is_an_argument_is_no_failure_of_the_submodule_that_takes_it(tmp_path: Path) -> None:
    """torch has no `dynamic_shapes` for a torch.Size."""
    (tmp_path / "model.py").write_text(SIZES_AS_ARGUMENTS)
    report = scan_file(tmp_path / "model.py", exhaustive=True)
    assert [finding.module for finding in report.findings] == ["chosen"]
    (part,) = report.parts
    assert {module.fqn: module.status for module in part.modules}["places"] == "pass"


ODD_OUTPUT_OF_SIZES = """
import torch
from torch import nn


class Odd:
    def __init__(self, size):
        self.size = size


class Wrapped(nn.Module):
    def forward(self, shape):
        if not isinstance(shape, torch.Size):
            raise TypeError(shape)
        found = Odd(shape[1])
        return found


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wrapped = Wrapped()

    def forward(self, x):
        return x * 2 if x.sum() > 0 else x + self.wrapped(x.size()).size


def build():
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    return Model(), (-torch.ones(3, 5),), {}, {"x": {0: batch, 1: length}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("exporter", ["export", "export-strict"])
def test_what_made_an_output_is_found_with_the_sizes_as_they_were_given(exporter: str, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(ODD_OUTPUT_OF_SIZES)
    report = scan_file(tmp_path / "model.py", exhaustive=True, exporter=exporter)
    (odd,) = (finding for finding in report.findings if finding.module == "wrapped")
    assert odd.value_origin is not None
    assert odd.value_origin.source == "return found"


@pytest.mark.long
@pytest.mark.slow
def test_an_exception_whose_message_raises_is_a_failure_and_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(
        """
import torch

class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")

class Model(torch.nn.Module):
    def forward(self, x):
        if torch.compiler.is_exporting():
            raise Mute
        return x

def build():
    return Model().eval(), (torch.randn(4, 3),)
"""
    )
    (finding,) = scan_file(path).findings  # torch reads the message itself, and raises what that raises
    assert (finding.kind, finding.exception.type, finding.line) == ("python_error", "RuntimeError", 11)
