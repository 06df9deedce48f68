"""`make reference`: writes the pages of the book that are made from the code.

Commands come from click, settings from their declarations, fields of policy files from the models' JSON Schemas, error
codes from their table, tested versions from the record of the runs. The JSON Schemas of policy files are written too.
`tests/test_reference.py` compares the files with what this module makes.
"""

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import orjson
import yaml

from commands.cli.main import main as neuron_dra
from kubeletplugin import settings as driver_settings
from kubeletplugin.cli import main as driver
from neuron.codes import CODES
from policies.schema.kinds import KINDS, json_schema
from runtime.settings import reference
from webhook.server import settings as webhook_settings

FOLDER: Final = Path(__file__).parent
_WIDTH: Final = 100_000
"""Help is taken without line breaks: the page makes them."""
_EXIT_CODES: Final = re.compile(r"^Exit codes?: ")
_SERVER: Final = "webhook"
"""The command whose options are settings, which have a page of their own."""

# --- commands -----------------------------------------------------------------------------------------------------


def _contexts(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[click.Context]:
    """A command and all below it that users see."""
    context = click.Context(
        command,
        info_name=name,
        parent=parent,
        max_content_width=_WIDTH,
        terminal_width=_WIDTH,
        **command.context_settings,
    )
    yield context
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            if inner is not None and not inner.hidden:
                yield from _contexts(inner, each, context)


def _paragraphs(text: str) -> list[str]:
    return inspect.cleandoc(text).split("\n\n")


def _exit_codes(command: click.Command) -> str:
    """The sentence on exit codes in the command's help, without its beginning."""
    text = f"{command.help or ''}\n\n{command.epilog or ''}"
    found = [" ".join(each.split()) for each in _paragraphs(text) if "Exit code" in each]
    return found[0][found[0].index("Exit code") :].partition(": ")[2] if found else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _options(context: click.Context) -> Iterator[str]:
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is not None and "--help" not in parameter.opts:
            flags, text = record
            yield f"| `{_cell(flags)}` | {_cell(text)} |"


def _command(context: click.Context) -> Iterator[str]:
    command = context.command
    path = context.command_path
    yield from ("", f"## {path}", "")
    pieces = " ".join(command.collect_usage_pieces(context))
    yield from ("```text", f"{path} {pieces}", "```")
    for paragraph in _paragraphs(command.help or ""):
        if paragraph.startswith("\b"):  # click's mark for lines that stay as they are
            yield from ("", "```text", *paragraph.split("\n")[1:], "```")
        elif "Exit code" not in paragraph or not _EXIT_CODES.match(paragraph):
            kept = " ".join(paragraph.split()).partition(" Exit code")[0]
            yield from ("", kept)
    if isinstance(command, click.Group):
        return
    if command.name == _SERVER or command is driver:
        yield from ("", "Options: [settings.md](settings.md).")
        return
    options = tuple(_options(context))
    if options:
        yield from ("", "| option | meaning |", "|---|---|", *options)


def commands() -> str:
    """The page on commands."""
    contexts = [
        context
        for name, root in (("neuron-dra", neuron_dra), ("neuron-dra-kubelet-plugin", driver))
        for context in _contexts(root, name)
    ]
    lines = [
        "# Commands and exit codes",
        "",
        "Every command of both programs, from their own help: `-h` shows the same text.",
        "",
        "## Exit codes",
        "",
        "| command | exit codes |",
        "|---|---|",
    ]
    for context in contexts:
        codes = _exit_codes(context.command)
        if codes:
            lines.append(f"| `{context.command_path}` | {_cell(codes)} |")
    lines += [
        "",
        "For all commands of `neuron-dra` except `webhook`: 2 also for wrong options, 130 if interrupted (Ctrl-C).",
    ]
    for context in contexts:
        lines += _command(context)
    return "\n".join(lines) + "\n"


# --- settings -----------------------------------------------------------------------------------------------------


def settings() -> str:
    """The page on settings of both servers."""
    return (
        "# Settings\n\n"
        "Each setting is a flag, an environment variable or a field of the YAML file that `--config` names; the first\n"
        "one that is given counts. If settings are wrong, the program reports all of them at its start and exits\n"
        "with 3.\n\n"
        "The chart sets most of them by its values:\n"
        "[values.md](values.md) lists each value.\n\n"
        "## neuron-dra webhook\n\n"
        f"{reference(webhook_settings.declarations())}\n"
        "## neuron-dra-kubelet-plugin\n\n"
        f"{reference(driver_settings.declarations())}"
    )


# --- values of the chart ------------------------------------------------------------------------------------------

_KEY: Final = re.compile(r"( *)([A-Za-z]+):(?: (.*))?$")


def _comments(text: str) -> dict[str, str]:
    """Path of a value in values.yaml -> the comment above it; with its first comment alone if it has members."""
    found: dict[str, str] = {}
    path: list[str] = []
    above: list[str] = []
    for line in text.splitlines():
        if match := _KEY.match(line):
            path[len(match[1]) // 2 :] = [match[2]]
            found[".".join(path)] = " ".join(above)
            above = []
        elif line.lstrip().startswith("# "):
            above.append(line.lstrip()[2:])
        elif not line.lstrip().startswith("#"):
            above = []
    return found


def _allowed(schema: dict[str, Any], field: dict[str, Any]) -> str:
    """What a value may be, in words."""
    if "$ref" in field:
        field = schema["$defs"][field["$ref"].rpartition("/")[2]]
    if "enum" in field:
        words = [json.dumps(each) if not isinstance(each, str) else each or "empty" for each in field["enum"]]
        return ", ".join(f"`{each}`" for each in words)
    kinds = field.get("type", "object")
    if isinstance(kinds, list):
        return " or ".join({"integer": "whole number", "string": "text"}.get(kind, kind) for kind in kinds)
    if kinds == "array":
        return f"list of {_allowed(schema, field['items'])}" if "items" in field else "list"
    if kinds == "object":
        return "map" if field.get("additionalProperties") else "fields"
    low, high = field.get("minimum"), field.get("maximum")
    kind = {"integer": "whole number", "string": "text", "boolean": "true or false"}.get(kinds, kinds)
    if low is None:
        return kind
    return f"{kind}, from {low}" if high is None else f"{kind}, {low} to {high}"


def values() -> str:
    """The page on the values of the chart, from values.yaml and its schema."""
    chart = FOLDER.parent / "deploy" / "chart"
    text = (chart / "values.yaml").read_text()
    schema, defaults, about = (
        json.loads((chart / "values.schema.json").read_text()),
        yaml.safe_load(text),
        _comments(text),
    )

    def rows(fields: dict[str, Any], given: Any, prefix: str) -> Iterator[str]:
        for name, field in fields.items():
            if name not in given:
                continue
            path, inner = f"{prefix}{name}", field
            if "$ref" in field:
                inner = schema["$defs"][field["$ref"].rpartition("/")[2]]
            default = given[name]
            if inner.get("properties") and isinstance(default, dict):
                if about.get(path):
                    yield f"| `{path}` | fields | | {_cell(about[path])} |"
                yield from rows(inner["properties"], default, f"{path}.")
                continue
            shown = (
                "the types of the catalogue" if path == "kubeletPlugin.instanceTypes" else f"`{json.dumps(default)}`"
            )
            yield f"| `{path}` | {_cell(_allowed(schema, field))} | {_cell(shown)} | {_cell(about.get(path, ''))} |"

    lines = [
        "# Values of the chart",
        "",
        "Every value, from `deploy/chart/values.yaml` and `values.schema.json`, which refuses others.",
        "[install.md](../install.md)",
        "explains the important ones.",
    ]
    for name, field in schema["properties"].items():
        if name in defaults:
            # The comment before the first member is about the whole.
            lines += ["", f"## {name}", "", "| value | allowed | default | meaning |", "|---|---|---|---|"]
            lines += rows({name: field}, defaults, "")
    return "\n".join(lines) + "\n"


# --- policy files ---------------------------------------------------------------------------------------------------


class _Fields:
    """Tables of a kind: one for each object type that its fields lead to, each once for the whole page."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._types: dict[str, Any] = schema.get("$defs", {})
        self.waiting: list[str] = []

    def table(self, schema: dict[str, Any]) -> Iterator[str]:
        yield "| field | type | default | meaning |"
        yield "|---|---|---|---|"
        required = set(schema.get("required", ()))
        for name, field in schema["properties"].items():
            default = "required" if name in required else self._default(field)
            meaning = field.get("description", "") or self._of_type(field).get("description", "")
            yield f"| `{name}` | {self._type(field)} | {default} | {_cell(' '.join(meaning.split()))} |"

    def type_of(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._types[name]
        return found

    def _of_type(self, field: dict[str, Any]) -> dict[str, Any]:
        """The object type that a field names, alone or beside null."""
        for each in (field, *field.get("anyOf", ())):
            if "$ref" in each:
                return self.type_of(each["$ref"].rpartition("/")[2])
        return {}

    @staticmethod
    def _default(field: dict[str, Any]) -> str:
        default = field.get("default")
        if default in (None, [], {}) or isinstance(default, dict):
            return "-"
        if isinstance(default, list):
            return ", ".join(f"`{each}`" for each in default)
        return f"`{str(default).lower() if isinstance(default, bool) else default}`"

    def _type(self, field: dict[str, Any]) -> str:
        if "$ref" in field:
            return self._named(field["$ref"].rpartition("/")[2])
        if "anyOf" in field:
            return " or ".join(self._type(each) for each in field["anyOf"] if each.get("type") != "null")
        if "enum" in field or "const" in field:
            return ", ".join(f"`{each}`" for each in field.get("enum", (field.get("const"),)))
        values = field.get("additionalProperties")
        if isinstance(values, dict):
            return f"map of {self._type(values)}"
        return f"list of {self._type(field['items'])}" if field.get("type") == "array" else _scalar(field)

    def _named(self, name: str) -> str:
        if "properties" not in self._types[name]:
            return self._type(self._types[name])
        if name not in self.waiting:
            self.waiting.append(name)
        return f"[{name}](#{name.lower()})"


def _scalar(field: dict[str, Any]) -> str:
    kind, low, high = field.get("type", ""), field.get("minimum"), field.get("maximum")
    if kind == "integer" and low is not None:
        return f"whole number, from {low}" if high is None else f"whole number, {low} to {high}"
    if field.get("format") == "date-time":
        return "date or time"
    return {"integer": "whole number", "string": "text", "boolean": "true or false"}.get(kind, "any fields")


def policy_kinds() -> str:
    """The page on the kinds of policy files."""
    lines = [
        "# Fields of policy files",
        "",
        "Every kind and every field, from the models by which files are checked. Unknown fields are errors. `metadata`",
        "has `name`, `labels` and `annotations`. [policies.md](../policies.md) explains how to use the kinds, and",
        "[policy-expressions.md](policy-expressions.md) what expressions can read. The same for editors:",
        "[`policies/schemas`](../../policies/schemas/conversionpolicy.json).",
    ]
    shown: set[str] = set()
    types: list[str] = []
    for (version, kind), model in KINDS.items():
        schema = json_schema(model)
        fields = _Fields(schema)
        spec = schema["properties"]["spec"]["$ref"].rpartition("/")[2]
        lines += [
            "",
            f"## {kind}",
            "",
            f"`apiVersion: {version}`. Fields of `spec`:",
            "",
            *fields.table(fields.type_of(spec)),
        ]
        for name in fields.waiting:
            if name not in shown:
                shown.add(name)
                found = fields.type_of(name)
                about = [" ".join(found["description"].split()), ""] if found.get("description") else []
                types += ["", f"### {name}", "", *about, *fields.table(found)]
    return "\n".join([*lines, "", "## Types", "", "Objects inside the fields above.", *types]) + "\n"


# --- error codes ----------------------------------------------------------------------------------------------------

_GROUPS: Final = {
    "1": "What a pod asks for",
    "2": "What happened to a pod",
    "3": "What the cluster refused",
    "4": "Opaque configs",
    "5": "Claims, templates and DeviceClasses",
    "6": "Device selectors",
    "7": "Pods and workloads",
    "8": "Policy files",
    "9": "Reports",
}
"""First digit of the codes -> title of their part of the page."""
_ABOUT: Final = {
    "8": "NEU801 and NEU803 refuse, NEU802 and NEU804 warn, NEU805 is for the record.",
    "9": "These are obstacles that `neuron-dra report` finds beside those of conversion\n"
    "([how-to/report.md](how-to/report.md)). They deny nothing.",
}


def errors() -> str:
    """The page on error codes. The anchors stay when a title changes: reports and links have them."""
    lines = [
        "# Error codes",
        "",
        "Every error and every warning has one of these codes, with an example of its message. The meaning of a code",
        "does not change; the wording may.",
        "",
        "Unless a section says otherwise, 1xx and 3xx to 7xx deny an object, and 2xx warn. For workloads (Deployment,",
        "Job, LeaderWorkerSet and others) all findings are warnings: the workload is stored, and the warnings describe",
        "what will happen to its pods. `neuron-dra validate` reports the same for files, and what the API server would",
        "refuse.",
    ]
    group = ""
    for code, about in CODES.items():
        if code[3] != group:
            group = code[3]
            lines += ["", f"## {group}xx: {_GROUPS[group]}"]
            lines += ["", _ABOUT[group]] if group in _ABOUT else []
        lines += ["", f'<a name="{code.lower()}"></a>', "", f"### {code}: {about.title}", "", about.why]
        lines += ["", f"Fix: {about.fix}"] if about.fix else []
        lines += ["", "```text", f"{code}: {about.message}", "```"]
    return "\n".join(lines) + "\n"


# --- versions -------------------------------------------------------------------------------------------------------

_TESTED: Final = re.compile(r"(?<=<!-- tested -->\n).*?(?=<!-- /tested -->)", re.DOTALL)


def versions() -> str:
    """The page on versions, with the table of the runs that tests/cluster recorded in tested.json."""
    lines = ["", "| Kubernetes | tests that passed | failed | skipped, and why |", "|---|---|---|---|"]
    for version, run in json.loads((FOLDER / "tested.json").read_text()).items():
        lacks = f"Kubernetes {version} lacks "
        why = "; ".join(f"{count}: {_cell(reason.removeprefix(lacks))}" for reason, count in run["skipped"].items())
        lines.append(f"| {version} | {run['passed']} | {run['failed']} | {why} |")
    text = "\n".join([*lines, "", ""])
    return _TESTED.sub(lambda _: text, (FOLDER / "versions.md").read_text())


def _json_schema(kind: str) -> str:
    """The JSON Schema of one kind of policy files, for editors."""
    model = next(model for (_, name), model in KINDS.items() if name == kind)
    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(json_schema(model), option=options).decode()


PAGES: Final[dict[str, Callable[[], str]]] = {
    "errors.md": errors,
    "reference/commands.md": commands,
    "reference/settings.md": settings,
    "reference/values.md": values,
    "reference/policy-kinds.md": policy_kinds,
    "versions.md": versions,
    **{f"../policies/schemas/{kind.lower()}.json": functools.partial(_json_schema, kind) for _, kind in KINDS},
}
"""Path of a file from docs -> the function that makes it."""


if __name__ == "__main__":
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make())
