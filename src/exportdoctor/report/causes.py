"""Why a failure of a kind happens and what usually helps, a sentence each: the why is the core's, advice is here."""

from __future__ import annotations

from typing import NamedTuple, cast, get_args

from exportdoctor.core.failure.explanations import summary
from exportdoctor.core.failure.kinds import Kind


class Cause(NamedTuple):
    """`why`: what the tracer was asked and why it could not answer; `next`: what usually helps."""

    why: str
    next: str


_OUTSIDE = "Compute the value outside and pass it in"
_UNKNOWN = Cause("Tracing raises an exception that eager does not.", "Read the stack: exportdoctor report --format md")
ADVICE: dict[str, str] = {
    "data_dependent_value": f"{_OUTSIDE}, or keep it a tensor.",
    "data_dependent_guard": f"{_OUTSIDE}, state its bounds with torch._check, or replace the branch by a mask.",
    "dynamic_dim_specialised": "Make the code independent of that size, or export it static.",
    "dims_related": "Give the related dimensions one name, or derive one from the other in dynamic_shapes.",
    "unregistered_pytree": "Register the type as a pytree node, or pass and return plain tensors, tuples and dicts.",
    "missing_fake_kernel": "Register one with torch.library.register_fake.",
    "wrong_fake_kernel": "Correct the function that was given to torch.library.register_fake.",
    "vmap": "Write the same with broadcasting, outside vmap.",
    "unsupported_python": "Rewrite the construct, or export with --exporter export, which runs the Python code itself.",
    "attribute_mutation": "Return the value, or keep the state in a registered buffer.",
    "input_mutation": "Clone the tensor before writing into it.",
    "autograd_state": "Export in eval mode under torch.no_grad(), with that code outside.",
    "torchscript_trace": "Use the new exporter: --exporter export.",
    "python_error": "Read the stack: exportdoctor report --format md",
    "crash": "Its log tells how far it came.",
    "timeout": "Give it more with --timeout, or look for a loop.",
    "out_of_memory": "Give it more with --memory.",
    "translate": "See the node and its submodule.",
    "load": "See the log.",
    "run": "See the log.",
    "numbers": "See the differences per output.",
}


def cause_of(kind: str) -> Cause:
    """The cause of a failure of that kind; a general one for a kind of a newer version."""
    if kind not in get_args(Kind):
        return _UNKNOWN
    return Cause(summary(cast(Kind, kind)), ADVICE.get(kind, _UNKNOWN.next))
