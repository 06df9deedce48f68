"""Load from wrk, an HTTP load generator in C: one thread that replays request bodies over TLS."""

import dataclasses
import json
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Final

import click
import httpx

from benchmarks.reviews import NUMBER
from benchmarks.servers import cpu_seconds, pinned

_REPLAY: Final = Path(__file__).with_name("replay.lua")
_WARM_UP_SECONDS: Final = 1


@dataclasses.dataclass(frozen=True)
class Measured:
    """One measurement.

    Attributes:
        rps: Requests per second.
        p50: Seconds until the answer; p95 and p99 too.
        cpu: CPU seconds of the server for one request.
        answered: Requests of the measurement.
        other_cpu: CPU seconds of the target's other process for one request.
    """

    rps: float
    p50: float
    p95: float
    p99: float
    cpu: float
    answered: int
    other_cpu: float = 0.0


@dataclasses.dataclass(frozen=True)
class Target:
    """Where reviews go, and which.

    Attributes:
        process: The server's process id, for its CPU time.
        url: With the path.
        bodies: A file with one request body per line; wrk sends them in turns.
        headers: Further headers.
        core: The core of the load generator; None for any.
        other: The id of a process that the server calls, for its CPU time; 0 for none.
    """

    process: int
    url: str
    bodies: Path
    headers: tuple[tuple[str, str], ...] = ()
    core: int | None = 1
    other: int = 0


def require_wrk() -> str:
    """The path of wrk.

    Raises:
        click.ClickException: wrk is not installed.
    """
    found = shutil.which("wrk")
    if found is None:
        raise click.ClickException("wrk is not installed: the load comes from it (package wrk of Debian and others)")
    return found


def run(target: Target, connections: int, seconds: int, *, warm_up: bool = True) -> Measured:
    """Send requests over some connections, each the next one after its answer.

    Raises:
        click.ClickException: A request failed, or its answer was not 2xx.
    """
    if warm_up:
        _wrk(target, connections, _WARM_UP_SECONDS)
    before = _cpu_seconds(target)
    found = _wrk(target, connections, seconds)
    busy, other = (after - then for after, then in zip(_cpu_seconds(target), before, strict=True))
    if found["refused"] or found["broken"] or not found["answered"]:
        raise click.ClickException(
            f"{target.url}: of {found['answered']} requests {found['refused']} were refused, {found['broken']} failed"
        )
    return Measured(
        rps=found["answered"] * 1e6 / found["duration_us"],
        p50=found["p50_us"] / 1e6,
        p95=found["p95_us"] / 1e6,
        p99=found["p99_us"] / 1e6,
        cpu=busy / found["answered"],
        answered=found["answered"],
        other_cpu=other / found["answered"],
    )


def _cpu_seconds(target: Target) -> tuple[float, float]:
    return cpu_seconds(target.process), cpu_seconds(target.other) if target.other else 0.0


def check(target: Target, ca: Path) -> None:
    """Send every body once, before the load: wrk looks at the status of an answer only.

    Raises:
        click.ClickException: An answer does not admit the object.
    """
    with httpx.Client(verify=ssl.create_default_context(cafile=str(ca)), trust_env=False) as client:
        for number, line in enumerate(target.bodies.read_text().splitlines()):
            body = line.replace(NUMBER, "0")
            answer = client.post(target.url, content=body, headers={"Content-Type": "application/json"})
            if answer.status_code != httpx.codes.OK or not answer.json()["response"]["allowed"]:
                raise click.ClickException(f"{target.url}: review {number} of {target.bodies}: {answer.text[:500]}")


def _wrk(target: Target, connections: int, seconds: int) -> dict[str, int]:
    command = [
        *(require_wrk(), "--threads", "1", "--connections", str(connections), "--timeout", "30s"),
        *("--duration", f"{seconds}s", "--script", str(_REPLAY), target.url, "--", str(target.bodies)),
        *(part for header in target.headers for part in header),
    ]
    if target.core is not None:
        command = pinned(command, target.core)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"wrk exited with {done.returncode}: {done.stdout}")
    result: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return result
