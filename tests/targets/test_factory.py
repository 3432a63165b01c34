"""A user's own module: what a factory may return, what is said of nonsense, and inputs of other sizes."""

from __future__ import annotations

import inspect
import pickle
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim, ShapesCollection

from exportdoctor.core.errors import TargetError, UsageError
from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.targets import BuiltPart, build, plan_for_module, resolve
from exportdoctor.targets.eager import restore_afterwards, run_once
from exportdoctor.targets.factory.factory_file import check_factory, source_hashes
from exportdoctor.targets.factory.factory_plan import FactoryPlan
from exportdoctor.targets.sizes.other_sizes import GROWTHS, grown_size, repeat_to
from exportdoctor.torch_internals.fake_tensors import new_fake_mode

if TYPE_CHECKING:
    from pathlib import Path

    from exportdoctor.targets.built import Inputs

MODULE = "import torch\nfrom torch import nn\nclass M(nn.Linear): ...\n"


@pytest.fixture(autouse=True)
def _no_leftover_modules() -> Any:
    before, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("mine", "neighbour", "torch_factory", "outer", "inner"):
            del sys.modules[name]
    sys.path[:] = path


def write(folder: Path, body: str, name: str = "mine.py") -> str:
    (folder / name).write_text(MODULE + body)
    if name == "mine.py":
        sys.modules.pop("mine", None)  # that of another test, beside which it would get another name
    return f"{folder / name}:build"


def build_part(ref: str, **options: Any) -> BuiltPart:
    return build(resolve(TargetRef(ref=ref, options=BuildOptions(**options)))).part("default")


def part_of(module: nn.Module, *args: Any, **given: Any) -> BuiltPart:
    options = BuildOptions(**given.pop("options", {}))
    return build(plan_for_module(module, args, given.pop("kwargs", None), options=options, **given)).part("default")


class Sum(nn.Module):
    """Takes any nesting of tensors and ints and adds their sums."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        return sum(leaf.sum() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)

    def forward(self, ids: torch.Tensor, scale: torch.Tensor, times: int = 1) -> Any:
        return self.table(ids) * scale.repeat_interleave(2, 0)[:, None, None] * times


@pytest.mark.parametrize(
    "returned",
    [
        "(M(3, 2), (torch.ones(4, 3),))",
        "[M(3, 2), [torch.ones(4, 3)], None]",
        "(M(3, 2), (), {'input': torch.ones(4, 3)}, None)",
        "{'module': M(3, 2), 'kwargs': {'input': torch.ones(4, 3)}}",
    ],
)
def test_every_form_that_the_design_promises_is_accepted(tmp_path: Path, returned: str) -> None:
    part = build_part(write(tmp_path, f"def build(): return {returned}\n"))
    assert part.module(*part.args, **part.kwargs).shape == (4, 2)
    assert (part.name, part.title, part.prefix, part.more_inputs) == ("default", "static", "", ())


@pytest.mark.parametrize(
    "body",
    [
        'globals()["build"] = lambda: (M(2, 2), (torch.ones(1, 2),))',
        'exec("def build(): return M(2, 2), (torch.ones(1, 2),)")',
        'import sys\nsetattr(sys.modules[__name__], "build", lambda: (M(2, 2), (torch.ones(1, 2),)))',
        "def __getattr__(name):\n    return lambda: (M(2, 2), (torch.ones(1, 2),))",
        'def named(f):\n    globals()["build"] = f\n@named\ndef other(): return M(2, 2), (torch.ones(1, 2),)',
    ],
)
def test_a_factory_that_the_text_of_its_file_does_not_show_is_found(tmp_path: Path, body: str) -> None:
    assert isinstance(build_part(write(tmp_path, body)).module, nn.Linear)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("None", "returned None"),
        ("3", "returned an int"),
        ("()", "0 values"),
        ("(M, ())", "the class M"),
        ("(3, ())", "an int instead of a module"),
        ("(M(1, 1), torch.ones(1))", "args are a Tensor"),
        ("(M(1, 1), (), 3)", "kwargs are an int"),
        ("(M(1, 1), (), {1: 2})", "kwargs are a dict"),
        ("(M(1, 1), (), {}, 3)", "dynamic_shapes are an int"),
        ("(M(1, 1), 2, 3, 4, 5)", "5 values"),
        ("{'args': ()}", "no module"),
        ("{'module': M(1, 1), 'inputs': ()}", "unknown keys inputs"),
        ("{'module': M(1, 1), 'more_inputs': 3}", "more_inputs are an int"),
        ("{'module': M(1, 1), 'more_inputs': [3]}", "more_inputs[0] are an int"),
        ("M(1, 1)", "returned a M"),
        ("M", "the class M"),
        ("(M(1, 1), {'input': torch.ones(1)})", "args are a dict"),
        ("(M(1, 1), None)", "args are None"),
        ("(M(1, 1), (torch.ones(2, 1),), {'input': {0: torch.export.Dim('rows')}})", "kwargs hold Dim('rows'"),
        ("(M(1, 1), (torch.ones(2, 1),), ({0: torch.export.Dim('rows')},))", "kwargs hold Dim('rows'"),
        ("(M(1, 1), (torch.ones(2, 1),), {'input': [2 * torch.export.Dim('half'), None]})", "kwargs hold"),
        ("(M(1, 1), (torch.ones(2, 1),), {'input': {0: torch.export.Dim.AUTO}})", "kwargs hold DimHint(AUTO)"),
        ("(M(1, 1), (torch.ones(2, 1),), torch.export.ShapesCollection())", "kwargs hold a ShapesCollection"),
        ("(M(1, 1), {'input': {0: torch.export.Dim('rows')}})", "args hold Dim('rows'"),
        ("(M(1, 1), (torch.ones(2, 1),), {}, [((torch.ones(3, 1),), {})])", "dynamic_shapes hold a tensor"),
        (
            "(M(1, 1), (torch.ones(2, 1),), {}, {'input': {7: torch.export.Dim.AUTO}})",
            "dimension 7 of input, which has 2",
        ),
        ("(M(1, 1), (torch.ones(2, 1),), {}, {'input': {-3: torch.export.Dim('rows')}})", "dimension -3 of input"),
        ("(one for one in ())", "returned a generator"),
    ],
)
def test_nonsense_is_named_in_one_line(tmp_path: Path, returned: str, said: str) -> None:
    with pytest.raises(TargetError) as caught:
        build_part(write(tmp_path, f"def build(): return {returned}\n"))
    assert said in caught.value.message
    assert "\n" not in caught.value.line()


@pytest.mark.parametrize(
    ("functions", "advice"),
    [("a", "in.py:a"), ("ab", "in.py:NAME, one of: a, b"), (("a", "build"), "in.py:build"), ("", "in.py:build")],
)
def test_a_file_without_a_factory_offers_its_functions(tmp_path: Path, functions: str, advice: str) -> None:
    file = tmp_path / "in.py"
    file.write_text("".join(f"def {name}(): ...\n" for name in functions))
    with pytest.raises(UsageError, match="names no factory") as caught:
        check_factory(file, name="")
    assert (caught.value.hint or "").endswith(advice)


@pytest.mark.parametrize(
    ("factory", "said", "advice"),
    [
        ("async def build(): return M(1, 1), ()", "returned a coroutine", "def, not async def"),
        ("def build(): yield M(1, 1), ()", "returned a generator", "return in the factory, not yield"),
        ("build = M(1, 1)", "build is a module", "a function that returns it"),
        ("def build(width): return M(1, 1), ()", "missing a required argument: 'width'", "without arguments"),
        ("def build(): return M(1, 1), (torch.ones(2, 1),), {'input': {0: torch.export.Dim('rows')}}",
         "kwargs hold Dim('rows'", "(module, args, {}, dynamic_shapes)"),
    ],
)  # fmt: skip
def test_a_near_miss_of_a_factory_is_told_with_what_to_write(
    tmp_path: Path, factory: str, said: str, advice: str
) -> None:
    with pytest.raises(TargetError) as caught:
        build_part(write(tmp_path, f"{factory}\n"))
    assert said in caught.value.message
    assert advice in (caught.value.hint or "")
    assert caught.value.exit_code == 3


def test_a_factory_that_raises_shows_its_own_stack_and_none_of_ours(tmp_path: Path) -> None:
    with pytest.raises(TargetError) as caught:
        build_part(write(tmp_path, "def build(): return helper()\ndef helper(): raise ValueError('boom')\n"))
    error = caught.value
    assert "ValueError: boom" in error.message
    assert [line.partition(" in ")[2] for line in error.stack[:-1]] == [
        "build: def build(): return helper()",
        "helper: def helper(): raise ValueError('boom')",
    ]
    assert error.stack[-1] == "ValueError: boom"


def test_a_file_that_fails_to_import_is_not_left_half_imported(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="ZeroDivisionError"):
        build_part(write(tmp_path, "def build(): ...\n1 / 0\n"))
    assert "mine" not in sys.modules


def test_a_factory_imports_its_neighbours_and_its_classes_pickle(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("SIZE = 3\n")
    part = build_part(
        write(tmp_path, "import neighbour\ndef build(): return M(neighbour.SIZE, 2), (torch.ones(1, 3),)\n")
    )
    assert type(part.module).__module__ == "mine"
    assert "class M(nn.Linear)" in inspect.getsource(type(part.module))
    assert type(pickle.loads(pickle.dumps(part.module))) is type(part.module)


_UP = "from ..sizes import SIZE\nfrom . import other\ndef build(): return M(SIZE, other.SIZE), (torch.ones(1, 3),)\n"


@pytest.mark.parametrize("marked", [("outer", "outer/inner"), ("outer/inner",), ()], ids=len)
def test_relative_imports_are_those_of_the_package_that_the_folders_are(
    marked: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "outer" / "inner"
    folder.mkdir(parents=True)
    for place in marked:
        (tmp_path / place / "__init__.py").touch()
    (tmp_path / "outer" / "sizes.py").write_text("SIZE = 3\n")
    (folder / "other.py").write_text("SIZE = 2\n")
    ref = write(folder, _UP)
    part = build_part(ref)
    assert type(part.module).__module__ == "outer.inner.mine"
    assert type(pickle.loads(pickle.dumps(part.module))) is type(part.module)
    before = source_hashes(folder / "mine.py")
    (tmp_path / "outer" / "sizes.py").write_text("SIZE = 4\n")
    assert before.keys() >= {"mine.py", "other.py", "../sizes.py"}
    assert before != source_hashes(folder / "mine.py")


def test_a_package_may_be_the_file_that_is_given(tmp_path: Path) -> None:
    folder = tmp_path / "outer"
    folder.mkdir()
    (folder / "other.py").write_text("SIZE = 2\n")
    body = "from .other import SIZE\ndef build(): return M(SIZE, 2), (torch.ones(1, 2),)\n"
    assert build_part(write(folder, body, name="__init__.py")).module.in_features == 2


@pytest.mark.parametrize(
    "imports",
    [
        "try:\n    from .other import SIZE\nexcept ImportError:\n    from other import SIZE\n",
        "from other import SIZE\n",
    ],
    ids=["tried", "plain"],
)
def test_without_an_import_that_needs_it_a_folder_is_no_package(imports: str, tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("1 / 0\n")
    (tmp_path / "other.py").write_text("SIZE = 2\n")
    part = build_part(write(tmp_path, imports + "def build(): return M(SIZE, 2), (torch.ones(1, 2),)\n"))
    assert type(part.module).__module__ == "mine"
    del sys.modules["other"]


def test_a_neighbour_of_a_known_name_is_found_where_functions_alone_need_the_package(tmp_path: Path) -> None:
    folder = tmp_path / "outer"
    folder.mkdir()
    (folder / "tokenizers.py").write_text("SIZE = 2\n")
    before = sys.modules.pop("tokenizers", None)
    body = "from tokenizers import SIZE\ndef train():\n    from .trainer import run\n"
    try:
        part = build_part(write(folder, f"{body}def build(): return M(SIZE, 2), (torch.ones(1, 2),)\n"))
    finally:
        sys.modules.pop("tokenizers", None)
        sys.modules.update({"tokenizers": before} if before is not None else {})
    assert part.module.in_features == 2


@pytest.mark.parametrize(
    "imports",
    [
        "def unused():\n    from .other import SIZE\n",
        "if __name__ == '__main__':\n    from .other import SIZE\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .other import SIZE\n",
    ],
    ids=["unused", "script", "types"],
)
def test_an_import_that_never_runs_needs_no_package(imports: str, tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("import a_package_that_is_not_here\n")
    part = build_part(write(tmp_path, f"{imports}def build(): return M(2, 2), (torch.ones(1, 2),)\n"))
    assert type(part.module).__module__ == "mine"


def test_an_import_in_the_factory_is_of_the_package(tmp_path: Path) -> None:
    folder = tmp_path / "outer"
    folder.mkdir()
    (folder / "other.py").write_text("SIZE = 2\n")
    body = "def build():\n    from .other import SIZE\n    return M(SIZE, 2), (torch.ones(1, 2),)\n"
    assert build_part(write(folder, body)).module.in_features == 2


def test_neighbours_in_a_package_hide_no_other_modules_and_a_package_may_import_its_factory(tmp_path: Path) -> None:
    folder = tmp_path / "outer"
    folder.mkdir()
    (folder / "__init__.py").write_text("from .mine import RUNS\n")
    (folder / "safetensors.py").write_text("1 / 0\n")
    (folder / "other.py").write_text("RUNS = []\n")
    body = "from .other import RUNS\nRUNS.append(1)\nimport safetensors\n"
    part = build_part(write(folder, body + "def build(): return M(len(RUNS), 2), (torch.ones(1, 1),)\n"))
    assert part.module.in_features == 1


def test_a_package_of_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "other.py").write_text("SIZE = 2\n")
    with pytest.raises(TargetError, match="the package 'torch', which is another one here"):
        build_part(write(folder, "from .other import SIZE\ndef build(): ...\n"))


def test_a_factory_may_be_a_static_method(tmp_path: Path) -> None:
    small = "@staticmethod\n    def small(): return M(2, 2), (torch.ones(1, 2),)"
    body = f"class Makes:\n    {small}\n    def large(self): ...\n"
    ref = write(tmp_path, body).removesuffix(":build")
    assert build_part(f"{ref}:Makes.small").module.in_features == 2
    for name, told in (("Makes.large", "missing a required argument: 'self'"), ("Makes.huge", "defines no callable")):
        with pytest.raises(TargetError, match=told):
            build_part(f"{ref}:{name}")
    with pytest.raises(UsageError, match=r"defines no 'Make\.small'"):
        build_part(f"{ref}:Make.small")


def test_a_factory_file_cannot_take_the_place_of_a_library(tmp_path: Path) -> None:
    build_part(write(tmp_path, "def build(): return M(1, 1), (torch.ones(1, 1),)\n", name="torch.py"))
    assert sys.modules["torch"] is torch


def test_dimensions_that_belong_together_grow_together() -> None:
    batch = Dim("batch")
    shapes = ({0: 2 * batch, 1: Dim.DYNAMIC}, {0: batch}, Dim.DYNAMIC)
    part = part_of(Lookup(), torch.tensor([[6, 1, 2, 3, 0]] * 6), torch.ones(3), 5, dynamic_shapes=shapes)
    ((ids, scale, times), kwargs), *none = part.more_inputs
    assert (ids.shape, scale.shape, times, kwargs, none) == ((12, 10), (6,), 10, {}, [])
    assert part.module(ids, scale, times).shape == (12, 10, 4)
    assert part.axes == {"2*batch": ("ids[0]",), "ids[1]": ("ids[1]",), "batch": ("scale[0]",), "times": ("times",)}
    assert part.title == "ids[1], batch, times dynamic"


def test_shapes_reach_into_nested_inputs_and_keyword_bundles() -> None:
    size = Dim("size")
    kwargs = {"pair": [torch.ones(2), {"deep": torch.ones(3, 2)}], "flag": True, "other": torch.ones(5)}
    shapes = {"kwargs": {"pair": [None, {"deep": {0: size}}], "flag": None, "other": None}}
    ((_, grown),) = part_of(Sum(), kwargs=kwargs, dynamic_shapes=shapes).more_inputs
    assert grown["pair"][1]["deep"].shape == (6, 2)
    assert (grown["pair"][0].shape, grown["flag"], grown["other"].shape) == ((2,), True, (5,))


def test_torchs_own_collection_of_shapes_is_understood() -> None:
    x = torch.ones(3, 4)
    shapes: Any = ShapesCollection()  # type: ignore[no-untyped-call]
    shapes[x] = {0: Dim("rows")}
    part = part_of(nn.Linear(4, 4), x, dynamic_shapes=shapes)
    assert part.axes == {"rows": ("input[0]",)}
    torch.export.export(part.module, part.args, part.kwargs, dynamic_shapes=part.dynamic_shapes)


def test_dimensions_may_be_counted_from_the_end() -> None:
    part = part_of(nn.Conv1d(2, 2, 1), torch.ones(3, 2, 5), dynamic_shapes=({-1: Dim("length"), 0: Dim("batch")},))
    assert part.axes == {"length": ("input[2]",), "batch": ("input[0]",)}
    (((grown,), _),) = part.more_inputs
    assert grown.shape == (6, 2, 10)


def test_no_other_size_is_offered_that_eager_refuses() -> None:
    assert part_of(nn.Linear(4, 4), torch.ones(3, 4), dynamic_shapes=({1: Dim.DYNAMIC},)).more_inputs == ()


def test_shapes_that_do_not_fit_the_inputs_are_left_to_the_exporter() -> None:
    part = part_of(nn.Linear(4, 4), torch.ones(3, 4), dynamic_shapes={"x": {0: Dim("rows")}, "y": 3})
    assert (part.more_inputs, part.axes, part.title) == ((), {}, "static")
    assert part.dynamic_shapes is not None


def test_static_drops_dynamic_shapes_and_keeps_inputs_of_equal_size() -> None:
    same: Inputs = ((torch.zeros(3, 4),), {})
    larger: Inputs = ((torch.ones(5, 4),), {})
    shapes = ({0: Dim("rows")},)
    given: dict[str, Any] = {"dynamic_shapes": shapes, "more_inputs": [same, larger]}
    assert part_of(nn.Linear(4, 4), torch.ones(3, 4), **given).more_inputs == (same, larger)
    part = part_of(nn.Linear(4, 4), torch.ones(3, 4), **given, options={"static": True})
    assert (part.dynamic_shapes, part.more_inputs, part.axes) == (None, (same,), {})


@given(st.integers(2, 60), st.integers(1, 4), st.integers(-1, 5), st.integers(0, 80), st.integers(1, 80))
def test_a_grown_size_obeys_its_bounds_and_its_derivation(
    root: int, factor: int, offset: int, lowest: int, room: int
) -> None:
    dim = Dim("d", min=lowest, max=lowest + room)
    derived = factor * dim + offset if offset >= 0 else factor * dim - 1
    size = factor * root + offset
    grown = grown_size(size, derived, GROWTHS)
    assert (grown - offset) % factor == 0
    assert grown == size or lowest <= (grown - offset) // factor <= lowest + room
    assert grown_size(size, Dim.DYNAMIC, GROWTHS) == 2 * size


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_repeated_scores_have_no_ties_that_the_example_does_not_have(dtype: torch.dtype) -> None:
    scores = torch.linspace(-2.1, 2.4, 5).to(dtype).repeat(3, 1)
    grown = repeat_to(scores, 1, 10)
    assert [len(row.unique()) for row in grown] == [10] * 3
    assert torch.equal(grown[:, :5], scores)
    assert (grown[:, 5:] / scores - 0.97).abs().max() < 0.035
    assert torch.equal(grown, repeat_to(scores.clone(), 1, 10))


@pytest.mark.parametrize(
    "values", [[1.0, 0.0, float("-inf")], [float("nan"), float("inf"), -3.0], [4, 0, 9], [True, False, True]]
)
def test_masks_and_whole_numbers_are_repeated_as_they_are(values: list[Any]) -> None:
    example = torch.tensor(values)
    assert repeat_to(example, 0, 7).tolist()[:6] == pytest.approx(2 * values, nan_ok=True)
    assert repeat_to(torch.tensor([0.5, torch.finfo(torch.float32).min]), 0, 4)[3] == torch.finfo(torch.float32).min


def test_inputs_without_values_are_repeated() -> None:
    assert repeat_to(torch.empty(2, 3, device="meta"), 0, 4).shape == (4, 3)
    with new_fake_mode() as mode:
        assert repeat_to(mode.from_tensor(torch.rand(2, 3)), 1, 5).shape == (2, 5)


def test_dtype_moves_the_module_and_its_floating_inputs_only(tmp_path: Path) -> None:
    body = (
        "def build(): return {'module': M(3, 2), 'args': (torch.ones(4, 3),), 'more_inputs': [(torch.zeros(4, 3),)]}\n"
    )
    plan = resolve(TargetRef(ref=write(tmp_path, body), options=BuildOptions(dtype="bfloat16")))
    built = build(plan)
    part = built.part("default")
    assert (built.dtype, built.device, built.weights, built.parameters) == ("bfloat16", "cpu", "as built", 8)
    assert part.args[0].dtype == part.more_inputs[0][0][0].dtype == torch.bfloat16


def test_what_a_model_compiles_runs_in_eager() -> None:
    compiled: list[object] = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., object]:
        compiled.append(graph)
        return graph.forward

    module = torch.compile(nn.Linear(2, 2), backend=backend)
    with restore_afterwards(module):  # type: ignore[arg-type]
        module(torch.ones(1, 2))
    assert not compiled
    module(torch.ones(1, 2))
    assert compiled


def test_a_mask_with_values_selects_from_fake_weights() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 4))

        def forward(self, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
            rows = mask[:, None].expand_as(self.weight)
            return (
                self.weight[mask],
                self.weight[rows],
                self.weight[:, torch.arange(4) > 1],
                self.weight.masked_select(rows),
            )

    mask = torch.tensor([False, True, True])
    real = run_once(module := Masked(), ((mask,), {}))
    mode = new_fake_mode()
    module.weight = nn.Parameter(mode.from_tensor(module.weight))
    fake = run_once(module, ((mask,), {}))
    assert [tuple(one.shape) for one in fake] == [tuple(one.shape) for one in real]


def test_a_lazy_module_that_was_never_called_is_refused_in_one_line(tmp_path: Path) -> None:
    ref = write(tmp_path, "def build(): return nn.Sequential(nn.LazyLinear(2)), (torch.ones(2, 3),)\n")
    with pytest.raises(TargetError, match=r"0\.weight has no shape yet") as caught:
        build_part(ref)
    assert caught.value.hint == "Call the module once in the factory"


def test_a_path_with_a_newline_is_a_file_like_any_other(tmp_path: Path) -> None:
    folder = tmp_path / "two\nlines"
    folder.mkdir()
    (folder / "model.py").write_text("def build(): pass\n")
    plan = resolve(TargetRef(ref=f"{folder}/model.py:build"))
    assert isinstance(plan, FactoryPlan)
    assert plan.file == str(folder / "model.py")
