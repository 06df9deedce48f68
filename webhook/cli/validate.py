"""`neuron-dra validate`: checks manifests offline, before they are applied."""

import asyncio
import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click
import orjson

from webhook.cli.clusters import ClusterChoice, optional_cluster_options
from webhook.cli.inputs import (
    REFUSED,
    UNREADABLE,
    file_policies,
    filename_option,
    load_settings,
    setting_options,
)
from webhook.decisions.modes import Mode

if TYPE_CHECKING:
    from webhook.decisions.conversion_context import ConversionOptions
    from webhook.offline.convert_files import Source
    from webhook.offline.file_policies import FilePolicies
    from webhook.offline.validate_files import ValidationReport


class NoClusterError(click.ClickException):
    """Ends the command with one line on stderr."""

    exit_code = UNREADABLE


@click.command
@filename_option("check")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "sarif"]),
    default="text",
    show_default=True,
    help="text: for people; json: for programs; sarif: SARIF 2.1.0 for code hosts.",
)
@optional_cluster_options("Also compare the manifests with ResourceSlices, DeviceClasses and claims of")
@click.option("--notes", is_flag=True, help="Show notes in text output: what policies only write to the audit log.")
@setting_options("config", "device_class", "exclude_namespace", "families", "policies")
@click.pass_context
def validate(
    context: click.Context,
    /,
    filenames: tuple[str, ...],
    output: str,
    cluster: ClusterChoice,
    *,
    notes: bool,
    **flags: Any,
) -> None:
    """Check pods, workloads, ResourceClaims, ResourceClaimTemplates and DeviceClasses.

    Reports what the webhook and the API server would deny, and what would leave pods pending later. Workloads are
    checked through the pods that they would create. All files are read as one set. Policy files (--policies) are
    applied to every object, and to the pods of workloads.

    Exit codes: 0 if nothing would be denied (warnings and notes do not count); 1 if something would be denied; 2 if an
    input could not be read.
    """
    chosen = load_settings(flags)
    options = dataclasses.replace(chosen.conversion(), mode=Mode.CONVERT)
    policies = file_policies(chosen.policies, chosen.families)
    # Imported here so that `--help` is fast.
    from webhook.offline.manifest_files import read_sources

    sources, complete = read_sources(filenames, _say)
    report = asyncio.run(_check(sources, options, cluster, policies))
    shown = report if notes or output != "text" else report.without_notes()
    # Bytes: quotes from files are UTF-8, whatever the encoding of the terminal.
    sys.stdout.buffer.write(FORMATS[output](shown).encode())
    sys.stdout.buffer.flush()
    if output == "text":
        _say(_summary(report) + ("" if notes or not report.notes else " --notes shows the notes."))
    context.exit(UNREADABLE if not complete else REFUSED if report.errors else 0)


async def _check(
    sources: Sequence["Source"],
    options: "ConversionOptions",
    cluster: ClusterChoice,
    policies: "FilePolicies | None",
) -> "ValidationReport":
    from webhook.offline.validate_files import validate_sources

    if not cluster.is_chosen:
        return await validate_sources(sources, options, None, policies)
    # The client takes 70 MiB: imported only if there is a cluster.
    from runtime.api_errors import ClusterUnavailableError
    from webhook.cluster import kube

    try:
        async with kube.connect(cluster.files, context=cluster.context) as world:
            return await validate_sources(sources, options, world.view, policies)
    except ClusterUnavailableError as error:
        raise NoClusterError(str(error)) from error


def _say(line: str) -> None:
    click.echo(line, err=True)


def _summary(report: "ValidationReport") -> str:
    counts = {"error": report.errors, "warning": report.warnings, "object": report.objects, "file": report.files}
    counts["note"] = report.notes
    errors, warnings, objects, files, notes = (f"{n} {word}{'' if n == 1 else 's'}" for word, n in counts.items())
    found = f"{errors}, {warnings} and {notes}" if report.notes else f"{errors} and {warnings}"
    return f"{found} in {objects} of {files}."


# --- output -----------------------------------------------------------------------------------------------------


def as_text(report: "ValidationReport") -> str:
    """For people: place, code, object and path, then the message and the fix."""
    lines = []
    for each in report.located:
        finding = each.finding
        place = f"{each.subject}: {finding.path}" if finding.path else each.subject
        lines.append(f"{each.source}:{each.line}: {finding.severity} {finding.code} {place}")
        lines.append(f"    {finding.message}")
        lines += [f"    Fix: {finding.fix}"] if finding.fix else []
    return "".join(f"{line}\n" for line in lines)


def as_json(report: "ValidationReport") -> str:
    findings = [
        {
            "file": each.source,
            "line": each.line,
            "object": each.subject,
            "code": each.finding.code,
            "severity": each.finding.severity.value,
            "path": each.finding.path,
            "message": each.finding.message,
            "fix": each.finding.fix,
            "value": each.finding.value,
        }
        for each in report.located
    ]
    summary = {
        "files": report.files,
        "objects": report.objects,
        "errors": report.errors,
        "warnings": report.warnings,
        "notes": report.notes,
    }
    return _dumped({"findings": findings, "summary": summary})


def as_sarif(report: "ValidationReport") -> str:
    """For code hosts."""
    from importlib.metadata import version

    from webhook.offline.sarif import sarif_log

    return _dumped(sarif_log(report.located, version("neuron-dra")))


def _dumped(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


FORMATS: Final = {"text": as_text, "json": as_json, "sarif": as_sarif}
