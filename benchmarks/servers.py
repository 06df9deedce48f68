"""Servers under load: start and pin them, wait for them, read their CPU time and memory."""

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import click

from tests.support.packages import python_path

_TICKS = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def pinned(command: list[str], core: int) -> list[str]:
    """The command on one core, where the machine has several and taskset is installed."""
    taskset = shutil.which("taskset")
    return [taskset, "-c", str(core), *command] if taskset and (os.cpu_count() or 1) > 1 else command


def wait_ready(port: int, ca: Path) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            context = ssl.create_default_context(cafile=str(ca))
            with urllib.request.urlopen(f"https://localhost:{port}/readyz", context=context):
                return
        time.sleep(0.005)
    raise click.ClickException(f"the server on port {port} was not ready after 20 s")


@contextlib.contextmanager
def running(
    command: list[str], log: Path, *, core: int | None = 0, tree: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A server, pinned to a core unless `core` is None; with the modules of `tree` if it is set."""
    pinned_command = command if core is None else pinned(command, core)
    environment = None if tree is None else {**os.environ, "PYTHONPATH": python_path(tree)}
    with (
        log.open("wb") as stream,
        subprocess.Popen(pinned_command, stdout=stream, stderr=stream, cwd=tree, env=environment) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


def webhook(port: int, metrics_port: int, tls: Path, module: str = "webhook") -> list[str]:
    """The command of a webhook without an API server; `module` has the commands."""
    return [
        *(sys.executable, "-m", module, "webhook", "--standalone"),
        *("--port", str(port), "--metrics-port", str(metrics_port), "--tls-dir", str(tls)),
    ]


def bare(port: int, tls: Path, *arguments: str) -> list[str]:
    """The command of a Starlette route that returns a constant."""
    return [sys.executable, "-m", "benchmarks.bare", str(port), str(tls / "tls.crt"), str(tls / "tls.key"), *arguments]


def go_references(folder: Path) -> Path | None:
    """Build the webhooks in Go (`references/main.go`); None, and a line that says why, without a Go toolchain."""
    go = os.environ.get("NEURON_DRA_GO") or shutil.which("go")
    if go is None:
        click.echo("without the references in Go: no Go toolchain (install go, or set NEURON_DRA_GO to its path)")
        return None
    built = folder / "references"
    command = [go, "build", "-o", str(built), "."]
    # Only packages of Go's library: nothing is downloaded.
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod", "GOPROXY": "off"}
    source = Path(__file__).with_name("references")
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        click.echo(f"without the references in Go: {go} build failed: {done.stderr.strip()[:300]}")
        return None
    return built


def references(built: Path, port: int, tls: Path) -> list[str]:
    """The command of the webhooks in Go."""
    return [str(built), str(port), str(tls / "tls.crt"), str(tls / "tls.key")]


def cold_start(tls: Path, folder: Path, module: str = "webhook", tree: Path | None = None) -> float:
    """Seconds from process start to an answer of /readyz over TLS; the first call also makes the certificate."""
    port = free_port()
    started = time.perf_counter()
    with running(webhook(port, free_port(), tls, module), folder / "cold.log", tree=tree):
        wait_ready(port, tls / "ca.crt")
        return time.perf_counter() - started


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def rss_mib(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
