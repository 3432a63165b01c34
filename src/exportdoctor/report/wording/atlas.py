"""The sentences of an atlas and of a sweep's progress."""

from __future__ import annotations

import time
from statistics import median

from exportdoctor.core.run.atlas import Atlas, AtlasCell, AtlasChange, AtlasDifference, RootCause, StageShare
from exportdoctor.report.wording.formatting import count, duration

VERDICT_WORDS = {
    "passes": "passes",
    "cured": "cured",
    "fails": "fails",
    "not_asked": "not asked",
    "no_verdict": "no verdict",
}
VERDICT_SYMBOLS = {"passes": "✓", "cured": "✚", "fails": "✗", "not_asked": "·", "no_verdict": "?"}
SHARES_HEADER = ("stage", "models", "with a verdict", "pass as they are", "of all", "of those", "also with shims",
                 "of all", "of those whose search ended")  # fmt: skip
CAUSES_HEADER = ("#", "one fix unlocks", "fail so", "root cause", "where", "cured by")
CELLS_HEADER = ("model", "part", "stage", "verdict", "failure", "line", "cure", "s", "MiB", "asked", "command")
NOTES_HEADER = ("model", "note")
NOT_ASKED_CURED = "shims cure the export; this stage was not asked with them"
UNLOCK_NOTE = (
    "A model counts as unlocked if it shows no other failure; another one may hide behind it. Failures are one if "
    "kind, exception, normalised message and line of code are equal, whatever the model or file. A failure that shims "
    "cure counts, too."
)


def atlas_title(atlas: Atlas) -> str:
    """The heading."""
    versions = [f"{name} {atlas.environment[name]}" for name in ("torch", "transformers") if name in atlas.environment]
    return f"Atlas of {count(len(atlas.rows), 'model')}: {', '.join(versions) or 'unknown versions'}"


def atlas_lines(atlas: Atlas) -> list[str]:
    """What the atlas is: date, sample, completeness, versions, command."""
    lines = [f"Made {day(atlas.at)} by exportdoctor {atlas.environment.get('exportdoctor', '(version unknown)')}."]
    if atlas.sample is not None:
        drawn = atlas.sample
        lines.append(
            f"A sample: {drawn.drawn} of {drawn.of} targets, drawn with seed {drawn.seed}. "
            "The percentages are of the sample."
        )
    kept = sorted(row.at for row in atlas.rows if row.kept)
    if kept:
        days = " to ".join(dict.fromkeys((day(kept[0]), day(kept[-1]))))
        lines.append(f"{count(len(kept), 'row')} of earlier sweeps, asked {days}, by exportdoctor as it was then.")
    lines += [
        f"{count(number, 'model')} {how}."
        for how, number in (
            (
                "asked with few layers and the widths of the configuration",
                sum(bool(row.few_layers) for row in atlas.rows),
            ),
            ("asked by one attempt for each part (--no-search)", _asked_with(atlas, "--no-search")),
            (
                "asked without a search for cures, which also compares numbers (--no-cure)",
                _asked_with(atlas, "--no-cure"),
            ),
        )
        if number
    ]
    lines += _cost_lines(atlas)
    if not atlas.complete:
        lines.append("Not complete: targets without an answer are not shown, but count among all.")
    versions = ", ".join(f"{name} {version}" for name, version in sorted(atlas.environment.items()))
    return [*lines, f"Versions: {versions}.", f"Command: {atlas.command}"]


def _cost_lines(atlas: Atlas) -> list[str]:
    """What the runs of this sweep took; nothing of rows of earlier ones, which other code asked."""
    asked = [row for row in atlas.rows if row.seconds and not row.kept]
    if not asked:
        return []
    longest = max(asked, key=lambda row: row.seconds)
    memory, largest = max(((cell.memory_mb, row.name) for row in asked for cell in row.cells), default=(0.0, ""))
    return [
        f"The runs of {count(len(asked), 'model')} took {duration(sum(row.seconds for row in asked))} together: "
        f"{duration(median(row.seconds for row in asked))} in the median, {duration(longest.seconds)} at most "
        f"({longest.name}). A run took up to {memory:.0f} MiB of memory ({largest})."
    ]


def _asked_with(atlas: Atlas, word: str) -> int:
    return sum(any(word in cell.command.split() for cell in row.cells) for row in atlas.rows)


def day(at: float) -> str:
    """A date, in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(at))


def stage_name(sizes: str, stage: str) -> str:
    """A column's name."""
    return f"{stage}, {sizes}"


def share_cells(share: StageShare) -> tuple[str, ...]:
    """A row of the table of stages."""
    numbers = [str(share.of), str(share.tried)]
    for passing, tried in ((share.as_is, share.tried), (share.with_shims, share.ended)):
        numbers += [str(passing), percent(passing, share.of), percent(passing, tried)]
    return stage_name(share.sizes, share.stage), *numbers


def percent(part: int, whole: int) -> str:
    """`12 %`; a dash of nothing."""
    return f"{100 * part / whole:.0f} %" if whole else "–"


def cause_cells(number: int, cause: RootCause) -> tuple[str, ...]:
    """A row of the table of root causes."""
    what = f"{cause.kind} {cause.identity}: {cause.exception}"
    return (
        str(number),
        str(len(cause.unlocks)),
        str(len(cause.models)),
        f"{what} — {cause.source}" if cause.source else what,
        some(cause.places, 3),
        some([f"{shims} ({number})" for shims, number in cause.cures.items()], 3),
    )


def some(names: tuple[str, ...] | list[str], most: int) -> str:
    """The first few of them, and how many more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def cell_verdict(cell: AtlasCell) -> str:
    """A verdict with its symbol."""
    return f"{VERDICT_SYMBOLS[cell.verdict]} {VERDICT_WORDS[cell.verdict]}"


def cell_failure(cell: AtlasCell) -> str:
    """The failure in a few words, or what is missing."""
    if cell.why:
        return cell.why
    return f"{cell.kind} {' '.join(cell.failures)}: {cell.exception}" if cell.kind else ""


def cell_line(cell: AtlasCell) -> str:
    """Where it fails, with the line's source."""
    return ": ".join(filter(None, (cell.place, cell.source)))


def cell_cure(cell: AtlasCell) -> str:
    """The shims and their soundness, or why the search for them did not end."""
    if cell.cut_off and cell.verdict == "fails":
        return f"the search for shims was cut off: {cell.cut_off}"
    return f"{' + '.join(cell.cure)} ({cell.soundness})" if cell.cure else ""


def change_line(change: AtlasChange) -> str:
    """`what: before → after`."""
    return f"{change.what}: {change.before or 'missing'} → {change.after or 'missing'}"


def difference_lines(found: AtlasDifference, *, most: int | None = None) -> list[str]:
    """What changed, `most` cells and versions one by one; the models that came and went, and what is as before."""
    lines = [change_line(change) for change in (*found.environment, *found.cells)]
    if most is not None and len(lines) > most:
        lines = [*lines[:most], f"and {len(lines) - most} more"]
    lines += [f"new: {', '.join(found.models_new)}"] if found.models_new else []
    lines += [f"gone: {', '.join(found.models_gone)}"] if found.models_gone else []
    return [*lines, f"{count(found.same, 'cell')} as before"]


def few_layers_note(few: str) -> str:
    """That a row holds for fewer layers; `few` says which."""
    return f"The model was asked with few layers and its own widths: {few}"


def sweep_progress(name: str, told: str, *, done: int, of: int, seconds: float) -> str:
    """A line for each target that is done."""
    left = f" · about {duration(seconds / done * (of - done))} left" if 0 < done < of else ""
    return f"{done}/{of}  {name}: {told}{left}"


def sweep_summary(atlas: Atlas) -> list[str]:
    """What a sweep prints at its end."""
    lines = [
        f"{stage_name(share.sizes, share.stage)}: {share.as_is} of {share.of} pass as they are "
        f"({percent(share.as_is, share.of)} of all, {percent(share.as_is, share.tried)} of {share.tried} tried), "
        f"{share.with_shims} also with shims ({percent(share.with_shims, share.of)}, "
        f"{percent(share.with_shims, share.ended)} of {share.ended} whose search ended)"
        for share in atlas.shares
    ]
    if (first := next(iter(atlas.causes), None)) is not None:
        lines.append(
            f"{count(len(atlas.causes), 'root cause')}; fixing {first.identity} ({first.kind}) would unlock "
            f"{count(len(first.unlocks), 'model')}"
        )
    return lines


def rows_left_out(number: int) -> str:
    """That the atlas before this one had more targets."""
    had = count(number, "target")
    return f"the atlas had {had} more, whose answers stay in the folder: name them too, and it has them again"
