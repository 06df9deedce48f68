"""`python -m` in processes that are forked from one with the imports done, which take most of the time of a short run.

For what a program does. What it imports, and how much memory it takes, is shown by `subprocess` only.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import reduction
from pathlib import Path
from typing import Any, Final

CONTEXT: Final = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "kubeletplugin.app",
        "tests.kubeletplugin.crash",
        "commands.cli.convert",
        "commands.cli.main",
        "webhook.server.command",
        "webhook.server.app",
        "runpy",
    ]
)


class _Descriptor:
    """A file descriptor that a new process inherits."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _inherited, (reduction.DupFd(self.number),)


def _inherited(duplicate: Any) -> int:
    number: int = duplicate.detach()
    return number


def _main(module: str, arguments: Sequence[str], cwd: str, environment: Mapping[str, str], streams: list[int]) -> None:
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
        os.close(stream)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the process ends with it
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class Forked:
    """What the tests use of `subprocess.Popen`, for `python -m module`."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        streams: tuple[int, int, int],
        *,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the program.

        Args:
            module: to run as `__main__`.
            arguments: after the program's name.
            streams: file descriptors of standard input, output and errors; they stay open here.
            cwd: directory to run in.
            environment: all variables; None: those of this process.
        """
        variables = dict(os.environ if environment is None else environment)
        descriptors = [_Descriptor(number) for number in streams]
        self._process = CONTEXT.Process(
            target=_main, args=(module, list(arguments), str(cwd or Path.cwd()), variables, descriptors)
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code, or minus the number of the signal; None while the program runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def run(
    module: str, arguments: Sequence[str], *, cwd: Path, environment: Mapping[str, str], stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end."""
    with tempfile.TemporaryFile() as read, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        read.write(stdin)
        read.seek(0)
        streams = (read.fileno(), out.fileno(), errors.fileno())
        code = Forked(module, arguments, streams, cwd=cwd, environment=environment).wait(100)
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess([module, *arguments], code, out.read(), errors.read())
