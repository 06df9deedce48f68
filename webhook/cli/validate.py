"""`neuron-dra validate`: says what is wrong in manifests, before a cluster does."""

import asyncio
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import orjson

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
    from webhook.decisions.world import ConversionOptions
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
@click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Hold the manifests against this cluster's ResourceSlices, DeviceClasses and claims as well.",
)
@click.option("--notes", is_flag=True, help="Show in text what policies would only note in the audit log, too.")
@setting_options("config", "device_class", "exclude_namespace", "policies")
@click.pass_context
def validate(
    context: click.Context,
    /,
    filenames: tuple[str, ...],
    output: str,
    kubeconfig: Path | None,
    *,
    notes: bool,
    **flags: Any,
) -> None:
    """Check pods, workloads, ResourceClaims, ResourceClaimTemplates and DeviceClasses.

    Says what the webhook and the API server would refuse, and what would hang later; of workloads, what would become
    of their pods. What is in one of the files counts for all of them. With policy files (--policies), says what these
    would say of every object, and of the pods of workloads.

    Ends with 0 where nothing would be refused (warnings and notes are no refusals); with 1 if something would be; with
    2 if something could not be read.
    """
    chosen = load_settings(flags)
    options = dataclasses.replace(chosen.conversion(), mode=Mode.CONVERT)
    policies = file_policies(chosen.policies)
    # Loaded for those who validate, not for `--help`.
    from webhook.offline.manifest_files import read_sources

    sources, complete = read_sources(filenames, _say)
    report = asyncio.run(_check(sources, options, kubeconfig, policies))
    shown = report if notes or output != "text" else report.without_notes()
    # Bytes: what is quoted from a file is UTF-8, whatever the terminal takes.
    sys.stdout.buffer.write(FORMATS[output](shown).encode())
    sys.stdout.buffer.flush()
    if output == "text":
        _say(_summary(report) + ("" if notes or not report.notes else " --notes shows the notes."))
    context.exit(UNREADABLE if not complete else REFUSED if report.errors else 0)


async def _check(
    sources: Sequence["Source"],
    options: "ConversionOptions",
    kubeconfig: Path | None,
    policies: "FilePolicies | None",
) -> "ValidationReport":
    from webhook.offline.validate_files import validate_sources

    if kubeconfig is None:
        return await validate_sources(sources, options, None, policies)
    # The client alone takes 70 MiB: only for those who have a cluster.
    from webhook.cluster import kube

    try:
        async with kube.connect(kubeconfig) as world:
            return await validate_sources(sources, options, world.view, policies)
    except kube.ClusterUnavailableError as error:
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
    """For people: place, code, object and path, then the sentence and the cure."""
    lines = []
    for each in report.located:
        finding = each.finding
        place = f"{each.subject}: {finding.path}" if finding.path else each.subject
        lines.append(f"{each.source}:{each.line}: {finding.severity} {finding.code} {place}")
        lines.append(f"    {finding.message}")
        lines += [f"    Fix: {finding.fix}"] if finding.fix else []
    return "".join(f"{line}\n" for line in lines)


def as_json(report: "ValidationReport") -> str:
    """For programs."""
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
