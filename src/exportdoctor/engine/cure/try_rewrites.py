"""Tries the rewrites of a finding's own line: each is run in memory, exported, and compared with what it replaces."""

from __future__ import annotations

import difflib
import linecache
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from exportdoctor.core.failure.finding import Finding, RewriteEnd, TriedRewrite
from exportdoctor.core.records.target import TargetRef
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.engine.cure.try_shims import PartTrial, meets, try_sets
from exportdoctor.process.launcher import Launcher
from exportdoctor.report.wording.formatting import short_path
from exportdoctor.report.wording.shim_tries import agreement_line
from exportdoctor.shims.caught_exceptions import catching_line
from exportdoctor.shims.edits.line_edits import ASSERTED, CHOICES, LineEdit, line_edits

_MOST = 8
_OF_A_TENSOR, _EQUALS_ONE = re.compile(r"\bEq\(u\d+, 1\)"), re.compile(r"[!=]= *1\b")
"""How torch says that a branch is on a tensor of one flag, and a branch of which it may say the same."""
_SHIM_FILE = """from exportdoctor.shims.edits.edited_code import edit_shim

FILE = {file!r}
BEFORE = {before!r}
SHIMS = tuple(
    edit_shim(id=f"rewrite-{{number}}", title=title, file=FILE, before=BEFORE, after=after)
    for number, (title, after) in enumerate({edits!r}, 1)
)
"""


def is_unchanged(finding: Finding) -> bool:
    """Whether the finding's line is still what it was when it failed; also true where its file is out of reach."""
    name, number, source = _place_of(finding)
    if not name or not number or not source.strip() or not os.path.isfile(name):
        return True
    with open(name, encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()[number - 1 :]
    return bool(lines) and source.strip().splitlines()[0].strip() in lines[0]


def _place_of(finding: Finding) -> tuple[str, int, str]:
    """The file, line and source to rewrite: where it fails, or what made the guard or the value that torch refuses."""
    if finding.file is not None:
        return finding.file, finding.line or 0, finding.source or ""
    frame = finding.guard or finding.value_origin
    return (frame.file, frame.line, frame.source) if frame is not None else ("", 0, "")


def _text_of(name: str) -> str:
    """The text of a file, or of what was run under its name, as a notebook's cells are; empty if it is not there."""
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return "" if os.path.exists(name) else "".join(linecache.getlines(name))


def edits_of(finding: Finding) -> tuple[LineEdit, ...]:
    """The rewrites that fit the finding's line, or a line on which its failure depends in the same file."""
    name, number, _ = _place_of(finding)
    if not name or not number or finding.stage != "export" or finding.fixed_by:
        return ()
    if not (text := _text_of(name)) or not is_unchanged(finding):
        return ()
    frames = [finding.guard, finding.value_origin, *(origin.frame for origin in finding.origins)]
    lines = [number, *(frame.line for frame in frames if frame is not None and frame.file == name)]
    is_caught = any(frame.user and catching_line(frame.file, frame.line) for frame in finding.stack)
    edits = line_edits(text, finding.kind, lines, is_caught=is_caught)
    if _OF_A_TENSOR.search(finding.exception.message) and not _EQUALS_ONE.search(finding.source or ""):
        edits = tuple(one for one in edits if one.title != ASSERTED or _reads_flag(text, one.text))
    return edits[:_MOST]


def _reads_flag(before: str, after: str) -> bool:
    """Whether what is asserted is a number: torch._check takes no tensor."""
    known = {*before.splitlines()}
    return any("torch._check(" in line and ".item()" in line for line in after.splitlines() if line not in known)


def proposals(finding: Finding) -> tuple[TriedRewrite, ...]:
    """The same as diffs, none of them tried."""
    if not (edits := edits_of(finding)):
        return ()
    file = _place_of(finding)[0]
    before, name = _text_of(file), short_path(file)
    return tuple(
        TriedRewrite(title=edit.title, diff=_diff(before, edit.text, name), result="not_tried") for edit in edits
    )


def try_rewrites(
    finding: Finding, target: TargetRef, options: ScanOptions, launcher: Launcher | None = None
) -> Iterator[TriedRewrite]:
    """What comes of each rewrite of the finding's line; of several of one title none after one that works. Raises
    TargetError and UsageError."""
    edits = edits_of(finding)
    if not edits:
        return
    file = _place_of(finding)[0]
    before = _text_of(file)
    with tempfile.TemporaryDirectory(prefix="exportdoctor-") as folder:
        shim_file = Path(folder) / "rewrites.py"
        shim_file.write_text(
            _SHIM_FILE.format(file=file, before=before, edits=[tuple(edit) for edit in edits]), encoding="utf-8"
        )
        options = msgspec.structs.replace(options, shim_files=(*options.shim_files, str(shim_file)))
        sets = [(f"rewrite-{number}",) for number in range(1, len(edits) + 1)]
        trials = try_sets(target, options, sets, finding=finding, launcher=launcher)
        exported: set[str] = set()
        for proposal, (tried, alone) in zip(proposals(finding), trials, strict=True):
            judged = _judge(proposal, tried, alone, finding)
            if judged.title not in exported:  # a rewrite of one title is written in the first way that works
                yield judged
            exported |= {judged.title} if judged.result == "exports" else set()


def _judge(rewrite: TriedRewrite, tried: PartTrial, alone: PartTrial | None, finding: Finding) -> TriedRewrite:
    """`rewrite` with what its trial on the part showed, or on the module alone where that shows more."""
    module = ""
    ended: RewriteEnd = ""
    if alone is not None and not tried.cured and not alone.exports:
        reached = alone.after.startswith("exports")
        if reached or (meets(alone, finding) and not meets(tried, finding)):
            tried, module = alone, finding.module
    if tried.says_nothing:
        return msgspec.structs.replace(rewrite, note="the trial ended without an answer")
    if tried.result == "not_applicable" and not meets(tried, finding) and not tried.exports:
        return msgspec.structs.replace(rewrite, result="fails", note=tried.before, ended="before")
    if tried.result == "not_applicable":
        return msgspec.structs.replace(rewrite, note=tried.after.rpartition(f"{tried.shims[0]}: ")[2])
    held = [row for row in tried.numbers if row.holds and not row.refused]
    if tried.cured and not tried.condition:
        result = "exports"
    elif tried.result in ("cured", "error") and tried.after.startswith("exports"):
        result = "differs" if tried.numbers else "no_values"
    else:
        result, ended = "fails", _end(tried, finding)
    wrong = next((row for row in tried.numbers if not row.holds), None)
    return msgspec.structs.replace(
        rewrite,
        result=result,
        module=module,
        input_sets=len(held),
        max_abs_diff=max((row.max_abs for row in held), default=0.0),
        note=f"{tried.after} ({agreement_line(wrong)})" if result == "differs" and wrong else tried.after,
        ended=ended,
        one_way=result == "exports" and rewrite.title in CHOICES and all(row.kind != "branches" for row in held),
    )


def _end(tried: PartTrial, finding: Finding) -> RewriteEnd:
    """How the failure with the rewrite compares with the finding's."""
    if tried.result == "same":
        return "same" if meets(tried, finding) else "before"
    rewritten = tried.next_at is not None and (tried.next_at.file, tried.next_at.line) == (finding.file, finding.line)
    return "further" if tried.result == "moved" and tried.later and not rewritten else "otherwise"


def _diff(before: str, after: str, name: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, n=2, lineterm="")
    return "\n".join(lines) + "\n"
