"""What a sweep asks: targets as typed, from a list, or the model types of the installed transformers."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from exportdoctor.core.codec import encode
from exportdoctor.core.errors import ExportdoctorError, UsageError, WorkerLost
from exportdoctor.core.protocol.model_types import ModelTypes, ModelTypesReply, ModelTypesRequest
from exportdoctor.core.records.target import TargetRef
from exportdoctor.core.run.atlas import Also, SampleFact, Sizes
from exportdoctor.process.client import spawn
from exportdoctor.store.digest import surroundings
from exportdoctor.store.places import slug
from exportdoctor.sweep.target_task import HASH_SEED, SweepTask
from exportdoctor.targets import resolve

_LONGEST_LIST = 1_000_000
"""Bytes of a list that are read."""


class SweepTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A target, with a name that no other target of the sweep has; `why` there is nothing to ask, if so.

    `whole` is the reference of the whole model where `ref` has few of its layers, and `few_layers` says which.
    `model_type`: transformers lists it, and its name is that of its configuration.
    """

    name: str
    ref: str
    why: str = ""
    whole: str = ""
    few_layers: str = ""
    model_type: bool = False


def read_list(file: Path) -> list[str]:
    """One target a line; blank lines and those after `#` are left out. Raises UsageError for what is no such file."""
    if not file.is_file():
        raise UsageError(f"{str(file)!r} is no file", hint="A list has one target a line")
    try:
        with open(file, "rb") as opened:
            text = opened.read(_LONGEST_LIST + 1)
        lines = [line.split("#")[0].strip() for line in text.decode().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{str(file)!r} cannot be read: {error}") from error
    if len(text) > _LONGEST_LIST:
        raise UsageError(f"{str(file)!r} is longer than {_LONGEST_LIST} bytes")
    return [line for line in lines if line]


def name_targets(refs: Iterable[str]) -> list[SweepTarget]:
    """Targets as they were typed first, each once: `./t.py:build` is `t.py:build`."""
    typed: dict[str, str] = {}
    for ref in refs:
        typed.setdefault(_whole_path(ref), ref)
    found: dict[str, SweepTarget] = {}
    for ref in typed.values():
        name, number = slug(ref), 2
        while name in found:
            name, number = f"{slug(ref)}-{number}", number + 1
        found[name] = SweepTarget(name=name, ref=ref)
    return list(found.values())


def find_model_types(
    kind: str, folder: Path, *, sample: int | None, seed: int, few_folder: Path | None = None
) -> tuple[list[SweepTarget], SampleFact | None]:
    """The model types of a kind that transformers lists with a model class, as folders in `folder`; or some of them.

    With few layers where they can be had so, if there is a folder for these.
    """
    few = os.path.abspath(few_folder) if few_folder is not None else ""
    request = ModelTypesRequest(kind=kind, folder=os.path.abspath(folder), sample=sample, seed=seed, few_folder=few)
    with spawn("worker.model_types", log=None) as client:
        reply = client.ask(request, ModelTypesReply)
    if reply is None:
        raise WorkerLost("The process that lists the model types has ended")
    if not isinstance(reply, ModelTypes):
        raise reply.to_error()
    targets = [
        SweepTarget(name=name, ref=str(folder / name), why=why, model_type=True) for name, why in reply.types.items()
    ]
    for place, one in enumerate(targets):
        if few_folder is not None and (changed := reply.few_layers.get(one.name)):
            ref = str(few_folder / one.name)
            targets[place] = msgspec.structs.replace(one, ref=ref, whole=one.ref, few_layers=changed)
    sampled = SampleFact(drawn=len(targets), of=reply.of, seed=seed) if len(targets) < reply.of else None
    return targets, sampled


def make_tasks(
    targets: Sequence[SweepTarget],
    folder: Path,
    *,
    sizes: tuple[Sizes, ...],
    words: tuple[str, ...],
    timeout: float,
    memory_mb: float,
    also: tuple[Also, ...] = (),
) -> list[SweepTask]:
    """A task for each target, with whole paths: a node may have another working directory."""
    around, session = surroundings(), os.urandom(6).hex()
    tasks = []
    for target in targets:
        ref, why = _whole_path(target.ref), target.why
        whole = _whole_path(target.whole) if target.whole else ""
        identity: object = why
        if not why:
            try:
                identity = resolve(TargetRef(ref=ref)).identity()
            except ExportdoctorError as error:
                why = error.line()
        tasks.append(
            SweepTask(
                name=target.name,
                ref=ref,
                whole=whole,
                digest="" if why else _digest(identity),
                digest_of_whole=digest_target(whole) if whole else "",
                folder=os.path.abspath(folder / "runs" / target.name),
                sizes=sizes,
                words=words,
                timeout=timeout,
                memory_mb=memory_mb,
                key=_digest([identity, why, sizes, words, around]),
                session=session,
                hash_seed=os.environ.get(HASH_SEED),
                why=why,
                also=also,
            )
        )
    return tasks


def digest_target(ref: str) -> str:
    """A digest of all that says which model a reference names: configuration, sources; empty where it names none."""
    try:
        return _digest(resolve(TargetRef(ref=_whole_path(ref))).identity())
    except ExportdoctorError:
        return ""


def _digest(value: object) -> str:
    return hashlib.sha256(encode(value)).hexdigest()[:32]


def _whole_path(ref: str) -> str:
    """The reference with the whole path of what it names, if it is there."""
    found = re.fullmatch(r"(?P<path>.+\.py)(?P<rest>:\w*)?", ref)
    path, rest = (found["path"], found["rest"] or "") if found else (ref, "")
    whole = os.path.abspath(os.path.expanduser(path))
    return f"{whole}{rest}" if ("/" in ref or found or ref.startswith((".", "~"))) and os.path.exists(whole) else ref
