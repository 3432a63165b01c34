"""Writes the rewrites of data/explanations.yaml into a user's own source, where a line has the shape that they replace.

Pure functions from text to text. What they give is a proposal: whether it exports and computes the same is tried.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from exportdoctor.shims.edits.source_text import LinePlace, SourceText, Splice, joined_lines

_OPPOSITE = {ast.Gt: "<=", ast.GtE: "<", ast.Lt: ">=", ast.LtE: ">", ast.Eq: "!=", ast.NotEq: "=="}


class LineEdit(NamedTuple):
    """One rewrite: the title that it has among a kind's rewrites, and the whole new text of the file."""

    title: str
    text: str


def line_edits(text: str, kind: str, lines: Iterable[int], *, is_caught: bool = False) -> tuple[LineEdit, ...]:
    """The rewrites of a kind of failure that fit one of these lines of a file; none where it is no Python.

    Where what they raise `is_caught`, the model goes on from there, and a program that asserts it does not.
    """
    try:
        source = SourceText(text)
    except (SyntaxError, ValueError):
        return ()
    found: dict[str, LineEdit] = {}
    for line in dict.fromkeys(lines):
        for place in source.places(line):
            for title, rule in _RULES.get(kind, ()):
                if is_caught and rule is _assert:
                    continue
                for changes in rule(place):
                    edit = LineEdit(title, _with_torch(source, source.replace(changes)))
                    if _is_python(edit.text):  # code of a user may have forms that no rule thinks of
                        found.setdefault(edit.text, edit)
    return tuple(found.values())


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def _with_torch(source: SourceText, text: str) -> str:
    """The text with `import torch`, where what was written needs it and the file has it not."""
    names = {
        alias.asname or alias.name for node in ast.walk(source.tree)
        if isinstance(node, ast.Import) for alias in node.names
    }  # fmt: skip
    if "torch" in names or "torch." not in text:
        return text
    first = next((node for node in source.tree.body if isinstance(node, ast.Import | ast.ImportFrom)
                  and getattr(node, "module", "") != "__future__"), None)  # fmt: skip
    if first is None:
        return text
    rows = text.splitlines(keepends=True)
    return "".join([*rows[: first.lineno - 1], "import torch\n", *rows[first.lineno - 1 :]])


# --- what each rewrite looks for


def _select(place: LinePlace) -> Iterator[list[Splice]]:
    """`if c: return a` and what follows, or `x = a if c else b`: `torch.where(c, a, b)`."""
    for changes in _choose(place, lambda test, one, other: f"torch.where({test}, {one}, {other})"):
        if not any(_chooses_no_tensors(change.text) for change in changes):
            yield changes


def _chooses_no_tensors(text: str) -> bool:
    """Whether a side of a `torch.where` in a statement or an expression is written as something else."""
    try:
        tree = ast.parse(text.removeprefix("else:").strip())
    except SyntaxError:
        return False
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.where"]
    return any(_is_no_tensor(side) for call in calls for side in call.args[1:])


def _is_no_tensor(value: ast.expr) -> bool:
    containers = ast.Tuple | ast.List | ast.Dict | ast.Set | ast.JoinedStr | ast.Lambda
    is_text = isinstance(value, ast.Constant) and not isinstance(value.value, bool | int | float | complex)
    return isinstance(value, containers) or is_text


def _cond(place: LinePlace) -> Iterator[list[Splice]]:
    """The same with `torch.cond`, whose operands are the local names that the arms read."""
    local = {name.arg for name in ast.walk(place.function.args) if isinstance(name, ast.arg)} - {"self"}
    local |= {node.id for node in ast.walk(place.function) if isinstance(node, ast.Name) and _is_stored(node)}
    local |= {name.arg for name in _own_nodes(place.statement) if isinstance(name, ast.arg)}  # of lambdas in it

    def call_of(test: str, one: str, other: str) -> str:
        read = {node.id for text in (one, other) for node in ast.walk(ast.parse(f"({text}\n)", mode="eval"))
                if isinstance(node, ast.Name)}  # fmt: skip
        names = ", ".join(sorted(read & local))
        operands = f"({names},)" if names and "," not in names else f"({names})"
        head = f"lambda {names}:" if names else "lambda:"
        # an arm must not give its operand
        one, other = (f"{arm}.clone()" if arm in local else arm for arm in (one, other))
        return f"torch.cond({test}, {head} {one}, {head} {other}, {operands})"

    yield from _choose(place, call_of)


def _choose(place: LinePlace, chosen: Callable[[str, str, str], str]) -> Iterator[list[Splice]]:
    source, statement = place.source, place.statement
    for node in _own_nodes(statement):
        if isinstance(node, ast.IfExp):
            one, other = _argument(source, node.body), _argument(source, node.orelse)
            for test in _conditions(source, node.test):
                yield [Splice(*source.span(node), chosen(test, one, other))]
            if isinstance(node.body, ast.IfExp) or isinstance(node.orelse, ast.IfExp):
                yield [Splice(*source.span(node), _chosen_in_chain(place, node, chosen))]
    if not isinstance(statement, ast.If):
        return
    arms, used = _arms(place)
    if arms is None:
        return
    head, one, other = arms
    for test in _conditions(source, statement.test):
        yield [source.over(place, [statement, *used], f"{head}{chosen(test, one, other)}")]


def _chosen_in_chain(place: LinePlace, node: ast.expr, chosen: Callable[[str, str, str], str]) -> str:
    """`a if c else b if d else e` with each choice made."""
    if not isinstance(node, ast.IfExp):
        return _argument(place.source, node)
    one, other = (_chosen_in_chain(place, arm, chosen) for arm in (node.body, node.orelse))
    return chosen(next(iter(_conditions(place.source, node.test))), one, other)


def _argument(source: SourceText, value: ast.expr) -> str:
    """A value as an argument of a call."""
    takes_part = isinstance(value, ast.NamedExpr | ast.Yield | ast.YieldFrom | ast.GeneratorExp | ast.Tuple)
    return source.operand(value) if takes_part else source.code(value)


def _arms(place: LinePlace) -> tuple[tuple[str, str, str] | None, list[ast.stmt]]:
    """What an `if` chooses between: what stands before the choice, and the two values."""
    source, statement, following = place.source, place.statement, place.following
    assert isinstance(statement, ast.If)
    if len(statement.body) != 1 or len(statement.orelse) > 1:
        return None, []
    one = statement.body[0]
    other: ast.stmt | None = statement.orelse[0] if statement.orelse else None
    match one, other:
        case ast.Return(value=ast.expr() as a), None if isinstance(following, ast.Return) and following.value:
            return ("return ", _argument(source, a), _argument(source, following.value)), [following]
        case ast.Return(value=ast.expr() as a), ast.Return(value=ast.expr() as b):
            return ("return ", _argument(source, a), _argument(source, b)), []
        case ast.Assign(targets=[ast.Name(id=name)], value=a), ast.Assign(targets=[ast.Name(id=same)], value=b) if (
            name == same
        ):
            return (f"{name} = ", _argument(source, a), _argument(source, b)), []
        case ast.Assign(targets=[ast.Name(id=name)], value=a), None:
            return (f"{name} = ", _argument(source, a), name), []
        case ast.AugAssign(target=ast.Name(id=name), value=a), None:
            return (f"{name} = ", ast.unparse(ast.BinOp(ast.Name(name), one.op, a)), name), []
    return None, []


def _conditions(source: SourceText, test: ast.expr) -> list[str]:
    """A condition that stays a tensor: plain values that are joined with it are made flags, or left as they are."""
    return list(dict.fromkeys(_condition(source, test, flags=flags) for flags in (True, False)))


def _condition(source: SourceText, test: ast.expr, *, flags: bool, joined: bool = False) -> str:
    """A condition that stays a tensor: no `.item()`, no `bool()`, and `&`, `|`, `~`. With `flags` the names and
    attributes that are `joined` are taken for plain values: `bool(self.k) & (y > 0)`."""
    match test:
        case ast.BoolOp(op=operator, values=values):
            mark = " & " if isinstance(operator, ast.And) else " | "
            return mark.join(f"({_condition(source, value, flags=flags, joined=True)})" for value in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            plain = flags and isinstance(operand, ast.Name | ast.Attribute)
            return f"not {source.code(operand)}" if plain else f"~({_condition(source, operand, flags=flags)})"
        case ast.Name() | ast.Attribute() if flags and joined:
            return f"bool({source.code(test)})"
        case ast.Call(func=ast.Name(id="bool"), args=[value], keywords=[]):
            return _condition(source, value, flags=flags)
    if (read := _read_by_item(test)) is not None:
        return source.code(read)
    reads = [
        (source.span(node), read)
        for node in ast.walk(test)
        if isinstance(node, ast.expr) and (read := _read_by_item(node)) is not None
    ]
    if not reads:
        return source.code(test)
    start, end = source.span(test)
    text = source.data[start:end]
    suffix = "" if _compares_exactly(test) else ".double()"
    for (first, last), read in sorted(reads, key=lambda one: one[0], reverse=True):
        text = text[: first - start] + f"{source.operand(read)}{suffix}".encode() + text[last - start :]
    return joined_lines(text.decode())


def _read_by_item(node: ast.expr) -> ast.expr | None:
    """The tensor of `tensor.item()`."""
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr="item"), args=[], keywords=[]):
            return value
    return None


def _compares_exactly(test: ast.expr) -> bool:
    """Whether a condition is the same of a tensor as of its `.item()`: one that is compared with a number that each
    dtype has. Python compares in float64, torch in the tensor's dtype."""
    match test:
        case ast.Compare(left=left, comparators=others):
            sides = [left, *others]
            return all(_read_by_item(side) is not None or _is_in_each_dtype(side) for side in sides)
    return False


_MOST_IN_BFLOAT16 = 256


def _is_in_each_dtype(value: ast.expr) -> bool:
    """Whether it is a small number with few bits behind the point, such as 0.5 or 3."""
    match value:
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_in_each_dtype(operand)
        case ast.Constant(value=int() | float() as number):
            return (
                abs(number) <= _MOST_IN_BFLOAT16
                and float(abs(number) * 64).is_integer()
                and ((64 * abs(number)) <= _MOST_IN_BFLOAT16 or float(number).is_integer())
            )
    return False


def _assert(place: LinePlace) -> Iterator[list[Splice]]:
    """`if c: raise E(message)`, or `assert c, message`: `torch._check`."""
    source = place.source
    match place.statement:
        case ast.If(test=test, body=[ast.Raise(exc=raised)], orelse=[]):
            conditions = _opposites(source, test)
            message = source.code(raised.args[0]) if isinstance(raised, ast.Call) and raised.args else ""
        case ast.Assert(test=test, msg=told):
            holds, message = source.code(test), source.code(told) if told else ""
            conditions = (holds, holds if ".item()" in holds else f"({holds}).item()")
        case _:
            return
    said = f", lambda: {message}" if message and not message.startswith("f") else ""
    for condition in dict.fromkeys(conditions):
        yield [source.over(place, [place.statement], f"torch._check({condition}{said})")]


def _opposites(source: SourceText, test: ast.expr) -> tuple[str, ...]:
    """What holds where a condition does not, of numbers and of a tensor. Beside a NaN neither `a > b` nor `a <= b`
    does."""
    code = source.code(test)
    match test:
        case ast.Compare(ops=[operator], left=left, comparators=[right]) if type(operator) in _OPPOSITE:
            if isinstance(operator, ast.Eq | ast.NotEq) or (_is_length(left) and _is_length(right)):
                holds = f"{source.operand(left)} {_OPPOSITE[type(operator)]} {source.operand(right)}"
                return holds, holds if ".item()" in holds else f"({holds}).item()"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            holds = source.code(operand)
            return holds, holds if ".item()" in holds else f"{source.operand(operand)}.item()"
    if ".item()" in code:
        return (f"torch.sym_not({code})",)
    is_flag = isinstance(test, ast.Compare)
    return f"torch.sym_not({code})", f"(~({code})).item()" if is_flag else f"torch.logical_not({code}).item()"


def _is_length(value: ast.expr) -> bool:
    """Whether it is a whole number: of Python's, or a size."""
    match value:
        case ast.Constant(value=int()):
            return True
        case ast.Subscript(value=ast.Attribute(attr="shape")):
            return True
        case ast.Call(func=ast.Attribute(attr="size" | "numel" | "dim")) | ast.Call(func=ast.Name(id="len" | "int")):
            return True
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv(), right=right):
            return _is_length(left) and _is_length(right)
    return False


def _keep_symbol(place: LinePlace) -> Iterator[list[Splice]]:
    """`x[: int(n)]`: `n.item()` with its bounds, and `narrow`; `int(n)` alone: `n.item()`, or `n`, which may be a
    number that was read before."""
    source = place.source
    for node in _own_nodes(place.statement):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            keys = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            for axis, key in enumerate(keys):
                whole = all(ast.unparse(one) == ":" for one in keys if one is not key)
                if isinstance(key, ast.Slice) and not key.lower and not key.step and whole and key.upper is not None:
                    number = _read_number(key.upper)
                    if number is None:
                        continue
                    name = _free_name("length", place.function)
                    checks = source.before(
                        place,
                        [
                            f"{name} = {source.operand(number)}.item()",
                            f"torch._check({name} >= 0)",
                            f"torch._check({name} <= {node.value.id}.shape[{axis}])",
                        ],
                    )
                    if checks is not None:
                        yield [checks, Splice(*source.span(node), f"{node.value.id}.narrow({axis}, 0, {name})")]
    reads = [
        (source.span(node), source.operand(number))
        for node in _own_nodes(place.statement)
        if isinstance(node, ast.expr) and (number := _read_number(node)) is not None
    ]
    outer = [one for one in reads if not any(_is_inside(one[0], other[0]) for other in reads)]
    for several in filter(None, (outer, *([one] for one in reads))):  # several on a line mostly fail alike
        for read in (".item()", ""):
            yield [Splice(*span, f"{code}{read}") for span, code in several]


def _is_inside(span: tuple[int, int], other: tuple[int, int]) -> bool:
    return span != other and other[0] <= span[0] and span[1] <= other[1]


def _read_number(node: ast.expr) -> ast.expr | None:
    """The tensor of `int(t)`, `int(t.item())` or `float(t)`."""
    match node:
        case ast.Call(func=ast.Name(id="int" | "float"), args=[value], keywords=[]):
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "item":
                return value.func.value
            return value
    return None


def _keep_size(place: LinePlace) -> Iterator[list[Splice]]:
    """`int(x.shape[0])`: `x.shape[0]`; `int(x.shape[0] / 2)`: `(x.shape[0] // 2)`."""
    source = place.source
    changes = [
        Splice(*source.span(node), whole)
        for node in _own_nodes(place.statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "int"
        and len(node.args) == 1 and (".shape" in source.code(node.args[0]) or ".size(" in source.code(node.args[0]))
        and (whole := _whole_number(node.args[0], source))
    ]  # fmt: skip
    if changes:
        yield changes


def _whole_number(value: ast.expr, source: SourceText) -> str:
    """Code of what `int` makes of a number that is computed from sizes; empty where that may need `int`."""
    match value:
        case ast.BinOp(left, ast.Div(), right) if _is_whole(left) and _is_whole(right):
            return f"({ast.unparse(ast.BinOp(left, ast.FloorDiv(), right))})"
        case ast.Call(ast.Attribute(ast.Name("math"), "ceil" | "floor")):
            return source.code(value)
    return source.code(value) if _is_whole(value) else ""


def _is_whole(value: ast.expr) -> bool:
    """Whether it gives a whole number where what it reads does: no true division, and no function but `size`."""
    for node in ast.walk(value):
        is_size = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "size"
        if isinstance(node, ast.Div | ast.Pow) or (isinstance(node, ast.Call) and not is_size):
            return False
    return not any(isinstance(node, ast.Constant) and isinstance(node.value, float) for node in ast.walk(value))


def _root_of_size(place: LinePlace) -> Iterator[list[Splice]]:
    """`math.sqrt(x.shape[0])`: `(x.shape[0] ** 0.5)`."""
    source = place.source
    changes = [
        Splice(*source.span(node), f"({ast.unparse(ast.BinOp(node.args[0], ast.Pow(), ast.Constant(0.5)))})")
        for node in _own_nodes(place.statement)
        if isinstance(node, ast.Call) and len(node.args) == 1
        and source.code(node.func) in {"math.sqrt", "np.sqrt", "numpy.sqrt"}
    ]  # fmt: skip
    if changes:
        yield changes


def _local_variable(place: LinePlace) -> Iterator[list[Splice]]:
    """`self.x = value` and what reads it below: a local variable."""
    source, statement = place.source, place.statement
    match statement:
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=owner), attr=attribute)]):
            pass
        case _:
            return
    name, start = _free_name(attribute, place.function), source.span(statement)[0]
    yield [
        Splice(*source.span(node), name)
        for node in ast.walk(place.function)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) == (owner, attribute) and source.span(node)[0] >= start
    ]  # fmt: skip


def _clone_first(place: LinePlace) -> Iterator[list[Splice]]:
    """A write into `x`: `x = x.clone()` before it."""
    match place.statement:
        case ast.AugAssign(target=ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name))):
            pass
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name))]):
            pass
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method))) if method.endswith("_"):
            pass
        case ast.Return(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method))) if method.endswith(
            "_"
        ):
            pass
        case _:
            return
    if (copied := place.source.before(place, [f"{name} = {name}.clone()"])) is not None:
        yield [copied]


def _detach(place: LinePlace) -> Iterator[list[Splice]]:
    """`x.data`, which is read or written into: `x.detach()`."""
    source = place.source
    changes = [
        Splice(*source.span(node), f"{source.operand(node.value)}.detach()")
        for node in _own_nodes(place.statement)
        if isinstance(node, ast.Attribute) and node.attr == "data" and isinstance(node.ctx, ast.Load)
    ]
    if changes:
        yield changes


def _clone_deeply(place: LinePlace) -> Iterator[list[Splice]]:
    """`copy.deepcopy(x)`: `x.clone()`."""
    source = place.source
    for node in _own_nodes(place.statement):
        if isinstance(node, ast.Call) and source.code(node.func) in {"copy.deepcopy", "deepcopy"} and node.args:
            yield [Splice(*source.span(node), f"{source.operand(node.args[0])}.clone()")]


def _ask_isinstance(place: LinePlace) -> Iterator[list[Splice]]:
    """`type(x) == T` or `type(x) is T`: `isinstance(x, T)`."""
    source = place.source
    for node in _own_nodes(place.statement):
        match node:
            case ast.Compare(left=ast.Call(func=ast.Name(id="type"), args=[value]), ops=[operator], comparators=[kind]):
                call = f"isinstance({source.code(value)}, {source.code(kind)})"
                text = f"not {call}" if isinstance(operator, ast.NotEq | ast.IsNot) else call
                yield [Splice(*source.span(node), text)]


def _own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """Its nodes without those of the statements in it, which have places of their own."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop(0)
        yield node
        inside = ast.iter_child_nodes(node)
        waiting += [one for one in inside if not isinstance(one, ast.stmt | ast.ExceptHandler | ast.match_case)]


def _free_name(wanted: str, function: ast.FunctionDef) -> str:
    """A name that the function does not use yet."""
    used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    used |= {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    while wanted in used:
        wanted += "_"
    return wanted


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


ASSERTED = "Assert the condition instead of branching on it"
CHOICES = ("Compute both branches and select", "Keep both branches in the graph with torch.cond")
Rule = Callable[[LinePlace], Iterator[list[Splice]]]
_RULES: dict[str, tuple[tuple[str, Rule], ...]] = {
    "data_dependent_guard": (
        (CHOICES[0], _select),
        (CHOICES[1], _cond),
        (ASSERTED, _assert),
        ("Keep the symbol or the tensor, not its number", _keep_symbol),
    ),
    "data_dependent_value": (
        ("Keep the symbol or the tensor, not its number", _keep_symbol),
        (CHOICES[0], _select),
    ),
    "dynamic_dim_specialised": (
        ("Keep the size symbolic", _keep_size),
        ("A power instead of a root of the size", _root_of_size),
    ),
    "dims_related": (("Keep the size symbolic", _keep_size),),
    "attribute_mutation": (("Use a local variable", _local_variable),),
    "input_mutation": (("Detach instead of .data", _detach), ("Clone before writing", _clone_first)),
    "python_error": (
        ("Clone instead of a deep copy", _clone_deeply),
        ("Use isinstance instead of comparing types", _ask_isinstance),
        ("Clone before writing", _clone_first),
    ),
}
"""The rewrites of each kind, by their titles in data/explanations.yaml."""
