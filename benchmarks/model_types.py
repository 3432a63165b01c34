"""Every model type of the installed transformers: is it built, and are there inputs that its eager forward takes?

    python benchmarks/model_types.py FOLDER [TYPE ...] [--seconds S] [--limit S] [--memory MiB] [--again RE] [--small]

Default configurations at real size, fake weights, no export. Each type is a fork of its own within limits; answers are
kept in FOLDER/answers.json, so that the same command goes on where it stopped. `--again` asks those once more whose
answer has these words. Prints the reasons of those without inputs, the most frequent first.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from exportdoctor.core.errors import ExportdoctorError, TargetError
from exportdoctor.core.exception_text import summary
from exportdoctor.core.protocol.model_types import ModelTypes, ModelTypesRequest
from exportdoctor.core.records.target import TargetRef
from exportdoctor.targets import build, resolve
from exportdoctor.targets.model.model_class import load_config
from exportdoctor.targets.small_model import make_small
from exportdoctor.worker.model_types import answer as write_types

_TICK = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--seconds", type=float, default=3600, help="stop after so long")
    parser.add_argument("--limit", type=float, default=60, help="seconds for one type")
    parser.add_argument("--memory", type=float, default=6000, help="MiB for one type")
    parser.add_argument("--small", action="store_true", help="a few layers of the same widths: a fifth of the time")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which they are asked")
    parser.add_argument("--again", default=None, help="ask those again whose answer matches this expression")
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    listed = write_types(ModelTypesRequest(kind="all", folder=str(given.folder / "targets")))
    assert isinstance(listed, ModelTypes), listed
    file = given.folder / "answers.json"
    answers: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for name, why in listed.types.items():
        if why:
            answers.setdefault(name, {"why": why, "kind": "no configuration"})
    wanted = given.types or sorted(listed.types)
    random.Random(given.seed).shuffle(wanted)  # what was asked until the end of the time is a sample
    repeated = {n for n in wanted if n in given.types or (given.again and re.search(given.again, str(answers.get(n))))}
    warm_up()
    for name in wanted:
        if time.monotonic() > end:
            break
        if name not in answers or name in repeated:
            answers[name] = ask(given.folder / "targets" / name, given.small, limit=given.limit, memory=given.memory)
            file.write_text(json.dumps(answers, indent=1))
            if given.types:
                print(name, json.dumps(answers[name]))
    if not given.types:
        tell(answers, of=len(listed.types))


def warm_up() -> None:
    """Import what every fork needs."""
    import torch
    import transformers  # noqa: F401
    from transformers import modeling_utils  # noqa: F401

    torch.set_num_threads(1)


def ask(folder: Path, small: bool, *, limit: float, memory: float) -> dict[str, Any]:
    """The answer of one type: parts, inputs and seconds, or why there is none."""
    reader, writer = os.pipe()
    begun = time.monotonic()
    pid = os.fork()
    if not pid:
        os.setpgid(0, 0)
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        os.write(writer, json.dumps(_look(folder, small)).encode()[:60_000])
        os._exit(0)
    os.close(writer)
    why = _wait(pid, end=begun + limit, memory=memory)
    with os.fdopen(reader, "rb") as told:
        text = told.read() if not why else b""
    found = json.loads(text) if text else {"kind": "limit", "why": why or "the process died"}
    return {**found, "seconds": round(time.monotonic() - begun, 1)}


def _wait(pid: int, *, end: float, memory: float) -> str:
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        taken = psutil.Process(pid).memory_info().rss / 2**20
        why = "no end in time" if time.monotonic() > end else f"more than {memory:.0f} MiB" if taken > memory else ""
        if why:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return why
        time.sleep(_TICK)
    return ""


def _look(folder: Path, small: bool) -> dict[str, Any]:
    try:
        plan: Any = resolve(TargetRef(ref=str(folder)))
        if small:
            config = {**load_config(plan.config).to_dict(), "architectures": plan.config.get("architectures")}
            plan = dataclasses.replace(plan, config=make_small(config, narrow=False))
        built = build(plan)
        told = [f"{form.what}: {form.because}"[:400] for form in built.substitutions]
        parts: dict[str, Any] = {}
        for name in plan.parts:
            try:
                part = built.part(name)
            except TargetError as error:
                if name == plan.recipe.whole:
                    raise
                parts[name] = {"without": error.line()}
                continue
            shapes = {key: getattr(value, "shape", None) for key, value in part.kwargs.items()}
            parts[name] = {"title": part.title, "inputs": {key: str(shape) for key, shape in shapes.items()}}
            if part.left_out:
                parts[name]["without"] = f"{', '.join(part.left_out)}: {part.because}"
        return {
            "kind": "inputs",
            "class": type(built.model).__name__,
            "forms": told,
            "all_parts": list(plan.available_parts),
            "parts": parts,
        }
    except ExportdoctorError as error:
        return {"kind": type(error).__name__, "why": error.line(), "stack": list(getattr(error, "stack", ()))[-4:]}
    except BaseException as error:
        return {"kind": "own fault", "why": summary(error)}


def tell(answers: dict[str, Any], *, of: int) -> None:
    """Print how many have inputs, and the reasons of the others."""
    kinds = Counter(answer["kind"] for answer in answers.values())
    print(f"{len(answers)} of {of} types asked: {dict(kinds.most_common())}")
    reasons: dict[str, list[str]] = {}
    for name, answer in answers.items():
        if answer["kind"] != "inputs":
            reasons.setdefault(re.sub(r"\d+", "N", answer["why"])[:160], []).append(name)
    for why, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        print(f"{len(names):4} {why}\n       {' '.join(sorted(names))}")
    forms = Counter(form.split(":")[0] for answer in answers.values() for form in answer.get("forms", ()))
    print(f"in another form: {dict(forms.most_common())}")


if __name__ == "__main__":
    sys.exit(main())
