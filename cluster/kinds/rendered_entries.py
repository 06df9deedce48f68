"""The entries of the webhook configurations as the release renders them, and what differs from them in a cluster.

The chart writes them into a ConfigMap, without `clientConfig`: the CA bundle is not the chart's. A patch of a
configuration does not change the ConfigMap, and an upgrade or a rollback writes both.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec

CONFIG_MAP: Final = "neuron-dra-rendered"
"""Its name, in the namespace of the webhook."""

MUTATING: Final = "MutatingWebhookConfiguration"
VALIDATING: Final = "ValidatingWebhookConfiguration"

PATHS: Final = {MUTATING: "/mutate", VALIDATING: "/validate"}
"""The path of our server that the entries of each kind call."""

Entry: TypeAlias = Mapping[str, object]

_KEYS: Final = {MUTATING: "mutating.json", VALIDATING: "validating.json"}
_DEFAULTS: Final[Mapping[str, object]] = {
    "failurePolicy": "Fail",
    "rules": [],
    "namespaceSelector": {},
    "objectSelector": {},
    "matchConditions": [],
    "matchPolicy": "Equivalent",
    "timeoutSeconds": 10,
    "sideEffects": None,
    "reinvocationPolicy": "Never",
}
"""Compared fields, with the defaults of the API server."""


class RenderedEntriesError(Exception):
    """The ConfigMap does not contain the entries."""


@dataclasses.dataclass(frozen=True, slots=True)
class EntryDifference:
    """A field of an entry that is not as the release renders it.

    Attributes:
        found: its value in the cluster, with defaults.
        rendered: its value in the release, with defaults.
    """

    field: str
    found: Any
    rendered: Any


def read_rendered(config_map: Mapping[str, Any]) -> dict[str, dict[str, Entry]]:
    """The rendered entries: kind of the configuration -> name of the entry -> its fields.

    A kind without entries is not part of the release. An entry without `rules` has those that the webhook writes.

    Raises:
        RenderedEntriesError: the ConfigMap has another content.
    """
    data = config_map.get("data")
    found: dict[str, dict[str, Entry]] = {}
    for kind, key in _KEYS.items():
        text = data.get(key) if isinstance(data, dict) else None
        try:
            entries = msgspec.json.decode(text, type=list[dict[str, Any]]) if isinstance(text, str) else None
            if entries is None:
                raise RenderedEntriesError(f"ConfigMap {CONFIG_MAP} has no key {key}")
            found[kind] = {str(entry["name"]): entry for entry in entries}
        except msgspec.MsgspecError as error:
            raise RenderedEntriesError(f"ConfigMap {CONFIG_MAP}, key {key}: {error}") from error
        except KeyError as error:
            raise RenderedEntriesError(f"ConfigMap {CONFIG_MAP}, key {key}: an entry has no name") from error
    return found


def differences(entry: Entry, rendered: Entry) -> Iterator[EntryDifference]:
    """How an entry of the cluster differs from the rendered one. The order in selectors and rules does not count."""
    for field, default in _DEFAULTS.items():
        if field == "rules" and field not in rendered:
            continue
        found, wanted = (each.get(field) or default for each in (entry, rendered))
        if _comparable(field, found) != _comparable(field, wanted):
            yield EntryDifference(field, found, wanted)


def _comparable(field: str, value: Any) -> object:
    """A value without order, where order has no meaning, and with the API server's defaults of its parts."""
    if field == "rules":
        return _without_order([{"scope": "*"} | rule for rule in value])
    if field in ("namespaceSelector", "objectSelector"):
        return _without_order({key: each for key, each in value.items() if each})
    # All conditions must be true.
    return _without_order(value) if field == "matchConditions" else value


def _without_order(value: object) -> Any:
    if isinstance(value, dict):
        return tuple(sorted((key, _without_order(each)) for key, each in value.items()))
    if isinstance(value, list):
        return tuple(sorted(map(_without_order, value)))
    return value
