"""A custom kind with every form of schema, and expressions about it with what type checks say of them."""

from typing import Any, Final

_S: Final = {"type": "string"}
_OPEN: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


_MEMBERS: Final = {
    "type": "array",
    "items": {**_object(name=_S, role=_S), "required": ["name"]},
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
}
_INT_OR_STRING: Final = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
_SPEC: Final = _object(
    name={**_S, "allOf": [{"minLength": 1}], "oneOf": [{"pattern": "a"}, {"pattern": "b"}]},
    replicas={"type": "integer", "default": 1},
    ratio={"type": "number"},
    enabled={"type": "boolean"},
    members=_MEMBERS,
    port=_INT_OR_STRING,
    limits={"type": "object", "additionalProperties": _INT_OR_STRING},
    tags={"type": "object", "additionalProperties": _S},
    quotas={"type": "object", "additionalProperties": _object(most={"type": "integer"})},
    raw=_OPEN,
    half={**_object(known=_S), "x-kubernetes-preserve-unknown-fields": True},
    anything={"x-kubernetes-preserve-unknown-fields": True},
    template={**_OPEN, "x-kubernetes-embedded-resource": True},
    exact={**_object(spec=_object(size={"type": "integer"})), "x-kubernetes-embedded-resource": True},
    empty={"type": "object"},
    when={**_S, "format": "date-time"},
    data={**_S, "format": "byte"},
)


def _version(name: str, spec: dict[str, Any], *, storage: bool) -> dict[str, Any]:
    schema = _object(spec=spec, status=_object(phase=_S))
    return {"name": name, "served": True, "storage": storage, "schema": {"openAPIV3Schema": schema}}


def definition(kind: str, plural: str, *versions: dict[str, Any]) -> dict[str, Any]:
    """A CustomResourceDefinition of the group example.com."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": list(versions),
        },
    }


TEAMS: Final = definition(
    "Team",
    "teams",
    _version("v1", _SPEC, storage=True),
    _version("v1alpha1", _object(size={"type": "integer"}), storage=False),
)
LOOSE: Final = definition(
    "Loose", "looses", {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": _OPEN}}
)
LIMITS: Final = definition("Limit", "limits", _version("v1", _object(most={"type": "integer"}), storage=True))
TEAM: Final[dict[str, Any]] = {
    "apiVersion": "example.com/v1",
    "kind": "Team",
    "metadata": {"name": "a"},
    "spec": {"members": [{"name": "a", "role": "x"}, {"name": "b", "role": "y"}]},
}

TYPED: Final = [
    ("object.spec.replicas > 3", False),
    ("object.spec.replcas > 3", True),
    ("object.spec.replicas > 'x'", True),
    ("object.spec.ratio > 0.5", False),
    ("object.spec.enabled == 'yes'", True),
    ("object.spec.name.startsWith('a')", False),
    ("object.spec.name > 3", True),
    ("object.metadata.name != '' && object.kind != 'x'", False),
    ("object.metadata.labls.size() > 0", True),
    ("object.metadat.name != ''", True),
    ("object.spec.members.all(m, m.role != 'x')", False),
    ("object.spec.members.all(m, m.rol != 'x')", True),
    ("object.spec.port == 80 || object.spec.port == 'http'", False),
    ("object.spec.limits.all(k, object.spec.limits[k] == 3)", False),
    ("object.spec.tags['a'] > 3", True),
    ("object.spec.tags.anything == 'x'", False),
    ("object.spec.quotas.all(k, object.spec.quotas[k].most < 3)", False),
    ("object.spec.quotas.all(k, object.spec.quotas[k].mots < 3)", True),
    ("object.spec.half.known > 3", True),
    ("object.spec.exact.spec.size > 3 && object.spec.exact.metadata.name != ''", False),
    ("object.spec.exact.spec.sise > 3", True),
    ("object.spec.exact.metadata.nme != ''", True),
    ("object.spec.template.metadata.name == '' && object.spec.template.kind == 'x'", False),
    ("object.spec.template.metadata.nme == ''", True),
    ("object.spec.empty.field == 3", True),
    ("object.status.phase == 'x'", False),
    ("object.status.phse == 'x'", True),
    ("has(oldObject.spec) && oldObject.spec.replcas == 3", True),
    *(
        (each, False)
        for each in (
            "object.spec.raw.anything == 3",
            "object.spec.half.other == 3",
            "object.spec.anything.other == 3",
            "object.spec.template.spec.containers.size() > 0",
            "object.spec.when == 'x' && object.spec.data == 'x'",
        )
    ),
]
"""The expression, and whether type checks warn of it."""
WARNED_BY_THE_API_SERVER: Final = {each for each, _ in TYPED[-5:]}
"""Of these only the API server warns. They are right: objects have fields that a schema preserves without knowing, and
expressions see times and bytes as text."""
