"""A lane: the interpreter of this environment with other versions of some packages put before its own, or an own torch.

Lanes lie in the cache folder and are never changed once they are made. A name holds a digest of the environment that a
lane was made for: where that has changed, another lane is made.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Literal

import msgspec
from packaging.utils import canonicalize_name

from exportdoctor.core.codec import decode, encode
from exportdoctor.core.errors import ExportdoctorError, UsageError
from exportdoctor.core.versions import installed_version, installed_versions
from exportdoctor.store.digest import surroundings
from exportdoctor.store.places import cache_home

RECORD = "lane.json"
FAILED = ".failed.json"
DRAFT = ".making-"
_MOST_NAMED, _LONGEST_NAME = 6, 100
_BESIDE_TORCH = ("transformers", "onnx", "onnxscript", "onnxruntime")
LaneState = Literal["ready", "failed", "damaged", "elsewhere"]


class LaneSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The versions wanted, by package; empty = the environment itself. With torch it is one of its own.

    `exact`: these and nothing that they need, as where a whole environment is named.
    """

    packages: dict[str, str] = {}
    exact: bool = False

    @property
    def title(self) -> str:
        """The packages and their versions; of the environment itself what it has."""
        wanted = self.packages or {name: installed_version(name) for name in ("torch", "transformers")}
        named = [f"{name} {version}" for name, version in wanted.items() if version]
        return ", ".join(named if len(named) <= _MOST_NAMED else [*named[:_MOST_NAMED], f"{len(named)} in all"])

    @property
    def name(self) -> str:
        """What the lane's folder is called."""
        readable = "-".join(f"{name}{version}" for name, version in sorted(self.packages.items()))[:_LONGEST_NAME]
        around = surroundings()
        made_for = [sys.prefix, around["python"], around["distributions"], sorted(self.packages.items())]
        made_for += ["exact"] if self.exact else []
        return f"{readable}-{hashlib.sha256(encode(made_for)).hexdigest()[:8]}"

    @property
    def requirements(self) -> list[str]:
        """As pip takes them. Another torch gets what a scan and a translation use, in the versions that are here."""
        own = "torch" in self.packages and not self.exact
        beside = installed_versions(_BESIDE_TORCH) if own else {}
        return [f"{name}=={version}" for name, version in {**beside, **self.packages}.items()]


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """A lane that was made, or could not be: `reason`, in the installer's own words.

    `prefix`: the environment that it was made for, `pins` what was installed into it, `made_at` in seconds since the
    epoch, `size` in bytes.
    """

    name: str
    spec: LaneSpec
    prefix: str
    pins: tuple[str, ...] = ()
    made_at: float = 0.0
    size: int = 0
    reason: str = ""

    @property
    def folder(self) -> Path:
        """Where it is."""
        return lanes_root() / self.name

    @property
    def state(self) -> LaneState:
        """`elsewhere`: made for another environment, or for this one before it was changed; `damaged`: what was
        installed is not all there any more."""
        if self.reason:
            return "failed"
        if not self.is_whole:
            return "damaged"
        return "ready" if self.name == self.spec.name else "elsewhere"

    @property
    def is_whole(self) -> bool:
        """Whether the packages that were installed are there, in their versions."""
        folder = self.packages_folder
        if folder is None:
            return True
        found = {canonicalize_name(one.name): one.version for one in distributions(path=[str(folder)])}
        wanted = (pin.partition("==") for pin in self.pins)
        held = all(is_same_release(found.get(canonicalize_name(name)), version) for name, _, version in wanted)
        return held and Path(self.python).exists()

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.folder / "env" / "bin" / "python") if "torch" in self.spec.packages else sys.executable

    @property
    def packages_folder(self) -> Path | None:
        """Where the packages lie in which it differs from this environment; None for the environment itself."""
        if not self.spec.packages:
            return None
        found = self.folder.glob("env/lib/python*/site-packages") if "torch" in self.spec.packages else ()
        return next(iter(found), self.folder / "site-packages")

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables with which its interpreter sees it."""
        if not self.spec.packages or "torch" in self.spec.packages:
            return {}
        users = os.environ.get("PYTHONPATH", "")
        return {"PYTHONPATH": os.pathsep.join(filter(None, (str(self.folder / "site-packages"), users)))}


def here() -> Lane:
    """The environment itself, as a lane."""
    return Lane(name="here", spec=LaneSpec(), prefix=sys.prefix)


def lanes_root() -> Path:
    """The folder of all lanes."""
    return cache_home() / "lanes"


def list_lanes() -> list[Lane]:
    """Those that were made or tried, by name; what cannot be read is left out."""
    root = lanes_root()
    found = (read_lane(file) for file in (*root.glob(f"[!.]*/{RECORD}"), *root.glob(f"*{FAILED}")))
    return sorted((lane for lane in found if lane is not None), key=lambda lane: lane.name)


def read_lane(file: Path) -> Lane | None:
    """The record in a file, if there is one."""
    try:
        lane: Lane = decode(file.read_bytes(), Lane)
    except (OSError, ExportdoctorError):
        return None
    return lane


def spec_of(given: Mapping[str, str]) -> LaneSpec:
    """The versions by package as a user gives them, without those that are here: another torch is an environment.

    Raises UsageError for what is no name or no version.
    """
    for name, version in given.items():
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
            raise UsageError(f"{name!r} is no package", hint="For example transformers=4.57.1")
        if not re.fullmatch(r"\d[\w.!+-]*", version):
            raise UsageError(f"{name}={version} is no package with a version", hint="For example transformers=4.57.1")
    named = {name.lower().replace("_", "-"): version for name, version in sorted(given.items())}
    return LaneSpec(packages={name: version for name, version in named.items() if not _is_here(name, version)})


def _is_here(name: str, version: str) -> bool:
    return is_same_release(installed_version(name), version)


def is_same_release(found: str | None, version: str) -> bool:
    """Whether that is the version, or a build of it."""
    return found is not None and version in (found, found.partition("+")[0])


def size_of(folder: Path) -> int:
    """Bytes of the files below it; a file with several names counts once."""
    sizes: dict[int, int] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            found = os.lstat(os.path.join(place, name))
            sizes[found.st_ino] = found.st_size
    return sum(sizes.values())
