"""From the runs of a sweep to its atlas: cells, shares of each stage, and root causes over all models. It reads the
runs and asks nothing."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from exportdoctor.core.codec import decode, encode
from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.core.failure.finding import Finding
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.failure.messages import first_line, without_names
from exportdoctor.core.run.atlas import TRIED, Also, AtlasCell, AtlasRow, CellVerdict, RootCause, Sizes, StageShare
from exportdoctor.core.run.report import PartRecord, Report
from exportdoctor.report.wording.atlas import NOT_ASKED_CURED, few_layers_note
from exportdoctor.report.wording.statuses import STATUS_WORDS
from exportdoctor.store.run_folder import REPORT
from exportdoctor.store.runs import read_run
from exportdoctor.sweep.target_task import AnswerStatus, RunAnswer, SweepAnswer, scan_words

STAGES = {"export": ("export", "numbers"), "decomposed": ("export", "numbers", "decomposed"),
          "onnx": ("export", "numbers", "onnx"), "ort": ("export", "numbers", "onnx", "ort")}  # fmt: skip
"""The columns for each `--to`."""
_STAGE_OF = {"decompose": "decomposed", "translate": "onnx", "check": "onnx", "load": "ort", "run": "ort"}
AT_A_LIMIT = frozenset({FailureKind.TIMEOUT, FailureKind.OUT_OF_MEMORY})
_NO_PLACE = frozenset({FailureKind.CRASH, FailureKind.TIMEOUT, FailureKind.OUT_OF_MEMORY})


def make_row(
    answer: SweepAnswer,
    folder: Path,
    *,
    to: str,
    ref: str,
    words: tuple[str, ...],
    few_layers: str = "",
    digest: str = "",
) -> tuple[AtlasRow, list[Finding]]:
    """The row of one target, and the findings of its runs. `folder` holds its runs; `words` are the sweep's options.

    `few_layers` says which it has of a model that has more; `digest` is the model's.
    """
    cells: list[AtlasCell] = []
    findings: list[Finding] = []
    notes: dict[str, None] = {}
    for run in answer.runs:
        report, parts_asked = _read_report(folder / run.folder)
        where: dict[str, Any] = {
            "command": " ".join(("exportdoctor", "scan", ref, *scan_words(words, run.sizes, run.also))),
            "run": str(Path("runs") / answer.name / run.folder),
            "memory_mb": _memory(run, report),
        }
        columns = (run.also,) if run.also else STAGES[to]
        why = run.why.replace(f"{folder.parents[1]}{os.sep}", "")
        at_limit = run.status in (AnswerStatus.TIMED_OUT, AnswerStatus.OUT_OF_MEMORY)
        known = _parts_with_verdict(report, columns) if report else set()
        found = list(_cells(answer.name, run, report, columns, where, known, why if at_limit else "")) if report else []
        findings += report.findings if report else ()
        notes |= dict.fromkeys(report.notes if report else ())
        in_cures = at_limit and bool(parts_asked) and known.issuperset(parts_asked)
        if not found or (run.status != AnswerStatus.ANSWERED and not in_cures):
            missing = why or "the run shows no part"
            found += [
                AtlasCell(part="", sizes=run.sizes, stage=stage, verdict="no_verdict", why=missing, **where)
                for stage in columns
            ]
        cells += found
    row = AtlasRow(
        name=answer.name,
        ref=ref,
        digest=digest,
        at=answer.at,
        cells=tuple(cells),
        notes=(*((few_layers_note(few_layers),) if few_layers else ()), *notes),
        few_layers=few_layers,
        complete=answer.is_final,
        timeout=answer.timeout,
        memory_mb=answer.memory_mb,
        seconds=sum(run.seconds for run in answer.runs),
    )
    return row, findings


def _memory(run: RunAnswer, report: Report | None) -> float:
    return max(run.memory_mb, report.stats.peak_rss_mb if report else 0.0)


def _read_report(folder: Path) -> tuple[Report | None, tuple[str, ...]]:
    """The run's report and the parts it has; of a run that was killed what its events say, and the parts that were to
    be asked. None where there is neither."""
    try:
        found: Report = decode((folder / REPORT).read_bytes(), Report)
    except (OSError, ExportdoctorError):
        try:
            state = read_run(folder).state
        except ExportdoctorError:
            return None, ()
        return state.report(), state.opened.parts if state.opened is not None else ()
    return found, tuple(part.name for part in found.parts)


def _parts_with_verdict(report: Report, columns: Sequence[str]) -> set[str]:
    """The parts of which no stage is left to be asked: one fails, and is located, or the last one passes."""
    failing = {finding.part for finding in report.findings}
    last, known = "export" if columns[-1] == "strict" else columns[-1], set()
    for part in report.parts:
        stages = part.root_stages
        fails, passed = "fail" in stages.values(), {_column_of(stage, stages) for stage in stages}
        if part.complete or (part.name in failing if fails else last in passed):
            known.add(part.name)
    return known


def _cells(
    name: str,
    run: RunAnswer,
    report: Report,
    columns: tuple[str, ...],
    where: dict[str, Any],
    known: Container[str],
    cut_off: str,
) -> Iterable[AtlasCell]:
    """The cells of each part in `known`, or with a finding. `cut_off`: the limit that ended the run, if one did."""
    for part in report.parts:
        if part.name not in known and not any(f.part == part.name for f in report.findings):
            continue
        stages = part.root_stages
        for column in columns:
            stage = "export" if column == "strict" else column  # what the run's own exporter says
            mine = [f for f in report.findings if f.part == part.name and _column_of(f.stage, stages) == stage]
            verdict = _verdict(part, stage, stages, mine)
            ended = mine and all(one.kind in AT_A_LIMIT for one in mine)
            if verdict == "fails" and ended:  # a limit is ours: the model has not failed
                why = first_line(mine[0].exception.message, 300)
                yield AtlasCell(
                    part=part.name, sizes=run.sizes, stage=column, verdict="no_verdict", why=why,
                    seconds=round(part.seconds, 3), **where,
                )  # fmt: skip
                continue
            shown = mine if verdict != "passes" else []
            first = shown[0] if shown else None
            cure = part.prescription if verdict == "cured" else None
            unfinished = cut_off if _is_unfinished(part, stage, verdict) else ""
            yield AtlasCell(
                part=part.name,
                sizes=run.sizes,
                stage=column,
                verdict=verdict,
                failures=tuple(dict.fromkeys(identity_of(one, model=name) for one in shown)),
                kind=str(first.kind) if first else "",
                exception=first_line(first.exception.message, 300) if first else "",
                place=_place(first) if first else "",
                source=(first.source or "").strip()[:300] if first else "",
                cure=cure.shims if cure else (),
                soundness=cure.soundness if cure else "",
                seconds=round(part.seconds, 3),
                why=_why(part, stage, verdict) or (unfinished if verdict == "not_asked" else ""),
                cut_off=unfinished,
                **where,
            )


def _column_of(stage: str, stages: dict[str, str]) -> str:
    """Numbers are those of the exported program, or of the ONNX file once that ran."""
    return ("ort" if "run" in stages else "numbers") if stage == "numbers" else _STAGE_OF.get(stage, "export")


def _why(part: PartRecord, stage: str, verdict: CellVerdict) -> str:
    """What is missing where there is no verdict, or why no numbers were compared, or no later stage was asked."""
    if verdict == "no_verdict":
        return STATUS_WORDS["unknown"]
    if verdict == "not_asked" and part.verdict == "cured" and stage != "numbers":
        return NOT_ASKED_CURED
    return part.numbers.note if stage == "numbers" and part.numbers is not None else ""


def _verdict(part: PartRecord, stage: str, stages: dict[str, str], findings: Sequence[Finding]) -> CellVerdict:
    """A stage's verdict. Not asked: stages after one that fails and that no shims cure, and ONNX Runtime without
    values. Shims whose program was not compared with eager cure nothing."""
    if part.verdict == "unknown":
        return "no_verdict"
    if stage == "numbers" and not findings:
        return _verdict_of_numbers(part)
    ended = [how for one, how in stages.items() if _column_of(one, stages) == stage]
    shown = part.prescription.stages if part.prescription is not None and _is_compared(part) else {}
    with_shims = [how for one, how in shown.items() if _column_of(one, shown) == stage]
    if with_shims and (not ended or "fail" in ended):
        return "fails" if "fail" in with_shims else "cured"
    if "fail" in ended or findings or (stage == "export" and not ended and part.verdict != "passes"):
        return part.verdict
    if ended or (part.verdict == "passes" and stage == "export"):
        return "passes"
    return "not_asked"


def _is_unfinished(part: PartRecord, stage: str, verdict: CellVerdict) -> bool:
    """Whether more may be known of it when the run goes on: a cure of what fails, or the numbers of what passes."""
    return not part.complete and (verdict == "fails" or (stage == "numbers" and verdict == "not_asked"))


def _verdict_of_numbers(part: PartRecord) -> CellVerdict:
    """How the program compares with eager: the part's own, with its shims, or its small model's."""
    if part.prescription is not None:
        return "cured" if _is_compared(part) else "not_asked"
    if part.numbers is None and (asked := part.root_stages.get("numbers")):
        return "passes" if asked == "pass" else "fails"
    if part.numbers is None or part.numbers.verdict == "unknown":
        return "not_asked"
    return "passes" if part.numbers.verdict == "agrees" else "fails"


def _is_compared(part: PartRecord) -> bool:
    """Whether the program that was made with shims was compared with eager."""
    proof = part.prescription.proof if part.prescription is not None else None
    return proof is not None and proof.max_abs_diff is not None


# --- root causes

# a list of sizes, with no function's name before it: `[<symbol>, <n>*<symbol>]`, but not `Eq(<symbol>, <n>)`
_QUOTED_SHAPE = re.compile(r"((?<!\w)\(|\[)<(?:n|symbol)>(?:[*, ]+<(?:n|symbol)>)*([)\]])")


def identity_of(finding: Finding, *, model: str) -> str:
    """What two findings have in common that one fix may cure, whatever model and file they come from.

    The kind, what was raised, and the line of code without its place: transformers copies lines from model to model. A
    process that died says no line that can be relied on, so that such a failure is like no other model's; neither is
    one that says nothing at all. Shapes that a message quotes are the same whether they are numbers or symbols.
    """
    said = _QUOTED_SHAPE.sub(r"\1<n>\2", without_names(finding.exception.message))
    source = " ".join(_source(finding).split())
    alone = finding.kind in _NO_PLACE or not (said or source)
    shown = [str(finding.kind), finding.stage, finding.exception.type, said, source, model if alone else ""]
    return hashlib.sha256(encode(shown)).hexdigest()[:10]


def _source(finding: Finding) -> str:
    if finding.source:
        return finding.source
    frame = finding.guard or finding.value_origin
    return (frame.source or "") if frame else finding.op or ""


def _place(finding: Finding) -> str:
    frame = finding.guard or finding.value_origin
    file, line = (finding.file, finding.line) if finding.file else (frame.file, frame.line) if frame else ("", None)
    return f"{_short(file or '')}:{line}" if file else ""


def _short(file: str) -> str:
    """A source file, an installed one from its package on, another one by its last two names."""
    for folder in ("site-packages/", "dist-packages/"):
        if folder in file:
            return file.rpartition(folder)[2]
    return os.sep.join(Path(file).parts[-2:])


def find_causes(
    rows: Sequence[AtlasRow], findings: dict[str, list[Finding]], earlier: Iterable[RootCause] = ()
) -> tuple[RootCause, ...]:
    """The root causes, those first whose fix lets most models pass what was asked. `findings` by model; `earlier` are
    those of the atlases from which rows are kept."""
    shown = {
        identity_of(finding, model=model): RootCause(
            identity=identity_of(finding, model=model),
            kind=str(finding.kind),
            exception=first_line(finding.exception.message, 300),
            source=_source(finding).strip()[:300],
        )
        for model, found in findings.items()
        for finding in reversed(found)  # the first of each identity stays
    }
    shown = {cause.identity: cause for cause in earlier} | shown
    models: defaultdict[str, set[str]] = defaultdict(set)
    places: defaultdict[str, set[str]] = defaultdict(set)
    cures: defaultdict[str, Counter[str]] = defaultdict(Counter)
    unlocks: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        causes = {identity for cell in row.cells for identity in cell.failures}
        for cell in row.cells:
            for identity in cell.failures:
                models[identity].add(row.name)
                if cell.cure:
                    cures[identity][" + ".join(cell.cure)] += 1
            if cell.failures and cell.place:
                places[cell.failures[0]].add(cell.place)
        if len(causes) == 1 and not any(cell.verdict == "no_verdict" for cell in row.cells):
            unlocks[next(iter(causes))].add(row.name)
    found_causes = [
        msgspec.structs.replace(
            shown[identity],
            places=tuple(sorted(places[identity])),
            models=tuple(sorted(having)),
            unlocks=tuple(sorted(unlocks[identity])),
            cures=dict(cures[identity].most_common()),
        )
        for identity, having in models.items()
        if identity in shown
    ]
    return tuple(sorted(found_causes, key=lambda one: (-len(one.unlocks), -len(one.models), one.identity)))


# --- shares


def count_shares(
    rows: Sequence[AtlasRow], sizes: Sequence[Sizes], to: str, *, of: int, also: tuple[Also, ...] = ()
) -> tuple[StageShare, ...]:
    """How many models pass each stage. Of `of` models, those asked are in `rows`.

    One counts as tried if each part that was reached has a verdict there.
    """
    shares = []
    for size in sizes:
        for stage in (*STAGES[to], *also):
            verdicts = [
                {
                    ("fails" if cell.soundness == "unsound" else cell.verdict, bool(cell.cut_off))
                    for cell in row.cells
                    if (cell.sizes, cell.stage) == (size, stage)
                }
                for row in rows
            ]
            tried = [found for found in verdicts if found and {verdict for verdict, _ in found} <= TRIED]
            ended = [{verdict for verdict, _ in found} for found in tried if not any(cut_off for _, cut_off in found)]
            shares.append(
                StageShare(
                    sizes=size,
                    stage=stage,
                    of=of,
                    tried=len(tried),
                    ended=len(ended),
                    as_is=sum(1 for found in tried if {verdict for verdict, _ in found} == {"passes"}),
                    with_shims=sum(1 for found in ended if "fails" not in found),
                )
            )
    return tuple(shares)
