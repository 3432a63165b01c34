"""`while` on a tensor's value: rewritten code computes what the loop does, and the program takes as many steps."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path
from textwrap import indent
from types import FunctionType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

import while_stories
from exportdoctor.shims import ExportCall, apply_shims, export_program, find
from exportdoctor.shims.record import NotApplicable
from exportdoctor.shims.rules.branches.arm_watch import Unmergeable
from exportdoctor.shims.rules.code.pure_code import Purity
from exportdoctor.shims.rules.loops.step_choices import StepChoices, choose
from exportdoctor.shims.rules.loops.while_loops import WhileLoops
from exportdoctor.shims.rules.loops.while_rewrite import WhileRewrite
from exportdoctor.targets.factory.factory_file import import_factory_file
from exportdoctor.worker.translate.onnx_session import OnnxSession

TESTS = (
    "a.abs().max() > 0.1 and n < 5", "n < 4", "not (a.abs().max() < 0.1) and n < 3", "0 < n + 1 < 4",
    "bool((total < 2).any()) and n < 6", "total.sum() < 3 or n < 2", "flag and n < 5",
)  # fmt: skip
STATEMENTS = (
    "a = a * 0.5",
    "b = a + b",
    "a, b = b * 0.3, a",
    "n += 1",
    "n = n + 1",
    "total += a.abs()",
    "total = total + 0.5",
    "fresh = a - 1\n        b = fresh * b",
    "seen = a.sum()",
    "flag = (a > 0).any()",
    "if n > 2:\n            a = a * 0.1",
    "for k in range(2):\n            b = b + k",
    "for k in range(3):\n            if k == n:\n                break\n            a = a * 0.9",
    "error = a.abs().max().item()",
    "if a.abs().max() < 0.2:\n            break",
    "if n > 3:\n            break",
    "if n > 1:\n            continue",
    "if b.sum() > 0:\n            a = a - 0.1\n        else:\n            b = b * 0.5\n            later = b",
    "a = a - 0.1 if a.sum() > 0 else a * 0.5",
    "if total.sum() > 2:\n            flag = False",
    "if a.min() < 0:\n            b = b.abs()\n            continue",
    "if a.max() > 0.3:\n            n = n + 1\n            if n > 5:\n                break\n            a = a * 0.8",
    "if b.sum() > 0:\n            b = b - 1\n            if n > 2:\n                continue\n            a = b * 2",
    # what no step may do
    "a += 1",
    "x[0] = n",
    "kept = total\n        total += 1\n        b = b + kept",
    "outs.append(a)",
    "b.add_(1)",
    "if n > 4:\n            return b",
    "for k in range(2):\n            if n > 3:\n                break\n        else:\n            break",
)
RESULTS = ("a", "b", "n", "total", "seen", "flag", "error", "fresh", "len(outs)", "k", "x")


TAILS = (
    "", "a = x + 3", "if steps > 3:\n    b = a * 2", "total += 1", "for n in range(2):\n    b = b + n",
    "pads = [a for n in range(2)]",
)  # fmt: skip
AROUND = ("break", "continue", "a = x + 1")
"""How a loop around it may go on; what follows binds some names anew."""


class Forgetful(WhileLoops):
    """Gives a name that is not read outside the loop the value that it had, as a program does."""

    def run(self, loop: str, test: Any, step: Any, state: Any, read_outside: Any, flags: Any) -> Any:
        ended = super().run(loop, test, step, state, read_outside, flags)
        return tuple(end if read else old for end, old, read in zip(ended, state, read_outside, strict=True))


class Merging(Forgetful):
    """Also computes both arms of a branch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.choices = BothArms()


class BothArms(StepChoices):
    """Computes both arms where they can be, as a program does."""

    def choose_in_step(
        self, branch: str, condition: Any, then: Any, other: Any, *before: Any, asked: Any, flags: Any = ()
    ) -> Any:
        wanted = super().choose_in_step(branch, condition, then, other, *before, asked=asked)
        try:
            return choose(torch.tensor(bool(condition)), then(*before), other(*before), flags)
        except (Unmergeable, RuntimeError):
            return wanted


def run_both(source: str, x: Tensor) -> tuple[int, Any, list[Any]]:
    """How many loops of `forward` were rewritten, and what it gives or raises as it is, and rewritten in several
    ways."""
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef)
    own: dict[str, Any] = {"torch": torch}
    exec(compile(source, "<drawn>", "exec"), own)
    function: FunctionType = own["forward"]
    rewrite = WhileRewrite(Purity(function=function), frozenset(range(1, 99)))
    changed = ast.fix_missing_locations(ast.Module([rewrite.of_function(node)], []))
    answers = []
    for loops in (Forgetful(), Merging()):
        other = {"torch": torch, **loops.names}
        exec(compile(changed, "<rewritten>", "exec"), other)
        answers.append(_answer(other["forward"], x.clone()))
    plain = _answer(function, x.clone())
    if plain == "NameError":  # of a name that a branch did not bind: a choice has that of the other arm
        answers.pop()
    return rewrite.count, plain, answers


def _answer(function: Any, x: Tensor) -> Any:
    try:
        found = function(x)
    except (NameError, RuntimeError) as error:
        return "NameError" if isinstance(error, NameError) else type(error).__name__
    return [x, *(found if isinstance(found, tuple) else (found,))]


@st.composite
def functions(draw: st.DrawFn) -> str:
    body = draw(st.lists(st.sampled_from(STATEMENTS), min_size=1, max_size=4))
    place = 0 if any("continue" in one for one in body) else draw(st.integers(0, len(body)))  # or it has no end
    header = f"while ({draw(st.sampled_from(TESTS))}) and steps < 9:"
    if draw(st.booleans()):
        header, body = "while True:", [*body[:place], "if steps > 6 or a.sum() < -9:\n            break", *body[place:]]
    lines = [header, *(indent(_at_the_margin(one), "    ") for one in ("steps = steps + 1", *body))]
    if around := draw(st.sampled_from(["", *AROUND])):
        last = f"if i == 1:\n    {around}"
        lines = [
            "for i in range(3):",
            *(indent(one, "    ") for one in ("steps = 0", *lines, last, "b = x - i", "n = n - 1")),
        ]
    lines.append(draw(st.sampled_from(TAILS)))
    results = draw(st.lists(st.sampled_from(RESULTS), min_size=1, max_size=4, unique=True))
    before = [
        "a, b, outs = x * 1, x + 1, []",
        f"n = {draw(st.sampled_from(['0', '1', 'x.shape[0]', 'x.sum() * 0']))}",
        "steps = 0",
        f"flag = {draw(st.sampled_from(['True', 'x.sum() < 99']))}",
        f"total = {draw(st.sampled_from(['torch.zeros_like(x)', 'x', 'x.clone()']))}",
    ]
    code = "\n".join([*before, *filter(None, lines), f"return steps, {', '.join(results)}"])
    return f"def forward(x):\n{indent(code, '    ')}"


def _at_the_margin(statement: str) -> str:
    return statement.replace("\n        ", "\n")


def _check(source: str) -> int:
    torch.manual_seed(0)
    count, plain, answers = run_both(source, torch.rand(3) - 0.3)
    for rewritten in answers:
        assert type(plain) is type(rewritten), source
        if isinstance(plain, list):
            assert len(plain) == len(rewritten)
            for one, other in zip(plain, rewritten, strict=True):
                assert torch.equal(torch.as_tensor(one), torch.as_tensor(other)), source
    return count


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(source=functions())
def test_rewritten_code_computes_what_the_loop_does(source: str) -> None:
    _check(source)


@pytest.mark.night
@settings(max_examples=6000, deadline=None)
@given(source=functions())
def test_many_rewritten_functions_compute_what_their_loops_do(source: str) -> None:
    _check(source)


@pytest.mark.parametrize("last", range(len(STATEMENTS)))
def test_what_a_step_may_do(last: int) -> None:
    refused = STATEMENTS[last] in STATEMENTS[STATEMENTS.index("a += 1") :]
    source = (
        "def forward(x):\n    a, b, outs, n, steps, flag, total = x * 1, x + 1, [], 0, 0, True, x.clone()\n"
        f"    n = 0\n    total = x.clone()\n    while a.sum() > -9 and steps < 3:\n        steps = steps + 1\n"
        f"        {STATEMENTS[last]}\n    return a, b, steps"
    )
    assert _check(source) == (not refused)


class Root(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x
        while (y * y - x).abs().max() > 1e-4:
            y = 0.5 * (y + x / y)
        return y


class Halting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.halt = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total, found, n = x.new_zeros(x.shape[0], 1), torch.zeros_like(x), 0
        while (total < 0.99).any() and n < 10:
            x = torch.tanh(self.layer(x))
            share = torch.sigmoid(self.halt(x)) * (total < 0.99)
            found = found + share * x
            total += share
            n += 1
        return found / n, total


class Converging(nn.Module):
    """Leaves at the end of the body, by a number that begins as infinity."""

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        error: Any
        error, y, n = float("inf"), x, 0
        while n < 20:
            before = y
            y = torch.cos(y)
            error = (y - before).abs().max()
            n += 1
            if error < 1e-2:
                break
        return y * n, error


class Middle(nn.Module):
    """Leaves in the middle of the body, by a number that Python reads."""

    def forward(self, x: Tensor) -> Tensor:
        y, shift = x * 2, 1.5
        while True:
            y = y * 0.5
            if y.abs().max().item() < shift / 2:
                break
            y = y - 0.1
            shift = shift * 0.9
        return y + shift


class Flagged(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        done: Any
        done, y = False, x
        while not done:
            y = y * 0.7
            done = y.abs().sum() < 1.0
        return y


class Growing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        while x.sum() < 100:
            x = torch.cat([x, x])
        return x


class Written(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x
        while y.sum() > 1:
            y = y / 2
        y += 1
        return y + x


class Shared(nn.Module):
    """A step gives a row of a tensor that is written into later."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.arange(12.0).reshape(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        found, n = x, 0
        while n < 3 and found.sum() < 30:
            found = self.rows[n]
            n += 1
        self.rows.mul_(0.5)
        return found


class Summing(nn.Module):
    """A flag becomes a number."""

    def forward(self, x: Tensor) -> Tensor:
        found: Any
        found, y = False, x
        while y.sum() > 1:
            found = found + (y > 0.2).sum()
            y = y * 0.5
        return y * found


class Sometimes(nn.Module):
    """The example takes no step."""

    def forward(self, x: Tensor) -> Tensor:
        while x.sum() > 1e6:
            x = x / 2
        return x


class Branching(nn.Module):
    """Steps with a branch, numbers that only one arm counts, and exits in the middle."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        n, large, total = 0, 0, torch.zeros(())
        while n < 40:
            n += 1
            slope = 2 * x
            if slope.norm() > 1:
                slope = slope / slope.norm()
                large += 1
            if slope.norm() < 0.1:
                break
            if n % 2 == 0:
                x = x - 0.1 * slope
                continue
            x = x - (0.3 if large < 9 else 0.2) * slope
            total = total + x.sum()
        return x * n + large, total


class Looking(nn.Module):
    """An arm of a step may refuse values for which it is not taken."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.rand(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        place, y = x.sum().long() % 7, x
        while y.abs().max() > 0.5:
            if place < 4:
                row = self.table.index_select(0, place.reshape(1))[0]
                y = y * row.sigmoid()
            else:
                y = y * 0.7
            place = (place + 3) % 7
        return y


ROWS = ({0: Dim.DYNAMIC},)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "module", [Root, Halting, Converging, Middle, Flagged, Branching], ids=lambda one: one.__name__
)
def test_the_program_and_its_onnx_file_take_as_many_steps_as_eager(module: type[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    eager = module().eval()
    call = ExportCall(module=eager, args=(torch.rand(3, 4) + 1,), dynamic_shapes=ROWS)
    with pytest.raises(Exception, match="data-dependent"):
        export_program(call)
    with apply_shims([find("while-as-while-loop")], call) as changed:
        program = export_program(changed)
    made = torch.onnx.export(program, dynamo=True, verbose=False)
    assert made is not None
    made.save(str(tmp_path / "loop.onnx"))
    session = OnnxSession(tmp_path / "loop.onnx")
    for rows, scale in ((1, 1.0), (3, 0.05), (4, 7.0), (2, 50.0)):
        x = torch.rand(rows, 4) * scale + 0.1
        with torch.no_grad():
            expected = eager(x)
        torch.testing.assert_close(program.module()(x), expected, rtol=1e-5, atol=1e-5)
        flat = list(expected) if isinstance(expected, tuple) else [expected]
        torch.testing.assert_close(list(session.run([x])), flat, rtol=1e-4, atol=1e-4)


class Left(nn.Module):
    """What is read behind the outer loop was bound anew in its body, but not where that is left."""

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for i in range(3):
            while y.sum() > 1:
                y = y * 0.5
            if i == 1:
                break
            y = x + i
        return y


class Always(nn.Module):
    """The flag of the model is a plain one, and a name is read by a `finally`."""

    flag = True

    def forward(self, x: Tensor) -> Tensor:
        y = x
        try:
            while self.flag and y.sum() > 1:
                y = y * 0.5
            return x
        finally:
            x = y


class Again(nn.Module):
    """Nothing but the loop itself reads one of the names, when the loop around it runs it again."""

    def forward(self, x: Tensor) -> Tensor:
        y, found = x, x * 0
        for i in range(2):
            while y.sum() > 1 - i / 2:
                y = y * 0.5
                found = found + y
        return found


class Added(nn.Module):
    """Behind the loop nothing but `+=` has the name: it writes into what the last step made, not into the input."""

    def forward(self, x: Tensor) -> Tensor:
        y, z = x, x * 2
        while z.sum() > 1:
            y = z * 3
            z = z * 0.5
        y += 1
        return z


def test_what_is_added_to_behind_a_loop_is_what_the_loop_made() -> None:
    call = ExportCall(module=Added(), args=(torch.ones(3),))
    with (
        pytest.raises(NotApplicable, match="written into"),
        apply_shims([find("while-as-while-loop")], call) as changed,
    ):
        export_program(changed)


class Inside(nn.Module):
    """The loop is in a function that forward makes, which closes over a size and over a number."""

    def forward(self, x: Tensor) -> Tensor:
        half, limit = 0.5, x.shape[0]

        def shrink(y: Tensor) -> Tensor:
            while y.sum() > limit:
                y = y * half
            return y

        return shrink(x) - shrink(x * 3)


@pytest.mark.slow
@pytest.mark.parametrize("module", [Left, Always, Again, Looking, Inside])
def test_the_program_computes_what_eager_does(module: type[nn.Module]) -> None:
    eager = module()
    call = ExportCall(module=eager, args=(torch.ones(4) * 2,))
    with apply_shims([find("while-as-while-loop")], call) as changed:
        program = export_program(changed).module()
    for scale in (0.1, 1.0, 50.0):
        torch.testing.assert_close(program(torch.ones(4) * scale), eager(torch.ones(4) * scale))


EXPORTABLE = (
    STATEMENTS[: STATEMENTS.index("error = a.abs().max().item()")]
    + STATEMENTS[STATEMENTS.index("if a.abs().max() < 0.2:\n            break") : STATEMENTS.index("a += 1")]
)


@st.composite
def drawn_modules(draw: st.DrawFn) -> str:
    body = draw(st.lists(st.sampled_from(EXPORTABLE), min_size=1, max_size=4))
    lines = ["steps = steps + 1", *map(_at_the_margin, body)]
    header = f"while ({draw(st.sampled_from(TESTS))}) and steps < 9:"
    results = draw(st.lists(st.sampled_from(("a", "b", "total", "x * n", "a + flag")), min_size=1, max_size=3))
    before = ("a, b = x * 1, x + 1", "n = 0", "steps = 0", "flag = x.sum() < 99", "total = torch.zeros_like(x)")
    code = "\n".join(
        [*before, header, *(indent(one, "    ") for one in lines), f"return x * steps, {', '.join(results)}"]
    )
    if draw(st.booleans()):
        code = f"def run(x):\n{indent(code, '    ')}\nreturn run(x)"
    return f"import torch\n\nclass Drawn(torch.nn.Module):\n    def forward(self, x):\n{indent(code, ' ' * 8)}\n"


def _check_program(source: str, folder: Path) -> bool:
    """Whether it has a program, which then gives what eager gives."""
    path = folder / f"drawn_{hashlib.sha256(source.encode()).hexdigest()[:12]}.py"
    path.write_text(source)
    eager = import_factory_file(path).Drawn()
    call = ExportCall(module=eager, args=(torch.linspace(-0.3, 0.9, 4),), dynamic_shapes=ROWS)
    try:
        with apply_shims([find("while-as-while-loop")], call) as changed:
            program = export_program(changed).module()
    except NotApplicable:
        return False
    except Exception as error:  # of the export, as without the shim; another one would be the shim's own fault
        if "data-dependent" not in str(error):
            raise
        return False
    for seed, scale in enumerate((0.1, 1.0, 5.0, 40.0)):
        x = (torch.rand(3 + seed, generator=torch.Generator().manual_seed(seed)) - 0.4) * scale
        for one, other in zip(program(x), eager(x), strict=True):
            torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other), msg=lambda said: source + said)
    return True


@pytest.mark.long
@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(source=drawn_modules())
def test_drawn_programs_compute_what_eager_does(source: str, tmp_path: Path) -> None:
    _check_program(source, tmp_path)


@pytest.mark.night
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(source=drawn_modules())
def test_many_drawn_programs_compute_what_eager_does(source: str, tmp_path: Path) -> None:
    _check_program(source, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "why"),
    [
        (Growing, "does not take that of"),
        (Written, "written into"),
        (Shared, "shares memory"),
        (Summing, "of several kinds"),
        (Sometimes, "no eager run takes a step"),
    ],
)
def test_what_the_program_could_not_do_is_refused(module: type[nn.Module], why: str) -> None:
    call = ExportCall(module=module(), args=(torch.rand(3, 4) + 1,))
    with (
        pytest.raises(NotApplicable, match=why),
        apply_shims([find("while-as-while-loop")], call) as changed,
    ):
        export_program(changed)


@pytest.mark.parametrize("shim", ["while-as-while-loop", "branch-as-where"])
def test_code_that_python_was_given_as_text_is_named_as_the_reason(shim: str) -> None:
    own: dict[str, Any] = {"torch": torch}
    text = (
        "class Typed(torch.nn.Module):\n    def forward(self, x):\n        while x.sum() > 1:\n            x = x / 2\n"
        "        return -x if x.sum() < 0 else x\n"
    )
    exec(text, own)
    call = ExportCall(module=own["Typed"](), args=(torch.ones(3),))
    with pytest.raises(NotApplicable, match=r"no source to rewrite of Typed\.forward"), apply_shims([find(shim)], call):
        pass


def _inputs() -> list[Tensor]:
    chance = torch.Generator().manual_seed(1)
    drawn = [(torch.rand(4, generator=chance) - 0.4) * scale for scale in (0, 0.1, 1, 3, 9, 50, -5)]
    return [*drawn, torch.full((4,), float("nan"))]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "shims"),
    [
        (while_stories.LargerNumber, ("while-as-while-loop",)),
        (while_stories.EmptyModules, ("while-as-while-loop",)),
        (while_stories.OwnVariable, ("while-as-while-loop",)),
        (while_stories.Nested, ("while-as-while-loop",)),
        (while_stories.BranchFirst, ("while-as-while-loop",)),
        (while_stories.Around, ("while-as-while-loop", "branch-as-where")),
        (while_stories.Around, ("branch-as-where", "while-as-while-loop")),
        (while_stories.AroundExit, ("while-as-while-loop",)),
    ],
)
def test_what_was_once_computed_wrongly(module: type[nn.Module], shims: tuple[str, ...]) -> None:
    eager = module().eval()
    expected = [eager(x) for x in _inputs()]
    call = ExportCall(module=eager, args=(torch.linspace(-0.3, 0.9, 4) * 3,))
    with apply_shims([find(one) for one in shims], call) as changed:
        torch.testing.assert_close([eager(x) for x in _inputs()], expected, equal_nan=True)
        program = export_program(changed).module()
    torch.testing.assert_close([program(x) for x in _inputs()], expected, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "why"),
    [
        (while_stories.MixedFlag, r"MixedFlag\.forward:1: one arm gives a tensor, the other none"),
        (while_stories.BecomesFloat, "another value of what was a number of type int"),
    ],
)
def test_values_of_other_kinds_than_the_observed_are_refused(module: type[nn.Module], why: str) -> None:
    call = ExportCall(module=module(), args=(torch.ones(4) * 2,))
    with (
        pytest.raises(NotApplicable, match=why),
        apply_shims([find("while-as-while-loop")], call) as changed,
    ):
        export_program(changed)


@pytest.mark.slow
def test_an_arm_that_sorts_a_list_stays_a_branch() -> None:
    call = ExportCall(module=while_stories.Sorted(), args=(torch.ones(4),))
    with (
        pytest.raises(Exception, match=r"data-dependent|more than compute"),
        apply_shims([find("branch-as-where")], call) as changed,
    ):
        export_program(changed)
