"""`neuron-dra probe`: whether a cluster's webhook converts a pod, in a dry run. `helm test` runs it."""

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from webhook.cli.clusters import cluster_options, connected

if TYPE_CHECKING:
    from webhook.cluster.probe import ProbeResult


class NotConvertedError(click.ClickException):
    """Ends the command with one line on stderr."""

    exit_code = 1


@click.command
@cluster_options
@click.option("--namespace", default="default", show_default=True, metavar="NAME", help="Where to create the pod.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, 3600),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to go on trying while the webhook does not answer.",
)
def probe(kubeconfig: Path | None, context_name: str | None, namespace: str, timeout: float) -> None:
    """Create a Neuron pod in a dry run, and see whether it comes back converted.

    Needs the right to create pods in that namespace; nothing is stored. The pod asks for conversion by annotation, so
    this works in shadow mode as well.

    Ends with 0 if it was converted, with 1 if not, and with 2 if there is no cluster to ask.
    """
    outcome = asyncio.run(_probe(kubeconfig, context_name, namespace, timeout))
    if not outcome.converted:
        raise NotConvertedError(outcome.message)
    click.echo(f"converted: the pod would use ResourceClaimTemplate {outcome.message}")


async def _probe(
    kubeconfig: Path | None,
    context_name: str | None,
    namespace: str,
    timeout: float,  # noqa: ASYNC109 - of the command
) -> "ProbeResult":
    from webhook.cluster.probe import probe as run

    async with connected(kubeconfig, context_name) as server:
        return await run(server, namespace, timeout, clock=time.monotonic, sleep=asyncio.sleep)
