"""Sentences about what layers cost in low precision."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from exportdoctor.core.protocol.sensitivity import LayerCost, Lowering, SensitivityResult
from exportdoctor.report.wording.formatting import count, under_shims

NO_QUANTISER = "No quantiser of ONNX Runtime makes files of this dtype; the errors are those of values that were cast."
MADE_SETS = "The input sets were made, not measured from use: give yours with --calibration."
SATURATES = (
    "Sums of uint8 times int8 saturate at 16 bits in ONNX Runtime on this processor (x86 without VNNI), where it makes "
    "int8 activations uint8: the quantiser's own file may cost more here than elsewhere; reduce_range=True of "
    "quantize_static avoids it."
)
NO_FLOATS = "There is no floating-point output, so what a layer costs cannot be measured"
NO_FLOATS_HINT = "Return the floating-point numbers that the outputs are made of as well"
GEMM_ALONE = "There is nothing in it that w4a16 could lower: its products with weights are Gemm"
GEMM_ALONE_HINT = "ONNX Runtime's quantiser takes MatMul only; --engine torchao lowers linear layers"
IN_FLOAT32_HINT = (
    "Give the model in float32 (--dtype float32, or .float() on the module and its inputs): its modules have the same "
    "names then"
)
ALREADY_LOWERED_HINT = "Choose another --to"
_FINITE = 1e300
_MOST_TOLD, _MOST_FOLDED = 10, 5

_LOWERINGS = {
    "torchao": {
        "int8": "weights in int8, as torchao makes them",
        "w8a8": "weights in int8 and activations scaled at each call, as torchao makes them",
        "w4a16": "weights in four bits, in groups of 32, as torchao makes them",
    },
    "pt2e": {
        "int8": "int8 with a scale for each channel of weights, by PT2E with torchao's quantiser for x86",
        "w8a8": "int8 with activations scaled at each call, by PT2E with torchao's quantiser for x86",
    },
    "onnxruntime": {
        "int8": "int8 for products and convolutions, one scale for each tensor, by ONNX Runtime's static quantisation",
        "w8a8": "int8 for products and convolutions, a scale for each channel of weights, activations symmetric",
        "w4a16": "weights in four bits, in blocks of 32",
        "fp16": "float16",
        "bf16": "bfloat16",
    },
}


_MADE = {
    "onnxruntime": "the quantiser's own file",
    "torchao": "the program of what torchao makes",
    "pt2e": "the quantiser's own program",
}


def static_call(call: str, others: list[str]) -> str:
    """How ONNX Runtime's static quantisation was called, and the operators of the file that it leaves then."""
    left = f"; without op_types_to_quantize it lowers {', '.join(others)} too, which was not measured" if others else ""
    return f"The errors are those of {call}{left}."


def not_made(why: str) -> str:
    """A file that the quantiser could not make, or that does not run."""
    return f"The file that the quantiser makes with this list was not run: {why}"


def refused_layer(what: str) -> str:
    """A layer that the engine leaves as it is."""
    return f"Not lowered: {what}"


def program_not_made(why: str) -> str:
    """What torchao quantised with this list, and what could not be exported or run."""
    return f"The program that torchao makes with this list was not run: {why}"


def nodes_left(number: int) -> str:
    """That some nodes that a quantiser lowers were not measured; '' for none."""
    return (
        f"{count(number, 'lowered node')} outside of submodules: in the quantiser's program alone, not in other figures"
        if number
        else ""
    )


def nothing_to_lower(to: Lowering) -> str:
    """A file without any operator that this lowers."""
    return f"There is nothing in it that {to} could lower"


def already_lowered(to: Lowering) -> str:
    """A file in this precision."""
    return f"What it computes is in {_LOWERINGS['onnxruntime'][to]} already, so {to} would change nothing"


def other_dtype(dtype: str) -> str:
    """A file whose operators are in a dtype that no quantiser takes."""
    return f"What could be lowered in it is in {dtype}, and ONNX Runtime's quantisers take float32"


def short_not_loaded(dtypes: list[str], why: str) -> str:
    """A file with floats of 16 bits that cannot be measured."""
    return f"ONNX Runtime's CPU does not run this file, which has {' and '.join(dtypes)}: {why}"


def not_loaded(why: str) -> str:
    """A file that cannot be measured."""
    return f"ONNX Runtime does not run the file: {why}"


def computed_in_float32(dtypes: list[str], to: Lowering) -> str:
    """How operators in 16 bits were measured."""
    said = (
        f"What it computes in {' and '.join(dtypes)} was computed in float32 and rounded after each operator, also in "
        "the quantiser's own file."
    )
    if "bfloat16" not in dtypes or to in ("w4a16", "bf16"):
        return said
    return (
        f"{said} ONNX Runtime's quantiser for {to} does not take bfloat16: give it a file of the model in float32, in "
        "which modules have the same names, but nodes may have others."
    )


def folded_modules(layers: Iterable[LayerCost]) -> Iterator[str]:
    """Which submodules others stand for, as they were folded into them."""
    found = [f"{', '.join(one.folded)} in {one.name}" for one in layers if one.folded]
    if found:
        more = f"; {len(found) - _MOST_FOLDED} more in --format json" if len(found) > _MOST_FOLDED else ""
        yield f"Folded into the operator before them, and lowered with it: {'; '.join(found[:_MOST_FOLDED])}{more}."


def error_text(value: float) -> str:
    """A relative error."""
    return "not finite" if value > _FINITE else f"{value:.2g}" if value else "0"


def decibel(value: float) -> str:
    """The signal over the noise of a relative error."""
    if value > _FINITE:
        return "none"
    return f"{-20 * math.log10(value):.0f} dB" if value else "exact"


def sensitivity_headline(result: SensitivityResult, *, versions: bool = True) -> str:
    """Target, part, what it is lowered to, shims and versions."""
    engine = "onnxruntime" if result.engine == "onnxruntime" else "torchao"
    names = [name for name in ("torch", engine) if versions and name in result.environment]
    packages = [f"{name} {result.environment[name]}" for name in names]
    lowered = _LOWERINGS[result.engine][result.to]
    return " · ".join(filter(None, (result.target, result.part, lowered, under_shims(result.shims), *packages)))


def cost_header(result: SensitivityResult, *, brief: bool = False) -> tuple[str, ...]:
    """The columns of the table of layers; `brief` for a terminal."""
    if brief:
        return ("", "layer", "own", "alone", "SQNR", "all but it")
    logits = ("KL", "same choice") if any(one.kl >= 0 for one in result.layers) else ()
    return ("", "layer", "own output", "outputs, alone", "SQNR", "cosine", *logits, "all but it")


def cost_rows(result: SensitivityResult, most: int | None = None) -> list[tuple[str, ...]]:
    """A row for each layer, most sensitive first; those that are kept have a mark. With `most` brief ones."""
    logits = any(one.kl >= 0 for one in result.layers)
    if most is not None:
        return [
            (
                "•" if one.name in result.kept else "",
                one.name,
                *(error_text(one.local), error_text(one.alone), decibel(one.alone), error_text(one.kept)),
            )
            for one in result.layers[:most]
        ]
    return [
        (
            "•" if one.name in result.kept else "",
            one.name,
            error_text(one.local),
            error_text(one.alone),
            decibel(one.alone),
            f"{one.cosine:.5f}",
            *((f"{one.kl:.2g}", f"{one.top1:.0%}") if logits else ()),
            error_text(one.kept),
        )
        for one in result.layers
    ]


def sensitivity_details(result: SensitivityResult) -> Iterator[str]:
    """The set to keep, its proof, and what single errors do not tell."""
    more = len(result.layers) - _MOST_TOLD
    if more > 0:
        yield f"{count(more, 'layer')} cost less; --format json has all"
    yield f"all of the {count(len(result.layers), 'layer')} lowered: error {error_text(result.whole)} of the outputs"
    yield f"the budget is {error_text(result.budget)} ({decibel(result.budget)}), of which the search uses four fifths"
    if result.kept:
        yield f"to keep in high precision (•): {count(len(result.kept), 'layer')} of {len(result.layers)}"
        yield from (f"  {name}" for name in result.kept)
    else:
        yield "nothing needs to be kept in high precision"
    yield f"with that, on the sets of the search: {error_text(result.searched)}"
    verb = "stays within" if result.proved <= result.budget else "exceeds"
    others = f"{count(result.sets[2], 'set')} that {'was' if result.sets[2] == 1 else 'were'} not used before"
    yield f"on {others}: {error_text(result.proved)}, {verb} the budget"
    if result.made >= 0:
        verb = "stays within" if result.made <= result.budget else "exceeds"
        yield f"{_MADE[result.engine]} with this list, on those sets: {error_text(result.made)}, {verb} the budget"
    if result.summed != len(result.kept):
        yield f"errors of single layers, added up as independent noise, would have kept {result.summed}"
    for pair in result.pairs:
        way = "more" if pair.together > pair.expected else "less"
        yield (
            f"{pair.first} and {pair.second} together: {error_text(pair.together)}, {way} than their own errors add up "
            f"to ({error_text(pair.expected)})"
        )
    yield from result.notes
    yield from (f"wrote {path}" for path in result.files)


LAYER_LEGEND = ("outputs' error if it alone is lowered", "the same, kept in high precision", "error of its own output")
LAYERS_IN_ORDER = "layers, in the order in which they run →"


def budget_text(budget: float) -> str:
    """The line of the budget in a picture."""
    return f"budget {error_text(budget)} ({decibel(budget)})"


def layer_text(result: SensitivityResult, one: LayerCost) -> str:
    """A layer in a picture."""
    kept = ", kept in high precision" if one.name in result.kept else ""
    return f"{one.name}: outputs {error_text(one.alone)}, its own {error_text(one.local)}{kept}"


def round_trips(number: int, error: float) -> str:
    """That the converter to float16 makes float16 of values that kept nodes give or take."""
    return (
        f"ONNX Runtime's converter casts {count(number, 'value')} that nodes to keep give or take to float16 and back, "
        f"whatever the list; with the value before such a pair of Cast in its place, the error is {error_text(error)}"
    )


def unnamed_nodes(number: int) -> str:
    """That names in the lists are not those of the file."""
    return (
        f"{count(number, 'node')} of the file have no name: the lists call them by operator and place, as MatMul_12; "
        "name them so before a quantiser takes the list"
    )
