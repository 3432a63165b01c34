"""Bundles definitions of exportdoctor's modules, with all of ours that they need, into text that needs no exportdoctor.

The source is copied as it is. Names are followed through our own imports; what comes from elsewhere stays an import.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from exportdoctor.core.errors import UsageError

_OURS = "exportdoctor"
Place = tuple[str, str]
"""(module, name at its top level)."""


@dataclass(frozen=True)
class Source:
    """A module's text and what its top level binds: a statement, or where a name is imported from."""

    text: str
    statements: dict[str, ast.stmt]
    imported: dict[str, tuple[str, str]]
    """Name here -> (module, name there); the name is empty for `import module`."""
    constants: frozenset[str]

    def lines(self, node: ast.stmt) -> tuple[int, list[str]]:
        """The number of a statement's first line, its decorators included, and its lines."""
        first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
        return first, self.text.splitlines()[first - 1 : node.end_lineno]


@lru_cache(maxsize=64)
def source_of(module: str, file: str = "") -> Source:
    """A module, found by its name or read from `file`."""
    path = Path(file) if file else _file_of(module)
    text = path.read_text(encoding="utf-8")
    statements: dict[str, ast.stmt] = {}
    imported: dict[str, tuple[str, str]] = {}
    constants: set[str] = set()
    for node in _top_level(ast.parse(text).body):
        match node:
            case ast.ImportFrom():
                imported.update((alias.asname or alias.name, (node.module or "", alias.name)) for alias in node.names)
            case ast.Import():
                imported.update((alias.asname or alias.name, (alias.name, "")) for alias in node.names)
            case ast.FunctionDef() | ast.ClassDef():
                statements[node.name] = node
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
                statements.update(dict.fromkeys(names, node))
                constants.update(names)
    return Source(text, statements, imported, frozenset(constants))


def _top_level(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements, those below `if TYPE_CHECKING` included: the carried module may import them for real."""
    return [node for one in body for node in (_top_level(one.body) if isinstance(one, ast.If) else [one])]


def _file_of(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.origin:
        raise UsageError(f"The source of {module} cannot be found", hint="Install exportdoctor with its sources")
    return Path(spec.origin)


@dataclass
class SourceBundler:
    """Collects definitions. `files` are modules that have no name to import them by; `reserved` names are not given."""

    files: dict[str, str] = field(default_factory=dict)
    reserved: frozenset[str] = frozenset()
    names: dict[Place, str] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    carried: set[tuple[str, int]] = field(default_factory=set)
    """The modules and lines of the statements in `parts`."""

    def add(self, module: str, name: str, *, called: str = "") -> str:
        """Carry a definition and what it needs; returns its name in the carried text, `called` if that is free."""
        place = self._find_origin(module, name)
        if place is None:
            return self._add_import(module, name)
        if place not in self.names:
            self.names[place] = self._free_name(place, called)  # before what it needs, which may need it
            statement = self._source(place[0]).statements[place[1]]
            if (place[0], statement.lineno) not in self.carried:  # it may bind several names
                self.carried.add((place[0], statement.lineno))
                self.parts.append(self.adapt(place[0], statement))
        return self.names[place]

    def adapt(self, module: str, node: ast.stmt, *, bound: frozenset[str] = frozenset()) -> str:
        """The statement's source with its names as they are called in the carried text, carrying what they mean.

        `bound` are names that mean something else there: what a nested function closed over.
        """
        source = self._source(module)
        first, lines = source.lines(node)
        renamed = self._renames(module, node, bound)
        dropped, local = _our_imports(node)
        for name, origin in local.items():
            called = self.add(*origin)
            renamed += [
                (one.lineno, one.col_offset, name, called) for one in _uses(node, {name}, bound) if called != name
            ]
        for line, column, old, new in sorted(set(renamed), reverse=True):
            row = line - first
            encoded = lines[row].encode()
            lines[row] = (encoded[:column] + new.encode() + encoded[column + len(old.encode()) :]).decode()
        kept = [text for row, text in enumerate(lines) if row + first not in dropped]
        return "\n".join(_without_double_blanks(kept))

    def _renames(self, module: str, node: ast.stmt, bound: frozenset[str]) -> list[tuple[int, int, str, str]]:
        source = self._source(module)
        known = source.statements.keys() | source.imported.keys()
        found = []
        for use in _uses(node, known, bound):
            called = self.add(module, use.id)
            if called != use.id:
                found.append((use.lineno, use.col_offset, use.id, called))
        own = getattr(node, "name", None)
        if own is not None and (module, own) in self.names and self.names[(module, own)] != own:
            word = "class " if isinstance(node, ast.ClassDef) else "def "
            column = node.col_offset + len(word)
            found.append((node.lineno, column, own, self.names[(module, own)]))
        return found

    def _find_origin(self, module: str, name: str) -> Place | None:
        """Where one of our names is defined; None for any other name."""
        source = self._source(module)
        if name in source.statements:
            return module, name
        origin = source.imported.get(name)
        if origin is None or origin[0].partition(".")[0] != _OURS or not origin[1]:
            return None
        return self._find_origin(*origin)

    def _source(self, module: str) -> Source:
        return source_of(module, self.files.get(module, ""))

    def _add_import(self, module: str, name: str) -> str:
        origin = self._source(module).imported[name]
        if self.imports.get(name, origin) != origin:
            raise UsageError(f"Two shims define {name} differently", hint="Leave one of them out")
        self.imports[name] = origin
        return name

    def _free_name(self, place: Place, called: str) -> str:
        """A free name for it: `called`, its own name, or its own with its module's."""
        taken = {*self.names.values(), *self.imports, *self.reserved}
        module, own = place
        if called and called not in taken:
            return called
        return own if own not in taken else f"{own}_of_{module.rpartition('.')[2]}"


def _uses(node: ast.AST, known: AbstractSet[str], bound: frozenset[str] = frozenset()) -> list[ast.Name]:
    """The uses of `known` top-level names in it, without those that a function binds itself."""
    found: list[ast.Name] = []

    def visit(one: ast.AST, bound: frozenset[str]) -> None:
        if isinstance(one, ast.FunctionDef | ast.Lambda):
            outer, inner = bound, bound | _bound_names(one)
            for part in (*getattr(one, "decorator_list", ()), *one.args.defaults, *filter(None, one.args.kw_defaults)):
                visit(part, outer)
            for argument in ast.walk(one.args):
                if isinstance(argument, ast.arg) and argument.annotation is not None:
                    visit(argument.annotation, outer)
            if getattr(one, "returns", None) is not None:
                visit(one.returns, outer)  # type: ignore[union-attr,arg-type]
            for part in one.body if isinstance(one.body, list) else [one.body]:
                visit(part, inner)
            return
        if isinstance(one, ast.Name) and one.id in known and one.id not in bound:
            found.append(one)
        for part in ast.iter_child_nodes(one):
            visit(part, bound)

    visit(node, bound)
    return found


def _bound_names(function: ast.FunctionDef | ast.Lambda) -> frozenset[str]:
    """The names that a function binds: its parameters, and all that it assigns, defines or imports."""
    names = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
    bodies = function.body if isinstance(function.body, list) else [function.body]
    for node in (inner for body in bodies for inner in ast.walk(body)):
        match node:
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.FunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Import() | ast.ImportFrom() if not _is_ours(node):
                names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    return frozenset(names)


def _is_ours(node: ast.Import | ast.ImportFrom) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == _OURS


def _our_imports(node: ast.AST) -> tuple[set[int], dict[str, Place]]:
    """The lines of imports of ours inside functions, which the carried text does without, and what they bind."""
    lines: set[int] = set()
    names: dict[str, Place] = {}
    for one in ast.walk(node):
        if isinstance(one, ast.ImportFrom) and _is_ours(one):
            lines.update(range(one.lineno, (one.end_lineno or one.lineno) + 1))
            names.update((alias.asname or alias.name, (one.module or "", alias.name)) for alias in one.names)
    return lines, names


def _without_double_blanks(lines: list[str]) -> list[str]:
    return [line for row, line in enumerate(lines) if line.strip() or (row and lines[row - 1].strip())]
