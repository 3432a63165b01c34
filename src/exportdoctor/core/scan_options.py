"""How a scan is made: its options, and how the command line, the Python API and the terminal interface spell them.

To add an option: its field and its row here, and the place that uses it. One that is about the export itself has a
field of the same name in core/records/probe.py, into which it is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from exportdoctor.core.exporters import EXPORTERS, Exporter
from exportdoctor.core.limits import (
    BUILD,
    BUILD_SHARE,
    LONGEST_ATTEMPTS_PER_ATTEMPT,
    LONGEST_OF_SHORT,
    SHORT_FORWARDS_PER_ATTEMPT,
    SHORTEST_ATTEMPT,
)


class ScanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a scan. `timeout` in seconds, None = found from the attempts so far; `jobs` attempts at a time.

    `slow` (seconds) and `heavy` (MiB): an attempt that takes more is a finding, though it passes.

    `isolation`: attempts are forks of a warm worker, or made by workers that are replaced after any failure; by default
    forks, unless a CUDA context exists or the platform has none. `modules`: these submodules are asked in place of each
    part's root.
    """

    exporter: Exporter = "export"
    to: str = "export"
    exhaustive: bool = False
    search: bool = True
    audit: bool = False
    cure: bool = True
    alternatives: bool = True
    timeout: float | None = None
    memory_mb: float | None = None
    gpu_memory_mb: float | None = None
    slow: float | None = None
    heavy: float | None = None
    build_timeout: float | None = None
    build_memory_mb: float | None = None
    jobs: int = 2
    isolation: Literal["auto", "fork", "process"] = "auto"
    use_cache: bool = True
    allow: tuple[str, ...] = ()
    shim_files: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OptionSpec:
    """A field of ScanOptions on the command line. `flag` of a field that is True by default switches it off.

    - `choices`: the values that it takes; `metavar`: what `--help` shows for a value that has none
    - `changes_result`: another value can change what is found, so that results with the two must not mix
    - `default_differs`: the command line's default is not the field's, so that a command line always has to spell it
    """

    flag: str
    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    changes_result: bool = True
    default_differs: bool = False


OPTIONS: Mapping[str, OptionSpec] = {
    "exporter": OptionSpec(flag="--exporter", choices=tuple(EXPORTERS), help="Exporter to use."),
    "to": OptionSpec(
        flag="--to",
        choices=("export", "decomposed", "onnx", "ort"),
        help="How far to go: export only, also decompose to core ATen, translate to ONNX, or run in ONNX Runtime.",
    ),
    "modules": OptionSpec(
        flag="--module", metavar="FQN", help="Export this submodule instead of the whole part. Can be repeated."
    ),
    "exhaustive": OptionSpec(
        flag="--exhaustive", help="Export every distinct submodule, not only those below a failing parent."
    ),
    "search": OptionSpec(
        flag="--no-search",
        help="Export each part as a whole. Do not look for the smallest submodule that fails: the stack names one.",
    ),
    "audit": OptionSpec(
        flag="--audit", help="Also export every submodule that equals another one, and compare. Else a few are drawn."
    ),
    "cure": OptionSpec(flag="--no-cure", help="Do not search for shims."),
    "alternatives": OptionSpec(
        flag="--no-alternatives", help="Where a sound set of shims cures a part, do not look for others that do."
    ),
    "shim_files": OptionSpec(flag="--shims", metavar="FILE", help="Python file with your own shims. Can be repeated."),
    "allow": OptionSpec(
        flag="--allow", choices=("unsound",), help="Also try shims that only silence a guard or an assertion."
    ),
    "timeout": OptionSpec(
        flag="--timeout",
        metavar="S",
        help=f"Timeout for one export, in seconds. Default: {LONGEST_ATTEMPTS_PER_ATTEMPT:g} times the longest so "
        f"far, at least {SHORTEST_ATTEMPT:g}; until a part has passed also {SHORT_FORWARDS_PER_ATTEMPT:g} eager "
        f"forwards, at most {LONGEST_OF_SHORT:g}.",
        changes_result=False,
    ),
    "memory_mb": OptionSpec(
        flag="--memory",
        metavar="MiB",
        help="Memory limit for one export. Default: a share of the free memory.",
        changes_result=False,
    ),
    "gpu_memory_mb": OptionSpec(
        flag="--gpu-memory",
        metavar="MiB",
        help="Memory of a GPU that one export may take. As many run on it side by side as fit into what is free.",
        changes_result=False,
    ),
    "slow": OptionSpec(
        flag="--slow",
        metavar="S",
        help="An export that takes more than S seconds of processor time is a finding: where does the time go?",
    ),
    "heavy": OptionSpec(
        flag="--heavy",
        metavar="MiB",
        help="An export that takes more than MiB of memory is a finding: where is it taken?",
    ),
    "build_timeout": OptionSpec(
        flag="--build-timeout",
        metavar="S",
        help="Timeout for building the target, and for capturing each part, in seconds. "
        f"Default: {BUILD:g} of processor time.",
        changes_result=False,
    ),
    "build_memory_mb": OptionSpec(
        flag="--build-memory",
        metavar="MiB",
        help=f"Memory limit for building and capturing. Default: {BUILD_SHARE:.0%} of the free memory.",
        changes_result=False,
    ),
    "jobs": OptionSpec(
        flag="--jobs",
        metavar="N",
        help="Number of exports to run in parallel.",
        changes_result=False,
        default_differs=True,
    ),
    "use_cache": OptionSpec(flag="--no-cache", help="Do not reuse results of earlier runs.", changes_result=False),
}

DEFAULTS = msgspec.structs.asdict(ScanOptions())


def result_options(options: ScanOptions) -> ScanOptions:
    """The options with those at their defaults that cannot change what is found."""
    same = {name: DEFAULTS[name] for name, spec in OPTIONS.items() if not spec.changes_result}
    return msgspec.structs.replace(options, **same)


def option_words(options: ScanOptions) -> tuple[str, ...]:
    """The words of a command line that gives these options."""
    return tuple(word for name in OPTIONS for word in _words(name, getattr(options, name)))


def _words(name: str, value: object) -> Iterator[str]:
    spec = OPTIONS[name]
    if value == DEFAULTS[name] and not spec.default_differs:
        return
    if isinstance(value, bool):
        yield spec.flag
    elif isinstance(value, tuple):
        for one in value:
            yield from (spec.flag, str(one))
    else:
        yield from (spec.flag, f"{value:g}" if isinstance(value, float) else str(value))
