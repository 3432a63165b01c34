"""The expression that a frame was evaluating, read from Python's positions."""

from __future__ import annotations

import linecache
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from exportdoctor.worker.describe.python_frames import python_frame

HEAD = """class No:
    def __bool__(self): raise ValueError('no')
    def big(self): return self
    __iter__ = __bool__

def ask(x):
"""


def asked(body: str, folder: Path) -> str | None:
    """The expression of the innermost frame of `ask`."""
    path = folder / "asking.py"
    path.write_text(HEAD + "".join(f"    {line}\n" for line in body.splitlines()))
    linecache.checkcache(str(path))
    names: dict[str, Any] = {"__name__": "asking", "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), names)
    with pytest.raises(ValueError, match="no") as caught:
        names["ask"](names["No"]())
    link: TracebackType | None = caught.tb
    while link is not None and link.tb_frame.f_code.co_name != "ask":
        link = link.tb_next
    assert link is not None
    return python_frame(link.tb_frame, link, None).expression


@pytest.mark.parametrize(
    ("body", "expression"),
    [
        ("if x.big():\n    pass", "x.big()"),
        ("if (\n    x.big()\n    or x\n):\n    print(1)\nelse:\n    print(2)", "x.big() or x"),
        ("if 1 > 2:\n    pass\nelif (\n    x.big()\n    and x\n):\n    print('a'\n        'b')", "x.big() and x"),
        ("while (\n    x\n    and x.big()\n):\n    print(1)", "x and x.big()"),
        ("for one in x.big():\n    print(one)\n    print(2)", "x.big()"),
        ("y = [\n    1,\n    not x,\n]", "not x"),
        ("y = bool(  # asks\n    x  # a '#'\n)", "bool( x )"),
    ],
)
def test_of_a_branch_it_is_the_condition_also_over_several_lines(body: str, expression: str, tmp_path: Path) -> None:
    assert asked(body, tmp_path) in ({expression} if sys.version_info < (3, 12) else {expression, "x", "x.big()"})


@pytest.mark.parametrize(
    ("pattern", "expression"),
    [
        ("0", "x == 0"),
        ("(2 | 0) as y", "x == 2"),
        ("[0, *_]", "match x: case [0, *_]"),
    ],
)
def test_of_a_case_it_is_what_is_compared(pattern: str, expression: str, tmp_path: Path) -> None:
    path = tmp_path / "matching.py"
    path.write_text(f"def ask(x):\n    match x:\n        case {pattern}:\n            return 1\n")
    names: dict[str, Any] = {"__name__": "matching", "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), names)

    class Unequal:
        def __eq__(self, other: object) -> bool:
            raise ValueError("no")

        def __hash__(self) -> int:
            return 0

    with pytest.raises(ValueError, match="no") as caught:
        names["ask"]([Unequal()] if pattern.startswith("[") else Unequal())
    link = next(one for one in links(caught.tb) if one.tb_frame.f_code.co_name == "ask")
    assert python_frame(link.tb_frame, link, None).expression == expression


def links(link: TracebackType | None) -> Iterator[TracebackType]:
    while link is not None:
        yield link
        link = link.tb_next


@pytest.mark.parametrize(
    ("body", "expression"),
    [
        ("y = 1 if x is x and x.big() else 2", "x.big()"),
        ("if x is x and x.big():\n    pass", "x.big()"),
        ("if 1 < 2 and x:\n    pass", "x"),
    ],
)
def test_of_a_comparison_and_a_value_it_is_the_one_that_was_asked(body: str, expression: str, tmp_path: Path) -> None:
    """Python 3.11 says that the last jump of a condition stands at the comparison before it."""
    assert asked(body, tmp_path) == expression


@pytest.mark.parametrize(
    ("body", "expression"),
    [
        ("y = bool((x))", "y = bool((x))"),
        ("if 1 and x.big():\n    pass", "1 and x.big()"),
        ("if x.big(): y = 1", "if x.big(): y = 1"),
        ("for y in (1, 2): assert x.big()", "for y in (1, 2): assert x.big()"),
        ("for y in (1,\n          2):\n    assert x.big(), 'a long message'", "assert x.big(), 'a long message'"),
    ],
)
def test_of_code_whose_columns_are_of_another_text_it_is_the_whole_statement(
    body: str, expression: str, tmp_path: Path
) -> None:
    """Story: "While evaluating n = int((h > 0).su": a shim had compiled the function without its indentation."""
    path = tmp_path / "shifted.py"
    source = "\n" + HEAD + "".join(f"    {line}\n" for line in body.splitlines())
    path.write_text("if True:" + textwrap.indent(source, "    "))
    linecache.checkcache(str(path))
    names: dict[str, Any] = {"__name__": "shifted", "__file__": str(path)}
    exec(compile(source, str(path), "exec"), names)
    with pytest.raises(ValueError, match="no") as caught:
        names["ask"](names["No"]())
    link: TracebackType | None = caught.tb
    while link is not None and link.tb_frame.f_code.co_name != "ask":
        link = link.tb_next
    assert link is not None
    assert python_frame(link.tb_frame, link, None).expression == expression
