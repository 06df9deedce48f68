"""`neuron-dra validate`: checks manifests offline, before they are applied."""

import asyncio
import contextlib
import dataclasses
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import click

from commands.cli.clusters import CannotLookError, ClusterChoice, connected, namespace_option, optional_cluster_options
from commands.cli.inputs import (
    CONVERSION_SETTINGS,
    REFUSED,
    UNREADABLE,
    built,
    docs_url_option,
    filename_option,
    kustomize_option,
    load_settings,
    need_files,
    setting_options,
)
from commands.cli.streams import Counter, output_option, write, write_all
from conversion.asks.steering import Mode
from neuron import known_faults
from neuron.api import slices
from neuron.findings import Severity
from runtime import console
from runtime.console import json_text
from runtime.text import counted

if TYPE_CHECKING:
    from commands.objects.documents import Document
    from commands.objects.manifest_files import Inputs, ReadProblem
    from commands.present import Located
    from commands.validate import FileValidator, FindingTally

_TIMEOUT: Final = 10.0
_AT_ONCE: Final = 32
"""Documents that one run of the event loop checks."""


@click.command
@filename_option("check")
@kustomize_option("check")
@output_option(
    "text",
    "json",
    "sarif",
    told="text: for people; json: for programs; sarif: SARIF 2.1.0 for code hosts.",
)
@docs_url_option
@optional_cluster_options("Also compare the manifests with ResourceSlices, DeviceClasses and claims of")
@click.option("--notes", is_flag=True, help="Show notes in text output: what policies only write to the audit log.")
@namespace_option("Namespace of objects that set none. Default: that of the named cluster's context, else default.")
@setting_options(*CONVERSION_SETTINGS)
@click.pass_context
def validate(
    context: click.Context,
    /,
    filenames: tuple[str, ...],
    directories: tuple[str, ...],
    output: str,
    docs_url: str,  # noqa: ARG001 - read by `as_sarif`
    cluster: ClusterChoice,
    namespace: str | None,
    *,
    notes: bool,
    **flags: object,
) -> None:
    """Check pods, workloads, ResourceClaims, ResourceClaimTemplates and DeviceClasses.

    Reports what the webhook and the API server would deny, and what would leave pods pending later. Workloads are
    checked through the pods that they would create. All files are read as one set. Policy files (--policies) are
    applied to every object, and to the pods of workloads.

    Exit codes: 0 if nothing would be denied (warnings and notes do not count); 1 if something would be denied; 2 if an
    input could not be read.
    """
    need_files("validate", (*filenames, *directories))
    options, policies = load_settings(flags)
    options = dataclasses.replace(options, mode=Mode.CONVERT)
    # Imported here so that `--help` is fast.
    from commands.objects.manifest_files import read_sources
    from commands.objects.manifests import DEFAULT_NAMESPACE
    from commands.present import text
    from commands.validate import FileValidator

    here = cluster.namespace(namespace) if cluster.is_chosen else namespace or DEFAULT_NAMESPACE
    counter = Counter("documents")
    validator = FileValidator(options, policies, here)
    inputs = read_sources([*filenames, *built(directories)], here, validator.take, counter.step)
    for fault in inputs.faults:
        counter.say(str(fault))
    counter.phase("checked")
    validator.tally.files = len(inputs.sources)
    with _located(inputs, validator, cluster, counter) as located:
        if output == "text":
            shown = (each for each in located if notes or each.finding.severity is not Severity.NOTE)
            write_all(text.findings(shown, console.style(os.environ)))
        else:
            write(FORMATS[output](list(located), inputs.faults, validator.tally))
    counter.clear()
    tally = validator.tally
    if output == "text":
        counter.say(_summary(tally) + ("" if notes or not tally.notes else " --notes shows the notes."))
    context.exit(UNREADABLE if inputs.faults else REFUSED if tally.errors else 0)


@contextlib.contextmanager
def _located(
    inputs: "Inputs", validator: "FileValidator", cluster: ClusterChoice, counter: Counter
) -> Iterator[Iterator["Located"]]:
    """The findings about all files, while the chosen cluster is connected.

    Raises:
        CannotLookError: on entering: it cannot be used.
    """
    with asyncio.Runner() as runner:
        closing = contextlib.AsyncExitStack()
        if cluster.is_chosen:
            for sentence in runner.run(_join(validator, cluster, closing)):
                counter.say(sentence)
        try:
            yield _findings(inputs, validator, runner, counter)
        finally:
            runner.run(closing.aclose())


async def _join(
    validator: "FileValidator", cluster: ClusterChoice, closing: contextlib.AsyncExitStack
) -> Sequence[str]:
    """Join the validator to a cluster; returns what the cluster's version does to claims."""
    # The client takes 70 MiB: imported only if there is a cluster.
    from commands.cluster.reader import ClusterReader
    from commands.cluster.snapshot import read_store
    from runtime.api_server import RESOURCE_GROUP, ApiServerError, ClusterUnavailableError, served_versions

    try:
        server = await closing.enter_async_context(connected(cluster))
        reader = ClusterReader(server)
        rules: str | None = None
        if validator.has_taint_rules:
            found = (await reader.served()).get((RESOURCE_GROUP, slices.TAINT_RULE))
            rules = "" if found is None else found.resource.version
        store = await read_store(reader, server.address)
        validator.join(store, await served_versions(server, _TIMEOUT), rules)
    except (ApiServerError, ClusterUnavailableError) as error:
        await closing.aclose()
        raise CannotLookError(str(error)) from error
    version = store.kubernetes_version()
    unknown = [f"{store.unseen}."] if store.unseen else []
    told = (fault for fault in known_faults.of_control_plane(version) if fault.told)
    return [*unknown, *(f"{known_faults.sentence(fault, version)} {fault.remedy}" for fault in told)]


def _findings(
    inputs: "Inputs", validator: "FileValidator", runner: asyncio.Runner, counter: Counter
) -> Iterator["Located"]:
    for source in inputs.sources:
        number = 0
        documents = iter(source.documents)
        while some := list(itertools.islice(documents, _AT_ONCE)):
            yield from runner.run(_findings_of(source.name, some, validator, counter))
            number = some[-1].number
        if not number:
            counter.say(f"{source.name}: it contains no objects.")


async def _findings_of(
    source: str, documents: "Sequence[Document]", validator: "FileValidator", counter: Counter
) -> list["Located"]:
    found = []
    for document in documents:
        known = validator.recall(source, document)
        found += await validator.validate(source, document) if known is None else known
        counter.step()
    return found


def _summary(tally: "FindingTally") -> str:
    found = [counted(tally.errors, "error"), counted(tally.warnings, "warning")]
    found += [counted(tally.notes, "note")] if tally.notes else []
    shown = f"{', '.join(found[:-1])} and {found[-1]}"
    return f"{shown} in {counted(tally.objects, 'object')} of {counted(tally.files, 'file')}."


# --- output -----------------------------------------------------------------------------------------------------


def as_json(located: Sequence["Located"], faults: Sequence["ReadProblem"], tally: "FindingTally") -> str:
    """For programs."""
    from commands.present import finding_fields

    findings = [
        {
            "file": each.source,
            "line": each.line,
            "object": each.subject,
            **finding_fields(each.finding),
            "value": each.finding.value,
        }
        for each in located
    ]
    unreadable = [
        {"file": each.source, "line": each.line, "column": each.column, "problem": each.problem} for each in faults
    ]
    return json_text({"findings": findings, "unreadable": unreadable, "summary": dataclasses.asdict(tally)})


def as_sarif(located: Sequence["Located"], faults: Sequence["ReadProblem"], _: "FindingTally") -> str:
    """For code hosts."""
    from importlib.metadata import version

    from commands.present.sarif import sarif_log

    return json_text(sarif_log(located, faults, version("neuron-dra"), click.get_current_context().params["docs_url"]))


FORMATS: Final = {"json": as_json, "sarif": as_sarif}
