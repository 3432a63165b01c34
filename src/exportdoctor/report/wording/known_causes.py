"""Sentences about failures whose cause the message tells: why, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.failure.messages import (
    AFTER_ROUNDING,
    AMONG_EQUALS,
    FIRST_TO_DIFFER,
    LEAKED_CONSTANT,
    OF_UNUSED_CONSTANTS,
    ONE_FOR_SEVERAL,
    OTHERWISE_DECOMPOSED,
    fixed_sizes,
    suggested_fixes,
)
from exportdoctor.core.failure.size_guards import declared_ranges, guards_of_sizes, least_size, unproved_sizes
from exportdoctor.report.wording import line_advice
from exportdoctor.report.wording.shim_tries import dims_in

_QUANTIZE_LATER = (
    "Export the model as it is before torch.ao.quantization packs its weights, and quantize the exported program (PT2E "
    "quantization of torchao), or leave this layer in float."
)
_KEYWORDS = (
    "torch.fx writes the names of submodules and tensors as attributes into the code of the program, as in "
    "`self.proj.in.weight`, which is no Python."
)
_OF_CONSTANTS = (
    "The code reads a value of a tensor that follows from no tensor among the inputs, buffers and parameters. During "
    "export tensors have no values, not even those of constants."
)
_COMPARISONS = {
    "equal": "Compare them by `(x == y).all()`: that is a tensor, by which torch.where can choose.",
    "allclose": "Compare them by `torch.isclose(x, y).all()`: that is a tensor, by which torch.where can choose.",
}
_SHARED_INPUTS = (
    "Give forward inputs that share no memory, as `y.clone()` of a view, or let it write into a copy: `x = x.clone()`."
)
_WHY_SHARED_INPUTS = (
    "Two inputs share memory, and forward writes into one of them. torch.export takes such inputs, but what decomposes "
    "its program does not."
)
_MOST_FIXES = 6
_GUARD_OF_A_NUMBER = re.compile(
    r"Not all values of (\S+) = (\S+) in the specified range[^\n]* satisfy the generated guard ([^\n%]*) == \d+\.$",
    re.MULTILINE,
)
_WITHOUT_GRADIENTS = (
    "Call torch.export.export under torch.no_grad(): where gradients are recorded, what is written into a view makes "
    "torch compute the view once more, and its sizes or its place are new symbols."
)
_GRADIENTS_INSIDE = (
    "Compute the gradients outside of the model, or export a graph that has the operators of the backward pass: "
    '`make_fx(model, tracing_mode="symbolic", _allow_non_fake_inputs=True)(x)` of torch.fx.experimental.proxy_tensor.'
)
_NOT_TRUE_ITSELF = (
    "A number that is read out of a tensor is a symbol during export. `is True` and `case True` ask for Python's own "
    "True, which no symbol is, and torch does not see that they ask."
)
_BIND = "Keep the value as an attribute of the module, or pass a str, an int or a bool from which forward makes it."
_PLAIN_INPUTS = {
    "numpy.ndarray": "Pass a tensor: torch.from_numpy makes one of the array.",
    "complex": "Pass a tensor of a complex dtype, or keep the number as an attribute of the module.",
    **dict.fromkeys(
        ("torch.dtype", "torch.device", "torch.memory_format", "torch.layout", "slice", "range", "bytes", "type",
         "enum.EnumType", "function", "builtin_function_or_method"), _BIND,
    ),
}  # fmt: skip
"""Types of inputs that hold no tensors, so that registering them is of no use."""


_PAD_IT = "Pass a padded tensor with a mask or the lengths in place of the nested one."
_OF_STATE = "Make it an input, and return what it becomes."


class _Cause(NamedTuple):
    """A cause with what is said of it; `step` gives an empty text where it is another."""

    kind: FailureKind
    message: str
    step: Callable[[Finding, re.Match[str]], str]
    summary: Callable[[Finding, re.Match[str]], str] = lambda *_: ""


def summary(finding: Finding) -> str:
    """Why it fails, where that is known better than from its kind; else empty."""
    return next((cause.summary(finding, match) for cause, match, _ in _causes(finding)), "")


def step(finding: Finding) -> str:
    """What to write instead; empty where nothing better is known than for its kind."""
    return next((said for _, _, said in _causes(finding)), "")


def _causes(finding: Finding) -> Iterator[tuple[_Cause, re.Match[str], str]]:
    for cause in _CAUSES:
        match = re.search(cause.message, finding.exception.message)
        if cause.kind is finding.kind and match is not None and (said := cause.step(finding, match)):
            yield cause, match, said


def _of_the_line(advice: Callable[[Finding], str]) -> Callable[[Finding, re.Match[str]], str]:
    return lambda finding, _: advice(finding)


def _other_operator(finding: Finding, match: re.Match[str]) -> str:
    name = _operator(finding, match)
    return (
        f"Use other operators in place of {name}, or compute what it gives outside of the model and pass it in."
        if name
        else ""
    )


def _operator(finding: Finding, match: re.Match[str]) -> str:
    named = re.match(r"aten\.\w+", finding.op or finding.exception.message)
    return named[0] if named and named[0] not in {"aten.item", "aten._local_scalar_dense"} else ""


def _object_of_a_class(finding: Finding, match: re.Match[str]) -> str:
    if match[1].startswith(("quantized.", "rnn.")):  # those of torch.ao.nn.quantized
        return _QUANTIZE_LATER
    return (
        "Give the class a method `__obj_flatten__` and a fake class in Python, or keep the object in a custom operator."
    )


def _plain_input(finding: Finding, match: re.Match[str]) -> str:
    if match[1].startswith("numpy.") and match[1] not in _PLAIN_INPUTS:
        return "Pass a plain number, as `.item()` of the numpy value gives it, or a tensor."
    return _PLAIN_INPUTS.get(match[1], "")


def _entry_of_shapes(finding: Finding, match: re.Match[str]) -> str:
    """What the entry of `dynamic_shapes` for an input that holds others must be like."""
    place, kind, count, keys = match.groups()
    if not place:
        return ""
    entry, given = f"`dynamic_shapes{place}`", f"`inputs{place}`"
    if keys:
        return f"Give {entry} the keys that {given} has: {keys}."
    if count:
        entries = "1 entry" if count == "1" else f"{count} entries"
        return f"Give {entry} {entries}, one for each value in {given}: None for what stays as it is."
    named = re.search(r"<class '(?:[\w.<>]+\.)?(\w+)'>", kind)
    what = f"a {named[1]}" if named else "a named tuple of the same class" if "namedtuple" in kind else "one"
    return f"Make {entry} {what}, as {given} is: with an entry for each value in it, None for what stays as it is."


def _numbers_of_python(finding: Finding, match: re.Match[str]) -> str:
    if finding.slice is None or not finding.slice.of_constants:
        return ""
    if any(one.shim == "constants-as-numbers" and one.result == "same" for one in finding.shims_tried):
        return ""  # with constants it fails there again, as where a loop asks a tensor that begins as one
    return "Compute it with numbers of Python in place of tensors."


def _in_training(finding: Finding, match: re.Match[str]) -> str:
    if not finding.in_training:
        return ""
    return "Call eval() on the model before it is exported: torch.onnx does not keep the training mode of layers."


def _declare_less(finding: Finding, match: re.Match[str]) -> str:
    message = finding.exception.message
    lines = [line.replace(", max=oo", "") for line in suggested_fixes(message)]
    # torch suggests a range for the other guards of a size that one guard fixes, and none passes that
    fixed = {line.partition(" = ")[0] for line in lines if line.partition(" = ")[2].isdigit()}
    for name, size, asked in _GUARD_OF_A_NUMBER.findall(message):
        if len(re.findall(rf"{re.escape(size)}|\b{re.escape(name)}\b", asked)) == 1:
            fixed.add(name)
    if not lines and not fixed:
        lines = _least_sizes(message)
    fixes = [line for line in lines if line.partition(" = ")[0] not in fixed]
    unproved, ranges = unproved_sizes(message), declared_ranges(message)
    told = fixed | {line.partition(" = ")[0] for line in fixes}
    fixes += [_declaration(name, *ranges[name]) for name in sorted(unproved - told)]
    if not 0 < len(fixes) <= _MOST_FIXES or (fixed and not _is_of_several(message)):
        return ""
    fixes = [_as_auto(line) if line.partition(" = ")[0] in unproved else line for line in fixes]
    by_torch = " With Dim.AUTO torch need not prove that they do." if any("Dim.AUTO" in line for line in fixes) else ""
    declared = " and ".join(f"`{line}`" for line in fixes)
    others = " and ".join(f"`{name}`" for name in sorted(fixed))
    them = "them" if len(fixed) > 1 else "it"
    independent = f"Make the code independent of {others}, or declare {them} static" if fixed else ""
    return (
        f"Declare only sizes that the guards take: {declared}.{by_torch} "
        f"{independent or 'Or make the code independent of the size'}."
    )


def _as_auto(line: str) -> str:
    return re.sub(
        r"Dim\('\w+'(?:, )?([^)]*)\)", lambda found: f"Dim.AUTO({found[1]})" if found[1] else "Dim.AUTO", line
    )


def _is_of_several(message: str) -> bool:
    """Whether a constraint violation names several dimensions."""
    return len(dims_in(message)) > 1


def _least_sizes(message: str) -> list[str]:
    """The least size of each violated dimension, where the guards leave out some of the smallest alone, or none. The
    example, which they take, has no size below 2."""
    guards, ranges = guards_of_sizes(message), declared_ranges(message)
    if sum(map(len, guards.values())) != sum(line.startswith("  - ") for line in message.splitlines()):
        return []
    found = {name: least_size(mine, int, start=ranges[name][0], end=ranges[name][1]) for name, mine in guards.items()}
    near = all(least is not None and least <= ranges[name][0] + 1 for name, least in found.items())
    if {*found} != {*dims_in(message)} or not near:
        return []
    return [_declaration(name, least or 2, ranges[name][1]) for name, least in found.items()]


def _declaration(name: str, least: int, largest: int | None) -> str:
    return f"{name} = Dim('{name}', min={least}{f', max={largest}' if largest is not None else ''})"


def _is_of_an_unused_constant(finding: Finding) -> bool:
    return any(frame.function.endswith(OF_UNUSED_CONSTANTS) for frame in finding.stack)


def _larger_example(size: str) -> str:
    return f"Give an example of size 2 or more in that dimension: torch.export takes one of size {size} for fixed."


def _small_example(size: str) -> str:
    return (
        f"A dimension is declared dynamic, and has the size {size} in the example, which torch.export takes for fixed, "
        "whatever the code does."
    )


def _is_small_in_example(finding: Finding) -> bool:
    """Whether zero or one in the example alone fixes what is declared dynamic: no line does."""
    return finding.guard is None and {*fixed_sizes(finding.exception.message)} <= {"0", "1"}


def _below(finding: Finding, match: re.Match[str]) -> str:
    return ".".join(filter(None, (finding.module, match[1])))


_CAUSES = (
    *(
        _Cause(kind, r"", _of_the_line(line_advice.in_a_message))
        for kind in (FailureKind.DATA_DEPENDENT_GUARD, FailureKind.DATA_DEPENDENT_VALUE)
    ),
    *(
        _Cause(kind, r"", _numbers_of_python, lambda *_: _OF_CONSTANTS)
        for kind in (FailureKind.DATA_DEPENDENT_GUARD, FailureKind.DATA_DEPENDENT_VALUE)
    ),
    *(
        _Cause(kind, r"", _of_the_line(line_advice.loop_over_found_numbers))
        for kind in (FailureKind.DATA_DEPENDENT_GUARD, FailureKind.DATA_DEPENDENT_VALUE)
    ),
    _Cause(
        FailureKind.DATA_DEPENDENT_GUARD,
        r"Could not guard on data-dependent expression Eq\(u\d+, 1\)",
        _of_the_line(line_advice.truth_of_a_tensor),
    ),
    _Cause(
        FailureKind.MISSING_FAKE_KERNEL,
        r"quantized nyi in meta tensors",
        lambda *_: _QUANTIZE_LATER,
        lambda *_: "The module is given a tensor of a quantized dtype, of which torch makes no fake tensor.",
    ),
    _Cause(
        FailureKind.DATA_DEPENDENT_VALUE,
        r"Could not guard on data-dependent expression",
        lambda finding, _: _QUANTIZE_LATER if (finding.module_class, finding.file) == ("Quantize", None) else "",
    ),
    _Cause(
        FailureKind.DATA_DEPENDENT_VALUE,
        r"^[^\n]*('[^'\n]*(u\d+)[^'\n]*')$",
        lambda *_: (
            "Pass the name, or the number as an int, from which it is made, and export a program for each; or compute "
            "all that it chooses between, and choose by torch.where or an index."
        ),
        lambda _, match: (
            f"A name is made of a number that is read out of a tensor. During export the text of that number is its "
            f"symbol, {match[2]}, so that the name is {match[1]}."
        ),
    ),
    _Cause(
        FailureKind.PYTHON_ERROR,
        r"^'NestedIntNode' object has no attribute",
        lambda *_: _PAD_IT,
        lambda *_: "A nested (jagged) tensor is traced, for whose sizes torch.export has no symbols.",
    ),
    _Cause(
        FailureKind.PYTHON_ERROR,
        r"^Unable to cast NotImplemented to Tensor",
        lambda finding, _: _PAD_IT if "nested" in (finding.expression or finding.source or "") else "",
        lambda *_: "A nested (jagged) tensor is made while the forward is traced, which torch.export cannot do.",
    ),
    _Cause(
        FailureKind.COSTLY,
        r"went to the model's own code",
        lambda *_: "Compute it outside forward: in the constructor, or in what makes the inputs.",
    ),
    _Cause(
        FailureKind.COSTLY,
        r"",
        lambda finding, _: (
            "Shorten the loop that is unrolled there, or leave fewer dimensions dynamic." if finding.dimensions else ""
        ),
    ),
    _Cause(
        FailureKind.PYTHON_ERROR,
        r"_apply\(\): Couldn't swap ",
        lambda *_: (
            "Convert or move the module outside of forward, before the export: its parameters cannot be exchanged "
            "while it is traced."
        ),
        lambda *_: "forward converts a module to a dtype or a device, which replaces its parameters.",
    ),
    _Cause(
        FailureKind.PYTHON_ERROR,
        r"argument '(\w+)' .*must be bool, not SymBool|\b(\w+)=SymBool",
        lambda finding, match: line_advice.flag_of_sizes(finding, match[1] or match[2]),
        lambda _, match: (
            f"A condition on dynamic sizes is given as `{match[1] or match[2]}`. During export it is a symbol, which "
            "torch does not take for a bool."
        ),
    ),
    _Cause(
        FailureKind.PYTHON_ERROR,
        r"^maximum recursion depth exceeded",
        lambda *_: (
            "Raise the limit before the export, where nothing calls itself for ever: sys.setrecursionlimit(20000)."
        ),
        lambda *_: (
            "Python refuses more than a thousand nested calls. A module within a module takes about nine of them while "
            "it is traced, and four in eager."
        ),
    ),
    _Cause(
        FailureKind.PYTHON_ERROR,
        r"cannot access local variable '(\w+)'",
        lambda _, match: (
            f"Where `{match[1]}` is assigned under `flag is True` or `match flag: case True`, and the flag is read out "
            "of a tensor, write `if flag:`: during export the flag is a symbol, which is not True itself."
        ),
        lambda _, match: (
            f"No statement that assigns `{match[1]}` ran during the export, and one does in eager: a condition came "
            "out otherwise."
        ),
    ),
    _Cause(
        FailureKind.NUMBERS,
        r"goes another way than the export went \(.*(?:\bis (?:not )?(?:True|False)\b|case (?:True|False)\b)",
        lambda *_: "Write `if flag:` or `if not flag:` in place of a comparison with True or False by identity.",
        lambda *_: _NOT_TRUE_ITSELF,
    ),
    _Cause(
        FailureKind.PYTHON_ERROR,
        r"unsupported operand type\(s\) for divmod\(\)",
        lambda *_: (
            "Write `a // b, a % b` in place of `divmod(a, b)`: a symbolic number has these two, and no `divmod`."
        ),
        lambda *_: (
            "During export a size, or a number that is read out of a tensor, is a symbol, which has no `divmod`."
        ),
    ),
    *(
        _Cause(kind, r"Could not (?:extract specialized|guard on)", _of_the_line(line_advice.numbers_in_a_list))
        for kind in (FailureKind.DATA_DEPENDENT_GUARD, FailureKind.DATA_DEPENDENT_VALUE)
    ),
    _Cause(FailureKind.PYTHON_ERROR, r"its data is not allocated yet", _of_the_line(line_advice.values_in_a_list)),
    _Cause(
        FailureKind.PYTHON_ERROR,
        r"\b[su]\d+\b",
        _of_the_line(line_advice.text_of_a_size),
        lambda _, match: (
            f"The text of a size is made. That of a dynamic size is the name of its symbol during export: {match[0]}."
        ),
    ),
    _Cause(
        FailureKind.DATA_DEPENDENT_VALUE,
        r"\.numpy\(\) is not supported for tensor subclasses",
        _of_the_line(line_advice.read_by_numpy),
    ),
    _Cause(
        FailureKind.DATA_DEPENDENT_VALUE,
        r"Could not extract specialized integer",
        _of_the_line(line_advice.read_by_call),
    ),
    _Cause(
        FailureKind.DATA_DEPENDENT_VALUE,
        r"^aten\.(equal|allclose)\.\w+$",
        lambda finding, match: line_advice.compared_as_tensors(finding) or _COMPARISONS[match[1]],
        lambda _, match: (
            f"torch.{match[1]} gives a bool of Python, which depends on values: tensors have none during export."
        ),
    ),
    _Cause(
        FailureKind.DATA_DEPENDENT_VALUE,
        r"^only integers, slices ",
        _of_the_line(line_advice.assigned_by_index),
        lambda *_: "An index of a tensor has a number that depends on values where torch takes only numbers of Python.",
    ),
    _Cause(
        FailureKind.DATA_DEPENDENT_VALUE,
        r"(?s)^Pending unbacked symbols .*\bgrad_fn=",
        lambda finding, _: "" if "narrow(" in f"{finding.expression} {finding.source}" else _WITHOUT_GRADIENTS,
    ),
    _Cause(
        FailureKind.AUTOGRAD_STATE,
        LEAKED_CONSTANT,
        lambda *_: _GRADIENTS_INSIDE,
        lambda *_: "The forward computes gradients: torch.export traces above autograd, and sees no backward pass.",
    ),
    _Cause(
        FailureKind.DATA_DEPENDENT_VALUE,
        r"^aten\.\w+\.\w+$|^Pending unbacked symbols",
        _other_operator,
        lambda finding, match: (
            f"A size inside torch's operator {_operator(finding, match)} depends on values, which torch.export cannot "
            "express there."
        ),
    ),
    _Cause(FailureKind.PYTHON_ERROR, r"Cannot access data pointer of Tensor", _of_the_line(line_advice.without_memory)),
    _Cause(
        FailureKind.PYTHON_ERROR,
        r"argument of type: <class 'torch\.storage\.UntypedStorage'>",
        _of_the_line(line_advice.without_memory),
    ),
    _Cause(
        FailureKind.PYTHON_ERROR,
        r"__torch__\.torch\.classes\.([\w.]+).* does not have a field with name '__obj_flatten__'",
        _object_of_a_class,
        lambda _, match: f"The module holds an object of a C++ class ({match[1]}) that torch.export cannot take apart.",
    ),
    _Cause(
        FailureKind.PYTHON_ERROR,
        r"^invalid syntax \(.* in wrapped, line \d+\)",
        lambda *_: (
            "Write `x.random_(high - low) + low` where forward calls `x.random_(low, high)`. A report of it belongs to "
            "PyTorch."
        ),
        lambda *_: (
            "torch writes the traced operators as Python code, which is invalid where the name of one is a keyword: "
            "`random_(low, high)` is the operator `aten.random_.from`."
        ),
    ),
    _Cause(
        FailureKind.PYTHON_ERROR,
        r"^Unexpected key _export_root\.([\w.]+)(?:@\d+)?, expected ",
        lambda finding, match: (
            f"Mend what `{_below(finding, match)}` raises in the export, or call it outside of the `try`, `except` or "
            "`with` that catches that."
        ),
        lambda finding, match: (
            f"While `{_below(finding, match)}` was traced it raised an exception, which code around it caught; torch "
            "does not go on with the trace after that."
        ),
    ),
    _Cause(
        FailureKind.PYTHON_ERROR,
        r"^$",
        lambda finding, _: (
            "Write `x.detach()` in place of `x.data` in forward." if _is_of_an_unused_constant(finding) else ""
        ),
        lambda *_: "torch stops at a constant of the program that nothing uses, as one that `.data` of a tensor gave.",
    ),
    _Cause(
        FailureKind.PYTHON_ERROR,
        LEAKED_CONSTANT,
        _of_the_line(line_advice.taken_from_data),
        lambda *_: "The code takes a tensor's `.data`, which the tracer does not see.",
    ),
    _Cause(
        FailureKind.UNREGISTERED_PYTREE,
        r"Did not find a flatten_with_keys_fn for type: <class '(?:[\w.<>]+\.)?(\w+)'>",
        lambda _, match: (
            f"Pass `flatten_with_keys_fn=` where {match[1]} is registered with `register_pytree_node`: the same "
            "children, each with a key."
        ),
        lambda _, match: (
            f"The class {match[1]} is registered as a pytree node, but without names for what is in it, by which "
            "torch.export tells the inputs of a program apart."
        ),
    ),
    _Cause(
        FailureKind.UNREGISTERED_PYTREE,
        r"^Unfamiliar meta val: ",
        lambda *_: _BIND,
        lambda *_: (
            "An input is a value for which a program with dynamic sizes has no place: it is no tensor, number, bool, "
            "string or None."
        ),
    ),
    _Cause(
        FailureKind.UNREGISTERED_PYTREE,
        r"Unsupported input type <class '([\w.]+)'>",
        _plain_input,
        lambda _, match: f"An input is a {match[1]}, and a program takes tensors and plain numbers and strings.",
    ),
    _Cause(
        FailureKind.MISSING_FAKE_KERNEL,
        r"SymIntArrayRef expected to contain only concrete integers",
        _of_the_line(line_advice.draw_by_method),
    ),
    _Cause(
        FailureKind.DYNAMIC_DIM_SPECIALISED,
        r"0/1 specialized due to hint of ([01])",
        lambda _, match: _larger_example(match[1]),
        lambda _, match: _small_example(match[1]),
    ),
    _Cause(
        FailureKind.DYNAMIC_DIM_SPECIALISED,
        r"your code specialized it to be a constant \(([01])\)",
        lambda finding, match: _larger_example(match[1]) if _is_small_in_example(finding) else "",
        lambda _, match: _small_example(match[1]),
    ),
    _Cause(
        FailureKind.DYNAMIC_DIM_SPECIALISED,
        r"unhashable type: non-nested Sym",
        lambda *_: (
            "Compute it at each call: a dynamic size can be no key of a dict or set, and no argument of a function "
            "with a cache (functools.lru_cache)."
        ),
        lambda *_: (
            "A dimension is declared dynamic, and the code looks its size up in a dict, a set or the cache of a "
            "function: the symbol that stands for it cannot be hashed."
        ),
    ),
    *(
        _Cause(
            kind, r"expected compiled_fn to be GraphModule", lambda *_: _SHARED_INPUTS, lambda *_: _WHY_SHARED_INPUTS
        )
        for kind in (FailureKind.PYTHON_ERROR, FailureKind.TRANSLATE)
    ),
    _Cause(FailureKind.DYNAMIC_DIM_SPECIALISED, r"", _of_the_line(line_advice.pieces_by_chunk)),
    _Cause(FailureKind.DYNAMIC_DIM_SPECIALISED, r"", _of_the_line(line_advice.size_as_number)),
    _Cause(
        FailureKind.DYNAMIC_DIM_SPECIALISED,
        r"your code specialized it to be a constant",
        _of_the_line(line_advice.compared_with_one_size),
    ),
    _Cause(FailureKind.DYNAMIC_DIM_SPECIALISED, r"Suggested fixes:", _declare_less),
    _Cause(FailureKind.DYNAMIC_DIM_SPECIALISED, r"satisfy the generated guard", _declare_less),
    _Cause(
        FailureKind.TRANSLATE,
        r"^'(?:int|float|bool|str)' object has no attribute 'name'$",
        lambda *_: "Return tensors alone: numbers, strings and flags stay the same in every call of the file.",
        lambda *_: (
            "The program exports, but torch.onnx takes no constants among its outputs: a number, string or flag."
        ),
    ),
    _Cause(
        FailureKind.INVALID_DYNAMIC_SHAPES,
        r"but got '([^']*)' instead",
        lambda _, match: (
            f'Give `Dim("{match[1]}")` of torch.export in place of the name, or `Dim.DYNAMIC`: torch.onnx.export alone '
            "takes names."
        ),
        lambda *_: "An entry of dynamic_shapes is the name of a dimension, where torch.export takes a Dim.",
    ),
    _Cause(FailureKind.NUMBERS, r"", _in_training),
    _Cause(
        FailureKind.NUMBERS,
        r"leaves the buffers? .*: a call assigns (.*?)(, in another \w+)?(?:;|$)",
        lambda finding, match: _OF_STATE if match[2] else line_advice.assigned_buffer(finding, places=match[1]),
        lambda *_: (
            "A module assigns another tensor to its buffer. torch.export records what is written into a buffer, and "
            "loses such an assignment in a submodule."
        ),
    ),
    _Cause(
        FailureKind.NUMBERS,
        r": eager keeps state in .*, and the program has the value of the export at every call",
        lambda *_: (
            f"{_OF_STATE} A tensor that keeps its shape, and a number that is only computed with, may be a buffer "
            "in place of that (`register_buffer`), into which forward writes (`copy_`, `add_`)."
        ),
        lambda *_: (
            "forward changes an attribute of a module, and the next call depends on it. In the program it is a "
            "constant, with the value that it had during the export."
        ),
    ),
    _Cause(
        FailureKind.NUMBERS,
        re.escape(ONE_FOR_SEVERAL),
        lambda *_: "Give each input of the example a tensor of its own, as `x.clone()` is.",
        lambda *_: (
            "The example has one tensor for several inputs. torch.export takes them for one input, so that the program "
            "reads one of them and no other."
        ),
    ),
    _Cause(
        FailureKind.NUMBERS,
        rf"{re.escape(FIRST_TO_DIFFER)}([\w.]+): [^\n]*{re.escape(AMONG_EQUALS)}",
        lambda *_: (
            "Nothing, where any of equal values will do: compare what the indices choose. Else order the values by a "
            "second key."
        ),
        lambda _, match: (
            f"Of equal values {match[1]} may choose any, and ONNX Runtime may choose another one than torch. Or the "
            "values differ, too."
        ),
    ),
    _Cause(
        FailureKind.NUMBERS,
        rf"{re.escape(FIRST_TO_DIFFER)}([\w.]+): [^\n]*{re.escape(AFTER_ROUNDING)}",
        lambda *_: "Compute what is rounded or compared there in whole numbers, or so that it is not on the edge.",
        lambda _, match: (
            f"The values before agree but for their last digits, and {match[1]} makes a whole number or a flag of what "
            "is on the edge; or torch.onnx translates it otherwise."
        ),
    ),
    _Cause(
        FailureKind.NUMBERS,
        re.escape(OTHERWISE_DECOMPOSED),
        lambda *_: "Write what depends on sizes there by other operators, and report it to torch.onnx, with the repro.",
        lambda *_: (
            "Before it translates a program, torch.onnx decomposes some of its operators. What comes out gives other "
            "values than the program: it may hold for the example's sizes alone."
        ),
    ),
    _Cause(
        FailureKind.NUMBERS,
        rf"{re.escape(FIRST_TO_DIFFER)}([\w.]+): ",
        lambda _, match: (
            f"Write this line without {match[1]}, by other operators that compute the same, for the ONNX file; and "
            "report the operator to torch.onnx or ONNX Runtime, with the repro."
        ),
        lambda _, match: (
            f"Up to here the ONNX file has the values of the exported program, and here it has others: torch.onnx "
            f"translates {match[1]} to operators that compute something else, or ONNX Runtime computes these otherwise."
        ),
    ),
    _Cause(
        FailureKind.NUMBERS,
        r"a name in it is a keyword of Python: (.*)",
        lambda _, match: f"Give what is called so another name than a keyword: {match[1]}.",
        lambda *_: _KEYWORDS,
    ),
    _Cause(
        FailureKind.TRANSLATE,
        r"^invalid syntax \(<eval_with_key>",
        lambda *_: "Give submodules, parameters and buffers names that are no keywords of Python.",
        lambda *_: _KEYWORDS,
    ),
    _Cause(
        FailureKind.NUMBERS,
        r"^It exports, and at a size of one, ",
        lambda *_: (
            "Write what depends on whether it is one as an operation on tensors, as a mask or `torch.where`. Or "
            "declare `min=2` for that dimension: the program's range says so then, though torch refuses no size of one."
        ),
        lambda *_: (
            "torch.export takes a dynamic size to be neither zero nor one while it traces. A condition such as "
            "`x.shape[0] > 1`, `squeeze()` or broadcasting is then decided as for larger sizes, and the program does "
            "not refuse a size of one."
        ),
    ),
    _Cause(
        FailureKind.NUMBERS,
        r"^It exports, and at a size of zero, ",
        lambda *_: (
            "Write what depends on whether there is any as an operation on tensors, as a mask or `torch.where`. Or "
            "declare `min=1` for that dimension: the program's range says so then, though torch refuses no size of "
            "zero."
        ),
        lambda *_: (
            "torch.export takes a dynamic size to be neither zero nor one while it traces. A condition such as "
            "`x.shape[0] == 0` or `not x.numel()` is then decided as for larger sizes, and the program does not refuse "
            "a size of zero."
        ),
    ),
    _Cause(
        FailureKind.PYTHON_ERROR,
        r"^Node copy__default\w* of type call_function is missing nn_module_stack",
        lambda finding, _: line_advice.assigned_buffer(finding),
        lambda *_: (
            "forward assigns an input or another buffer to a buffer of the root module. torch.export writes that into "
            "the buffer when forward is over, by a node that it refuses then."
        ),
    ),
    _Cause(
        FailureKind.ATTRIBUTE_MUTATION,
        r"^The tensor attributes? self\._flat_weights\[\d+\](?:, self\._flat_weights\[\d+\])* (?:was|were) assigned",
        lambda *_: "Export it inside of a module whose forward calls it.",
        lambda *_: (
            "While torch.export traces, other tensors stand in the place of parameters, and a recurrent layer of torch "
            "keeps a list of its own. Where the layer is exported by itself, this torch takes that list for assigned: "
            "the forward assigns nothing."
        ),
    ),
    _Cause(
        FailureKind.INPUT_MUTATION,
        LEAKED_CONSTANT,
        _of_the_line(line_advice.taken_from_data),
        lambda *_: (
            "The tracer takes what `.data` gives for a constant of the program, and that must not come from the trace."
        ),
    ),
    _Cause(
        FailureKind.INVALID_DYNAMIC_SHAPES,
        r"",
        lambda finding, _: finding.fitted_shapes and f"Give `dynamic_shapes={finding.fitted_shapes}`.",
        lambda *_: "The description of the dynamic sizes has another structure than the inputs.",
    ),
    _Cause(
        FailureKind.INVALID_DYNAMIC_SHAPES,
        r"its top-level keys must be the arg names (\[.*?\]) of `inputs`",
        lambda _, match: (
            f"Give `dynamic_shapes` the keys {match[1]}: None for an argument that stays as it is. Before torch 2.14 "
            "none fit what forward takes as `**kwargs`: there, give such keywords names in its signature."
        ),
    ),
    _Cause(
        FailureKind.INVALID_DYNAMIC_SHAPES,
        r"`inputs(\S*)` (?:is a (<.*?>)|has (\d+) elements|has keys (\[.*?\])), but `dynamic_shapes",
        _entry_of_shapes,
    ),
)
