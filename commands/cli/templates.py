"""`neuron-dra templates`: lists generated ResourceClaimTemplates, and removes those that nothing needs."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import functools
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

import click
import orjson

from commands.cli.clusters import CannotLookError, ClusterChoice, cluster_options, connected, namespace_option
from commands.cli.streams import output_option, say, write
from commands.prune import CannotPruneError, Generated, Key, PruneAction, Pruner, PruneReport, User
from runtime.text import aligned, named

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

    return cluster_options(namespace_option("Only this namespace.")(_ALL(with_scope)))


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
        async with _pruner(scope) as pruner:
            generated, users = await pruner.look()
        if output == "json":
            return _list_json(generated, users)
        return _list_text(generated, users, dt.datetime.now(dt.UTC))

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

    async def run() -> PruneReport:
        async with _pruner(scope) as pruner:
            return await (pruner.plan(older_than) if dry_run else pruner.prune(older_than, grace))

    report = asyncio.run(run())
    json = output == "json"
    write(_report_json(report) if json else _report_text(report, dt.datetime.now(dt.UTC)))
    if report.problem:
        say(report.problem)
    context.exit(FAILED if report.failed else 0)


@contextlib.asynccontextmanager
async def _pruner(scope: Scope) -> AsyncIterator[Pruner]:
    async with connected(scope.cluster) as server:
        try:
            yield Pruner(server, scope.namespace, say=say)
        except CannotPruneError as error:
            raise CannotLookError(str(error)) from error


# --- what is printed --------------------------------------------------------------------------------------------------


_WORDS = {
    PruneAction.CANDIDATE: "would be removed",
    PruneAction.REMOVED: "removed",
    PruneAction.KEPT: "kept",
    PruneAction.GONE: "already gone",
    PruneAction.RESTORED: "created again",
    PruneAction.FAILED: "failed",
}
_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def _age(template: Generated, now: dt.datetime) -> str:
    """Age in its two largest units, e.g. `3d4h`; at least `0s`."""
    left = max(0, int((now - template.created).total_seconds()))
    parts: list[str] = []
    for unit, seconds in _UNITS:
        count, left = divmod(left, seconds)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
    return "".join(parts[:2]) or "0s"


def _report_text(report: PruneReport, now: dt.datetime) -> str:
    rows = [
        (
            _WORDS[entry.outcome],
            f"{entry.template.namespace}/{entry.template.name}",
            f"({_age(entry.template, now)} old)" + (f": {entry.detail}" if entry.detail else ""),
        )
        for entry in report.entries
    ]
    told = [f"{count} {_WORDS[outcome]}" for outcome, count in _counts(report).items() if count]
    young = report.generated - report.in_use - len(report.entries)
    rest = f"of {report.generated} generated templates {report.in_use} in use, {young} too young."
    return "".join(f"{line}\n" for line in [*aligned(rows), f"{', '.join(told) or 'nothing to remove'}; {rest}"])


def _counts(report: PruneReport) -> dict[PruneAction, int]:
    return {outcome: sum(each.outcome is outcome for each in report.entries) for outcome in PruneAction}


def _report_json(report: PruneReport) -> str:
    return _dumped(
        {
            "templates": [
                {**_identity(entry.template), "outcome": entry.outcome.value, "detail": entry.detail}
                for entry in report.entries
            ],
            "summary": {
                "generated": report.generated,
                "inUse": report.in_use,
                **{outcome.value: count for outcome, count in _counts(report).items()},
            },
            "problem": report.problem,
        }
    )


def _list_text(templates: Sequence[Generated], users: Mapping[Key, Sequence[User]], now: dt.datetime) -> str:
    if not templates:
        return "No generated templates.\n"
    head = ("NAMESPACE", "NAME", "AGE", "PODS", "GROUPS", "PRUNE AFTER")
    rows = [
        (
            each.namespace,
            each.name,
            _age(each, now),
            str(len(pods)),
            str(len(groups)),
            (named(each.mark) if each.mark else "-"),
        )
        for each in templates
        for pods, groups in [_split(users.get(each.key, ()))]
    ]
    return "".join(f"{line}\n" for line in aligned([head, *rows]))


def _list_json(templates: Sequence[Generated], users: Mapping[Key, Sequence[User]]) -> str:
    items = [
        {**_identity(each), "pods": pods, "groups": groups, "pruneAfter": each.mark}
        for each in templates
        for pods, groups in [_split(users.get(each.key, ()))]
    ]
    return _dumped({"templates": items})


def _split(users: Sequence[User]) -> tuple[list[str], list[str]]:
    """Names of pods, and kind and name of PodGroups and Workloads."""
    pods = [name for kind, name in users if kind == "Pod"]
    return pods, [f"{kind} {name}" for kind, name in users if kind != "Pod"]


def _identity(template: Generated) -> dict[str, object]:
    return {"namespace": template.namespace, "name": template.name, "created": template.created}


def _dumped(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z).decode()
