"""`python -m benchmarks.endurance`: the memory of the webhook over a million reviews of pods that all differ."""

import os
import tempfile
from pathlib import Path

import click

from benchmarks import load, reviews, servers

_CONNECTIONS = 16


@click.command()
@click.option("--reviews", "total", default=1_000_000, show_default=True, help="Reviews to send.")
@click.option(
    "--seconds",
    default=20,
    type=click.IntRange(min=1),
    show_default=True,
    help="Time between two readings of the memory.",
)
def main(total: int, seconds: int) -> None:
    """Send reviews of distinct pods, and show the webhook's memory meanwhile."""
    load.require_wrk()
    with tempfile.TemporaryDirectory(prefix="neuron-dra-bench-") as name:
        folder = Path(name)
        tls, bodies = folder / "tls", folder / "bodies"
        reviews.write_distinct(bodies, reviews.pod("4"))
        servers.cold_start(tls, folder)
        port = servers.free_port()
        with servers.running(servers.webhook(port, servers.free_port(), tls), folder / "webhook.log") as process:
            servers.wait_ready(port, tls / "ca.crt")
            target = load.Target(process.pid, f"https://localhost:{port}/mutate", bodies)
            load.check(target, tls / "ca.crt")
            click.echo(f"{os.cpu_count()} cores\n{'reviews':>9} {'RSS MiB':>8} {'reviews/s':>10} {'p99 ms':>7}")
            sent = 0
            click.echo(f"{sent:>9} {servers.rss_mib(process.pid):>8.1f}")
            while sent < total:
                found = load.run(target, _CONNECTIONS, seconds, warm_up=False)
                sent += found.answered
                rss = servers.rss_mib(process.pid)
                click.echo(f"{sent:>9} {rss:>8.1f} {found.rps:>10.0f} {found.p99 * 1000:>7.2f}")


if __name__ == "__main__":
    main()
