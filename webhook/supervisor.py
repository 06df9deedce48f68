"""Several workers behind one port: starts them, watches them, starts them again, and ends with them.

The supervisor binds the ports, so that whoever cannot have them hears it once, and forks. It forks again whenever a
worker is to be replaced, so it must stay what it was before the first fork: one thread, no event loop, no connection.
Hence it has nothing to do but wait for signals.
"""

import asyncio
import contextlib
import ctypes
import dataclasses
import gc
import logging
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from typing import Final, NoReturn

import uvloop

from webhook import app
from webhook.edge import logs, server
from webhook.settings import Settings, StartupError
from webhook.workers.member import Member
from webhook.workers.metrics import mailboxes
from webhook.workers.page import SERVED, Page
from webhook.workers.restarts import HUNG_AFTER, Restarts, Silence, describe
from webhook.workers.seat import Seat

log = logging.getLogger(__name__)

COULD_NOT_START: Final = 3
FAILED: Final = 1

_WAITED_FOR: Final = frozenset({*server.SIGNALS, signal.SIGCHLD})
_TICK: Final = 1.0
"""Seconds between looks at heartbeats."""
_GRACE: Final = 5.0
"""Seconds that a worker may take to end, beyond what the settings give its reviews."""
_AT_ONCE: Final = 2.0
"""Seconds that a worker may take to end after a second signal."""
_LONGEST_REPORT: Final = 60_000
"""Bytes that fit into a pipe, which nobody reads until the worker has ended."""
_PR_SET_PDEATHSIG: Final = 1


def run(settings: Settings, size: int, *, hung_after: float = HUNG_AFTER) -> int:
    """Serve with `size` workers until SIGTERM or SIGINT.

    Args:
        settings: of every worker.
        size: how many.
        hung_after: seconds without a heartbeat after which a worker is replaced.

    Returns:
        The exit code: 0 if every worker drained.

    Raises:
        StartupError: something that the workers need cannot be had.
    """
    if platform.system() != "Linux":
        raise StartupError("More than one worker needs Linux. Set --workers to 1.")
    logs.configure(logs.resolve(settings.log_format), settings.log_level)
    app.prepare(settings)
    page, boxes = Page(size), mailboxes(size)
    with contextlib.ExitStack() as listeners:
        listener = listeners.enter_context(app.listen(settings))
        scrapes = app.listen_for_scrapes(settings)
        if scrapes is not None:
            # Whoever finds that a sibling was first must not wait for the next scrape.
            scrapes.setblocking(False)
            listeners.enter_context(scrapes)

        def work(index: int) -> None:
            for handler in logging.getLogger().handlers:
                handler.addFilter(_Numbered(index))
            seat = Seat(Member(page, index), listener, scrapes, boxes)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(app.serve(settings, seat))

        patience = settings.drain_delay + settings.drain_timeout + _GRACE
        supervisor = Supervisor(page, work, listeners.close, patience=patience, hung_after=hung_after)
        return supervisor.run()


class _Numbered(logging.Filter):
    """Adds the worker to every record."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self._index = index

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep it."""
        record.worker = self._index
        return True


@dataclasses.dataclass(slots=True)
class _Worker:
    """A slot, and the process that is in it.

    Attributes:
        index: of the slot.
        pid: 0 while there is none.
        started: when.
        due: when to start it again.
        silence: how long it has not been heard of.
        report: end of a pipe, on which it says why it could not start.
        killed: it was told to end at once.
    """

    index: int
    restarts: Restarts = dataclasses.field(default_factory=Restarts)
    pid: int = 0
    started: float = 0.0
    due: float = 0.0
    silence: Silence | None = None
    report: int = -1
    killed: bool = False


class Supervisor:
    """Keeps every slot of a page occupied until it is told to stop."""

    def __init__(
        self,
        page: Page,
        work: Callable[[int], None],
        stop_listening: Callable[[], object],
        *,
        patience: float,
        hung_after: float,
    ) -> None:
        """Supervise; times in seconds.

        Args:
            page: a slot for each worker.
            work: what worker number so-and-so does, in its own process, until SIGTERM.
            stop_listening: closes our copies of listeners: a port is open as long as anybody has it.
            patience: how long workers may take to drain.
            hung_after: silence after which a worker is replaced.
        """
        self._slots = page.slots
        self._work = work
        self._stop_listening = stop_listening
        self._patience = patience
        self._hung_after = hung_after
        self._workers = [_Worker(index) for index in range(len(page.slots))]
        self._settled = self._stopping = False
        self._deadline = 0.0
        self._code = 0
        self._reason = ""
        self._mask: set[int] = set()

    def run(self) -> int:
        """Start workers and stay until the last has ended.

        Returns:
            The exit code.

        Raises:
            StartupError: a worker could not start, the first time.
        """
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
        # Pages that the collector does not touch stay shared.
        gc.collect()
        gc.freeze()
        try:
            self._start_due(time.monotonic())
            log.info("supervising", extra={"workers": [worker.pid for worker in self._workers]})
            while not self._stopping or any(worker.pid for worker in self._workers):
                received = signal.sigtimedwait(_WAITED_FOR, self._idle(time.monotonic()))
                if received is not None and received.si_signo in server.SIGNALS:
                    self._stop()
                self._settled = self._settled or all(slot.flags & SERVED for slot in self._slots)
                self._reap()
                now = time.monotonic()
                self._look(now)
                self._start_due(now)
        finally:
            self._kill(self._workers)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        if self._reason:
            raise StartupError(self._reason)
        log.info("stopped")
        return self._code

    def _idle(self, now: float) -> float:
        """Seconds until something is to be done without a signal."""
        due = (worker.due for worker in self._workers if not worker.pid and not self._stopping)
        return max(0.0, min((_TICK, *(moment - now for moment in due))))

    def _start_due(self, now: float) -> None:
        for worker in self._workers:
            if not worker.pid and not self._stopping and worker.due <= now:
                self._start(worker, now)

    def _start(self, worker: _Worker, now: float) -> None:
        slot = self._slots[worker.index]
        slot.prepare(time.monotonic_ns())
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        supervisor = os.getpid()
        pid = os.fork()
        if not pid:
            self._be(worker.index, supervisor, writing)
        os.close(writing)
        slot.pid = worker.pid = pid
        worker.started, worker.report, worker.killed = now, reading, False
        worker.silence = Silence(now, slot.beat, _TICK)

    def _be(self, index: int, supervisor: int, report: int) -> NoReturn:
        """Live as a worker; what is above on the stack is the supervisor's and not returned to."""
        code = FAILED
        try:
            # Ctrl-C goes to the supervisor, which tells us: twice would mean "at once".
            os.setpgid(0, 0)
            _die_with(supervisor)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            self._work(index)
            code = 0
        except StartupError as error:
            code = COULD_NOT_START
            os.write(report, str(error).encode()[:_LONGEST_REPORT])
        except BaseException:
            log.exception("worker failed", extra={"worker": index})
        finally:
            logging.shutdown()
            sys.stdout.flush()
            os._exit(code)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                for worker in self._workers:
                    if worker.pid == ended[0]:
                        self._ended(worker, ended[1])

    def _ended(self, worker: _Worker, status: int) -> None:
        code, now = os.waitstatus_to_exitcode(status), time.monotonic()
        reason = _read_all(worker.report)
        facts = {"worker": worker.index, "pid": worker.pid, "end": describe(status)}
        self._slots[worker.index].pid = worker.pid = 0
        if reason:
            facts["reason"] = reason
        if self._stopping:
            # A worker that is told to stop before it listens to signals ends by that signal.
            if code not in (0, -signal.SIGTERM) and not self._code:
                self._code = FAILED
                log.error("worker did not drain", extra=facts)
        elif code > 0 and not self._settled:
            # What one cannot have, none can: as a single process, end and say why.
            self._stopping, self._code, self._reason = True, code, reason
            if not reason:
                log.error("worker could not start", extra=facts)
            self._kill(self._workers)
        else:
            delay = worker.restarts.died(now - worker.started)
            worker.due = now + delay
            log.error("worker died", extra={**facts, "restart_in": delay})

    def _look(self, now: float) -> None:
        """Kill whoever hangs, or takes too long to end."""
        if self._stopping:
            if self._deadline and now > self._deadline:
                self._kill(self._workers)
            return
        for worker in self._workers:
            if worker.pid and worker.silence is not None and not worker.killed:
                silent = worker.silence.look(now, self._slots[worker.index].beat)
                if silent > self._hung_after:
                    facts = {"worker": worker.index, "pid": worker.pid, "silent": round(silent, 1)}
                    log.error("worker hangs", extra=facts)
                    self._kill([worker])

    def _stop(self) -> None:
        """Let workers drain; called again, have them end at once."""
        now = time.monotonic()
        if not self._stopping:
            self._stopping = True
            self._deadline = now + self._patience
            self._stop_listening()
        else:
            self._deadline = min(self._deadline or now, now + _AT_ONCE)
        for worker in self._workers:
            if worker.pid:
                os.kill(worker.pid, signal.SIGTERM)

    def _kill(self, workers: list[_Worker]) -> None:
        for worker in workers:
            if worker.pid and not worker.killed:
                worker.killed = True
                os.kill(worker.pid, signal.SIGKILL)


def _die_with(supervisor: int) -> None:
    """End when the supervisor does, however it ends: in a container the kernel would see to it, elsewhere nobody."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != supervisor:
        raise ProcessLookupError("the supervisor is gone")


def _read_all(pipe: int) -> str:
    with open(pipe, "rb") as stream:
        return (stream.read() or b"").decode(errors="replace")
