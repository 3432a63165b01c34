"""Takes causes of other failures out of a script that fails too early, until it fails as wanted.

A failure that was seen behind another one, under a shim, has no script as long as the first one ends each export. What
fails gets the value that it has in eager mode, or one of a few others.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator

from exportdoctor.core.failure.identity import name_free_signature
from exportdoctor.core.protocol.repro import CANDIDATE_FILE
from exportdoctor.core.records.outcome import Outcome
from exportdoctor.reduce import Verdict
from exportdoctor.reduce.source.tree import Edit, replace_node, substitute
from exportdoctor.repro.candidates.candidate_judge import CandidateJudge, judge_outcome
from exportdoctor.repro.candidates.candidate_runner import CandidateRunner

_CAUSES, _RUNS = 8, 25
_REFUSED_OUTPUT = re.compile(r"Found <class '__main__\.(\w+)'> in output")
_VALUES = ("1", "2", "0", "[1, 1]", "torch.ones(2, 2)")
_EAGER = """
import ast, torch
seen = []
def code_of(value):
    if isinstance(value, torch.Tensor) and value.numel() < 100:
        return f'torch.tensor({ast.literal_eval(repr(value.tolist()))}, dtype={value.dtype})'
    if isinstance(value, (tuple, list)):
        inner = ''.join(f'{code_of(one)}, ' for one in value)
        return f'[{inner}]' if isinstance(value, list) else f'({inner})'
    return repr(ast.literal_eval(repr(value)))
def note(value):
    seen.append(code_of(value))
    return value
def run(module, args=(), *rest, kwargs=None, **how):
    named = kwargs or next((one for one in rest if isinstance(one, dict)), {})
    try:
        with torch.no_grad():
            module(*args, **named)
    finally:
        raise RuntimeError(repr(seen))
torch.export.export = torch.onnx.export = run
"""
"""Stands before a script: what it would export runs, and raises the code of each value that went through `note`."""


def without_other_causes(judge: CandidateJudge, source: str) -> str | None:
    """`source` with as many failing expressions replaced as it takes; None if it never fails as wanted."""
    source = ast.unparse(ast.parse(source))  # a line for each statement
    return _search(judge, source, judge.runner.run(source), judge.runner.asked + _RUNS, _CAUSES)


def _search(judge: CandidateJudge, source: str, outcome: Outcome, last: int, causes: int) -> str | None:
    """The first that fails as wanted, depth first, until the runner has been asked for the `last` time."""
    for offered in _without_cause(judge.runner, source, outcome):
        if judge.runner.asked >= last:
            return None
        seen = judge.runner.run(offered)
        if judge_outcome(judge.wanted, seen, exporter=judge.exporter) is Verdict.YES:
            return offered
        if causes > 1 and _is_further(seen, outcome, judge.exporter):
            found = _search(judge, offered, seen, last, causes - 1)
            if found is not None:
                return found
    return None


def fails_earlier(judge: CandidateJudge, source: str) -> bool:
    """Whether a script's export raises something else than what is wanted."""
    outcome = judge.runner.run(source)
    if outcome.failure is None or outcome.failure.stage != "export":
        return False
    found = name_free_signature(outcome, exporter=judge.exporter)
    return found is not None and found.raised != judge.wanted.raised


def _place(outcome: Outcome) -> tuple[int, str]:
    """Line and expression of the script at which an export failed; 0 where there is none."""
    failure = outcome.failure
    if failure is None or failure.stage != "export":
        return 0, ""
    frames = [frame for frame in failure.frames if frame.file == CANDIDATE_FILE]
    return (frames[-1].line or 0, frames[-1].expression or "") if frames else (0, "")


def _is_further(seen: Outcome, before: Outcome, exporter: str) -> bool:
    """Whether an export failed, in another way and not at the same line."""
    signatures = [name_free_signature(one, exporter=exporter) for one in (seen, before)]
    return _place(seen)[0] > 0 and signatures[0] != signatures[1] and _place(seen)[0] != _place(before)[0]


def _without_cause(runner: CandidateRunner, source: str, outcome: Outcome) -> Iterator[str]:
    """`source` with the failing statement's test decided, the statement removed, or its expression a value.

    Where pytree refuses the class of an output, a tuple takes its place.
    """
    yield from _with_plain_outputs(source, outcome)
    line, expression = _place(outcome)
    tree = ast.parse(source)
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and line in _lines_of_head(node)]
    if statements:
        failing = [
            node for node in ast.walk(statements[-1]) if isinstance(node, ast.expr) and ast.unparse(node) == expression
        ]
        for node in failing:
            yield from _with_eager_value(runner, tree, node)
        for edit in _edits(statements[-1], failing):
            yield _unparse_edit(tree, edit)


def _with_eager_value(runner: CandidateRunner, tree: ast.Module, node: ast.expr) -> Iterator[str]:
    """The source with what an expression is in eager mode in its place: a constant, or one value after the other."""
    noted = ast.Call(ast.Name("note", ast.Load()), [copy.deepcopy(node)], [])
    failure = runner.run(_EAGER + _unparse_edit(tree, replace_node(node, noted))).failure
    try:
        codes = ast.literal_eval(failure.exceptions[0].message) if failure is not None else []
        values = [ast.parse(code, mode="eval").body for code in codes]
    except (ValueError, SyntaxError, TypeError):
        return
    if len(set(codes)) == 1:
        yield _unparse_edit(tree, replace_node(node, values[0]))
    elif codes:
        cycle = ast.parse(f"import itertools\nvalues = itertools.cycle([{', '.join(codes)}])").body
        following = ast.parse("next(values)", mode="eval").body
        yield _unparse_edit(ast.Module([*cycle, *tree.body], []), replace_node(node, following))


def _unparse_edit(tree: ast.Module, edit: Edit) -> str:
    return ast.unparse(ast.fix_missing_locations(substitute(tree, edit)))


def _with_plain_outputs(source: str, outcome: Outcome) -> Iterator[str]:
    """`source` with tuples in place of a refused output's class: where it is returned, then everywhere."""
    facts = outcome.failure.exceptions if outcome.failure is not None else ()
    names = dict.fromkeys(match[1] for fact in facts if (match := _REFUSED_OUTPUT.search(fact.message)))
    for name in names:
        for whole in (ast.Return, ast.Module):
            tree = ast.parse(source)
            for node in [node for node in ast.walk(tree) if isinstance(node, whole)]:
                _Tuples(name).visit(node)
            yield ast.unparse(ast.fix_missing_locations(tree))


class _Tuples(ast.NodeTransformer):
    """Calls of a class become tuples of their arguments."""

    def __init__(self, name: str) -> None:
        self.name = name

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not (isinstance(node.func, ast.Name) and node.func.id == self.name):
            return node
        return ast.Tuple([*node.args, *(keyword.value for keyword in node.keywords)], ast.Load())


def _lines_of_head(statement: ast.stmt) -> range:
    """The lines of a statement without the statements that it holds."""
    inner = [node.lineno for node in ast.walk(statement) if isinstance(node, ast.stmt) and node is not statement]
    return range(statement.lineno, min([(statement.end_lineno or statement.lineno) + 1, *inner]))


def _edits(statement: ast.stmt, failing: list[ast.expr]) -> Iterator[Edit]:
    match statement:
        case ast.If(body=body, orelse=orelse):
            yield replace_node(statement, *(orelse or [ast.Pass()]))
            yield replace_node(statement, *body)
        case ast.Assert() | ast.Expr() | ast.While():
            yield replace_node(statement, ast.Pass())
    for node in failing:
        for value in _VALUES:
            yield replace_node(node, ast.parse(value, mode="eval").body)
