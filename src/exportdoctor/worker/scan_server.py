"""A worker's main loop: read commands, open and capture the target, attempt probes, reply.

With `fork` isolation each attempt is a child; with `process` isolation this process attempts it itself, says that
it is spoiled, and is replaced by the engine.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

from exportdoctor.core.codec import decode, encode
from exportdoctor.core.outcome import Outcome
from exportdoctor.core.probe import Probe
from exportdoctor.core.protocol.reply import Refused
from exportdoctor.core.protocol.scan import (
    AttemptProbe,
    Capture,
    Finished,
    Open,
    Opened,
    Prepare,
    ScanCommand,
    ScanReply,
    Started,
)
from exportdoctor.targets import Plan
from exportdoctor.worker.attempt.export_attempt import attempt, attempt_fast
from exportdoctor.worker.attempt.fast_export import has_no_side_effects
from exportdoctor.worker.attempt_child import IN_DOUBT, Child, clear_group, fork
from exportdoctor.worker.batched_attempts import Aside, aside
from exportdoctor.worker.open_target import Opening
from exportdoctor.worker.process_setup import die_with_parent, lead_a_group, send_output_to, write_stacks_to


@dataclass
class Server:
    """Commands come in on one descriptor, replies go out on another. Ends when the commands end."""

    commands: int
    replies: int
    opening: Opening
    logs: str | None = None
    children: dict[int, Child] = field(default_factory=dict)
    isolation: str = "fork"
    aside: Aside | None = None
    _buffer: bytearray = field(default_factory=bytearray)
    _wake: tuple[int, int] = (-1, -1)

    def run(self) -> None:
        """Serve until the engine closes its end."""
        self._wake = os.pipe()
        for end in self._wake:
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the engine decides
        signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        try:
            self._loop()
        finally:
            self._end_aside()
            for pid in self.children:
                clear_group(pid)

    def _loop(self) -> None:
        while True:
            with selectors.DefaultSelector() as selector:
                selector.register(self.commands, selectors.EVENT_READ)
                selector.register(self._wake[0], selectors.EVENT_READ)
                for child in self.children.values():
                    selector.register(child.pipe, selectors.EVENT_READ, child)
                ready = selector.select()
            for key, _ in ready:
                if key.fd == self.commands:
                    if not self._read_commands():
                        return
                elif key.fd == self._wake[0]:
                    _drain(self._wake[0])
                elif not key.data.read():
                    pass  # the pipe's end comes just before the child's; it is reaped below
            self._reap()

    def _read_commands(self) -> bool:
        chunk = os.read(self.commands, 1 << 16)
        if not chunk:
            return False
        self._buffer.extend(chunk)
        while b"\n" in self._buffer:
            line, _, rest = self._buffer.partition(b"\n")
            self._buffer = bytearray(rest)
            command: ScanCommand = decode(bytes(line), ScanCommand)
            self._obey(command)
        return True

    def _obey(self, command: ScanCommand) -> None:
        match command:
            case Open():
                self.logs = command.logs
                self._answer(lambda: self._opened(command))
            case Prepare():
                self._end_aside()
                self._answer(lambda: self.opening.prepare(command))
            case Capture():
                self._end_aside()
                self._answer(lambda: self.opening.capture(command))
            case AttemptProbe(probe=probe):
                if self.isolation == "fork":
                    if not self._passed_aside(probe):
                        self._attempt_in_child(probe)
                else:
                    self._reply(Started(probe=probe.id, pid=os.getpid()))
                    self._attempt_here(command)
            case _:
                assert_never(command)

    def _opened(self, command: Open) -> Opened:
        opened = self.opening.open(command)
        self.isolation = opened.isolation
        gc.freeze()  # what stands now stays: no later collection walks it, here or in a fork
        gc.enable()
        return opened

    def _answer(self, make: Callable[[], ScanReply]) -> None:
        try:
            self._reply(make())
        except Exception as error:  # also a bug of ours: the engine waits for a reply
            self._reply(Refused.from_error(error))

    def _passed_aside(self, probe: Probe) -> bool:
        """Whether it needed no child of its own: it is harmless, and passed."""
        parts = self.opening.parts
        if not has_no_side_effects(parts[probe.part], probe):
            return False
        if self.aside is None:
            self.aside = aside(lambda one: attempt_fast(parts[one.part], one), close=self._descriptors())
        self._reply(Started(probe=probe.id, pid=self.aside.pid))
        outcome = self.aside.passed(probe)
        if outcome is None:
            self._end_aside()
            return False
        self._reply(Finished(outcome=outcome))
        return True

    def _end_aside(self) -> None:
        """What it was forked from is no longer what stands here, or it has ended."""
        if self.aside is not None:
            self.aside.end()
            self.aside = None

    def _descriptors(self) -> tuple[int, ...]:
        """What a child must not hold."""
        pipes = (child.pipe for child in self.children.values())
        return (self.commands, self.replies, *self._wake, *pipes, *(self.aside.descriptors if self.aside else ()))

    def _attempt_in_child(self, probe: Probe, *, final: bool = False) -> None:
        """AttemptProbe it thriftily at first; where the answer to that is in doubt, without savings, which is final."""
        how: Callable[..., Outcome | None] = attempt if final else attempt_fast
        part, files = self.opening.parts[probe.part], self.opening.shim_files
        child = fork(
            probe, lambda asked: how(part, asked, shim_files=files), log=self._log(probe), close=self._descriptors()
        )
        child.final = final
        self.children[child.pid] = child
        self._reply(Started(probe=probe.id, pid=child.pid))

    def _attempt_here(self, command: AttemptProbe) -> None:
        log = self._log(command.probe)
        write_stacks_to(send_output_to(log))
        part, files = self.opening.parts[command.probe.part], self.opening.shim_files
        outcome = attempt(part, command.probe, shim_files=files)
        self._reply(Finished(outcome=outcome, spoiled=not outcome.passed or bool(command.probe.shims)))

    def _log(self, probe: Probe) -> str | None:
        return os.path.join(self.logs, f"{probe.id}.log") if self.logs else None

    def _reap(self) -> None:
        for pid in list(self.children):
            done, status, usage = os.wait4(pid, os.WNOHANG)
            if done:
                child = self.children.pop(pid)
                outcome = child.ended(status, usage.ru_maxrss)
                if outcome.signal == f"exit code {IN_DOUBT}" and not child.final:
                    if child.log:
                        _remove(child.log)
                    self._attempt_in_child(child.probe, final=True)
                    continue
                if outcome.passed and child.log:
                    _remove(child.log)
                self._reply(Finished(outcome=outcome))

    def _reply(self, reply: ScanReply) -> None:
        data = memoryview(encode(reply) + b"\n")
        while data:
            data = data[os.write(self.replies, data) :]


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 512):
            pass
    except BlockingIOError:
        pass


def _remove(path: str) -> None:
    try:
        os.remove(path)
    except OSError:
        pass


def serve_plan(plan: Plan, *, commands: int, replies: int, log: str | None) -> None:
    """The forked copy of a process that has the target in memory: it serves, and never returns to its code."""
    code = 70
    try:
        lead_a_group()
        die_with_parent()
        send_output_to(log)
        Server(commands=commands, replies=replies, opening=Opening(given=plan)).run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def main() -> None:
    """The process that the engine starts: commands on stdin, replies on what was stdout, talk on stderr."""
    die_with_parent()
    replies = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    Server(commands=0, replies=replies, opening=Opening()).run()
