"""The fields of Kubernetes' kinds, as CEL types and for merging, from the table of the package (`api_types.json`).

`python -m tests.conformance.record_types` writes the table from the OpenAPI documents of Kubernetes.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kubecel.types import BOOL, DOUBLE, DYN, INT, STRING, Type, list_of, map_of, record
from policies.judging.type_checks import KnownKind
from policies.patching.structured_merge import DEDUCED, Shape
from policies.schema.constraints import MatchResources, ResourceRule

FILE: Final = Path(__file__).parent / "api_types.json"
MOST_KINDS: Final = 10
"""Kinds for which one policy is checked (maxTypesToCheck of the API server)."""
_LETTERS: Final = {"s": STRING, "i": INT, "d": DOUBLE, "b": BOOL}


class ApiTypes:
    """Reads the table at its first use. Belongs to one load; a server keeps it only if policies merge by it."""

    def __init__(self) -> None:
        self._table: dict[str, Any] | None = None
        self._made: dict[int, Type] = {}
        self._shapes: dict[str, Shape] = {}

    def matched(self, match: MatchResources) -> list[KnownKind]:
        """The known kinds that resource rules name, at most `MOST_KINDS`; rules with a wildcard name none."""
        found = {each.name: each for rule in match.resource_rules for each in self._named(rule)}
        return [found[name] for name in sorted(found)][:MOST_KINDS]

    def named(self, api_version: str, kind: str) -> KnownKind | None:
        """A kind; None if it is not in the table."""
        resources: Mapping[str, Any] = self._read()["kinds"].get(api_version, {})
        at = next((at for name, at in resources.values() if name == kind), None)
        return None if at is None else KnownKind(f"{api_version} {kind}", self._type(at))

    def shape(self, api_version: str, kind: str) -> Shape:
        """How objects of a kind are merged; of a kind that is not in the table, by the form of their values.

        May be called by several threads: both make the same.
        """
        resources: Mapping[str, Any] = self._read()["kinds"].get(api_version, {})
        at = next((at for name, at in resources.values() if name == kind), None)
        return DEDUCED if at is None else self._shape(at)

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
            made.name = table["names"][code]
            made.atomic = code in table["atomic"]
            made.defaults = table["defaults"].get(str(code), {})
            made.fields = {name: self._shape(each) for name, each in table["types"][code].items()}
            return made
        if isinstance(code, str):
            made.scalar = code
        elif code[0] == "atomic":
            made = dataclasses.replace(self._shape(code[1]), atomic=True)
        elif code[0] == "map":
            made.values = self._shape(code[1])
        else:
            made.items = self._shape(code[1])
            made.is_set = code[0] == "set"
            made.keys = tuple(code[2]) if code[0] == "keyed" else ()
        self._shapes[key] = made
        return made

    def _read(self) -> dict[str, Any]:
        if self._table is None:
            self._table = json.loads(FILE.read_bytes())
        return self._table

    def _named(self, rule: ResourceRule) -> Iterator[KnownKind]:
        if "*" in (*rule.api_groups, *rule.api_versions):
            return
        table = self._read()
        for group in rule.api_groups:
            for version in rule.api_versions:
                api = f"{group}/{version}" if group else version
                resources = table["kinds"].get(api, {})
                for resource in rule.resources:
                    if resource in resources:
                        kind, at = resources[resource]
                        yield KnownKind(f"{api} {kind}", self._type(at))

    def _type(self, code: Any) -> Type:
        if isinstance(code, str):
            return _LETTERS.get(code, DYN)
        if isinstance(code, list):
            outer, inner = code[0], self._type(code[1])
            if outer == "atomic":
                return inner
            return map_of(STRING, inner) if outer == "map" else list_of(inner)
        if code not in self._made:
            self._made[code] = DYN  # For types that contain themselves.
            table = self._table or {}
            fields = {name: self._type(each) for name, each in table["types"][code].items()}
            self._made[code] = record(table["names"][code], fields)
        return self._made[code]
