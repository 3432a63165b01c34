"""The sentences that reports, command line and terminal interface share, as functions from records to plain strings.

Layout, colour and escaping belong to each format.
"""

from __future__ import annotations

# fmt: off
from exportdoctor.report.wording.cures import (
    EXPORT_LABEL,
    cure,
    cure_title,
    export_command,
    prescription,
    prescription_code,
    proof,
    soundness,
)
from exportdoctor.report.wording.export import agreement_cell, export_headline, export_lines
from exportdoctor.report.wording.findings import (
    chapter,
    culprit_line,
    dimensions,
    exception_line,
    expression,
    next_step,
    place,
    repro_line,
    same_as_earlier,
    shim_effect,
    story,
    symbol_origins,
    title,
    why,
)
from exportdoctor.report.wording.formatting import (
    count,
    duration,
    finding_count,
    issue_link,
    module_name,
    parameters,
    plain,
    short_path,
    to_ascii,
)
from exportdoctor.report.wording.repro import (
    incidental_failure,
    issue_end,
    issue_expectation,
    issue_graph_caption,
    issue_known,
    issue_place,
    issue_summary,
    issue_title,
    repro_interrupted,
    repro_not_verified,
    repro_out_of_time,
)
from exportdoctor.report.wording.scan import (
    cost,
    coverage,
    cut_off_note,
    event_line,
    headline,
    probe_note,
    progress_counts,
    remaining_seconds,
    resume_command,
    time_left,
    verdict,
)
from exportdoctor.report.wording.shim_tries import agreement_line
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
    "ASCII_SYMBOLS", "EXPORT_LABEL", "STATUS_WORDS", "SYMBOLS", "VERDICT_STATUS", "agreement_cell",
    "agreement_line", "chapter", "cost", "count", "coverage", "culprit_line", "cure", "cure_title", "cut_off_note",
    "dimensions", "duration", "event_line", "exception_line", "export_command", "export_headline",
    "export_lines", "expression", "finding_count", "headline", "incidental_failure", "issue_end",
    "issue_expectation", "issue_graph_caption", "issue_known", "issue_link", "issue_place",
    "issue_summary", "issue_title", "module_name", "next_step", "parameters",
    "place", "plain", "prescription", "prescription_code", "probe_note", "progress_counts", "proof",
    "remaining_seconds", "remark", "repro_line", "repro_interrupted", "repro_not_verified", "repro_out_of_time",
    "resume_command", "row_finding", "row_name", "same_as_earlier", "shim_effect", "short_path",
    "soundness", "story", "symbol_origins", "time_left", "title", "to_ascii", "verdict", "why",
]
