"""Real scans: what is cured, with which shims, and what is said of it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from exportdoctor.cli.main import run as command_line
from exportdoctor.core.errors import UsageError
from exportdoctor.core.records.target import TargetRef
from exportdoctor.core.run.report import FAILING
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.engine.cure.try_shims import try_shims
from exportdoctor.report import wording
from exportdoctor.report.wording.findings import next_step
from exportdoctor.shims import ExportCall, apply_shims, export_program, find
from exportdoctor.store.runs import read_run
from exportdoctor.worker.translate.onnx_session import OnnxSession
from scanning import scan_file

FRAMES = '''
import torch
from torch import nn
from torch.export import Dim

class Frames(nn.Module):
    """Overlapping frames as a view, by the strides of its input."""

    def forward(self, x):
        count, (row, step) = (x.shape[1] - 4) // 2 + 1, x.stride()
        return x.as_strided((x.shape[0], count, 4), (row, step * 2, step)) * 2

def build():
    return Frames().eval(), (torch.randn(3, 16),), {}, {"x": {0: Dim("batch"), 1: Dim("time", min=4)}}
'''


@pytest.mark.long
@pytest.mark.slow
def test_a_cure_that_keeps_strides_is_offered_with_its_condition(tmp_path: Path) -> None:
    (tmp_path / "frames.py").write_text(FRAMES)
    report = scan_file(tmp_path / "frames.py", cure=True)
    (part,) = report.parts
    assert part.verdict == "cured"
    told = " ".join(wording.prescription(part, report))
    assert "Valid only if the inputs have the memory layout of the example's" in told
    assert "under a condition" in wording.cure(part)
    assert part.prescription is not None
    (tried,) = try_shims(TargetRef(ref=f"{tmp_path / 'frames.py'}:build"), ScanOptions(), part.prescription.shims)
    assert (tried.result, tried.cured, tried.soundness) == ("cured", True, part.prescription.soundness)
    assert tried.condition.startswith("valid only if the inputs have the memory layout of the example's")
    assert tried.after == "exports, but is wrong on inputs in another memory layout"


STRIDED = '''
import torch
from torch import nn
from torch.export import Dim

class Strided(nn.Module):
    """Lengths after a convolution: rows of zeros beyond the longest are cut."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3, stride=2, padding=1)

    def forward(self, x, lengths):
        rows = self.conv(x).transpose(1, 2)
        lengths = (lengths - 1) // 2 + 1
        keep = int(lengths.max())
        assert type(keep) is not float  # int-as-item does not apply
        mask = torch.arange(keep)[None] < lengths[:, None]
        return rows[:, :keep] * mask[..., None]

def build():
    torch.manual_seed(0)
    dims = {"x": {0: Dim("batch"), 2: Dim("time", min=4)}, "lengths": {0: Dim("batch")}}
    return Strided().eval(), (torch.randn(2, 3, 17), torch.tensor([17, 9])), {}, dims
'''


@pytest.mark.long
@pytest.mark.slow
def test_a_program_that_refuses_one_row_fixes_no_size(tmp_path: Path) -> None:
    (tmp_path / "strided.py").write_text(STRIDED)
    (part,) = scan_file(tmp_path / "strided.py", cure=True).parts
    assert part.prescription is not None
    assert part.prescription.proof is not None
    assert part.prescription.proof.refused
    assert part.prescription.soundness == "precondition"
    assert "under a condition" in wording.cure(part)


FIXTURES = Path(__file__).parents[2] / "fixtures"

BIASED = '''
import torch
from torch import nn

class Attention(nn.Module):
    """Its mask is a parameter, as relative positions are."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(8, 24)
        self.bias = nn.Parameter(torch.randn(2, 5, 5))

    def forward(self, rows):
        batch, length, width = rows.shape
        query, key, value = (one.view(batch, length, 2, 4).transpose(1, 2) for one in self.mix(rows).chunk(3, -1))
        mask = self.bias[None].expand(batch, -1, -1, -1)
        found = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return found.transpose(1, 2).contiguous().view(batch, length, width)

class Clamped(nn.Module):
    """It has another failure, before that one."""

    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, rows):
        if rows.abs().max() > 100:
            rows = rows.clamp(-100, 100)
        return self.attention(rows)

def build():
    return Attention().eval(), (torch.randn(2, 5, 8),)

def build_clamped():
    return Clamped().eval(), (torch.randn(2, 5, 8),)
'''


@pytest.mark.long
@pytest.mark.slow
def test_what_exports_and_does_not_translate_is_cured_and_its_file_computes_the_same(tmp_path: Path) -> None:
    (tmp_path / "biased.py").write_text(BIASED)
    report = scan_file(tmp_path / "biased.py", cure=True, to="onnx")
    (part,), (finding,) = report.parts, report.findings
    assert (finding.stage, str(finding.kind)) == ("translate", "translate")
    assert part.verdict == "cured"
    assert part.prescription is not None
    assert part.prescription.proof is not None
    assert part.prescription.proof.inputs_tried > 2
    assert wording.cure(part).startswith("translates to ONNX with 1 shim (")
    assert wording.export_command(part, report).endswith("--to onnx -o model.onnx")
    code = wording.prescription_code(part)
    assert code.startswith("import torch\n")
    assert "torch.onnx.export(program, dynamo=True)" in code
    target, options = TargetRef(ref=f"{tmp_path / 'biased.py'}:build"), ScanOptions(to="onnx")
    tried = [next(try_shims(target, options, shims)) for shims in (("no-grad",), part.prescription.shims)]
    assert [(one.result, one.cured) for one in tried] == [("same", False), ("cured", True)]
    module, args = runpy.run_path(str(tmp_path / "biased.py"))["build"]()
    with pytest.raises(Exception, match="Cannot view"):
        torch.onnx.export(torch.export.export(module, args, strict=False), dynamo=True, verbose=False)
    shims = [find(name) for name in part.prescription.shims]
    with apply_shims(shims, ExportCall(module=module, args=args)) as given:
        made = torch.onnx.export(export_program(given), dynamo=True, verbose=False)
        assert made is not None
        made.save(str(tmp_path / "biased.onnx"))
    (found,) = OnnxSession(tmp_path / "biased.onnx").run([args[0]])
    with torch.no_grad():
        torch.testing.assert_close(found, module(*args), rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.slow
def test_what_cures_the_export_is_made_to_translate_too(tmp_path: Path) -> None:
    (tmp_path / "biased.py").write_text(BIASED)
    report = scan_file(tmp_path / "biased.py", factory="build_clamped", cure=True, to="onnx")
    (part,) = report.parts
    found = part.prescription
    assert found is not None
    assert found.shims[0] == "branch-as-where"
    assert len(found.shims) == 2
    assert found.stages["translate"] == "pass"
    assert wording.cure(part) == "exports and translates to ONNX with 2 shims (under a condition)"
    assert wording.export_command(part, report).endswith("--to onnx -o model.onnx")
    assert [(one.stage, one.modules) for one in report.findings] == [("export", ("",)), ("translate", ("attention",))]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shims", "soundness"),
    [
        ("unregistered_pytree_out", ("register-dataclass-pytree",), "exact"),
        ("constraint_between_inputs", ("suggested-relations",), "precondition"),
        ("tolist_loop", ("hoist",), "signature"),
        ("specialised_dynamic_dim", ("loops-as-scan",), "precondition"),
    ],
)
def test_a_fixture_is_cured_and_its_numbers_agree(name: str, shims: tuple[str, ...], soundness: str) -> None:
    report = scan_file(FIXTURES / f"{name}.py", cure=True)
    found = report.parts[0].prescription
    assert report.parts[0].verdict == "cured"
    assert found is not None
    assert (found.shims, found.soundness) == (shims, soundness)
    assert found.proof is not None
    assert found.proof.inputs_tried >= 2
    assert found.proof.max_abs_diff is not None
    assert found.proof.tolerance is not None
    assert found.proof.max_abs_diff <= found.proof.tolerance
    assert "cured" in [tried.result for tried in report.findings[0].shims_tried]


@pytest.mark.long
@pytest.mark.slow
def test_a_failure_that_the_part_never_meets_is_said_to_be_a_submodules_alone(tmp_path: Path) -> None:
    (tmp_path / "boxed.py").write_text(
        "import torch\n\n\n"
        "class Box:\n    def __init__(self, value):\n        self.value = value\n\n\n"
        "class Gate(torch.nn.Module):\n    def forward(self, x):\n        return Box(x * 2)\n\n\n"
        "class Whole(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.gate, self.up = Gate(), torch.nn.Linear(3, 3)\n\n"
        "    def forward(self, x):\n        if x.sum() > 0:\n            x = x + 1\n"
        "        return self.up(self.gate(x).value)\n\n\n"
        "def build():\n    return Whole().eval(), (torch.ones(2, 3),)\n"
    )
    report = scan_file(tmp_path / "boxed.py", cure=True)
    assert report.parts[0].verdict == "cured"
    alone = {finding.kind: finding.only_alone for finding in report.findings}
    assert alone == {"data_dependent_guard": False, "unregistered_pytree": True}


@pytest.mark.long
@pytest.mark.slow
def test_what_submodules_give_each_other_is_a_failure_of_each_that_gives_it(tmp_path: Path) -> None:
    """Story: a class that a submodule gives, and the one around it, too: that of the outer one was "masked" by the
    inner one's, or "seen only with stand-ins". torch refuses what the exported module gives, whatever is inside."""
    (tmp_path / "kept.py").write_text(
        "import torch\n\n\n"
        "class Kept:\n    def __init__(self, value):\n        self.value = value\n\n\n"
        "class Inner(torch.nn.Module):\n    def forward(self, x):\n        return x * 2, Kept(x)\n\n\n"
        "class Outer(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.inner = Inner()\n\n"
        "    def forward(self, x):\n        y, kept = self.inner(x)\n        return y + 1, kept\n\n\n"
        "class Whole(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.outer = Outer()\n\n"
        "    def forward(self, x):\n        if x.sum() > 0:\n            x = x + 1\n"
        "        return self.outer(x)[0]\n\n\n"
        "class Giving(Whole):\n    def forward(self, x):\n        return self.outer(x)\n\n\n"
        "class Later(Whole):\n    def forward(self, x):\n        if x.sum() > 0:\n            x = x + 1\n"
        "        return self.outer(x)\n\n\n"
        "def later():\n    return Later().eval(), (torch.ones(2, 3),)\n\n\n"
        "def build():\n    return Whole().eval(), (torch.ones(2, 3),)\n\n\n"
        "def giving():\n    return Giving().eval(), (torch.ones(2, 3),)\n"
    )
    report = scan_file(tmp_path / "kept.py")
    status = {one.fqn: one.status for one in report.parts[0].modules}
    assert (status["outer"], status["outer.inner"]) == ("fails_own", "fails_own")
    refused = [one for one in report.findings if one.kind == "unregistered_pytree"]
    assert {name for one in refused for name in one.modules} == {"outer", "outer.inner"}
    assert all(one.behind is None and not one.with_stand_ins and one.only_alone for one in refused)
    assert next_step(refused[0]).startswith("Nothing, for the part. ")
    giving = scan_file(tmp_path / "kept.py", factory="giving")
    assert {one.fqn: one.status for one in giving.parts[0].modules}["outer.inner"] == "fails_own", (
        "where the part gives it, the innermost"
    )
    assert not any(one.only_alone for one in giving.findings)
    later = scan_file(tmp_path / "kept.py", factory="later")
    assert not any(one.only_alone for one in later.findings), "the part meets it once its own failure is mended"


@pytest.mark.long
@pytest.mark.slow
def test_a_failure_that_a_fixed_size_hides_is_not_said_to_be_a_submodules_alone(tmp_path: Path) -> None:
    """The second loop asks for the same size; the part does not meet it because the first made that a constant."""
    (tmp_path / "loops.py").write_text(
        "import torch\n\n\n"
        "class Seeded(torch.nn.Module):\n    def forward(self, x):\n        rows = [x[:, 0]]\n"
        "        for t in range(1, x.shape[1]):\n            rows.append(0.5 * rows[-1] + x[:, t])\n"
        "        return torch.stack(rows, 1)\n\n\n"
        "class Back(torch.nn.Module):\n    def forward(self, x):\n        h = x[:, 0] * 0\n"
        "        for t in reversed(range(x.shape[1])):\n            if t % 2:\n                h = h + x[:, t]\n"
        "        return h\n\n\n"
        "def build():\n    dims = {0: torch.export.Dim('b'), 1: torch.export.Dim('t')}\n"
        "    return torch.nn.Sequential(Seeded(), Back()).eval(), (torch.randn(2, 6, 4),), {}, (dims,)\n"
    )
    report = scan_file(tmp_path / "loops.py", cure=True)
    assert report.parts[0].prescription is not None
    assert report.parts[0].prescription.soundness == "specialised"
    assert {finding.modules: finding.only_alone for finding in report.findings} == {("0",): False, ("1",): False}


@pytest.mark.long
@pytest.mark.slow
def test_one_submodule_can_be_asked_alone(tmp_path: Path) -> None:
    report = scan_file(FIXTURES / "parent_own_code_and_child.py", modules=("encoder.gate",))
    statuses = {module.fqn: module.status for module in report.parts[0].modules}
    assert statuses[""] == "not_asked"
    assert statuses["encoder.gate"] in FAILING
    assert report.parts[0].only == ("encoder.gate",)
    passing = scan_file(FIXTURES / "parent_own_code_and_child.py", modules=("encoder.proj",))
    assert passing.parts[0].verdict == "passes"
    assert not passing.exports, "one submodule says nothing of the whole"
    with pytest.raises(UsageError, match=r"No part calls a submodule .encoder\.gat"):
        scan_file(FIXTURES / "parent_own_code_and_child.py", modules=("encoder.gat",))


@pytest.mark.night
def test_shims_tried_on_their_own_are_noted_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPORTDOCTOR_HOME", str(tmp_path / "home"))
    target, run = f"{FIXTURES / 'unregistered_pytree_out.py'}:build", tmp_path / "run"
    assert command_line(["scan", target, "--no-cure", "-q", "--out", str(run)]) == 1
    assert command_line(["shims", "try", "register-dataclass-pytree", target, "--run", str(run)]) == 0
    (finding,) = read_run(run).state.findings.values()
    assert [(tried.shim, tried.result) for tried in finding.shims_tried] == [("register-dataclass-pytree", "cured")]
    assert command_line(["shims", "try", "no-grad", target, "--run", str(run)]) == 1
    (finding,) = read_run(run).state.findings.values()
    assert [tried.result for tried in finding.shims_tried] == ["cured", "same"]
    again = ["shims", "try", "no-grad", "--run", str(run)]
    assert command_line([*again, f"{FIXTURES / 'boolean_mask.py'}:build"]) == 2, "another target"
    assert command_line([*again, target, "--static"]) == 2, "another way to build it"
    assert command_line(["shims", "try", "+", target]) == 2, "no shim"
    assert read_run(run).state.findings[finding.id] == finding


_LOOP_OVER_A_SIZE = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 4)

    def mask(self, ids, length):
        return torch.tensor(list(range(ids.size(1)))[::-1])[None, :] < length[:, None]

    def forward(self, ids):
        ids = torch.cat((torch.ones_like(ids[:, :1]), ids), dim=1)
        return self.words(ids) * self.mask(ids, (ids != 0).sum(-1))[..., None]


def build():
    return Net(), (torch.randint(1, 10, (2, 5)),), {}, ({1: torch.export.Dim("words")},)
"""


@pytest.mark.long
@pytest.mark.slow
def test_what_loops_over_a_size_and_computes_from_whole_numbers_is_hoisted(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(_LOOP_OVER_A_SIZE)
    found = scan_file(path, cure=True).parts[0].prescription
    assert found is not None
    assert (found.shims, found.soundness) == (("hoist:Net.mask",), "signature")


UNNAMED = """import torch
from torch import nn


class Sum(nn.Module):
    def forward(self, x, *rest, scale):
        for one in rest:
            x = x + one
        if x.sum() > 0:
            return x * scale
        return x


def build():
    args = (torch.ones(3, 4), torch.ones(3, 4), torch.ones(3, 4))
    return {"module": Sum().eval(), "args": args, "kwargs": {"scale": torch.ones(1)}}
"""


@pytest.mark.long
@pytest.mark.slow
def test_the_code_to_paste_takes_inputs_that_have_no_names(tmp_path: Path) -> None:
    """Story: `kwargs=inputs` was printed for a forward with `*rest`, which no keyword reaches."""
    file = tmp_path / "unnamed.py"
    file.write_text(UNNAMED)
    (part,) = scan_file(file, cure=True).parts
    code = wording.prescription_code(part)
    assert part.verdict == "cured"
    built = runpy.run_path(str(file))["build"]()
    names = {"model": built["module"], "args": built["args"], "kwargs": built["kwargs"], "shapes": None}
    names |= {"other_args": built["args"], "other_kwargs": {"scale": torch.full((1,), 2.0)}}
    exec(code, names)
    assert names["outputs"].equal(torch.full((3, 4), 6.0))
