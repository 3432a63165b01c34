"""Exports of real models: the files run outside of us, and their numbers are eager's at sizes that were not traced."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from exportdoctor.core.errors import TargetError
from exportdoctor.core.protocol.export import ExportedFile, ExportRequest, ExportResult
from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.report.wording import export_lines
from exportdoctor.report.wording.size_domains import sizes_in_words
from exportdoctor.shims import find
from exportdoctor.worker.export.export_server import export_target
from exportdoctor.worker.translate.onnx_program import convert_opset
from exportdoctor.worker.translate.onnx_session import OnnxSession

pytestmark = pytest.mark.slow

TINY, VISION = "Qwen2.5-VL-3B-tiny", ("precompute-grid", "block-diagonal-attention")
ROOT = Path(__file__).parents[2]
FACTORIES = ROOT / "tests" / "support" / "export_targets.py"


def made(folder: Path, ref: str, part: str, **order: Any) -> ExportResult:
    """The answer of the worker, asked in this process: torch's exporters take long to import."""
    options = {name: order.pop(name) for name in ("dtype", "weights", "static") if name in order}
    target = TargetRef(ref=ref, parts=(part,), options=BuildOptions(device="cpu", **options))
    return export_target(
        ExportRequest(target=target, part=part, folder=str(folder), stem=part, **order), lambda what: None
    )


def factory(folder: Path, name: str, **order: Any) -> ExportResult:
    return made(folder, f"{FACTORIES}:{name}", "default", **order)


def sizes(result: ExportResult) -> list[str]:
    assert [row.trouble for row in result.numbers if row.trouble] == []
    assert all(row.holds for row in result.numbers)
    known = [row for row in result.numbers if row.kind in ("example", "sizes") and not row.made_up]
    return list(dict.fromkeys(row.inputs.rpartition(", ")[0] or row.inputs for row in known))


def command(*arguments: str, folder: Path, limit: int = 0) -> subprocess.CompletedProcess[str]:
    code = f"import sys; from exportdoctor.cli.main import run; sys.exit(run({['export', *arguments]!r}))"
    paths = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "EXPORTDOCTOR_HOME": str(folder / "home")}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1"} if limit else {}  # it would be cut off, too
    full = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))) if limit else None
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=folder, preexec_fn=full
    )


OUTSIDE = """
import sys, types
sys.modules["exportdoctor"] = None
import torch, transformers
sys.path.insert(0, sys.argv[1])
import shims_for_qwen2_5_vl_3b_tiny_vision as cure

case = torch.load("case.pt", weights_only=False)
model = transformers.AutoModelForImageTextToText.from_config(transformers.AutoConfig.for_model(**case["config"]))
encoder = model.eval().model.visual
encoder.load_state_dict(case["weights"])
with torch.no_grad():
    program = cure.load("vision.pt2").module()
    for patches, grid in case["inputs"]:
        wanted = encoder(patches, grid).pooler_output
        args, kwargs = cure.convert(encoder, (patches, grid))
        apart = (program(*args, **kwargs).pooler_output - wanted).abs().max()
        assert apart < 1e-5, apart
    again = cure.export(encoder, (), dict(zip(("hidden_states", "grid_thw"), case["inputs"][0])))
    args, kwargs = cure.convert(encoder, case["inputs"][0])
    apart = (again.module()(*args, **kwargs).pooler_output - encoder(*case["inputs"][0]).pooler_output).abs().max()
    assert apart < 1e-5, apart
assert "forward" not in vars(encoder) and type(encoder).forward.__module__.startswith("transformers")
print("agrees")
"""


DATACLASS = """
from dataclasses import dataclass
import torch

class Net(torch.nn.Module):
    @dataclass
    class Out:
        twice: torch.Tensor

    def forward(self, x):
        return self.Out(x * 2)

def build():
    return Net().eval(), (torch.ones(3),)
"""
LOADED = """
import sys
sys.modules["exportdoctor"] = None
import torch
sys.path.insert(0, ".")
import shims_for_net_build_default as cure
found = cure.load("model.pt2").module()(torch.full((3,), 4.0))
print(type(found).__qualname__, found.twice.tolist())
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_program_of_the_users_own_classes_is_loaded_by_its_shims_file(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(DATACLASS)
    done = command(
        *("net.py:build", "--to", "pt2", "--shims", "register-dataclass-pytree", "-o", "model.pt2"), folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    outside = subprocess.run([sys.executable, "-I", "-c", LOADED], capture_output=True, text=True, cwd=tmp_path)
    assert outside.stdout.strip() == "Net.Out [8.0, 8.0, 8.0]", outside.stderr[-2000:]


WITHOUT_KEYS = """
import torch
from torch.utils._pytree import register_pytree_node

class Pair:
    def __init__(self, left, right):
        self.left, self.right = left, right

def taken_apart(pair):
    return [pair.left, pair.right], None

register_pytree_node(Pair, taken_apart, lambda tensors, _: Pair(*tensors), serialized_type_name="net.Pair")

class Net(torch.nn.Module):
    def forward(self, pair):
        return pair.left - pair.right

def build():
    return Net().eval(), (Pair(torch.ones(3), torch.zeros(3)),)
"""
LOADED_WITH_KEYS = """
import sys
sys.modules["exportdoctor"] = None
import torch
sys.path.insert(0, ".")
import shims_for_net_build_default as cure
program = cure.load("model.pt2").module()
import net
print(program(net.Pair(torch.full((3,), 4.0), torch.ones(3))).tolist())
"""


@pytest.mark.long
@pytest.mark.slow
def test_the_shims_file_names_what_is_in_a_class_that_was_registered_without_keys(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(WITHOUT_KEYS)
    done = command(
        *("net.py:build", "--to", "pt2", "--shims", "register-pytree-keys", "-o", "model.pt2"), folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    outside = subprocess.run(
        [sys.executable, "-I", "-c", LOADED_WITH_KEYS], capture_output=True, text=True, cwd=tmp_path
    )
    assert outside.stdout.strip() == "[3.0, 3.0, 3.0]", outside.stderr[-2000:]


@pytest.mark.night
def test_a_program_and_its_shims_work_where_exportdoctor_is_not(tmp_path: Path) -> None:
    done = command(
        *(TINY, "--to", "pt2", "--part", "vision", "--shims", "+".join(VISION), "--device", "cpu"),
        *("--image-size", "112x168"),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (verified,) = re.findall(r"Verified: (\d+) comparisons with unpatched eager in torch", done.stdout)
    assert int(verified) >= 20
    names = sorted(path.name for path in tmp_path.iterdir() if path.is_file())
    assert names == ["shims_for_qwen2_5_vl_3b_tiny_vision.py", "vision.proof.json", "vision.proof.md", "vision.pt2"]
    proof = json.loads((tmp_path / "vision.proof.json").read_text())
    assert proof["schema"] == "exportdoctor.proof/1"
    assert [shim["soundness"] for shim in proof["shims"]] == ["signature", "exact"]
    _write_case(tmp_path)
    outside = [sys.executable, "-I", "-c", OUTSIDE, str(tmp_path)]
    done = subprocess.run(outside, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "agrees", done.stderr[-2000:]


GENERATES = """
import sys
sys.modules["exportdoctor"] = None
import torch, transformers
sys.path.insert(0, sys.argv[1])

case = torch.load("case.pt", weights_only=False)
model = transformers.AutoModelForImageTextToText.from_config(transformers.AutoConfig.for_model(**case["config"]))
model.eval().load_state_dict(case["weights"])
inputs = case["inputs"]
{shown}
with torch.no_grad():
    wanted = model.generate(**inputs, generation_config=transformers.GenerationConfig(max_new_tokens=20))[:, -20:]
    model.model.rope_deltas = None
assert (numpy.concatenate(tokens, axis=1) == wanted.numpy()).all(), (tokens, wanted)
print("agrees on", *wanted.shape, "rows moved by", *(places[0] + 1 - mask[:, :-19].sum(1, keepdims=True)).ravel() - 1)

held = inputs["attention_mask"].clone()
held[0, :7] = 0
ids = inputs["input_ids"]
text = {"input_ids": torch.where(ids == model.config.image_token_id, 7, ids), "attention_mask": held}
with torch.no_grad():
    wanted = model(**text).logits
{blank}
_, given = cure.convert(model, (), inputs)
logits, *cache = prefill.run(None, {one.name: given[one.name].numpy() for one in prefill.get_inputs()})
apart = (torch.from_numpy(logits) - wanted)[held != 0].abs().max()
assert apart < 1e-5, apart
print("and for text alone")
"""


@pytest.mark.night
def test_the_shown_programs_generate_eagers_tokens_after_pictures_and_take_text_alone(tmp_path: Path) -> None:
    from exportdoctor.targets import build, resolve

    shims = "precompute-grid+precompute-position-ids+block-diagonal-attention"
    done = command(TINY, "--to", "onnx", "--part", "full", "--with-cache", "--shims", shims, "-q", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same as eager" in done.stdout
    proof = json.loads((tmp_path / "full.proof.json").read_text())
    assert all(one["load_seconds"] > 0 and one["peak_mib"] > 0 and one["nodes"] for one in proof["files"])
    prefill, decode = ({axis["name"]: axis for axis in one["axes"]} for one in proof["domains"])
    assert [prefill[name]["right"] for name in ("batch", "pictures")] == [[1, 2, 3], [1, 2, 3, 4]]
    assert prefill["patches"]["step"] == 4
    assert decode["cache length"]["follows"] == ["cache length + 1"]
    assert decode["cache length"]["highest"] is None
    built = build(resolve(TargetRef(ref=TINY, parts=("full",), options=BuildOptions(device="cpu"))))
    several = built.part("full").several
    assert several is not None
    inputs = {name: value for name, value in several().kwargs.items() if name != "use_cache"}
    config = built.model.config.to_dict()  # type: ignore[union-attr, operator]
    torch.save({"config": config, "weights": built.model.state_dict(), "inputs": inputs}, tmp_path / "case.pt")
    shown = re.findall(r"```python\n([^`]*)```", (ROOT / "docs" / "export.md").read_text())
    (generates,), (blank,) = ([one for one in shown if word in one] for word in ("full.{name}", "blank = "))
    program = GENERATES.replace("{shown}", generates).replace("{blank}", blank)
    outside = [sys.executable, "-I", "-c", program, str(tmp_path)]
    done = subprocess.run(outside, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines() == ["agrees on 2 20 rows moved by -43 0", "and for text alone"], done.stderr[-2000:]


def _write_case(folder: Path) -> None:
    from exportdoctor.targets import build, resolve

    plan = resolve(TargetRef(ref=TINY, parts=("vision",), options=BuildOptions(device="cpu")))
    built = build(plan)
    grids = ((12, 16), (10, 18), (4, 6))
    inputs = [(torch.randn(h * w, 1176), torch.tensor([[1, h, w]])) for h, w in grids]
    weights = built.part("vision").module.state_dict()
    config = built.model.config.to_dict()  # type: ignore[union-attr, operator]
    torch.save({"config": config, "weights": weights, "inputs": inputs}, folder / "case.pt")


@pytest.mark.night
def test_the_vision_tower_in_one_file_in_two_and_merged_again_agrees_at_three_sizes(tmp_path: Path) -> None:
    result = made(tmp_path, TINY, "vision", to="onnx", shims=VISION, split=2, external_data=True)
    assert result.verdict == "proved"
    counts = [
        f"patches {patches}, pictures {count}" for patches, count in ((224, 3), (204, 2), (8, 1), (64, 1), (16, 2))
    ]
    assert sizes(result) == counts
    ways = [row.inputs.rpartition(", ")[2] for row in result.numbers]
    assert list(dict.fromkeys(ways)) == ["ONNX Runtime", "2 files", "merged again"]
    whole, *pieces = result.files
    assert whole.data == ("vision.onnx.data",)
    assert [piece.name for piece in pieces] == ["vision.1of2.onnx", "vision.2of2.onnx"]
    assert sum(piece.nodes for piece in pieces) == whole.nodes
    assert [one.name for one in whole.outputs] == ["last_hidden_state", "pooler_output"]
    assert [one.shape[0] for one in whole.inputs[:2]] == ["patches", "pictures"]


@pytest.mark.night
@pytest.mark.parametrize(
    ("part", "several", "shims"),
    [
        ("full", "pictures", ("hoist", "block-diagonal-attention")),
        ("video", "videos", ("precompute-grid", "precompute-position-ids", "block-diagonal-attention")),
    ],
)
def test_the_whole_model_takes_any_number_of_pictures_in_rows_padded_on_either_side(
    tmp_path: Path, part: str, several: str, shims: tuple[str, ...]
) -> None:
    result = made(tmp_path, TINY, part, to="onnx", shims=shims)
    assert result.verdict == "proved"
    assert set(result.shims) == {*shims, "joined-split"}  # found by itself
    found = [re.search(rf"batch (\d+).*{several} (\d+)$", row.inputs) for row in result.numbers if row.kind == "sizes"]
    assert [one.groups() for one in found if one][:3] == [("3", "4"), ("1", "2"), ("2", "1")]
    shapes = {one.name: one.shape for one in result.files[0].inputs}
    assert shapes["input_ids"] == ("batch", "sequence")
    assert {shape[0] for name, shape in shapes.items() if name.endswith("grid_thw")} == {several}


@pytest.mark.night
def test_a_file_for_one_picture_says_why_it_takes_no_more(tmp_path: Path) -> None:
    result = made(tmp_path, TINY, "vision", to="pt2", shims=("frozen-values",))
    assert [note for note in result.notes if note.startswith("It takes one row with one picture alone")]


@pytest.mark.night
def test_a_plain_image_of_any_legal_size_goes_in_with_the_patches_made_inside(tmp_path: Path) -> None:
    result = made(tmp_path, TINY, "vision", to="onnx", shims=VISION, image_input=True)
    assert result.verdict == "proved"
    assert result.shims == VISION[1:]
    assert len(sizes(result)) >= 3
    assert [one.name for one in result.files[0].inputs] == ["image"]
    assert result.files[0].inputs[0].shape == ("images", 3, "height", "width")


@pytest.mark.night
def test_text_agrees_at_three_sizes_and_as_prefill_and_decode_generates_eagers_tokens(tmp_path: Path) -> None:
    result = made(tmp_path, TINY, "text", to="onnx", cache=True)
    assert result.verdict == "proved"
    assert [one.name for one in result.files] == ["text.prefill.onnx", "text.decode.onnx"]
    assert result.numbers[-1].inputs == "20 tokens generated greedily for 2 prompts"
    assert result.numbers[-1].max_abs == 0
    assert [row.inputs for row in result.numbers][:3] == [
        "batch 2, sequence 13",
        "batch 3, sequence 22",
        "batch 6, sequence 44",
    ]
    assert {row.kind for row in result.numbers} >= {"called_again", "padding", "whole_numbers", "sizes"}


@pytest.mark.long
def test_an_output_that_only_a_shim_lets_torch_take_apart_is_compared_as_a_whole(tmp_path: Path) -> None:
    target = f"{ROOT / 'tests' / 'support' / 'tiny_models.py'}:llama"
    result = made(tmp_path, target, "default", to="pt2", shims=("register-cache-pytree",))
    assert result.verdict == "proved"
    assert result.imports == ("transformers.cache_utils", "transformers.modeling_outputs")


@pytest.mark.long
def test_what_onnx_cannot_say_is_a_finding_with_its_node_and_the_smallest_submodule(tmp_path: Path) -> None:
    result = factory(tmp_path, "untranslatable", to="onnx")
    assert result.verdict == "fails"
    trouble = result.trouble
    assert trouble is not None
    assert (trouble.stage, trouble.op) == ("translate", "export_targets.smooth.default")
    assert (trouble.module, trouble.alone) == ("inner.inner", "inner.inner")
    assert trouble.source == "return smooth(x)"
    assert not result.notes  # nothing was compared, at one size or at others


@pytest.mark.long
def test_an_onnx_file_is_verified_only_for_inputs_that_pass_what_it_cannot_check(tmp_path: Path) -> None:
    order: dict[str, Any] = {"shims": ("check-as-assertion",)}
    result = factory(tmp_path, "checked", to="onnx", **order)
    assert result.unchecked == ("a check of the inputs failed: x.min() < 0",)
    request = ExportRequest(target=TargetRef(ref="checked"), part="default", to="onnx", folder="", stem="", **order)
    said = "\n".join(export_lines(request, result, [find("check-as-assertion")]))
    assert "Verified" not in said
    assert "x.min() < 0" in said
    assert factory(tmp_path, "checked", to="pt2", **order).unchecked == ()


@pytest.mark.long
def test_a_bfloat16_file_is_verified_with_what_the_processor_lacks_in_float32(tmp_path: Path) -> None:
    result = factory(tmp_path, "plain", to="onnx", dtype="bfloat16", opset=22)
    assert (result.verdict, result.trouble) == ("proved", None)
    assert any("no kernels of 16 bits on this processor for Gemm" in note for note in result.notes)
    assert (tmp_path / result.files[0].name).is_file()


@pytest.mark.night
def test_a_bfloat16_convolution_gets_the_opset_that_has_it(tmp_path: Path) -> None:
    result = factory(tmp_path, "convolved", to="onnx", dtype="bfloat16")
    assert (result.verdict, result.opset) == ("proved", 22)
    assert any("for Conv" in note for note in result.notes)


def test_what_onnx_runtime_cannot_load_is_a_finding_too(tmp_path: Path) -> None:
    result = factory(tmp_path, "plain", to="onnx", dtype="bfloat16", opset=22, split=2)  # pieces are run as they are
    trouble = result.trouble
    assert trouble is not None
    assert (result.verdict, trouble.stage, trouble.op) == ("fails", "load", "Gemm")
    assert (trouble.module, trouble.alone) == ("layer", "layer")


@pytest.mark.long
def test_a_saved_program_refuses_the_sizes_that_the_program_refuses_and_an_onnx_file_is_told_not_to(
    tmp_path: Path,
) -> None:
    result = factory(tmp_path, "long_or_short", to="pt2")
    (domain,) = result.domains
    assert sizes_in_words(domain.axes[0]) == "≥ 3"
    loaded = torch.export.load(tmp_path / result.files[0].name).module()
    with pytest.raises(AssertionError, match="Guard failed"):
        loaded(torch.randn(2, 4))
    result = factory(tmp_path, "long_or_short", to="onnx")
    assert result.verdict == "specialised"
    assert "x[0] 2" in result.domains[0].wrong_at
    assert [result.domains[0].conditions[number].source for number in result.domains[0].dropped] == [
        "return x * 2 if x.shape[0] > 2 else x - 1"
    ]


@pytest.mark.night
def test_a_file_of_another_opset_than_was_asked_for_says_so(tmp_path: Path) -> None:
    assert factory(tmp_path, "plain", to="onnx", opset=17).opset == 17
    assert factory(tmp_path, "reduced", to="onnx", opset=17).opset == 17
    result = factory(tmp_path, "plain", to="onnx", opset=7)
    assert result.opset == 7 or any(f"the file has opset {result.opset}" in note for note in result.notes)


def test_an_operator_that_onnx_cannot_take_back_to_an_opset_is_named(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    path = tmp_path / "split.onnx"
    taken, *given = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xyz")
    graph = helper.make_graph([helper.make_node("Split", ["x"], ["y", "z"], num_outputs=2)], "g", [taken], given)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    one = ExportedFile(name=path.name, bytes=path.stat().st_size)
    assert convert_opset(path, 17, one) == (one, "No Adapter From Version $18 for Split")


def test_bfloat16_goes_in_and_out_without_numpy(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    kinds = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, ["n", 2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", kinds[:1], kinds[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "i.onnx")
    session = OnnxSession(tmp_path / "i.onnx")
    for rows in (3, 0):
        given = torch.randn(rows, 2).to(torch.bfloat16)
        (found,) = session.run([given])
        assert found.dtype == torch.bfloat16
        assert torch.equal(found, given)


@pytest.mark.long
def test_where_float16_leaves_its_range_is_told(tmp_path: Path) -> None:
    result = factory(tmp_path, "overflowing", to="onnx", dtype="float16")
    assert result.precision is not None
    assert result.precision.overflow is not None
    assert (result.precision.overflow.op, result.precision.overflow.module) == ("aten.mul.Tensor", "inner")


def test_a_program_that_is_right_at_the_traced_size_alone_is_not_proved(tmp_path: Path) -> None:
    result = factory(tmp_path, "plain", to="pt2", shims=("static-dim",))
    assert result.verdict == "specialised"
    assert result.numbers[0].holds
    assert not result.numbers[1].holds


def test_a_program_whose_sizes_were_to_be_fixed_says_that_it_is_right_at_these_alone(tmp_path: Path) -> None:
    result = factory(tmp_path, "plain", to="pt2", static=True)
    assert (result.verdict, result.fixed) == ("specialised", True)
    request = ExportRequest(target=TargetRef(ref="plain"), part="default", to="pt2", folder="", stem="")
    assert export_lines(request, result, ())[-1].startswith(
        "  Correct at the sizes of the example alone, which --static"
    )


@pytest.mark.night
def test_a_plain_image_of_fixed_size_is_one(tmp_path: Path) -> None:
    result = made(tmp_path, TINY, "vision", to="onnx", shims=VISION, image_input=True, static=True)
    assert (result.verdict, result.fixed) == ("specialised", True)
    assert result.files[0].inputs[0].shape[:2] == (1, 3)
    assert any(note.startswith("It takes 1 image of") for note in result.notes)


def test_no_file_is_made_where_eager_does_not_repeat_itself(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="eager itself gives other numbers when it is called again"):
        factory(tmp_path, "counting", to="pt2")


@pytest.mark.parametrize(("name", "words"), [("counter", "call 2 of 3"), ("tally", "does not change tally.total")])
def test_what_a_call_leaves_behind_is_compared(tmp_path: Path, name: str, words: str) -> None:
    result = factory(tmp_path, name, to="pt2")
    assert result.verdict == "differs"
    assert any(words in row.trouble for row in result.numbers)


@pytest.mark.long
def test_a_full_disk_leaves_no_file_and_one_line(tmp_path: Path) -> None:
    target = f"{FACTORIES}:plain"
    done = command(target, "--to", "pt2", "--shims", "none", "-o", "out/plain.pt2", "-q", folder=tmp_path, limit=4096)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "cannot be written" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


def test_limits_of_building_end_once_the_example_has_run_in_eager(tmp_path: Path) -> None:
    steps: list[str] = []
    request = ExportRequest(
        target=TargetRef(ref=f"{FACTORIES}:plain"), part="default", to="pt2", folder=str(tmp_path), stem="default"
    )
    export_target(request, steps.append)
    assert steps[1:4] == ["running eager", "running eager on other inputs", "exporting default"]


ENDS_LATER = '''
import os, signal
from pathlib import Path
import torch

class Model(torch.nn.Module):
    """Ends its process once a file of it was written."""

    def forward(self, x):
        if any(Path(__file__).parent.rglob("*.pt2")):
            os.kill(os.getpid(), signal.SIGKILL)
        return x + 1

def build():
    batch = torch.export.Dim("batch")
    return {"module": Model(), "args": (torch.randn(3, 4),), "dynamic_shapes": {"x": {0: batch}}}
'''


@pytest.mark.long
def test_a_file_that_agrees_is_kept_where_trying_sizes_ends_the_process(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(ENDS_LATER)
    done = command("model.py:build", "--to", "pt2", "--shims", "none", "--quiet", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "default.pt2").is_file()
    proof = json.loads((tmp_path / "default.proof.json").read_text())
    assert proof["verdict"] == "proved"
    assert len(proof["numbers"]) > 3
    (note,) = (one for one in proof["notes"] if "not derived" in one)
    assert "killed" in note
    assert "trying sizes" in note


@pytest.mark.long
def test_a_file_that_agrees_is_kept_where_trying_sizes_hangs(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        ENDS_LATER.replace("os.kill(os.getpid(), signal.SIGKILL)", "time.sleep(1000)").replace("signal", "time")
    )
    options = ("--to", "pt2", "--shims", "none", "--build-timeout", "40", "--quiet")
    done = command("model.py:build", *options, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    proof = json.loads((tmp_path / "default.proof.json").read_text())
    (note,) = (one for one in proof["notes"] if "not derived" in one)
    assert "(hang)" in note


HANGS_AT_OTHER_SIZES = '''
import time
import torch

class Model(torch.nn.Module):
    """Never ends on a batch other than its example's."""

    def forward(self, x):
        if not torch.compiler.is_compiling() and x.shape[0] != 3:
            time.sleep(1000)
        return x + 1

def build():
    batch = torch.export.Dim("batch")
    return {"module": Model(), "args": (torch.randn(3, 4),), "dynamic_shapes": {"x": {0: batch}}}
'''


@pytest.mark.long
def test_a_target_that_hangs_on_other_inputs_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(HANGS_AT_OTHER_SIZES)
    options = ("--to", "pt2", "--shims", "none", "--build-timeout", "40", "--quiet")
    done = command("model.py:build", *options, folder=tmp_path)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    said = done.stderr
    assert any(words in said for words in ("hang", "did nothing", "takes longer than 4")), said
    assert not (tmp_path / "default.pt2").exists()


GATE = """\
import torch
from torch import nn


class Gate(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x * 2
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.gate = nn.Linear(4, 4), Gate()

    def forward(self, x):
        return self.gate(self.lin(x))


def build():
    torch.manual_seed(0)
    return Net().eval(), (torch.randn(3, 4),), {}, ({0: torch.export.Dim("b")},)
"""

GATE_SHIMS = """\
from contextlib import contextmanager

import torch
from gate import Gate

from exportdoctor.shims import Cure, Shim


@contextmanager
def enter(call):
    before = Gate.forward
    Gate.forward = lambda self, x: torch.where(x.sum() > 0, x * 2, x)
    try:
        yield call
    finally:
        Gate.forward = before


CURES = (Cure(kinds=("data_dependent_guard",)),)
SHIMS = (Shim(id="my-gate", title="Mine", soundness="exact", enter=enter, cures=CURES),)
"""


@pytest.mark.long
def test_a_users_shim_is_found_by_the_commands_that_the_scan_prints(tmp_path: Path) -> None:
    (tmp_path / "gate.py").write_text(GATE)
    (tmp_path / "my_shims.py").write_text(GATE_SHIMS)
    home = {"EXPORTDOCTOR_HOME": str(tmp_path / "home"), "COLUMNS": "400"}

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        whole = [sys.executable, "-m", "exportdoctor", *words]
        return subprocess.run(whole, cwd=tmp_path, env=os.environ | home, capture_output=True, text=True, check=False)

    scanned = ask("scan", "gate.py:build", "--shims", "my_shims.py", "--no-alternatives", "-q", "--format", "brief")
    printed = re.search(r"exportdoctor (export gate.py:build .*?-o \S+pt2)", scanned.stdout)
    assert printed, scanned.stdout
    words = shlex.split(printed[1])
    assert ["--shims", str(tmp_path / "my_shims.py")] == words[2:4]
    exported = ask(*words, "-q")
    assert exported.returncode == 0, exported.stdout + exported.stderr
    assert "my-gate (exact)" in exported.stdout
    asked = ask("numbers", "gate.py:build", "--against", "model.pt2", "-q")
    assert asked.returncode == 0, asked.stdout + asked.stderr
    before = (tmp_path / "model.pt2").read_bytes()
    failed = ask("export", "gate.py:build", "--to", "pt2", "--shims", "none", "-o", "model.pt2", "-q")
    assert failed.returncode == 1
    assert "shims   none\n" in failed.stdout
    assert "model.pt2 was there before" in failed.stdout
    assert (tmp_path / "model.pt2").read_bytes() == before


@pytest.mark.long
@pytest.mark.slow
def test_a_state_that_is_no_cache_of_keys_and_values_is_no_pair(tmp_path: Path) -> None:
    """It ended as a bug of exportdoctor's."""
    from transformers import MambaConfig

    MambaConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=2, state_size=4, architectures=["MambaForCausalLM"]
    ).save_pretrained(tmp_path / "mamba")
    options = ("--to", "pt2", "--with-cache", "--weights", "random", "--shims", "none", "-q")
    done = command(str(tmp_path / "mamba"), *options, folder=tmp_path)
    assert done.returncode == 2
    assert "MambaForCausalLM carries other state from call to call than keys and values" in done.stderr


def test_the_windows_of_a_configuration_are_those_of_its_cache() -> None:
    from transformers import GPT2Config, MistralConfig

    from exportdoctor.targets.parts.dynamic_cache import sliding_windows

    assert sliding_windows(MistralConfig(num_hidden_layers=2, sliding_window=40)) == [40]
    assert sliding_windows(GPT2Config()) == sliding_windows(None) == []


@pytest.mark.long
@pytest.mark.slow
def test_a_pair_of_programs_says_that_a_sliding_window_is_decided_by_the_example(tmp_path: Path) -> None:
    """One with a window of 48 was verified, and nothing said what becomes of longer texts."""
    from transformers import Gemma3TextConfig

    Gemma3TextConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        intermediate_size=32, sliding_window=48, layer_types=["sliding_attention", "full_attention"],
        architectures=["Gemma3ForCausalLM"],
    ).save_pretrained(tmp_path / "gemma")  # fmt: skip
    options = ("--to", "onnx", "--with-cache", "--weights", "random", "--shims", "none", "-q")
    done = command(str(tmp_path / "gemma"), *options, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "layers with a sliding window of 48 keep the last 47 keys and values" in " ".join(done.stdout.split())


@pytest.mark.long
@pytest.mark.parametrize(("name", "wrong"), [("retrieve", ""), ("spoilt", "amax")])
def test_another_choice_among_equal_values_is_told_and_no_error_hides_behind_it(
    name: str, wrong: str, tmp_path: Path
) -> None:
    ref = f"{FACTORIES.with_name('tied_targets.py')}:{name}"
    result = made(tmp_path, ref, "default", to="onnx")
    assert all(row.holds for row in result.numbers) == (not wrong)
    assert (result.trouble.op.split(".")[1] if result.trouble is not None else "") == wrong
    assert any("equal in eager" in row.note for row in result.numbers) or wrong
    assert (result.verdict == "proved") == (not wrong)
