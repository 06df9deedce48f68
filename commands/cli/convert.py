"""`neuron-dra convert`: files in, converted manifests out."""

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from commands.cli.clusters import namespace_option
from commands.cli.inputs import (
    CONVERSION_SETTINGS,
    HINTS,
    REFUSED,
    UNREADABLE,
    built,
    filename_option,
    kustomize_option,
    load_settings,
    need_files,
    setting_options,
)
from commands.cli.streams import Counter, output_option, write_all, write_exact
from conversion.asks.steering import Mode
from runtime import console
from runtime.text import counted

if TYPE_CHECKING:
    from commands.objects.manifest_files import GivenManifests, Inputs, ManifestSource
    from commands.rewrite.convert_files import Change, Converter


@click.command
@filename_option("convert")
@output_option(
    "yaml",
    "json",
    "diff",
    told="yaml: for kubectl apply; documents that do not change keep their text. json: one List."
    " diff: for patch -p1 and git apply.",
)
@namespace_option("Namespace of objects that set none. Default: default.")
@click.option("--strict", is_flag=True, help="Exit with 1 also if an object with Neuron limits was left as it is.")
@kustomize_option("convert")
@click.option(
    "--post-renderer",
    is_flag=True,
    help="For helm --post-renderer: read standard input, and print nothing if an object is refused.",
)
@setting_options(*HINTS, *CONVERSION_SETTINGS)
@click.pass_context
def convert(
    context: click.Context,
    /,
    filenames: tuple[str, ...],
    output: str,
    namespace: str | None,
    directories: tuple[str, ...],
    *,
    strict: bool,
    post_renderer: bool,
    **flags: object,
) -> None:
    """Rewrite manifests offline, as the webhook would.

    Converts pods and all common kinds with pod templates, and prints each object after the ResourceClaimTemplates
    that it needs. Other objects are printed unchanged. An object that conversion refuses is printed unchanged, with
    an error and its place on standard error. All files are read as one set: annotations of Namespaces, quotas and
    templates in one file apply to the others. Policy files (--policies) apply as in the webhook.

    Exit codes: 0; 1 if an object was refused, or with --strict if one was left with Neuron limits; 2 if an input could
    not be read.
    """
    if post_renderer:
        if output != "yaml" or filenames or directories:
            raise click.UsageError("--post-renderer reads standard input and prints YAML: drop -f, -k and -o.")
        filenames = ("-",)
    need_files("convert", (*filenames, *directories))
    options, policies = load_settings(flags)
    # The user requests conversion; pods, namespaces and policies can still opt out.
    options = dataclasses.replace(options, mode=Mode.CONVERT)
    # Imported here so that `--help` is fast.
    from commands.objects.manifest_files import read_sources
    from commands.objects.manifests import DEFAULT_NAMESPACE
    from commands.rewrite import convert_output
    from commands.rewrite.convert_files import Converter

    here = namespace or DEFAULT_NAMESPACE
    given: list[str | GivenManifests] = [*filenames, *built(directories)]
    counter = Counter("documents")
    converter = Converter(options, policies, here, texts=output != "json", strict=strict)
    inputs = read_sources(given, here, converter.take, counter.step, command="convert")
    for fault in inputs.faults:
        counter.say(str(fault))
    counter.phase("converted")
    changes = _changes(inputs, converter, counter)
    match output:
        case "json":
            write_all(convert_output.as_json(changes))
        case "diff":
            for source in inputs.sources:
                source.documents.as_one()  # A diff has the templates before the List, not in it.
            cwd = str(Path.cwd())
            directory = convert_output.diff_directory([source.name for source in inputs.sources], cwd)
            path_of = functools.partial(convert_output.diff_path, here=cwd, directory=directory)
            diff = convert_output.as_diff(changes, path_of, counter.say)
            first = next(diff, "")
            pieces = itertools.chain((first,), diff)
            write_exact(map(_coloured, pieces) if console.has_colour(os.environ) else pieces)
            if first and directory != os.path.realpath(cwd):
                counter.say(f"The paths in the diff are relative to {directory}: apply it there.")
        case _ if post_renderer:
            # Helm would install what was printed before a refusal.
            whole = list(convert_output.as_yaml(changes, counter.say))
            if not (inputs.faults or converter.unfinished):
                write_exact(whole)
        case _:
            write_exact(convert_output.as_yaml(changes, counter.say))
    counter.clear()
    for notice in converter.left:
        counter.say(str(notice))
    if converter.left:
        counter.say(f"{counted(len(converter.left), 'object')} left unchanged with Neuron limits (--strict).")
    context.exit(UNREADABLE if inputs.faults else REFUSED if converter.unfinished else 0)


def _changes(inputs: "Inputs", converter: "Converter", counter: Counter) -> Iterator[tuple["ManifestSource", "Change"]]:
    """Convert all documents, and print their messages."""
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


def _coloured(line: str) -> str:
    """A line of a diff for a terminal, as git shows it."""
    code = next((code for start, code in _COLOURS.items() if line.startswith(start)), 0)
    text = line.rstrip("\n")
    return console.painted(text, code) + line[len(text) :] if code else line


_COLOURS: Final = {
    "--- ": console.BOLD,
    "+++ ": console.BOLD,
    "@@": console.CYAN,
    "-": console.RED,
    "+": console.GREEN,
}
