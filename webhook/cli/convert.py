"""`neuron-dra convert`: files in, converted manifests out."""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from webhook.cli.clusters import namespace_option
from webhook.cli.inputs import (
    REFUSED,
    UNREADABLE,
    counted,
    file_policies,
    filename_option,
    load_settings,
    setting_options,
)
from webhook.cli.streams import Counter, write
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
@namespace_option("Namespace of objects that set none. Default: default.")
@click.option("--strict", is_flag=True, help="Exit with 1 also if an object with Neuron limits was left as it is.")
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
def convert(
    context: click.Context,
    /,
    filenames: tuple[str, ...],
    output: str,
    namespace: str | None,
    *,
    strict: bool,
    **flags: Any,
) -> None:
    """Rewrite manifests offline, as the webhook would.

    Converts pods and all common kinds with pod templates, and prints each object after the ResourceClaimTemplates
    that it needs. Other objects are printed unchanged. An object that conversion refuses is printed unchanged, with
    an error and its place on standard error. All files are read as one set: annotations of Namespaces, quotas and
    templates in one file apply to the others. Policy files (--policies) apply as in the webhook.

    Exit codes: 0; 1 if an object was refused, or with --strict if one was left with Neuron limits; 2 if an input could
    not be read.
    """
    chosen = load_settings(flags)
    # The user requests conversion; pods, namespaces and policies can still opt out.
    options = dataclasses.replace(chosen.conversion(), mode=Mode.CONVERT)
    policies = file_policies(chosen.policies, chosen.families)
    # Imported here so that `--help` is fast.
    from webhook.offline import convert_output
    from webhook.offline.convert_files import Change, Converter, Settings
    from webhook.offline.manifest_files import read_sources
    from webhook.offline.manifests import DEFAULT_NAMESPACE
    from webhook.offline.notices import Source

    counter = Counter("documents")
    here = namespace or DEFAULT_NAMESPACE
    converter = Converter(Settings(options, policies, here, texts=output != "json"))
    inputs = read_sources(filenames, here, converter.take, counter.step)
    for fault in inputs.faults:
        counter.say(str(fault))
    counter.phase("converted")

    def changes() -> Iterator[tuple[Source, Change]]:
        for source in inputs.sources:
            number = 0
            for document in source.documents:
                change = converter.convert(source.name, document)
                for notice in converter.notices:
                    counter.say(str(notice))
                converter.notices.clear()
                counter.step()
                number = document.number
                yield source, change
            if not number:
                counter.say(f"{source.name}: it contains no objects.")

    match output:
        case "json":
            write(convert_output.as_json(changes()))
        case "diff":
            directory = convert_output.diff_directory([source.name for source in inputs.sources], str(Path.cwd()))
            write(convert_output.as_diff(changes(), directory, counter.say))
            if directory != os.path.realpath(Path.cwd()):
                counter.say(f"The paths in the diff are relative to {directory}: apply it there.")
        case _:
            write(convert_output.as_yaml(changes(), counter.say))
    counter.clear()
    left = converter.left if strict else 0
    if left:
        counter.say(f"{counted(left, 'object')} left unchanged with Neuron limits (--strict).")
    context.exit(UNREADABLE if inputs.faults else REFUSED if converter.refused or left else 0)
