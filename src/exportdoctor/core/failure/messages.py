"""Reads the messages of torch's exceptions: where the statement ends, and what differs between two sightings of it.

torch appends quoted stacks and advice to what it states. The tables below list how these begin, with the torch
releases they were seen in where it is not all of 2.1 to 2.13. Torch-free and pure.
"""

from __future__ import annotations

import re
import textwrap

from exportdoctor.core.exception_text import LONGEST, text_of
from exportdoctor.core.failure.size_guards import raise_least_sizes

TRACEBACK = "Traceback (most recent call last):\n"
"""With this Python begins to print an exception."""

ONE_FOR_SEVERAL = "with a tensor of its own for each input, where the example has one for several"
"""In what an input set differs from an example in which one tensor is several inputs."""
FIRST_TO_DIFFER = "the first value that differs is of "
"""Before the operator at which the values of an ONNX file begin to differ from the program's."""
OTHERWISE_DECOMPOSED = "what torch.onnx decomposes the program to gives other values than the program"
"""Where an ONNX file differs and does what torch.onnx's own decompositions make of the program."""
AMONG_EQUALS = "where values are equal an index may be another one"
AFTER_ROUNDING = "where the last digits of what it is given may decide it"
"""Of an operator at which the values of an ONNX file begin to differ: what may not be its own fault."""
AT_OTHER_SIZES = "on inputs of "
"""With this begins what is said of an ONNX file that differs at other sizes than the example's."""
LEAKED_CONSTANT = "fake tensor in the exported program constant's list"
"""Said when all is traced, of a tensor that went past the tracer."""
OF_UNUSED_CONSTANTS = "_unused_constant"
"""The function of torch that ends with a StopIteration on a constant that nothing uses, as one that `.data` gave."""
UNSUPPORTED_INPUT = "Unsupported input type"
"""Said before anything is traced, of what the exported module is given."""
REFUSED_OUTPUT = "in output, which is not a known type"
"""Said when all is traced, of what the exported module gives; torch does not look at what its submodules give."""

_QUOTES = (
    "Caused by", "User [Ss]tack", r"C\+\+ Stack", "Framework stack", "Stack from", "from user code",
    "The following call raised", "Original traceback",
    "For more details about this graph break",  # 2.9: a link, then the user's code
    "Suggested fixes", "To fix the error",
)  # fmt: skip
_ADVICE = (
    'For more information, run with TORCH_LOGS="dynamic"',
    "The error above occurred when calling torch",  # torch/export/__init__.py advertises draft_export
    r"For C\+\+ stack trace", "Set TORCHDYNAMO_VERBOSE", "You can suppress this",
)  # fmt: skip
_NODE = "While executing"  # says which node of the graph failed, by a name that the next attempt may not give it
_END_OF_STATEMENT = re.compile(rf"\n\s*(?:{'|'.join((*_QUOTES, *_ADVICE))})")
_END_OF_CONSTANT_PART = re.compile(rf"\n\s*(?:{'|'.join((*_QUOTES, *_ADVICE, _NODE))})")
_BEGIN_OF_ADVICE = re.compile(rf"\n\s*(?:{'|'.join(_ADVICE)})")
_FIXES = "Suggested fixes:"
# torch repeats the expression without hints, and lists size-like symbols, of which there are mostly none
_HINTS = re.compile(r"\s*\((?:unhinted: (?:[^()]|\([^()]*\))*|Size-like symbols: none)\)")

# What to look for, and what to put in its place. Order matters: names first, then numbers.
_VARYING = (
    (re.compile(r"Caused by: \([^\n]*"), ""),  # torch 2.9 glues it to the line before
    (re.compile(r"(Pending unbacked symbols) [^\n]*"), r"\1"),  # it goes on with a tensor, whatever sizes that has
    (re.compile(r"Constraints violated \([^\n]*?\)!"), "Constraints violated!"),
    (re.compile(r"You marked \S+ as dynamic"), "You marked <input> as dynamic"),
    (re.compile(r"(model attributes?: )[\w., ]+"), r"\1<name>"),
    (re.compile(r"For more information, run with TORCH_LOGS=\S+"), ""),
    (re.compile(r"\s*\(unhinted: [^\n]*?\)(?=\.(?:\s|$))"), ""),  # an expression, with parentheses of its own
    (re.compile(r"\s*\(Size-like symbols: [^\n]*?\)(?=[.\s]|$)"), ""),
    (re.compile(r"0x[0-9a-fA-F]+"), "<address>"),
    # what torch.onnx says of a constant among the outputs: of an int where sizes are fixed, of a str where they are not
    (re.compile(r"'(?:int|float|bool|str)' object has no attribute 'name'"), "a constant has no attribute 'name'"),
    (re.compile(r"\b\d+(?:x\d+)+\b"), "<n>"),
    (re.compile(r"(?:/[^\s:'\"()]+)+/([^\s/:'\"()]+)"), r"\1"),
    (re.compile(r"\bL\[(['\"])[^\]]*\1\](?:\.size\(\)\[\d+\]|\[[^\]]*\]|\.\w+)*"), "<input>"),
    (re.compile(r"\b(?:zuf|zf|[usz])\d+\b"), "<symbol>"),
    (re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.]*')"), "<n>"),
    (re.compile(r"\b\d+\b"), "<n>"),
    (re.compile(r"(?:<n>,\s*)+<n>"), "<n>"),
)
VIOLATED = re.compile(r"Constraints violated \((.*?)\)!")
"""The dimensions that a constraint violation names."""

_USERS_NAMES = (
    (re.compile(r"<class '[^']*'>"), "<class>"),
    (re.compile(r"<function .*?(?:>|$)"), "<function>"),
    (re.compile(r"\b(?!aten\b|prim\b)\w+::\w+"), "<op>"),
    (re.compile(r"\b(?!aten\b|prim\b)\w+\.\w+\.default\b"), "<op>"),
    (re.compile(r"[\w*+ ]+ = <input>"), " <dim> = <input>"),
    # of ONNX Runtime: a file has a path, its bytes have none
    (re.compile(r"Load model from \S+ failed:"), ""),
    (re.compile(r"((?:input parameter|[Nn]ode|output arg) ?)\([^)]*\)"), r"\1(<name>)"),
    (re.compile(r"([Nn]ame ?:? ?)'[^']*'"), r"\1<name>"),
)
# a size that is computed from sizes: how many additions it takes depends on the layers in front, not on the failure
_ARITHMETIC = (
    (re.compile(r"(?<!\w)\((<symbol>|<n>)\)"), r"\1"),
    (
        re.compile(r"(?:<symbol>\s?(?:[+*-]|//)\s?(?:<symbol>|<n>)|<n>\s?(?:[+*-]|//)\s?<symbol>)(?!\s?[*/%])"),
        "<symbol>",
    ),
)
_APIS = re.compile(r"\s*consider using data-dependent friendly APIs.*", re.S)  # 2.15 has one sentence more than 2.13

OF_SIZE_ONE = "(a size of one)"
"""With this ends a message without names that says that a size was fixed because it is 0 or 1."""

# torch fixes a size of 0 or 1 before any code runs: another failure than code that fixes a size
_SIZE_OF_ONE = re.compile(r"specialized it to be a constant \([01]\)|0/1 specialized")


def statement(message: str) -> str:
    """The part of a message that says what is wrong: without quoted stacks, proposed fixes and advice."""
    found = _END_OF_STATEMENT.search(message[:LONGEST])
    return message[: found.start() if found else LONGEST]


def without_advice(message: str) -> str:
    """A message without torch's advice on how to learn more; quoted stacks and proposed fixes stay."""
    return _BEGIN_OF_ADVICE.split(message, maxsplit=1)[0]


_LONG_LINE = 300
_GOES_ON = re.compile(r":$|\([^()\]]*$")
_TRACEBACK_LINE = re.compile(r"\s*(?:Traceback \(|File \")")


def first_line(message: object, limit: int | None = None) -> str:
    """The first line of a message that is not blank; empty where there is none. Of a longer one than `limit` characters
    the first words, and `…`.

    The next one belongs to it where it ends in a colon or within a bracket, as where a tensor is printed in a sentence.
    """
    found = ""
    for line in text_of(message).strip().splitlines():
        if found and (not _GOES_ON.search(found) or _TRACEBACK_LINE.match(line) or len(found) > _LONG_LINE):
            break
        found = f"{found} {line.strip()}".strip()
    if limit is None or len(found) <= limit:
        return found
    start = found[: limit - 1]
    words = start.rpartition(" ")[0] if found[limit - 1] != " " else start
    return f"{words.rstrip() or start}…"


def exception_in_text(text: str) -> tuple[str, str]:
    """The last exception of printed tracebacks: its name as printed, and its message with all its lines."""
    lines = text.rpartition(TRACEBACK)[2].splitlines()
    for index, line in enumerate(lines):
        found = re.match(r"([A-Za-z_][\w.]*)(?:: ?(.*))?$", line)
        if found and not line.startswith(" "):
            return found[1], "\n".join([found[2] or "", *lines[index + 1 :]]).strip("\n")
    return "", ""


def says_other_numbers(message: str) -> bool:
    """Whether `torch.testing.assert_close` says it of tensors of the same shape and dtype."""
    return re.match(r"(?:Tensor-likes|Scalars) are not (?:close|equal)!", message) is not None


def without_hints(line: str) -> str:
    """A line of a message without what torch adds in brackets to an expression with unbacked symbols."""
    return _HINTS.sub("", line).strip()


_FIXES_SIZE = re.compile(r"specialized it to be a constant|satisfy the generated guard [^\n%]* == \d+\.$", re.MULTILINE)


def suggested_fixes(message: str) -> list[str]:
    """The lines `name = value` that torch proposes for the dynamic shapes, without ends that another guard refuses."""
    block = message.partition(_FIXES)[2].strip().split("\n\n")[0]
    lines = [_without_refused_ends(line.strip(), message) for line in block.splitlines() if " = " in line]
    return raise_least_sizes(lines, message)


def _without_refused_ends(line: str, message: str) -> str:
    """torch suggests `min=4` beside a guard `size != 4`, and refuses its own suggestion."""
    name = re.escape(line.partition(" = ")[0])
    unlike = rf"Not all values of {name} = (\S+) in the specified range[^\n]* satisfy the generated guard \1 != (\d+)\."
    refused = {int(found[2]) for found in re.finditer(unlike, message)}

    def move(end: re.Match[str]) -> str:
        size, step = int(end[2]), 1 if end[1] == "min" else -1
        while size in refused:
            size += step
        return f"{end[1]}={size}"

    return re.sub(r"\b(min|max)=(\d+)", move, line)


def fixed_sizes(message: str) -> list[str]:
    """The numbers to which, according to a constraint violation, the code fixed sizes that are declared dynamic."""
    return re.findall(r"your code specialized it to be a constant \((\d+)\)", message)


def fixes_size(message: str) -> bool:
    """Whether a constraint violation fixes a declared size to a number; others only bound it."""
    return _FIXES_SIZE.search(message) is not None


def violation_entries(message: str) -> dict[str, str]:
    """The lines of a constraint violation that are about one of the dimensions that it names, by dimension."""
    found = VIOLATED.search(message)
    names = [name.strip() for name in found[1].split(", ")] if found else []
    lines = [line.strip() for line in statement(message).splitlines() if line.strip().startswith("- ")]
    about = {line: [name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", line)] for line in lines}
    return {mine[0]: line for line, mine in about.items() if len(mine) == 1}


def with_one_violation(message: str, entry: str) -> str:
    """The message of a constraint violation with this entry alone, and with what torch proposes for its dimension; any
    other as it is."""
    name = next((name for name, line in violation_entries(message).items() if line == entry), "")
    if not name:
        return message
    head = VIOLATED.sub(lambda _: f"Constraints violated ({name})!", message.partition("\n")[0])
    lines = message.partition(_FIXES)[2].strip().split("\n\n")[0].splitlines()
    parts = [line.strip().partition(" = ") for line in lines]
    proposed = {one: value for one, equals, value in parts if equals}
    root = re.fullmatch(r"(?:\d+\*)?(\w+)(?: [+-] \d+)?", proposed.get(name, ""))  # of a multiple of another
    named = [one for one in (root[1] if root else "", name) if one in proposed]
    fixes = "".join(f"\n  {one} = {proposed[one]}" for one in named)
    return f"{head}\n  {entry}" + (f"\n{_FIXES}{fixes}" if fixes else "")


def summary_line(message: object, limit: int) -> str:
    """What a message states, in one line: of a list the first entry too, and no advice; cut between words."""
    lines = [line.partition("For more information")[0].strip() for line in str(message).strip().splitlines()]
    entry = lines[1] if lines[1:] and lines[1].startswith("- ") else ""
    return textwrap.shorten(f"{lines[0]} {entry}", limit, placeholder=" …") if lines else ""


def normalise(message: str) -> str:
    """The part of a message that is the same each time the same failure occurs, at most 600 characters.

    Left out are symbol names, sizes, addresses, folders, line numbers, and what follows the statement.
    """
    found = _END_OF_CONSTANT_PART.search(message)
    message = message[: found.start()] if found else message
    for pattern, replacement in _VARYING:
        message = pattern.sub(replacement, message)
    # one line for each dimension, say, is the same failure however many there are
    lines = dict.fromkeys(" ".join(line.split()) for line in message.splitlines())
    return " ".join(filter(None, lines))[:600]


def without_names(message: str) -> str:
    """A normalised message without what depends on how the user names things, or on torch's advice.

    Dynamo's messages have a headline, and then an explanation that quotes the user's code: of that the first name
    of a construct is kept. Of numbers it matters only whether a size was fixed because it is 0 or 1.
    """
    headline, _, explanation = _APIS.sub("", normalise(message)).partition(" Explanation: ")
    text = " ".join([headline, *re.findall(r"`(\w+)`", explanation)[:1]])
    for pattern, replacement in _USERS_NAMES:
        text = pattern.sub(replacement, text)
    return f"{text} {OF_SIZE_ONE}" if _SIZE_OF_ONE.search(message) else text


def without_arithmetic(message: str) -> str:
    """A message without names in which sums, products and quotients of sizes are sizes. A remainder stays one, because
    divisibility is another question."""
    before = ""
    while message != before:
        before = message
        for pattern, replacement in _ARITHMETIC:
            message = pattern.sub(replacement, message)
    return message
