"""`neuron-dra report`: every workload with plugin resources, what it becomes, and an order of migration."""

import datetime as dt
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from webhook.cli.inputs import REFUSED, UNREADABLE, file_policies, load_settings, setting_options
from webhook.cli.output import write_output
from webhook.cli.progress import Counter

if TYPE_CHECKING:
    from webhook.decisions.conversion_context import ConversionOptions
    from webhook.offline.file_policies import FilePolicies
    from webhook.report.build import Heading
    from webhook.report.model import Report

_FORMATS: Final = ("text", "html", "markdown", "json", "sarif")
LineOf = Callable[[str, int, str], int]


@click.command
@click.option(
    "-f",
    "--filename",
    "filenames",
    multiple=True,
    metavar="FILE|DIR|-",
    help="Objects to report on, instead of a cluster: a file, a directory (all *.yaml, *.yml, *.json below it), or - for"
    " standard input. May be repeated.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(_FORMATS),
    default="text",
    show_default=True,
    help="text: for a terminal; html: one page that needs nothing else; markdown: for tickets and wikis; json: for"
    " programs; sarif: SARIF 2.1.0 for code hosts.",
)
@setting_options("config", "device_class", "exclude_namespace", "families", "policies")
@click.pass_context
def report(context: click.Context, /, filenames: tuple[str, ...], output: str, **flags: Any) -> None:
    """Report on every workload that requests resources of the Neuron device plugin.

    Shows what conversion makes of it, what blocks it, its devices before and after, and an order of migration by
    namespace. Owners stand for what they control: a Deployment for its ReplicaSets and pods. With policy files
    (--policies), existing objects are also judged by the policies for validation.

    Exit codes: 0; 1 if a workload is blocked, or a policy would deny an object; 2 if an input cannot be read.
    """
    chosen = load_settings(flags)
    policies = file_policies(chosen.policies, chosen.families)
    options = chosen.conversion()
    made, complete, line_of = _from_files(filenames, options, policies, lines=output == "sarif")
    write_output(_rendered(made, output, line_of))
    context.exit(UNREADABLE if not complete else REFUSED if made.blocked or made.denied else 0)


def _from_files(
    filenames: tuple[str, ...], options: "ConversionOptions", policies: "FilePolicies | None", *, lines: bool
) -> tuple["Report", bool, LineOf]:
    from webhook.offline.validate_files import FileView
    from webhook.report.build import ReportBuilder
    from webhook.report.file_inputs import read_files

    with Counter(sys.stderr) as counter:
        inputs = read_files(filenames, counter.say, lambda count: counter.show("read", count), lines=lines)
        builder = ReportBuilder(options, FileView(inputs.facts, None), policies)
        for at, found in enumerate(inputs.found, start=1):
            builder.take(found)
            counter.show("assessed", at, len(inputs.found))
        for manifest in inputs.facts if builder.audits else ():
            builder.judge(manifest)
        names = [Path(name).name or name for name in filenames]
        made = builder.build(_heading(", ".join(names)))
    return made, inputs.complete, inputs.line_of


def _heading(origin: str) -> "Heading":
    from importlib.metadata import version

    from webhook.report.build import Heading

    return Heading(origin, dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), version("neuron-dra"))


def _rendered(made: "Report", output: str, line_of: LineOf) -> str:
    match output:
        case "json":
            from webhook.report.render_json import as_json

            return as_json(made)
        case "html":
            from webhook.report.render_html import as_html

            return as_html(made)
        case "markdown":
            from webhook.report.render_markdown import as_markdown

            return as_markdown(made)
        case "sarif":
            from webhook.report.render_sarif import as_sarif

            return as_sarif(made, line_of)
    from webhook.report.render_text import as_text
    from webhook.status.render import terminal_width

    width = terminal_width() if sys.stdout.isatty() else None
    return as_text(made, encoding=sys.stdout.encoding or "utf-8", width=width)
