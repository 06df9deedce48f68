"""`neuron-dra templates`: lists generated ResourceClaimTemplates, and removes those that no pod refers to."""

import asyncio
import contextlib
import datetime as dt
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from webhook.cli.clusters import CannotLookError, cluster_options, connected, namespace_name

if TYPE_CHECKING:
    from webhook.prune.pruner import Pruner, PruneReport

FAILED: Final = 1

OLDER_THAN: Final = "24h"
GRACE: Final = "4m"
"""A webhook's watch may be silent for 2.5 minutes before it is given up, and an API request may take one."""

_DURATION: Final = re.compile(r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?", re.ASCII)


def duration(text: str) -> dt.timedelta:
    """A time such as `24h`, `7d` or `1h30m`.

    Raises:
        click.BadParameter: it is none.
    """
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise click.BadParameter(f"{text!r} is no time: write it like 24h, 7d, 90s or 1h30m.")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return dt.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


_NAMESPACE: Final = click.option("-n", "--namespace", type=namespace_name, metavar="NAME", help="Only this namespace.")
_ALL: Final = click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces: the default, said out loud.")
_OUTPUT: Final = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="text: for people; json: for programs.",
)


@click.group()
def templates() -> None:
    """List the ResourceClaimTemplates that the webhook made, and remove those that no pod needs."""


@templates.command(name="list")
@cluster_options
@_NAMESPACE
@_ALL
@_OUTPUT
def list_(
    kubeconfig: Path | None, context_name: str | None, namespace: str | None, all_namespaces: bool, output: str
) -> None:
    """Show the templates that the webhook made, and how many pods refer to each.

    Ends with 0; with 2 if the cluster cannot be looked at.
    """
    _one_scope(namespace, all_namespaces)

    async def look() -> str:
        from webhook.prune import render

        async with _pruner(kubeconfig, context_name, namespace) as pruner:
            generated, pods = await pruner.look()
        if output == "json":
            return render.list_json(generated, pods)
        return render.list_text(generated, pods, dt.datetime.now(dt.UTC))

    click.echo(asyncio.run(look()), nl=False)


@templates.command()
@cluster_options
@_NAMESPACE
@_ALL
@click.option("--older-than", type=duration, default=OLDER_THAN, show_default=True, help="Younger templates stay.")
@click.option(
    "--grace",
    type=duration,
    default=GRACE,
    show_default=True,
    help="Time between mark and removal. Less is safe only while no pods are admitted.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be removed; change nothing.")
@_OUTPUT
@click.pass_context
def prune(
    context: click.Context,
    /,
    kubeconfig: Path | None,
    context_name: str | None,
    namespace: str | None,
    all_namespaces: bool,
    older_than: dt.timedelta,
    grace: dt.timedelta,
    dry_run: bool,
    output: str,
) -> None:
    """Remove templates that the webhook made and that no pod refers to.

    Each is marked first, and removed after the grace if no pod has needed it since. A run that is killed leaves marks,
    which do no harm; the next run goes on with them.

    Ends with 0; with 1 if something failed; with 2 if the cluster cannot be looked at or a permission is missing, and
    then nothing was changed.
    """
    _one_scope(namespace, all_namespaces)

    async def run() -> "PruneReport":
        async with _pruner(kubeconfig, context_name, namespace) as pruner:
            return await (pruner.plan(older_than) if dry_run else pruner.prune(older_than, grace))

    report = asyncio.run(run())
    from webhook.prune import render

    json = output == "json"
    click.echo(render.report_json(report) if json else render.report_text(report, dt.datetime.now(dt.UTC)), nl=False)
    if report.problem:
        click.echo(report.problem, err=True)
    context.exit(FAILED if report.failed else 0)


def _one_scope(namespace: str | None, all_namespaces: bool) -> None:
    if namespace and all_namespaces:
        raise click.UsageError(f"--namespace {namespace} and --all-namespaces exclude each other: give one of them.")


@contextlib.asynccontextmanager
async def _pruner(kubeconfig: Path | None, context_name: str | None, namespace: str | None) -> AsyncIterator["Pruner"]:
    from webhook.prune.pruner import CannotPruneError, Pruner

    async with connected(kubeconfig, context_name) as server:
        try:
            yield Pruner(server, namespace or "", say=lambda line: click.echo(line, err=True))
        except CannotPruneError as error:
            raise CannotLookError(str(error)) from error
