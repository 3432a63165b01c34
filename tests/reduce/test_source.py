"""The source reducer, for any program and any predicate: valid, interesting, no larger, always the same."""

from __future__ import annotations

import ast
import contextlib
import io
import time
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import exportdoctor.reduce as reduce_room
from exportdoctor.reduce import (
    Ended,
    SearchLimits,
    SearchResult,
    Verdict,
    drive,
    reduce_source,
    source_distance,
    source_size,
)
from exportdoctor.reduce.source import PASSES
from exportdoctor.reduce.source.names import names_in
from exportdoctor.reduce.source.source_version import SourceVersion
from exportdoctor.reduce.source.sweep import SourcePass
from exportdoctor.reduce.source.tree import weight

Ask = Callable[[str], Verdict]

SNIPPETS = tuple(
    """
import math as m
from math import sqrt, pi as p
---
def f(a, b=2, *c, d, e=3, **k):
    'text'
    for i, j in zip(a, b):
        a += i
    return a, b, d
---
f(1, [2, 3], d=4, e={'k': 5, **{}}, z=f'{6:>{7}}')
---
class A(object):
    x: int = 1
    def __init__(self, n):
        self.n = n
    def g(self, y): return y + self.n
---
a = A(3)
for _ in range(4):
    a.g(5)[0:1, ...]
else:
    del a
---
try:
    with open('x') as h, open('y'):
        h.read()
except (ValueError, OSError) as err:
    raise err from None
finally:
    pass
---
match [1, {'a': 2}]:
    case [x, {'a': 2 | 3}] if x > 0:
        y = x
    case _:
        y = -1.5e300 + 1e999
---
async def h(q):
    async with q as r:
        async for s in r:
            await s
    return [t async for t in q]
---
w = (lambda u, *v: u if u else not v)(1) or 0 < 1 < 2 and 3 ** -4
---
z = {k: v for k, v in {}.items() if k if v} | {*()} or [b'bytes' + b'', *(1, 2)]
---
while (n := 10) > 3:
    if n % 2:
        continue
    elif n:
        break
    assert n, 'm'
---
def gen():
    global G
    G = yield 1
    yield from gen()
    def inner():
        deeper = 1
        return deeper
---
@staticmethod
def one(x: 'int', /, y, *, z=0) -> 'str':
    return y
one(1, 2, z=3)
t = one(4, y=5)
""".removeprefix("\n").split("---\n")
)
programs = st.tuples(
    st.sampled_from(("", "from __future__ import annotations\n")),
    st.lists(st.sampled_from(SNIPPETS), min_size=1, max_size=4).map("".join),
).map("".join)


def weighed(program: str) -> int:
    return weight(ast.parse(program))


def undefined(program: str) -> frozenset[str]:
    return names_in(program, ast.parse(program)).undefined


def arbitrary(start: str, seed: int, odds: int) -> Ask:
    def ask(candidate: str) -> Verdict:
        chance = crc32(f"{seed}{candidate}".encode()) % odds
        return Verdict.YES if candidate == start or chance == 0 else (Verdict.NO, Verdict.UNKNOWN)[chance % 2]

    return ask


def reduced(start: str, ask: Ask) -> SearchResult[str, str]:
    limits = SearchLimits(size=source_size, distance=source_distance)
    return drive(reduce_source(start), ask, start=start, limits=limits)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@settings(max_examples=40, deadline=None)
@given(programs, st.integers(0, 10**6), st.integers(1, 12))
def test_every_candidate_compiles_and_adds_nothing_undefined(program: str, seed: int, odds: int) -> None:
    asked: list[str] = []

    def ask(candidate: str) -> Verdict:
        asked.append(candidate)
        return arbitrary(program, seed, odds)(candidate)

    reduced(program, ask)
    assert asked[0] == program
    for candidate in asked:
        compile(candidate, "<candidate>", "exec")
    assert [one for one in asked if not undefined(one) <= undefined(program)] == []


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(programs, st.integers(0, 10**6), st.integers(1, 12))
def test_the_result_is_interesting_no_larger_and_always_the_same(program: str, seed: int, odds: int) -> None:
    ask = arbitrary(program, seed, odds)
    result = reduced(program, ask)
    assert result.ended is Ended.FINISHED
    assert result.answer is not None
    assert ask(result.answer) is ask(result.smallest) is Verdict.YES
    assert weighed(result.answer) <= weighed(program)
    assert source_size(result.smallest) <= min(source_size(program), source_size(result.answer))
    assert reduced(program, ask) == result


@settings(max_examples=30, deadline=None)
@given(programs, st.integers(0, 10**6), st.sampled_from(PASSES))
def test_each_pass_makes_what_it_accepts_cheaper(program: str, seed: int, run: SourcePass) -> None:
    start = ast.unparse(ast.parse(program))
    ask = arbitrary(start, seed, 3)
    accepted = [start]

    def ask_and_record(candidate: str) -> Verdict:
        verdict = ask(candidate)
        if verdict is Verdict.YES and candidate != start:
            accepted.append(candidate)
        return verdict

    result = drive(run(start, undefined(start)), ask_and_record, start=start, limits=SearchLimits(size=source_size))
    assert result.answer == accepted[-1]
    costs = [version.cost for one in accepted if (version := SourceVersion.of(one)) is not None]
    assert len(costs) == len(accepted)
    assert costs == sorted(set(costs), reverse=True)


@settings(max_examples=20, deadline=None)
@given(programs, st.integers(0, 10**6))
def test_nothing_is_left_that_a_pass_could_take(program: str, seed: int) -> None:
    ask = arbitrary(program, seed, 4)
    once = reduced(program, ask).answer
    assert once is not None
    assert once == program or reduced(once, ask).answer == once


def test_what_everybody_finds_interesting_becomes_nothing() -> None:
    program = "".join(SNIPPETS)
    assert reduced(program, lambda candidate: Verdict.YES).smallest == ""


def test_a_source_that_fails_only_as_it_is_laid_out_stays_as_it_is() -> None:
    start = "x = 1  # a comment that matters\ny = 2\n"
    result = reduced(start, lambda candidate: Verdict.YES if "#" in candidate else Verdict.NO)
    assert (result.smallest, result.asked) == (start, 2)


def test_a_source_that_is_no_python_is_refused() -> None:
    with pytest.raises(SyntaxError):
        next(reduce_source("def f(:"))


def raised(candidate: str) -> str | None:
    """What running a source raises: the exception's type and message."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(candidate, "<candidate>", "exec"), {"__name__": "candidate"})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


TOWER = '''
import math

class Symbol:
    """A number that is not known yet."""
    def __init__(self, name): self.name = name
    def __int__(self): raise LookupError("no value is known")

class Grid:
    def __init__(self, *rows): self.rows = rows
    def tolist(self): return [[Symbol("t"), Symbol("h"), Symbol("w")] for _ in self.rows]

class Norm:
    def __init__(self, size, eps=1e-6):
        self.size, self.eps = size, eps
    def __call__(self, x):
        return [v / math.sqrt(self.size + self.eps) for v in x]

def window_index(grid, window, merge=2):
    index, total = [], 0
    for t, h, w in grid.tolist():
        t, h, w = int(t), int(h), int(w)
        index.append(list(range(t * (h // merge) * (w // merge))))
        total += len(index[-1]) + window
    return index, total

class Tower:
    def __init__(self, depth=4, size=1280):
        self.norm = Norm(size)
        self.blocks = [Norm(size) for _ in range(depth)]
        self.window = 112
        if depth > 2:
            self.scale = 0.5
    def unused(self): return self.window
    def __call__(self, pixels, grid, *, flag=False):
        x = self.norm(pixels)
        for block in self.blocks:
            x = block(x)
        index, total = window_index(grid, self.window)
        return x, index, total

print(Tower()([1.0, 2.0], Grid((1, 4, 4)), flag=True))
'''


def test_a_tower_that_reads_an_unknown_number_becomes_the_one_line_that_does() -> None:
    wanted = raised(TOWER)
    assert wanted == "LookupError: no value is known"

    def ask(candidate: str) -> Verdict:
        found = raised(candidate)
        return Verdict.NO if found is None else Verdict.YES if found == wanted else Verdict.UNKNOWN

    result = reduced(TOWER, ask)
    assert result.smallest.splitlines() == ["raise LookupError('no value is known')"]
    assert result.asked < 300


@pytest.mark.long
@pytest.mark.slow
def test_a_file_of_the_size_of_a_models_is_reduced_in_seconds() -> None:
    """Three thousand lines, of which two matter."""
    room = Path(reduce_room.__file__).parent
    text = "\n".join(
        path.read_text().replace("from __future__ import annotations\n", "") for path in sorted(room.rglob("*.py"))
    )
    began = time.process_time()
    result = reduced(
        text, lambda c: Verdict.YES if "def _bound_by(" in c and "yield statement.name" in c else Verdict.NO
    )
    assert result.ended is Ended.FINISHED
    assert len(result.smallest.splitlines()) <= 5
    assert time.process_time() - began < 30
