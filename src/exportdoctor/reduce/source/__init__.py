"""Reduces Python source by its syntax tree: the search for the shortest script that fails in the same way.

`reduce_source` runs the passes of `PASSES` in order, again and again until a whole round changes nothing.
Each pass sweeps once over the tree and offers candidates; none of them understands what the code does.
Whether a candidate is the same bug is for the verdict alone to say, so a pass may be as rough as it likes as
long as what it offers

- compiles,
- costs strictly less (syntax nodes and imports, then characters, then the text itself), which is why the
  whole ends,
- uses nothing undefined that the start did not, which is why few questions are wasted.

The order of the passes matters for the number of questions and not for the laws: what removes most comes
first, so that the passes that ask about each expression do so of a short source.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import partial

from exportdoctor.reduce.search import Search, until_no_progress
from exportdoctor.reduce.source.arguments import (
    drop_arguments,
    drop_elements,
    drop_optional_parts,
    drop_paired_elements,
)
from exportdoctor.reduce.source.blocks import narrow_zips, unroll_loops, unwrap_blocks
from exportdoctor.reduce.source.constants import shrink_integers, simplify_literals
from exportdoctor.reduce.source.draft import Draft
from exportdoctor.reduce.source.expressions import simplify_expressions
from exportdoctor.reduce.source.inlining import inline_assignments, inline_functions, inline_imports, inline_lambdas
from exportdoctor.reduce.source.modules import adopt_bases, borrow_state, bypass_children, drop_methods
from exportdoctor.reduce.source.parameters import drop_fields, drop_parameters
from exportdoctor.reduce.source.statements import drop_names, drop_targets, thin_statements
from exportdoctor.reduce.source.sweep import Rules, SourcePass

__all__ = ["PASSES", "Rules", "SourcePass", "reduce_source", "source_distance", "source_size"]

PASSES: tuple[SourcePass, ...] = (
    narrow_zips,
    thin_statements,
    unwrap_blocks,
    unroll_loops,
    bypass_children,
    drop_methods,
    adopt_bases,
    borrow_state,
    drop_names,
    drop_parameters,
    drop_fields,
    drop_arguments,
    drop_optional_parts,
    drop_elements,
    drop_paired_elements,
    simplify_expressions,
    inline_functions,
    inline_lambdas,
    inline_assignments,
    inline_imports,
    drop_targets,
    simplify_literals,
    shrink_integers,
)


def reduce_source(
    source: str,
    *,
    kept: Callable[[str], bool] = lambda text: True,
    passes: tuple[SourcePass, ...] = PASSES,
) -> Search[str, str]:
    """The search for the smallest interesting version of `source`.

    Drive it with `Terms(size=source_size, distance=source_distance)`. `kept` refuses candidates without
    asking: that a certain function still exists, say. The first candidate is the source as `ast.unparse`
    writes it, without comments; if that is not interesting there is nothing to do. Raises SyntaxError if
    `source` is not Python.
    """
    start = Draft.of(source)
    if start is None:
        raise SyntaxError("the source to reduce is not valid Python")
    tidy, rules = start.text, Rules(kept, start.undefined)
    if tidy != source and (not kept(tidy) or (yield (tidy,)) is None):
        return source
    return (yield from until_no_progress(tidy, tuple(partial(run, rules=rules) for run in passes)))


def source_size(text: str) -> int:
    """How many characters a reader sees; layout weighs nothing.

    Not the cost that a step makes smaller, which takes a parse to know. Where the two disagree, the answer of
    the search weighs least and the result of the drive the fewest characters, and both are
    interesting.
    """
    return len("".join(text.split()))


def source_distance(one: str, other: str) -> int:
    """How many words and signs are in only one of two sources, so that "one argument less" is near."""
    ours, theirs = (Counter(re.findall(r"\w+|[^\w\s]", text)) for text in (one, other))
    return (ours - theirs).total() + (theirs - ours).total()
