"""`make bench`: the webhook and a bare Starlette route, one pinned core each, TLS keep-alive, 1 and 64 connections.

Rounds alternate between the cases, so that a slow machine affects all of them. The table shows medians. The load comes
from wrk, on the other core.
"""

import contextlib
import dataclasses
import json
import os
import platform
import statistics
import tempfile
from pathlib import Path
from typing import Final

import click

from benchmarks import load, reviews, servers

CONNECTIONS: Final = (1, 64)
_CLOSE: Final = (("Connection", "close"),)

Results = dict[tuple[str, int], list[load.Measured]]


def _report(results: Results) -> None:
    def median(case: str, connections: int, figure: str) -> float:
        found: list[float] = [getattr(result, figure) for result in results[case, connections]]
        return statistics.median(found)

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
@click.option("--seconds", default=4, type=click.IntRange(min=1), show_default=True, help="Length of one measurement.")
@click.option("--rounds", default=3, show_default=True, help="Measurements of each case; the table shows medians.")
def main(seconds: int, rounds: int) -> None:
    """Measure the webhook and a bare Starlette route."""
    with tempfile.TemporaryDirectory(prefix="neuron-dra-bench-") as name:
        folder = Path(name)
        tls = folder / "tls"
        plain, converted, renamed, distinct, claims, others, kinds = (folder / name for name in "abcdefg")
        reviews.write(plain, reviews.pod(None))
        reviews.write(converted, reviews.pod("4"))
        reviews.write_renamed(renamed, reviews.pod("4"))
        reviews.write_distinct(distinct, reviews.pod("4"))
        reviews.write(claims, reviews.template())
        reviews.write_renamed(others, reviews.template())
        reviews.write_distinct(kinds, reviews.template())
        pod_size, claim_size = (
            len(json.dumps(manifest, separators=(",", ":"))) for manifest in (reviews.pod("4"), reviews.template())
        )
        click.echo(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()};")
        click.echo(f"server on core 0, load on core 1; pod {pod_size} bytes, template {claim_size} bytes.")
        servers.cold_start(tls, folder)
        cold = statistics.median(servers.cold_start(tls, folder) for _ in range(rounds))
        built = servers.go_references(folder)
        ports = servers.free_port(), servers.free_port()
        ca = tls / "ca.crt"
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(servers.running(servers.bare(ports[0], tls), folder / "bare.log"))
            service = servers.webhook(ports[1], servers.free_port(), tls)
            second = stack.enter_context(servers.running(service, folder / "webhook.log"))
            for port in ports:
                servers.wait_ready(port, ca)
            idle = servers.rss_mib(second.pid)
            roots = f"https://localhost:{ports[0]}", f"https://localhost:{ports[1]}"
            cases = {
                "bare Starlette route, a constant": load.Target(first.pid, f"{roots[0]}/bare", converted),
                "pass-through: pod without Neuron": load.Target(second.pid, f"{roots[1]}/mutate", plain),
                "conversion: replicas, template cached": load.Target(second.pid, f"{roots[1]}/mutate", converted),
                "conversion: other names of containers": load.Target(second.pid, f"{roots[1]}/mutate", renamed),
                "conversion: every pod another kind": load.Target(second.pid, f"{roots[1]}/mutate", distinct),
                "validation: the same template again": load.Target(second.pid, f"{roots[1]}/validate", claims),
                "validation: other names and tolerations": load.Target(second.pid, f"{roots[1]}/validate", others),
                "validation: every template another kind": load.Target(second.pid, f"{roots[1]}/validate", kinds),
                "validation: replicas of a pod": load.Target(second.pid, f"{roots[1]}/validate", converted),
            }
            if built is not None:
                port = servers.free_port()
                third = stack.enter_context(servers.running(servers.references(built, port, tls), folder / "go.log"))
                servers.wait_ready(port, ca)
                root = f"https://localhost:{port}"
                cases["Go, a constant"] = load.Target(third.pid, f"{root}/constant", converted)
                cases["Go, decodes review and pod (structs)"] = load.Target(third.pid, f"{root}/decode", converted)
            for target in cases.values():
                load.check(target, ca)
            results: Results = {}
            for _ in range(rounds):
                for connections in CONNECTIONS:
                    for case, target in cases.items():
                        results.setdefault((case, connections), []).append(load.run(target, connections, seconds))
            loaded = servers.rss_mib(second.pid)
            _report(results)
            click.echo(
                f"\ncold start to ready over TLS: {cold:.2f} s; RSS: {idle:.0f} MiB ready, {loaded:.0f} MiB after load"
            )
            _handshakes({case: cases[case] for case in list(cases)[:3]}, rounds, seconds)


def _handshakes(cases: dict[str, load.Target], rounds: int, seconds: int) -> None:
    """Measure one review per connection: each pays for a TLS handshake."""
    click.echo(f"\n{'one review per connection, 16 at a time':<42} {'reviews/s':>10} {'x bare':>7} {'p99 ms':>7}")
    measured: dict[str, list[load.Measured]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case, target in cases.items():
            measured[case].append(load.run(dataclasses.replace(target, headers=_CLOSE), 16, seconds))
    bare = statistics.median(each.rps for each in next(iter(measured.values())))
    for case, found in measured.items():
        rps = statistics.median(each.rps for each in found)
        p99 = statistics.median(each.p99 for each in found) * 1000
        click.echo(f"{case:<42} {rps:>10.0f} {rps / bare:>7.2f} {p99:>7.2f}")


if __name__ == "__main__":
    main()
