"""`make bench-against BASE=<commit>`: this build and an earlier one side by side, in one run.

Both servers share a core, and the load has another. Measurements take turns, and each round begins with the other
build, so that a busy machine affects both. The table has the ratio of each row: median and quartiles over the rounds,
above 1 if this build is better. Rates of a busy machine scatter; the CPU time of a review is steadier, and it decides.
The earlier commit runs with the packages that are installed now. Exit code 1 if a row is slower than allowed.
"""

import contextlib
import dataclasses
import json
import os
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Final

import click

from benchmarks import load, policies, reviews, servers

LEAST: Final = 0.95
"""Ratio below which a row counts as slower."""
_ROOT: Final = Path(__file__).resolve().parents[1]
_LARGE: Final = 1024 * 1024
_SETTLED: Final = 11
"""Seconds after the load until memory is read: freed memory returns to the kernel every 10 s."""
_PREPARED: Final = re.compile(r"^(\w[\w ]*?)\s+p50\s+([\d.]+) ms", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Build:
    """One of the two builds.

    Attributes:
        name: "now" or "base".
        tree: its files.
    """

    name: str
    tree: Path

    @property
    def module(self) -> str:
        """The module with the commands: its name has changed between commits."""
        return "webhook" if (self.tree / "webhook" / "__main__.py").exists() else "commands"


@dataclasses.dataclass
class Row:
    """One line of the table.

    Attributes:
        title: what is measured.
        ratios: of each round, this build's figure against the base's; above 1 is better.
        rates: the same for reviews per second, if it is a row with load.
        bare: reviews per second against the bare route, if that is measured.
        unit: of `figures`.
        figures: of this build and of the base, by round.
    """

    title: str
    unit: str = "CPU us"
    ratios: list[float] = dataclasses.field(default_factory=list)
    rates: list[float] = dataclasses.field(default_factory=list)
    bare: list[float] = dataclasses.field(default_factory=list)
    figures: list[tuple[float, float]] = dataclasses.field(default_factory=list)

    def add(self, now: float, base: float) -> None:
        """Add a round's figures, of which the smaller one is better."""
        self.ratios.append(base / now if now else 1.0)
        self.figures.append((now, base))

    def slower(self, least: float) -> bool:
        """Whether this build is slower than allowed."""
        return statistics.median(self.ratios) < least

    def __str__(self) -> str:
        now, base = (statistics.median(each[at] for each in self.figures) for at in (0, 1))
        rate = spread(self.rates) if self.rates else ""
        bare = f"{statistics.median(self.bare):.2f}" if self.bare else ""
        return (
            f"{self.title:<50} {now:>9.2f} {base:>9.2f} {self.unit:<7} {spread(self.ratios):>17} {rate:>17} {bare:>6}"
        )


HEADER: Final = (
    f"{'case, connections':<50} {'now':>9} {'base':>9} {'':<7} {'x base':>17} {'rate x base':>17} {'x bare':>6}"
)


def spread(values: Sequence[float]) -> str:
    """Median and quartiles."""
    low, high = min(values), max(values)
    if len(values) > 1:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{statistics.median(values):.2f} ({low:.2f}-{high:.2f})"


def unpack(commit: str, target: Path, root: Path = _ROOT) -> str:
    """Write the files of a commit to a folder. Returns its abbreviated id.

    Raises:
        click.ClickException: there is no such commit.
    """
    found = subprocess.run(
        ["git", "rev-parse", "--short", "--verify", "--quiet", f"{commit}^{{commit}}"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise click.ClickException(f"{commit!r} is no commit of this repository. Set BASE to one, for example HEAD~5.")
    archive = subprocess.run(
        ["git", "archive", "--format=tar", found.stdout.strip()], cwd=root, capture_output=True, check=True
    )
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(target, filter="data")
    return found.stdout.strip()


def alternating(rounds: int) -> Iterator[tuple[int, int]]:
    """The order of the two builds in each round."""
    for number in range(rounds):
        yield (0, 1) if number % 2 == 0 else (1, 0)


def in_turns(measure: Sequence[Callable[[], float]], rounds: int) -> list[tuple[float, float]]:
    """Call both functions in each round. Returns the results of the first and the second."""
    results = []
    for order in alternating(rounds):
        found = {at: measure[at]() for at in order}
        results.append((found[0], found[1]))
    return results


def prepared(output: str) -> dict[str, float]:
    """Milliseconds by operation, from the output of `benchmarks.prepare`."""
    return {f"{name} (driver)": float(figure) for name, figure in _PREPARED.findall(output)}


def _prepare(build: Build) -> dict[str, float]:
    command = servers.pinned([sys.executable, "-m", "benchmarks.prepare", "--claims", "100"], 0)
    environment = {**os.environ, "PYTHONPATH": str(build.tree)}
    done = subprocess.run(command, cwd=build.tree, env=environment, capture_output=True, text=True, check=True)
    return prepared(done.stdout)


def prepare_rows(builds: Sequence[Build], rounds: int) -> list[Row]:
    """The driver's operations; those that only one build has are left out."""
    rows: dict[str, Row] = {}
    for order in alternating(rounds):
        found = {at: _prepare(builds[at]) for at in order}
        for title, now in found[0].items():
            if title in found[1]:
                rows.setdefault(title, Row(title, "ms")).add(now, found[1][title])
    return list(rows.values())


def start_row(builds: Sequence[Build], folder: Path, rounds: int) -> Row:
    """The time from the start of the process to ready."""

    def start(build: Build) -> float:
        return servers.cold_start(folder / build.name, folder, build.module, build.tree)

    row = Row("start to ready", "s")
    for build in builds:
        start(build)  # The first start makes the certificates, and bytecode.
    for pair in in_turns([lambda build=build: start(build) for build in builds], rounds):  # type: ignore[misc]
        row.add(*pair)
    return row


@dataclasses.dataclass(frozen=True)
class Load:
    """One row with load: path, bodies, connections and headers."""

    title: str
    path: str
    bodies: Path
    connections: int
    headers: tuple[tuple[str, str], ...] = ()
    folder: str = ""
    """Of the policies; without one, the server has none."""


def loads(folder: Path) -> list[Load]:
    """All rows with load; writes their bodies."""
    made = {
        "pass-through": ("/mutate", reviews.write, reviews.pod(None)),
        "conversion, replicas": ("/mutate", reviews.write, reviews.pod("4")),
        "conversion, other names": ("/mutate", reviews.write_renamed, reviews.pod("4")),
        "conversion, first of its kind": ("/mutate", reviews.write_distinct, reviews.pod("4")),
        "validation, the same template": ("/validate", reviews.write, reviews.template()),
        "validation, other names": ("/validate", reviews.write_renamed, reviews.template()),
        "validation, first of its kind": ("/validate", reviews.write_distinct, reviews.template()),
        "validation, a pod": ("/validate", reviews.write, reviews.pod("4")),
        "pass-through, 1 MiB": ("/mutate", _write_large, reviews.pod(None)),
        "conversion, 1 MiB": ("/mutate", _write_large, reviews.pod("4")),
    }
    rows, files = [], {}
    for number, (title, (path, write, manifest)) in enumerate(made.items()):
        files[title] = folder / f"bodies-{number}"
        write(files[title], manifest)
        counts = (1, 4) if write is _write_large else (1, 64)
        rows += [Load(f"{title}, {many}", path, files[title], many) for many in counts]
    for title in ("pass-through", "conversion, replicas"):
        close = (("Connection", "close"),)
        rows.append(Load(f"{title}, a handshake each, 16", "/mutate", files[title], 16, close))
    for case, what in (("idle", "none about pods"), ("busy", "all about pods")):
        policies.write_policies(folder / case, matching=case == "busy")
        title, bodies = f"validation, {policies.POLICIES} policies, {what}", files["conversion, replicas"]
        rows += [Load(f"{title}, {many}", "/validate", bodies, many, folder=case) for many in (1, 64)]
    return rows


def _write_large(path: Path, manifest: reviews.Object) -> None:
    manifest["metadata"]["annotations"]["large"] = "x" * _LARGE
    path.write_text(json.dumps(reviews.review(manifest), separators=(",", ":")) + "\n")


class Servers:
    """The servers of both builds for one folder of policies, and a bare route."""

    def __init__(self, builds: Sequence[Build], folder: Path, rules: str, stack: contextlib.ExitStack) -> None:
        self._ports: list[int] = []
        self.processes: list[int] = []
        for build in builds:
            port, tls = servers.free_port(), folder / build.name
            command = servers.webhook(port, servers.free_port(), tls, build.module)
            if rules:
                command += ["--policies", str(folder / rules)]
            log = folder / f"{build.name}-{rules}.log"
            process = stack.enter_context(servers.running(command, log, tree=build.tree))
            servers.wait_ready(port, tls / "ca.crt")
            self._ports.append(port)
            self.processes.append(process.pid)
        tls, port = folder / builds[0].name, servers.free_port()
        process = stack.enter_context(servers.running(servers.bare(port, tls), folder / "bare.log"))
        servers.wait_ready(port, tls / "ca.crt")
        self._bare = process.pid, port

    def resident(self) -> tuple[float, float]:
        """MiB of this build and of the base."""
        now, base = (servers.rss_mib(process) for process in self.processes)
        return now, base

    def measure(self, row: Load, order: tuple[int, int], seconds: int, found: Row) -> None:
        """Add one round to a row."""
        figures = {at: self._run(row, at, seconds) for at in order}
        bare = self._run(dataclasses.replace(row, path="/bare"), -1, seconds)
        found.add(figures[0].cpu * 1e6, figures[1].cpu * 1e6)
        found.rates.append(figures[0].rps / figures[1].rps)
        found.bare.append(figures[0].rps / bare.rps)

    def _run(self, row: Load, at: int, seconds: int) -> load.Measured:
        process, port = self._bare if at < 0 else (self.processes[at], self._ports[at])
        target = load.Target(process, f"https://localhost:{port}{row.path}", row.bodies, row.headers)
        return load.run(target, row.connections, seconds)


def load_rows(
    builds: Sequence[Build], folder: Path, rows: Sequence[Load], rounds: int, seconds: int, show: Callable[[Row], None]
) -> list[Row]:
    """The rows with load, and those about memory if the server without policies has any.

    Each round starts new servers: the layout of one process in memory makes some of its rows faster or slower, by up to
    20 percent, as long as it runs.
    """
    found: list[Row] = []
    for rules in dict.fromkeys(row.folder for row in rows):
        measured = {row: Row(row.title) for row in rows if row.folder == rules}
        memory = () if rules else (Row("RSS ready", "MiB"), Row("RSS 10 s after load", "MiB"))
        for order in alternating(rounds):
            with contextlib.ExitStack() as stack:
                running = Servers(builds, folder, rules, stack)
                sizes = [running.resident()]
                for row, figures in measured.items():
                    running.measure(row, order, seconds, figures)
                if memory:
                    time.sleep(_SETTLED)
                    sizes.append(running.resident())
                for size, figures in zip(sizes, memory, strict=False):
                    figures.add(*size)
        for figures in (*measured.values(), *memory):
            found.append(figures)
            show(figures)
    return found


def verdict(rows: Sequence[Row], least: float) -> str:
    """The rows that are slower than allowed; empty if there are none."""
    slower = [row for row in rows if row.slower(least)]
    return "\n".join(f"below {least:.2f} x base: {row.title}: {spread(row.ratios)}" for row in slower)


@click.command()
@click.option("--base", required=True, help="The earlier commit.")
@click.option("--seconds", default=2, type=click.IntRange(min=1), show_default=True, help="Length of one measurement.")
@click.option("--rounds", default=5, type=click.IntRange(min=1), show_default=True, help="Measurements of each row.")
@click.option("--rows", default="", help="Measure only rows whose title matches this regular expression.")
@click.option("--least", default=LEAST, show_default=True, help="Ratio below which a row counts as slower.")
def main(base: str, seconds: int, rounds: int, rows: str, least: float) -> None:
    """Compare this build with an earlier commit."""
    with tempfile.TemporaryDirectory(prefix="neuron-dra-bench-") as name:
        folder = Path(name)
        commit = unpack(base, folder / "tree")
        builds = Build("now", _ROOT), Build("base", folder / "tree")
        click.echo(
            f"this build against {commit}; load of this machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        )
        click.echo(f"medians of {rounds} rounds (quartiles), above 1 is better\n\n{HEADER}")
        found: list[Row] = []

        def show(row: Row) -> None:
            found.append(row)
            click.echo(str(row))

        start = start_row(builds, folder, rounds)  # Also makes the certificates.
        if re.search(rows, start.title):
            show(start)
        load_rows(builds, folder, [row for row in loads(folder) if re.search(rows, row.title)], rounds, seconds, show)
        if re.search(rows, "prepare (driver)"):
            for row in prepare_rows(builds, rounds):
                show(row)
        click.echo(f"\nload of this machine at the end {os.getloadavg()[0]:.1f}")
        slower = verdict(found, least)
        if slower:
            raise click.ClickException(slower)
        click.echo(f"No row is below {least:.2f} x {commit}.")


if __name__ == "__main__":
    main()
