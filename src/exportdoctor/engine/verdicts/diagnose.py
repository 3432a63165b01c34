"""Makes a finding of a group of failures: its kind, the nature of what failed, and the upstream issues about it."""

from __future__ import annotations

from collections.abc import Mapping

from exportdoctor.core.failure import known_issues
from exportdoctor.core.failure.classify import kind_of
from exportdoctor.core.failure.explanations import documented_limit, explain
from exportdoctor.core.failure.finding import Culprit, ExceptionRecord, Finding, KnownIssueRecord
from exportdoctor.core.failure.frames import is_of_higher_order_op
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.failure.messages import first_line, without_hints
from exportdoctor.core.failure.signature import signature_of
from exportdoctor.core.records.outcome import Failure, Frame, Outcome, OutcomeStatus
from exportdoctor.engine.verdicts.failure_groups import FailureGroup


def make_finding(
    group: FailureGroup,
    *,
    name: str,
    part: str,
    exporter: str,
    classes: Mapping[str, str],
    passing: set[str],
    dynamic: bool,
    versions: Mapping[str, str],
) -> Finding:
    """The finding that a group of failures is reported as. `passing` are the modules that export alone."""
    verdict = group.leading_verdict
    outcome = verdict.outcome
    failure = outcome.failure or Failure(stage="export", exceptions=())
    module = verdict.blamed_module
    culprit = failure.culprit
    signature = signature_of(outcome)
    kind = kind_of(outcome, exporter=exporter)
    outer = failure.exceptions[0] if failure.exceptions else None
    file = culprit.file if culprit else None
    op = failure.op.name if failure.op is not None and failure.op.raised else None
    return Finding(
        id=name,
        part=part,
        module=module,
        module_class=classes.get(module, ""),
        own_code=True,
        function=culprit.function if culprit else None,
        file=file,
        line=culprit.line if culprit else None,
        source=culprit.source if culprit else None,
        kind=kind,
        op=op,
        expression=culprit.expression if culprit else None,
        signature=signature.key if signature else "",
        exception=ExceptionRecord(
            type=outer.type if outer else outcome.status,
            message=outer.message if outer else (outcome.signal or ""),
            causes=tuple(fact.type for fact in failure.exceptions[1:]),
            root=_root_cause(failure),
        ),
        stack=_cut_stack(failure.frames),
        explanation=explain(kind).paragraph,
        documented=documented_limit(
            kind, file=file, op=op, fixed_by=failure.fixed_by, message=outer.message if outer else ""
        ),
        fixed_by=failure.fixed_by,
        wrong_fake=failure.wrong_fake,
        fitted_shapes=failure.fitted_shapes,
        in_training=failure.in_training,
        known_issues=find_known_issues(outcome, exporter=exporter, dynamic=dynamic, versions=versions),
        origins=failure.origins,
        last_op=failure.op,
        modules=group.modules or (module,),
        only_inside=verdict.fqn if module != verdict.fqn and module in passing else None,
        log=outcome.log,
        stage=failure.stage,
        guard=failure.guard or _guard_of_call(group),
        value_origin=failure.value_origin,
        culprit=find_culprit(failure, kind=kind, status=outcome.status),
        slice=failure.slice,
        slice_note=failure.slice_note,
    )


def _guard_of_call(group: FailureGroup) -> Frame | None:
    """The line that calls a module which alone has none, where an outer module shows the failure with it."""
    failures = (verdict.outcome.failure for verdict in group.verdicts)
    return next((one.guard for one in failures if one is not None and one.guard is not None), None)


def _root_cause(failure: Failure) -> str:
    """The first line of the exception that all others were raised from, where they don't say the same."""
    if len(failure.exceptions) < 2:
        return ""
    root, others = failure.exceptions[-1], failure.exceptions[:-1]
    line = first_line(root.message)
    said = (" ".join(fact.message.split()) for fact in others)
    return (
        "" if not line or any(" ".join(line.split()) in one for one in said) else f"{root.name}: {without_hints(line)}"
    )


def _cut_stack(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The stack from the first frame of the user's code or of a submodule on: without the tracer's own entry."""
    return _from_the_user_on(frames) or frames


def find_culprit(failure: Failure, *, kind: FailureKind, status: OutcomeStatus) -> Culprit | None:
    """What a failure is about. None where the process died: its stack is not reliable.

    - `op`: an operator raised, or an operator's own kernel lies
    - `python`: the user's code needed the number behind a symbol, or did what tracing cannot follow
    - `higher_order_op`: the body of `torch.cond` and the like was refused
    - `pytree`: a type that no pytree is registered for
    - `dynamo`: a construct that dynamo does not trace
    - `call`: found when tracing was over, in the inputs, the outputs or the constraints
    """
    if status != OutcomeStatus.FAILED:
        return None
    if kind is FailureKind.UNREGISTERED_PYTREE:
        return "pytree"
    inner = _from_the_user_on(failure.frames)
    if any(is_of_higher_order_op(frame.file) for frame in inner):
        return "higher_order_op"
    if failure.op is not None and failure.op.raised:
        return "op"
    if kind is FailureKind.UNSUPPORTED_PYTHON and any(fact.is_of_dynamo for fact in failure.exceptions):
        return "dynamo"
    return "python" if failure.culprit is not None else "call"


def _from_the_user_on(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The frames from the first one of the user's code or of a submodule on; none where there is no such frame."""
    entrance = next((i for i, frame in enumerate(frames) if frame.user or frame.module is not None), len(frames))
    return frames[entrance:]


def find_known_issues(
    outcome: Outcome, *, exporter: str, dynamic: bool, versions: Mapping[str, str]
) -> tuple[KnownIssueRecord, ...]:
    """Upstream issues about this failure, the likeliest first."""
    failure = outcome.failure
    if failure is None:
        return ()
    matches = known_issues.match(failure, exporter=exporter, dynamic=dynamic, versions=versions)
    return tuple(
        KnownIssueRecord(
            id=issue.id,
            link=issue.links[0],
            fixed_in=issue.fixed_in,
            title=issue.title,
            cause=issue.cause,
            workaround=issue.workaround,
            elsewhere=elsewhere,
        )
        for issue, elsewhere in matches
    )
