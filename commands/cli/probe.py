"""`neuron-dra probe`: tests whether a cluster's webhook converts a pod, in a dry run. `helm test` runs it."""

import asyncio
import time
from typing import TYPE_CHECKING

import click

from commands.cli.clusters import ClusterChoice, cluster_options, connected, namespace_option
from commands.cli.streams import write
from runtime import console
from runtime.text import named

if TYPE_CHECKING:
    from commands.cluster.probe import ProbeResult


class NotConvertedError(click.ClickException):
    """Ends the command with one line on stderr."""

    exit_code = 1


@click.command
@cluster_options
@namespace_option("Namespace of the pod. Default: that of the context.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, 3600),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to retry while the webhook does not answer.",
)
def probe(cluster: ClusterChoice, namespace: str | None, timeout: float) -> None:
    """Create a Neuron pod in a dry run, and check whether it is returned converted.

    Needs permission to create pods in that namespace. Nothing is stored. The pod requests conversion with an
    annotation, so the command also works in shadow mode.

    Exit codes: 0 if the pod was converted; 1 if not; 2 if the configuration of the cluster cannot be used.
    """
    result = asyncio.run(_probe(cluster, cluster.namespace(namespace), timeout))
    if not result.converted:
        raise NotConvertedError(f"{result.message.rstrip('.')}.")
    write(f"converted: the pod would use ResourceClaimTemplate {named(result.message)}\n")


async def _probe(
    cluster: ClusterChoice,
    namespace: str,
    timeout: float,  # noqa: ASYNC109 - of the command
) -> "ProbeResult":
    from commands.cluster.probe import probe as run

    started, line = time.monotonic(), console.ProgressLine()

    async def wait(seconds: float) -> None:
        if line.shown:
            line.draw(f"not converted yet, {time.monotonic() - started:.0f} s of {timeout:.0f} s: it is tried again")
        await asyncio.sleep(seconds)

    async with connected(cluster, must_answer=False) as server:
        try:
            return await run(server, namespace, timeout, clock=time.monotonic, sleep=wait)
        finally:
            line.clear()
