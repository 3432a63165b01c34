"""Each pass takes what it exists for: a case before and after."""

from __future__ import annotations

from functools import partial
from textwrap import dedent

import pytest

from exportdoctor.reduce import SearchLimits, Verdict, drive, source_size, until_no_progress
from exportdoctor.reduce.source import PASSES, SourcePass
from exportdoctor.reduce.source.passes.aliases import drop_aliases
from exportdoctor.reduce.source.passes.leaps import share_sizes
from exportdoctor.reduce.source.passes.tidy import drop_idle_statements
from exportdoctor.reduce.source.source_version import SourceVersion

CASES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "thin_statements": (
        """
        class A:
            pass
        class B:
            pass
        def f(x):
            y = x + 1
            z = y + 2
            int(y)
            return z
        def g(x):
            return x
        """,
        ("int(y)", "y = x"),
        """
        def f(x):
            y = x + 1
            int(y)
        """,
    ),
    "unwrap_blocks": (
        """
        def f(grid):
            if grid:
                with no_grad():
                    for row in grid:
                        int(grid[0])
            else:
                try:
                    pass
                finally:
                    print()
        """,
        ("def f", "int(grid[0])"),
        """
        def f(grid):
            int(grid[0])
        """,
    ),
    "inline_attributes": (
        """
        class Config:
            depth = 2
        class M:
            def __init__(self):
                self.config = Config()
                self.scale = 3
            def forward(self, x):
                for _ in range(self.config.depth):
                    int(x * self.scale)
        """,
        ("for _ in range", "int(x"),
        """
        class Config:
            pass
        class M:
            def __init__(self):
                self.config = Config()
            def forward(self, x):
                for _ in range(2):
                    int(x * 3)
        """,
    ),
    "narrow_zips": (
        """
        def f(a, b):
            parts = [t.split(2) for t in (a, b)]
            [int(x.sum() + y.sum()) for x, y in zip(*parts)]
        """,
        ("int(x", "t.split(2)", "for t"),
        """
        def f(a, b):
            parts = [t.split(2) for t in (a,)]
            [int(x.sum() + x.sum()) for x in parts[0]]
        """,
    ),
    "unroll_loops": (
        """
        def f(grid):
            for t, h, w in grid.tolist():
                int(w)
            for i, (a, b) in enumerate(zip(grid, grid)):
                int(b)
            for n in range(8):
                print(n)
        """,
        ("int", "print"),
        """
        def f(grid):
            int(grid.tolist()[0][2])
            int(zip(grid, grid)[0][1])
            print(0)
        """,
    ),
    "bypass_children": (
        """
        class Block:
            def __init__(self):
                self.norm = Norm(8)
                self.attn = Attention(8)
            def forward(self, x, mask):
                x = x + self.norm(x)
                return self.attn(self.norm(x), mask)
        """,
        ("self.attn(", "Attention"),
        """
        class Block:
            def __init__(self):
                self.attn = Attention(8)
            def forward(self, x, mask):
                x = x + x
                return self.attn(x, mask)
        """,
    ),
    "drop_methods": (
        """
        class Block(Layer):
            scale = 2
            def __init__(self):
                super().__init__()
            def extra(self):
                return 1
            def forward(self, x):
                return int(x)
        class Tower(Layer):
            pass
        Block()(Tower())
        """,
        ("class Block", "int(x)"),
        """
        class Block(Layer):
            def forward(self, x):
                return int(x)
        Block()(Layer())
        """,
    ),
    "adopt_bases": (
        """
        import torch
        from library import PreTrainedModel, Config
        class Tower(PreTrainedModel):
            def __init__(self, config):
                super().__init__(config, attn=None)
        """,
        (),
        """
        import torch
        from library import Config
        class Tower(torch.nn.Module):
            def __init__(self, config):
                super().__init__()
        """,
    ),
    "drop_names": (
        """
        class Block:
            def __init__(self):
                self.scale = 2.0
                self.size = 8
            def forward(self, x):
                y = x * self.scale
                x = x * self.scale
                print(y)
                return int(x, self.size)
        """,
        ("int(x, self.size)",),
        """
        class Block:
            def __init__(self):
                self.size = 8
            def forward(self, x):
                return int(x, self.size)
        """,
    ),
    "drop_parameters": (
        """
        class Block:
            def __init__(self, size, depth=2):
                self.size = size
            def forward(self, x, mask, *, scale=None):
                return int(x)
        class Tower:
            def __init__(self):
                self.block = Block(8, depth=3)
            def forward(self, x, mask):
                return self.block(x, mask, scale=1)
        export(Tower(), (pixels, m), dynamic_shapes=({0: n}, None), kwargs={'mask': m})
        """,
        ("int(x)", "self.size = size"),
        """
        class Block:
            def __init__(self, size):
                self.size = size
            def forward(self, x):
                return int(x)
        class Tower:
            def __init__(self):
                self.block = Block(8)
            def forward(self, x):
                return self.block(x)
        export(Tower(), (pixels,), dynamic_shapes=({0: n},), kwargs={})
        """,
    ),
    "borrow_state": (
        """
        class A(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = torch.nn.Parameter(torch.ones(2))
            def forward(self, x):
                return x * self.scale
        class B(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("memory", None)
            def forward(self, x):
                self.memory = x
        export(A(), B())
        """,
        ("x * self.", "self."),
        """
        class A(torch.nn.LayerNorm):
            def forward(self, x):
                return x * self.weight
        class B(torch.nn.BatchNorm1d):
            def forward(self, x):
                self.running_mean = x
        export(A(2), B(1))
        """,
    ),
    "inline_lambdas": (
        """
        def crop(x):
            if x:
                pass
        def keep():
            pass
        def twice(x):
            return x
        cond(n, crop, keep, twice, twice)
        """,
        ("cond", "if x"),
        """
        def twice(x):
            return x
        cond(n, lambda x: None if x else None, lambda: None, twice, twice)
        """,
    ),
    "drop_fields": (
        """
        class Output:
            scores: object
            hidden: object = None
            size: int = 0
        def f(x):
            return Output(x, hidden=x, size=3) or Output(x, x)
        """,
        ("Output(x",),
        """
        class Output:
            scores: object
        def f(x):
            return Output(x) or Output(x)
        """,
    ),
    "drop_arguments": (
        "softmax(scores, dim=-1, dtype=torch.float32)",
        ("softmax(scores",),
        "softmax(scores)",
    ),
    "drop_optional_parts": (
        """
        from typing import Optional, Any
        @merge_with_defaults
        def forward(x: Tensor, mask: Optional=None, *more, scale: Any=1, **kwargs: Any) -> Output:
            a: int = x[1:5:2]
            assert x, 'message'
            return [y for y in x if y]
        """,
        ("def forward(x", "scale"),
        """
        from typing import Optional
        def forward(x, mask, *, scale):
            a: int = x[:]
            assert x
            return [y for y in x]
        """,
    ),
    "drop_elements": (
        "f((last, pooled, attentions), {'a': 1, 'b': 2}, a < b < c, a or b or c)",
        ("pooled", "'b'", "b < c", "or c"),
        "f((pooled,), {'b': 2}, b < c, a or c)",
    ),
    "drop_paired_elements": (
        """
        t, h, w = (int(t), int(h), int(w))
        for a, b in zip(xs, ys):
            print()
        for i, z in enumerate(zs, 1):
            print()
        """,
        ("int(w)", "ys"),
        """
        w = int(w)
        for b in ys:
            print()
        for z in zs:
            print()
        """,
    ),
    "simplify_expressions": (
        """
        import torch
        y = self.norm(x + self.bias).reshape(-1, 4)[0]
        z = torch.cat([torch.zeros(8), y])
        int(y + z * 2)
        z[:, : len(w)]
        """,
        ("y = ", "x", "int(y", "z = ", "len(w)"),
        """
        import torch
        y = x
        z = None
        int(y)
        len(w)
        """,
    ),
    "inline_functions": (
        """
        def double(x, by=2):
            return x * by
        def window_index(grid, window):
            counts = grid.tolist()
            return (int(counts), window)
        def forward(grid):
            index = window_index(grid, double(3, by=4))
            return index
        """,
        ("int(counts)", "return index"),
        """
        def forward(grid):
            window = 3 * 4
            counts = grid.tolist()
            index = (int(counts), window)
            return index
        """,
    ),
    "inline_assignments": (
        """
        counts = grid.tolist()
        first = counts[0]
        first = int(first)
        print(first)
        """,
        ("int(", "tolist"),
        "print(int(grid.tolist()[0]))",
    ),
    "inline_imports": (
        """
        import torch
        from torch import nn
        from torch.nn import functional
        class Model(nn.Module):
            pass
        functional.relu(1)
        """,
        (),
        """
        import torch
        from torch.nn import functional
        class Model(torch.nn.Module):
            pass
        functional.relu(1)
        """,
    ),
    "drop_targets": (
        """
        def f(x):
            hidden = int(x)
            hidden: int = int(x)
            x += 1
            return int(x)
        """,
        (),
        """
        def f(x):
            int(x)
            int(x)
            1
            int(x)
        """,
    ),
    "simplify_literals": (
        "f('a text', b'bytes', f'{x}', -3.4028234663852886e+38, 2.75, 0.5)",
        ("2.75", "-", "0.5"),
        "f('', b'', '', -0, 2.75, 0.5)",
    ),
    "shrink_integers": ("zeros(1176, 1280, 7, True)", ("80",), "zeros(1, 80, 1, True)"),
}


def after(run: SourcePass, start: str, needed: tuple[str, ...]) -> str:
    def ask(candidate: str) -> Verdict:
        return Verdict.YES if all(words in candidate for words in needed) else Verdict.NO

    version = SourceVersion.of(start)
    assert version is not None
    search = until_no_progress(version.text, (partial(run, allowed=version.undefined),))
    answer = drive(search, ask, start=version.text, limits=SearchLimits(size=source_size)).answer
    assert answer is not None
    return answer


@pytest.mark.parametrize("run", PASSES, ids=lambda run: run.__name__)
def test_the_pass_takes_what_it_exists_for(run: SourcePass) -> None:
    before, needed, expected = CASES[getattr(run, "__name__", "")]
    wanted = SourceVersion.of(dedent(expected))
    assert wanted is not None
    assert after(run, dedent(before), needed) == wanted.text


def test_a_name_that_nothing_defines_is_not_proposed() -> None:
    """Without the assignment the print would raise a NameError, which is known without asking."""
    asked: list[str] = []

    def ask(candidate: str) -> Verdict:
        asked.append(candidate)
        return Verdict.YES if "print" in candidate else Verdict.NO

    run = next(run for run in PASSES if getattr(run, "__name__", "") == "thin_statements")
    start = "x = 1\ny = 2\nprint(x)"
    drive(run(start, frozenset()), ask, start=start)
    assert "x = 1\nprint(x)" in asked
    assert not {"print(x)", "y = 2\nprint(x)"} & set(asked)


def test_an_attribute_of_self_that_nothing_sets_is_not_proposed() -> None:
    method = "    def f(self):\n        return self.x + self.training"
    start = f"class A:\n    def g(self):\n        self.x = 1\n{method}"
    version = SourceVersion.of(start)
    assert version is not None
    assert version.undefined == {".training"}
    assert "self.x = 1" in after(PASSES[0], start, ("return self.x",))


def test_a_value_keeps_one_name_and_what_nothing_reads_goes() -> None:
    source = dedent(
        """
        def forward(x, y):
            a = x
            b = y[0]
            c = a.sum()
            d = c
            x = x + 1
            e = [d]
            ()
            f = int(x)
            return e[0].view(a)
        """
    )
    found = drop_aliases(drop_idle_statements(source))
    expected = ["a = x", "c = a.sum()", "x = x + 1", "e = [c]", "f = int(x)", "return e[0].view(a)"]
    assert [line.strip() for line in found.splitlines()[1:]] == expected


def test_what_leads_from_one_size_to_another_is_cut_at_once() -> None:
    """The failure needs a padded tensor and two sums; the chain between is as long as a network."""
    chain = "".join(f"    c{n} = conv(ones(x.shape[0], c{n - 1}.shape[2]))\n" for n in range(1, 40))
    source = f"def forward(x):\n    c0 = pad(x)\n{chain}    return ones(c39.shape[2]) + ones(2, c38.shape[2])\n"
    asked = []

    def judge(text: str) -> Verdict:
        asked.append(text)
        return Verdict.YES if "pad(x)" in text else Verdict.NO

    found = drive(share_sizes(source), judge, start=source, limits=SearchLimits[str](size=source_size))
    assert found.answer is not None
    assert "return ones(c0.shape[2]) + ones(2, c0.shape[2])" in found.answer
    assert "x.shape[0]" in found.answer
    assert len(asked) == 2  # the source itself, and one candidate
