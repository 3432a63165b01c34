"""Model types of the installed transformers in the order of a seed, tiny, and which of their parts fail to export.

What a type needs in time and memory is limited; one that needs more, or that cannot be built or run, is left out with
the reason.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exportdoctor.core.errors import ExportdoctorError
from exportdoctor.core.records.target import BuildOptions, TargetRef
from exportdoctor.shims.export_call import call_for_part
from exportdoctor.shims.torch_export import export_program
from exportdoctor.targets import build, resolve
from exportdoctor.targets.small_model import make_small

LARGEST = 40_000_000
"""Parameters of a tiny model."""
SECONDS, GIB = 60, 6
"""Of the processor and of address space, for what is asked of one type."""
MOST_CALLS = 150
"""Calls of submodules whose plain exports are compared."""


class LeftOut(Exception):
    """Why a type has no answer."""


def warm_up() -> None:
    """Import what each fork needs."""
    import torch
    from transformers import GenerationMixin, PreTrainedModel  # noqa: F401

    torch.set_num_threads(1)  # the threads of a parallel region do not survive a fork
    torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(3, 2),), strict=False)


def drawn_types(seed: int) -> list[str]:
    """All model types, in the order of the seed."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    names = sorted(CONFIG_MAPPING_NAMES)
    random.Random(seed).shuffle(names)
    return names


def write_config(model_type: str, folder: Path) -> None:
    """The type's default configuration, reduced as a small model's is."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = make_small({**CONFIG_MAPPING[model_type]().to_dict(), "model_type": model_type})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, default=str))


def ask_fork(function: Callable[..., Any], *args: Any, seconds: int = SECONDS) -> Any:
    """What the function gives, as JSON, in a fork within the limits. Raises LeftOut with what it raises."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        _answer(into, function, args, seconds)
    os.close(into)
    with os.fdopen(out) as lines:
        text = lines.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if not text:
        over = status in (-signal.SIGXCPU, -signal.SIGALRM)
        raise LeftOut(f"{seconds} s of the processor are over" if over else f"its process ended with {status}")
    answer = json.loads(text)
    if "error" in answer:
        raise LeftOut(answer["error"])
    return answer["value"]


def _answer(into: int, function: Callable[..., Any], args: tuple[Any, ...], seconds: int) -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_AS, (GIB << 30, GIB << 30))
    signal.alarm(6 * seconds)
    try:
        answer = {"value": function(*args)}
    except BaseException as error:
        said = error.line() if isinstance(error, ExportdoctorError) else f"{type(error).__name__}: {error}"
        answer = {"error": said.strip().split("\n")[0][:200]}
    with contextlib.suppress(BaseException), os.fdopen(into, "w") as pipe:
        pipe.write(json.dumps(answer))
    os._exit(0)


def failing_parts(ref: str) -> dict[str, str]:
    """Of each part of a target with random weights what `torch.export.export` raises with its dynamic sizes, or ""."""
    plan = resolve(TargetRef(ref=ref, options=BuildOptions(weights="random")))
    built = build(plan)
    if built.parameters > LARGEST:
        raise LeftOut(f"{built.parameters / 1e6:.0f} million parameters")
    found = {}
    for name in plan.parts:
        part = built.part(name)
        found[name] = ""
        try:
            with part.prepare():
                export_program(call_for_part(part))
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}".strip().split("\n")[0][:160]
    return found


def plain_verdicts(ref: str, part_name: str) -> dict[str, list[bool]]:
    """Whether each submodule exports at fixed sizes with the inputs of each of its calls, which nothing copied.

    The program of the part itself must also compute what eager does.
    """
    import torch

    options = BuildOptions(static=True, weights="random")
    part = build(resolve(TargetRef(ref=ref, parts=(part_name,), options=options))).part(part_name)
    calls: dict[str, list[Any]] = {}

    def keep(name: str) -> Any:
        return lambda module, args, kwargs: calls.setdefault(name, []).append((args, kwargs))

    modules = dict(part.module.named_modules())
    handles = [m.register_forward_pre_hook(keep(name), with_kwargs=True, prepend=True) for name, m in modules.items()]
    with torch.no_grad(), part.prepare():
        part.module(*part.args, **part.kwargs)
        for handle in handles:
            handle.remove()
        if (count := sum(map(len, calls.values()))) > MOST_CALLS:
            raise LeftOut(f"{count} calls of submodules, of which each would be exported")
        return {
            name: [_exports(modules[name], *call, compared=not name) for call in many] for name, many in calls.items()
        }


def _exports(module: Any, args: Any, kwargs: Any, *, compared: bool) -> bool:
    import torch

    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            program = torch.export.export(module, args, kwargs, strict=False).module()
            if compared:
                _compare(_outputs(module, args, kwargs), _outputs(program, args, kwargs))
            os._exit(0)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _outputs(function: Callable[..., Any], args: Any, kwargs: Any) -> list[Any]:
    """The tensors of its outputs for a copy of the inputs."""
    import torch
    from torch.utils._pytree import tree_leaves

    torch.manual_seed(0)
    args, kwargs = copy.deepcopy((args, kwargs))
    return [leaf for leaf in tree_leaves(function(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]


def _compare(wanted: list[Any], found: list[Any]) -> None:
    """Raises where they differ by more than a thousandth of the largest value of a tensor."""
    import torch

    for one, other in zip(wanted, found, strict=True):
        largest = float(one.abs().nan_to_num(0, 0, 0).max()) if one.numel() else 0.0
        torch.testing.assert_close(other, one, rtol=0, atol=1e-3 * largest, equal_nan=True)
