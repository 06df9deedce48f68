"""Reads and writes the record of a converted pod, the annotation `neuron.aws.com/converted-from`.

`{"containers": {"main": {"aws.amazon.com/neuron": "4"}}, "initContainers": {…}}`, in canonical whole numbers.
Containers that requested zero are included: a LimitRange default may add the resource again between two passes, and a
container that is not in the record counts as new. Member `hints`: what a SchedulingHintPolicy added. Member `claim`:
the name of our claim, if the user's own claim `neuron` looks like ours. Member `template`: the template, if a
ConversionPolicy named it. Member `efa`: the container and number of EFA interfaces that the
claim includes, with the DeviceClass for readers of the pod; the DeviceClass is never read.

Users can forge a record: `conversion.asks.claimed` reads what a pod says, `conversion.findings.verification` checks it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import orjson
from msgspec import Struct

from conversion.claims import containers as demand
from conversion.claims import templates
from conversion.claims.containers import Role
from conversion.claims.scheduling import Entry, SchedulingHints
from conversion.objects import nesting, pods
from conversion.objects.nesting import key_of, keys_of
from neuron import names

Amounts: TypeAlias = Mapping[str, str]

MOST_BYTES: Final = 128 * 1024
"""Largest size of a record. The API server accepts 256 KiB for all annotations of an object together."""

_MEMBERS: Final = frozenset({"containers", "initContainers", "hints", "claim", "template", "efa"})
_LONGEST_NAME: Final = 253
CLAIM_NAMES: Final = (names.POD_CLAIM, names.POD_CLAIM_FALLBACK)
"""Names that conversion gives to its entry in `spec.resourceClaims`."""
_LEGACY: Final = frozenset(names.LEGACY_RESOURCES)
MOST_HINTS: Final = 128
"""Entries of one list. A SchedulingHintPolicy adds at most 32; several passes can add those of several policies."""


class AddedAffinity(Struct, frozen=True, omit_defaults=True):
    """Requirements that were added to terms of required node affinity, and preferred terms."""

    required: tuple[dict[str, Any], ...] = ()
    preferred: tuple[dict[str, object], ...] = ()


class AddedHints(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What a SchedulingHintPolicy added, as the pod has it: the member `hints` of the record.

    On UPDATE it separates added entries from the user's own. Built-in hints are recognised by their content and are not
    in it. Users can forge it. That is harmless: entries that the pod does not have are dropped (`held`), only what the
    old object has is restored, labels count only if the policy sets them on CREATE, and an update that is not the
    manifest applied again gets back only labels that a policy in force sets (`by`).

    Attributes:
        tolerations: items of `spec.tolerations`.
        node_affinity: parts of `spec.affinity.nodeAffinity`.
        scheduler_name: the scheduler name that replaced the default or a legacy one.
        priority_class_name: the PriorityClass that the policy set.
        replaced_priority_class: the class that it replaced; None: there was none.
        labels: labels that the pod did not have.
        replaced_labels: labels that take precedence over the pod's own values.
    """

    tolerations: tuple[dict[str, object], ...] = ()
    node_affinity: AddedAffinity = AddedAffinity()
    scheduler_name: str | None = None
    priority_class_name: str | None = None
    replaced_priority_class: str | None = None
    labels: dict[str, str] = {}
    replaced_labels: dict[str, str] = {}

    def __bool__(self) -> bool:
        """Whether anything was added."""
        return self != NOTHING_ADDED

    def by(self, hints: SchedulingHints) -> "AddedHints":
        """The labels of it that a policy sets."""
        return AddedHints(
            labels=_both(self.labels, hints.labels), replaced_labels=_both(self.replaced_labels, hints.labels)
        )

    def held(
        self,
        tolerations: Sequence[Entry] | None,
        terms: Sequence[Entry] | None,
        preferred: Sequence[Entry] | None,
        scheduler: str | None,
        priority_class: str | None,
    ) -> "AddedHints":
        """The part of it that a pod really has. Without labels."""
        if self == NOTHING_ADDED:
            return self
        affinity = self.node_affinity
        return AddedHints(
            tolerations=_among(self.tolerations, tolerations or ()),
            node_affinity=AddedAffinity(
                _among(
                    affinity.required, (each for term in terms or () for each in term.get("matchExpressions") or ())
                ),
                _among(affinity.preferred, preferred or ()),
            ),
            scheduler_name=self.scheduler_name if self.scheduler_name == scheduler else None,
            priority_class_name=self.priority_class_name if self.priority_class_name == priority_class else None,
            replaced_priority_class=(
                self.replaced_priority_class if self.priority_class_name == priority_class else None
            ),
        )


def _among(entries: Sequence[dict[str, object]], others: Iterable[Entry]) -> tuple[dict[str, object], ...]:
    if not entries:
        return ()
    known = keys_of(others)
    return tuple(each for each in entries if key_of(each) in known)


def _both(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in one.items() if other.get(key) == value}


def union(before: Sequence[dict[str, object]], now: Sequence[dict[str, object]]) -> tuple[dict[str, object], ...]:
    """Entries of both, each once, at most `MOST_HINTS`."""
    if not before or not now:
        return tuple(before or now)
    known = keys_of(before)
    return (*before, *(entry for entry in now if key_of(entry) not in known))[:MOST_HINTS]


NO_AFFINITY = AddedAffinity()
NOTHING_ADDED = AddedHints()


class EfaRequest(Struct, frozen=True):
    """EFA interfaces that one container asked for, as its limit was.

    Attributes:
        count: number of interfaces, at least 1.
    """

    container: str
    count: int


class Requests(Struct, frozen=True):
    """What the containers of a pod asked for before its conversion.

    Attributes:
        containers: amounts of app containers, in canonical whole numbers.
        init_containers: amounts of init containers.
    """

    containers: Mapping[str, Amounts]
    init_containers: Mapping[str, Amounts]
    efa: EfaRequest | None

    def of(self, container: str) -> Amounts:
        """Requests of one container; names are unique in a pod."""
        return self.containers.get(container) or self.init_containers.get(container) or {}

    def gets_interfaces(self, container: str) -> bool:
        """Whether the claim includes EFA interfaces of a container."""
        return self.efa is not None and self.efa.container == container


class Record(Struct, frozen=True):
    """Legacy resources by container name, and what a policy added.

    Attributes:
        containers: requests of app containers, in canonical whole numbers.
        hints: what a SchedulingHintPolicy added.
        claim: name of our entry in `spec.resourceClaims`; empty: `neuron`, or `neuron-dra` if there is no `neuron`.
        template: the template that a policy named; empty: a generated one.
        efa: EFA interfaces that the claim includes.
        efa_class: their DeviceClass, written for readers of the pod, and not read: the policy has the class.
    """

    containers: Mapping[str, Amounts]
    init_containers: Mapping[str, Amounts]
    hints: AddedHints = NOTHING_ADDED
    claim: str = ""
    template: str = ""
    efa: EfaRequest | None = None
    efa_class: str = ""

    def encode(self) -> str:
        """The annotation's value."""
        value: dict[str, object] = {"containers": self.containers}
        if self.init_containers:
            value["initContainers"] = self.init_containers
        if self.hints:
            added: dict[str, object] = msgspec.to_builtins(self.hints)
            value["hints"] = {key: each for key, each in added.items() if each}
        if self.claim:
            value["claim"] = self.claim
        if self.template:
            value["template"] = self.template
        if self.efa is not None:
            efa = {"container": self.efa.container, "count": self.efa.count}
            value["efa"] = {**efa, "deviceClass": self.efa_class}
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def renamed(text: str, containers: Mapping[str, str]) -> str:
    """A record that `encode` made, for containers with other names. `containers`: the new names by the old ones."""
    value = orjson.loads(text)
    for section in ("containers", "initContainers"):
        if section in value:
            value[section] = {containers[name]: amounts for name, amounts in value[section].items()}
    if "efa" in value:
        value["efa"]["container"] = containers[value["efa"]["container"]]
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def decode(text: str) -> Record | None:
    """Decode the annotation; None if it is not a record or exceeds `MOST_BYTES`."""
    if len(text) > MOST_BYTES:
        return None
    try:
        value = nesting.decode(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    if not isinstance(value, dict) or not value.keys() <= _MEMBERS:
        return None
    containers, init_containers = _amounts(value.get("containers", {})), _amounts(value.get("initContainers", {}))
    claim = value.get("claim", "")
    template = value.get("template", "")
    if containers is None or init_containers is None or claim not in ("", *CLAIM_NAMES):
        return None
    if not isinstance(template, str) or len(template) > _LONGEST_NAME:
        return None
    efa = _efa_request(value["efa"]) if "efa" in value else None
    if "efa" in value and efa is None:
        return None
    return Record(containers, init_containers, _decode_hints(value.get("hints", {})), claim, template, efa)


def _decode_hints(value: object) -> AddedHints:
    """Decode the member `hints`. A value of another type, or with more than `MOST_HINTS` entries, is ignored."""
    try:
        added = msgspec.convert(value, AddedHints)
    except msgspec.ValidationError:
        return NOTHING_ADDED
    affinity = added.node_affinity
    lists = (added.tolerations, affinity.required, affinity.preferred, added.labels, added.replaced_labels)
    return NOTHING_ADDED if any(len(each) > MOST_HINTS for each in lists) else added


def _efa_request(value: object) -> EfaRequest | None:
    """The member `efa`; None if it is not valid."""
    if not isinstance(value, dict) or not value.keys() <= {"container", "count", "deviceClass"}:
        return None
    container, count = value.get("container"), value.get("count")
    if not isinstance(container, str) or type(count) is not int or not 0 < count <= names.MAX_DEVICES_PER_CLAIM:
        return None
    return EfaRequest(container, count)


def _amounts(section: object) -> dict[str, Amounts] | None:
    """One section of a record in canonical numbers; None if a value is not a valid amount."""
    if not isinstance(section, dict) or len(section) > pods.MOST_CONTAINERS:
        return None
    read: dict[str, Amounts] = {}
    for container, amounts in section.items():
        if not isinstance(amounts, dict) or not all(isinstance(value, str) for value in amounts.values()):
            return None
        if not amounts.keys() <= _LEGACY or demand.read("", Role.APP, "", amounts, {})[1]:
            return None
        read[container] = demand.legacy_amounts(amounts, {})
    return read


def may_be_ours(template: str, recorded: str) -> bool:
    """Whether a template has a name that conversion gives; users can, too. `recorded`: `Record.template`."""
    return template == recorded if recorded else templates.is_generated(template)


def claim_to_record(pod: pods.Pod, claim: str, template: str) -> str:
    """`Record.claim` for a pod whose entry has this name. `template`: `Record.template`."""
    return claim if claim == names.POD_CLAIM_FALLBACK and _resembles_ours(pod, template) else ""


def _resembles_ours(pod: pods.Pod, template: str) -> bool:
    """Whether a claim `neuron` of the user looks like that of the conversion."""
    return any(
        entry.get("name") == names.POD_CLAIM and may_be_ours(entry.get("resourceClaimTemplateName") or "", template)
        for entry in pod.decode_claims() or ()
    )
