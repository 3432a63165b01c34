"""An outcome that failed where code reads a number out of a tensor."""

from __future__ import annotations

from exportdoctor.core.records.outcome import ExceptionFact, Failure, Frame, Outcome, OutcomeStatus, SymbolOrigin

GUARD = "torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode"


def failing(message: str, *, expression: str = "int(x)", source: str = "x = n.tolist()", kind: str = GUARD) -> Outcome:
    culprit = Frame(file="/repro/repro.py", line=4, function="forward", source=expression, user=True,
                    expression=expression)  # fmt: skip
    birth = SymbolOrigin(symbol="u0", frame=Frame(file="/repro/repro.py", line=3, function="forward", source=source))
    failure = Failure(
        stage="export",
        exceptions=(ExceptionFact(type=kind, message=message),),
        frames=(culprit,),
        origins=(birth,),
    )
    return Outcome(probe="1", status=OutcomeStatus.FAILED, failure=failure)


VALUE = "Could not extract specialized integer from data-dependent expression u0 (unhinted: u0)."
