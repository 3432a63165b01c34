"""How fast the terminal interface is, on a run made for it: 2,000 modules, 200 findings, 20,000 events.

    PYTHONPATH=src:tui python benchmarks/tui_speed.py

Prints one JSON object; the limits are those of docs/tui.md. Exit code 1 where one is broken.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import threading
import time
import tracemalloc
from pathlib import Path

from textual.app import App
from textual.events import Key
from textual.screen import Screen

from exportdoctor.core.codec import encode
from exportdoctor.core.failure.finding import ExceptionRecord, Finding
from exportdoctor.core.failure.kinds import FailureKind
from exportdoctor.core.protocol.scan import CallFact, Captured, InputFact, ModuleFact
from exportdoctor.core.records.outcome import Frame
from exportdoctor.core.records.target import TargetRef
from exportdoctor.core.run import events as ev
from exportdoctor.core.scan_options import ScanOptions
from exportdoctor.store.journal import NAME, EventReader
from exportdoctor.store.lock import FolderLock
from exportdoctor_tui.app import DoctorApp
from exportdoctor_tui.screens.run import RunScreen
from exportdoctor_tui.state.run_follower import RunFold
from exportdoctor_tui.widgets.module_tree import ModuleTree

LAYERS, FINDINGS, EVENTS = 200, 200, 20_000
LIMITS = {"first_screen_cpu_s": 0.5, "key_p95_ms": 50.0, "fold_20000_s": 1.0, "growth_mb": 1.0, "idle_cpu_percent": 2.0}
_IDLE = 10.0  # seconds without a key


def opening() -> list[ev.AnyEvent]:
    """The first events: 2,001 modules in 200 layers of ten."""
    call = CallFact(question="q", group="k", inputs=(InputFact(path="args[0]", kind="float32", shape=(1, 594, 2048)),))
    facts = [ModuleFact(fqn="", class_name="Model", calls=(call,))]
    for layer in range(LAYERS):
        name = f"layers.{layer}"
        facts.append(ModuleFact(fqn=name, class_name="Layer", calls=(call,)))
        facts += [ModuleFact(fqn=f"{name}.part{n}", class_name=f"Part{n}", calls=(call,)) for n in range(9)]
    captured = Captured(part="full", title="", prefix="", seconds=1.0, modules=tuple(facts))
    started = ev.RunStarted(run="benchmark", target=TargetRef(ref="benchmark"), options=ScanOptions(), version="0")
    return [started, ev.PartCaptured(captured=captured)]


def verdicts(count: int) -> list[ev.AnyEvent]:
    """`count` verdicts, module after module, again and again; one in ten fails, each layer with its own finding."""
    found: list[ev.AnyEvent] = []
    for number in range(count):
        layer, part = number // 9 % LAYERS, number % 9
        failing = part == 4
        found.append(
            ev.ModuleJudged(
                part="full",
                fqns=(f"layers.{layer}.part{part}",),
                status="fails_own" if failing else "pass",
                stages={"export": "fail" if failing else "pass"},
                seconds=0.1,
                finding=f"F{layer + 1}" if failing else None,
            )
        )
    return found


def findings() -> list[ev.AnyEvent]:
    """A finding for each layer, with a stack of twenty frames."""
    frames = tuple(
        Frame(file=f"/x/model{n}.py", line=n + 1, function=f"f{n}", source="y = x.item()", user=n % 3 == 0)
        for n in range(20)
    )
    made: list[ev.AnyEvent] = [
        ev.ModuleJudged(part="full", fqns=(f"layers.{n}",), status="fails_child", finding=f"F{n + 1}")
        for n in range(LAYERS)
    ]
    for number in range(1, FINDINGS + 1):
        error = ExceptionRecord(type="torch.Guard", message=f"Could not guard on u{number} > 1")
        made.append(
            ev.FindingMade(
                finding=Finding(
                    id=f"F{number}", part="full", module=f"layers.{number - 1}.part4", module_class="Part4",
                    own_code=True, function="f18", file="/x/model18.py", line=19, source="y = x.item()",
                    kind=FailureKind.DATA_DEPENDENT_GUARD, op=None, expression=None,
                    signature=str(number), exception=error,
                    stack=frames, modules=(f"layers.{number - 1}.part4",),
                )
            )
        )  # fmt: skip
    made.append(ev.ModuleJudged(part="full", fqns=("",), status="fails_child", finding="F1"))
    return made


def ending() -> list[ev.AnyEvent]:
    """The last events."""
    return [
        ev.PartFinished(part="full", verdict="fails", exporter="export", seconds=1.0, asked=2001),
        ev.RunFinished(exit_code=1, seconds=9.0),
    ]


def write(run: Path, events: list[ev.AnyEvent]) -> None:
    """Append events to a run."""
    with open(run / NAME, "ab") as file:
        file.writelines(encode(event) + b"\n" for event in events)


def fold_seconds(run: Path) -> float:
    """Wall time from the file of 20,000 events to a picture."""
    began = time.perf_counter()
    folding = RunFold(run)
    folding.take(EventReader(run / NAME).read_new())
    assert len(folding.view(held=False).parts[0].records) == 10 * LAYERS + 1
    return time.perf_counter() - began


def growth_mb() -> float:
    """How much memory 98,000 more events leave behind, once every module has been judged."""
    folding = RunFold(Path())
    folding.take([*opening(), *verdicts(4000), *findings()])
    tracemalloc.start()
    sizes = []
    for _ in range(50):
        folding.take(verdicts(2000))
        folding.view(held=True)
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    return (sizes[-1] - sizes[0]) / 1e6


async def screen_cpu(app: App[object]) -> float:
    """CPU seconds of this process until the first usable screen."""
    began = time.process_time()
    async with app.run_test(size=(160, 45)) as pilot:
        while isinstance(app, DoctorApp) and not (isinstance(app.screen, RunScreen) and app.screen.is_settled):
            await pilot.pause(0.01)
        await pilot.pause()
        return time.process_time() - began


async def idle_cpu_percent(run: Path) -> float:
    """CPU that this process takes while nobody presses a key, in percent of one core."""
    app = DoctorApp(run)
    async with app.run_test(size=(160, 45)) as pilot:
        while not (isinstance(app.screen, RunScreen) and app.screen.is_settled):
            await pilot.pause(0.01)
        await pilot.pause(1)
        began, spent = time.perf_counter(), time.process_time()
        await asyncio.sleep(_IDLE)
        return 100 * (time.process_time() - spent) / (time.perf_counter() - began)


class Timed(DoctorApp):
    """Sets `painted` once a screen with the cursor on another line has been painted."""

    CSS_PATH = Path(sys.modules[DoctorApp.__module__].__file__ or "").parent / "app.tcss"
    before = -1
    painted: asyncio.Event | None = None
    painted_at = painted_cpu = 0.0

    def _display(self, screen: Screen[object], renderable: object) -> None:
        super()._display(screen, renderable)  # type: ignore[arg-type]
        moved = isinstance(screen, RunScreen) and screen.query_one(ModuleTree).cursor != self.before
        if self.painted is not None and moved and not self.painted.is_set():
            self.painted_at, self.painted_cpu = time.perf_counter(), time.process_time()
            self.painted.set()


async def key_milliseconds(run: Path) -> list[tuple[float, float]]:
    """From each key to the painted screen, by the clock and in CPU of all threads here, which a busy machine spares.

    Another thread plays a scan of 400 events a second meanwhile.
    """
    over = threading.Event()

    def scan() -> None:
        events = verdicts(20_000)
        for start in range(0, len(events), 40):
            if over.wait(0.1):
                return
            write(run, events[start : start + 40])

    lock = FolderLock(run)
    app = Timed(run)
    found: list[tuple[float, float]] = []
    async with app.run_test(size=(160, 45)) as pilot:
        while not (isinstance(app.screen, RunScreen) and app.screen.is_settled):
            await pilot.pause(0.01)
        await pilot.pause(0.5)
        thread = threading.Thread(target=scan)
        thread.start()
        for number in range(150):
            key = ("down", "n", "up", "down", "n")[number % 5]
            app.painted, app.before = asyncio.Event(), app.screen.query_one(ModuleTree).cursor
            began, spent = time.perf_counter(), time.process_time()
            app.post_message(Key(key, key if len(key) == 1 else None))
            await asyncio.wait_for(app.painted.wait(), 10)
            found.append(((app.painted_at - began) * 1000, (app.painted_cpu - spent) * 1000))
            await asyncio.sleep(0.04 + number % 7 / 100)
        over.set()
        thread.join()
    lock.release()
    return found


def main() -> int:
    """Measure, print, compare."""
    with tempfile.TemporaryDirectory() as folder:
        finished, running, waiting, large = (Path(folder, name) for name in ("finished", "running", "waiting", "large"))
        for run in (finished, running, waiting, large):
            run.mkdir()
        told = [*opening(), *findings(), *ending()]
        write(large, [*opening(), *verdicts(EVENTS - len(told)), *findings(), *ending()])
        write(finished, [*opening(), *verdicts(4000), *findings(), *ending()])
        write(running, [*opening(), *verdicts(4000), *findings()])
        write(waiting, [*opening(), *verdicts(4000), *findings()])
        lock = FolderLock(waiting)
        plain = asyncio.run(screen_cpu(App()))
        first = asyncio.run(screen_cpu(DoctorApp(finished))) - plain
        keys = asyncio.run(key_milliseconds(running))
        measured = {
            "first_screen_cpu_s": round(first, 3),
            "key_p95_ms": round(statistics.quantiles([wall for wall, _ in keys], n=20)[-1], 1),
            "key_median_ms": round(statistics.median(wall for wall, _ in keys), 1),
            "key_p95_cpu_ms": round(statistics.quantiles([cpu for _, cpu in keys], n=20)[-1], 1),
            "fold_20000_s": round(fold_seconds(large), 3),
            "growth_mb": round(growth_mb(), 2),
            "idle_cpu_percent": round(asyncio.run(idle_cpu_percent(finished)), 2),
            "idle_cpu_percent_while_a_scan_waits": round(asyncio.run(idle_cpu_percent(waiting)), 2),
            "load_per_core": round(os.getloadavg()[0] / (os.cpu_count() or 1), 1),
        }
        lock.release()
    print(json.dumps(measured))
    return int(any(measured[name] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
