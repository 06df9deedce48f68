"""`neuron-dra convert`: files in, converted manifests out."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import click

from webhook.cli.inputs import REFUSED, UNREADABLE, file_policies, filename_option, load_settings, setting_options
from webhook.cli.output import write_output
from webhook.decisions.modes import Mode


@click.command
@filename_option("convert")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["yaml", "json", "diff"]),
    default="yaml",
    show_default=True,
    help="yaml: for kubectl apply; documents that do not change keep their text. json: one List."
    " diff: for patch -p1 and git apply.",
)
@setting_options(
    "config",
    "device_class",
    "exclude_namespace",
    "hint_toleration",
    "hint_affinity",
    "hint_scheduler",
    "families",
    "policies",
)
@click.pass_context
def convert(context: click.Context, /, filenames: tuple[str, ...], output: str, **flags: Any) -> None:
    """Rewrite manifests offline, as the webhook would.

    Converts pods and all common kinds with pod templates, and prints each object after the ResourceClaimTemplates
    that it needs. Other objects are printed unchanged. An object that conversion refuses is printed unchanged, with
    an error and its place on standard error. All files are read as one set: annotations of Namespaces, quotas and
    templates in one file apply to the others. Policy files (--policies) apply as in the webhook.

    Exit codes: 0; 1 if an object was refused; 2 if an input could not be read.
    """
    chosen = load_settings(flags)
    # The user requests conversion; pods, namespaces and policies can still opt out.
    options = dataclasses.replace(chosen.conversion(), mode=Mode.CONVERT)
    policies = file_policies(chosen.policies, chosen.families)
    # Imported here so that `--help` is fast.
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
    write_output(text)
    context.exit(UNREADABLE if not complete else REFUSED if conversion.refused else 0)


def _say(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        click.echo(line, err=True)
