"""Values of the chart: values.yaml, its schema and the documentation have the same ones."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.deploy.charts import CHART, ROOT, Object, render

SCHEMA: Object = json.loads((CHART / "values.schema.json").read_text())
VALUES: Object = yaml.safe_load((CHART / "values.yaml").read_text())
DOCS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def resolved(schema: Object) -> Object:
    """A part of the schema without references."""
    while "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")] | {
            key: value for key, value in schema.items() if key != "$ref"
        }
    return schema


def paths(schema: Object, prefix: str = "") -> Iterator[str]:
    """The values that a schema lists, objects and their members."""
    for name, each in resolved(schema).get("properties", {}).items():
        yield f"{prefix}{name}"
        yield from paths(each, f"{prefix}{name}.")


def given(values: Object, schema: Object, prefix: str = "") -> Iterator[str]:
    """The values of values.yaml, as deep as the schema lists members."""
    listed = resolved(schema).get("properties", {})
    for name, each in values.items():
        yield f"{prefix}{name}"
        if isinstance(each, dict) and resolved(listed.get(name, {})).get("properties"):
            yield from given(each, listed[name], f"{prefix}{name}.")


def test_the_schema_is_valid_and_accepts_the_defaults() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.Draft7Validator(SCHEMA).validate(VALUES)


OPTIONAL = re.compile(r"global|.*\.issuerRef\.(name|kind|group)|.*\.(resources\.claims|(affinity|seLinuxOptions)\.\w+)")
"""Helm's own, those that a comment of values.yaml explains, and fields of Kubernetes."""
ENTRY = re.compile(r"\w+\.(mutate|validate)")
"""Names of webhook entries look like values."""


def test_values_and_schema_list_the_same() -> None:
    assert set(given(VALUES, SCHEMA)) == {path for path in paths(SCHEMA) if not OPTIONAL.fullmatch(path)}


def reads(schema: Object, path: str) -> bool:
    """Whether a value may be set by a path of the documentation."""
    name, _, rest = path.partition(".")
    found = resolved(schema)
    inner = found.get("properties", {}).get(name.partition("[")[0])
    if inner is None:
        return "properties" not in found
    return not rest or reads(inner, rest)


def values_in(text: str) -> Iterator[str]:
    """Paths of values in a page: in `--set`, and in code that begins with the name of a value."""
    yield from re.findall(r"--set(?:-string|-json|-file)? '?([A-Za-z][\w.\[\]]*)", text)
    first = "|".join(SCHEMA["properties"])
    yield from re.findall(rf"`((?:{first})\.[A-Za-z][\w.]*)(?:=[^`]*)?`", text)


def is_module(path: str) -> bool:
    """Whether it is the name of a logger, which is that of its module."""
    return (ROOT / path.replace(".", "/")).with_suffix(".py").is_file()


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_values_in_the_documentation_exist(page: Path) -> None:
    found = [path for path in values_in(page.read_text()) if not ENTRY.fullmatch(path) and not is_module(path)]
    assert [path for path in found if not reads(SCHEMA, path)] == []


def test_a_documented_value_that_does_not_exist_is_found() -> None:
    assert not reads(SCHEMA, "webhook.replica")
    assert reads(SCHEMA, "webhook.replicas")
    assert reads(SCHEMA, "policies.files.own")
    text = "`--set conversion.mode=off --set webhook.replica=2`, `admission.workloads.scope`, `webhook.py`"
    assert list(values_in(text)) == ["conversion.mode", "webhook.replica", "admission.workloads.scope", "webhook.py"]


def empty_values(values: Object, *above: str) -> Iterator[tuple[str, ...]]:
    """Paths of the values that are an empty map or list by default."""
    for key, value in values.items():
        if value in ({}, []):
            yield (*above, key)
        elif isinstance(value, dict):
            yield from empty_values(value, *above, key)


def test_an_empty_value_can_be_null() -> None:
    """`--set policies.files=null` removes what an earlier release has: Helm has no other way with a map."""
    plain = render()
    for path in empty_values(VALUES):
        values: Object | None = None
        for key in reversed(path):
            values = {key: values}
        assert render(values) == plain, path
