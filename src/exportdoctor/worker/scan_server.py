"""A worker's main loop: read commands, open and capture the target, attempt probes, reply.

With `fork` isolation each attempt is a child; with `process` isolation this process attempts it itself, says that
it is spoiled, and is replaced by the engine.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import assert_never

import msgspec

from exportdoctor.core.codec import decode, encode
from exportdoctor.core.exporters import EXPORTERS
from exportdoctor.core.failure.messages import first_line
from exportdoctor.core.protocol.reply import Refused
from exportdoctor.core.protocol.scan import (
    SMALL_MODEL_SUFFIX,
    AttemptProbe,
    Capture,
    Finished,
    Open,
    Opened,
    Prepare,
    Ready,
    ScanCommand,
    ScanReply,
    Started,
)
from exportdoctor.core.records.outcome import Outcome, OutcomeStatus
from exportdoctor.core.records.probe import Probe
from exportdoctor.process.descendants import adopt_orphans
from exportdoctor.process.group import die_with_parent, kill_group, lead_group
from exportdoctor.shims import load_package_shims
from exportdoctor.targets import Plan
from exportdoctor.worker.attempt.export_attempt import attempt, attempt_fast, attempt_without_shortcuts
from exportdoctor.worker.attempt.fast_export import NextAttempt, has_no_side_effects
from exportdoctor.worker.attempt_child import AttemptChild
from exportdoctor.worker.capture.session import PartCapture
from exportdoctor.worker.child import collect_garbage_less_often, expect_children, fork
from exportdoctor.worker.open_target import OpenTarget
from exportdoctor.worker.placement import ChildPlacement, PlacementError
from exportdoctor.worker.process_state import keep_process
from exportdoctor.worker.read_log import LOG
from exportdoctor.worker.shared_children import SharedChild, SharedChildren
from exportdoctor.worker.standard_streams import (
    leave,
    read_nothing,
    send_output_to,
    take_line_streams,
    write_line,
    write_stacks_to,
)


@dataclass
class ScanServer:
    """Commands come in on one descriptor, replies go out on another. Ends when the commands end.

    `waiting` are the attempts for which there is no room on a card, and how they are made again, if they are. `cured`
    are the modules and shims with which a small model passed, and whether it took an attempt without shortcuts.
    """

    commands: int
    replies: int
    target: OpenTarget
    logs: str | None = None
    isolation: str = "fork"
    attempts: dict[int, AttemptChild] = field(default_factory=dict)
    waiting: deque[tuple[Probe, NextAttempt | None]] = field(default_factory=deque)
    cured: dict[tuple[str, str, tuple[str, ...]], bool] = field(default_factory=dict)
    shared: SharedChildren = field(default_factory=SharedChildren)
    _shim_sources: dict[str, str] | None = None
    _buffer: bytearray = field(default_factory=bytearray)
    _wake: tuple[int, int] = (-1, -1)

    def run(self) -> None:
        """Serve until the engine closes its end."""
        self._wake = os.pipe()
        for end in self._wake:
            os.set_blocking(end, False)
        self._take_signals()
        self._reply(Ready())
        try:
            self._loop()
        finally:
            self.shared.end_all()
            for pid in self.attempts:
                kill_group(pid)

    def _take_signals(self) -> None:
        """The handlers of this loop; the target's code may have put others in their place."""
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the engine decides
        signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)

    def _loop(self) -> None:
        while True:
            with selectors.DefaultSelector() as selector:
                selector.register(self.commands, selectors.EVENT_READ)
                selector.register(self._wake[0], selectors.EVENT_READ)
                for attempt in self.attempts.values():
                    selector.register(attempt.child.pipe, selectors.EVENT_READ, attempt.child)
                for shared in self.shared.children:
                    selector.register(shared.descriptors[1], selectors.EVENT_READ, shared)
                ready = selector.select()
            for key, _ in ready:
                if key.fd == self.commands:
                    if not self._read_commands():
                        return
                elif key.fd == self._wake[0]:
                    _drain(self._wake[0])
                elif isinstance(key.data, SharedChild):
                    self._take_shared(key.data)
                else:  # the pipe's end comes just before the child's; it is reaped below
                    key.data.read()
            self._reap()

    def _read_commands(self) -> bool:
        chunk = os.read(self.commands, 1 << 16)
        if not chunk:
            return False
        *lines, rest = (bytes(self._buffer) + chunk).split(b"\n")
        self._buffer = bytearray(rest)
        for line in lines:
            self._obey(decode(line, ScanCommand))
        return True

    def _obey(self, command: ScanCommand) -> None:
        match command:
            case Open():
                self.logs = command.logs
                self._answer(lambda: self._open(command))
            case Prepare():
                self._end_shared()
                self._answer(lambda: self.target.prepare(command))
            case Capture():
                self._end_shared()
                self._answer(lambda: self.target.capture(command))
            case AttemptProbe(probe=probe):
                if self.isolation != "fork":
                    self._attempt_here(probe)
                elif not self._attempt_in_shared(probe):
                    self._attempt_in_child(probe)
            case _:
                assert_never(command)

    def _open(self, command: Open) -> Opened:
        opened = self.target.open(command)
        self.isolation = opened.isolation
        gc.freeze()  # what stands now stays: no later collection walks it, here or in a fork
        gc.enable()
        return opened

    def _answer(self, make: Callable[[], ScanReply]) -> None:
        try:
            with keep_process():
                reply = make()
        except BaseException as error:  # also a bug of ours: the engine waits for a reply
            reply = Refused.from_error(error)
        self._take_signals()
        expect_children()
        self._reply(reply)

    def _attempt_in_shared(self, probe: Probe) -> bool:
        """Begin it in a shared child, if it is free of side effects. One that does not pass gets a child of its own."""
        parts = self.target.parts
        if not has_no_side_effects(parts[probe.part], probe):
            return False
        child = self.shared.free()
        if child is None:
            attempt_plain = partial(_attempt_plain, parts, self._child_placement(0))
            child = self.shared.add(attempt_plain, close=self._descriptors())
        self._reply(Started(probe=probe.id, pid=child.pid))
        child.start(probe)
        return True

    def _take_shared(self, child: SharedChild) -> None:
        """Its outcome has come, or it has ended."""
        if (told := self.shared.take(child)) is None:
            return
        probe, outcome = told
        if outcome is not None:
            self._reply(Finished(outcome=outcome))
        else:
            self._attempt_in_child(probe)

    def _end_shared(self) -> None:
        """End the shared children, once they have answered: what they were forked from is about to change."""
        for child in list(self.shared.children):
            if child.probe is not None:
                self._take_shared(child)
        self.shared.end_all()

    def _descriptors(self) -> tuple[int, ...]:
        """What a child must not hold."""
        pipes = (attempt.child.pipe for attempt in self.attempts.values())
        return (self.commands, self.replies, *self._wake, *pipes, *self.shared.descriptors)

    def _attempt_in_child(self, probe: Probe, again: NextAttempt | None = None) -> None:
        """Attempt it in the fast way first; where that leaves the outcome in doubt, `again` in the way that it asks.

        With shims that cured the small model it is expected to pass as that did.
        """
        passed_in_full = self.cured.get((probe.part, probe.fqn, probe.shims))
        if passed_in_full:
            again = NextAttempt.IN_FULL
        will_pass = passed_in_full is not None
        part, files, log = self.target.parts[probe.part], self.target.shim_files, self._log(probe)
        card_mb, card = self._find_room(probe)
        if card is None:
            self.waiting.append((probe, again))
            return
        placed = self._child_placement(card)
        sources = self._load_shims() if probe.shims else {}

        def work(pipe: int) -> bytes | int:
            before = LOG.start_attempt()
            if not probe.shims:
                collect_garbage_less_often()
            if (refused := _place(placed, part, probe)) is not None:
                return encode(refused)
            with _watch_reads(probe):
                outcome = _attempt_function(again, will_pass=will_pass)(part, probe, shim_files=files)
            if isinstance(outcome, NextAttempt):
                return outcome
            if placed is not None:
                outcome = placed.judge(outcome, plain_export=probe.to == "export" and not probe.shims)
            return encode(_with_sources(outcome, before, sources))

        child = fork(work, log=log, close=self._descriptors())
        self.attempts[child.pid] = AttemptChild(child, probe, log, again, card, card_mb)
        self._reply(Started(probe=probe.id, pid=child.pid))

    def _load_shims(self) -> dict[str, str]:
        """Load what attempts with shims need, once for all of them, and return what was read for it."""
        if self._shim_sources is None:
            before = len(LOG.known)
            with LOG.watch():
                load_package_shims()
                import_module("sympy.physics.units")  # torch does when it simplifies an unbacked size
            self._shim_sources = LOG.collect(since=before)
        return self._shim_sources

    def _find_room(self, probe: Probe) -> tuple[float, int | None]:
        """How much of a card the attempt may take, in MiB, and which card has room for it; None if it has to wait."""
        placement = self.target.placement
        needed = placement.needed_mb(self.target.parts[probe.part], probe) if placement is not None else 0.0
        if placement is None or not needed:
            return 0.0, 0
        taken: dict[int, float] = {}
        for running in self.attempts.values():
            taken[running.card] = taken.get(running.card, 0.0) + running.card_mb
        return needed, placement.choose_card(needed, taken)

    def _child_placement(self, card: int) -> ChildPlacement | None:
        return ChildPlacement(self.target.placement, card) if self.target.placement is not None else None

    def _attempt_here(self, probe: Probe) -> None:
        """Attempt it in this process, which is then replaced unless the attempt passes without shims."""
        self._reply(Started(probe=probe.id, pid=os.getpid()))
        write_stacks_to(send_output_to(self._log(probe)))
        before = LOG.start_attempt()
        with _watch_reads(probe):
            outcome = attempt(self.target.parts[probe.part], probe, shim_files=self.target.shim_files)
        outcome = _with_sources(outcome, before)
        self._reply(Finished(outcome=outcome, spoiled=not outcome.passed or bool(probe.shims)))

    def _log(self, probe: Probe) -> str | None:
        return os.path.join(self.logs, f"{probe.id}.log") if self.logs else None

    def _reap(self) -> None:
        for pid, running in list(self.attempts.items()):
            end = running.child.poll()
            if end is None:
                continue
            del self.attempts[pid]
            if (again := running.next_attempt(end)) is not None:
                running.remove_log()
                self._attempt_in_child(running.probe, again)
            else:
                outcome = running.outcome(end)
                if outcome.passed and (one := running.probe).shims and one.part.endswith(SMALL_MODEL_SUFFIX):
                    self.cured[one.part.removesuffix(SMALL_MODEL_SUFFIX), one.fqn, one.shims] = (
                        running.again is not None
                    )
                self._reply(Finished(outcome=outcome))
        for _ in range(len(self.waiting)):
            probe, again = self.waiting.popleft()
            self._attempt_in_child(probe, again)

    def _reply(self, reply: ScanReply) -> None:
        write_line(self.replies, reply)


def _attempt_function(again: NextAttempt | None, *, will_pass: bool) -> Callable[..., Outcome | NextAttempt]:
    """What makes the attempt: the fast one first, then as the one in doubt has asked."""
    if again is None:
        return partial(attempt_fast, will_pass=will_pass)
    return attempt if again == NextAttempt.IN_FULL else attempt_without_shortcuts


def _attempt_plain(parts: Mapping[str, PartCapture], placed: ChildPlacement | None, probe: Probe) -> Outcome | None:
    """In a shared child: the outcome, if the fast attempt has one."""
    part = parts[probe.part]
    if _place(placed, part, probe) is not None:
        return None
    outcome = attempt_fast(part, probe)
    return None if isinstance(outcome, NextAttempt) else outcome


def _place(placed: ChildPlacement | None, part: PartCapture, probe: Probe) -> Outcome | None:
    """Move the question to the GPU, if there is a placement; the outcome where that fails."""
    if placed is None:
        return None
    try:
        placed.place(part, probe)
    except PlacementError as error:
        return Outcome(probe=probe.id, status=OutcomeStatus.NO_DEVICE, note=first_line(error, 300))
    return None


def _watch_reads(probe: Probe) -> contextlib.AbstractContextManager[None]:
    """See what variables and files the attempt asks for; dynamo would trace the code that sees it."""
    return contextlib.nullcontext() if EXPORTERS[probe.exporter].traces_with_dynamo else LOG.watch()


def _with_sources(outcome: Outcome, before: int, loaded: Mapping[str, str] = MappingProxyType({})) -> Outcome:
    """The outcome with what was `loaded` for it or read since so much was known; its part's capture did not."""
    return msgspec.structs.replace(outcome, sources={**loaded, **LOG.collect(since=before)})


def _drain(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 512):
            pass


def serve_plan(plan: Plan, *, commands: int, replies: int, log: str | None) -> None:
    """The forked copy of a process that has the target in memory: it serves, and never returns to its code."""
    code = 70
    try:
        lead_group()
        die_with_parent()
        adopt_orphans()
        read_nothing()
        write_stacks_to(send_output_to(log))
        LOG.forget()
        ScanServer(commands=commands, replies=replies, target=OpenTarget(given=plan)).run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        leave(code)


def main() -> None:
    """The process that the engine spawns."""
    commands, replies = take_line_streams()
    write_stacks_to(os.dup(2))
    ScanServer(commands=commands, replies=replies, target=OpenTarget()).run()
    leave(0)  # threads and exit handlers of the target are not waited for
