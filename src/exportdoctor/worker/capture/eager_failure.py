"""Why the forward of a part fails when it is captured: in the user's code, or for want of values."""

from __future__ import annotations

from exportdoctor.core.errors import TargetError
from exportdoctor.core.exception_text import cause_of, class_name, context_of, summary, text_of
from exportdoctor.targets.built import BuiltPart
from exportdoctor.targets.eager import FIX_FIRST, own_stack
from exportdoctor.torch_internals.module_proxies import state_id
from exportdoctor.worker.describe.describe_failure import describe_failure

# torch._subclasses.fake_tensor raises these where a fake tensor's value or a value-dependent size is asked for
_VALUE_ERRORS = frozenset(
    {"DataDependentOutputException", "DynamicOutputShapeException", "UnsupportedOperatorException",
     "UnsupportedFakeTensorException", "UnsupportedMutationAliasingException", "GuardOnDataDependentSymNode"}
)  # fmt: skip
_IN_A_FORK = (
    "The forward computes gradients, and this process has done so before: then torch computes none in a forked copy of "
    "it, in which a model in memory is scanned. Write a function that returns the model and scan FILE.py:FUNCTION"
)


def wants_values(error: BaseException) -> bool:
    """Whether an eager forward failed because its tensors are fake, not because it is broken."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        text = text_of(current)
        if class_name(type(current)) in _VALUE_ERRORS or "FakeTensor" in text or "fake tensor" in text:
            return True
        current = cause_of(current) or context_of(current)
    return False


def eager_failure(error: BaseException, part: str, entry: BuiltPart | None, *, fake: bool = False) -> TargetError:
    """That the forward of a part fails, where in the user's code, and what to do; `fake`: for want of values."""
    names = {}
    if entry is not None:
        for path, module in entry.module.named_modules():
            names[state_id(module)] = ".".join(filter(None, (entry.prefix, path)))
    failure = describe_failure(error, stage="capture", names=names)
    culprit = failure.culprit
    where = f" at {culprit.file}:{culprit.line} in {culprit.function}" if culprit else ""
    if fake:
        return TargetError(
            f"Part {part} does not run with fake weights{where}: {summary(error)}",
            hint="Its code asks for values. Use --weights random if there is memory for them, or --part for others",
            stack=own_stack(error),
        )
    return TargetError(
        f"The eager forward of part {part} fails{where}: {summary(error)}",
        hint=_IN_A_FORK if "autograd's threading" in text_of(error) else FIX_FIRST,
        stack=own_stack(error),
    )
