"""No message shows a value as Python writes it: a user wrote YAML, JSON or a flag."""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
import yaml

from tests.support.invoking import invoke
from webhook.server import settings

ROOT: Final = Path(__file__).resolve().parents[2]
_PYTHON: Final = re.compile(
    r"\b(?:None|True|False|NoneType|dict|tuple)\b|\{'|(?<![\w\])])\['|\('|',\)|\bobject at 0x|<class "
)
ODD: Final = {
    "null": None,
    "true": True,
    "list": ["a", {"b": None}],
    "empty list": [],
    "object": {"a": {"b": False}},
    "number": -7,
    "float": 1.5,
    "text": "9x",
}
_FILES: Final = (
    "deploy/examples/legacy-pod/pod.yaml",
    "deploy/examples/dra-ultraserver-2/pod.yaml",
)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values inside a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from leaves(inner, (*path, key))


def replaced_at(value: Any, path: tuple[Any, ...], put: object) -> Any:
    whole = copy.deepcopy(value)
    inner = whole
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = put
    return whole


@pytest.mark.parametrize("command", ["validate", "convert"])
@pytest.mark.parametrize("name", _FILES)
def test_messages_about_a_field_of_another_type(tmp_path: Path, name: str, command: str) -> None:
    objects = [each for each in yaml.safe_load_all((ROOT / name).read_text()) if each]
    for number, whole in enumerate(objects):
        for at, path in enumerate(leaves(whole)):
            for odd in ("null", "true", "list", "object"):
                (tmp_path / f"{number}-{at}-{odd}.json").write_bytes(orjson.dumps(replaced_at(whole, path, ODD[odd])))
    result = invoke(command, tmp_path)
    assert result.exit_code == 1
    told = result.stderr if command == "convert" else result.output
    assert [line for line in told.splitlines() if _PYTHON.search(line)] == []


@pytest.mark.parametrize("setting", settings.declarations(), ids=lambda each: each.name)
def test_messages_about_a_setting(tmp_path: Path, setting: settings.Declaration) -> None:
    if not setting.field:
        pytest.skip("it is not in a config file")
    config = tmp_path / "config.yaml"
    told = []
    for odd in ODD.values():
        config.write_text(yaml.safe_dump({setting.field: odd}))
        told.append(message({"config": str(config)}, {}))
    told.append(message({}, {} if setting.switch else {setting.variable: "\N{SNOWMAN} x"}))
    assert any(told)
    assert [each for each in told if _PYTHON.search(each)] == []


def message(flags: dict[str, object], environment: dict[str, str]) -> str:
    """The error of settings; empty if they are allowed."""
    try:
        settings.load(flags, environment)
    except settings.SettingsError as error:
        return str(error)
    return ""
