"""Makes lanes. A lane is made in a draft folder and gets its name when it is whole; a lock lets one process make it."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from exportdoctor.core.codec import encode
from exportdoctor.core.errors import StoreError
from exportdoctor.core.versions import installed_version
from exportdoctor.lanes.installer import InstallError, find_changes, install_environment, install_overlay
from exportdoctor.lanes.lane import (
    DRAFT,
    FAILED,
    RECORD,
    Lane,
    LaneSpec,
    LaneState,
    here,
    lanes_root,
    list_lanes,
    read_lane,
    size_of,
)
from exportdoctor.store.atomic_write import make_folder, refusal, replace_file

_tried: set[str] = set()
"""Names of lanes that this process tried to make: one that failed is not tried twice."""


def make_lane(spec: LaneSpec, tell: Callable[[str], None]) -> Lane:
    """The lane of these versions, made now if it is not there yet. One that could not be made has a `reason`.

    What failed in another process is tried again: a network or a disk may be there now. Raises StoreError where the
    cache folder cannot be written.
    """
    if not spec.packages:
        return here()
    root, name = lanes_root(), spec.name
    make_folder(root)
    with _hold(root / f"{name}.lock", tell):
        if (found := read_lane(root / name / RECORD)) is not None:
            if found.is_whole:
                return found
            tell(f"the lane {spec.title} is damaged, and is made again")
            shutil.rmtree(root / name, ignore_errors=True)
        failed = root / f"{name}{FAILED}"
        if name in _tried and (found := read_lane(failed)) is not None:
            return found
        _tried.add(name)
        tell(f"making the lane {spec.title}")
        draft = root / f"{DRAFT}{name}"
        shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
        lane = Lane(name=name, spec=spec, prefix=sys.prefix, made_at=time.time())
        try:
            lane = msgspec.structs.replace(lane, pins=_fill(draft, spec))
            lane = msgspec.structs.replace(lane, size=size_of(draft))
            (draft / RECORD).write_bytes(encode(lane))
            draft.rename(root / name)
            failed.unlink(missing_ok=True)
        except InstallError as error:
            lane = msgspec.structs.replace(lane, reason=error.line())
        except OSError as error:
            raise refusal(draft, error) from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        if lane.reason:
            with suppress(StoreError):
                replace_file(failed, encode(lane))
    return lane


def prune_lanes(*, everything: bool) -> list[tuple[LaneState, Lane]]:
    """Delete lanes that failed, are damaged or were made for another environment, or all; and drafts that nobody works
    on. Returns the lanes that are gone, each with the state that it was in."""
    gone = [(state, lane) for lane in list_lanes() if (state := lane.state) != "ready" or everything]
    for _, lane in gone:
        with _hold(lanes_root() / f"{lane.name}.lock", lambda _: None):
            shutil.rmtree(lane.folder, ignore_errors=True)
            (lanes_root() / f"{lane.name}{FAILED}").unlink(missing_ok=True)
    if everything:
        for kept in (".answers", ".runs"):
            shutil.rmtree(lanes_root() / kept, ignore_errors=True)
    for draft in lanes_root().glob(f"{DRAFT}*"):
        with _hold(lanes_root() / f"{draft.name.removeprefix(DRAFT)}.lock", lambda _: None, wait=False) as held:
            if held:
                shutil.rmtree(draft, ignore_errors=True)
    return gone


def _fill(draft: Path, spec: LaneSpec) -> tuple[str, ...]:
    """Install what the lane holds; returns what that is."""
    draft.mkdir()
    if "torch" in spec.packages:
        install_environment(spec.requirements, draft / "env")
        return tuple(spec.requirements)
    if spec.exact:
        pins = tuple(f"{name}=={one}" for name, one in spec.packages.items() if installed_version(name) != one)
    else:
        pins = find_changes(spec.requirements)
    if any(pin.startswith("torch==") for pin in pins):
        raise InstallError(f"{spec.title} needs another torch", hint="Give that with --torch")
    if pins:
        install_overlay(pins, draft / "site-packages")
    return pins


@contextmanager
def _hold(path: Path, tell: Callable[[str], None], *, wait: bool = True) -> Iterator[bool]:
    """Whether the lock is held; with `wait` it is, in the end."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if not wait:
            yield False
            return
        tell("another process is making this lane; waiting for it")
        lock.acquire()
    try:
        yield True
    finally:
        lock.release()
