"""What to write in place of the code at the line of a failure, as far as that code tells."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.messages import fixed_sizes
from exportdoctor.report.wording.shim_tries import dims_in

_FUNCTIONS = {
    "sqrt": "({0}) ** 0.5",
    **dict.fromkeys(
        ("log", "log2", "log10", "exp", "sin", "cos", "tanh"),
        "torch.scalar_tensor({0}, dtype=torch.float64).{name}()",
    ),
    **dict.fromkeys(("arange", "zeros", "ones", "full", "linspace", "eye"), "torch.{name}"),
}
"""What to write for functions of numpy and of Python's `math` that are called with a size."""
_DRAWS = {
    "rand": "torch.empty(size).uniform_(generator=g)",
    "randn": "torch.empty(size).normal_(generator=g)",
    "randint": "torch.empty(size, dtype=torch.int64).random_(high, generator=g)",
}
"""What draws the same as a function that is given a generator."""
_DATA = re.compile(r"([\w.]+)\.data\b(?!\s*(?:=[^=]|\())")
_MAKES_A_TENSOR = re.compile(r"tensor\(|asarray\(|Tensor\(")
_TENSOR_CLASSES = {
    "Tensor": "get_default_dtype()", "FloatTensor": "float32", "DoubleTensor": "float64", "LongTensor": "int64",
    "IntTensor": "int32",
}  # fmt: skip
"""The dtype of what each makes of a list of numbers."""
_OPT_EINSUM = (
    "Export with `torch.backends.opt_einsum.enabled = False`: opt_einsum, which torch.einsum asks for the order of "
    "three or more operands where it is installed, makes fixed numbers of their sizes."
)
_IN_PLACE = {ast.Add: "add_", ast.Sub: "sub_", ast.Mult: "mul_", ast.Div: "div_", ast.Pow: "pow_"}
_ROUNDS = frozenset({"ceil", "floor", "trunc", "round", "int"})
_GIVE_PYTHON = frozenset({"item", "tolist", "allclose", "equal", "is_nonzero", "is_tensor", "size", "dim", "numel"})
"""Functions and methods of torch that give no tensor."""
_PIECES = re.compile(r"satisfy the generated guard \(.* // .*\) == \d+\.", re.M)
_MESSAGES = frozenset({"warn", "warning", "warning_once", "info", "debug", "error", "log", "critical"})
_MAKES_TEXT = frozenset({"str", "repr", "format"})


def _code(finding: Finding) -> Iterator[str]:
    """What is known of the code, the narrowest first."""
    frames = (finding.guard, finding.value_origin)
    texts = (finding.expression, finding.source, *(frame.source for frame in frames if frame is not None))
    yield from (text.strip() for text in texts if text)


def _trees(finding: Finding) -> Iterator[ast.Module]:
    """The syntax trees of that code, as far as it is whole."""
    for text in _code(finding):
        for form in (text, f"{text.removeprefix('el')}\n    pass"):
            try:
                tree = ast.parse(form)
            except (SyntaxError, ValueError):
                continue
            yield tree
            break


def _calls(finding: Finding) -> Iterator[ast.Call]:
    for tree in _trees(finding):
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def without_memory(finding: Finding) -> str:
    """Code that wants the memory of a tensor: `deepcopy` and `data_ptr`."""
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


def truth_of_a_tensor(finding: Finding) -> str:
    """A condition that is a tensor of one bool: it is asked for yes or no, and no number is read that has bounds."""
    code = finding.source or ""
    asks = re.search(r"\b(?:if|elif|while|assert|and|or|not|bool)\b", code)
    if finding.op is not None or not asks or re.search(r"\b(?:item|int|tolist)\b|[=!]= *1\b", code):
        return ""
    return _as_assertion(code) or (
        "Compute the condition outside the model and pass it in, or compute both sides and choose by torch.where."
    )


def _as_assertion(code: str) -> str:
    """An assertion on one tensor, which the program can check when it runs."""
    if not re.match(r"\s*assert(?=[\s(])", code):
        return ""
    whole = (
        "Write the assertion as `torch._assert_async(condition)`, with one tensor as condition (`&` in place of "
        "`and`), which the program checks when it runs, or leave it out."
    )
    try:
        match ast.parse(code.rstrip("\\ \t\n").rstrip(",").strip()).body:  # the message may follow on the next line
            case [ast.Assert(test=ast.UnaryOp(op=ast.Not(), operand=test))]:
                text = ast.unparse(test)
                condition = f"~{text}" if isinstance(test, ast.Call) else f"~({text})"
            case [ast.Assert(test=ast.Call() | ast.Compare(ops=[_]) as test)]:
                condition = ast.unparse(test)
            case _:
                return whole
    except (SyntaxError, ValueError):
        return whole
    if not _gives_a_tensor(test):
        return whole
    return f"Write `torch._assert_async({condition})`, which the program checks when it runs, or leave it out."


def _gives_a_tensor(test: ast.expr) -> bool:
    """Whether a condition has nothing in it of which is known that it gives a bool or a number of Python."""
    if any(isinstance(node, ast.In | ast.NotIn | ast.Is | ast.IsNot | ast.Not | ast.BoolOp) for node in ast.walk(test)):
        return False
    calls = (node.func for node in ast.walk(test) if isinstance(node, ast.Call))
    return all(isinstance(one, ast.Attribute) and one.attr not in _GIVE_PYTHON for one in calls)


def values_in_a_list(finding: Finding) -> str:
    """`torch.tensor([x, y])` of tensors."""
    for call in _calls(finding):
        if ast.unparse(call.func) in {"torch.tensor", "torch.as_tensor"} and call.args:
            return (
                f"Write `torch.stack` of tensors in place of `{ast.unparse(call)}`, which reads the values of those "
                "in it: during export a tensor has none."
            )
    return ""


def numbers_in_a_list(finding: Finding) -> str:
    """`x.new_tensor([height, width])`, `torch.as_tensor`, `torch.FloatTensor`: torch.tensor takes symbolic numbers."""
    if finding.expression and not _MAKES_A_TENSOR.search(finding.expression):
        return ""  # what is in the list fails
    for call in _calls(finding):
        match call:
            case ast.Call(func=ast.Attribute(value=owner, attr="new_tensor"), args=[data], keywords=[]):
                name = ast.unparse(owner)
                how = f"{ast.unparse(data)}, dtype={name}.dtype, device={name}.device"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="as_tensor" | "asarray"), args=[_, *_]):
                how = ", ".join(map(ast.unparse, (*call.args, *call.keywords)))
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="torch"), attr=kind), args=[ast.List() as data], keywords=[]
            ) if kind in _TENSOR_CLASSES:
                how = f"{ast.unparse(data)}, dtype=torch.{_TENSOR_CLASSES[kind]}"
            case _:
                continue
        return (
            f"Write `{_plain(f'torch.tensor({how})')}` in place of `{_plain(ast.unparse(call))}`: it takes dynamic "
            "sizes, of which the other makes fixed numbers."
        )
    return ""


def loop_over_found_numbers(finding: Finding) -> str:
    """`for expert in chosen.unique().tolist():`, a loop over the numbers that a tensor has."""
    for tree in _trees(finding):
        match tree.body:
            case [ast.For(target=ast.Name(id=name), iter=over)] if of := _tensor_of_unique(over):
                there = f"`for {name} in {ast.unparse(over)}:`"
                return (
                    f"Write `for {name} in range(n):` in place of {there}, if `{of}` has no numbers but 0 to n - 1, "
                    "and the loop changes nothing for one that is not there: how often it runs depends on values else."
                )
    return ""


def _tensor_of_unique(over: ast.expr) -> str:
    """The tensor whose values are gone over, each once; empty where they are not."""
    match over:
        case ast.Call(func=ast.Attribute(value=inner, attr="tolist" | "cpu" | "detach"), args=[], keywords=[]):
            return _tensor_of_unique(inner)
        case ast.Call(func=ast.Name(id="sorted" | "list"), args=[inner], keywords=[]):
            return _tensor_of_unique(inner)
        case (
            ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="unique"), args=[of], keywords=[])
            | ast.Call(func=ast.Attribute(value=of, attr="unique"), args=[], keywords=[])
        ):
            return ast.unparse(of)
    return ""


def read_by_numpy(finding: Finding) -> str:
    """A function of numpy that is given a tensor."""
    what = (finding.expression or "").strip()
    named = f"`{what}` reads" if what else "it reads"
    return (
        f"Write functions of torch in place of numpy's: {named} the values of a tensor, which has none during export."
    )


def read_by_call(finding: Finding) -> str:
    """A call, or an index, that reads a tensor's value as a number."""
    for call in _calls(finding):
        name = ast.unparse(call.func).rpartition(".")[2]
        if name == "one_hot" and len(call.args) == 1 and not any(one.arg == "num_classes" for one in call.keywords):
            code = _short_code(call)
            return f"Give the number of classes, which it reads from the values else: `num_classes=` in `{code}`."
        if name == "one_hot" and call.args:
            x = _plain(f"({ast.unparse(call.args[0])})[..., None]")
            return (
                f"Write `{x} == torch.arange(...)` with the number of classes in place of `{_short_code(call)}`, which "
                "takes none that depends on values."
            )
        if name in ("int", "float") and len(call.args) == 1:
            instead = _read_as_symbol(call.args[0])
            whole = ", if it is a whole number" if name == "int" else ""
            if instead:
                return (
                    f"Write `{instead}` in place of `{ast.unparse(call)}`{whole}: `{name}` needs its value, and "
                    "`item` gives a symbol for it."
                )
    return _index_of_values(finding)


def in_a_message(finding: Finding) -> str:
    """A statement that only prints, warns or logs."""
    try:
        match ast.parse((finding.source or "").strip().removesuffix("\\")).body:
            case [ast.Expr(value=ast.Call(func=ast.Name(id="print") | ast.Attribute(attr="print")))]:
                pass
            case [ast.Expr(value=ast.Call(func=ast.Attribute(attr=name)))] if name in _MESSAGES:
                pass
            case _:
                return ""
    except (SyntaxError, ValueError):
        return ""
    return (
        "Leave the message out, or give it under `if not torch.compiler.is_exporting():`: a program gives no messages."
    )


def _read_as_symbol(value: ast.expr) -> str:
    """`x.max().item()` of a call that gives a tensor, or that is one of `item`; empty for others."""
    match value:
        case ast.Call(func=ast.Attribute(attr="item"), args=[], keywords=[]):
            return ast.unparse(value)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="math" | "np" | "numpy" | "operator"))):
            return ""
        case ast.Call(func=ast.Attribute(attr=name)) if name not in _GIVE_PYTHON:
            return f"{ast.unparse(value)}.item()"
    return ""


def compared_as_tensors(finding: Finding) -> str:
    """`torch.equal(x, y)` and `torch.allclose(x, y)`, as functions or as methods."""
    for call in _calls(finding):
        owner, _, name = ast.unparse(call.func).rpartition(".")
        if name not in {"equal", "allclose"}:
            continue
        named = {one.arg: one.value for one in call.keywords}
        both = [*call.args[:2], *(named[key] for key in ("input", "other") if key in named)]
        if isinstance(call.func, ast.Attribute) and len(both) == 1:  # a method of a tensor
            both = [call.func.value, *both]
        if len(both) != 2:
            continue
        arguments = ", ".join(map(ast.unparse, (*call.args, *call.keywords)))
        instead = ast.unparse(ast.Compare(both[0], [ast.Eq()], [both[1]]))
        instead = f"({instead})" if name == "equal" else f"{owner or 'torch'}.isclose({arguments})"
        shapes = ", where both have one shape" if name == "equal" else ""
        instead = _plain(f"{instead}.all()")
        return (
            f"Write `{instead}` in place of `{_short_code(call)}`{shapes}: that is a tensor, by which "
            "torch.where can choose."
        )
    return ""


def _index_of_values(finding: Finding) -> str:
    """`y[x.argmax()] = 5`: the place that is written to is read as a number, unless the index has a dimension."""
    for target, _ in _written_places(finding):
        match target:
            case ast.Subscript(slice=ast.Call(func=ast.Attribute(attr=name)) as index) if name not in {"item", "size"}:
                place = f"{ast.unparse(target.value)}[{ast.unparse(index)}"
                return f"Write `{place}[None]] = ...`: a tensor without dimensions is read as a number there."
    return assigned_by_index(finding)


def assigned_by_index(finding: Finding) -> str:
    """`y[:, n] = x`: no view, as `y[:, n]` is, but a place, for which Python's index wants numbers."""
    for target, node in _written_places(finding):
        if not _may_choose_a_view(target.slice) or not _is_evaluated(finding, target) or _has_new_rows(node.value):
            continue
        condition = "".join(f", if `{ast.unparse(one)}` is one number" for one in _computed_parts(target.slice))
        if isinstance(node, ast.AugAssign):
            method = _IN_PLACE.get(type(node.op), "")
        else:
            method = "fill_" if isinstance(node.value, ast.Constant) else "copy_"
        if method:
            return (
                f"Write `{ast.unparse(target)}.{method}({ast.unparse(node.value)})` in place of `{ast.unparse(node)}`"
                f"{condition}: a view takes a symbol in its index, an assignment takes none."
            )
    return ""


def _computed_parts(index: ast.expr) -> list[ast.expr]:
    """The parts of an index that are no slices and no constants: numbers, or rows and masks."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return [one for one in parts if not isinstance(one, ast.Slice) and any(map(_is_computed, ast.walk(one)))]


def _is_computed(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute | ast.Call)


def _may_choose_a_view(index: ast.expr) -> bool:
    """Whether it has a symbol, and at most one part may be rows or a mask, of which an index makes a copy."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    copies = any(isinstance(part, ast.List | ast.Compare | ast.Tuple | ast.Starred) for part in parts)
    return not copies and len(_computed_parts(index)) <= 1 and any(map(_is_computed, ast.walk(index)))


def _has_new_rows(value: ast.expr) -> bool:
    """Whether it is `x[None]` or the like: an assignment takes dimensions of one more, and a method takes none."""
    new = (node.slice for node in ast.walk(value) if isinstance(node, ast.Subscript))
    first = (one.elts[0] if isinstance(one, ast.Tuple) and one.elts else one for one in new)
    return any(isinstance(one, ast.Constant) and one.value is None for one in first)


def _is_evaluated(finding: Finding, place: ast.Subscript) -> bool:
    """Whether the failing expression, where Python tells it, is that place or the statement with it."""
    told = _statements((finding.expression or "").strip())
    return not told or not isinstance(told[0], ast.Expr) or ast.unparse(told[0]) == ast.unparse(place)


def _written_places(finding: Finding) -> Iterator[tuple[ast.Subscript, ast.Assign | ast.AugAssign]]:
    """The indices to which the line assigns, each with the statement."""
    for text in _code(finding):
        for node in _statements(text):
            match node:
                case ast.Assign(targets=[ast.Subscript() as target]) | ast.AugAssign(target=ast.Subscript() as target):
                    yield target, node


def _statements(text: str) -> list[ast.stmt]:
    try:
        return ast.parse(text).body
    except (SyntaxError, ValueError):
        return []


def _short_code(call: ast.Call) -> str:
    return ast.unparse(call)[:80]


def draw_by_method(finding: Finding) -> str:
    """A function that draws random numbers with a generator."""
    name = (finding.op or "").removeprefix("aten.").partition(".")[0]
    if name not in _DRAWS:
        return ""
    return (
        f"Write `{_DRAWS[name]}`, which takes dynamic sizes, or leave out `generator=`. Where forward seeds the "
        "generator, draw the numbers outside the model and pass them in: a program does not seed it again."
    )


def pieces_by_chunk(finding: Finding) -> str:
    """A `chunk` of a dimension that is dynamic: how many pieces it gives is a division that torch fixes."""
    if _PIECES.search(finding.exception.message) is None:
        return ""
    for call in _calls(finding):
        owner, _, name = ast.unparse(call.func).rpartition(".")
        if name != "chunk":
            continue
        given = call.args[1:] if owner == "torch" else call.args
        dims = dims_in(finding.exception.message)
        match given:
            case [ast.Constant(value=int() as pieces), *_]:
                if f") == {pieces}." not in finding.exception.message or len(dims) != 1:
                    continue  # another call asks, or another dimension
                name = dims[0] if dims[0].isidentifier() else "n"  # without a name it is `L['x'].size()[1]`
                return (
                    f"Declare the dimension as `{pieces}*Dim('_{name}', min=2)`: of other sizes torch cannot tell that "
                    f"`chunk` gives {pieces} pieces. Or export with a static size."
                )
        return (
            f"Cut pieces of a known size, as `x.split(size, dim)` does, in place of `{_short_code(call)}`, and declare "
            "only sizes that give as many pieces as the example (`Dim(..., min=..., max=...)`): torch fixes how many "
            "there are."
        )
    return ""


def size_as_number(finding: Finding) -> str:
    """A function of numpy, of `math` or of Python's own that takes a size as a fixed number."""
    for call in _calls(finding):
        owner, _, name = ast.unparse(call.func).rpartition(".")
        if owner not in {"np", "numpy", "math"} or not call.args:
            continue
        library = "math" if owner == "math" else "numpy"
        known = name in _FUNCTIONS and (library == "numpy" or name not in {"arange", "zeros", "ones"})
        why = f"{library} takes a size as a fixed number"
        if known and "scalar_tensor" in _FUNCTIONS[name] and (whole := _rounding_of(finding, call)):
            return f"Compute `{whole}` outside of the model, and pass it in: {why}."
        if known:
            instead = _FUNCTIONS[name].format(ast.unparse(call.args[0]), name=name)
            return f"Write `{_plain(instead)}` in place of `{owner}.{name}`: {why}."
        if library == "numpy":
            return f"Compute it without `{owner}.{name}`, with Python's operators or functions of torch: {why}."
    inside = finding.guard is not None and "opt_einsum/" in finding.guard.file
    if inside:
        return _OPT_EINSUM
    return _fixed_by_python(finding) or numbers_in_a_list(finding) or _fixed_by_opt_einsum(finding)


def compared_with_one_size(finding: Finding) -> str:
    """A branch for one size, which the example has: `mask = self.mask if size == self.size else self.make(size)`."""
    if finding.guard is None:
        return ""
    for tree in _trees(finding):
        for node in ast.walk(tree):
            if not isinstance(node, ast.If | ast.IfExp):
                continue
            if any(_may_equal(one, fixed_sizes(finding.exception.message)) for one in ast.walk(node.test)):
                return (
                    f"Leave out the branch for `{ast.unparse(node.test)}`, if that compares the size and the other "
                    "branch is right for it, too. Or give an example of another size, with Dim.AUTO: the program then "
                    "takes all but that one."
                )
    return ""


def _may_equal(test: ast.AST, sizes: Sequence[str]) -> bool:
    """Whether it asks by `==` for one of these sizes, or for a number that the code does not spell out."""
    match test:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            constants = [one.value for one in (left, right) if isinstance(one, ast.Constant)]
            return all(type(value) is int and str(value) in sizes for value in constants)
    return False


def _rounding_of(finding: Finding, call: ast.Call) -> str:
    """The expression around the call that rounds what it gives, or is computed with it, so that it may be a size; empty
    where there is none."""
    for outer in _calls(finding):
        name = ast.unparse(outer.func).rpartition(".")[2]
        inner = (ast.unparse(one) for given in outer.args for one in ast.walk(given) if isinstance(one, ast.Call))
        if name in _ROUNDS and ast.unparse(call) in inner:
            return ast.unparse(outer)
    return ""


def flag_of_sizes(finding: Finding, name: str) -> str:
    """A condition on sizes that is given to a function of torch as the flag of that name."""
    given = (one.value for call in _calls(finding) for one in call.keywords if one.arg == name)
    value = next(map(ast.unparse, given), "")
    instead = f"`{name}=bool({value})`" if value else f"`bool(...)` around what is given as `{name}`"
    return (
        f"Write {instead}, if the condition depends on sizes of inputs alone. The program then has the answer of the "
        "example. torch refuses sizes with another answer, or asks for a narrower range, but for sizes of 0 and 1, "
        "which it takes to be larger: where the answer for them is another, declare `min=2`, and give it none."
    )


def assigned_buffer(finding: Finding, places: str = "") -> str:
    """A buffer of which forward makes another tensor, and others whose `places` are named."""
    instead = "Write into the buffer, as `self.state.copy_(new)` does, where forward assigns it"
    match _statements((finding.source or "").strip()):
        case [ast.Assign(targets=[ast.Attribute() as target], value=value)]:
            name, made = ast.unparse(target), ast.unparse(value)
            instead = f"Write `{name}.copy_({made})` in place of `{name} = {made}`"
    others = len(set(re.findall(r"\(\S+:\d+\)", places))) > 1 or " more" in places
    also = ", and likewise for the others" if others else ""
    return f"{instead}{also}, if its shape and its dtype stay the same; clone first what still needs its old values."


def _fixed_by_opt_einsum(finding: Finding) -> str:
    """`torch.einsum` of three or more operands, which asks opt_einsum for an order where that is installed."""
    for call in _calls(finding):
        match call:
            case ast.Call(func=function, args=[ast.Constant(value=str(equation)), *_]):
                if ast.unparse(function) in {"torch.einsum", "einsum"} and equation.count(",") > 1:
                    return _OPT_EINSUM
    return ""


def _fixed_by_python(finding: Finding) -> str:
    """`len` of a tensor and `int` of a size: Python makes numbers of what they give."""
    for call in _calls(finding):
        name = ast.unparse(call.func)
        if name not in ("len", "int") or len(call.args) != 1 or isinstance(call.args[0], ast.Starred):
            continue
        argument = ast.unparse(call.args[0])
        if name == "len" and _is_no_tensor(call.args[0]):
            continue
        if name == "len":
            return (
                f"Write `{argument}.shape[0]` in place of `len({argument})`, if it is a tensor: `len` fixes its size."
            )
        if _may_have_fractions(call.args[0]):
            return (
                f"Compute `{_short_code(call)}` with whole numbers, as `n // 2` does `int(n * 0.5)` of a size: `int` "
                "makes a fixed number of it."
            )
        return f"Leave out `int` in `{_short_code(call)}`, if it is a size: `int` makes a fixed number of it."
    return ""


def _may_have_fractions(value: ast.expr) -> bool:
    """Whether it divides, or multiplies by what may be a fraction: neither a size nor a whole number of the code."""
    factors = [side for one in ast.walk(value) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mult)
               for side in (one.left, one.right)]  # fmt: skip
    fractions = [one for one in factors if isinstance(one, ast.Name | ast.Attribute)
                 or (isinstance(one, ast.Constant) and isinstance(one.value, float))]  # fmt: skip
    return bool(fractions) or any(isinstance(one, ast.Div) for one in ast.walk(value))


def _is_no_tensor(value: ast.expr) -> bool:
    """Whether it is a shape, or a list or tuple, whose length is no size."""
    match value:
        case ast.Attribute(attr="shape") | ast.Constant() | ast.List() | ast.Tuple() | ast.Set() | ast.Dict():
            return True
        case ast.ListComp() | ast.SetComp() | ast.DictComp():
            return True
        case ast.Subscript(value=inner):
            return _is_no_tensor(inner)
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
            return name in {"chunk", "dict", "list", "set", "size", "split", "str", "tolist", "tuple", "unbind"}
    return False


def _plain(code: str) -> str:
    """The code without parentheses that it does not need."""
    try:
        return ast.unparse(ast.parse(code, mode="eval"))
    except SyntaxError:
        return code


def text_of_a_size(finding: Finding) -> str:
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


def taken_from_data(finding: Finding) -> str:
    """`x.data`, with which the tracer loses the tensor."""
    for statement in (one for text in _code(finding) for one in _statements(text)):
        match statement:
            case ast.AugAssign(target=ast.Attribute(attr="data", value=owner), op=operator, value=value):
                method = _IN_PLACE.get(type(operator), "")
                made = _DATA.sub(r"\1.detach()", ast.unparse(value))
                instead = (
                    f"`{ast.unparse(owner)}.detach().{method}({made})`" if method else "a method that writes in place"
                )
                return (
                    f"Write {instead} in place of `{ast.unparse(statement)}`: `detach()` shares the memory of the "
                    "tensor, and torch.export sees what is written there."
                )
            case ast.Assign(targets=[ast.Attribute(attr="data", value=owner)], value=value):
                made = _DATA.sub(r"\1.detach()", ast.unparse(value))
                return (
                    f"If `{ast.unparse(owner)}` is a tensor, write `{ast.unparse(owner)}.detach().copy_({made})` in "
                    f"place of `{ast.unparse(statement)}`, if its shape and its dtype stay the same: torch.export "
                    "sees what is written into a tensor, and not that its data is another one."
                )
    found = next((one for text in _code(finding) if (one := _DATA.search(text))), None)
    if found is None:
        return ""
    return (
        f"Write `{found[1]}.detach()` in place of `{found[0]}`: it shares the tensor's memory and records no "
        "gradients, too, and torch.export sees what is done with it."
    )
