"""Folds a part's module tree into rows of plain data, which the reports and the terminal interface draw.

`group_siblings` keeps the hierarchy and puts equal siblings in one row; `condense` also drops subtrees that pass.
Every called module is counted in exactly one row of each level.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from exportdoctor.core.run.report import FAILING, ModuleRecord, ModuleStatus, PartRecord

NOTABLE = FAILING | {"cured", "unknown"}
_SILENT = ("not_called", "not_asked")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One or more sibling submodules with one verdict.

    `names` are relative to the row above, `fqns` absolute, in the same order; `modules` counts what the row
    covers, descendants included; `equal`: the others were judged by equality with the first, not asked; `fixed`: all
    were asked at fixed sizes although the part has dynamic ones.
    """

    status: ModuleStatus
    names: tuple[str, ...]
    fqns: tuple[str, ...]
    class_name: str
    modules: int
    finding: str | None = None
    also: tuple[str, ...] = ()
    equal: bool = False
    note: str = ""
    fixed: bool = False
    children: tuple[Row, ...] = ()

    @property
    def notable(self) -> bool:
        """Whether it or something below it is more than a pass."""
        return self.status in NOTABLE or any(child.notable for child in self.children)

    def has_below(self, finding: str | None) -> bool:
        """Whether a row below has that finding: none has it where the culprit exports on its own."""
        return any(child.finding == finding or child.has_below(finding) for child in self.children)


@dataclass(frozen=True)
class _Node:
    """A module and the modules below it; list containers, which are never called, are left out."""

    record: ModuleRecord
    children: list[_Node]


def group_siblings(part: PartRecord) -> tuple[Row, ...]:
    """The part's whole tree, equal siblings in one row."""
    return _group([_row(node, above="") for node in _roots(part.modules)])


def condense(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """What a reader needs of `rows`: chains that lead to one failing row are joined, passing siblings share a row.

    Below a row whose children all pass nothing is shown; modules that have no verdict are left to `silent`.
    """
    shown = [part for row in rows for part in _join_chain(row) if part.notable or part.status not in _SILENT]
    failing = {(_container(row.names[0]), row.class_name) for row in shown if row.notable}
    kept = [row for row in shown if row.notable or (_container(row.names[0]), row.class_name) in failing]
    rest = [row for row in shown if row not in kept]
    return (*kept, _as_one(rest)) if rest else tuple(kept)


def silent(part: PartRecord, status: ModuleStatus) -> tuple[str, ...]:
    """The outermost modules with `status` not_called or not_asked, without what lies below them."""
    found: list[str] = []
    containers = _containers(part.modules)
    for module in part.modules:
        inside = found and (not found[-1] or module.fqn.startswith(f"{found[-1]}."))
        if module.status == status and module.fqn not in containers and not inside:
            found.append(module.fqn)
    return tuple(found)


def label(names: Iterable[str], *, most: int = 8) -> str:
    """Names in a few words: `blocks.0-6, 8-14`, `q_proj, k_proj`; after `most` pieces the names left are counted."""
    pieces = _pieces(tuple(names))
    if len(pieces) <= most:
        return ", ".join(text for text, _ in pieces)
    shown = ", ".join(text for text, _ in pieces[: most - 1])
    return f"{shown}, … {sum(number for _, number in pieces[most - 1 :])} more"


def _join_chain(row: Row) -> list[Row]:
    """The condensed row; the rows below it instead where it only leads to them."""
    children = condense(row.children)
    telling = [child for child in children if child.notable]
    told_below = row.finding is None or row.has_below(row.finding)
    leads_on = row.status in _SILENT or (
        row.status == "fails_child" and len(telling) == 1 and telling[0].status != "unknown" and told_below
    )
    if leads_on and len(row.names) == 1:
        return [replace(child, names=tuple(_join(row.names[0], name) for name in child.names)) for child in children]
    return [replace(row, children=children if telling else ())]


def _as_one(rows: list[Row]) -> Row:
    """Passing siblings in one row."""
    if len(rows) == 1:
        return replace(rows[0], children=())
    return Row(
        status="pass",
        names=tuple(name for row in rows for name in row.names),
        fqns=tuple(fqn for row in rows for fqn in row.fqns),
        class_name="",
        modules=sum(row.modules for row in rows),
        fixed=all(row.fixed for row in rows),
    )


def _roots(modules: tuple[ModuleRecord, ...]) -> list[_Node]:
    """The outermost modules, each with those below it."""
    containers = _containers(modules)
    roots: list[_Node] = []
    nodes: dict[str, _Node] = {}
    for module in modules:
        if module.fqn in containers:
            continue
        nodes[module.fqn] = node = _Node(module, [])
        above = _nearest(module.fqn, nodes)
        (nodes[above].children if above is not None else roots).append(node)
    return roots


def _containers(modules: tuple[ModuleRecord, ...]) -> set[str]:
    """Modules that are never called themselves but hold some that are: lists and dicts."""
    holding: set[str] = set()
    for module in modules:
        if module.status != "not_called":
            holding.update(_above(module.fqn))
    return {module.fqn for module in modules if module.status == "not_called" and module.fqn in holding}


def _above(fqn: str) -> list[str]:
    """The names of all modules that `fqn` lies in, nearest first; the outermost is the empty one."""
    parts = fqn.split(".") if fqn else []
    return [".".join(parts[:end]) for end in range(len(parts) - 1, -1, -1)]


def _nearest(fqn: str, nodes: dict[str, _Node]) -> str | None:
    return next((name for name in _above(fqn) if name in nodes), None)


def _row(node: _Node, *, above: str) -> Row:
    """A module's own row, with everything below it."""
    record = node.record
    children = _group([_row(child, above=record.fqn) for child in node.children])
    return Row(
        status=record.status,
        names=(record.fqn[len(above) :].lstrip("."),),
        fqns=(record.fqn,),
        class_name=record.class_name,
        modules=(record.status not in _SILENT) + sum(child.modules for child in children),
        finding=record.finding,
        also=record.also,
        equal=record.evidence == "equal",
        note=record.note,
        fixed=bool(record.at_fixed_sizes),
        children=children,
    )


def _group(rows: list[Row]) -> tuple[Row, ...]:
    """Siblings that look the same, all the way down, in one row each."""
    groups: dict[object, list[Row]] = {}
    for row in rows:
        groups.setdefault(_look(row), []).append(row)
    return tuple(_together(members) for members in groups.values())


def _look(row: Row) -> object:
    """A key: siblings with the same key share a row. A sibling with a name of its own joins only others that fail."""
    container = _container(row.names[0])
    own_name = None if container is not None or row.notable else row.names[0]
    return (container, own_name, *_verdict(row))


def _verdict(row: Row) -> tuple[object, ...]:
    children = tuple((child.names, *_verdict(child)) for child in row.children)
    return (row.class_name, row.status, row.finding, row.also, children)


def _together(members: list[Row]) -> Row:
    if len(members) == 1:
        return members[0]
    return replace(
        members[0],
        names=tuple(name for row in members for name in row.names),
        fqns=tuple(fqn for row in members for fqn in row.fqns),
        modules=sum(row.modules for row in members),
        equal=all(row.equal for row in members[1:]),
        fixed=all(row.fixed for row in members),
    )


def _container(name: str) -> str | None:
    """The list that a member is numbered in: `blocks` of `blocks.3`; None for a module with a name of its own."""
    above, _, last = name.rpartition(".")
    return above if last.isdigit() else None


def _join(above: str, name: str) -> str:
    return f"{above}.{name}" if above else name


def _pieces(names: tuple[str, ...]) -> list[tuple[str, int]]:
    """Names with the runs of numbers folded: `blocks.0-6`, then `8-14` without the list's name again; and how many."""
    pieces: list[tuple[str, int]] = []
    before: str | None = None
    for container, first, last in _runs(names):
        text = first if first == last else f"{first}-{last}"
        shown = text if container is None or container == before else _join(container, text)
        pieces.append((shown, 1 if container is None else int(last) - int(first) + 1))
        before = container
    return pieces


def _runs(names: tuple[str, ...]) -> list[tuple[str | None, str, str]]:
    """Neighbouring members of a list as (list, first number, last number); any other name as (None, name, name)."""
    runs: list[tuple[str | None, str, str]] = []
    for name in names:
        container = _container(name)
        number = name if container is None else name.rpartition(".")[2]
        if runs and container is not None and runs[-1][0] == container and int(number) == int(runs[-1][2]) + 1:
            runs[-1] = (container, runs[-1][1], number)
        else:
            runs.append((container, number, number))
    return runs
