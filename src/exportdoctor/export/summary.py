"""What an export says on the screen and in its Markdown: a few lines, the numbers first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from exportdoctor.core.outcome import Agreement
from exportdoctor.core.protocol.export import ExportResult, Input, Loss, Order, Precision, Trouble, Written
from exportdoctor.shims import Shim

_VERDICTS = {
    "proved": "Proved: {count} in {engine} beside eager, without shims.",
    "specialised": "Right only at the traced sizes: it agrees with eager there, and not at {wrong}.",
    "differs": "Rejected: it runs, and computes other numbers than eager. No file was written.",
    "fails": "No file was written.",
}
_STAGES = {
    "export": "torch.export fails",
    "load": "it was made, and cannot be loaded",
    "translate": "torch.onnx cannot translate the program",
    "check": "onnx's checker refuses the file",
    "run": "it was loaded, and fails when it runs",
    "numbers": "it computes other numbers",
}
_ASCII = str.maketrans({"✓": "+", "✗": "x", "Δ": "d", "·": "-", "…": "~"})
_FINITE = 1e300
_UNITS = ("bytes", "KB", "MB", "GB")


def plain(text: str) -> str:
    """The text for a terminal that shows ASCII alone."""
    return text.translate(_ASCII)


def headline(order: Order, handed: ExportResult) -> str:
    """Target, part and what they were made with."""
    facts = [order.target.ref, order.part, _weights(handed.weights), handed.dtype, handed.device]
    facts += [f"{name} {handed.environment[name]}" for name in ("torch", "transformers") if name in handed.environment]
    if order.to == "onnx":
        facts += [f"{name} {handed.environment[name]}" for name in ("onnxruntime",) if name in handed.environment]
    return " · ".join(fact for fact in facts if fact)


def _weights(name: str) -> str:
    return f"{name} weights" if name in ("random", "checkpoint") else f"weights {name}"


def lines_of(order: Order, handed: ExportResult, shims: Sequence[Shim]) -> list[str]:
    """Everything but the headline."""
    used = [shim for shim in shims if shim.id in handed.shims]
    lines = [f"  {'shims':<8}{', '.join(f'{shim.id} ({shim.soundness})' for shim in used) or 'none needed'}"]
    lines += [f"  {'given':<8}{shim.id} holds if {shim.precondition}" for shim in used if shim.precondition]
    for one in handed.files:
        lines += _file(one, handed, titled=len(handed.files) < 3)
    width = max((len(row.inputs) for row in handed.numbers), default=0)
    lines += [_row(row, width) for row in handed.numbers]
    if handed.precision is not None:
        lines += [f"  {line}" for line in _precision(handed.precision)]
    lines += [f"  note    {note}" for note in handed.notes]
    if handed.imports and not shims:
        lines.append(f"  note    import {', '.join(handed.imports)} before torch.export.load")
    if handed.trouble is not None:
        lines += [f"  {line}" for line in _trouble(handed.trouble)]
        if handed.trouble.stage == "export":
            lines.append(
                f"  shims that cure it are sought by: exportdoctor scan {order.target.ref} --part {order.part}"
            )
    return [*lines, f"  {_verdict(handed)}"]


def _file(one: Written, handed: ExportResult, *, titled: bool) -> Iterator[str]:
    opset = f", opset {handed.opset}" if handed.opset else ""
    data = f", weights in {', '.join(one.data)}" if one.data else ""
    yield f"  {'file':<8}{one.name}, {size(one.bytes)}, {one.nodes} nodes{opset}{data}"
    for word, values in (("in", one.inputs), ("out", one.outputs)):
        if titled and values:
            more = f" and {len(values) - 6} more" if len(values) > 6 else ""
            yield f"  {word:<8}{', '.join(map(_input, values[:6]))}{more}"


def _input(value: Input) -> str:
    return f"{value.name} {value.dtype}[{', '.join(map(str, value.shape))}]"


def size(count: int) -> str:
    """A number of bytes, in the unit that suits it."""
    amount, unit = float(count), 0
    while amount >= 1000 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:.3g} {_UNITS[unit]}" if unit else f"{count} bytes"


def _number(value: float) -> str:
    """A difference; beyond all numbers where one side is not finite."""
    return "not finite" if value > _FINITE else f"{value:.1e}"


def _row(row: Agreement, width: int) -> str:
    mark = "✓" if row.holds else "✗"
    if row.trouble:
        return f"  {mark} {row.inputs:<{width}}  {row.trouble}"
    if row.tolerance == 0:  # whole numbers
        return f"  {mark} {row.inputs:<{width}}  " + ("the same as eager" if row.holds else f"{row.max_abs:.0f} differ")
    told = f"max |Δ| {_number(row.max_abs)}, relative {_number(row.max_rel)}, allowed |Δ| {row.tolerance:.1e}"
    return f"  {mark} {row.inputs:<{width}}  {told}"


def _precision(found: Precision) -> Iterator[str]:
    left = f", {found.share:.1e} of the largest value: about {found.digits:g} digits are left" if found.digits else ""
    yield f"{found.dtype} beside float32, both in eager: max |Δ| {_number(found.max_abs)}{left}"
    if found.overflow is not None:
        yield f"  not finite from {_at(found.overflow)} on"
    for loss in found.losses:
        yield f"  most is lost at {_at(loss)}: error {loss.before:.1e} before, {loss.after:.1e} after"


def _at(loss: Loss) -> str:
    return f"{loss.node} ({loss.op}) in {loss.module or 'the part itself'}"


def _trouble(found: Trouble) -> Iterator[str]:
    yield f"✗ {_STAGES.get(found.stage, found.stage)}: {found.exception.rpartition('.')[2]}: {found.message}"
    if found.node:
        yield f"  at {found.node} ({found.op}), made by {_owner(found)}"
    elif found.module:
        yield f"  in {_owner(found)}"
    if found.file:
        where = f" in {found.where}" if found.where else ""
        yield f"  {found.file}:{found.line}{where}"
    if found.source:
        yield f"      {found.source}"
    if found.alone is not None:
        yield f"  the smallest submodule that fails so by itself: {found.alone}"
    elif found.asked:
        yield f"  {found.asked} of its submodules were asked alone, and none of them fails so by itself"


def _owner(found: Trouble) -> str:
    kind = f" ({found.module_class})" if found.module_class else ""
    return f"{found.module or 'the part itself'}{kind}"


def _verdict(handed: ExportResult) -> str:
    wrong = [row.inputs for row in handed.numbers if not row.holds]
    count = len(handed.numbers)
    return _VERDICTS[handed.verdict].format(
        count=f"{count} comparisons" if count != 1 else "one comparison",
        engine=handed.ran_in,
        wrong="; ".join(wrong[:3]),
    )
