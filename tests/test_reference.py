"""The pages of the book that are generated from the code are up to date."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import click
import pytest

from commands.cli.main import main
from kubeletplugin import settings as driver_settings
from policies.schema.kinds import KINDS
from webhook.server import settings as webhook_settings

DOCS = Path(__file__).resolve().parents[1] / "docs"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_reference", DOCS / "write_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WRITE = script()


@pytest.mark.parametrize("name", WRITE.PAGES)
def test_each_reference_page_equals_the_output_of_the_script(name: str) -> None:
    assert (DOCS / name).read_text() == WRITE.PAGES[name](), "run make reference"


def test_every_shipped_schema_is_written_by_the_script() -> None:
    shipped = {f"../policies/schemas/{path.name}" for path in (DOCS.parent / "policies" / "schemas").iterdir()}
    assert shipped == {name for name in WRITE.PAGES if name.endswith(".json")}


def test_every_command_has_its_options_and_its_exit_codes() -> None:
    page = (DOCS / "reference/commands.md").read_text()
    context = click.Context(main, info_name="neuron-dra")
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        below = command.commands if isinstance(command, click.Group) else {"": command}
        for each, leaf in below.items():
            path = f"neuron-dra {name} {each}".strip()
            section = page.partition(f"\n## {path}\n")[2].partition("\n## ")[0]
            assert section, path
            for parameter in leaf.params if name != "webhook" else ():
                if isinstance(parameter, click.Option):
                    assert f"`{', '.join(sorted(parameter.opts, key=len))}" in section, (path, parameter.opts)
            assert f"| `{path}` | 0" in page or name == "completion", path


def test_every_setting_is_on_the_page() -> None:
    page = (DOCS / "reference/settings.md").read_text()
    for declared in (webhook_settings.declarations(), driver_settings.declarations()):
        for setting in declared:
            assert f"`{setting.variable}`" in page


def test_every_kind_and_every_field_is_on_the_page_with_a_meaning() -> None:
    page = (DOCS / "reference/policy-kinds.md").read_text()
    for _, kind in KINDS:
        assert f"\n## {kind}\n" in page
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) > 100
    assert [row for row in rows if not row[1].strip() or not row[3].strip()] == []
