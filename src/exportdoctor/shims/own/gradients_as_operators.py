"""torch.export traces above autograd and sees nothing of a backward pass. Here its operators are in the program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from exportdoctor.core.failure.messages import LEAKED_CONSTANT
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.shims.root_forward import Forward, patch_root_forward
from exportdoctor.torch_internals.fake_tensors import is_fake
from exportdoctor.torch_internals.tracing_modes import OPERATOR_TRACES, trace_operators
from exportdoctor.torch_internals.trees import tree_flatten, tree_leaves, tree_unflatten


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    if not OPERATOR_TRACES.is_supported():
        raise NotApplicable("this torch has no make_fx")

    def wrap(forward: Forward) -> Forward:
        inside = False

        def run_traced(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside or not any(map(is_fake, tree_leaves((args, kwargs)))):
                return forward(*args, **kwargs)
            inside = True
            try:
                return _run_operators(call.module, forward, args, kwargs)
            finally:
                inside = False

        return run_traced

    with patch_root_forward(call.module, wrap):
        yield call


def _run_operators(module: Any, forward: Forward, args: Any, kwargs: Any) -> Any:
    """What forward gives, computed by the operators that it and its backward passes run."""
    import torch

    class Holder(torch.nn.Module):  # to call forward with other tensors, and without the hooks of the module again
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            before = dict(self.named_buffers())
            output = forward(*args, **kwargs)
            after = dict(self.named_buffers())
            if before.keys() != after.keys() or any(after[name] is not one for name, one in before.items()):
                raise NotApplicable("forward assigns a buffer, which torch.export would take from the wrong trace")
            return output

    holder = Holder()
    state = {**dict(holder.named_parameters()), **dict(holder.named_buffers())}
    leaves, layout = tree_flatten((state, args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    made: list[Any] = []

    def compute(*tensors: Any) -> tuple[Any, ...]:
        given = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        with torch.enable_grad():
            output = torch.func.functional_call(holder, *tree_unflatten(given, layout))
        results, result_layout = tree_flatten(output)
        made[:] = [results, result_layout]
        return tuple(one.detach() for one in results if isinstance(one, torch.Tensor))

    tensors = [leaves[place] for place in places]
    copies = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]
    operators = trace_operators(compute, copies)
    outputs = iter(operators(*tensors))
    results, result_layout = made
    return tree_unflatten([next(outputs) if isinstance(one, torch.Tensor) else one for one in results], result_layout)


SHIM = Shim(
    id="gradients-as-operators",
    title="Makes the operators of a backward pass within forward part of the program",
    soundness="exact",
    enter=_enter,
    does=(
        "torch.export traces above autograd: of `torch.autograd.grad` or `torch.func.grad` in forward it sees nothing. "
        "Here forward is traced first by `make_fx`, below autograd, where a backward pass is operators as others are; "
        "these are exported. The program's outputs carry no gradients."
    ),
    cures=(
        Cure(kinds=("autograd_state", "vmap")),
        Cure(message=LEAKED_CONSTANT),
        Cure(message=r"the program holds a (?:fake tensor|tensor of torch\.func)"),
        Cure(where=r"\b(?:grad|vjp|jvp|jacrev|jacfwd|hessian)\(|\.backward\("),
    ),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#limitations-of-torch-export",
    retire="torch.export traces torch.autograd.grad",
    rank=30,
    conflicts=("strict",),
    replaces=(
        Replacement(
            target="torch.export.export",
            before="torch.export.export(model, (x,))\n",
            after=(
                'graph = make_fx(model, tracing_mode="symbolic", _allow_non_fake_inputs=True)(x)\n'
                "torch.export.export(graph, (x,))\n"
            ),
        ),
    ),
)
