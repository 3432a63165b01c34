"""Dynamic shapes that name the right tensors in another structure than that of the inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall, has_bundle
from exportdoctor.shims.record import NotApplicable, Replacement, Shim
from exportdoctor.targets.sizes.fitted_shapes import fit_shapes, has_structure_of_inputs


@contextmanager
def _enter(call: ExportCall) -> Iterator[ExportCall]:
    if not call.dynamic_shapes:
        raise NotApplicable("no dynamic_shapes are given")
    inputs = (call.args, call.kwargs)
    fitted = fit_shapes(call.module, inputs, call.dynamic_shapes)
    if fitted is None:
        raise NotApplicable("dynamic_shapes name what is not among the inputs, or could mean several of them")
    if has_structure_of_inputs(call.module, inputs, call.dynamic_shapes):
        raise NotApplicable("dynamic_shapes have the structure of the inputs")
    changed = replace(call, dynamic_shapes=fitted)
    yield changed.with_options(flat_forward=True) if has_bundle(call.module, call.kwargs) else changed


SHIM = Shim(
    id="shapes-as-inputs",
    title="Gives dynamic_shapes the structure of the inputs",
    soundness="exact",
    enter=_enter,
    does=(
        "Each tensor keeps the dynamic sizes that dynamic_shapes give it. Tuples become lists where the input is one, "
        "a dict of fields becomes the list or the named tuple that torch wants for such an input, what `*args` or "
        "`**kwargs` take gets an entry of its own. What is left out, or is no tensor, gets None: it stays as in the "
        "example. Refused where an entry names what the inputs have not."
    ),
    cures=(Cure(kinds=("invalid_dynamic_shapes", "unregistered_pytree")),),
    needs={"torch": ">=2.8"},
    link="https://docs.pytorch.org/docs/stable/export.html#torch.export.export",
    retire="torch.export takes dynamic_shapes in any structure that names the inputs",
    rank=10,
    replaces=(
        Replacement(
            target="the dynamic_shapes of the call",
            before='dynamic_shapes={"pair": ({0: batch}, {0: batch})}\n',
            after='dynamic_shapes={"pair": [{0: batch}, {0: batch}], "mask": None}\n',
        ),
    ),
)
