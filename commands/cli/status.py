"""`neuron-dra status`: checks an installation in a cluster, and prints the results on one screen."""

import asyncio
import datetime as dt
import os
import time
from typing import TYPE_CHECKING, Final

import click

from commands.cli.clusters import (
    CANNOT_LOOK,
    CannotLookError,
    ClusterChoice,
    cluster_options,
    connected,
    namespace_option,
)
from commands.cli.streams import output_option, write
from runtime import console
from runtime.text import named

if TYPE_CHECKING:
    from commands.status.probe import ProbeResult
    from commands.status.snapshot import StatusSnapshot


WRONG: Final = 1


@click.command
@cluster_options
@namespace_option("Namespace of the webhook.", default="neuron-dra", show_default=True)
@output_option()
@click.pass_context
def status(context: click.Context, /, cluster: ClusterChoice, namespace: str, output: str) -> None:
    """Check webhook configurations, certificate, replicas, policies, permissions and driver nodes.

    A Neuron pod is created in a dry run, to see whether the API server reaches the webhook; nothing is stored.

    A check that lacks a permission is reported as unknown, with the RBAC rule that would allow it.

    Exit codes: 0 if nothing is wrong; 1 if something is wrong; 2 if nothing can be read.
    """
    snapshot = asyncio.run(_look(cluster, namespace))
    from commands.status.checks import API_SERVER, judge
    from commands.status.lines import CheckResult, as_json, as_text, blind, overall

    lines = judge(snapshot, dt.datetime.now(dt.UTC))
    if output == "json":
        text = as_json(snapshot.address, namespace, lines)
    else:
        headline = f"neuron-dra in namespace {namespace} of {snapshot.address}"
        text = as_text(headline, lines, console.style(os.environ))
    write(text)
    if overall(lines) is CheckResult.WRONG:
        context.exit(WRONG)
    context.exit(CANNOT_LOOK if blind(lines, API_SERVER) else 0)


async def _look(cluster: ClusterChoice, namespace: str) -> "StatusSnapshot":
    from commands.cluster.reader import ClusterReader
    from commands.status.snapshot import TIMEOUT, read_status
    from runtime.api_server import ApiServerError

    async with connected(cluster) as server:
        reader = ClusterReader(server, timeout=TIMEOUT, attempts=1)
        try:
            return await read_status(reader, server.address, namespace)
        except ApiServerError as error:
            raise CannotLookError(f"{server.address} cannot be checked: {error}.") from error


# --- `neuron-dra probe` -----------------------------------------------------------------------------------------------


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
    from commands.status.probe import probe as run

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
