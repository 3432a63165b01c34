"""Node data for Google's Model Explorer: the verdicts of a scan on the nodes of an exported program.

Model Explorer names a node of a .pt2 file as its FX graph does. The names, with the submodule that made each, are read
from the file's JSON (`models/model.json`, torch.export's schema), without torch.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from exportdoctor.core.codec import pretty
from exportdoctor.core.errors import UsageError
from exportdoctor.core.run.report import ModuleRecord, PartRecord, Report
from exportdoctor.report import wording

_GRAPH = "graph"  # what Model Explorer calls the graph of an ExportedProgram
_COLOURS = {
    "pass": "#b7e1cd",
    "cured": "#fce8b2",
    "fails_child": "#fdeceb",
    "not_called": "#e8eaed",
    "not_asked": "#e8eaed",
}
_FAILS = "#f4c7c3"
_NAMED = 3  # submodules of another program
_CALL = re.compile(r"@\d+$")  # torch numbers a submodule's second and later calls


def render_overlay(report: Report, program: Path, *, part: str | None = None) -> str:
    """The verdicts of a part as node data for the graph of the program in `program`. A node of a submodule that the
    part does not have gets none.

    Raises UsageError where that is no exported program, or has no submodule of the part, or the report has several
    parts and none was chosen.
    """
    chosen = _choose(report, part)
    modules = {module.fqn: module for module in chosen.modules}
    root = chosen.modules[0].fqn if chosen.modules else ""
    paths = _nodes(_read_graph(program))
    nodes = [(name, f"{root}.{path}".strip(".") if path else root) for name, path in paths]
    others = dict.fromkeys(fqn for _, fqn in nodes if fqn not in modules)
    if others and not any(fqn in modules and fqn != root for _, fqn in nodes):
        named = ", ".join([*others][:_NAMED]) + (", …" if len(others) > _NAMED else "")
        raise UsageError(
            f"{program} is no program of part {chosen.name} of {report.run}: it has the submodules {named}, and none "
            "of the part's",
            hint="Give the program of what was scanned",
        )
    results = {}
    for name, fqn in nodes:
        record = modules.get(fqn)
        if record is not None:
            colour = _COLOURS.get(record.status, _FAILS)
            results[name] = {"value": _words(record, report), "bgColor": colour, "textColor": "#202124"}
    data = {"name": f"exportdoctor: {wording.plain(chosen.name)}", "results": results}
    return pretty({_GRAPH: data}).decode()


def _choose(report: Report, part: str | None) -> PartRecord:
    names = [one.name for one in report.parts]
    if not names:
        raise UsageError(f"{report.run} has no parts", hint=wording.cut_off_note(report) or "Scan again")
    if part is None and len(names) != 1:
        raise UsageError(f"{report.run} has {len(names)} parts", hint=f"Choose one with --part: {', '.join(names)}")
    found = next((one for one in report.parts if part in (None, one.name)), None)
    if found is None:
        raise UsageError(f"{report.run} has no part {part!r}", hint=f"Its parts: {', '.join(names)}")
    return found


def _read_graph(program: Path) -> Mapping[str, Any]:
    try:
        with zipfile.ZipFile(program) as archive:
            name = next(one for one in archive.namelist() if one.endswith("models/model.json"))
            graph: Mapping[str, Any] = json.loads(archive.read(name))["graph_module"]["graph"]
    except OSError as error:
        raise UsageError(f"{program} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, StopIteration, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{program} is no program of torch.export.save", hint="Give a .pt2 file") from error
    return graph


def _nodes(graph: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each node's name, and those of its outputs, with the path of the submodule that made it."""
    for node in graph.get("nodes", ()):
        stack = node.get("metadata", {}).get("nn_module_stack", "")
        pieces = [item.split(",") for item in stack.split(";") if item.count(",") >= 2]
        path = ".".join(_CALL.sub("", piece) for piece in pieces[-1][1].split(".")) if pieces else ""
        outputs = [one for output in node.get("outputs", ()) for one in _tensors(output)]
        yield from ((name, path) for name in dict.fromkeys(filter(None, (node.get("name"), *outputs))))


def _tensors(output: Mapping[str, Any]) -> list[str]:
    given = output.get("as_tensors") or [output.get("as_tensor")]
    return [one["name"] for one in given if isinstance(one, Mapping) and "name" in one]


def _words(record: ModuleRecord, report: Report) -> str:
    """The verdict, and the findings with their kinds where there are some."""
    found = [one for one in report.findings if one.id in (record.finding, *record.also)]
    words = wording.STATUS_WORDS[record.status]
    named = ", ".join(f"{one.id} {one.kind.replace('_', ' ')}" for one in found)
    return wording.plain(f"{words}: {named}" if found else words)
