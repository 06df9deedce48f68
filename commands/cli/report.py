"""`neuron-dra report`: every workload with plugin resources, what it becomes, and an order of migration."""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from commands.cli.clusters import CannotLookError, ClusterChoice, cluster_options, connected, namespace_option
from commands.cli.inputs import (
    CONVERSION_SETTINGS,
    REFUSED,
    UNREADABLE,
    built,
    docs_url_option,
    file_policies,
    filename_option,
    kustomize_option,
    load_settings,
    setting_options,
)
from commands.cli.streams import Counter, heading, page_style, write

if TYPE_CHECKING:
    from commands.cluster.reader import ClusterReader
    from commands.objects.file_policies import FilePolicies
    from commands.objects.manifest_files import GivenManifests
    from commands.report.model import Report, Shadowed
    from conversion.asks.conversion_context import ConversionOptions
    from runtime.api_transport import Connection

_FORMATS: Final = ("text", "html", "markdown", "json", "sarif")
_COLUMNS: Final = 80
LineOf = Callable[[str, int, str], int]


@click.command
@filename_option("report on", "a cluster")
@kustomize_option("report on")
@cluster_options
@namespace_option("Only this namespace of the cluster. Default: all.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(_FORMATS),
    default="text",
    show_default=True,
    help="text: for a terminal; html: one page that needs nothing else; markdown: for tickets and wikis; json: for"
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
    cluster: ClusterChoice,
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

    Exit codes: 0; 1 if a workload is blocked, or a policy would deny an object (not with --write-policy-reports); 2 if
    an input cannot be read, or the results cannot be written.
    """
    if (filenames or directories) and (cluster.is_chosen or namespace or write_policy_reports):
        raise click.UsageError(
            "Arguments, -f and -k read files; --kubeconfig, --context, -n and --write-policy-reports need a cluster."
        )
    chosen = load_settings(flags)
    policies = file_policies(chosen)
    if write_policy_reports and (policies is None or not policies.validating):
        raise click.UsageError("--write-policy-reports needs --policies with at least one policy for validation.")
    options = chosen.conversion()
    line_of: LineOf = lambda _source, line, _path: line  # noqa: E731 - replaced for files
    if filenames or directories:
        given: list[str | GivenManifests] = [*filenames, *built(directories)]
        made, complete, line_of = _from_files(given, options, policies, lines=output == "sarif")
    else:
        records = webhook_namespace if webhook_records else ""
        source = _Cluster(cluster, namespace or "", records, writes=write_policy_reports)
        made, complete = asyncio.run(source.report(options, policies))
    write(_rendered(made, output, line_of, docs_url))
    blocked = not write_policy_reports and (made.blocked or made.denied)
    context.exit(UNREADABLE if not complete else REFUSED if blocked else 0)


def _from_files(
    given: "Sequence[str | GivenManifests]",
    options: "ConversionOptions",
    policies: "FilePolicies | None",
    *,
    lines: bool,
) -> tuple["Report", bool, LineOf]:
    from commands.objects.file_store import FileStore
    from commands.report.build import ReportBuilder
    from commands.report.file_inputs import read_files

    counter = Counter("objects")
    inputs = read_files(given, counter.step, lines=lines)
    for fault in inputs.faults:
        counter.say(str(fault))
    counter.phase("assessed")
    builder = ReportBuilder(options, FileStore(inputs.facts), policies)
    for found in inputs.found:
        builder.take(found)
        counter.step()
    for manifest in inputs.facts if builder.audits else ():
        builder.judge(manifest)
    counter.clear()
    names = [Path(each).name or each if isinstance(each, str) else each.name for each in given]
    builder.problems += inputs.faults
    made = builder.build(heading(", ".join(names)))
    return made, not made.problems, inputs.line_of


@dataclasses.dataclass(frozen=True, slots=True)
class _Cluster:
    """Reads a report from a cluster.

    Attributes:
        namespace: only this one; empty: all.
        records: namespace of the webhook whose records are read; empty: none are.
        writes: whether results of policies are written to the cluster.
    """

    cluster: ClusterChoice
    namespace: str
    records: str
    writes: bool

    async def report(self, options: "ConversionOptions", policies: "FilePolicies | None") -> tuple["Report", bool]:
        """The report, and whether everything could be read.

        Raises:
            CannotLookError: the cluster cannot be read, or the results cannot be written.
        """
        # The client takes 70 MiB: imported only if there is a cluster.
        from commands.cluster.reader import ClusterReader
        from runtime.api_errors import ApiServerError, ClusterUnavailableError

        counter = Counter("objects")
        async with connected(self.cluster) as server:
            reader = ClusterReader(server, progress=counter.listed)
            try:
                made, complete = await self._read(server, reader, options, policies)
            except (ClusterUnavailableError, ApiServerError) as error:
                raise CannotLookError(str(error)) from error
            finally:
                counter.clear()
            if self.writes:
                await self._write(reader, made, counter)
        return made, complete

    async def _read(
        self,
        server: "Connection",
        reader: "ClusterReader",
        options: "ConversionOptions",
        policies: "FilePolicies | None",
    ) -> tuple["Report", bool]:
        from commands.cluster.store import read_store
        from commands.devices import device_map
        from commands.devices.cluster_devices import ClusterDevices
        from commands.devices.snapshot import fetch, stored
        from commands.objects.file_store import FileStore
        from commands.report import cluster_inputs, webhook_records
        from commands.report.build import ReportBuilder
        from commands.status import kueue
        from commands.status.lines import CheckResult
        from neuron.hardware.instances import Catalogue

        catalogue = policies.catalogue if policies else Catalogue()
        seen = await fetch(server, server.address, reader=reader, with_pods=False)
        view = await read_store(reader, server.address, stored(seen))
        devices = ClusterDevices.of(seen, view.kubernetes_version(), catalogue)
        notes = [*(device_map.build(seen, catalogue) if devices is None else devices.map).problems]
        queues = await kueue.read(reader)
        around = FileStore(below=view)
        notes += [f"{view.unseen}."] if view.unseen else []
        builder = ReportBuilder(options, around, policies, devices, kueue.counted_classes(queues))
        lines = kueue.check(queues, [options.device_class])
        notes += [f"{each.text} {each.fix}".rstrip() for each in lines if each.verdict is not CheckResult.WELL]
        builder.notes += notes
        inputs = cluster_inputs.ClusterInputs(reader, self.namespace)
        await inputs.read(builder)
        shadowed: tuple[Shadowed, ...] = ()
        if self.records:
            shadowed = await webhook_records.read_records(reader, self.records, self.namespace, builder.notes)
        where = f" in namespace {self.namespace}" if self.namespace else ""
        made = builder.build(heading(server.address + where), shadowed)
        return made, inputs.complete and not made.problems

    async def _write(self, reader: "ClusterReader", made: "Report", counter: Counter) -> None:
        from commands.report.publish import CannotPublishError, publish

        try:
            counter.say(await publish(reader, made, self.namespace))
        except CannotPublishError as error:
            raise CannotLookError(str(error)) from error


def _rendered(made: "Report", output: str, line_of: LineOf, docs_url: str) -> str:
    match output:
        case "json":
            from commands.report.render_json import as_json

            return as_json(made)
        case "html":
            from commands.report.render_html import as_html

            return as_html(made)
        case "markdown":
            from commands.report.render_markdown import as_markdown

            return as_markdown(made)
        case "sarif":
            from commands.report.render_sarif import as_sarif

            return as_sarif(made, line_of, docs_url)
    from commands.report.render_text import as_text

    return as_text(made, page_style(_COLUMNS))
