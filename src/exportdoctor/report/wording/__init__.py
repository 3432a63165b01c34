"""The sentences that text, Markdown, HTML and the terminal interface share, so that they cannot disagree.

Everything here is a short plain string; layout, colour and escaping for a format belong to that format.
"""

from __future__ import annotations

from exportdoctor.report.wording.findings import (
    born,
    chapter,
    culprit_line,
    evaluated,
    exception_line,
    known,
    next_step,
    others,
    place,
    repro,
    shim_result,
    story,
    title,
    told_before,
    why,
)
from exportdoctor.report.wording.pieces import (
    count,
    elapsed,
    finding_count,
    issue_link,
    issue_name,
    module_name,
    parameters,
    plain,
    short_path,
)
from exportdoctor.report.wording.runs import cost, coverage, cure, headline, progress_counts, proof, unfinished, verdict
from exportdoctor.report.wording.statuses import (
    ASCII_SYMBOLS,
    STATUS_WORDS,
    SYMBOLS,
    VERDICT_STATUS,
    remark,
    row_finding,
    row_name,
)

__all__ = [
    "ASCII_SYMBOLS",
    "STATUS_WORDS",
    "SYMBOLS",
    "VERDICT_STATUS",
    "born",
    "chapter",
    "cost",
    "count",
    "coverage",
    "culprit_line",
    "cure",
    "elapsed",
    "evaluated",
    "exception_line",
    "finding_count",
    "headline",
    "issue_link",
    "issue_name",
    "known",
    "module_name",
    "next_step",
    "others",
    "parameters",
    "place",
    "plain",
    "progress_counts",
    "proof",
    "remark",
    "repro",
    "row_finding",
    "row_name",
    "shim_result",
    "short_path",
    "story",
    "title",
    "told_before",
    "unfinished",
    "verdict",
    "why",
]
