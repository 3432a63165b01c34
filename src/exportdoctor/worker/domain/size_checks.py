"""Which sizes an exported program refuses, and by which condition: evaluated without running the program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.records.outcome import Frame
from exportdoctor.core.records.size_domain import ConditionKind, SizeCondition
from exportdoctor.report.wording import size_domains as wording
from exportdoctor.torch_internals.program_checks import (
    ASSERTION,
    asserted_text,
    assertion_message,
    assertions_of,
    guard_texts,
    guards_of,
    size_assertions,
    size_ranges,
    violated_assertions,
    violated_guards,
)
from exportdoctor.torch_internals.shape_env import sources_by_symbol
from exportdoctor.worker.describe.guard_origin import Guard, GuardLog
from exportdoctor.worker.domain.check_numbers import CheckNumbers, numbers_in
from exportdoctor.worker.domain.condition_text import condition_text
from exportdoctor.worker.domain.size_axes import put_in, solve_linear
from exportdoctor.worker.domain.sized_inputs import Place, SizedInputs
from exportdoctor.worker.translate.failed_node import fx_fact, user_frame

_GUARD = re.compile(r"Guard failed: (.+)$")
_SIZE = re.compile(
    r"(?:L\['(?P<local>\w+)'\]|(?P<name>[A-Za-z_]\w*))(?P<rest>(?:\[[^\]]+\]|\.(?!size\(\))\w+)*)\.size\(\)\[(?P<dim>\d+)\]"
)
_SYMBOL = re.compile(r"\b[su]\d+\b")
_NAME = re.compile(r"[A-Za-z_]\w*")
_Found = tuple[str, ConditionKind, frozenset[Place]]
"""A violated condition, who asks for it, and the sizes that it is about."""


@dataclass(kw_only=True)
class SizeChecks:
    """The checks of a program. `module` is what runs; `log` are the guards of its export, with the user's lines.

    Of a program that takes some inputs as they are those about these alone: sizes, ranges and guards.
    """

    inputs: SizedInputs
    program: Any
    module: Any
    names: Mapping[str, str]
    log: GuardLog | None = None

    def __post_init__(self) -> None:
        self._ranges = size_ranges(self.program)
        self._guards = guards_of(self.module)
        self._assertions = assertions_of(self.program)
        self._on_sizes = size_assertions(self.program)
        self._symbols: dict[Any, Place] = {}
        for leaf, shape in self.inputs.shapes.items():
            exprs = list(enumerate(shape)) if isinstance(shape, tuple) else [(None, shape)]
            for dimension, expr in exprs:
                if getattr(expr, "is_Symbol", False):
                    self._symbols.setdefault(expr, (leaf, dimension))
        texts = [*map(asserted_text, self._assertions), *map(str, self.inputs.shapes.values())]
        if self._guards is not None and self.inputs.order is not None:
            texts += guard_texts(self._guards, self.inputs.hollow({}))
        self.numbers: CheckNumbers = numbers_in(texts)

    def refusal(self, sizes: Mapping[Place, int]) -> SizeCondition | None:
        """The first condition that these sizes violate; None if the program takes them as far as sizes go."""
        found = next(self._violated_shapes(sizes), None)
        if found is not None:
            return self._with_line(found[0], found[1], sizes)
        if self.inputs.order is None:
            frame, said = self._line_for(sizes)
            return self._condition(said, "guard", frame) if frame is not None else None
        leaves = self.inputs.hollow(sizes)
        if self._guards is not None:
            try:
                self._guards(*leaves)
            except AssertionError as error:
                text = _GUARD.search(first_line(error))
                return self._with_line(text[1] if text else first_line(error), "guard", sizes)
            except ZeroDivisionError:
                return self._condition(wording.DIVIDES_BY_ZERO, "guard", None)
            except Exception:  # a guard on what a hollow tensor does not have
                pass
        node = next(violated_assertions(self._on_sizes, leaves), None)
        return self._condition(asserted_text(node), "assertion", _frame_of(node)) if node is not None else None

    def find_violated(self, sizes: Mapping[Place, int]) -> dict[str, frozenset[Place]]:
        """Every condition that these sizes violate, as torch writes it, with the sizes that it is about."""
        found = {text: places for text, _, places in self._violated_shapes(sizes)}
        if self.inputs.order is not None:
            leaves = self.inputs.hollow(sizes)
            texts = violated_guards(self._guards, leaves) if self._guards is not None else []
            texts += map(asserted_text, violated_assertions(self._on_sizes, leaves))
            found |= {text: self._places_in(text) for text in texts}
        return found

    def condition_of_message(self, message: str) -> SizeCondition | None:
        """The condition that a program's exception is about."""
        for kind, pattern in (("guard", _GUARD), ("assertion", ASSERTION)):
            found = pattern.search(message)
            if found:
                node = self._assertion_of(found[1]) if kind == "assertion" else None
                return self._condition(found[1], "assertion" if kind == "assertion" else "guard", _frame_of(node))
        return None

    def conditions_on_values(self) -> list[SizeCondition]:
        """The program's assertions on what is known only when it runs."""
        found = []
        for node in self._assertions:
            said = asserted_text(node)
            if said and (said == assertion_message(node) or re.search(r"\bu\d+\b", said)):
                found.append(self._condition(said, "assertion", _frame_of(node)))
        return found

    def _violated_shapes(self, sizes: Mapping[Place, int]) -> Iterator[_Found]:
        """What fixed sizes, ranges, and relations between sizes in the program's signature refuse."""
        values: dict[Any, int] = {}
        derived = []
        for leaf, shape in self.inputs.shapes.items():
            exprs = list(enumerate(shape)) if isinstance(shape, tuple) else [(None, shape)]
            for dimension, expr in exprs:
                place = (leaf, dimension)
                if expr is None or (dimension is None and not isinstance(self.inputs.leaves[leaf], int)):
                    continue
                size = sizes.get(place, self.inputs.size_at(place))
                name = self._name(self.inputs.place_name(place))
                if isinstance(expr, int):
                    if size != expr:
                        yield f"{name} = {expr}", "fixed", frozenset({place})
                elif expr.is_Symbol:
                    if values.setdefault(expr, size) != size:
                        other = self._symbols[expr]
                        text = f"{name} = {self._name(self.inputs.place_name(other))}"
                        yield text, "guard", frozenset({place, other})
                    yield from self._violated_range(place, name, expr, size)
                else:
                    derived.append((place, expr, size))
        for place, expr, size in derived:
            free = expr.free_symbols - values.keys()
            name = self.inputs.place_name(place)
            violated = not free and int(put_in(expr, values)) != size
            if len(free) == 1:
                solved = solve_linear(put_in(expr, values), next(iter(free)), size)
                violated = solved is None or solved.denominator > 1
                if violated and solved is not None:
                    yield from self._violated_range(place, self._name(name), expr, size)
                    continue  # of a derived Dim torch rounds what the other would be, and checks the range alone
                if solved is not None and not violated:
                    values[next(iter(free))] = int(solved)
            if violated:
                about = {self._symbols[one] for one in expr.free_symbols if one in self._symbols}
                yield self._relation(name, expr), "guard", frozenset({place, *about})

    def _violated_range(self, place: Place, name: str, expr: Any, size: int) -> Iterator[_Found]:
        lower, upper = self._ranges.get(expr, (0, None))
        if size < lower or (upper is not None and size > upper):
            bound = f"≥ {lower}" if size < lower else f"≤ {upper}"
            yield f"{name} {bound}", "declared", frozenset({place})

    def _relation(self, name: str, expr: Any) -> str:
        factor = expr.as_coeff_Mul()
        if factor[1].is_Symbol and factor[1] not in self._symbols:
            return f"{self._name(name)} is a multiple of {factor[0]}"
        return f"{self._name(name)} = {self._in_words(str(expr))}"

    def _places_in(self, text: str) -> frozenset[Place]:
        """The sizes that a condition of torch's mentions, by their sources or symbols."""
        places = self.inputs.places()
        symbols: dict[str, Place] = {str(symbol): place for symbol, place in self._symbols.items()}
        names = [_matched_place(one) for one in _SIZE.finditer(text)] + _NAME.findall(_SIZE.sub("", text))
        known = {**symbols, **places}
        return frozenset(known[name] for name in names if name in known)

    def _with_line(self, text: str, kind: ConditionKind, sizes: Mapping[Place, int]) -> SizeCondition:
        frame, found = self._line_for(sizes)
        declared = kind == "declared" and frame is None
        return self._condition(found or text, kind if declared or kind == "fixed" else "guard", frame)

    def _line_for(self, sizes: Mapping[Place, int]) -> tuple[Frame | None, str]:
        """The line of the first guard of the export that these sizes violate, and what it says."""
        found = find_violated_guard(self.log, self.inputs, sizes) if self.log else None
        if found is None:
            return None, ""
        guard, places = found
        names = {str(symbol): self._name(self.inputs.place_name(place)) for symbol, place in places.items()}
        return guard.frame, _with_names(condition_text(guard.expr), names)

    def _condition(self, text: str, kind: ConditionKind, frame: Frame | None) -> SizeCondition:
        return SizeCondition(
            text=self._in_words(text),
            kind=kind,
            file=frame.file if frame else "",
            line=frame.line if frame else 0,
            source=frame.source if frame else "",
        )

    def _assertion_of(self, text: str) -> torch.fx.Node | None:
        return next((node for node in self._assertions if f"expression {text}" in assertion_message(node)), None)

    def _name(self, place: str) -> str:
        return self.names.get(place, place)

    def _in_words(self, text: str) -> str:
        """A condition of torch's in the names of the axes."""
        if re.search(r"\b(?:Eq|Ne|Mod|PythonMod)\(", text):
            try:
                text = condition_text(sympy.sympify(text, locals=_FUNCTIONS))
            except Exception:  # sympy evaluates it as Python, which may raise anything: it stays as torch wrote it
                pass
        names = {str(symbol): self._name(self.inputs.place_name(place)) for symbol, place in self._symbols.items()}
        text = _with_names(text, names)
        text = _SIZE.sub(lambda one: self._name(_matched_place(one)), text)
        return re.sub(r"[!=<>]=", lambda one: _SIGNS[one[0]], text)


def find_violated_guard(
    log: GuardLog, inputs: SizedInputs, sizes: Mapping[Place, int]
) -> tuple[Guard, dict[sympy.Symbol, Place]] | None:
    """The first guard of a user's line that these sizes violate, and the places of the symbols of its export."""
    places = inputs.places()
    for env in dict.fromkeys(guard.env for guard in reversed(log.made)):
        found = {}
        for symbol, sources in sources_by_symbol(env).items():
            place = next((places[name] for one in sources if (name := _place_in(one)) in places), None)
            if place is not None:
                found[symbol] = place
        values = {symbol: sizes.get(place, inputs.size_at(place)) for symbol, place in found.items()}
        for one in log.made:
            known = one.env is env and one.frame is not None and one.symbols and one.symbols <= values.keys()
            if known and _is_violated(one.expr, values):
                return one, found
    return None


_SIGNS = {"==": "=", "!=": "≠", ">=": "≥", "<=": "≤"}
_FUNCTIONS = {name: sympy.Function(name) for name in ("Mod", "PythonMod", "FloorDiv")}


def _with_names(text: str, names: Mapping[str, str]) -> str:
    """A text about symbols in other names."""
    return _SYMBOL.sub(lambda one: names.get(one[0], one[0]), text)


def _is_violated(expr: Any, values: Mapping[Any, int]) -> bool:
    try:
        return bool(put_in(expr, values) == sympy.false)
    except Exception:  # a division by zero
        return False


def _frame_of(node: torch.fx.Node | None) -> Frame | None:
    """The user's line that asked for an assertion, or for the value that it is about."""
    waiting = [node] if node is not None else []
    for one in waiting:
        frame = user_frame(fx_fact(one))
        if frame is not None:
            return frame
        if len(waiting) < 50:
            waiting += [each for each in one.all_input_nodes if each.op != "placeholder"]
    return None


def _matched_place(found: re.Match[str]) -> str:
    return f"{found['local'] or found['name']}{found['rest']}[{found['dim']}]"


def _place_in(source: str) -> str:
    """`x[0]` of a symbol's source `L['x'].size()[0]`; of one for a number `n`."""
    found = _SIZE.fullmatch(source)
    if found:
        return _matched_place(found)
    return source.removeprefix("L['").removesuffix("']")
