"""The sizes at which a program is right, what asks for them, and what was tried at their boundaries."""

from __future__ import annotations

from typing import Literal

import msgspec

SizeOutcome = Literal["right", "refuses", "wrong", "alone", "answers"]
"""`right`: eager's numbers. `wrong`: others. `alone`: it answers what eager refuses. `answers`: there is no eager."""

ConditionKind = Literal["declared", "fixed", "guard", "assertion", "branch"]
"""Who asks for it: the declared shapes, a size that the program has as a constant, a guard, or an assertion in it.
`branch`: nobody; eager takes another way there, and the program does not."""


class SizeAxis(msgspec.Struct, frozen=True, kw_only=True):
    """One size that callers choose, and which values the program takes while the others are the example's.

    They are `lowest`, `lowest + step`, ... up to `highest` (None: no end was found), without `but`, and without those
    whose rest when divided by `cycle` is in `skipped`; or `only` these. All sizes up to `until` were evaluated; where
    `cut`, what `but` or `only` list goes on above it. At the sizes `wrong` the program was tried, and gives other
    numbers than eager; at the sizes `refused` it raises, and nothing that was evaluated says so. `ends_by_runs` are
    those of `lowest` and `highest` beyond which that is so wherever it was tried. At the sizes `right` every stage was
    right for some inputs. At the sizes `by_values` all that was tried is refused by assertions on values. `compared` is
    the smallest size at which the program's answer was compared with eager's: -1 where none was, None where that was
    not asked. `partly`: other inputs of the program are made of the part's, and what it asks of those was not
    evaluated. `fixed`: the declared shapes fix it; `declared` are the smallest and largest size that they say. `same`
    are axes that must be equal to it, `follows` those that it decides.
    """

    name: str
    example: int
    places: tuple[str, ...] = ()
    lowest: int = 0
    highest: int | None = None
    step: int = 1
    but: tuple[int, ...] = ()
    cycle: int = 0
    skipped: tuple[int, ...] = ()
    only: tuple[int, ...] = ()
    cut: bool = False
    until: int = 0
    wrong: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    ends_by_runs: tuple[int, ...] = ()
    right: tuple[int, ...] = ()
    by_values: tuple[int, ...] = ()
    compared: int | None = None
    partly: bool = False
    fixed: bool = False
    declared: tuple[int | None, int | None] = (None, None)
    same: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()


class SizeCondition(msgspec.Struct, frozen=True, kw_only=True):
    """What the program asks of its inputs, in the names of the axes, with the line of the user's that asked."""

    text: str
    kind: ConditionKind
    file: str = ""
    line: int = 0
    source: str = ""


class StageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage does with a trial's inputs; `message` is what it raises, `max_abs` how far it is from eager."""

    stage: str
    outcome: SizeOutcome
    message: str = ""
    max_abs: float = 0.0


class SizeTrial(msgspec.Struct, frozen=True, kw_only=True):
    """One set of inputs, run in eager and in each stage. `condition` is the number of the one that is violated, or -1.

    `eager` is what eager raises, '' if it answers.
    """

    inputs: str
    answers: tuple[StageAnswer, ...]
    eager: str = ""
    condition: int = -1

    @property
    def holds(self) -> bool:
        """Whether every stage is right or refuses."""
        return all(one.outcome not in ("wrong", "alone") for one in self.answers)


class SizeDomain(msgspec.Struct, frozen=True, kw_only=True):
    """Which sizes a program takes, why not others, and what each stage did on both sides of each boundary.

    `dropped` are conditions that a later file no longer checks, by their numbers. `untried` were too large, or came
    after the time was over. At `unsteady` eager's answer depends on other memory: nothing is compared.
    """

    axes: tuple[SizeAxis, ...] = ()
    conditions: tuple[SizeCondition, ...] = ()
    trials: tuple[SizeTrial, ...] = ()
    dropped: tuple[int, ...] = ()
    untried: tuple[str, ...] = ()
    unsteady: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every stage is right, or refuses, wherever it was tried."""
        return all(one.holds for one in self.trials)

    @property
    def wrong_at(self) -> tuple[str, ...]:
        """The inputs that eager answers and some stage answers otherwise."""
        return tuple(one.inputs for one in self.trials if any(answer.outcome == "wrong" for answer in one.answers))
