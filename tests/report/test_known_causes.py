"""What is said of failures whose cause is known: why, and what to write instead, which exports."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves, tree_map

from exportdoctor.core.failure.finding import ExceptionRecord, Finding
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.report.wording import next_step, why
from exportdoctor.report.wording.findings import limit_note
from scanning import scan_file
from synthetic import WINDOWS

MODEL = """
import copy, enum, math
import numpy as np
import torch
from torch import nn

class How(enum.Enum):
    TWICE = 2

class Copied(nn.Module):
    def forward(self, x):
        return x + copy.deepcopy(x)

class Held(nn.Module):
    def __init__(self):
        super().__init__()
        self.state = {"shift": torch.zeros(4)}
    def forward(self, x):
        return x + copy.deepcopy(self.state)["shift"]

class Addressed(nn.Module):
    def forward(self, x):
        return x * 2 if x.data_ptr() % 2 == 0 else x

class Drawn(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = torch.Generator()
    def forward(self, x):
        return x + 0 * torch.randn(x.shape, generator=self.g)

class Root(nn.Module):
    def forward(self, x):
        return x / np.sqrt(x.shape[0])

class Scaled(nn.Module):
    def forward(self, x):
        return x / math.log(x.shape[0])

class Placed(nn.Module):
    def forward(self, x):
        return x + torch.from_numpy(np.arange(x.shape[0]))[:, None]

class Written(nn.Module):
    def forward(self, x):
        y = x * 2
        y.data.add_(1)
        return y

class Read(nn.Module):
    def forward(self, x):
        return x * 2 + x.data

class Random(nn.Module):
    def forward(self, x):
        return x + 0 * torch.empty(x.shape, dtype=torch.int64).random_(2, 7)

class Hot(nn.Module):
    def forward(self, x):
        return x + 0 * torch.nn.functional.one_hot(x.abs().long()).sum(-1)

class Listed(nn.Module):
    def forward(self, x):
        return x + 0 * torch.tensor([x.sum(), 1.0])[0]

class Numpy(nn.Module):
    def forward(self, x):
        return x + 0 * torch.from_numpy(x.numpy())

class Combined(nn.Module):
    def forward(self, x):
        return x + 0 * torch.combinations(x[:, 0]).sum()

class Put(nn.Module):
    def forward(self, x):
        y = x.clone()
        y[x[:, 0].argmax()] = 5.0
        return y

class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = {}
    def forward(self, x):
        if x.shape not in self.table:
            self.table[x.shape] = 2
        return x * self.table[x.shape]

class Texted(nn.Module):
    def forward(self, x):
        return x * int(f"{x.shape[0]}")

class Flagged(nn.Module):
    def forward(self, x):
        return torch.sort(x, dim=0, descending=x.shape[0] > 3, stable=True)[0]

class Named(nn.Module):
    def forward(self, x, how):
        return x * 2 if how is How.TWICE else x

class Typed(nn.Module):
    def forward(self, x, dtype):
        return x.to(dtype)

class All(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({kind.__name__: kind() for kind in (
            Copied, Held, Addressed, Drawn, Root, Scaled, Placed, Written, Read, Random, Hot, Listed, Numpy,
            Combined, Put, Table, Texted, Flagged)})
        self.packed = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear})
    def forward(self, x):
        for child in self.parts.values():
            x = child(x)
        return self.packed(x.float())

def build():
    return All(), (torch.randn(3, 4),), {}, {"x": {0: torch.export.Dim("rows")}}

def named():
    return Named(), (torch.randn(3, 4), How.TWICE), {}, {"x": {0: torch.export.Dim("rows")}, "how": None}

def typed():
    return Typed(), (torch.randn(3, 4), torch.float64), {}, {"x": {0: torch.export.Dim("rows")}, "dtype": None}
"""

SAID = {
    "parts.Flagged": "Write `descending=bool(x.shape[0] > 3)`, if the condition depends on sizes of inputs alone",
    "parts.Copied": "in place of `copy.deepcopy(x)`",
    "parts.Held": "in place of `copy.deepcopy(self.state)`",
    "parts.Addressed": "Leave out `x.data_ptr()`",
    "parts.Drawn": "Write `torch.empty(size).normal_(generator=g)`",
    "parts.Root": "Write `x.shape[0] ** 0.5` in place of `np.sqrt`",
    "parts.Scaled": "Write `torch.scalar_tensor(x.shape[0], dtype=torch.float64).log()` in place of `math.log`",
    "parts.Placed": "Write `torch.arange` in place of `np.arange`",
    "parts.Written": "Write `y.detach()` in place of `y.data`",
    "parts.Read": "Write `x.detach()` in place of `x.data`",
    "parts.Random": "Write `x.random_(high - low) + low`",
    "parts.Hot": "Give the number of classes",
    "parts.Listed": "Write `torch.stack` of tensors in place of `torch.tensor([x.sum(), 1.0])`",
    "parts.Numpy": "Write functions of torch in place of numpy's: `x.numpy()` reads",
    "parts.Combined": "Use other operators in place of aten.combinations",
    "parts.Put": "Write `y[x[:, 0].argmax()[None]] = ...`",
    "parts.Table": "Compute it at each call",
    "parts.Texted": "Use the size, an int, in place of its text `f'{x.shape[0]}'`",
    "packed.0": "before torch.ao.quantization packs its weights",
}


@pytest.mark.long
@pytest.mark.slow
def test_each_failure_has_a_step_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    report = scan_file(tmp_path / "model.py")
    found: dict[str, Finding] = {one.module: one for one in report.findings}
    assert {*found} == {*SAID}
    for module, said in SAID.items():
        assert said in next_step(found[module]), module
    assert "C++ class (quantized.LinearPackedParamsBase)" in why(found["packed.0"])
    assert "keyword" in why(found["parts.Random"])
    assert "the name of its symbol during export: s" in why(found["parts.Texted"])
    assert "not with dynamic ones" in why(found["parts.Drawn"])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("factory", "said"), [("named", "has no place"), ("typed", "An input is a torch.dtype")])
def test_an_input_of_the_model_that_no_program_takes_has_a_step(factory: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (finding,) = scan_file(tmp_path / "model.py", factory=factory).findings
    assert said in why(finding)
    assert "Keep the value as an attribute of the module" in next_step(finding)


CAUGHT = """
import torch
from torch import nn

class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else x * 2

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch = Branch()
    def forward(self, x):
        try:
            x = self.branch(x)
        except RuntimeError:
            pass
        return x + 1

def build():
    return Model(), (torch.randn(3, 4),)
"""


QUANTISED = """
import torch
from torch import nn

def build():
    from torch.ao.quantization import DeQuantStub, QuantStub, convert, get_default_qconfig, prepare
    model = nn.Sequential(QuantStub(), nn.Linear(6, 6), DeQuantStub()).eval()
    model.qconfig = get_default_qconfig("x86")
    prepare(model, inplace=True)
    model(torch.randn(4, 6))
    convert(model, inplace=True)
    return model, (torch.randn(4, 6),)

class Padded(nn.Module):
    def forward(self, x):
        return (x * 2).to_padded_tensor(0.0)

def nested():
    rows = [torch.randn(2, 3), torch.randn(3, 3)]
    return Padded(), (torch.nested.nested_tensor(rows, layout=torch.jagged),)

class Made(nn.Module):
    def forward(self, a, b):
        return (torch.nested.nested_tensor([a, b], layout=torch.jagged) * 2).to_padded_tensor(0.0)

def made():
    return Made(), (torch.randn(2, 3), torch.randn(3, 3))
"""


@pytest.mark.long
@pytest.mark.slow
def test_quantised_and_nested_tensors_have_advice_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(QUANTISED)
    found = scan_file(tmp_path / "model.py").findings
    assert len(found) == 4
    assert all(next_step(one).startswith("Export the model as it is before torch.ao.quantization") for one in found)
    for factory in ("nested", "made"):
        (finding,) = scan_file(tmp_path / "model.py", factory=factory).findings
        assert next_step(finding).startswith("Pass a padded tensor")
        assert "nested (jagged)" in why(finding)


ONE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2

def build():
    return Model(), (torch.randn(1, 4),), {}, ({0: torch.export.Dim.DYNAMIC},)

class Pooling(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
    def forward(self, x):
        return self.conv(x).mean((2, 3))

def named():
    return Pooling(), (torch.randn(1, 3, 8, 8),), {}, ({0: torch.export.Dim("batch")},)

class Looking(torch.nn.Module):
    def forward(self, q, k):
        return torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=q.shape[1] > 1)

def looking():
    new, old = torch.export.Dim("new"), torch.export.Dim("old")
    return Looking(), (torch.randn(2, 3, 4), torch.randn(2, 5, 4)), {}, ({1: new}, {1: old})
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("factory", ["build", "named"])
def test_an_example_of_size_one_is_what_to_change(factory: str, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(ONE)
    (finding,) = scan_file(tmp_path / "model.py", factory=factory).findings
    assert next_step(finding).startswith("Give an example of size 2 or more in that dimension")
    assert "the code works only for" not in why(finding)


NATIVE = """
import torch
from torch.export import Dim

class Native(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("bias", torch.ones(8))

    def make(self, size):
        return torch.ones(size)

    def forward(self, x):
        bias = self.bias if x.shape[1] == 8 else self.make(x.shape[1])
        return x + bias

def build(size=8, dim=Dim("width")):
    return Native(), (torch.randn(2, size),), {}, {"x": {1: dim}}

def other():
    return build(12, Dim.AUTO)

class General(Native):
    def forward(self, x):
        return x + self.make(x.shape[1])

def general():
    return General(), *build()[1:]

class Viewed(Native):
    def forward(self, x):
        return x.view(2, 8) * 2 if x.dim() == 2 else x

def viewed():
    return Viewed(), *build()[1:]
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_branch_for_the_size_of_the_example_is_named(tmp_path: Path) -> None:
    (tmp_path / "native.py").write_text(NATIVE)
    (finding,) = scan_file(tmp_path / "native.py").findings
    assert next_step(finding).startswith("Leave out the branch for `x.shape[1] == 8`, if")
    (other,) = scan_file(tmp_path / "native.py", factory="viewed").findings
    assert "branch" not in next_step(other)  # it asks for another number
    for factory in ("other", "general"):  # what it says to do
        assert not scan_file(tmp_path / "native.py", factory=factory).findings
    module, args, _, shapes = runpy.run_path(str(tmp_path / "native.py"))["other"]()
    program = torch.export.export(module, args, dynamic_shapes=shapes).module()
    assert program(torch.ones(2, 9)).shape == (2, 9)
    with pytest.raises(AssertionError, match="!= 8"):
        program(torch.ones(2, 8))


PICTURE = """
import torch
from torch.export import Dim

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Conv2d(3, 4, 3, 2, 1), torch.nn.Conv2d(4, 4, 3, 2, 1)

    def forward(self, image):
        return self.two(self.one(image).relu())

def build():
    return Net().eval(), (torch.randn(1, 3, 16, 8),), {}, {"image": {0: Dim("batch"), 2: 4 * Dim("h")}}
"""


@pytest.mark.long
@pytest.mark.slow
def test_no_guard_is_blamed_for_an_example_of_size_one(tmp_path: Path) -> None:
    """Story: a convolution was blamed, for one dimension was called `h`, and the other `batch` has that letter."""
    (tmp_path / "picture.py").write_text(PICTURE)
    (finding,) = scan_file(tmp_path / "picture.py").findings
    assert (finding.guard, finding.module) == (None, "")
    assert next_step(finding).startswith("Give an example of size 2 or more in that dimension")


@pytest.mark.long
@pytest.mark.slow
def test_a_flag_of_sizes_is_advised_with_the_sizes_that_torch_does_not_refuse(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(ONE)
    (finding,) = scan_file(tmp_path / "model.py", factory="looking").findings
    said = next_step(finding)
    assert "`is_causal=bool(q.shape[1] > 1)`" in said
    assert "declare `min=2`" in said

    class Answers(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            causal = bool(q.shape[1] > 1)
            return torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=causal)

    more, past = torch.randn(2, 4, 4), torch.randn(2, 5, 4)
    sizes = ({1: Dim("new", min=2)}, {1: Dim("old")})
    program = torch.export.export(Answers(), (torch.randn(2, 3, 4), past), dynamic_shapes=sizes)
    assert 2 in {found.lower for found in program.range_constraints.values()}
    torch.testing.assert_close(program.module()(more, past), Answers()(more, past))


@pytest.mark.slow
def test_a_submodule_whose_exception_is_caught_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(CAUGHT)
    found = {one.module: one for one in scan_file(tmp_path / "model.py").findings}
    assert why(found[""]).startswith("While `branch` was traced it raised an exception, which code around it caught")
    assert next_step(found[""]).startswith("Mend what `branch` raises")


def drawn(x: Tensor) -> Tensor:
    return x + torch.empty(x.shape).normal_(generator=torch.Generator().manual_seed(3))


def random(x: Tensor) -> Tensor:
    return x + 0 * (torch.empty(x.shape, dtype=torch.int64).random_(5) + 2)


def rooted(x: Tensor) -> Tensor:
    root: float = x.shape[0] ** 0.5
    return x / root


def scaled(x: Tensor) -> Tensor:
    return x / torch.scalar_tensor(x.shape[0], dtype=torch.float64).log()


def placed(x: Tensor) -> Tensor:
    return x + torch.arange(x.shape[0])[:, None]


def written(x: Tensor) -> Tensor:
    y = x * 2
    y.detach().add_(1)
    return y


def read(x: Tensor) -> Tensor:
    return x * 2 + x.detach()


def cloned(x: Tensor) -> Tensor:
    return x + x.clone()


def hot(x: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(x.abs().long(), num_classes=9)


def listed(x: Tensor) -> Tensor:
    return torch.stack([x.sum(), torch.ones(())])


def put(x: Tensor) -> Tensor:
    y = x.clone()
    y[x[:, 0].argmax()[None]] = 5.0
    return y


@pytest.mark.parametrize("function", [drawn, random, rooted, scaled, placed, written, read, cloned, hot, listed, put])
def test_what_is_said_to_write_exports_with_dynamic_sizes(function: Callable[[Tensor], Tensor]) -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return function(x)

    program = torch.export.export(Model(), (torch.randn(3, 4),), dynamic_shapes=({0: Dim.DYNAMIC},)).module()
    x = torch.randn(5, 4)
    torch.testing.assert_close(program(x), function(x))


FIXED_BEHIND_RANGE = """Constraints violated (n)!
  - Not all values of n = L['x'].size()[1] in the specified range satisfy the generated guard math.trunc(0.5*n) == 8.
  - Not all values of n = L['x'].size()[1] in the specified range satisfy the generated guard 4 <= L['x'].size()[1].
Suggested fixes:
  n = Dim('n', min=4)"""


EXCLUDES_TWO = (
    "Constraints violated (n)!\n  - Not all values of n = L['x'].size()[0] in the specified range satisfy the "
    "generated guard ((-1) + L['x'].size()[0]) != 1."
)
AND_MORE = EXCLUDES_TWO + "\n  - You marked n as dynamic"


def test_a_method_draws_what_the_function_draws() -> None:
    one, other = (torch.Generator().manual_seed(0) for _ in range(2))
    assert torch.equal(torch.randn(3, generator=one), torch.empty(3).normal_(generator=other))
    assert torch.equal(torch.rand(3, generator=one), torch.empty(3).uniform_(generator=other))
    whole = torch.empty(3, dtype=torch.int64)
    assert torch.equal(torch.randint(9, (3,), generator=one), whole.random_(9, generator=other))


@pytest.mark.parametrize(
    ("kind", "message", "line", "said"),
    [
        ("dynamic_dim_specialised", "Constraints violated", "power = (t - len(t) // 2) / base", "Write `t.shape[0]`"),
        ("dynamic_dim_specialised", "Constraints violated", "top = int(self.factor * math.log(length))",
         "Compute `int(self.factor * math.log(length))` outside of the model"),
        ("dynamic_dim_specialised", "Constraints violated", "rows = int(x.shape[0])", "Leave out `int`"),
        ("dynamic_dim_specialised", "Constraints violated", "rows = int(x.shape[0] * 0.5)", "with whole numbers"),
        (
            "dynamic_dim_specialised",
            "Constraints violated",
            'return torch.einsum("ij,jk,kl->il", x, y, z)',
            "Export with `torch.backends.opt_einsum.enabled = False`",
        ),
        ("dynamic_dim_specialised", "Constraints violated", "if len(m.shape) != 3 or m.shape[1:] != (3, 3):",
         "Make the code independent of that size"),
        ("data_dependent_value", "Could not extract specialized integer from data-dependent expression u0",
         "count = int(index.max()) + 1", "Write `index.max().item()` in place of `int(index.max())`"),
        ("data_dependent_value", "unsupported format string passed to SymFloat.__format__",
         'print(f"norm {x.norm().item():.2f}")', "Leave the message out, or give it under"),
        ("data_dependent_guard", "Could not guard on data-dependent expression u0 > 3",
         "self.log.warning_once(float(x.max()))", "Leave the message out, or give it under"),
        ("data_dependent_value", "Could not extract specialized integer from data-dependent expression u0",
         "k = int(n.item())", "Write `n.item()` in place of `int(n.item())`, if"),
        ("data_dependent_value", "Could not extract specialized integer from data-dependent expression u0",
         "k = int(math.ceil(n.item() / 2))", "Compute the number outside"),
        ("data_dependent_value", "Could not extract specialized integer from data-dependent expression u0",
         "scale = float(x.max())", "Write `x.max().item()` in place of `float(x.max())`"),
        ("dynamic_dim_specialised", "Constraints violated", "size = x.new_tensor([w, h])",
         "Write `torch.tensor([w, h], dtype=x.dtype, device=x.device)` in place of `x.new_tensor([w, h])`"),
        ("dynamic_dim_specialised", "Constraints violated", "size = torch.as_tensor([w, h], dtype=torch.int32)",
         "Write `torch.tensor([w, h], dtype=torch.int32)` in place of"),
        ("dynamic_dim_specialised", "Constraints violated", "scale = torch.Tensor([w, h])",
         "Write `torch.tensor([w, h], dtype=torch.get_default_dtype())` in place of"),
        ("data_dependent_value", "Could not extract specialized integer from data-dependent expression u0",
         "n = torch.LongTensor([found])", "Write `torch.tensor([found], dtype=torch.int64)` in place of"),
        ("dynamic_dim_specialised", EXCLUDES_TWO, "tail = y[1:]", "`n = Dim('n', min=3)`"),
        ("dynamic_dim_specialised", AND_MORE, "tail = y[1:]", "that size, or export"),
        ("dynamic_dim_specialised", EXCLUDES_TWO.replace("!= 1", "!= 9"), "tail = y[1:]", "that size, or export"),
        ("dynamic_dim_specialised", FIXED_BEHIND_RANGE, "c = build(x)", "Make the code independent of that size"),
        ("translate", "expected compiled_fn to be GraphModule, got <class 'function'>", "", "that share no memory"),
    ],
)  # fmt: skip
def test_what_makes_a_fixed_number_is_named(kind: str, message: str, line: str, said: str) -> None:
    found = msgspec.structs.replace(
        WINDOWS,
        kind=FailureKind(kind),
        exception=ExceptionRecord(type="Error", message=message),
        source=line,
        expression=None,
        known_issues=(),
    )
    assert said in next_step(found)


class Row(NamedTuple):
    left: Tensor
    right: Tensor


class Leaves(nn.Module):
    def forward(self, x: Any, y: Any = None) -> Tensor:
        return cast(Tensor, tree_leaves(x)[0]) * 2


ONES, FREE = torch.ones(3), {0: Dim.DYNAMIC}


@pytest.mark.parametrize(
    ("args", "wrong", "said", "right"),
    [
        ((Row(ONES, ONES),), {"x": [FREE, None]}, "`dynamic_shapes['x']` a named tuple", {"x": Row(FREE, None)}),  # type: ignore[arg-type]
        (([ONES, ONES],), {"x": (FREE, None)}, "Make `dynamic_shapes['x']` a list", {"x": [FREE, None]}),
        (([[ONES]],), {"x": [FREE]}, "Make `dynamic_shapes['x'][0]` a list", {"x": [[FREE]]}),
        (([ONES, ONES],), {"x": [FREE]}, "Give `dynamic_shapes['x']` 2 entries", {"x": [FREE, None]}),
        (([ONES],), {"x": [FREE, FREE]}, "Give `dynamic_shapes['x']` 1 entry,", {"x": [FREE]}),
        (({"a": ONES},), {"x": {"b": FREE}}, "the keys that `inputs['x']` has: ['a']", {"x": {"a": FREE}}),
        ((ONES, ONES), {"x": FREE}, "the keys ['x', 'y']", {"x": FREE, "y": None}),
    ],
)
def test_an_entry_of_dynamic_shapes_that_is_not_like_the_input_is_named(
    args: tuple[Any, ...], wrong: Any, said: str, right: Any
) -> None:
    with pytest.raises(Exception, match="dynamic_shapes") as raised:
        torch.export.export(Leaves(), args, dynamic_shapes=wrong)
    shown = ExceptionRecord(type="torch._dynamo.exc.UserError", message=str(raised.value))
    assert said in next_step(msgspec.structs.replace(WINDOWS, kind=FailureKind.INVALID_DYNAMIC_SHAPES, exception=shown))
    each_its_own = tree_map(torch.clone, args)
    torch.export.export(Leaves(), each_its_own, dynamic_shapes=right)


def test_a_name_like_a_symbols_is_no_text_of_a_size_where_fixed_sizes_fail_too() -> None:
    """A dtype is called `u8` as well."""
    shown = ExceptionRecord(type="builtins.KeyError", message="'u8'")
    found = msgspec.structs.replace(
        WINDOWS, kind=FailureKind.PYTHON_ERROR, exception=shown, expression='TABLE[f"{name}"]', dimensions=()
    )
    assert "text" not in why(found)
    assert "Use the size" not in next_step(found)
    assert "Use the size" in next_step(msgspec.structs.replace(found, dimensions=("rows",)))


@pytest.mark.slow
def test_a_size_that_is_a_key_is_not_told_as_code_for_one_size(tmp_path: Path) -> None:
    """Eager makes the anchors of every size; only the symbol of a dynamic one is no key."""
    path = tmp_path / "anchors_by_size.py"
    path.write_text("""
import torch

class Anchors(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.made = {}

    def forward(self, x):
        if x.shape[0] not in self.made:
            self.made[x.shape[0]] = torch.arange(x.shape[0])
        return x + self.made[x.shape[0]][:, None]

def build():
    return Anchors(), (torch.randn(4, 2),), {}, {"x": {0: torch.export.Dim("rows", min=2)}}
""")
    (finding,) = scan_file(path, cure=False).findings
    assert finding.kind is FailureKind.DYNAMIC_DIM_SPECIALISED
    assert why(finding).endswith("the symbol that stands for it cannot be hashed.")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "said", "wrong"),
    [
        ("assert (x > -9).all(), 'low'", "torch._assert_async((x > -9).all())", -10.0),
        ("assert not x.isnan().any()", "torch._assert_async(~x.isnan().any())", float("nan")),
        ("assert not x.sum() > 9", "torch._assert_async(~(x.sum() > 9))", 10.0),
        ("assert x.min() > -9, \\", "torch._assert_async(x.min() > -9)", -10.0),
    ],
)
def test_an_assertion_is_written_so_that_the_program_checks_it(line: str, said: str, wrong: float) -> None:
    shown = ExceptionRecord(type="Error", message="Could not guard on data-dependent expression Eq(u0, 1)")
    found = msgspec.structs.replace(
        WINDOWS, kind=FailureKind.DATA_DEPENDENT_GUARD, exception=shown, source=line, op=None, known_issues=()
    )
    assert f"Write `{said}`" in next_step(found)

    class Asserts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            exec(said, {"torch": torch, "x": x})
            return x * 2

    program = torch.export.export(Asserts(), (torch.zeros(3),)).module()
    assert torch.equal(program(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="Expected Tensor with single nonzero value"):
        program(torch.full((3,), wrong))


@pytest.mark.parametrize(
    "line",
    [
        "assert x.min() > 0 and x.max() < 1",
        "assert (",
        "assert 0 < x.min() < 1",
        "assert bool((x > 0).all())",
        "assert all(row.sum() > 0 for row in x)",
        "assert 3.5 not in x",
        "assert torch.allclose(x, y)",
        "assert not (x.min() > 0 and x.max() < 1)",
    ],
)
def test_no_assertion_is_called_a_choice_of_two_sides(line: str) -> None:
    shown = ExceptionRecord(type="Error", message="Could not guard on data-dependent expression Eq(u0, 1)")
    found = msgspec.structs.replace(
        WINDOWS, kind=FailureKind.DATA_DEPENDENT_GUARD, exception=shown, source=line, op=None, known_issues=()
    )
    assert "`torch._assert_async(condition)`" in next_step(found)
    assert "torch.where" not in next_step(found)


@pytest.mark.parametrize(
    ("line", "of"),
    [
        ("for e in chosen.unique().tolist():", "chosen"),
        ("for e in torch.unique(chosen).tolist():", "chosen"),
        ("for e in sorted(chosen.unique().cpu().tolist()):", "chosen"),
        ("for e, n in chosen.unique().tolist():", ""),
        ("for e in chosen.unique(return_counts=True)[0].tolist():", ""),
        ("for e in chosen.tolist():", ""),
        ("rows = [x[e] for e in chosen.unique().tolist()]", ""),
    ],
)
def test_a_loop_over_the_numbers_that_were_found_is_told_to_go_over_all(line: str, of: str) -> None:
    shown = ExceptionRecord(type="Error", message="Could not guard on data-dependent expression Eq(u0, 0)")
    found = msgspec.structs.replace(
        WINDOWS, kind=FailureKind.DATA_DEPENDENT_GUARD, exception=shown, source=line, op=None, known_issues=()
    )
    said = next_step(found)
    assert ("Write `for e in range(n):`" in said) == bool(of)
    assert not of or f"if `{of}` has no numbers but 0 to n - 1" in said


@pytest.mark.slow
def test_a_loop_over_all_numbers_exports_and_gives_what_that_over_the_found_ones_gives() -> None:
    class Experts(nn.Module):
        def __init__(self, numbers: Callable[[Tensor], list[int] | range]) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
            self.numbers = numbers

        def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
            out = torch.zeros_like(x)
            for e in self.numbers(chosen):
                rows = (chosen == e).nonzero(as_tuple=True)
                out[rows] = self.experts[e](x[rows])
            return out

    found = Experts(
        lambda chosen: cast(list[int], chosen.unique().tolist())  # type: ignore[no-untyped-call]
    )
    every = Experts(lambda _: range(3))
    every.load_state_dict(found.state_dict())
    inputs, free = (torch.randn(4, 2), torch.tensor([0, 1, 1, 2])), {0: Dim.DYNAMIC}
    with pytest.raises(Exception, match="data-dependent"):
        torch.export.export(found, inputs, dynamic_shapes=(free, free))
    program = torch.export.export(every, inputs, dynamic_shapes=(free, free)).module()
    for rows in ([0, 0, 0], [2, 1], [1, 2, 0, 2, 2]):
        given = torch.randn(len(rows), 2), torch.tensor(rows)
        torch.testing.assert_close(program(*given), found(*given))


def test_a_name_that_begins_as_an_assertion_is_none() -> None:
    shown = ExceptionRecord(type="Error", message="Could not guard on data-dependent expression Eq(u0, 1)")
    line = "assert_ok = x.sum() > 0 and y"
    found = msgspec.structs.replace(
        WINDOWS, kind=FailureKind.DATA_DEPENDENT_GUARD, exception=shown, source=line, op=None, known_issues=()
    )
    assert "assert" not in next_step(found)


@pytest.mark.parametrize(
    ("line", "said", "wanted"),
    [
        ("w.data = b.data * 2", "w.detach().copy_(b.detach() * 2)", 2.0),
        ("w.data += b.data * 2", "w.detach().add_(b.detach() * 2)", 3.0),
    ],
)
def test_what_is_assigned_or_added_to_data_is_written_by_a_method(line: str, said: str, wanted: float) -> None:
    """`x.detach() += y` was advised, which is no code."""
    shown = ExceptionRecord(type="RuntimeError", message="a fake tensor in the exported program constant's list")
    found = msgspec.structs.replace(
        WINDOWS, kind=FailureKind.INPUT_MUTATION, exception=shown, source=line, expression=None, known_issues=()
    )
    assert f"rite `{said}` in place of `{line}`" in next_step(found)
    space: dict[str, Any] = {"w": nn.Parameter(torch.ones(2)), "b": torch.ones(2)}
    exec(said, space)
    assert torch.equal(space["w"], torch.full((2,), wanted))


@pytest.mark.slow
def test_the_line_of_a_leaked_constant_is_the_one_that_takes_data(tmp_path: Path) -> None:
    """Tensors that were kept while it was looked for leaked as well, and the first of them was named."""
    path = tmp_path / "leaks.py"
    path.write_text("""
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 5)

    def forward(self, x):
        w = torch.eye(4)
        for _ in range(2):
            w = w - 2 * w @ w
        weight = self.layer.weight.data
        return torch.mm(x, torch.mm(weight, w).t())

def build():
    return Model(), (torch.randn(3, 4),)
""")
    (finding,) = scan_file(path, cure=False).findings
    assert finding.value_origin is not None
    assert finding.value_origin.source == "weight = self.layer.weight.data"
    assert next_step(finding).startswith("Write `self.layer.weight.detach()` in place of `self.layer.weight.data`")


INDEXED = """
import torch
from torch import nn
from torch.export import Dim

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.key = nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(2, 9, 4))

class Sliced(Layer):
    def forward(self, x, at):
        n = at.item()
        self.cache[:, n:n + x.shape[1]] = self.key(x)
        return x @ self.cache.mT

class Placed(Layer):
    def forward(self, x, at):
        n = at.item()
        self.cache[:, n] = self.key(x[:, 0])
        return x @ self.cache.mT

class Marked(Layer):
    def forward(self, x, at):
        y = self.key(x)
        y[:, x.shape[1] - 1] = 0.0
        return y * at

def build(kind):
    return lambda: (kind(), (torch.randn(2, 3, 4), torch.tensor(2)), {}, ({1: Dim("tokens", min=2, max=8)}, None))

sliced, placed, marked = map(build, (Sliced, Placed, Marked))
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("factory", "cures", "said"),
    [
        ("sliced", ["no-grad"], "Call torch.export.export under torch.no_grad()"),
        ("placed", ["index-as-item", "no-grad"], "Write `self.cache[:, n].copy_(self.key(x[:, 0]))` in place of"),
        ("marked", ["index-as-item"], "Write `y[:, x.shape[1] - 1].fill_(0.0)` in place of"),
    ],
)
def test_an_assignment_by_an_index_of_symbols_is_cured_and_told(
    factory: str, cures: list[str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(INDEXED)
    report = scan_file(tmp_path / "model.py", factory=factory, cure=True)
    finding = report.findings[0]
    assert said in next_step(finding)
    assert not finding.documented
    assert limit_note(finding) == ""
    (part,) = report.parts
    assert part.prescription is not None
    assert sorted(step.shim for step in part.prescription.steps) == cures
    assert part.prescription.soundness == "exact"


@pytest.mark.parametrize(
    ("line", "expression", "said"),
    [
        ("mask[row, : at - row] = True", "mask[row, : at - row]", "mask[row, :at - row].fill_(True)"),
        ("cache[:, at] += key", "cache[:, at]", "cache[:, at].add_(key)"),
        ("cache[:, at] = key", None, "cache[:, at].copy_(key)"),
        ("cache[:, 1] = table[at]", None, ""),
        ("cache[:, at] = key[int(at)]", "key[int(at)]", ""),
        ("cache[:, -at] = key", "cache[:, -at]", "cache[:, -at].copy_(key)"),
        ("cache[rows, at] = key", "cache[rows, at]", ""),
        ("cache[rows, -at] = key", "cache[rows, -at]", ""),
        ("cache[:, *at] = key", None, ""),
        ("cache[mask > 0, at] = 0", None, ""),
        ("cache[:, at] = key[None]", "cache[:, at]", ""),
    ],
)
def test_a_view_is_advised_where_the_index_of_an_assignment_is_at_fault(
    line: str, expression: str | None, said: str
) -> None:
    message = "Could not extract specialized integer from data-dependent expression u0"
    shown = ExceptionRecord(type="GuardOnDataDependentSymNode", message=message)
    kind = FailureKind.DATA_DEPENDENT_VALUE
    found = msgspec.structs.replace(WINDOWS, kind=kind, exception=shown, source=line, expression=expression)
    told = next_step(msgspec.structs.replace(found, known_issues=(), origins=()))
    if not said:
        assert "view" not in told
        return
    assert f"Write `{said}` in place of" in told
    space: dict[str, Any] = {
        "mask": torch.zeros(2, 3),
        "cache": torch.zeros(2, 3),
        "key": torch.ones(2),
        "row": 0,
        "at": 2,
    }
    other = {name: one.clone() if isinstance(one, Tensor) else one for name, one in space.items()}
    exec(said, space)
    exec(line, other)
    assert torch.equal(space["mask"], other["mask"])
    assert torch.equal(space["cache"], other["cache"])


@pytest.mark.parametrize(("more", "told"), [("", True), (", self.steps", False)])
def test_parameters_that_torch_itself_swaps_are_not_said_to_be_assigned(more: str, *, told: bool) -> None:
    """Story: `nn.GRU` by itself under torch 2.9, of which "the forward assigns to an attribute" was said."""
    message = (
        f"The tensor attributes self._flat_weights[0], self._flat_weights[1]{more} were assigned during export. Such "
        "attributes must be registered as buffers using the `register_buffer` API"
    )
    finding = msgspec.structs.replace(
        WINDOWS, kind=FailureKind.ATTRIBUTE_MUTATION, exception=ExceptionRecord(type="ValueError", message=message)
    )
    assert ("the forward assigns nothing" in why(finding)) is told
    assert ("inside of a module" in next_step(finding)) is told


BY_IDENTITY = """
import torch
from torch import nn

class Asks(nn.Module):
    def forward(self, x):
        large = (x.abs().max() > 0.99).item()
        if large is True:
            return x / 2
        return x + 1

class Matches(nn.Module):
    def forward(self, x):
        match (x.sum() > 0).item():
            case True:
                y = x * 2
            case False:
                y = x * 3
        return y

def asks():
    torch.manual_seed(0)
    return Asks(), (torch.rand(2, 4) / 4,)

def matches():
    torch.manual_seed(0)
    return Matches(), (torch.rand(2, 4),)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "message", "step"),
    [
        ("asks", "at net.py:8 eager goes another way than the export went (large is True)", "Write `if flag:` or"),
        ("matches", "cannot access local variable 'y'", "Where `y` is assigned under `flag is True` or `match flag:"),
    ],
)
def test_a_branch_that_asks_for_true_itself_is_found_and_told(
    name: str, message: str, step: str, tmp_path: Path
) -> None:
    """torch drops it without a word, and a scan said that the model exports with eager's numbers."""
    (tmp_path / "net.py").write_text(BY_IDENTITY)
    (finding,) = scan_file(tmp_path / "net.py", factory=name).findings
    assert message in finding.exception.message
    assert next_step(finding).startswith(step)
