"""Recorded schemas, closed: a field that a schema does not have is an error, as with strict field validation.

`record.py` wrote the files. They have names, types and references only, no text.
"""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema

Object = dict[str, Any]
Schema = dict[str, Any]

HERE: Final = Path(__file__).parent
KUBERNETES: Final = HERE / "kubernetes.json"
KUBELET: Final = HERE / "kubelet.json"
CDI: Final = HERE / "cdi.json"


def closed(schema: Any) -> Any:
    """The same schema; an object whose fields are listed has no others."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made


@functools.cache
def _recorded(path: Path) -> Object:
    content: Object = json.loads(path.read_text())
    return {key: closed(value) if key in {"definitions", "schema"} else value for key, value in content.items()}


def recorded(path: Path) -> Object:
    """A recorded file, its schemas closed. Shared, not to be changed."""
    return _recorded(path)


def _faults(schema: Schema, obj: Any) -> list[str]:
    errors: Iterator[Any] = jsonschema.Draft202012Validator(schema).iter_errors(obj)
    return sorted(f"{error.json_path.removeprefix('$').removeprefix('.')}: {error.message[:300]}" for error in errors)


def is_known(obj: Object) -> bool:
    """Whether Kubernetes itself serves the object's kind, so that there is a schema of it."""
    return f"{obj['apiVersion']}/{obj['kind']}" in recorded(KUBERNETES)["kinds"]


def kubernetes_faults(obj: Object) -> list[str]:
    """What of an object contradicts the schema of its apiVersion and kind: paths and reasons."""
    return definition_faults(recorded(KUBERNETES)["kinds"][f"{obj['apiVersion']}/{obj['kind']}"], obj)


def definition_faults(name: str, obj: Any) -> list[str]:
    """The same by the name of a definition, e.g. `io.k8s.api.core.v1.PodTemplateSpec`."""
    definitions = recorded(KUBERNETES)["definitions"]
    return _faults({"$ref": f"#/definitions/{name}", "definitions": definitions}, obj)


def cdi_faults(spec: Object) -> list[str]:
    """What of a CDI spec contradicts the schema of the Container Device Interface."""
    return _faults(recorded(CDI)["schema"], spec)
