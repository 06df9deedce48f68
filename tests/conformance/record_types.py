"""Write the fields of Kubernetes' kinds, by which policies are type-checked without a cluster.

`python -m tests.conformance.record_types FOLDER...` reads OpenAPI v3 documents (`*_openapi.json`, as in
`api/openapi-spec/v3` of Kubernetes and as an API server serves them), one folder for each version, and writes
policies/files/api_types.json: names and types, and how lists and maps are merged. A field that one of the versions
has is known; give the newest version first, because the first one decides how a field is merged.
"""

import argparse
import json
from pathlib import Path
from typing import Any, Final

from policies.files.api_types import FILE

_SCHEMAS: Final = "#/components/schemas/"
_GVK: Final = "x-kubernetes-group-version-kind"
_MAP: Final = "x-kubernetes-map-type"
_SCALARS: Final = {"integer": "i", "number": "d", "boolean": "b"}


class _Table:
    def __init__(self) -> None:
        self.kinds: dict[str, dict[str, list[Any]]] = {}
        self.types: list[dict[str, Any]] = []
        self.names: list[str] = []
        self.atomic: list[int] = []
        self.defaults: dict[int, dict[str, Any]] = {}
        self._keys: dict[int, set[str]] = {}
        self._found: dict[int, dict[str, Any]] = {}
        self._index: dict[str, int] = {}
        self._schemas: dict[str, Any] = {}

    def add(self, document: dict[str, Any]) -> None:
        """Add the kinds that a document has paths for."""
        self._schemas = document.get("components", {}).get("schemas", {})
        for path, methods in document.get("paths", {}).items():
            gvk = methods.get("post", {}).get("x-kubernetes-group-version-kind")
            resource = path.rpartition("/")[2]
            if gvk is None or resource.startswith("{") or "{name}" in path:
                continue
            version = f"{gvk['group']}/{gvk['version']}" if gvk["group"] else gvk["version"]
            name = next((key for key, each in self._schemas.items() if gvk in each.get(_GVK, ())), "")
            if name:
                self.kinds.setdefault(version, {})[resource] = [gvk["kind"], self._reference(name)]

    def _reference(self, name: str) -> int | str:
        schema = self._schemas[name]
        if "properties" not in schema:
            code = self._code(schema)
            return code if isinstance(code, str) else "x"
        at = self._index.get(name)
        if at is None:
            at = self._index[name] = len(self.types)
            self.types.append({})
            self.names.append(name.rpartition(".")[2])
            if schema.get(_MAP) == "atomic":
                self.atomic.append(at)
        known = self.types[at]
        missing = [field for field in schema["properties"] if field not in known]
        for field in missing:
            known[field] = "x"  # A type may contain itself.
        for field in missing:
            known[field] = self._code(schema["properties"][field])
            default = schema["properties"][field].get("default")
            if isinstance(default, str | int):
                self._found.setdefault(at, {})[field] = default
        return at

    def finish(self) -> None:
        """Keep the defaults of the keys of lists."""
        for at, keys in self._keys.items():
            kept = {key: value for key, value in self._found.get(at, {}).items() if key in keys}
            if kept:
                self.defaults[at] = kept

    def _code(self, schema: dict[str, Any]) -> Any:
        """An index of `types`, a letter, or `["list", code]`, `["set", code]`, `["map", code]`,
        `["keyed", code, keys]`.

        `["atomic", code]` is a map or object that is merged as one value.
        """
        code = self._plain(schema)
        return ["atomic", code] if schema.get(_MAP) == "atomic" and code != "x" else code

    def _plain(self, schema: dict[str, Any]) -> Any:
        [first, *_] = schema.get("allOf") or [schema]
        if "$ref" in first:
            return self._reference(first["$ref"].removeprefix(_SCHEMAS))
        kind = first.get("type")
        if "oneOf" in first or first.get("format") in ("int-or-string", "date-time", "byte"):
            return "x"
        if kind == "array":
            return self._list(schema, self._code(first.get("items", {})))
        if kind == "object" and isinstance(first.get("additionalProperties"), dict):
            return ["map", self._code(first["additionalProperties"])]
        return "s" if kind == "string" else _SCALARS.get(kind or "", "x")

    def _list(self, schema: dict[str, Any], items: Any) -> Any:
        relation = schema.get("x-kubernetes-list-type")
        if relation == "map":
            keys = schema["x-kubernetes-list-map-keys"]
            if isinstance(items, int):
                self._keys.setdefault(items, set()).update(keys)
            return ["keyed", items, keys]
        return ["set" if relation == "set" else "list", items]


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--versions", required=True, help="of Kubernetes, for the table's head")
    options = parser.parse_args()
    table = _Table()
    for folder in options.folders:
        for path in sorted(folder.glob("*_openapi.json")):
            table.add(json.loads(path.read_text(encoding="utf-8")))
    table.finish()
    about = {
        "source": "OpenAPI v3 documents of Kubernetes, names and types only",
        "versions": options.versions,
        "licence": "Apache-2.0",
        "written by": "python -m tests.conformance.record_types",
    }
    made = {
        "about": about,
        "atomic": sorted(table.atomic),
        "defaults": table.defaults,
        "kinds": table.kinds,
        "names": table.names,
        "types": table.types,
    }
    FILE.write_text(json.dumps(made, separators=(",", ":"), sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
