"""`match` on plain values, written as the branches that it stands for, so that shims need to know of these alone.

Patterns are values, `None`, `True` and `False`, several of these, a name, and `_`; with guards. A `match` with another
pattern, such as a sequence or a class, stays one.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from typing import Any, NamedTuple


class _Case(NamedTuple):
    """What is asked for a case, None where it always fits, and the assignments that it makes."""

    test: ast.expr | None
    binds: list[ast.stmt]


class MatchesAsBranches(ast.NodeTransformer):
    """Writes each `match` on plain values as `if`, `elif` and `else`, with the line numbers of its patterns."""

    def visit_Match(self, node: ast.Match) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if (branch := _of_a_truth(node)) is not None:
            return branch
        read, before = _subject(node)
        cases = [_case_of(case, read) for case in node.cases]
        if None in cases:
            return node
        rest: list[ast.stmt] = []
        for case, found in reversed(list(zip(node.cases, cases, strict=True))):
            assert found is not None
            body = [*found.binds, *case.body]
            rest = body if found.test is None else [_at(case.pattern, ast.If(found.test, body, rest))]
        return [*before, *rest]


def _of_a_truth(node: ast.Match) -> ast.If | None:
    """`match bool(x)` with one case for True, and one for all else: it is `if`, whose condition need not be a bool."""
    match node:
        case ast.Match(
            subject=ast.Call(func=ast.Name(id="bool"), args=[_], keywords=[]) as asked,
            cases=[ast.match_case(pattern=ast.MatchSingleton(value=first), guard=None) as one, *rest],
        ) if isinstance(first, bool):
            match rest:
                case [] | [ast.match_case(pattern=ast.MatchAs(pattern=None, name=None), guard=None)]:
                    pass
                case [ast.match_case(pattern=ast.MatchSingleton(value=value), guard=None)] if value is (not first):
                    pass
                case _:
                    return None
            test = asked if first else ast.UnaryOp(ast.Not(), asked)
            return _at(one.pattern, ast.If(_at(asked, test), one.body, rest[0].body if rest else []))
    return None


def _subject(node: ast.Match) -> tuple[Callable[[], ast.expr], list[ast.stmt]]:
    """What reads the subject, as often as it is asked for, and the statement that computes it once, if one has to."""
    if _is_plain(node.subject):
        return lambda: copy.deepcopy(node.subject), []
    name = f"_subject_{node.subject.lineno}_{node.subject.col_offset}"
    bound = _at(node.subject, ast.Assign([_at(node.subject, ast.Name(name, ast.Store()))], node.subject))
    return lambda: _at(node.subject, ast.Name(name, ast.Load())), [bound]


def _is_plain(node: ast.expr) -> bool:
    """Whether it can be read several times: a name, or the number that `.item()` reads of one."""
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr="item"), args=[], keywords=[]):
            return _is_plain(value)
    return isinstance(node, ast.Name)


def _case_of(case: ast.match_case, read: Callable[[], ast.expr]) -> _Case | None:
    """None for a pattern that is no plain one, and for a guard that binds a name, or may read one that its pattern
    binds."""
    found = _pattern(case.pattern, read)
    if found is None or case.guard is None:
        return found
    guard = case.guard
    if found.binds or any(isinstance(one, ast.NamedExpr) for one in ast.walk(guard)):
        return None
    return _Case(guard if found.test is None else _at(guard, ast.BoolOp(ast.And(), [found.test, guard])), [])


def _pattern(pattern: ast.pattern, read: Callable[[], ast.expr]) -> _Case | None:
    def compare(operator: ast.cmpop, value: ast.expr) -> _Case:
        return _Case(_at(pattern, ast.Compare(read(), [operator], [value])), [])

    match pattern:
        case ast.MatchValue(value=value):
            return compare(ast.Eq(), value)
        case ast.MatchSingleton(value=constant):
            return compare(ast.Is(), _at(pattern, ast.Constant(constant)))
        case ast.MatchOr(patterns=patterns):
            found = [_pattern(one, read) for one in patterns]
            tests = [one.test for one in found if one is not None and one.test is not None and not one.binds]
            if len(tests) != len(patterns):
                return None
            return _Case(_at(pattern, ast.BoolOp(ast.Or(), tests)), [])
        case ast.MatchAs(pattern=inner, name=name):
            within = _pattern(inner, read) if inner is not None else _Case(None, [])
            if within is None or name is None:
                return within
            bind = _at(pattern, ast.Assign([_at(pattern, ast.Name(name, ast.Store()))], read()))
            return _Case(within.test, [*within.binds, bind])
    return None


def _at(place: ast.AST, node: Any) -> Any:
    return ast.fix_missing_locations(ast.copy_location(node, place))
