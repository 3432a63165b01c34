"""Other ways to call `torch.export.export`: its modes, its settings, and dynamic shapes that it suggests itself."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from exportdoctor.core.failure.frames import is_our_file
from exportdoctor.core.versions import is_in_range
from exportdoctor.shims.caught_exceptions import find_catcher
from exportdoctor.shims.cure_pattern import Cure
from exportdoctor.shims.eager_run import changed_number, run_copy
from exportdoctor.shims.export_call import ExportCall, map_dims, shapes_by_name
from exportdoctor.shims.record import Enter, NotApplicable, Replacement, Shim
from exportdoctor.torch_internals.tracing_modes import symbolic_shape_settings

_SIDE_EFFECTS = "certain side effects"
"""In torch's warning that a strict export drops what forward changes (torch 2.10 to 2.13)."""
DEEP_ENOUGH = 20_000
"""Nested calls of Python: for two thousand nested modules."""
_WITHOUT_WARNING = "<2.10"

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

    with watch_gradient_questions() as asked, suppress(Exception):
        run_copy(call)
    if asked:
        raise NotApplicable(f"forward asks whether gradients are recorded: {asked[0]}")
    with torch.no_grad():
        yield call


@contextmanager
def _with_deeper_recursion(call: ExportCall) -> Iterator[ExportCall]:
    limit = sys.getrecursionlimit()
    if limit >= DEEP_ENOUGH:
        raise NotApplicable(f"the limit is {limit} already")
    sys.setrecursionlimit(DEEP_ENOUGH)
    try:
        yield call
    finally:
        sys.setrecursionlimit(limit)


@contextmanager
def watch_gradient_questions() -> Iterator[list[str]]:
    """Within it, notes where code that is not torch's asks whether gradients are recorded, as `file:line`."""
    import torch
    from torch.overrides import TorchFunctionMode

    asked: list[str] = []
    switches = {torch.is_grad_enabled, torch.is_inference_mode_enabled}
    attributes = {torch.Tensor.requires_grad, torch.Tensor.grad_fn, torch.Tensor.is_leaf}

    def note(frame: Any) -> None:
        file = frame.f_code.co_filename
        if not is_our_file(file) and not Path(file).is_relative_to(Path(torch.__file__).parent):
            asked.append(f"{Path(file).name}:{frame.f_lineno}")

    def note_builtin(frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and function in switches:
            note(frame)

    class AttributeMode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__self__", None) in attributes or func is torch.Tensor.is_inference:
                note(sys._getframe(1))
            return func(*args, **(kwargs or {}))

    before = sys.getprofile()
    sys.setprofile(note_builtin)
    try:
        with AttributeMode(), torch.enable_grad():
            yield asked
    finally:
        sys.setprofile(before)


@contextmanager
def _non_strict(call: ExportCall) -> Iterator[ExportCall]:
    if not call.options.strict:
        raise NotApplicable("the call has this option already")
    if changed := changed_number(call):
        raise NotApplicable(f"forward keeps state: {changed}")
    yield call.with_options(strict=False)


@contextmanager
def _strict(call: ExportCall) -> Iterator[ExportCall]:
    """Refuses what the program would drop: state that forward keeps, and assertions that somebody catches."""
    import torch

    if call.options.strict:
        raise NotApplicable("the call has this option already")
    if is_in_range(torch.__version__, _WITHOUT_WARNING):
        _refuse_state(call)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")

        def check(program: Any) -> None:
            if kept := [str(one.message) for one in told if _SIDE_EFFECTS in str(one.message)]:
                raise NotApplicable(f"forward keeps state: {kept[0].rpartition(': ')[2]}")
            if catcher := next(filter(None, map(find_catcher, _assertion_stacks(program))), ""):
                raise NotApplicable(f"an assertion may be caught at {catcher}")

        yield replace(call.with_options(strict=True), checks=(*call.checks, check))


def _refuse_state(call: ExportCall) -> None:
    """Raise NotApplicable where two calls of forward leave other plain values, or that cannot be seen."""
    try:
        changed = changed_number(call)
    except Exception as error:
        raise NotApplicable(
            f"whether forward keeps state cannot be seen: eager raises {type(error).__name__}"
        ) from error
    if changed:
        raise NotApplicable(f"forward keeps state: {changed}")


def _assertion_stacks(program: Any) -> Iterator[list[tuple[str, int]]]:
    """For each assertion on tensors of the program, the lines of the user's code that led to it, innermost first."""
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            if "_assert_async" in str(node.target):
                found = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
                yield [(file, int(line)) for file, line in reversed(found)]


@contextmanager
def _size_oblivious(call: ExportCall) -> Iterator[ExportCall]:
    with symbolic_shape_settings().patch(backed_size_oblivious=True):
        yield call


@contextmanager
def _automatic(call: ExportCall) -> Iterator[ExportCall]:
    from torch.export import Dim

    yield replace(call, dynamic_shapes=map_dims(shapes_by_name(call), lambda _: Dim.AUTO))


NON_STRICT = _mode(
    id="non-strict",
    title="Uses non-strict export, which runs the Python code instead of interpreting it with dynamo",
    soundness="exact",
    enter=_non_strict,
    does=(
        "Python runs forward on fake tensors, so constructs that dynamo does not support can be used. Refused where a "
        "call of forward changes a number or the length of a list of a module, which the program would not do."
    ),
    cures=(Cure(exporters=("export-strict",)),),
    retire="dynamo supports all of Python",
    rank=40,
    conflicts=("strict",),
    replaces=_changed_call(", strict=False", call_before=", strict=True"),
)

STRICT = _mode(
    id="strict",
    title="Uses strict export, which interprets the bytecode with dynamo",
    soundness="exact",
    enter=_strict,
    does=(
        "dynamo interprets the bytecode of forward, including loops over lists, and traces functions of NumPy as those "
        "of torch. Refused where forward keeps state on Python objects, which the program would drop, and where an "
        "assertion of forward may be caught."
    ),
    cures=(
        Cure(
            exporters=("export",),
            kinds=("data_dependent_guard", "attribute_mutation", "vmap", "autograd_state", "python_error"),
        ),
        Cure(exporters=("export",), message=r"\.numpy\(\) is not supported for tensor subclasses"),
    ),
    retire="non-strict export supports all that strict export supports",
    rank=60,
    conflicts=("non-strict",),
    replaces=_changed_call(", strict=True", call_before=", strict=False"),
)

NO_GRAD = _mode(
    id="no-grad",
    title="Exports, and translates to ONNX, under torch.no_grad()",
    soundness="exact",
    enter=_without_gradients,
    does=(
        "Gradients are disabled while forward is traced, as at inference. Refused where forward asks whether they are "
        "recorded, so that the outputs do not depend on it. `torch.onnx.export` decomposes fused attention in another "
        "way where gradients are recorded, and fails at views of its result: call it under torch.no_grad(), too."
    ),
    cures=(
        Cure(kinds=("autograd_state", "translate")),
        Cure(message=r"requires_grad|requires grad|leaf Variable|set_grad_enabled|does not require grad|autograd"),
        Cure(message=r"Pending unbacked symbols .*\bgrad_fn="),  # autograd makes the view once more
    ),
    link="https://docs.pytorch.org/docs/stable/generated/torch.no_grad.html",
    retire="torch.export ignores gradients",
    rank=30,
    replaces=_call_within("torch.no_grad()"),
)

DEEPER = _mode(
    id="deeper-recursion",
    title="Exports with a higher limit of Python's recursion",
    soundness="exact",
    enter=_with_deeper_recursion,
    does=(
        "Python refuses more than a thousand nested calls. A module within a module takes about nine of them while it "
        "is traced, and four in eager, so that a model of a hundred nested modules runs and does not export. Here the "
        f"limit is {DEEP_ENOUGH:,} while the export lasts."
    ),
    cures=(Cure(message=r"^RecursionError: maximum recursion depth exceeded"),),
    link="https://docs.python.org/3/library/sys.html#sys.setrecursionlimit",
    retire="Python's limit is not reached by what torch.export calls",
    rank=10,
    replaces=(
        Replacement(
            target="the call of torch.export.export",
            before=_EXPORT.format(more=""),
            after=f"sys.setrecursionlimit({DEEP_ENOUGH})\n{_EXPORT.format(more='')}",
        ),
    ),
)

DEFERRED = _mode(
    id="defer-asserts",
    title="Turns guards on sizes into assertions that the program checks when it runs",
    soundness="precondition",
    enter=_option(prefer_deferred_runtime_asserts_over_guards=True),
    does="A relation between sizes that tracing needs is assumed and becomes an assertion in the program.",
    precondition="the inputs satisfy the program's assertions",
    cures=(Cure(kinds=_GUARDS),),
    needs={"torch": ">=2.9"},
    rank=30,
    replaces=_changed_call(", prefer_deferred_runtime_asserts_over_guards=True"),
)

OBLIVIOUS = _mode(
    id="size-oblivious",
    title="Assumes during tracing that dynamic sizes are not zero or one",
    soundness="precondition",
    enter=_where_dynamic(_size_oblivious),
    does=(
        "Sets `backed_size_oblivious`: a dynamic size is treated as if its example value were unknown, without guards."
    ),
    precondition="nothing depends on whether a dynamic size is zero or one",
    cures=(Cure(kinds=("dynamic_dim_specialised", "dims_related"), exporters=("export", "export-strict")),),
    link="https://github.com/pytorch/pytorch/blob/main/torch/fx/experimental/_config.py",
    retire="torch.export is size-oblivious by default",
    rank=40,
    replaces=_call_within("config.patch(backed_size_oblivious=True)"),
)

RELATIONS = _mode(
    id="suggested-relations",
    title="Adds the bounds and relations that torch suggests to the dynamic shapes",
    soundness="precondition",
    enter=_where_dynamic(_option(suggested_fixes="relations")),
    does=("When torch rejects the dynamic shapes and suggests bounds or a relation between dimensions, they are used."),
    precondition=(
        "sizes satisfy the bounds and relations that torch suggested; the program asserts them, but not that a size "
        "is a multiple of a number"
    ),
    cures=(Cure(message="Suggested fixes:"),),
    rank=20,
    conflicts=("suggested-constants",),
    replaces=(
        Replacement(target="the dynamic shapes", before='{"x": {0: Dim("n")}}\n', after='{"x": {0: 2 * Dim("_n")}}\n'),
    ),
)

CONSTANTS = _mode(
    id="suggested-constants",
    title="Applies all that torch suggests to the dynamic shapes, including constant sizes",
    soundness="specialised",
    enter=_where_dynamic(_option(suggested_fixes="any")),
    does=("Like `suggested-relations`, but a dimension that must be constant according to torch becomes constant."),
    precondition="sizes that became constant equal the example's",
    cures=(Cure(message=r"Suggested fixes:.* = \d+"),),
    rank=40,
    conflicts=("suggested-relations",),
    replaces=(Replacement(target="the dynamic shapes", before='{"x": {0: Dim("n")}}\n', after='{"x": {0: 4}}\n'),),
)

AUTOMATIC = _mode(
    id="auto-dims",
    title="Lets torch decide which dimensions stay dynamic",
    soundness="specialised",
    enter=_where_dynamic(_automatic),
    does=("Every dynamic dimension becomes `Dim.AUTO`, so that tracing can make it constant or relate it to others."),
    precondition=(
        "sizes that became constant equal the example's, and others satisfy the guards, which the program checks"
    ),
    cures=(Cure(kinds=("dynamic_dim_specialised", "dims_related")),),
    rank=20,
    conflicts=("static-dim",),
    replaces=(
        Replacement(target="the dynamic shapes", before='{"x": {0: Dim.DYNAMIC}}\n', after='{"x": {0: Dim.AUTO}}\n'),
    ),
)

MAY_FIX = frozenset({CONSTANTS.id, AUTOMATIC.id})
"""Under these torch decides whether a size becomes constant: which did shows the program alone."""

FLAT_SIGNATURE = _mode(
    id="flat-signature",
    title="Gives keywords in **kwargs names in forward's signature",
    soundness="exact",
    enter=_option(flat_forward=True),
    does=(
        "torch up to 2.13 matches dynamic shapes once with the keywords bundled in **kwargs and once without; no "
        "specification fits both. For the export, the keywords of this call become parameters of forward."
    ),
    cures=(
        Cure(kinds=("python_error",), message="AssertionError"),
        Cure(message=r"dynamic_shapes.*(kwargs|match|structure)|number of parameters|combined_args|top-level keys"),
    ),
    link="https://github.com/pytorch/pytorch/issues/155862",
    retire="torch 2.14 is the oldest that is supported: it takes dynamic shapes of keywords in **kwargs",
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
    FLAT_SIGNATURE, NO_GRAD, DEEPER, NON_STRICT, STRICT, DEFERRED, OBLIVIOUS, RELATIONS, CONSTANTS, AUTOMATIC,
)  # fmt: skip
