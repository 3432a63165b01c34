"""Reduces Python source by its syntax tree: the search for the shortest script that fails in the same way.

The generic reduction is our own, and not pysource-minimize or Shrink Ray, because it must be a generator that several
drivers can resume and run in parallel, and because its passes share drafts and cost with those that know nn.Module.

`reduce_source` runs the passes of `PASSES` in order, again and again until a whole round changes nothing.
Each pass sweeps once over the tree and offers candidates; none of them understands what the code does.
Whether a candidate is the same bug is decided by the verdict alone, so a pass may be as rough as it likes as
long as what it offers

- compiles,
- costs strictly less (syntax nodes and imports, then characters, then the text itself), which is why the
  whole ends,
- uses nothing undefined that the start did not, which is why few candidates are wasted.

The order of the passes matters for the number of candidates, not for these properties: what removes most comes
first, so that the passes that ask about each expression do so of a short source.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import partial

from exportdoctor.reduce.search_protocol import Search, until_no_progress
from exportdoctor.reduce.source.passes import PASSES
from exportdoctor.reduce.source.source_version import SourceVersion
from exportdoctor.reduce.source.sweep import SourcePass

__all__ = ["PASSES", "SourcePass", "reduce_source", "source_distance", "source_size"]


def reduce_source(source: str) -> Search[str, str]:
    """The search for the smallest interesting version of `source`.

    Drive it with `SearchLimits(size=source_size, distance=source_distance)`. The first candidate is the source as
    `ast.unparse` writes it, without comments; if that is not interesting there is nothing to do. Raises SyntaxError if
    `source` is not Python.
    """
    start = SourceVersion.of(source)
    if start is None:
        raise SyntaxError("the source to reduce is not valid Python")
    tidy, allowed = start.text, start.undefined
    if tidy != source and (yield (tidy,)) is None:
        return source
    return (yield from until_no_progress(tidy, tuple(partial(run, allowed=allowed) for run in PASSES)))


def source_size(text: str) -> int:
    """How many characters a reader sees; layout weighs nothing.

    Not the cost that a step makes smaller, which takes a parse to compute. Where the two disagree, the answer of
    the search weighs least and the result of the drive has the fewest characters, and both are interesting.
    """
    return len("".join(text.split()))


def source_distance(one: str, other: str) -> int:
    """How many words and signs are in only one of two sources, so that "one argument less" is near."""
    ours, theirs = (Counter(re.findall(r"\w+|[^\w\s]", text)) for text in (one, other))
    return (ours - theirs).total() + (theirs - ours).total()
