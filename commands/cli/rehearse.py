"""`neuron-dra rehearse`: the migration of a cluster, played; `neuron-dra fit`: where one more pod fits."""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from commands.cli.clusters import CannotLookError, ClusterChoice, cluster_options, connected, namespace_option
from commands.cli.inputs import (
    CONVERSION_SETTINGS,
    REFUSED,
    UNREADABLE,
    built,
    filename_option,
    kustomize_option,
    load_settings,
    names_of,
    setting_options,
)
from commands.cli.streams import Counter, heading, output_option, page_style, write, write_all

if TYPE_CHECKING:
    from commands.objects.manifest_files import GivenManifests
    from commands.rehearse.gather import Gathering, GatheringSettings
    from commands.rehearse.model import Rehearsal
    from commands.report.inputs import FileInputs
    from commands.report.inventory import Found

_COLUMNS: Final = 100
_MOST_NODES: Final = 1000


def _spare(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for kind, number in _numbers(values, "TYPE=N, such as trn2.48xlarge=1", 1):
        found[kind] = found.get(kind, 0) + number
    return found


def _numbers(values: Iterable[str], form: str, least: int) -> Iterator[tuple[str, int]]:
    for value in values:
        name, _, count = value.rpartition("=")
        number = int(count) if name and count.isascii() and count.isdecimal() and len(count) < 6 else -1
        if not least <= number <= _MOST_NODES:
            raise click.BadParameter(f"{value[:100]!r} is not {form}, with N from {least} to {_MOST_NODES}")
        yield name, number


@click.command
@filename_option("play", "a cluster")
@kustomize_option("play")
@cluster_options
@namespace_option(
    "Convert only this namespace; the others stay on the device plugin. May be repeated. Default: all.",
    "namespaces",
    multiple=True,
)
@click.option(
    "--spare",
    "spares",
    multiple=True,
    callback=_spare,
    metavar="TYPE=N",
    help="Play with N more nodes of this instance type, which have the driver from the start. May be repeated.",
)
@click.option(
    "--pool",
    "pools",
    multiple=True,
    callback=lambda _context, _parameter, values: dict(_numbers(values, "NAME=N, such as neuron-pool=4", 0)),
    metavar="NAME=N",
    help="Play as if the Karpenter NodePool NAME were static and had N nodes. May be repeated.",
)
@click.option(
    "--order",
    callback=lambda _context, _parameter, value: tuple(filter(None, map(str.strip, (value or "").split(",")))),
    metavar="GROUP,...",
    help="Move the node groups in this order, those that are left out last. Default: the best order is searched.",
)
@click.option(
    "--group-label",
    default="",
    metavar="KEY",
    help="Label by which nodes form groups. Default: the labels of EKS, eksctl, Karpenter and SageMaker; without one,"
    " the instance type.",
)
@click.option("--details", is_flag=True, help="With -o text: every pod of every step.")
@output_option(
    "text",
    "json",
    "html",
    told="text: for a terminal; json: for programs; html: one page that needs nothing else.",
)
@setting_options("mode", *CONVERSION_SETTINGS)
@click.pass_context
def rehearse(
    context: click.Context,
    /,
    filenames: tuple[str, ...],
    directories: tuple[str, ...],
    cluster: ClusterChoice,
    namespaces: tuple[str, ...],
    spares: dict[str, int],
    pools: dict[str, int],
    order: tuple[str, ...],
    group_label: str,
    output: str,
    *,
    details: bool,
    **flags: object,
) -> None:
    """Play the migration of a cluster from the device plugin to the driver, without touching it.

    Node group by node group, as docs/migrate.md does it: cordon, drain, plugin off, driver on, and all pods again
    through the webhook's decision. Shows at each step which pods move, wait and why, what is free, and whether the step
    can go back; how many spare nodes it takes so that nothing waits; and the best order. Nothing is changed. Without
    files, a cluster is read; files are what `kubectl get -A -o yaml` prints of Nodes, Pods and more, or manifests.

    Exit codes: 0; 1 if a pod that runs today would wait, or any pod be denied; 2 if an input or the cluster cannot be
    read.
    """
    from commands.rehearse.gather import NoSuchTypeError
    from commands.rehearse.reads import CannotAssumeError
    from commands.rehearse.rehearsing import RehearsalChoice, UnknownGroupError
    from commands.rehearse.rehearsing import rehearse as play

    if (filenames or directories) and cluster.is_chosen:
        raise click.UsageError("Arguments, -f and -k read files; --kubeconfig and --context read a cluster.")
    # Not kept in a variable: the text of the files may go once it is gathered.
    try:
        gathered, problems, origin = _Source.of(filenames, directories, cluster).read(
            _settings(flags, converting=frozenset(namespaces) or None, group_label=group_label, pools=pools)
        )
    except CannotAssumeError as error:
        raise click.BadParameter(f"{error}.", param_hint="'--pool'") from error
    choice = RehearsalChoice(spares, order, pictures=output == "html")
    counter = Counter("groups")
    counter.phase("played")
    try:
        made = play(gathered, choice, heading(origin), problems, counter.step)
    except UnknownGroupError as error:
        raise click.BadParameter(f"{error}.", param_hint="'--order'") from error
    except NoSuchTypeError as error:
        message = f"{str(error)!r} is no instance type with Neuron devices: `neuron-dra types` lists them."
        raise click.BadParameter(message, param_hint="'--spare'") from error
    finally:
        counter.clear()
    write_all(_rendered(made, output, details=details))
    context.exit(UNREADABLE if problems else 0 if made.well else REFUSED)


def _rendered(made: "Rehearsal", output: str, *, details: bool) -> Iterable[str]:
    from commands.rehearse import render

    if output == "json":
        return render.as_json(made)
    return [render.as_html(made) if output == "html" else render.as_text(made, page_style(_COLUMNS), details=details)]


def _settings(flags: dict[str, object], **chosen: Any) -> "GatheringSettings":
    """`chosen`: other fields of `GatheringSettings`."""
    from commands.rehearse.gather import GatheringSettings

    options, policies = load_settings(flags)
    return GatheringSettings(options, policies, past_shadow=flags.get("mode") is None, **chosen)


@dataclasses.dataclass(frozen=True, slots=True)
class _Source:
    """Where the cluster is read from: files with Nodes, or an API server.

    Attributes:
        files: what was read of files; None: none were given.
        names: of the files.
    """

    cluster: ClusterChoice
    files: "FileInputs | None" = None
    names: str = ""

    @classmethod
    def of(cls, filenames: Sequence[str], directories: Sequence[str], cluster: ClusterChoice) -> "_Source":
        """Read the files."""
        given: list[str | GivenManifests] = [*filenames, *built(directories)]
        if not given:
            return cls(cluster)
        from commands.rehearse.reads import reduced
        from commands.report.inputs import read_files

        counter = Counter("objects")
        try:
            inputs = read_files(given, counter.step, reduced=reduced)
        finally:
            counter.clear()
        return cls(cluster, inputs, names_of(given))

    @property
    def has_nodes(self) -> bool:
        """Whether the files have Nodes."""
        from commands.rehearse.reads import NODE

        return self.files is not None and any((each.group, each.kind) == NODE for each in self.files.facts)

    def read(self, settings: "GatheringSettings", *, live: bool = False) -> "tuple[Gathering, list[str], str]":
        """The cluster, what could not be read of it, and its name. `live`: not that of the files.

        Raises:
            CannotLookError: it cannot be read.
        """
        counter = Counter("objects")
        try:
            if live or self.files is None:
                return asyncio.run(self._live(settings, counter))
            from commands.rehearse.reads import from_files

            counter.phase("assessed")
            gathered, problems = from_files(self.files, settings, dt.datetime.now(dt.UTC), counter.step)
        finally:
            counter.clear()
        return gathered, problems, self.names

    async def _live(self, settings: "GatheringSettings", counter: Counter) -> "tuple[Gathering, list[str], str]":
        # The client takes 70 MiB: imported only if there is a cluster.
        from commands.rehearse.reads import CannotPlayError, from_cluster
        from runtime.api_server import ApiServerError, ClusterUnavailableError

        async with connected(self.cluster) as server:
            try:
                gathered, problems = await from_cluster(server, server.address, settings, counter.listed)
            except (ClusterUnavailableError, ApiServerError, CannotPlayError) as error:
                raise CannotLookError(str(error)) from error
        return gathered, problems, server.address


# --- fit --------------------------------------------------------------------------------------------------------


@click.command
@filename_option("fit: the first object with pods; and with Nodes, the cluster", "--count, or a cluster")
@kustomize_option("fit")
@cluster_options
@namespace_option("Namespace of the pod.", default="default")
@click.option("--count", type=click.IntRange(1, 1024), metavar="N", help="A pod that requests N devices.")
@click.option("--type", "kind", metavar="TYPE", default="", help="On nodes of this instance type or family.")
@output_option(
    "text",
    "json",
    told="text: for a terminal; json: for programs.",
)
@setting_options("mode", *CONVERSION_SETTINGS)
@click.pass_context
def fit(
    context: click.Context,
    /,
    filenames: tuple[str, ...],
    directories: tuple[str, ...],
    cluster: ClusterChoice,
    namespace: str,
    count: int | None,
    kind: str,
    output: str,
    **flags: object,
) -> None:
    """Show where one more pod fits: now, after which pods end, and after moving which pods, the fewest.

    The pod is the first one of the files, or one that requests --count devices. It is judged with claims on nodes of
    the driver, and as it is on nodes of the device plugin. The cluster is that of the files if they have Nodes. Nothing
    is changed: moves are a list for you.

    Exit codes: 0; 1 if it fits nowhere now, or is denied; 2 if an input or the cluster cannot be read.
    """
    source = _Source.of(filenames, directories, cluster)
    if count is None and source.files is None:
        raise click.UsageError("Name what to fit: --count N, with --type, or -f with a pod or workload.")
    if source.has_nodes and cluster.is_chosen:
        raise click.UsageError("The files have Nodes: without --kubeconfig and --context they are the cluster.")
    settings = _settings(flags)
    demand = None if count is None else _counted(count, kind, namespace, settings)
    gathered, problems, origin = source.read(settings, live=not source.has_nodes)
    from commands.rehearse.fitting import NothingToFitError, as_json, as_text, fits

    candidates = [demand] if demand is not None else [] if source.files is None else list(source.files.found)
    try:
        found = fits(gathered, candidates)
    except NothingToFitError as error:
        raise click.UsageError(f"{error}.") from error
    write(
        as_json(found, origin, problems) if output == "json" else as_text(found, origin, problems, page_style(_COLUMNS))
    )
    unread = problems or (source.files is not None and source.files.faults)
    context.exit(UNREADABLE if unread else 0 if found.fits else REFUSED)


def _counted(count: int, kind: str, namespace: str, settings: "GatheringSettings") -> "Found":
    """A pod that requests devices of an instance type or family.

    Raises:
        click.BadParameter: there is no such type.
    """
    from commands.rehearse.fitting import pod_of, types_of

    types = types_of(settings, kind)
    if kind and not types:
        message = f"{kind[:100]!r} is no instance type or family with Neuron devices: `neuron-dra types` lists them."
        raise click.BadParameter(message, param_hint="'--type'")
    return pod_of(count, types, namespace)
