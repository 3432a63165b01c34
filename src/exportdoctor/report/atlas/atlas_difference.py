"""What changed between two atlases, cell by cell. A cell is named by model, part, sizes and stage."""

from __future__ import annotations

from collections.abc import Sequence

from exportdoctor.core.run.atlas import AtlasCell, AtlasChange, AtlasDifference, AtlasRow
from exportdoctor.report.changes import find_changes

Named = dict[str, str]


def compare_atlases(
    earlier: Sequence[AtlasRow],
    rows: Sequence[AtlasRow],
    *,
    name: str,
    environment: tuple[Named, Named],
) -> AtlasDifference:
    """The differences of the models that both have; the others are named. `environment` = earlier and now."""
    old, new = {row.name: row for row in earlier}, {row.name: row for row in rows}
    both = [model for model in new if model in old]
    before = {key: told for model in both for key, told in _tell_cells(old[model]).items()}
    after = {key: told for model in both for key, told in _tell_cells(new[model]).items()}
    changes = find_changes(AtlasChange, before, after)
    return AtlasDifference(
        earlier=name,
        environment=find_changes(AtlasChange, *environment),
        cells=changes,
        models_gone=tuple(sorted(old.keys() - new.keys())),
        models_new=tuple(sorted(new.keys() - old.keys())),
        same=len(before.keys() | after.keys()) - len(changes),
    )


def _tell_cells(row: AtlasRow) -> Named:
    return {f"{row.name} {' '.join(filter(None, cell.column))}": _tell(cell) for cell in row.cells}


def _tell(cell: AtlasCell) -> str:
    """The verdict with what decides it: the cure and its soundness, or the failures."""
    match cell.verdict:
        case "cured":
            return f"cured by {' + '.join(cell.cure)} ({cell.soundness})"
        case "fails":
            return f"fails {' '.join(cell.failures)}".strip()
        case _:
            return cell.verdict
