"""The fields of Kubernetes' kinds as CEL types, from the table that the package ships (`api_types.json`).

`python -m tests.conformance.record_types` writes the table from the OpenAPI documents of Kubernetes.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from kubecel.types import BOOL, DOUBLE, DYN, INT, STRING, Type, list_of, map_of, record
from policies.judging.type_checks import KnownKind
from policies.schema.constraints import MatchResources, ResourceRule

FILE: Final = Path(__file__).parent / "api_types.json"
MOST_KINDS: Final = 10
"""Kinds for which one policy is checked (maxTypesToCheck of the API server)."""
_LETTERS: Final = {"s": STRING, "i": INT, "d": DOUBLE, "b": BOOL}


class ApiTypes:
    """Reads the table at its first use. Belongs to one load, so that a server does not keep it."""

    def __init__(self) -> None:
        self._table: dict[str, Any] | None = None
        self._made: dict[int, Type] = {}

    def matched(self, match: MatchResources) -> list[KnownKind]:
        """The known kinds that resource rules name, at most `MOST_KINDS`; rules with a wildcard name none."""
        found = {each.name: each for rule in match.resource_rules for each in self._named(rule)}
        return [found[name] for name in sorted(found)][:MOST_KINDS]

    def _named(self, rule: ResourceRule) -> Iterator[KnownKind]:
        if "*" in (*rule.api_groups, *rule.api_versions):
            return
        if self._table is None:
            self._table = json.loads(FILE.read_bytes())
        for group in rule.api_groups:
            for version in rule.api_versions:
                api = f"{group}/{version}" if group else version
                resources = self._table["kinds"].get(api, {})
                for resource in rule.resources:
                    if resource in resources:
                        kind, at = resources[resource]
                        yield KnownKind(f"{api} {kind}", self._type(at))

    def _type(self, code: Any) -> Type:
        if isinstance(code, str):
            return _LETTERS.get(code, DYN)
        if isinstance(code, list):
            outer, inner = code
            return list_of(self._type(inner)) if outer == "list" else map_of(STRING, self._type(inner))
        if code not in self._made:
            self._made[code] = DYN  # For types that contain themselves.
            table = self._table or {}
            fields = {name: self._type(each) for name, each in table["types"][code].items()}
            self._made[code] = record(table["names"][code], fields)
        return self._made[code]
