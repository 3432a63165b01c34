"""One target of a sweep: a Dask task, which runs `exportdoctor scan` in a process group of its own.

Whatever the scan does, also a segfault or an endless loop, is an answer; only the death of the node loses it. Nothing
here needs Dask.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import msgspec

from exportdoctor.core.codec import decode, pretty
from exportdoctor.core.errors import ExitCode, StoreError
from exportdoctor.core.limits import INTERRUPTED
from exportdoctor.core.run.atlas import Also, Sizes
from exportdoctor.process.descendants import kill_below, kill_marked, new_mark
from exportdoctor.process.group import kill_group, name_exit
from exportdoctor.process.supervise import family_mb
from exportdoctor.store.atomic_write import make_folder, replace_file
from exportdoctor.store.digest import name_changes, sources_of
from exportdoctor.store.journal import NAME as JOURNAL
from exportdoctor.store.runs import read_run
from exportdoctor.sweep.warm_process import WarmProcess, WarmScan
from exportdoctor.targets.resolve import is_factory

ANSWER = "answer.json"
STOP = ".stop"
HASH_SEED = "PYTHONHASHSEED"
_ASKED = "asked.log"
_TICK = 0.2
_MEMORY_EVERY, _MEMORY_SHARE = 1.0, 0.05
"""Seconds between two looks at the memory of a scan, at least, and the most of the time that they may take: each look
walks the page tables of all its processes, and holds them up."""
_NODE = threading.local()
"""Holds the warm process of each thread of a Dask worker: it runs one scan at a time."""


class AnswerStatus(StrEnum):
    """How one run of a sweep ended. LOST: the node that asked is gone; STOPPED: the sweep was interrupted."""

    ANSWERED = "answered"
    NO_VERDICT = "no_verdict"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    LOST = "lost"
    STOPPED = "stopped"


class SweepTask(msgspec.Struct, frozen=True, kw_only=True):
    """What one task asks. `words` are options of `scan`; one run for each of `asks`, in a folder of that name.

    `timeout` in seconds and `memory_mb` in MiB are of one run. `key` digests what the answer depends on, `session`
    names the sweep's process, whose PYTHONHASHSEED was `hash_seed`. With `why` there is nothing to ask: it says what
    is missing. `whole` is asked where `ref`, the same model with few layers, gets no verdict. `digest` and
    `digest_of_whole` are of the models that these name.
    """

    name: str
    ref: str
    folder: str
    sizes: tuple[Sizes, ...]
    words: tuple[str, ...]
    timeout: float
    memory_mb: float
    key: str
    session: str
    hash_seed: str | None = None
    why: str = ""
    also: tuple[Also, ...] = ()
    whole: str = ""
    digest: str = ""
    digest_of_whole: str = ""

    @property
    def asks(self) -> tuple[tuple[Sizes, Also], ...]:
        """The runs: first those that are always made. `also` is not in `key`, so that what was asked before holds."""
        return tuple((sizes, also) for also in ("", *self.also) for sizes in self.sizes)


class RunAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How one run ended. `why` is one line on what is missing where it was not answered."""

    sizes: Sizes
    status: AnswerStatus
    why: str = ""
    seconds: float = 0.0
    memory_mb: float = 0.0
    also: Also = ""

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return run_folder(self.sizes, self.also)


class SweepAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A target's answers, kept as answer.json in its folder. `timeout` and `memory_mb` are the limits that held."""

    name: str
    ref: str
    key: str
    at: float
    timeout: float
    memory_mb: float
    runs: tuple[RunAnswer, ...]

    @property
    def is_final(self) -> bool:
        """Whether every run has ended by itself or at its limits: neither stopped nor lost."""
        return all(run.status not in (AnswerStatus.STOPPED, AnswerStatus.LOST) for run in self.runs)


def run_folder(sizes: Sizes, also: Also) -> str:
    """The name of the folder of a run."""
    return f"{sizes}-{also}" if also else sizes


def scan_words(words: tuple[str, ...], sizes: Sizes, also: Also) -> tuple[str, ...]:
    """The options of one run: those of the sweep, with the run's own in place of what they contradict."""
    own = {"": (), "strict": ("--exporter", "export-strict"), "decomposed": ("--to", "decomposed")}[also]
    taken = {"": (), "strict": ("--exporter", "--to"), "decomposed": ("--to",)}[also]
    places = {place + step for place, word in enumerate(words) if word in taken for step in (0, 1)}
    kept = (word for place, word in enumerate(words) if place not in places)
    return (*(("--static",) if sizes == "static" else ()), *kept, *own)


def answer_without_run(task: SweepTask, status: AnswerStatus, why: str) -> SweepAnswer:
    """The answer of a task that did not run."""
    runs = tuple(RunAnswer(sizes=sizes, also=also, status=status, why=why) for sizes, also in task.asks)
    return _answer(task, runs)


def read_answer(folder: Path) -> SweepAnswer | None:
    """The answer kept in a target's folder; None where there is none that can be read."""
    try:
        answer: SweepAnswer = decode((folder / ANSWER).read_bytes(), SweepAnswer)
    except (OSError, StoreError):
        return None
    return answer


def keep_answer(task: SweepTask, answer: SweepAnswer) -> None:
    """Write answer.json."""
    make_folder(Path(task.folder))
    replace_file(Path(task.folder) / ANSWER, pretty(answer))


def ask_target(task: SweepTask) -> SweepAnswer:
    """Ask, and keep the answer. Runs on a node; a node that is lost twice in one session is told, not asked again."""
    folder = Path(task.folder)
    make_folder(folder)
    with open(folder / _ASKED, "a+", encoding="utf-8") as log:
        log.seek(0)
        earlier = sum(1 for line in log if line.strip() == task.session)
        log.write(f"{task.session}\n")
    if earlier > 1:
        answer = answer_without_run(task, AnswerStatus.LOST, "the node that asked was lost twice")
    else:
        answer = _ask(task, anew=earlier > 0)
    keep_answer(task, answer)
    return answer


def _ask(task: SweepTask, *, anew: bool) -> SweepAnswer:
    """The answer; where few layers get no verdict, that of all."""
    whole = msgspec.structs.replace(task, ref=task.whole, whole="") if task.whole else None
    earlier = read_answer(Path(task.folder))
    if whole is not None and earlier is not None and (earlier.key, earlier.ref) == (task.key, whole.ref):
        task, whole = whole, None
    try:
        answer = _answer(task, tuple(_run(task, *asked, anew=anew) for asked in task.asks))
    finally:
        _let_go()
    if whole is None or any(run.status != AnswerStatus.NO_VERDICT for run in answer.runs):
        return answer
    return _ask(whole, anew=False)


def _answer(task: SweepTask, runs: tuple[RunAnswer, ...]) -> SweepAnswer:
    return SweepAnswer(
        name=task.name,
        ref=task.ref,
        key=task.key,
        at=time.time(),
        timeout=task.timeout,
        memory_mb=task.memory_mb,
        runs=runs,
    )


def kept_run(task: SweepTask, sizes: Sizes, also: Also, earlier: SweepAnswer | None) -> RunAnswer | None:
    """The earlier answer of one run if it still holds: same question, same sources, and no more time or memory now."""
    if earlier is None or earlier.key != task.key or earlier.ref not in (task.ref, task.whole):
        return None
    found = next((run for run in earlier.runs if (run.sizes, run.also) == (sizes, also)), None)
    if found is None or found.status in (AnswerStatus.STOPPED, AnswerStatus.LOST):
        return None
    more = (found.status == AnswerStatus.TIMED_OUT and task.timeout > earlier.timeout) or (
        found.status == AnswerStatus.OUT_OF_MEMORY and task.memory_mb > earlier.memory_mb
    )
    return None if more or _has_changed(Path(task.folder) / found.folder, found) else found


def _has_changed(folder: Path, found: RunAnswer) -> bool:
    """Whether a source of the run has changed. What cannot be compared counts as it does for `scan --resume`."""
    if not (folder / JOURNAL).exists():
        return found.status == AnswerStatus.ANSWERED
    try:
        return bool(name_changes(sources_of(read_run(folder).events)))
    except StoreError:
        return True


def _run(task: SweepTask, sizes: Sizes, also: Also, *, anew: bool) -> RunAnswer:
    """One run; what was begun of the same question is continued, if it can be."""
    folder, begun = Path(task.folder) / run_folder(sizes, also), time.monotonic()
    earlier = read_answer(Path(task.folder))
    if (kept := kept_run(task, sizes, also, earlier)) is not None:
        return kept
    if (anew or (earlier is not None and earlier.key == task.key and not earlier.is_final)) and _is_unfinished(folder):
        ended = _scan(("--resume", str(folder)), task, sizes, also)
        if ended.status != AnswerStatus.NO_VERDICT:
            return msgspec.structs.replace(ended, seconds=time.monotonic() - begun)
    shutil.rmtree(folder, ignore_errors=True)
    words = (task.ref, *scan_words(task.words, sizes, also), "--out", str(folder))
    ended = _scan(words, task, sizes, also)
    return msgspec.structs.replace(ended, seconds=time.monotonic() - begun)


def _is_unfinished(folder: Path) -> bool:
    try:
        finished = read_run(folder).state.finished
    except StoreError:
        return False
    return finished is None or not finished.complete


def _scan(words: tuple[str, ...], task: SweepTask, sizes: Sizes, also: Also) -> RunAnswer:
    """`exportdoctor scan` with these words, within the task's limits."""
    stop = Path(task.folder).parents[1] / f"{STOP}-{task.session}"
    if stop.exists():
        return RunAnswer(sizes=sizes, also=also, status=AnswerStatus.STOPPED, why="interrupted")
    errors, mark = Path(task.folder) / f"{run_folder(sizes, also)}.stderr", new_mark()
    begun, code = time.monotonic(), 0
    _NODE.warm = getattr(_NODE, "warm", None) or WarmProcess()
    status, memory = _hold(task, stop) if (sizes, also) != task.asks[-1] else (AnswerStatus.ANSWERED, 0.0)
    if status in (AnswerStatus.ANSWERED, AnswerStatus.NO_VERDICT, AnswerStatus.CRASHED):
        process = _NODE.warm.start(("scan", *words, "--jobs", "1", "--quiet"), errors, _environment(task), mark=mark)
        try:
            status, memory = _watch(process, task, stop, begun=begun)
        finally:
            _kill_family(process, mark)
        code = process.returncode
    why = {
        AnswerStatus.TIMED_OUT: f"no end after {task.timeout:g} s",
        AnswerStatus.OUT_OF_MEMORY: f"it took {memory:.0f} MiB of {task.memory_mb:.0f}",
        AnswerStatus.STOPPED: "interrupted",
        AnswerStatus.CRASHED: f"the scan ended with {name_exit(code)}",
        AnswerStatus.NO_VERDICT: _last_line(errors) or name_exit(code),
    }.get(status, "")
    return RunAnswer(sizes=sizes, also=also, status=status, why=why, memory_mb=memory)


def _hold(task: SweepTask, stop: Path) -> tuple[AnswerStatus, float]:
    """Have the warm process build the target once for all scans of the task, if it does not yet.

    Returns how that ended, as of a scan; whatever ended by itself is asked by scans that build it themselves.
    """
    if getattr(_NODE, "held", None) or is_factory(task.ref):
        return AnswerStatus.ANSWERED, 0.0
    mark = new_mark()
    holder = _NODE.warm.hold(task.ref, task.words, _environment(task), mark=mark)
    _NODE.held = mark
    try:
        status, memory = _watch(holder, task, stop, begun=time.monotonic())
    except BaseException:
        _kill_family(holder, mark)
        raise
    if status != AnswerStatus.ANSWERED:
        _kill_family(holder, mark)
    return status, memory


def _let_go() -> None:
    """End what holds the target."""
    if held := getattr(_NODE, "held", None):
        _NODE.warm.let_go()
        kill_marked(held)
        _NODE.held = None


def _environment(task: SweepTask) -> dict[str, str]:
    """The node's own, with the hash seed of the process that sweeps in place of Dask's."""
    given = {HASH_SEED: task.hash_seed} if task.hash_seed is not None else {}
    return {name: value for name, value in os.environ.items() if name != HASH_SEED} | given


def _watch(process: WarmScan, task: SweepTask, stop: Path, *, begun: float) -> tuple[AnswerStatus, float]:
    """Wait for the end; how it came, and the most memory seen, in MiB. The task's time counts from `begun`."""
    next_look, memory = 0.0, 0.0
    while process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_TICK)
        now = time.monotonic()
        if now - begun > task.timeout:
            return AnswerStatus.TIMED_OUT, memory
        if stop.exists():
            _interrupt(process)
            return AnswerStatus.STOPPED, memory
        if now > next_look:
            taken = family_mb(process.pid)
            memory = max(memory, taken)
            took = time.monotonic() - now
            next_look = now + max(_MEMORY_EVERY, took / _MEMORY_SHARE)
            if taken > task.memory_mb:
                return AnswerStatus.OUT_OF_MEMORY, taken
    code = process.wait()
    if code in (ExitCode.EXPORTS, ExitCode.FINDINGS):
        return AnswerStatus.ANSWERED, memory
    return (AnswerStatus.CRASHED if code < 0 else AnswerStatus.NO_VERDICT), memory


def _interrupt(process: WarmScan) -> None:
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(INTERRUPTED)


def _kill_family(process: WarmScan, mark: str) -> None:
    """Kill the scan and all that it has started, which leads groups of its own."""
    if process.poll() is None:
        kill_below(process.pid)
    kill_group(process.pid)
    process.wait()
    kill_marked(mark)


def _last_line(file: Path) -> str:
    """The last line of what the scan printed, without its prefix."""
    try:
        size = file.stat().st_size
        with open(file, "rb") as opened:
            opened.seek(max(0, size - 4096))
            lines = opened.read().decode(errors="backslashreplace").strip().splitlines()
    except OSError:
        return ""
    told = [line for line in lines if not line.startswith("exportdoctor: saved in")]
    return told[-1].removeprefix("exportdoctor: ")[:1000] if told else ""
