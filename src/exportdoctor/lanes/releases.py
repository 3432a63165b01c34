"""The releases of a package: those of the package index, or offline those that are there."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress

from packaging.version import InvalidVersion, Version

from exportdoctor.core.errors import UsageError
from exportdoctor.core.versions import SUPPORTED_VERSIONS, installed_version, is_in_range
from exportdoctor.lanes.lane import list_lanes
from exportdoctor.process.group import die_with_parent


def list_releases(package: str) -> tuple[tuple[str, ...], bool]:
    """The releases for this Python, oldest first, without pre-releases; and whether an index was reached.

    Offline they are the installed one and those of lanes. Raises UsageError where there is none.
    """
    said = re.search(r"^Available versions: (.+)$", _ask_index(package), re.M)
    found = set(said[1].split(", ")) if said else {installed_version(package)} - {""}
    if not said:
        found |= {lane.spec.packages.get(package, "") for lane in list_lanes() if lane.state == "ready"} - {""}
    if not found:
        raise UsageError(f"no index that can be reached has {package}, and no lane has it")
    return tuple(sorted(filter(_is_release, found), key=Version)), bool(said)


def releases_between(
    package: str, releases: tuple[str, ...], first: str, last: str, *, online: bool = True
) -> tuple[str, ...]:
    """Those from `first` to `last`; empty = the oldest that exportdoctor takes, and the newest. Raises UsageError.

    `online`: an index was reached, so that there are no others.
    """
    for wanted in filter(None, (first, last)):
        if not any(_is_same(wanted, one) for one in releases):
            if not online:
                raise UsageError(f"no index can be reached, and no lane has {package} {wanted}")
            raise UsageError(f"there is no {package} {wanted} for this Python", hint=near_versions(wanted, releases))
    bounds = (Version(first) if first else None, Version(last) if last else None)
    found = tuple(
        one
        for one in releases
        if (Version(one) >= bounds[0] if bounds[0] else is_in_range(one, SUPPORTED_VERSIONS.get(package, ">=0")))
        and (bounds[1] is None or Version(one) <= bounds[1])
    )
    if len(found) < 2:
        raise UsageError(
            f"there are no two releases of {package} from {first or 'the oldest'} to {last or 'the newest'}"
        )
    return found


def near_versions(wanted: str, there: Sequence[str]) -> str:
    """A sentence with the versions before and after the one that is wanted; the newest where that is no version."""
    known: list[Version] = []
    for one in there:
        with suppress(InvalidVersion):
            known.append(Version(one))
    known.sort()
    try:
        place = bisect_left(known, Version(wanted))
    except InvalidVersion:
        place = len(known)
    near = known[max(place - 1, 0) : place + 1]
    return f"The nearest {'is' if len(near) == 1 else 'are'} {' and '.join(map(str, near))}"


def newest_release(package: str) -> str:
    """The newest; empty if none can be found."""
    try:
        return list_releases(package)[0][-1]
    except UsageError:
        return ""


def _is_same(one: str, other: str) -> bool:
    """Whether they are one version, however many zeros end it."""
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return False


def _is_release(text: str) -> bool:
    try:
        return not Version(text).is_prerelease
    except InvalidVersion:
        return False


def _ask_index(package: str) -> str:
    """What pip prints about the package; empty where there is no pip or no index."""
    uv = shutil.which("uv")
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip"]
    elif uv:
        command = [uv, "tool", "run", "--python", sys.executable, "pip"]
    else:
        return ""
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "--retries", "1", "index", "versions", package],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=die_with_parent,
    )
    return done.stdout if done.returncode == 0 else ""
