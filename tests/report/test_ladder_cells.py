"""The tables of `numbers` and its neighbours."""

from __future__ import annotations

from exportdoctor.core.protocol.domain import DomainResult
from exportdoctor.core.protocol.numbers_ladder import LadderResult, LadderStage, LadderValue
from exportdoctor.core.protocol.sensitivity import SensitivityResult
from exportdoctor.core.records.outcome import Agreement
from exportdoctor.core.records.size_domain import SizeDomain
from exportdoctor.report.wording.ladder import ladder_cells, ladder_details, ladder_headline
from exportdoctor.report.wording.sensitivities import sensitivity_headline
from exportdoctor.report.wording.size_domains import domain_headline


def test_the_largest_difference_is_that_of_all_sets_that_were_compared() -> None:
    """Story: "max |Δ| 0" beside a cross, since the sets that do not agree were left out."""
    rows = (
        Agreement(inputs="the example", tolerance=1e-5),
        Agreement(inputs="three times", max_abs=0.4, tolerance=1e-5, trouble="call 2 of 3 differs by 4.0e-01"),
        Agreement(inputs="refused", made_up=True, refused=True, max_abs=9.0),
    )
    stage = LadderStage(name="exported program", before="eager", rows=rows)
    ((mark, _, largest, sets, *_),) = ladder_cells(LadderResult(verdict="differs", stages=(stage,)))
    assert (mark, largest, sets) == ("✗", "4.0e-01", "1 of 2 agree")


def test_the_shims_with_which_a_program_was_exported_are_named() -> None:
    """Story: they come from the newest scan, and nothing said so."""
    shims = ("hoist", "no-grad")
    lines = (
        ladder_headline(LadderResult(verdict="agrees", stages=(), target="m", shims=shims)),
        domain_headline(DomainResult(domain=SizeDomain(), target="m", shims=shims)),
        sensitivity_headline(SensitivityResult(to="int8", target="m", shims=shims)),
    )
    assert all("with hoist + no-grad" in line for line in lines)
    assert "with" not in domain_headline(DomainResult(domain=SizeDomain(), target="m"))


def test_rounding_counts_as_a_steps_own_error_and_is_told_where_nothing_else_explains_the_outputs() -> None:
    """Story: a layer norm of large numbers, of which the table said 1e-07 and nothing was named."""
    norm = LadderValue(name="norm", op="Norm", local=0.09, inherited=0.09, allowed=1e-5, excuse="rounding")
    tie = LadderValue(name="best", op="TopK", local=3.0, inherited=3.0, allowed=0.0, excuse="tie")
    wrong = Agreement(inputs="the example", max_abs=0.06, tolerance=1e-5)
    for row, told in ((wrong, True), (Agreement(inputs="the example"), False)):
        stage = LadderStage(name="ONNX", before="decomposed", rows=(row,), values=(norm, tie))
        result = LadderResult(verdict="differs", stages=(stage,))
        assert ladder_cells(result)[0][5] == "9.0e-02"
        assert ("ONNX, norm (Norm): differs by rounding" in "\n".join(ladder_details(result))) is told
