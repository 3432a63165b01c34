"""Other ways to call `torch.export.export`: its modes, its settings, and dynamic shapes that it suggests itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.export_call import ExportCall, shapes_by_name
from exportdoctor.shims.record import Enter, NotApplicable, Replacement, Shim

_GUARDS = ("data_dependent_guard", "dynamic_dim_specialised", "dims_related")
_LINK = "https://docs.pytorch.org/docs/stable/export.html"
_mode = partial(Shim, needs={"torch": ">=2.8"}, link=_LINK)
_EXPORT = "torch.export.export(module, args, kwargs, dynamic_shapes=shapes{more})\n"


def _changed_call(call_after: str, *, call_before: str = "") -> tuple[Replacement, ...]:
    before, after = _EXPORT.format(more=call_before), _EXPORT.format(more=call_after)
    return (Replacement(target="the call of torch.export.export", before=before, after=after),)


def _call_within(context: str) -> tuple[Replacement, ...]:
    plain = _EXPORT.format(more="")
    return (Replacement(target="the call of torch.export.export", before=plain, after=f"with {context}:\n    {plain}"),)


def _option(**changes: Any) -> Enter:
    @contextmanager
    def enter(call: ExportCall) -> Iterator[ExportCall]:
        changed = call.with_options(**changes)
        if changed.options == call.options:
            raise NotApplicable("the call has this option already")
        yield changed

    return enter


def _where_dynamic(enter: Enter) -> Enter:
    @contextmanager
    def enter_if_dynamic(call: ExportCall) -> Iterator[ExportCall]:
        if call.dynamic_shapes is None:
            raise NotApplicable("no dimension is dynamic")
        with enter(call) as changed:
            yield changed

    return enter_if_dynamic


@contextmanager
def _without_gradients(call: ExportCall) -> Iterator[ExportCall]:
    import torch

    with torch.no_grad():
        yield call


@contextmanager
def _size_oblivious(call: ExportCall) -> Iterator[ExportCall]:
    import torch.fx.experimental._config as module

    config: Any = module
    with config.patch(backed_size_oblivious=True):
        yield call


@contextmanager
def _automatic(call: ExportCall) -> Iterator[ExportCall]:
    from torch.export import Dim

    yield replace(call, dynamic_shapes=map_dims(shapes_by_name(call), lambda _: Dim.AUTO))


def map_dims(shapes: Any, change: Callable[[Any], Any]) -> Any:
    """Dynamic shapes with `change` applied to every dimension that is a `Dim` or a hint."""
    match shapes:
        case dict():
            return {key: map_dims(value, change) for key, value in shapes.items()}
        case list() | tuple():
            return type(shapes)(map_dims(value, change) for value in shapes)
        case None | int():
            return shapes
    return change(shapes)


NON_STRICT = _mode(
    id="non-strict",
    title="Non-strict export: Python runs, instead of being interpreted by dynamo",
    soundness="exact",
    enter=_option(strict=False),
    does="The forward is run by Python itself on fake tensors. Constructs that dynamo refuses are no matter then.",
    cures=(Cure(exporters=("export-strict",)),),
    retire="dynamo takes all of Python",
    rank=40,
    conflicts=("strict",),
    replaces=_changed_call(", strict=False", call_before=", strict=True"),
)

STRICT = _mode(
    id="strict",
    title="Strict export: dynamo interprets the forward's bytecode",
    soundness="exact",
    enter=_option(strict=True),
    does="dynamo reads the forward's bytecode. Loops over lists and side effects on Python objects are seen by it.",
    cures=(
        Cure(
            exporters=("export",),
            kinds=("data_dependent_guard", "attribute_mutation", "vmap", "autograd_state", "python_error"),
        ),
    ),
    retire="non-strict export takes all that strict export takes",
    rank=60,
    conflicts=("non-strict",),
    replaces=_changed_call(", strict=True", call_before=", strict=False"),
)

NO_GRAD = _mode(
    id="no-grad",
    title="The export runs without gradients",
    soundness="exact",
    enter=_without_gradients,
    does="Gradient mode is off while the forward is traced, as it is at inference. Values do not depend on it.",
    cures=(
        Cure(kinds=("autograd_state",)),
        Cure(message=r"requires_grad|requires grad|leaf Variable|set_grad_enabled|does not require grad|autograd"),
    ),
    link="https://docs.pytorch.org/docs/stable/generated/torch.no_grad.html",
    retire="torch.export ignores gradients by itself",
    rank=30,
    replaces=_call_within("torch.no_grad()"),
)

DEFERRED = _mode(
    id="defer-asserts",
    title="Guards on sizes become assertions that the program checks when it runs",
    soundness="precondition",
    enter=_option(prefer_deferred_runtime_asserts_over_guards=True),
    does="A relation between sizes that tracing needs is assumed, written into the program, and checked at run time.",
    precondition="inputs meet the relations that the program's own assertions state",
    cures=(Cure(kinds=_GUARDS),),
    rank=30,
    replaces=_changed_call(", prefer_deferred_runtime_asserts_over_guards=True"),
)

OBLIVIOUS = _mode(
    id="size-oblivious",
    title="Dynamic sizes are not taken for zero or one while tracing",
    soundness="precondition",
    enter=_where_dynamic(_size_oblivious),
    does="`backed_size_oblivious`: a dynamic size is treated as if its example value were unknown, without guards.",
    precondition="no dynamic size is zero or one",
    cures=(Cure(kinds=("dynamic_dim_specialised", "dims_related"), exporters=("export", "export-strict")),),
    link="https://github.com/pytorch/pytorch/blob/main/torch/fx/experimental/_config.py",
    retire="torch.export is size-oblivious by default",
    rank=40,
    replaces=_call_within("config.patch(backed_size_oblivious=True)"),
)

RELATIONS = _mode(
    id="suggested-relations",
    title="Dynamic shapes take the bounds and relations that torch suggests",
    soundness="precondition",
    enter=_where_dynamic(_option(suggested_fixes="relations")),
    does="When torch refuses the dynamic shapes and proposes bounds or a relation between dimensions, they are taken.",
    precondition="sizes keep the bounds and relations that torch suggested; the program asserts them",
    cures=(Cure(message="Suggested fixes:"),),
    rank=20,
    conflicts=("suggested-constants",),
    replaces=(
        Replacement(target="the dynamic shapes", before='{"x": {0: Dim("n")}}\n', after='{"x": {0: 2 * Dim("_n")}}\n'),
    ),
)

CONSTANTS = _mode(
    id="suggested-constants",
    title="Dynamic shapes take all that torch suggests, a constant size included",
    soundness="specialised",
    enter=_where_dynamic(_option(suggested_fixes="any")),
    does="As `suggested-relations`, and a dimension that torch says must be constant becomes so.",
    precondition="the sizes that became constant have the example's value",
    cures=(Cure(message=r"Suggested fixes:.* = \d+"),),
    rank=20,
    conflicts=("suggested-relations",),
    replaces=(Replacement(target="the dynamic shapes", before='{"x": {0: Dim("n")}}\n', after='{"x": {0: 4}}\n'),),
)

AUTOMATIC = _mode(
    id="auto-dims",
    title="torch decides which dimensions stay dynamic",
    soundness="specialised",
    enter=_where_dynamic(_automatic),
    does="Every dynamic dimension becomes `Dim.AUTO`: what tracing needs as a constant or a relation, it takes.",
    precondition="the sizes that became constant have the example's value",
    cures=(Cure(kinds=("dynamic_dim_specialised", "dims_related")),),
    rank=40,
    conflicts=("static-dim",),
    replaces=(
        Replacement(target="the dynamic shapes", before='{"x": {0: Dim.DYNAMIC}}\n', after='{"x": {0: Dim.AUTO}}\n'),
    ),
)

FLAT_SIGNATURE = _mode(
    id="flat-signature",
    title="Keywords that forward bundles in **kwargs get names in its signature",
    soundness="exact",
    enter=_option(flat_forward=True),
    does=(
        "torch matches dynamic shapes once with keywords bundled as forward's signature has them and once spelled out; "
        "no spec fits both. The keywords of this call become parameters of forward for the export."
    ),
    cures=(
        Cure(kinds=("python_error",), message="AssertionError"),
        Cure(message=r"dynamic_shapes.*(kwargs|match|structure)|number of parameters|combined_args|top-level keys"),
    ),
    link="https://github.com/pytorch/pytorch/issues/155862",
    retire="torch.export takes dynamic shapes of keywords in **kwargs",
    rank=20,
    replaces=(
        Replacement(
            target="the signature of forward",
            before="def forward(self, x, **kwargs): ...\n",
            after="def forward(self, x, *, scale): ...\n",
        ),
    ),
)

SHIMS = (
    FLAT_SIGNATURE, NO_GRAD, NON_STRICT, STRICT, DEFERRED, OBLIVIOUS, RELATIONS, CONSTANTS, AUTOMATIC,
)  # fmt: skip
