"""One sentence on why, and one on what to do next, for each kind of failure. The only place for them.

A finding's own explanation, where it has one, replaces the first.
"""

from __future__ import annotations

from typing import NamedTuple


class Cause(NamedTuple):
    """`why`: what the tracer was asked and why it could not answer; `next`: what usually helps."""

    why: str
    next: str


_OUTSIDE = "Compute the value outside and pass it in"
UNKNOWN = Cause("Tracing raises an exception that eager does not.", "Read the stack: exportdoctor report --format md")
CAUSES: dict[str, Cause] = {
    "data_dependent_value": Cause(
        "A number read out of a tensor becomes a Python number; the tracer knows no value for it.",
        f"{_OUTSIDE}, or keep it a tensor.",
    ),
    "data_dependent_guard": Cause(
        "Python branches on a number that was read out of a tensor; the tracer cannot know which way it goes.",
        f"{_OUTSIDE}, state its bounds with torch._check, or replace the branch by a mask.",
    ),
    "dynamic_dim_specialised": Cause(
        "A dimension that was to be dynamic is fixed to one size by the code.",
        "Make the code independent of that size, or export it static.",
    ),
    "dims_related": Cause(
        "The code needs a relation between dimensions that the dynamic shapes do not promise.",
        "Give the related dimensions one name, or derive one from the other in dynamic_shapes.",
    ),
    "unregistered_pytree": Cause(
        "An input or output is of a type that torch.export cannot take apart.",
        "Register the type as a pytree node, or pass and return plain tensors, tuples and dicts.",
    ),
    "missing_fake_kernel": Cause(
        "An operator has no fake kernel, so its output's shape is not known without running it.",
        "Register one with torch.library.register_fake.",
    ),
    "wrong_fake_kernel": Cause(
        "An operator's fake kernel promises another output than the operator gives.",
        "Correct the function that was given to torch.library.register_fake.",
    ),
    "vmap": Cause(
        "A functorch transform (vmap) runs inside the forward and loses track of a symbolic size.",
        "Write the same with broadcasting, outside vmap.",
    ),
    "unsupported_python": Cause(
        "Dynamo does not support a Python construct in this code.",
        "Rewrite the construct, or export with --exporter export, which runs the Python code itself.",
    ),
    "attribute_mutation": Cause(
        "The forward assigns to an attribute of the module while it is traced.",
        "Return the value, or keep the state in a registered buffer.",
    ),
    "input_mutation": Cause(
        "The code writes in place into an input, a view or a tensor that shares memory.",
        "Clone the tensor before writing into it.",
    ),
    "autograd_state": Cause(
        "The forward changes the grad mode or depends on autograd in a way that cannot be traced.",
        "Export in eval mode under torch.no_grad(), with that code outside.",
    ),
    "torchscript_trace": Cause(
        "The legacy TorchScript tracer fails by itself on this code.",
        "Use the new exporter: --exporter export.",
    ),
    "python_error": UNKNOWN,
    "crash": Cause("The process that exported it died.", "Its log tells how far it came."),
    "timeout": Cause("The export did not end within its time.", "Give it more with --timeout, or look for a loop."),
    "out_of_memory": Cause("The export needed more memory than it was given.", "Give it more with --memory."),
    "translate": Cause("It exports, but a node has no translation to ONNX.", "See the node and its submodule."),
    "load": Cause("The translated model does not load.", "See the log."),
    "run": Cause("The exported program fails when it is run.", "See the log."),
    "numbers": Cause("The exported program computes other numbers than eager.", "See the differences per output."),
}


def cause_of(kind: str) -> Cause:
    """The sentences for `kind`; a kind of a newer version gets the general ones."""
    return CAUSES.get(kind, UNKNOWN)
