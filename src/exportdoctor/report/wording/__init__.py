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
    no_cure,
    part_without_shims,
    prescription,
    prescription_code,
    proof,
    soundness,
)
from exportdoctor.report.wording.export import (
    AGREEMENT_HEADER,
    agreement_cell,
    export_headline,
    export_lines,
    numbers_differ,
)
from exportdoctor.report.wording.findings import (
    chapter,
    crash_message,
    culprit_line,
    dimensions,
    exception_line,
    expression,
    kill_message,
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
    ISSUE_HEADINGS,
    incidental_failure,
    incidental_origin,
    issue_end,
    issue_expectation,
    issue_graph_caption,
    issue_known,
    issue_place,
    issue_summary,
    issue_title,
    repro_draft,
    repro_failure_changed,
    repro_flaky,
    repro_flaky_attempts,
    repro_interrupted,
    repro_not_reduced,
    repro_not_verified,
    repro_out_of_time,
    repro_progress,
    repro_reproducing,
    repro_sliced,
    repro_sources_changed,
    repro_versions_changed,
    repro_without_source,
    script_head,
    script_origin,
)
from exportdoctor.report.wording.scan import (
    PARTS_HEADER,
    cost,
    coverage,
    cut_off_note,
    event_line,
    headline,
    missing_internals,
    part_line,
    probe_note,
    progress_counts,
    resume_command,
    substitution,
    time_left,
    time_left_of_share,
    unrecorded_note,
    verdict,
)
from exportdoctor.report.wording.shim_tries import agreement_line, combined_rows, refused_sets
from exportdoctor.report.wording.statuses import (
    ASCII_SYMBOLS,
    STATUS_WORDS,
    SYMBOLS,
    VERDICT_STATUS,
    evidence,
    remark,
    row_finding,
    row_name,
    same_object,
)

__all__ = [
    "AGREEMENT_HEADER", "ASCII_SYMBOLS", "EXPORT_LABEL", "ISSUE_HEADINGS", "PARTS_HEADER", "STATUS_WORDS",
    "SYMBOLS", "VERDICT_STATUS", "agreement_cell", "agreement_line", "chapter", "combined_rows", "cost", "count",
    "coverage", "refused_sets",
    "crash_message", "culprit_line", "cure", "cure_title", "cut_off_note", "dimensions", "duration", "event_line",
    "evidence", "exception_line", "export_command", "export_headline", "export_lines", "expression",
    "finding_count", "headline", "incidental_failure", "incidental_origin", "issue_end", "issue_expectation",
    "issue_graph_caption", "issue_known", "issue_link", "issue_place", "issue_summary", "issue_title",
    "kill_message", "missing_internals", "module_name", "next_step", "no_cure", "numbers_differ", "parameters",
    "part_line", "part_without_shims", "place", "plain", "prescription", "prescription_code", "probe_note",
    "progress_counts", "proof", "remark", "repro_draft", "repro_failure_changed", "repro_flaky", "repro_flaky_attempts",
    "repro_interrupted", "repro_line", "repro_not_reduced", "repro_not_verified", "repro_out_of_time",
    "repro_progress", "repro_reproducing", "repro_sliced", "repro_sources_changed", "repro_versions_changed",
    "repro_without_source", "resume_command", "row_finding", "row_name", "same_as_earlier", "same_object",
    "script_head", "script_origin", "shim_effect", "short_path", "soundness", "story", "substitution", "symbol_origins",
    "time_left", "time_left_of_share", "title", "to_ascii", "unrecorded_note", "verdict", "why",
]
