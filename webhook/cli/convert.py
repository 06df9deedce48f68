"""`neuron-dra convert`: files in, converted manifests out."""

import contextlib
import dataclasses
import errno
import os
import sys
from pathlib import Path
from typing import Any, TextIO

import click

from webhook.cli.inputs import REFUSED, UNREADABLE, file_policies, filename_option, load_settings, setting_options
from webhook.decisions.modes import Mode


class OutputError(click.ClickException):
    """Ends the command where its output goes nowhere."""

    exit_code = UNREADABLE


@click.command
@filename_option("convert")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["yaml", "json", "diff"]),
    default="yaml",
    show_default=True,
    help="yaml: what kubectl apply takes, unchanged where nothing changes; json: one List;"
    " diff: what patch -p1 and git apply take.",
)
@setting_options(
    "config", "device_class", "exclude_namespace", "hint_toleration", "hint_affinity", "hint_scheduler", "policies"
)
@click.pass_context
def convert(context: click.Context, /, filenames: tuple[str, ...], output: str, **flags: Any) -> None:
    """Rewrite manifests offline, as the webhook would.

    Prints the objects, with the ResourceClaimTemplates they need before them; pods and all common kinds with pod
    templates are converted, all else passes through. What is refused stays as it is, and is told on standard error
    with its place. What is in one of the files counts for all of them: annotations of Namespaces, quotas, templates.
    Policy files steer as they would steer the webhook.

    Ends with 0; with 1 if something was refused; with 2 if something could not be read.
    """
    chosen = load_settings(flags)
    # The command asks for conversion; pods, namespaces and policies can still opt out.
    options = dataclasses.replace(chosen.conversion(), mode=Mode.CONVERT)
    policies = file_policies(chosen.policies)
    # Loaded for those who convert, not for `--help`.
    from webhook.offline import convert_output
    from webhook.offline.convert_files import convert_sources
    from webhook.offline.manifest_files import read_sources

    sources, complete = read_sources(filenames, _say)
    conversion = convert_sources(sources, options, policies)
    for notice in conversion.notices:
        _say(str(notice))
    match output:
        case "json":
            text = convert_output.as_json(conversion)
        case "diff":
            text = convert_output.as_diff(conversion, Path.cwd(), _say)
        case _:
            text = convert_output.as_yaml(conversion, _say)
    _print(text)
    context.exit(UNREADABLE if not complete else REFUSED if conversion.refused else 0)


def _print(text: str) -> None:
    """Write bytes: line ends of the input must not become those of the platform."""
    # None where the process was started without one, whatever its type says.
    stdout: TextIO | None = sys.stdout
    if stdout is None:
        raise OutputError("Standard output is closed.")
    try:
        stdout.buffer.write(text.encode())
        stdout.buffer.flush()
    except OSError as error:
        # What is still buffered must not fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
        if error.errno != errno.EPIPE:
            raise OutputError(f"Cannot write to standard output: {error.strerror}.") from error


def _say(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        click.echo(line, err=True)
