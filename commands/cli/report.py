"""`neuron-dra report`: every workload with plugin resources, what it becomes, and an order of migration."""

import asyncio
import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from commands.cli.clusters import (
    CannotLookError,
    ClusterChoice,
    connected,
    namespace_option,
    several_clusters_options,
)
from commands.cli.inputs import (
    CONVERSION_SETTINGS,
    REFUSED,
    UNREADABLE,
    built,
    docs_url_option,
    filename_option,
    kustomize_option,
    load_settings,
    names_of,
    setting_options,
)
from commands.cli.streams import Counter, heading, output_option, page_style, write

if TYPE_CHECKING:
    from commands.cluster.reader import ClusterReader
    from commands.objects.file_policies import FilePolicies
    from commands.objects.manifest_files import GivenManifests
    from commands.report.model import Report
    from conversion.asks.conversion_context import ConversionOptions

_FORMATS: Final = ("text", "html", "markdown", "json", "sarif")
_COLUMNS: Final = 80
LineOf = Callable[[str, int, str], int]


def _dump(value: str) -> tuple[str, str]:
    """Name and path of `--cluster`, as click's type.

    Raises:
        click.BadParameter: one of them is missing.
    """
    name, _, path = value.partition("=")
    if not name or not path:
        raise click.BadParameter(f"{value[:100]!r} is not NAME=PATH, such as east=dumps/east.json")
    return name, path


@click.command
@filename_option("report on", "a cluster")
@kustomize_option("report on")
@several_clusters_options
@click.option(
    "--cluster",
    "dumps",
    multiple=True,
    type=_dump,
    metavar="NAME=PATH",
    help="Files of a cluster, to report on several: a file, a directory, or - for standard input. May be repeated;"
    " PATHs with one NAME are one cluster.",
)
@namespace_option("Only this namespace of the cluster. Default: all.")
@output_option(
    *_FORMATS,
    told="text: for a terminal; html: one page that needs nothing else; markdown: for tickets and wikis; json: for"
    " programs; sarif: SARIF 2.1.0 for code hosts.",
)
@docs_url_option
@click.option(
    "--webhook-namespace",
    metavar="NAME",
    default="neuron-dra",
    show_default=True,
    help="Namespace of the webhook, whose log has what it saw in shadow mode.",
)
@click.option(
    "--webhook-records/--no-webhook-records", default=True, show_default=True, help="Read the webhook's log and Events."
)
@click.option(
    "--write-policy-reports",
    is_flag=True,
    help="Write the results of policies to the cluster: Reports (openreports.io) where served, else PolicyReports"
    " (wgpolicyk8s.io).",
)
@setting_options(*CONVERSION_SETTINGS)
@click.pass_context
def report(
    context: click.Context,
    /,
    filenames: tuple[str, ...],
    directories: tuple[str, ...],
    clusters: tuple[ClusterChoice, ...],
    dumps: tuple[tuple[str, str], ...],
    namespace: str | None,
    output: str,
    docs_url: str,
    webhook_namespace: str,
    *,
    webhook_records: bool,
    write_policy_reports: bool,
    **flags: object,
) -> None:
    """Report on every workload that requests resources of the Neuron device plugin.

    Shows what conversion makes of it, what blocks it, its devices before and after, and an order of migration by
    namespace. Owners stand for what they control: a Deployment for its ReplicaSets and pods. With policy files
    (--policies), existing objects are also judged by the policies for validation. Without files, a cluster is read.
    Several --context, --cluster or both make one report with a table of all clusters, and then a part for each.

    Exit codes: 0; 1 if a workload is blocked, or a policy would deny an object (not with --write-policy-reports); 2 if
    an input cannot be read, or the results cannot be written.
    """
    of_files = bool(filenames or directories)
    chosen_clusters = [each for each in clusters if each.is_chosen or not (of_files or dumps)]
    if of_files and dumps:
        raise click.UsageError("Arguments, -f and -k are files of one cluster: give each of several as --cluster.")
    if (of_files and chosen_clusters) or ((of_files or dumps) and (namespace or write_policy_reports)):
        raise click.UsageError(
            "Arguments, -f, -k and --cluster read files; --kubeconfig, --context, -n and --write-policy-reports need a"
            " cluster."
        )
    options, policies = load_settings(flags)
    if write_policy_reports and (policies is None or not policies.validating):
        raise click.UsageError("--write-policy-reports needs --policies with at least one policy for validation.")
    records = webhook_namespace if webhook_records else ""
    lines = output == "sarif"

    given: list[str | GivenManifests] = [*filenames, *built(directories)]
    parts = {"": given} if of_files else _parts(chosen_clusters, dumps)

    def made(name: str, part: "ClusterChoice | Sequence[str | GivenManifests]") -> _ReportPart:
        if not isinstance(part, ClusterChoice):
            return _from_files(part, options, policies, lines=lines, name=name)
        where, writes = namespace or "", write_policy_reports
        report = _from_cluster(part, options, policies, namespace=where, records=records, writes=writes, name=name)
        try:
            return asyncio.run(report)
        except CannotLookError as error:
            if not name:
                raise
            return _unread(name, error.message)

    found = {name: made(name, part) for name, part in parts.items()}
    write(_rendered(found, output, docs_url))
    blocked = not write_policy_reports and any(each.report.blocked or each.report.denied for each in found.values())
    complete = all(each.complete for each in found.values())
    context.exit(UNREADABLE if not complete else REFUSED if blocked else 0)


def _parts(
    clusters: Sequence[ClusterChoice], dumps: Sequence[tuple[str, str]]
) -> "dict[str, ClusterChoice | list[str | GivenManifests]]":
    """Clusters and files of clusters, by name; the only one has none.

    Raises:
        click.UsageError: two have one name.
    """
    live = {each.name: each for each in clusters}
    read: dict[str, list[str | GivenManifests]] = {}
    for name, path in dumps:
        if name in live:
            raise click.UsageError(f"Two clusters are named {name}: --context and --cluster need different names.")
        read.setdefault(name, []).append(path)
    found: dict[str, ClusterChoice | list[str | GivenManifests]] = {**live, **read}
    return found if len(found) > 1 else dict(zip(("",), found.values(), strict=True))


@dataclasses.dataclass(frozen=True, slots=True)
class _ReportPart:
    """A report.

    Attributes:
        complete: whether everything could be read.
        line_of: file, line of an object and field path -> line of the file.
    """

    report: "Report"
    complete: bool
    line_of: LineOf = lambda _source, line, _path: line


def _unread(name: str, why: str) -> _ReportPart:
    """The report of one of several clusters that cannot be read: it says why."""
    from commands.objects.manifest_files import ReadProblem
    from commands.report.model import Report

    now = heading(name)
    problem = ReadProblem(name, 0, 0, why.rstrip("."))
    return _ReportPart(Report(now.origin, now.made, now.version, (), (), problems=(problem,)), complete=False)


def _from_files(
    given: "Sequence[str | GivenManifests]",
    options: "ConversionOptions",
    policies: "FilePolicies | None",
    *,
    lines: bool,
    name: str,
) -> _ReportPart:
    from commands.objects.manifests import FileStore
    from commands.report.build import ReportBuilder
    from commands.report.inputs import read_files

    counter = Counter("objects")
    inputs = read_files(given, counter.step, lines=lines)
    for fault in inputs.faults:
        counter.say(str(fault))
    counter.phase("assessed")
    builder = ReportBuilder(options, FileStore(inputs.facts), policies)
    # The text of an object is not kept beside its assessment.
    waiting, inputs = collections.deque(inputs.found), dataclasses.replace(inputs, found=())
    while waiting:
        builder.take(waiting.popleft())
        counter.step()
    for manifest in inputs.facts if builder.audits else ():
        builder.judge(manifest)
    counter.clear()
    builder.problems += inputs.faults
    names = names_of(given)
    made = builder.build(heading(f"{name} ({names})" if name else names))
    return _ReportPart(made, not made.problems, inputs.line_of)


async def _from_cluster(
    cluster: ClusterChoice,
    options: "ConversionOptions",
    policies: "FilePolicies | None",
    *,
    namespace: str,
    records: str,
    writes: bool,
    name: str,
) -> _ReportPart:
    """The report of a cluster.

    Args:
        namespace: only this one; empty: all.
        records: namespace of the webhook whose records are read; empty: none are.
        writes: whether results of policies are written to the cluster.
        name: of one of several clusters; empty: it is the only one.

    Raises:
        CannotLookError: the cluster cannot be read, or the results cannot be written.
    """
    # The client takes 70 MiB: imported only if there is a cluster.
    from commands.cluster.reader import ClusterReader
    from commands.report.publish import CannotPublishError, publish
    from runtime.api_server import ApiServerError, ClusterUnavailableError

    counter = Counter("objects")
    async with connected(cluster) as server:
        reader = ClusterReader(server, progress=counter.listed)
        origin = f"{name} ({server.address})" if name else server.address
        origin += f" in namespace {namespace}" if namespace else ""
        try:
            made = await _read(reader, server.address, options, policies, namespace, records, origin)
        except (ClusterUnavailableError, ApiServerError) as error:
            raise CannotLookError(str(error)) from error
        finally:
            counter.clear()
        if writes:
            try:
                counter.say(await publish(reader, made.report, namespace))
            except CannotPublishError as error:
                raise CannotLookError(str(error)) from error
    return made


async def _read(
    reader: "ClusterReader",
    address: str,
    options: "ConversionOptions",
    policies: "FilePolicies | None",
    namespace: str,
    records: str,
    origin: str,
) -> _ReportPart:
    from commands.devices import device_map
    from commands.devices.node_devices import ClusterDevices
    from commands.report.build import ReportBuilder
    from commands.report.inputs import ClusterInputs, read_records, read_surroundings
    from commands.status import kueue
    from commands.status.lines import CheckResult
    from neuron.hardware.instances import Catalogue

    catalogue = policies.catalogue if policies else Catalogue()
    around = await read_surroundings(reader, address)
    devices = ClusterDevices.of(around.seen, around.store.kubernetes_version(), catalogue)
    counted = kueue.counted_classes(around.queues)
    builder = ReportBuilder(options, around.store, policies, devices, counted)
    builder.notes += (device_map.build(around.seen, catalogue) if devices is None else devices.map).problems
    builder.notes += [around.unknown] if around.unknown else []
    lines = kueue.check(around.queues, [options.device_class])
    builder.notes += [f"{each.text} {each.fix}".rstrip() for each in lines if each.verdict is not CheckResult.WELL]
    inputs = ClusterInputs(reader, namespace)
    await inputs.read(builder)
    shadowed = await read_records(reader, records, namespace, builder.notes) if records else ()
    made = builder.build(heading(origin), shadowed)
    return _ReportPart(made, inputs.complete and not made.problems)


def _rendered(found: Mapping[str, _ReportPart], output: str, docs_url: str) -> str:
    """The report of the only cluster, which has no name; or that of several, by name."""
    from commands.report import render

    reports = {name: each.report for name, each in found.items()}
    match output:
        case "json":
            return render.json(reports)
        case "html":
            return render.html(reports)
        case "markdown":
            return render.markdown(reports)
        case "sarif":
            return render.sarif(reports, {name: each.line_of for name, each in found.items()}, docs_url)
    return render.text(reports, page_style(_COLUMNS))
