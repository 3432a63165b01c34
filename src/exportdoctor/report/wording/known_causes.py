"""Sentences about failures whose cause the message and the code at the line tell: why, and what to write instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.kinds import FailureKind

_FUNCTIONS = {
    "sqrt": "({0}) ** 0.5",
    **dict.fromkeys(("log", "log2", "log10", "exp", "sin", "cos", "tanh"), "torch.scalar_tensor({0}).{name}()"),
    **dict.fromkeys(("arange", "zeros", "ones", "full", "linspace", "eye"), "torch.{name}"),
}
"""What to write for functions of numpy and of Python's `math` that are called with a size."""
_DRAWS = {
    "rand": "torch.empty(size).uniform_(generator=g)",
    "randn": "torch.empty(size).normal_(generator=g)",
    "randint": "torch.empty(size, dtype=torch.int64).random_(high, generator=g)",
}
"""What draws the same as a function that is given a generator."""
_CONSTANT = "fake tensor in the exported program constant's list"
_DATA = re.compile(r"([\w.]+)\.data\b(?!\s*(?:=[^=]|\())")
_QUANTIZE_LATER = (
    "Export the model as it is before torch.ao.quantization packs its weights, and quantize the exported program (PT2E "
    "quantization of torchao), or leave this layer in float."
)
_MAKES_TEXT = frozenset({"str", "repr", "format"})
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


# --- the code at the line


def _code(finding: Finding) -> Iterator[str]:
    """What is known of the code, the narrowest first."""
    frames = (finding.guard, finding.value_origin)
    texts = (finding.expression, finding.source, *(frame.source for frame in frames if frame is not None))
    yield from (text.strip() for text in texts if text)


def _calls(finding: Finding) -> Iterator[ast.Call]:
    for text in _code(finding):
        for form in (text, f"{text.removeprefix('el')}\n    pass"):
            try:
                tree = ast.parse(form)
            except (SyntaxError, ValueError):
                continue
            yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))
            break


# --- what to write instead


def _without_memory(finding: Finding, match: re.Match[str]) -> str:
    for call in _calls(finding):
        name = ast.unparse(call.func).rpartition(".")[2]
        if name == "deepcopy" and call.args:
            return (
                f"Clone the tensor, as in `x.clone()`, in place of `{ast.unparse(call)}`: a deep copy reads memory, "
                "and during export a tensor has none."
            )
        if name == "data_ptr":
            return (
                f"Leave out `{ast.unparse(call)}`: during export a tensor has no address. Code that needs one belongs "
                "into a custom operator (torch.library.custom_op)."
            )
    return ""


def _values_in_a_list(finding: Finding, match: re.Match[str]) -> str:
    for call in _calls(finding):
        if ast.unparse(call.func) in {"torch.tensor", "torch.as_tensor"} and call.args:
            return (
                f"Write `torch.stack` of tensors in place of `{ast.unparse(call)}`, which reads the values of those "
                "in it: during export a tensor has none."
            )
    return ""


def _read_by_numpy(finding: Finding, match: re.Match[str]) -> str:
    what = (finding.expression or "").strip()
    named = f"`{what}` reads" if what else "it reads"
    return (
        f"Write functions of torch in place of numpy's: {named} the values of a tensor, which has none during export."
    )


def _read_by_call(finding: Finding, match: re.Match[str]) -> str:
    for call in _calls(finding):
        name = ast.unparse(call.func).rpartition(".")[2]
        if name == "one_hot" and len(call.args) == 1 and not any(one.arg == "num_classes" for one in call.keywords):
            code = _short_code(call)
            return f"Give the number of classes, which it reads from the values else: `num_classes=` in `{code}`."
        if name == "int" and len(call.args) == 1 and isinstance(call.args[0], ast.Call):
            return (
                f"Write `{ast.unparse(call.args[0])}.item()` in place of `{ast.unparse(call)}`, if it is a whole "
                "number: `int` needs its value, and `item` gives a symbol for it."
            )
    return _index_of_values(finding)


def _index_of_values(finding: Finding) -> str:
    """`y[x.argmax()] = 5`: the place that is written to is read as a number, unless the index has a dimension."""
    written = [
        target
        for text in _code(finding)
        for node in _statements(text)
        for target in (node.targets if isinstance(node, ast.Assign) else ())
    ]
    for target in written:
        match target:
            case ast.Subscript(slice=ast.Call(func=ast.Attribute(attr=name)) as index) if name not in {"item", "size"}:
                place = f"{ast.unparse(target.value)}[{ast.unparse(index)}"
                return f"Write `{place}[None]] = ...`: a tensor without dimensions is read as a number there."
    return ""


def _statements(text: str) -> list[ast.stmt]:
    try:
        return ast.parse(text).body
    except (SyntaxError, ValueError):
        return []


def _short_code(call: ast.Call) -> str:
    return ast.unparse(call)[:80]


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
    if match[1].startswith("quantized."):
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


def _draw_by_method(finding: Finding, match: re.Match[str]) -> str:
    name = (finding.op or "").removeprefix("aten.").partition(".")[0]
    if name not in _DRAWS:
        return ""
    return f"Write `{_DRAWS[name]}`, which takes dynamic sizes, or leave out `generator=`."


def _size_as_number(finding: Finding, match: re.Match[str]) -> str:
    for call in _calls(finding):
        owner, _, name = ast.unparse(call.func).rpartition(".")
        if owner not in {"np", "numpy", "math"} or not call.args:
            continue
        library = "math" if owner == "math" else "numpy"
        known = name in _FUNCTIONS and (library == "numpy" or name not in {"arange", "zeros", "ones"})
        why = f"{library} takes a size as a fixed number"
        if known:
            instead = _FUNCTIONS[name].format(ast.unparse(call.args[0]), name=name)
            return f"Write `{_plain(instead)}` in place of `{owner}.{name}`: {why}."
        if library == "numpy":
            return f"Compute it without `{owner}.{name}`, with Python's operators or functions of torch: {why}."
    return _fixed_by_python(finding)


def _fixed_by_python(finding: Finding) -> str:
    """`len` of a tensor and `int` of a size: Python makes numbers of what they give."""
    for call in _calls(finding):
        name = ast.unparse(call.func)
        if name not in ("len", "int") or len(call.args) != 1 or isinstance(call.args[0], ast.Starred):
            continue
        argument = ast.unparse(call.args[0])
        if name == "len":
            return (
                f"Write `{argument}.shape[0]` in place of `len({argument})`, if it is a tensor: `len` fixes its size."
            )
        return f"Leave out `int` in `{_short_code(call)}`, if it is a size: `int` makes a fixed number of it."
    return ""


def _plain(code: str) -> str:
    """The code without parentheses that it does not need."""
    try:
        return ast.unparse(ast.parse(code, mode="eval"))
    except SyntaxError:
        return code


def _text_of_a_size(finding: Finding, match: re.Match[str]) -> str:
    """An f-string, or a call that makes a text, in whose place the message has a symbol's name: it fails only while
    a size is dynamic."""
    if not finding.dimensions:
        return ""
    for text in _code(finding):
        for node in ast.walk(ast.Module(_statements(text), [])):
            is_text = isinstance(node, ast.JoinedStr | ast.Call) and (
                isinstance(node, ast.JoinedStr) or ast.unparse(node.func).rpartition(".")[2] in _MAKES_TEXT
            )
            if is_text:
                return f"Use the size, an int, in place of its text `{ast.unparse(node)}`, or keep that size static."
    return ""


def _below(finding: Finding, match: re.Match[str]) -> str:
    return ".".join(filter(None, (finding.module, match[1])))


def _taken_from_data(finding: Finding, match: re.Match[str]) -> str:
    found = next((one for text in _code(finding) if (one := _DATA.search(text))), None)
    if found is None:
        return ""
    return (
        f"Write `{found[1]}.detach()` in place of `{found[0]}`: it shares the tensor's memory and records no "
        "gradients, too, and torch.export sees what is done with it."
    )


_CAUSES = (
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
        FailureKind.PYTHON_ERROR,
        r"^'NestedIntNode' object has no attribute",
        lambda *_: "Pass a padded tensor with a mask or the lengths in place of the nested one.",
        lambda *_: "A nested (jagged) tensor is traced, for whose sizes torch.export has no symbols.",
    ),
    _Cause(
        FailureKind.COSTLY,
        r"went to the model's own code",
        lambda *_: "Compute it outside forward: in the constructor, or in what makes the inputs.",
    ),
    _Cause(FailureKind.PYTHON_ERROR, r"its data is not allocated yet", _values_in_a_list),
    _Cause(
        FailureKind.PYTHON_ERROR,
        r"\b[su]\d+\b",
        _text_of_a_size,
        lambda _, match: (
            f"The text of a size is made. That of a dynamic size is the name of its symbol during export: {match[0]}."
        ),
    ),
    _Cause(FailureKind.DATA_DEPENDENT_VALUE, r"\.numpy\(\) is not supported for tensor subclasses", _read_by_numpy),
    _Cause(FailureKind.DATA_DEPENDENT_VALUE, r"Could not extract specialized integer", _read_by_call),
    _Cause(
        FailureKind.DATA_DEPENDENT_VALUE,
        r"^aten\.\w+\.\w+$|^Pending unbacked symbols",
        _other_operator,
        lambda finding, match: (
            f"A size inside torch's operator {_operator(finding, match)} depends on values, which torch.export cannot "
            "express there."
        ),
    ),
    _Cause(FailureKind.PYTHON_ERROR, r"Cannot access data pointer of Tensor", _without_memory),
    _Cause(FailureKind.PYTHON_ERROR, r"argument of type: <class 'torch\.storage\.UntypedStorage'>", _without_memory),
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
        _CONSTANT,
        _taken_from_data,
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
        FailureKind.MISSING_FAKE_KERNEL, r"SymIntArrayRef expected to contain only concrete integers", _draw_by_method
    ),
    _Cause(
        FailureKind.DYNAMIC_DIM_SPECIALISED,
        r"0/1 specialized due to hint of ([01])",
        lambda _, match: (
            f"Give an example of size 2 or more in that dimension: torch.export takes one of size {match[1]} for fixed."
        ),
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
    _Cause(FailureKind.DYNAMIC_DIM_SPECIALISED, r"", _size_as_number),
    _Cause(FailureKind.INPUT_MUTATION, _CONSTANT, _taken_from_data),
    _Cause(
        FailureKind.INVALID_DYNAMIC_SHAPES,
        r"its top-level keys must be the arg names (\[.*?\]) of `inputs`",
        lambda _, match: f"Give `dynamic_shapes` the keys {match[1]}: None for an argument that stays as it is.",
    ),
    _Cause(
        FailureKind.INVALID_DYNAMIC_SHAPES,
        r"`inputs(\S*)` (?:is a (<.*?>)|has (\d+) elements|has keys (\[.*?\])), but `dynamic_shapes",
        _entry_of_shapes,
    ),
)
