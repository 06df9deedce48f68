"""Child processes with a log file each, and waiting for what they promise."""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

_TAIL: Final = 4000
_INTERVAL: Final = 0.05
_LONGEST_INTERVAL: Final = 0.5
_SHARE: Final = 0.05
"""Of the time waited so far: the longer something takes, the less often `eventually` looks."""
_FIRST_PORT: Final = 12_000
_PORTS: Final = 2_000
_WORKERS: Final = 8


LESS_COLLECTING: Final = {"GOGC": "400"}
"""Environment of programs in Go: a fifth less CPU time of kube-apiserver, for 120 MiB more."""


class ProcessFailedError(RuntimeError):
    """A child ended, or did not get ready; the message carries the end of its log."""


def own_ports(worker: str, pid: int) -> Iterator[int]:
    """The ports of one pytest process, again and again.

    They are below those that the kernel gives to outgoing connections, and no worker of a run has those of another:
    so nothing takes a port between its choice and the start of the process that listens on it.
    """
    number = int(worker.removeprefix("gw") or 0) % _WORKERS
    first = _FIRST_PORT + _PORTS * number
    return itertools.cycle(first + (pid + each) % _PORTS for each in range(_PORTS))


_OWN_PORTS: Final = own_ports(os.environ.get("PYTEST_XDIST_WORKER", ""), os.getpid())


def free_ports(count: int, address: str = "127.0.0.1") -> list[int]:
    """Ports of an address of this host that nothing listens on."""
    found: list[int] = []
    for port in itertools.islice(_OWN_PORTS, _PORTS):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((address, port))
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"{_PORTS} ports of {address} are all in use")


def eventually(what: str, attempt: Callable[[], T | None], *, timeout: float = 60.0, interval: float = _INTERVAL) -> T:
    """Call `attempt` until it returns something true, and return that.

    Args:
        what: ends the sentence "gave up waiting for …".
        attempt: returns the awaited thing, or something false; its AssertionErrors count as "not yet".
        timeout: seconds.
        interval: seconds between attempts, at first.

    Raises:
        TimeoutError: it never did; names the last AssertionError.
    """
    began = time.monotonic()
    while True:
        last = ""
        try:
            result = attempt()
        except AssertionError as error:
            result, last = None, f": {error}"
        if result:
            return result
        waited = time.monotonic() - began
        if waited > timeout:
            raise TimeoutError(f"gave up waiting for {what} after {timeout:.0f} s{last}")
        time.sleep(max(interval, min(_LONGEST_INTERVAL, _SHARE * waited)))


class Process:
    """One child in its own process group; its stdout and stderr go to `log`."""

    def __init__(self, name: str, argv: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log = log
        self._argv = [str(part) for part in argv]
        self._env = {**os.environ, **(env or {})}
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it. What an earlier run logged stays in the file."""
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env, process_group=0
            )

    @property
    def pid(self) -> int:
        """The child's process id."""
        if self._child is None:
            raise ProcessFailedError(f"{self.name} was not started")
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        """How it ended; None while it runs."""
        return None if self._child is None else self._child.poll()

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._child is not None and self._child.poll() is None

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-_TAIL:] if self.log.exists() else ""

    def wait_ready(self, ready: Callable[[], bool], timeout: float = 60.0) -> None:
        """Return when `ready` does.

        Raises:
            ProcessFailedError: the child ended first, or the time is up.
        """

        def attempt() -> bool:
            if self.returncode is not None:
                raise ProcessFailedError(f"{self.name} ended with {self.returncode}:\n{self.tail()}")
            return ready()

        try:
            eventually(f"{self.name} to be ready", attempt, timeout=timeout)
        except TimeoutError as error:
            raise ProcessFailedError(f"{error}:\n{self.tail()}") from error

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()

    def stop(self, grace: float = 15.0) -> int | None:
        """SIGTERM once, wait, SIGKILL to its group; returns how it ended."""
        child, self._child = self._child, None
        if child is None:
            return None
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(grace)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait(grace)
        return child.returncode
