"""The code in place of a loop: a scan where it applies, and the loop as it was where it does not."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from exportdoctor.shims.rules.code.made_code import call_of, load, thunk
from exportdoctor.shims.rules.code.name_flow import SCAN_PREFIX
from exportdoctor.shims.rules.loops.loop_headers import LoopHeader
from exportdoctor.shims.rules.loops.loop_steps import LoopStep, RowIndex

APPLIES, BEGINS, SCAN, TAKE, MIRROR, KEEP, JOIN, WRITE, VALUE, NUMBERS = (
    f"{SCAN_PREFIX}{name}"
    for name in (
        "applies", "begins", "steps", "rows_of", "start_from_end", "with_rows", "join", "write_rows", "value_of",
        "numbers_of",
    )
)  # fmt: skip
"""What rewritten code calls."""

_STATE, _ROWS = f"{SCAN_PREFIX}state", f"{SCAN_PREFIX}rows"
_ONE = ast.Constant(1)


@dataclass(frozen=True)
class LoopCode:
    """What is known of the loop with this number in its function, in whose own body loops are rewritten already: `body`
    is that of a step, which carries the names `carried`. `shared` has the rows that are such a name's value where a
    step ends."""

    number: int
    loop: ast.For
    header: LoopHeader
    step: LoopStep
    body: Sequence[ast.stmt]
    carried: Sequence[str]
    shared: Mapping[str, str]

    def statements(self) -> list[ast.stmt]:
        """The statements in place of the loop."""
        asked = self._conditions()
        made: list[ast.stmt] = [
            *self.header.before,
            _bind(self._name("start"), self.header.start),
            _bind(self._name("length"), ast.BinOp(self.header.stop, ast.Sub(), self._start)),
            _bind(self._name("begun"), call_of(BEGINS, *asked)),
            ast.If(load(self._name("begun")), self._first_step(), []),
            ast.If(call_of(APPLIES, *asked), self._scan(), [self._as_it_was()]),
        ]
        return [ast.fix_missing_locations(ast.copy_location(copy.deepcopy(one), self.loop)) for one in made]

    def _name(self, what: str) -> str:
        return f"{SCAN_PREFIX}{what}_{self.number}"

    @property
    def _start(self) -> ast.expr:
        return load(self._name("start"))

    @property
    def _stop(self) -> ast.expr:
        return ast.BinOp(self._start, ast.Add(), load(self._name("length")))

    def _conditions(self) -> list[ast.expr]:
        """What decides whether a scan applies: numbers, the state, and lists."""
        numbers = [load(self._name("length")), *(call_of(VALUE, thunk(one)) for one in self.step.ends)]
        state = [call_of(VALUE, thunk(load(name))) for name in self.carried]
        return [_tuple(numbers), _tuple(state), _tuple(load(one.name) for one in self.step.outputs if one.is_listed)]

    # --- the loop as it was

    def _first_step(self) -> list[ast.stmt]:
        """Run it, and go on behind it."""
        shorter = ast.AugAssign(ast.Name(self._name("length"), ast.Store()), ast.Sub(), _ONE)
        if self.header.backwards:
            return [self._run(_tuple([ast.BinOp(self._stop, ast.Sub(), _ONE)])), shorter]
        later = ast.AugAssign(ast.Name(self._name("start"), ast.Store()), ast.Add(), _ONE)
        return [self._run(_tuple([self._start])), later, shorter]

    def _as_it_was(self) -> ast.stmt:
        indices = call_of("range", self._start, self._stop)
        plain = self._run(call_of("reversed", indices) if self.header.backwards else indices)
        if self.header.over is None:
            return plain
        whole = ast.For(self.loop.target, self.header.over, self.loop.body, [])
        return ast.If(load(self._name("begun")), [plain], [whole])

    def _run(self, over: ast.expr) -> ast.For:
        return ast.For(ast.Name(self.header.index, ast.Store()), over, self.header.body, [])

    # --- the scan

    def _scan(self) -> list[ast.stmt]:
        number = [self.step.number] if self.step.number else []
        made, rows = [one.made for one in self.step.outputs], [*(one.name for one in self.step.inputs), *number]
        state = _tuple(map(load, self.carried))
        results = ast.Return(ast.Tuple([state, _tuple(map(load, made))], ast.Load()))
        unpacked = [_unpack(self.carried, load(_STATE)), _unpack(rows, load(_ROWS))]
        arguments = ast.arguments([], [ast.arg(_STATE), ast.arg(_ROWS)], None, [], [], None, [])
        body = [*(one for names in unpacked for one in names), *self.body, results]
        length, first = load(self._name("length")), [one.tensor for one in self.step.inputs[:1]]
        taken = _tuple(
            (
                *(
                    call_of(TAKE, one.tensor, ast.Constant(one.place), start, length, backwards)
                    for one in self.step.inputs
                    for start, backwards in [self._rows(one.tensor, one.place, one.row)]
                ),
                *(call_of(NUMBERS, self._start, length, ast.Constant(self.header.backwards), *first) for _ in number),
            )
        )
        run = call_of(SCAN, load(self._name("step")), state, taken, load(self._name("length")))
        return [
            ast.FunctionDef(self._name("step"), arguments, body, [], None, None),
            ast.Assign([ast.Tuple([_names(self.carried), _names(made)], ast.Store())], run),
            *self._share(),
            *self._keep(),
        ]

    def _rows(self, tensor: ast.expr, place: int, row: RowIndex) -> tuple[ast.expr, ast.expr]:
        """Where the rows begin that all steps read or write, and whether the first step has the last of them."""
        backwards = ast.Constant(self.header.backwards != (row.end is not None))
        if row.end is not None:
            length = load(self._name("length"))
            return call_of(MIRROR, row.end, tensor, ast.Constant(place), self._start, length), backwards
        start = self._start if row.shift == 0 else ast.BinOp(self._start, ast.Add(), ast.Constant(row.shift))
        return start, backwards

    def _share(self) -> list[ast.stmt]:
        last = ast.UnaryOp(ast.USub(), _ONE)
        return [_bind(name, ast.Subscript(load(row), last, ast.Load())) for row, name in self.shared.items()]

    def _keep(self) -> list[ast.stmt]:
        """Add the rows to their lists, and write them to their tensors."""
        made: list[ast.stmt] = []
        for one in self.step.outputs:
            name, rows = load(one.name), load(one.made)
            if one.is_listed:
                made.append(_bind(one.name, call_of(KEEP, name, rows, ast.Constant(one.is_first))))
            else:
                start, backwards = self._rows(name, one.place, one.row)
                made.append(ast.Expr(call_of(WRITE, name, ast.Constant(one.place), start, rows, backwards)))
        return made


def _bind(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _unpack(names: Sequence[str], value: ast.expr) -> list[ast.stmt]:
    return [ast.Assign([_names(names)], value)] if names else []


def _names(names: Sequence[str]) -> ast.Tuple:
    return ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())


def _tuple(parts: Iterable[ast.expr]) -> ast.Tuple:
    return ast.Tuple(list(parts), ast.Load())
