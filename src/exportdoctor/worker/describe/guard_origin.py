"""Where the guard was made that a declared dynamic dimension violates, and what asked for it.

torch reports the violation after tracing, without a line.

`ShapeGuard.sloc` holds torch's own frame and, outside of strict mode, no user frame; so guards are noted as they are
made. A symbol is known by its sources (`L['x'].size()[0]`), which stand in the message, or by its `Dim`'s name.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import sympy  # type: ignore[import-untyped]

from exportdoctor.core.exception_text import text_of
from exportdoctor.core.failure.messages import fixed_sizes, statement, violation_entries
from exportdoctor.core.records.outcome import Frame
from exportdoctor.torch_internals.shape_env import before_each_guard, dim_names_by_source, sources_by_symbol
from exportdoctor.worker.describe.fixed_by_torch import function_that_fixes
from exportdoctor.worker.describe.guard_asker import NOBODY, GuardAsker, asker_of
from exportdoctor.worker.describe.module_stack import running_modules
from exportdoctor.worker.describe.symbol_origins import frames_of_attempt, user_frame_of

_KEPT = 20_000
_QUOTED = re.compile(r"satisfy the generated guard (.+?)\.?$", re.MULTILINE)
_SAME = {"==": ("==",), "!=": ("!=",), **dict.fromkeys(("<=", ">="), ("<=", ">=")), **dict.fromkeys("<>", ("<", ">"))}
"""How torch may write a relation."""
_LONGEST_STATEMENT = 1_000_000
"""Characters of a message that names the dimensions."""


@dataclass(frozen=True)
class Guard:
    """One assumption of the tracer: `expr` holds. `target` is what `symbol` was replaced by, if it was.

    `running` are the modules whose code ran then, innermost first, by their `state_id`; `asker` is what asked for it,
    `fixed_by` the function of torch whose own code took the size as a number.
    """

    env: Any
    expr: sympy.Basic
    frame: Frame | None
    running: tuple[int, ...] = ()
    symbol: sympy.Symbol | None = None
    target: sympy.Basic | None = None
    asker: GuardAsker = NOBODY
    fixed_by: str = ""

    @property
    def symbols(self) -> set[sympy.Basic]:
        """The symbols that it is about."""
        return set(self.expr.free_symbols)


@dataclass
class GuardLog:
    """The guards of one attempt, in the order in which they were made."""

    made: list[Guard] = field(default_factory=list)

    def find_violated(self, chain: tuple[BaseException, ...]) -> Guard | None:
        """The guard of the innermost constraint violation in `chain`; if there is one, one of a user's line."""
        statement = next((text for error in reversed(chain) if (text := _statement(error))), None)
        return self._find_of(statement) if statement is not None else None

    def find_each(self, chain: tuple[BaseException, ...]) -> dict[str, Guard]:
        """Where several dimensions are violated, the guard of each by its entry in the message; empty for one."""
        statement = next((text for error in reversed(chain) if (text := _statement(error))), "")
        entries = violation_entries(statement)
        found = {entry: guard for entry in entries.values() if (guard := self._find_of(entry)) is not None}
        return found if len(entries) > 1 else {}

    def _find_of(self, statement: str) -> Guard | None:
        """The guard that what a message states is about."""
        # strict mode traces twice: the later tracing is the one that failed
        for env in dict.fromkeys(guard.env for guard in reversed(self.made)):
            made, mentioned = [guard for guard in self.made if guard.env is env], _symbols_in(env, statement)
            mine = [guard for guard in made if guard.frame is not None]
            found = _to_blame(mine, mentioned, statement)
            if found is None and (mentioned or not _is_of_small_example(statement)):
                found = _only_one(mine, env, statement)
            found = found or _to_blame(made, mentioned, statement)  # a module of torch has no line of a user
            if found is not None:
                return found
        return None


@contextmanager
def record_guards() -> Iterator[GuardLog]:
    """Record every guard and every replacement of a symbol that is made inside, up to 20,000."""
    log = GuardLog()

    def on_guard(env: Any, expression: sympy.Basic) -> None:
        if len(log.made) < _KEPT:
            log.made.append(_guard_here(env, expression, sys._getframe(1)))

    def on_replacement(env: Any, symbol: sympy.Symbol, target: sympy.Basic) -> None:
        if len(log.made) < _KEPT:
            equal = sympy.Eq(symbol, target, evaluate=False)
            made = _guard_here(env, equal, sys._getframe(1))
            log.made.append(dataclasses.replace(made, symbol=symbol, target=target))

    with before_each_guard(on_guard, on_replacement):
        yield log


def _guard_here(env: Any, expression: sympy.Basic, frame: FrameType) -> Guard:
    running = running_modules(frames_of_attempt(frame))
    return Guard(
        env, expression, user_frame_of(frame), running, asker=asker_of(frame), fixed_by=function_that_fixes(frame)
    )


def _statement(error: BaseException) -> str | None:
    text = text_of(error, _LONGEST_STATEMENT)
    violated = "onstraints violated" in text or type(error).__name__ == "ConstraintViolationError"
    return statement(text) if violated else None


def _is_of_small_example(statement: str) -> bool:
    """Whether it is about sizes of zero or one alone: torch makes no symbol of them, so that no guard is about them."""
    fixed = fixed_sizes(statement)
    return bool(fixed) and {*fixed} <= {"0", "1"} and "generated guard" not in statement


def _symbols_in(env: Any, statement: str) -> list[sympy.Basic]:
    """The symbols whose dimension the message names."""
    dims = dim_names_by_source(env)
    found: list[sympy.Basic] = []
    for symbol, sources in sources_by_symbol(env).items():
        for name in sources:
            named = [name, *filter(None, [dims.get(name)])]  # a source of a derived dimension is its name, such as `h`
            if any(re.search(rf"(?<!\w){re.escape(one)}(?!\w)", statement) for one in named):
                found.append(symbol)
                break
    return found


def _to_blame(guards: list[Guard], mentioned: list[sympy.Basic], statement: str) -> Guard | None:
    """The guard that the message quotes, or that froze the dimension, or that tied it to another one, or else the first
    that bounds it."""
    if "constant" in statement:
        frozen = next((one for symbol in mentioned if (one := _frozen(guards, symbol))), None)
        if frozen is not None:
            return frozen
    about = [guard for guard in guards if guard.symbols.intersection(mentioned)]
    quotes = sorted(
        _QUOTED.findall(statement), key=lambda text: " == " not in text or "%" in text
    )  # what fixes the size
    texts = (_without_sources(text, guards) for text in quotes)
    same = next((guard for text in texts for guard in about if _reads_as(guard.expr, text)), None)
    same = same or next((guard for text in quotes if (guard := _find_bound(about, text)) is not None), None)
    if same is not None:
        return same
    tied = next((guard for guard in about if len(guard.symbols.intersection(mentioned)) > 1), None)
    quoted = next((guard for guard in about if _numbers(guard.expr) & _numbers_in(statement)), None)
    return tied or quoted or (about[0] if about else None)


def _find_bound(guards: list[Guard], text: str) -> Guard | None:
    """The guard about one size from which a range follows that torch quotes, as `2 <= size and size <= 63` does from
    `size < 64`; its upper end before its lower one."""
    plain = _without_sources(text, guards)
    upper = [(int(end), int(end) + 1) for end in re.findall(r"size <= (\d+)", plain)]
    lower = [(int(end), int(end) - 1) for end in re.findall(r"(\d+) <= size", plain)]
    alone = [guard for guard in guards if len(guard.symbols) == 1]
    for inside, outside in (*upper, *lower):
        for guard in alone:
            if _holds_at(guard.expr, inside) is True and _holds_at(guard.expr, outside) is False:
                return guard
    return None


def _holds_at(expr: sympy.Basic, size: int) -> bool | None:
    """Whether a guard about one size holds at it; None if that is not known."""
    try:
        value = expr.subs(next(iter(expr.free_symbols)), size)
    except (ArithmeticError, AssertionError, TypeError, ValueError):  # a function of torch's own refuses the size
        return None
    return bool(value) if value in (sympy.true, sympy.false) else None


def _only_one(guards: list[Guard], env: Any, statement: str) -> Guard | None:
    """The guard to blame if the message does not name dimensions by their sources and only one guard fits.

    Strict mode (torch 2.13) traces `L['flat_args'][0]` and puts the parameter's name in the message.
    """
    found = [one for symbol in sources_by_symbol(env) if (one := _to_blame(guards, [symbol], statement)) is not None]
    return found[0] if len({guard.frame for guard in found}) == 1 else None


def _frozen(guards: list[Guard], symbol: sympy.Basic) -> Guard | None:
    """The replacement by a constant, of the symbol itself or of one that took its place before.

    torch writes that constant to the symbol as well, whenever it next meets it: where it was decided says more.
    """
    seen: set[sympy.Basic] = set()
    found: Guard | None = None
    while symbol not in seen:
        seen.add(symbol)
        mine = [guard for guard in guards if guard.symbol == symbol and guard.target is not None]
        plain = [one for one in mine if one.target is not None and (one.target.is_number or one.target.is_Symbol)]
        constant = next((one for one in plain if one.target is not None and one.target.is_number), None)
        found = constant or found
        if not plain or plain[0] is constant:
            return found
        symbol = next(one.target for one in plain if one is not constant)
    return found


def _without_sources(text: str, guards: list[Guard]) -> str:
    """A guard as torch writes it, with `size` for the sizes of inputs, whose names have numbers of their own."""
    names = {name for guard in guards[:1] for sources in sources_by_symbol(guard.env).values() for name in sources}
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, "size")
    return text


def _reads_as(expr: sympy.Basic, text: str) -> bool:
    """Whether a guard has the relation and the numbers of that text, in which torch may have changed the sides."""
    relation = re.search(r"[<>=!]=|[<>]", text)
    if not isinstance(expr, sympy.core.relational.Relational) or relation is None or " and " in text:
        return False
    numbers = {abs(one) for one in _numbers(expr)}
    return relation[0] in _SAME[expr.rel_op] and numbers == {one for one in _numbers_in(text) if one > 1}


def _numbers(expr: sympy.Basic) -> set[int]:
    return {int(number) for number in expr.atoms(sympy.Integer) if abs(number) > 1}


def _numbers_in(statement: str) -> set[int]:
    """The whole numbers in it, which no part of a fraction is."""
    return {int(text) for text in re.findall(r"(?<![\d.])\d+(?![\d.])", statement.replace(".\n", "\n").rstrip("."))}
