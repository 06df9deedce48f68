"""`neuron-dra templates`: lists generated ResourceClaimTemplates, and removes those that nothing needs."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import functools
import re
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

import click

from commands.cli.clusters import CannotLookError, ClusterChoice, cluster_options, connected, namespace_name
from commands.cli.streams import output_option, say, write

if TYPE_CHECKING:
    from commands.prune.pruner import Pruner, PruneReport

FAILED: Final = 1

OLDER_THAN: Final = "24h"
GRACE: Final = "4m"
"""A watch of the webhook may be silent for 2.5 minutes before it is restarted, and an API request may take 1 minute."""

_DURATION: Final = re.compile(r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?", re.ASCII)


def duration(text: str) -> dt.timedelta:
    """Parse a duration such as `24h`, `7d` or `1h30m`.

    Raises:
        click.BadParameter: it is not a duration.
    """
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise click.BadParameter(f"{text!r} is not a duration. Examples: 24h, 7d, 90s, 1h30m.")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return dt.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


_NAMESPACE: Final = click.option("-n", "--namespace", type=namespace_name, metavar="NAME", help="Only this namespace.")
_ALL: Final = click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces. This is the default.")


@dataclasses.dataclass(frozen=True, slots=True)
class Scope:
    """Where templates are listed and pruned; an empty namespace: all namespaces."""

    cluster: ClusterChoice
    namespace: str


def scope_options(command: Callable[..., None]) -> Callable[..., None]:
    """The cluster's options, `--namespace` and `--all-namespaces`, passed to the command as `scope`."""

    @functools.wraps(command)
    def with_scope(
        *args: object, cluster: ClusterChoice, namespace: str | None, all_namespaces: bool, **options: object
    ) -> None:
        if namespace and all_namespaces:
            raise click.UsageError(f"--namespace {namespace} and --all-namespaces cannot be combined: use one of them.")
        command(*args, scope=Scope(cluster, namespace or ""), **options)

    return cluster_options(_NAMESPACE(_ALL(with_scope)))


_OUTPUT: Final = output_option()


@click.group()
def templates() -> None:
    """List the ResourceClaimTemplates that the webhook created, and remove those that nothing needs."""


@templates.command(name="list")
@scope_options
@_OUTPUT
def list_(scope: Scope, output: str) -> None:
    """Show the templates that the webhook created, and how many pods and groups (PodGroups, Workloads) refer to each.

    Exit codes: 0; 2 if the cluster cannot be read.
    """

    async def look() -> str:
        from commands.prune import render

        async with _pruner(scope) as pruner:
            generated, users = await pruner.look()
        if output == "json":
            return render.list_json(generated, users)
        return render.list_text(generated, users, dt.datetime.now(dt.UTC))

    write(asyncio.run(look()))


@templates.command()
@scope_options
@click.option("--older-than", type=duration, default=OLDER_THAN, show_default=True, help="Younger templates are kept.")
@click.option(
    "--grace",
    type=duration,
    default=GRACE,
    show_default=True,
    help="Time between mark and removal. A shorter time is safe only while no pods are admitted.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be removed; change nothing.")
@_OUTPUT
@click.pass_context
def prune(
    context: click.Context,
    /,
    scope: Scope,
    older_than: dt.timedelta,
    grace: dt.timedelta,
    dry_run: bool,
    output: str,
) -> None:
    """Remove templates that the webhook created and to which no pod, PodGroup or Workload refers.

    Each template is marked first, and removed after the grace period if no pod has needed it since. A run that is
    killed leaves marks, which are harmless; the next run continues with them.

    Exit codes: 0; 1 if something failed; 2 if the cluster cannot be read or a permission is missing; then nothing was
    changed.
    """

    async def run() -> "PruneReport":
        async with _pruner(scope) as pruner:
            return await (pruner.plan(older_than) if dry_run else pruner.prune(older_than, grace))

    report = asyncio.run(run())
    from commands.prune import render

    json = output == "json"
    write(render.report_json(report) if json else render.report_text(report, dt.datetime.now(dt.UTC)))
    if report.problem:
        say(report.problem)
    context.exit(FAILED if report.failed else 0)


@contextlib.asynccontextmanager
async def _pruner(scope: Scope) -> AsyncIterator["Pruner"]:
    from commands.prune.pruner import CannotPruneError, Pruner

    async with connected(scope.cluster) as server:
        try:
            yield Pruner(server, scope.namespace, say=say)
        except CannotPruneError as error:
            raise CannotLookError(str(error)) from error
