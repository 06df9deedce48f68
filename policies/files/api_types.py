"""The fields of kinds, as CEL types and for merging, from one table.

The package has the kinds of Kubernetes (`api_types.json`; `python -m tests.conformance.record_types` writes it from the
OpenAPI documents of Kubernetes). Other kinds are added from the OpenAPI documents of the API server, or from
CustomResourceDefinitions among the policy files.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from kubecel.types import BOOL, DOUBLE, DYN, INT, STRING, Type, list_of, map_of, record
from neuron.api.fields import mapping, mappings
from neuron.findings import few
from policies.judging.type_checks import KnownKind
from policies.patching.structured_merge import DEDUCED, Shape
from policies.schema.base import MatchResources, ResourceRule

FILE: Final = Path(__file__).parent / "api_types.json"
DEFINITION: Final = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
"""apiVersion and kind of the documents that `ApiTypes.define` takes."""
_LETTERS: Final = {"s": STRING, "i": INT, "d": DOUBLE, "b": BOOL}
_SCALARS: Final = {"integer": "i", "number": "d", "boolean": "b"}
_SCHEMAS: Final = "#/components/schemas/"
_GVK: Final = "x-kubernetes-group-version-kind"
_UNTYPED: Final = ("int-or-string", "date-time", "date", "duration", "byte")
"""Formats of values that expressions see as text or numbers, and that the API server's types call otherwise."""

Resources: TypeAlias = Mapping[str, Any]
"""Resource -> name of its kind, and the code of its type."""
Served: TypeAlias = Callable[[str], object]
"""The OpenAPI v3 document of an apiVersion; None: the API server has none; text: why it is not known."""


def nothing_served(api_version: str) -> None:
    """A `Served` without an API server."""


class TypeTable:
    """Names and types of fields, and how lists and maps are merged.

    A type is coded as an index of `types`, as a letter (`s`, `i`, `d`, `b`; `x`: any value), or as `["list", code]`,
    `["set", code]`, `["map", code]`, `["keyed", code, keys]`, `["atomic", code]` for a map or object that is merged as
    one value, `["open", code]` for an object that may have further fields.

    Attributes:
        kinds: apiVersion -> resource -> name of the kind and its code.
        names: of the types, as in messages.
        atomic: the types that are merged as one value.
        defaults: of fields, by type.
    """

    def __init__(self, found: Mapping[str, Any] | None = None) -> None:
        known = found or {}
        self.kinds: dict[str, dict[str, list[Any]]] = known.get("kinds", {})
        self.types: list[dict[str, Any]] = known.get("types", [])
        self.names: list[str] = known.get("names", [])
        self.atomic: list[int] = known.get("atomic", [])
        self.defaults: dict[str, dict[str, Any]] = known.get("defaults", {})
        self._index: dict[str, int] = {}
        self._schemas: Mapping[str, Any] = {}

    def add(self, document: object) -> None:
        """Add the kinds for which an OpenAPI v3 document has paths. What has another form has any value."""
        content = mapping(document)
        self._schemas = mapping(mapping(content.get("components")).get("schemas"))
        for path, methods in mapping(content.get("paths")).items():
            gvk = mapping(mapping(mapping(methods).get("post")).get(_GVK))
            resource = path.rpartition("/")[2]
            if not gvk or resource.startswith("{") or "{name}" in path:
                continue
            version = f"{gvk['group']}/{gvk['version']}" if gvk["group"] else gvk["version"]
            name = next((key for key, each in self._schemas.items() if gvk in mappings(mapping(each).get(_GVK))), "")
            if name:
                self._enter(str(version), resource, str(gvk["kind"]), self._reference(name))

    def define(self, definition: object) -> None:
        """Add the versions that a CustomResourceDefinition serves."""
        spec = mapping(mapping(definition).get("spec"))
        group, names = spec.get("group"), mapping(spec.get("names"))
        for version in mappings(spec.get("versions")):
            if version.get("served"):
                schema = mapping(mapping(version.get("schema")).get("openAPIV3Schema"))
                kind = str(names.get("kind"))
                code = self._code({"type": "object", **schema, "x-kubernetes-embedded-resource": True}, kind)
                self._enter(f"{group}/{version.get('name')}", str(names.get("plural")), kind, code)

    def _enter(self, version: str, resource: str, kind: str, code: Any) -> None:
        self.kinds.setdefault(version, {}).setdefault(resource, [kind, code])

    def _reference(self, name: str) -> int | str:
        """The code of a schema that has a name in the document."""
        schema = mapping(self._schemas.get(name))
        if "properties" not in schema:
            code = self._code(schema, name)
            return code if isinstance(code, str) else "x"
        at = self._index.get(name)
        if at is None:
            at = self._index[name] = self._new(name.rpartition(".")[2])
            if schema.get("x-kubernetes-map-type") == "atomic":
                self.atomic.append(at)
        self._fill(at, mapping(schema["properties"]))
        return at

    def _new(self, name: str) -> int:
        self.types.append({})
        self.names.append(name)
        return len(self.types) - 1

    def _fill(self, at: int, properties: Mapping[str, Any]) -> None:
        """Add fields to a type."""
        known = self.types[at]
        missing = [field for field in properties if field not in known]
        known.update(dict.fromkeys(missing, "x"))  # A type may contain itself.
        for field in missing:
            schema = mapping(properties[field])
            known[field] = self._code(schema, f"{self.names[at]}.{field}")
            if isinstance(schema.get("default"), str | int):
                self.defaults.setdefault(str(at), {})[field] = schema["default"]

    def _code(self, schema: Mapping[str, Any], name: str) -> Any:
        """The code of a schema; `name` is that of its type if it is an object whose fields are in it."""
        code = self._plain(schema, name)
        return ["atomic", code] if schema.get("x-kubernetes-map-type") == "atomic" and code != "x" else code

    def _plain(self, schema: Mapping[str, Any], name: str) -> Any:
        kind = schema.get("type")
        refers: Mapping[str, Any] = schema if kind else next(mappings(schema.get("allOf")), schema)
        if "$ref" in refers:
            return self._reference(str(refers["$ref"]).removeprefix(_SCHEMAS))
        if schema.get("format") in _UNTYPED or schema.get("x-kubernetes-int-or-string"):
            return "x"
        if kind == "array":
            return self._list(schema, self._code(mapping(schema.get("items")), name))
        if kind == "object":
            return self._object(schema, name)
        return "s" if kind == "string" else _SCALARS.get(kind or "", "x")

    def _object(self, schema: Mapping[str, Any], name: str) -> Any:
        values, properties = schema.get("additionalProperties"), mapping(schema.get("properties"))
        if isinstance(values, dict):
            return ["map", self._code(values, name)]
        if values:
            return "x"
        is_open = schema.get("x-kubernetes-preserve-unknown-fields")
        embedded = schema.get("x-kubernetes-embedded-resource")
        if is_open and not properties and not embedded:
            return "x"
        at = self._new(name)
        if embedded:
            self.types[at] |= {"apiVersion": "s", "kind": "s", "metadata": self._metadata()}
        self._fill(at, properties)
        return ["open", at] if is_open else at

    def _metadata(self) -> Any:
        """The code of the metadata of objects."""
        at = self.kinds.get("v1", {}).get("pods", ["", "x"])[1]
        return "x" if at == "x" else self.types[at]["metadata"]

    def _list(self, schema: Mapping[str, Any], items: Any) -> Any:
        relation, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys")
        if relation == "map" and isinstance(keys, list):
            return ["keyed", items, keys]
        return ["set" if relation == "set" else "list", items]


class ApiTypes:
    """Reads the table at its first use. Belongs to one load; a server keeps it only if policies merge by it."""

    def __init__(self, served: Served = nothing_served, definitions: Iterable[object] = ()) -> None:
        """`definitions`: CustomResourceDefinitions."""
        self._served = served
        self._definitions = tuple(definitions)
        self._table: TypeTable | None = None
        self._settled: set[str] = set()
        self._unread: dict[str, str] = {}
        self._shapes: dict[str, Shape] = {}

    @property
    def note(self) -> str:
        """What could not be read from the API server, and why; empty if nothing was missing."""
        if not self._unread:
            return ""
        versions, why = few(list(self._unread), 3), next(iter(self._unread.values()))
        return f"fields of {versions} are not checked, because the API server does not tell them: {why}"

    def matched(self, match: MatchResources) -> list[KnownKind]:
        """The known kinds that resource rules name, at most 10 as in the API server (maxTypesToCheck).

        Rules with a wildcard name none.
        """
        found = {each.name: each for rule in match.resource_rules for each in self._named(rule)}
        return [found[name] for name in sorted(found)][:10]

    def named(self, api_version: str, kind: str) -> KnownKind | None:
        """A kind; None if it is not known."""
        resources = self._resources(api_version, lambda known: any(name == kind for name, _ in known.values()))
        code = _of_kind(resources, kind)
        return None if code is None else KnownKind(f"{api_version} {kind}", self._type(code))

    def shape(self, api_version: str, kind: str) -> Shape:
        """How objects of a kind are merged; of a kind that is not known, by the form of their values.

        Asks no API server. May be called by several threads: all make the same.
        """
        code = _of_kind(self._read().kinds.get(api_version, {}), kind)
        return DEDUCED if code is None else self._shape(code)

    def _named(self, rule: ResourceRule) -> Iterator[KnownKind]:
        if "*" in (*rule.api_groups, *rule.api_versions):
            return
        named = [each for each in rule.resources if "*" not in each and "/" not in each]
        for group in rule.api_groups:
            for version in rule.api_versions if named else ():
                api = f"{group}/{version}" if group else version
                known = self._resources(api, lambda found: all(each in found for each in named))
                for kind, code in (known[each] for each in named if each in known):
                    yield KnownKind(f"{api} {kind}", self._type(code))

    def _resources(self, api_version: str, complete: Callable[[Resources], bool]) -> Resources:
        """The kinds of an apiVersion; asks the API server, once, for what is not `complete` and not of Kubernetes."""
        table = self._read()
        if api_version not in self._settled and not complete(table.kinds.get(api_version, {})):
            self._settled.add(api_version)
            # A server that did not answer once would let the whole load wait.
            found = next(iter(self._unread.values()), None) or self._served(api_version)
            if isinstance(found, str):
                self._unread[api_version] = found
            else:
                table.add(found)
        return table.kinds.get(api_version, {})

    def _read(self) -> TypeTable:
        if self._table is None:
            table = TypeTable(json.loads(FILE.read_bytes()))
            self._settled.update(table.kinds)
            for each in self._definitions:
                table.define(each)
            self._table = table
        return self._table

    def _shape(self, code: Any) -> Shape:
        table = self._read()
        if code == "x":
            return DEDUCED
        key = json.dumps(code)
        found = self._shapes.get(key)
        if found is not None:
            return found
        made = Shape()
        if isinstance(code, int):
            # Noted before its fields: a type may contain itself.
            self._shapes[key] = made
            made.name = table.names[code]
            made.atomic = code in table.atomic
            made.defaults = table.defaults.get(str(code), {})
            made.fields = {name: self._shape(each) for name, each in table.types[code].items()}
            return made
        if isinstance(code, str):
            made.scalar = code
        elif code[0] == "atomic":
            made = dataclasses.replace(self._shape(code[1]), atomic=True)
        elif code[0] == "open":
            made = dataclasses.replace(self._shape(code[1]), values=DEDUCED)
        elif code[0] == "map":
            made.values = self._shape(code[1])
        else:
            made.items = self._shape(code[1])
            made.is_set = code[0] == "set"
            made.keys = tuple(code[2]) if code[0] == "keyed" else ()
        self._shapes[key] = made
        return made

    def _type(self, code: Any, within: tuple[int, ...] = (), *, is_open: bool = False) -> Type:
        """The type of a code; any value for a type within itself, as in the API server.

        `is_open`: objects may have other fields than those of the table.
        """
        if isinstance(code, str) or code in within:
            return _LETTERS.get(code, DYN)
        if isinstance(code, int):
            table = self._read()
            known = table.types[code]
            return record(
                table.names[code], _TypedFields(known, lambda each: self._type(each, (*within, code)), is_open)
            )
        inner = self._type(code[1], within, is_open=code[0] == "open")
        if code[0] in ("atomic", "open"):
            return inner
        return map_of(STRING, inner) if code[0] == "map" else list_of(inner)


class _TypedFields(Mapping[str, Type]):
    """The fields of an object, each made when an expression reads it: a Pod has thousands."""

    def __init__(self, codes: Mapping[str, Any], make: Callable[[Any], Type], is_open: bool) -> None:
        """`is_open`: any other name is a field of any type."""
        self._codes = codes
        self._make = make
        self._is_open = is_open

    def __getitem__(self, name: str) -> Type:
        return DYN if self._is_open and name not in self._codes else self._make(self._codes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._codes)

    def __len__(self) -> int:
        return len(self._codes)


def _of_kind(resources: Resources, kind: str) -> Any:
    return next((code for name, code in resources.values() if name == kind), None)
