"""`make bench`: the webhook and a bare Starlette route, one pinned core each, TLS keep-alive, 1 and 64 connections.

Rounds alternate between the cases, so that a slow machine affects all of them. The table shows medians.
"""

import contextlib
import json
import os
import platform
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from benchmarks import reviews

CONNECTIONS = (1, 64)
_TICKS = os.sysconf("SC_CLK_TCK")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _pinned(command: list[str], core: int) -> list[str]:
    taskset = shutil.which("taskset")
    return [taskset, "-c", str(core), *command] if taskset and (os.cpu_count() or 1) > 1 else command


def _wait_ready(port: int, ca: Path) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            context = ssl.create_default_context(cafile=str(ca))
            with urllib.request.urlopen(f"https://localhost:{port}/readyz", context=context):
                return
        time.sleep(0.005)
    raise click.ClickException(f"the server on port {port} was not ready after 20 s")


@contextlib.contextmanager
def _running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as stream, subprocess.Popen(_pinned(command, 0), stdout=stream, stderr=stream) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


def _webhook(port: int, metrics_port: int, tls: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "webhook", "webhook", "--standalone"),
        *("--port", str(port), "--metrics-port", str(metrics_port), "--tls-dir", str(tls)),
    ]


def _cold_start(tls: Path, folder: Path) -> float:
    """Seconds from process start to an answer of /readyz over TLS. The certificate exists already."""
    port = _free_port()
    started = time.perf_counter()
    with _running(_webhook(port, _free_port(), tls), folder / "cold.log"):
        _wait_ready(port, tls / "ca.crt")
        return time.perf_counter() - started


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _rss(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _load(
    process: int, port: int, path: str, ca: Path, requests: Path, connections: int, seconds: float
) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.load", str(port), path, str(ca), str(requests)]
    before = cpu_seconds(process)
    done = subprocess.run(
        _pinned([*command, str(connections), str(seconds)], 1), stdout=subprocess.PIPE, text=True, check=True
    )
    result: dict[str, float] = json.loads(done.stdout)
    result["cpu"] = cpu_seconds(process) - before
    if result["failed"]:
        raise click.ClickException(f"{result['failed']:.0f} reviews failed at {path}")
    return result


def _report(results: dict[tuple[str, int], list[dict[str, float]]]) -> None:
    def median(case: str, connections: int, figure: str) -> float:
        return statistics.median(result[figure] for result in results[case, connections])

    cases = list(dict.fromkeys(case for case, _ in results))
    click.echo(
        f"\n{'case':<42} {'conns':>5} {'reviews/s':>10} {'x bare':>7} {'p50 ms':>7} {'p99 ms':>7} {'p99 x bare':>10}"
    )
    for connections in CONNECTIONS:
        for case in cases:
            rps, p99 = median(case, connections, "rps"), median(case, connections, "p99")
            bare_rps, bare_p99 = median(cases[0], connections, "rps"), median(cases[0], connections, "p99")
            click.echo(
                f"{case:<42} {connections:>5} {rps:>10.0f} {rps / bare_rps:>7.2f}"
                f" {median(case, connections, 'p50') * 1000:>7.2f} {p99 * 1000:>7.2f} {p99 / bare_p99:>10.2f}"
            )


@click.command()
@click.option("--seconds", default=4.0, show_default=True, help="Length of one measurement.")
@click.option("--rounds", default=3, show_default=True, help="Measurements of each case; the table shows medians.")
def main(seconds: float, rounds: int) -> None:
    """Measure the webhook and a bare Starlette route."""
    with tempfile.TemporaryDirectory(prefix="neuron-dra-bench-") as name:
        folder = Path(name)
        tls = folder / "tls"
        plain, converted, distinct, claims, others = (folder / name for name in "abcde")
        reviews.write(plain, reviews.pod(None))
        reviews.write(converted, reviews.pod("4"))
        reviews.write(distinct, reviews.pod("4"), distinct=True)
        reviews.write(claims, reviews.template())
        reviews.write(others, reviews.template(), distinct=True)
        pod_size, claim_size = (
            len(json.dumps(manifest, separators=(",", ":"))) for manifest in (reviews.pod("4"), reviews.template())
        )
        click.echo(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()};")
        click.echo(f"server on core 0, load on core 1; pod {pod_size} bytes, template {claim_size} bytes.")
        _cold_start(tls, folder)
        cold = statistics.median(_cold_start(tls, folder) for _ in range(rounds))
        ports = _free_port(), _free_port()
        bare = [sys.executable, "-m", "benchmarks.bare", str(ports[0]), str(tls / "tls.crt"), str(tls / "tls.key")]
        with (
            _running(bare, folder / "bare.log") as first,
            _running(_webhook(ports[1], _free_port(), tls), folder / "webhook.log") as second,
        ):
            for port in ports:
                _wait_ready(port, tls / "ca.crt")
            idle = _rss(second.pid)
            cases: dict[str, tuple[Any, ...]] = {
                "bare Starlette route, a constant": (first.pid, ports[0], "/bare", tls / "ca.crt", converted),
                "pass-through: pod without Neuron": (second.pid, ports[1], "/mutate", tls / "ca.crt", plain),
                "conversion: replicas, template cached": (second.pid, ports[1], "/mutate", tls / "ca.crt", converted),
                "conversion: every pod another demand": (second.pid, ports[1], "/mutate", tls / "ca.crt", distinct),
                "validation: the same template again": (second.pid, ports[1], "/validate", tls / "ca.crt", claims),
                "validation: every template another": (second.pid, ports[1], "/validate", tls / "ca.crt", others),
            }
            results: dict[tuple[str, int], list[dict[str, float]]] = {}
            for _ in range(rounds):
                for connections in CONNECTIONS:
                    for case, target in cases.items():
                        results.setdefault((case, connections), []).append(_load(*target, connections, seconds))
            loaded = _rss(second.pid)
        _report(results)
        click.echo(
            f"\ncold start to ready over TLS: {cold:.2f} s; RSS: {idle:.0f} MiB ready, {loaded:.0f} MiB after load"
        )


if __name__ == "__main__":
    main()
