"""A definition is parsed as its file is: with the same code, lines and columns, however its lines are indented."""

from __future__ import annotations

import ast
import io

import pytest

from exportdoctor.core.parse_indented import parse_indented

TEXTS = {
    "as usual": "class A:\n    def forward(self, x):\n        return x + 1\n",
    "a comment at the margin": "class A:\n    def forward(self, x):\n# x = x * 2\n        return x + 1\n",
    "a string at the margin": "class A:\n    def forward(self, x):\n        '''Adds\n1.'''\n        return x\n",
    "lines joined at the margin": "class A:\n    def forward(self, x):\n        return (x +\n1)\n",
    "a form feed in front": "class A:\n\f    def forward(self, x):\n        return x\n",
    "form feeds inside": "class A:\n    def forward(self, x):\n\f        x = x + 1\n        return x\n",
    "tabs": "class A:\n\tdef forward(self, x):\n\t\tif x:\n\t\t\treturn 1\n\t\treturn x\n",
    "a decorator": "class A:\n    @cached(\n1)\n    def forward(self, x):\n        return x\n",
    "not indented": "\f\ndef forward(self, x):\n    return x\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
def test_a_definition_has_the_tree_that_it_has_in_its_file(text: str) -> None:
    (wanted,) = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    first = min([wanted.lineno, *(one.lineno for one in wanted.decorator_list)])
    part = "".join(io.StringIO(text).readlines()[first - 1 : wanted.end_lineno]) if "class" in text else text
    (found,) = parse_indented(part).body
    if "class" in text:
        ast.increment_lineno(found, first - 1)
    assert ast.dump(found, include_attributes=True) == ast.dump(wanted, include_attributes=True)


def test_what_is_no_code_is_refused() -> None:
    for text in (
        "    def f(:\n",
        "def f(x):\nreturn x\n",
        "    x = 1\n  y = 2\n",
        "    x = 1\ny = 2\n",
        "    x = 1\nelse:\n    y = 2\n",
    ):
        with pytest.raises(SyntaxError):
            parse_indented(text)
