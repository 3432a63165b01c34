"""`--inputs`, `inputs` and `parts`: inputs are written as code, read from files, and refused in one line."""

from __future__ import annotations

import enum
import json
import math
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import save_file

from exportdoctor.cli.main import run
from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.targets import BuiltPart, BuiltTarget, build, resolve
from exportdoctor.targets.eager import run_once
from exportdoctor.targets.parts.decode import cache_input
from exportdoctor.targets.parts.dynamic_cache import tensors_of
from exportdoctor.worker.inputs_code import inputs_code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig

    path = tmp_path_factory.mktemp("llama")
    config = LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=99,
        architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    (path / "config.json").write_text(json.dumps(config.to_dict(), default=str))
    return path


def built(folder: Path, **options: Any) -> BuiltTarget:
    return build(resolve(TargetRef(ref=str(folder), options=BuildOptions(device="cpu", **options))))


def evaluate(code: str, model: Any) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(code, names)
    return names["inputs"](model)  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["text", "full", "vision"])
def test_the_code_makes_inputs_that_the_module_takes(part: str) -> None:
    ref = TargetRef(ref="Qwen2.5-VL-3B-tiny", options=BuildOptions(device="cpu"))
    made = build(resolve(ref)).part(part)
    code = inputs_code(made, target=ref.ref)
    assert max(map(len, code.splitlines())) < 1500
    again = evaluate(code, None)
    for name, value in made.kwargs.items():
        if isinstance(value, torch.Tensor):
            same = torch.equal(again["kwargs"][name], value)
            assert same or value.is_floating_point()
            assert (again["kwargs"][name].shape, again["kwargs"][name].dtype) == (value.shape, value.dtype)
    run_once(made.module, ((), again["kwargs"]))
    assert again["dynamic_shapes"] == made.dynamic_shapes


@dataclass
class Pair:
    left: torch.Tensor
    scale: float


class Opaque:
    """What nobody can write as code: its attributes are in slots."""

    __slots__ = ("secret",)


class Mode(enum.Enum):
    FAST = "f"


class Sizes(NamedTuple):
    low: int
    high: int


class Held:
    def __init__(self, size: int) -> None:
        self.state, self.mode, self.sizes = torch.ones(size), Mode.FAST, Sizes(1, size)
        self.kind, self.device = Mode, torch.device("cpu")


class Loop:
    def __init__(self) -> None:
        self.own, self.held = self, Held(2)


def test_texts_numbers_and_objects_are_written_as_python() -> None:
    given = {"a": "it's", "b": 'say "hi"', "c": "both ' and \"", "d": math.inf, "e": [-math.inf, 2**70, ("x",)]}
    args = (Pair(torch.zeros(2, dtype=torch.int8), 0.5), given)
    part = BuiltPart(
        name="default", title="", module=torch.nn.Identity(), prefix="", args=args, kwargs={}, dynamic_shapes=None
    )
    code = inputs_code(part, target="model.py:build", by_factory=True)
    assert "with a factory --inputs is refused" in code
    assert "THIS_FILE" not in code
    pair, again = evaluate(code, None)["args"]
    assert (type(pair), pair.scale, pair.left.tolist()) == (Pair, 0.5, [0, 0])
    assert again == given
    part = replace(part, args=([Opaque()], Opaque()))
    code = inputs_code(part, target="model.py:build", by_factory=True)
    assert code.count("def make_opaque()") == 1
    with pytest.raises(NotImplementedError):
        evaluate(code, None)


def test_objects_are_written_with_their_class_and_attributes() -> None:
    part = BuiltPart(
        name="default", title="", module=torch.nn.Identity(), prefix="", args=([Held(3), Held(3)], Held(4)), kwargs={},
        dynamic_shapes=None,
    )  # fmt: skip
    (one, other), last = evaluate(inputs_code(part, target="model.py:build"), None)["args"]
    assert one is not other
    for held, size in ((one, 3), (other, 3), (last, 4)):
        assert (type(held), held.state.shape, held.mode) == (Held, (size,), Mode.FAST)
        assert (type(held.sizes), held.sizes.high, held.kind, held.device.type) == (Sizes, size, Mode, "cpu")
    code = inputs_code(replace(part, args=(Loop(),)), target="model.py:build")
    assert "def make_loop()" in code  # what holds itself is left to the user
    assert "fill(Held" in code


class Named(dict[str, torch.Tensor]):
    """A dict that is read by attributes."""

    def __getattr__(self, name: str) -> torch.Tensor:
        return self[name]


class Counted(dict[str, torch.Tensor]):
    """Made of a number: what it makes of a dict is something else."""

    def __init__(self, count: int) -> None:
        super().__init__({str(place): torch.ones(1) for place in range(count)})


class Tagged(dict[str, torch.Tensor]):
    """What it makes of a dict alone has another tag."""

    def __init__(self, values: dict[str, torch.Tensor], tag: str = "plain") -> None:
        super().__init__(values)
        self.tag = tag


def test_mappings_keep_their_class() -> None:
    """Story: a BatchEncoding was written as a dict, which a forward that reads its attributes refuses."""
    from transformers import BatchEncoding
    from transformers.modeling_outputs import BaseModelOutput

    given = {"ids": torch.zeros(2, dtype=torch.int64)}
    several = [OrderedDict(given), Named(given), BatchEncoding(given), BaseModelOutput(last_hidden_state=torch.ones(2))]
    part = BuiltPart(
        name="default", title="", module=torch.nn.Identity(), prefix="", args=(several, defaultdict(list, given)),
        kwargs={}, dynamic_shapes=None,
    )  # fmt: skip
    made, last = evaluate(inputs_code(part, target="model.py:build"), None)["args"]
    assert list(map(type, made)) == list(map(type, several))
    assert [list(one) for one in made] == [["ids"], ["ids"], ["ids"], ["last_hidden_state"]]
    assert (last["more"], last["ids"].tolist()) == ([], [0, 0])
    code = inputs_code(replace(part, args=(Counted(2), Tagged(given, "other"))), target="model.py:build")
    assert "def make_counted()" in code
    assert "def make_tagged()" in code
    assert "Tagged({" in inputs_code(replace(part, args=(Tagged(given),)), target="model.py:build")


@pytest.mark.parametrize(
    "name", ["uint16", "uint32", "uint64", "int8", "bool", "float8_e4m3fn", "float16", "complex64"]
)
@pytest.mark.parametrize("size", [4, 4000])
def test_tensors_of_each_dtype_are_written(name: str, size: int) -> None:
    tensor = (torch.arange(size) % 3).to(getattr(torch, name))
    part = BuiltPart(
        name="default", title="", module=torch.nn.Identity(), prefix="", args=(tensor,), kwargs={}, dynamic_shapes=None
    )
    (again,) = evaluate(inputs_code(part, target="model.py:build"), None)["args"]
    assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape)


@pytest.mark.slow
def test_the_code_of_a_decode_part_runs_with_its_cache(folder: Path) -> None:
    part = built(folder).part("decode")
    again = evaluate(inputs_code(part, target=str(folder)), part.module)
    name = str(cache_input(part.module))
    cache, given = part.kwargs[name], again["kwargs"][name]
    assert type(given) is type(cache)
    assert [tensor.shape for tensor in tensors_of(given)] == [tensor.shape for tensor in tensors_of(cache)]
    run_once(part.module, ((), again["kwargs"]))
    for _, kwargs in again["more_inputs"]:
        run_once(part.module, ((), kwargs))
    assert again["dynamic_shapes"] == part.dynamic_shapes


@pytest.mark.parametrize("large", [False, True])
def test_a_mask_keeps_its_values_and_what_is_drawn_is_said_to_be(large: bool) -> None:
    """A mask with both values was written as one of False only, with which a tagger refuses to run."""
    mask = torch.tensor([[True, True, False], [True, False, False]]).repeat(1, 1000 if large else 1)
    inputs = {"mask": mask, "all": torch.ones(2, dtype=torch.bool)}
    part = BuiltPart(
        name="default", title="", module=torch.nn.Identity(), prefix="", args=(), kwargs=inputs, dynamic_shapes=None
    )
    code = inputs_code(part, target="model.py:build", by_factory=True)
    assert "floating-point values are drawn here" in code
    again = evaluate(code, None)["kwargs"]
    assert again["all"].tolist() == [True, True]
    assert (again["mask"].dtype, again["mask"].shape) == (mask.dtype, mask.shape)
    assert again["mask"].any()
    assert large or torch.equal(again["mask"], mask)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["fake", "random"])
@pytest.mark.parametrize("kind", ["py", "pt", "safetensors"])
def test_inputs_of_a_file_are_those_of_the_part(folder: Path, tmp_path: Path, kind: str, weights: str) -> None:
    inputs = {"inputs_embeds": torch.randn(2, 5, 16)}
    match kind:
        case "pt":
            torch.save(((), inputs), tmp_path / "in.pt")
        case "safetensors":
            save_file(inputs, tmp_path / "in.safetensors")
        case "py":
            (tmp_path / "in.py").write_text(
                "import torch\ndef made(model):\n"
                "    return {'inputs_embeds': torch.randn(2, 5, model.config.hidden_size)}\n"
            )
    given = str(tmp_path / f"in.{kind}") + (":made" if kind == "py" else "")
    part = built(folder, inputs=given, weights=weights).part("default")
    assert list(part.kwargs) == ["inputs_embeds"]
    assert part.kwargs["inputs_embeds"].shape == (2, 5, 16)
    run_once(part.module, (part.args, part.kwargs))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("in.txt", b"", "is no file of inputs"),
        ("absent.pt", None, "There is no file"),
        ("in.py", b"x = 1", "names no function"),
        ("in.py:made", b"def other(model): ...", "defines no 'made'"),
        ("in.py:made", b"def made(model): return 7", "holds a int|holds an int"),
        ("in.py:made", b"def made(model): raise KeyError('nothing')", "KeyError"),
        ("in.py:made", b"def made(): raise KeyError('nothing')", r"in.py:made\(\) failed: KeyError"),
        (
            "in.py:made",
            b"import torch\ndef made(): return {'input_ids': torch.zeros(1, 2, dtype=torch.long, device='meta')}",
            "cannot be moved to cpu",
        ),
        ("in.pt", b"no archive", "cannot be read as inputs"),
        ("in.safetensors", b"\0" * 20, "cannot be read as inputs"),
    ],
)
def test_a_file_that_is_none_is_refused_in_one_line(
    folder: Path, tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    if content is not None:
        (tmp_path / name.partition(":")[0]).write_bytes(content)
    with pytest.raises(ExportdoctorError, match=said) as refused:
        built(folder, inputs=str(tmp_path / name)).part("default")
    assert refused.value.exit_code in (2, 3)
    assert "\n" not in refused.value.line()
    assert "small model" not in refused.value.line()  # a file is as wrong for any model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters", "name", "takes"),
    [
        ("model", "model", True),
        ("m, batch=2", "m", True),
        ("*, model", "model", True),
        ("model=None", "model", True),
        ("batch=2", "batch", False),
        ("*, seed=1", "seed", False),
    ],
)
def test_a_function_of_inputs_gets_the_model_where_it_asks_for_it(
    folder: Path, tmp_path: Path, parameters: str, name: str, takes: bool
) -> None:
    (tmp_path / "in.py").write_text(
        f"import torch\n\n\ndef made({parameters}):\n    assert isinstance({name}, torch.nn.Module) is {takes}\n"
        "    return {'input_ids': torch.ones(1, 3, dtype=torch.long)}\n"
    )
    part = built(folder, inputs=f"{tmp_path / 'in.py'}:made").part("default")
    assert part.kwargs["input_ids"].shape == (1, 3)


@pytest.mark.slow
def test_a_mapping_of_a_function_without_the_model_keeps_its_dtypes(folder: Path, tmp_path: Path) -> None:
    """Stories: what a tokenizer gives was "a BatchEncoding"; float64 became float32 without a word."""
    (tmp_path / "in.py").write_text(
        "import torch\nfrom collections import UserDict\n\n\ndef made():\n"
        "    return UserDict(inputs_embeds=torch.zeros(2, 5, 16, dtype=torch.float64))\n"
    )
    for dtype in ("auto", "float32"):
        part = built(folder, inputs=f"{tmp_path / 'in.py'}:made", weights="random", dtype=dtype).part("default")
        assert part.kwargs["inputs_embeds"].dtype is torch.float64


@pytest.mark.parametrize("static", [False, True])
def test_a_further_set_is_of_the_same_sizes_in_any_order_of_its_keywords(
    folder: Path, tmp_path: Path, static: bool
) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n\ndef inputs():\n"
        "    ids, mask = torch.arange(6).reshape(1, 6), torch.ones(1, 6, dtype=torch.int64)\n"
        "    return {'kwargs': {'input_ids': ids, 'attention_mask': mask},\n"
        "            'more_inputs': [((), {'attention_mask': mask, 'input_ids': ids + 3})]}\n"
    )
    part = built(folder, inputs=f"{tmp_path / 'mine.py'}:inputs", static=static).part("default")
    assert [list(kwargs) for _, kwargs in part.more_inputs] == [["attention_mask", "input_ids"]]


def test_another_file_is_another_target(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "in.safetensors"
    identities = []
    for size in (2, 3):
        save_file({"inputs_embeds": torch.zeros(size, 5, 16)}, file)
        ref = TargetRef(ref=str(folder), options=BuildOptions(inputs=str(file)))
        identities.append(resolve(ref).identity())
    assert identities[0] != identities[1]


def test_parts_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["parts", "Qwen2.5-VL-3B"]) == 0
    assert "decode    one new token, with a filled cache" in capsys.readouterr().out
    assert run(["parts", "Qwen2.5-VL-3B", "--json"]) == 0
    assert {"part": "video", "scanned": False} in json.loads(capsys.readouterr().out)


@pytest.mark.long
@pytest.mark.slow
def test_of_a_decode_part_the_inputs_come_with_what_a_scan_of_them_finds(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Story: the scan of the part says that it passes, that of its printed inputs that the cache is not registered."""
    assert run(["inputs", str(folder), "--part", "decode"]) == 0
    printed = capfd.readouterr()
    assert "DynamicCache" in printed.err
    assert "register-cache-pytree cures" in printed.err
    (tmp_path / "made.py").write_text(printed.out)
    made = f"{tmp_path / 'made.py'}:inputs"
    assert run(["scan", str(folder), "--inputs", made, "--no-cache", "--no-cure", "-q", "--json"]) == 1
    report = json.loads(capfd.readouterr().out)
    assert {finding["kind"] for finding in report["findings"]} == {"unregistered_pytree"}
    assert run(["inputs", str(folder)]) == 0
    assert "DynamicCache" not in capfd.readouterr().err


@pytest.mark.night
def test_inputs_are_printed_as_a_file_that_a_scan_takes(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["inputs", str(folder)]) == 0
    (tmp_path / "made.py").write_text(capfd.readouterr().out)
    assert run(["scan", str(folder), "--inputs", f"{tmp_path / 'made.py'}:inputs", "--no-cache", "-q"]) == 0
    assert run(["inputs", str(folder), "--part", "vision"]) == 2
    assert "There is no part 'vision'" in capfd.readouterr().err
