"""Reads which versions an environment has from a requirements file, a `pip freeze` or a lock file.

Of a lock file those rows count that are for this Python and this platform. What no index gives (a project's own
folder, a URL, a package without a wheel for this Python) is left out, and said.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, sys_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from exportdoctor.core.errors import UsageError
from exportdoctor.core.read_file import read_file

_OPTION = re.compile(r"--[\w-]+|-\w")
_INCLUDED = ("-r", "--requirement")
_CONSTRAINED = ("-c", "--constraint")
_EDITABLE = ("-e", "--editable")
_NO_INDEX = ("virtual", "editable", "directory", "path", "git", "url", "file", "vcs", "archive")
"""Kinds of sources in lock files: uv's, Poetry's and those of pylock.toml (PEP 751)."""


@dataclass(frozen=True)
class Environment:
    """Versions by package, and what of a file is not among them, in sentences."""

    versions: Mapping[str, str]
    left_out: tuple[str, ...] = ()


@dataclass
class _Pins:
    """What was read until now. `constraints` hold for packages that are named without a version."""

    versions: dict[str, str] = field(default_factory=dict)
    constraints: dict[str, str] = field(default_factory=dict)
    unpinned: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    files: set[Path] = field(default_factory=set)

    def add(self, name: str, version: str) -> None:
        """A pin; another one of the same package leaves it as it is."""
        if self.versions.setdefault(name, version) != version:
            self.left_out.append(f"{name} is pinned twice; {self.versions[name]} is taken, {version} is not")

    def finish(self) -> Environment:
        for name, said in self.unpinned.items():
            if name in self.constraints:
                self.versions.setdefault(name, self.constraints[name])
            elif name not in self.versions:
                self.left_out.append(f"{said} names no version and is left out")
        return Environment(self.versions, tuple(dict.fromkeys(self.left_out)))


def read_environment_file(file: Path) -> Environment:
    """Raises UsageError for what cannot be read, or pins nothing."""
    text, pins = _read(file), _Pins()
    if (rows := _rows_of_lock(text)) is not None:
        _add_rows(rows, pins)
    else:
        _add_requirements(file, text, pins)
    found = pins.finish()
    if not found.versions:
        said = f" ({found.left_out[0]})" if found.left_out else ""
        raise UsageError(f"{file} pins no package{said}", hint="It should have lines such as transformers==4.57.1")
    return found


def _read(file: Path) -> str:
    try:
        return read_file(file).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"{file} cannot be read: {said}", hint="Give a lock file, a pip freeze or a lane") from error


def _add_requirements(file: Path, text: str, pins: _Pins) -> None:
    if (whole := file.resolve()) in pins.files:
        return
    pins.files.add(whole)
    for line in _logical_lines(text):
        option = _OPTION.match(line)
        if option is None:
            _add_requirement(line, pins)
            continue
        value = line[option.end() :].lstrip(" =").strip()
        if option[0] in _INCLUDED:
            _add_requirements(file.parent / value, _read(file.parent / value), pins)
        elif option[0] in _CONSTRAINED:
            constrained = _Pins(files=set(pins.files))
            _add_requirements(file.parent / value, _read(file.parent / value), constrained)
            pins.constraints.update(constrained.versions)
        elif option[0] in _EDITABLE:
            pins.left_out.append(f"{value} comes from no index and is left out")


def _logical_lines(text: str) -> Iterator[str]:
    """As pip reads them: without comments, continued lines joined."""
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        if bare := re.sub(r"(^|\s)#.*$", "", line).strip():
            yield bare


def _add_requirement(line: str, pins: _Pins) -> None:
    said = re.split(r"\s--\w", line, maxsplit=1)[0].strip()  # --hash and such are about the files
    try:
        requirement = Requirement(said)
    except InvalidRequirement:
        pins.left_out.append(f"{said!r} is no requirement with a version and is left out")
        return
    if not _holds(str(requirement.marker or "")):
        return
    name = canonicalize_name(requirement.name)
    if requirement.url is not None:
        pins.left_out.append(f"{name} comes from no index ({requirement.url}) and is left out")
        return
    exact = [one.version for one in requirement.specifier if one.operator in ("==", "===")]
    if exact and not exact[0].endswith(".*"):
        pins.add(name, exact[0])
    else:
        pins.unpinned.setdefault(name, said)


def _rows_of_lock(text: str) -> list[dict[str, Any]] | None:
    """The tables with name and version of uv.lock, poetry.lock and pylock.toml; None where it is none of them."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
    tables = content.get("package") or content.get("packages")
    rows = [one for one in (tables if isinstance(tables, list) else []) if isinstance(one, dict)]
    return [one for one in rows if isinstance(one.get("name"), str)] or None


def _add_rows(rows: list[dict[str, Any]], pins: _Pins) -> None:
    for row in filter(_is_for_here, rows):
        name, version = canonicalize_name(row["name"]), row.get("version")
        if _kind_of_source(row) in _NO_INDEX:
            pins.left_out.append(f"{name} comes from no index and is left out")
        elif not isinstance(version, str):
            pins.left_out.append(f"{name} has no version and is left out")
        elif not _has_wheel(row):
            pins.left_out.append(f"{name} {version} has no wheel for this Python and is left out")
        else:
            pins.add(name, version)


def _is_for_here(row: Mapping[str, Any]) -> bool:
    """By its markers, of which uv has a list for the forks of a resolution, and Poetry may have one for each group."""
    forks = row.get("resolution-markers")
    single = row.get("marker", row.get("markers"))
    choices = forks if isinstance(forks, list) else list(single.values()) if isinstance(single, dict) else [single]
    return any(_holds(one) for one in choices) if choices else True


def _holds(marker: object) -> bool:
    if not isinstance(marker, str) or not marker:
        return True
    try:
        return Marker(marker).evaluate({"extra": ""})
    except (ValueError, KeyError):  # no marker, or one of a name that is not known here, as `dependency_groups`
        return True


def _kind_of_source(row: Mapping[str, Any]) -> str:
    """`registry` and the like, or one of those that no index gives."""
    source = row.get("source")
    given: Set[str] = set(source) | {str(source.get("type"))} if isinstance(source, dict) else set()
    if isinstance(source, dict) and source.get("type") == "legacy":  # Poetry's name of an index with a URL
        return "registry"
    kinds = [kind for kind in _NO_INDEX if kind in given or isinstance(row.get(kind), dict)]
    return kinds[0] if kinds and "registry" not in given else "registry"


def _has_wheel(row: Mapping[str, Any]) -> bool:
    """Whether one of the files that it lists, if any, is a wheel that can be installed here."""
    wheels, listed = row.get("wheels"), row.get("files")
    entries = [*(wheels if isinstance(wheels, list) else ()), *(listed if isinstance(listed, list) else ())]
    names = [_file_name(one) for one in entries if isinstance(one, dict)]
    if not names and not isinstance(row.get("sdist"), dict):
        return True  # it lists none
    return any(_fits(name) for name in names)


def _file_name(entry: Mapping[str, Any]) -> str:
    given = entry.get("file") or entry.get("name") or entry.get("filename") or entry.get("url") or entry.get("path")
    return PurePosixPath(unquote(urlsplit(str(given)).path)).name


def _fits(name: str) -> bool:
    try:
        return not parse_wheel_filename(name)[3].isdisjoint(_tags_here())
    except InvalidWheelFilename:
        return False


@cache
def _tags_here() -> frozenset[Tag]:
    return frozenset(sys_tags())
