"""`neuron-dra status`: checks an installation in a cluster, and prints the results on one screen."""

import asyncio
import datetime as dt
import os
from typing import TYPE_CHECKING, Final

import click

from commands.cli.clusters import (
    CANNOT_LOOK,
    CannotLookError,
    ClusterChoice,
    cluster_options,
    connected,
    namespace_name,
)
from commands.cli.streams import output_option, write
from runtime import console

if TYPE_CHECKING:
    from commands.status.snapshot import StatusSnapshot

WRONG: Final = 1


@click.command
@cluster_options
@click.option(
    "-n",
    "--namespace",
    type=namespace_name,
    metavar="NAME",
    default="neuron-dra",
    show_default=True,
    help="Namespace of the webhook.",
)
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
        text = as_text(
            f"neuron-dra in namespace {namespace} of {snapshot.address}",
            lines,
            encoding=console.encoding(),
            colour=console.has_colour(os.environ),
            width=console.width(),
        )
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
