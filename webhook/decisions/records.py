"""What a converted pod says of its former self: the annotation `neuron.aws.com/converted-from`.

`{"containers": {"main": {"aws.amazon.com/neuron": "4"}}, "initContainers": {…}}`, quantities as written. A
container that asked for zero is in it: a LimitRange default may put the name back between two passes, and a
container that is not in the record is taken for a new one. Where a SchedulingHintPolicy added something, the member
`hints` says what.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import orjson

from neuron import names, quantities
from webhook.decisions import added_hints, pods
from webhook.decisions.added_hints import NOTHING_ADDED, AddedHints

Amounts = Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """Legacy resources by container name, as written, and what a policy added."""

    containers: Mapping[str, Amounts]
    init_containers: Mapping[str, Amounts]
    hints: AddedHints = NOTHING_ADDED

    def of(self, container: str) -> Amounts:
        """What one container asked for; names are unique in a pod."""
        return self.containers.get(container) or self.init_containers.get(container) or {}

    @property
    def asks(self) -> bool:
        """Whether any container asked for anything."""
        sections = (*self.containers.values(), *self.init_containers.values())
        return any(_positive(value) for amounts in sections for value in amounts.values())

    def encode(self) -> str:
        """The annotation's value."""
        value: dict[str, Any] = {"containers": self.containers}
        if self.init_containers:
            value["initContainers"] = self.init_containers
        if self.hints:
            value["hints"] = added_hints.encode(self.hints)
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


_GENERATED = re.compile(rf"{names.TEMPLATE_PREFIX}[a-z0-9-]+-[0-9a-f]{{12}}")


def is_generated(template: str) -> bool:
    """Whether a template's name is one that we give (`neuron.templates.Template.make`)."""
    return _GENERATED.fullmatch(template) is not None


def _positive(value: str) -> bool:
    try:
        return quantities.parse_count(value) > 0
    except quantities.NotACountError:
        return False


def decode(text: str) -> Record | None:
    """Read the annotation; None where it is no record."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict) or not value.keys() <= {"containers", "initContainers", "hints"}:
        return None
    containers, init_containers = value.get("containers", {}), value.get("initContainers", {})
    if not (_is_amounts(containers) and _is_amounts(init_containers)):
        return None
    return Record(containers, init_containers, added_hints.decode(value.get("hints", {})))


def _is_amounts(section: object) -> bool:
    return isinstance(section, dict) and all(
        isinstance(amounts, dict)
        and all(resource in names.LEGACY_RESOURCES and isinstance(value, str) for resource, value in amounts.items())
        for amounts in section.values()
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Converted:
    """Evidence that a pod was converted.

    Attributes:
        record: what it asked for.
        claim: name of its entry in `spec.resourceClaims`.
        index: where that entry is.
        template: the ResourceClaimTemplate it names.
    """

    record: Record
    claim: str
    index: int
    template: str


def find_conversion(pod: pods.Pod) -> Converted | None:
    """The pod's conversion, or None for a pod that is not converted.

    The label alone is never trusted: there has to be a readable record that asks for something, and a claim of our
    making.
    """
    text = pod.annotations.converted_from
    record = decode(text) if pod.labelled and text else None
    if record is None or not record.asks:
        return None
    for index, entry in enumerate(pod.decode_claims() or ()):
        name, template = entry.get("name"), entry.get("resourceClaimTemplateName") or ""
        if name in (names.POD_CLAIM, names.POD_CLAIM_FALLBACK) and is_generated(template):
            return Converted(record, name, index, template)
    return None
