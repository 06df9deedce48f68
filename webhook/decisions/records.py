"""Reads and verifies the record of a converted pod, the annotation `neuron.aws.com/converted-from`.

`{"containers": {"main": {"aws.amazon.com/neuron": "4"}}, "initContainers": {…}}`, in canonical whole numbers.
Containers that requested zero are included: a LimitRange default may add the resource again between two passes, and a
container that is not in the record counts as new. Member `hints`: what a SchedulingHintPolicy added. Member `claim`:
the name of our claim, if the user's own claim `neuron` looks like ours. Member `template`: the template, if a
ConversionPolicy named it. Member `efa`: the container, number and DeviceClass of EFA
interfaces that the claim includes.

Users can forge a record. `find_conversion` alone decides by the pod whether it was converted. `verified_conversion`
also checks the template.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import orjson

from neuron import demand, names, selectors, templates
from neuron.check_connections import group_size
from neuron.claim_specs import ClaimSpec, Constraint, DeviceRequest
from neuron.configs import covers
from neuron.demand import Ask, Role
from neuron.interfaces import Interfaces
from webhook.decisions import added_hints, nesting, pods
from webhook.decisions.added_hints import NOTHING_ADDED, AddedHints

Amounts: TypeAlias = Mapping[str, str]

MOST_BYTES: Final = 128 * 1024
"""Of a record. The API server takes 256 KiB for all annotations of an object together."""

_MEMBERS: Final = frozenset({"containers", "initContainers", "hints", "claim", "template", "efa"})
_LONGEST_NAME: Final = 253
_CLAIM_NAMES: Final = (names.POD_CLAIM, names.POD_CLAIM_FALLBACK)
_COUNTS: Final = (1, 4, 8, 16)
"""Device counts to which conversion rounds cores up (docs/conversion.md). Above, each core counts as a device."""
_DEVICES_OF_A_NODE: Final = 16
"""Devices of a `neuron_node`; only UltraServer nodes publish one."""
_LEGACY: Final = frozenset(names.LEGACY_RESOURCES)
_WHOLE_NODE: Final = selectors.whole_node()
_OTHER_DRIVER: Final = selectors.other_driver()


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """Legacy resources by container name, and what a policy added.

    Attributes:
        containers: requests of app containers, in canonical whole numbers.
        init_containers: requests of init containers.
        hints: what a SchedulingHintPolicy added.
        claim: name of our entry in `spec.resourceClaims`; empty: `neuron`, or `neuron-dra` if there is no `neuron`.
        template: the template that a policy named; empty: a generated one.
        efa: EFA interfaces that the claim includes.
    """

    containers: Mapping[str, Amounts]
    init_containers: Mapping[str, Amounts]
    hints: AddedHints = NOTHING_ADDED
    claim: str = ""
    template: str = ""
    efa: Interfaces | None = None

    def of(self, container: str) -> Amounts:
        """Requests of one container; names are unique in a pod."""
        return self.containers.get(container) or self.init_containers.get(container) or {}

    def gets_interfaces(self, container: str) -> bool:
        """Whether the claim includes EFA interfaces of a container."""
        return self.efa is not None and self.efa.container == container

    def encode(self) -> str:
        """The annotation's value."""
        value: dict[str, Any] = {"containers": self.containers}
        if self.init_containers:
            value["initContainers"] = self.init_containers
        if self.hints:
            value["hints"] = added_hints.encode(self.hints)
        if self.claim:
            value["claim"] = self.claim
        if self.template:
            value["template"] = self.template
        if self.efa is not None:
            efa = self.efa
            value["efa"] = {"container": efa.container, "count": efa.count, "deviceClass": efa.device_class}
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
    if containers is None or init_containers is None or claim not in ("", *_CLAIM_NAMES):
        return None
    if not isinstance(template, str) or len(template) > _LONGEST_NAME:
        return None
    efa = _interfaces(value["efa"]) if "efa" in value else None
    if "efa" in value and efa is None:
        return None
    return Record(containers, init_containers, added_hints.decode(value.get("hints", {})), claim, template, efa)


def _interfaces(value: object) -> Interfaces | None:
    """The member `efa`; None if it is not valid."""
    if not isinstance(value, dict) or value.keys() != {"container", "count", "deviceClass"}:
        return None
    container, count, device_class = value["container"], value["count"], value["deviceClass"]
    if type(count) is not int or not 0 < count <= names.MAX_DEVICES_PER_CLAIM or not isinstance(container, str):
        return None
    if not isinstance(device_class, str) or not 0 < len(device_class) <= _LONGEST_NAME:
        return None
    return Interfaces(container, count, device_class)


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


@dataclasses.dataclass(frozen=True, slots=True)
class Converted:
    """Evidence that a pod was converted.

    Attributes:
        record: the decoded annotation.
        claim: name of our entry in `spec.resourceClaims`.
        index: index of that entry.
        template: the ResourceClaimTemplate that it uses.
        asks: recorded asks of all containers of the pod, init containers first.
        lost: names of containers that have lost their reference to the claim, and so their devices.
    """

    record: Record
    claim: str
    index: int
    template: str
    asks: tuple[Ask, ...]
    lost: tuple[str, ...] = ()


def find_conversion(pod: pods.Pod) -> Converted | None:
    """The pod's conversion, or None if the pod is not converted.

    A pod is converted if all of this holds:

    - It has the label, and a record of at most `MOST_BYTES` that can be decoded.
    - Each container in the record is in the pod, each amount is valid, and at least one container requests devices.
    - `spec.resourceClaims` has an entry of the record's name, with the template of the record, or with the name of a
      generated template if the record has none.
    - No container with recorded devices has its limits and lacks the claim. A container without both has lost its
      reference, most likely to another webhook: it is in `lost`.

    The template is not checked. Code that changes the pod makes the template again from the record. Code that only
    judges the pod must use `verified_conversion`.
    """
    text = pod.annotations.converted_from
    if not pod.labelled or not text or pod.excess() is not None:
        return None
    record = decode(text)
    if record is None:
        return None
    asks = _asks(pod, record)
    entry = _entry(pod, record)
    if asks is None or entry is None:
        return None
    index, claim, template = entry
    lost = []
    for ask, container in zip(asks, (*pod.init_containers, *pod.containers), strict=True):
        if not ask.amount:
            continue
        resources = container.decode_resources(ask.path) or {}
        if any(each.get("name") == claim for each in resources.get("claims") or ()):
            continue
        if demand.names_legacy(resources):
            return None
        lost.append(container.name)
    return Converted(record, claim, index, template, asks, tuple(lost))


def _asks(pod: pods.Pod, record: Record) -> tuple[Ask, ...] | None:
    """Recorded asks of all containers; None if the record does not fit this pod."""
    sections = (
        ("initContainers", pod.init_containers, record.init_containers),
        ("containers", pod.containers, record.containers),
    )
    if pod.repeated() is not None:
        return None
    asks: list[Ask] = []
    for section, containers, recorded in sections:
        if not recorded.keys() <= {container.name for container in containers}:
            return None
        for index, container in enumerate(containers):
            role = role_of(section, container)
            asks.append(
                demand.read(container.name, role, f"spec.{section}[{index}]", recorded.get(container.name, {}), {})[0]
            )
    if record.efa is not None and not _is_only(record.efa, record):
        return None
    return tuple(asks) if any(ask.amount for ask in asks) else None


def _is_only(efa: Interfaces, record: Record) -> bool:
    """Whether the container with the EFA interfaces is the only one with devices."""
    recorded = {**record.containers, **record.init_containers}
    return {name for name, amounts in recorded.items() if any(each != "0" for each in amounts.values())} == {
        efa.container
    }


def role_of(section: str, container: pods.Container) -> Role:
    """How long a container holds its devices."""
    if section == "containers":
        return Role.APP
    return Role.SIDECAR if container.restartPolicy == "Always" else Role.INIT


def _entry(pod: pods.Pod, record: Record) -> tuple[int, str, str] | None:
    """Index, name and template of our entry in `spec.resourceClaims`; None without one."""
    found: dict[str, tuple[int, str, str]] = {}
    for index, entry in enumerate(pod.decode_claims() or ()):
        name, template = entry.get("name"), entry.get("resourceClaimTemplateName") or ""
        if name in _CLAIM_NAMES:
            if name in found:
                return None  # The API server refuses two entries with one name.
            found[name] = (index, name, template)
    wanted = (record.claim,) if record.claim else _CLAIM_NAMES
    return next((found[name] for name in wanted if name in found and _is_ours(found[name][2], record.template)), None)


def _is_ours(template: str, recorded: str) -> bool:
    """Whether a template can be that of a conversion. `recorded`: `Record.template`."""
    return template == recorded if recorded else templates.is_generated(template)


def claim_to_record(pod: pods.Pod, claim: str, template: str) -> str:
    """`Record.claim` for a pod whose entry has this name. `template`: `Record.template`."""
    return claim if claim == names.POD_CLAIM_FALLBACK and _resembles_ours(pod, template) else ""


def _resembles_ours(pod: pods.Pod, template: str) -> bool:
    """Whether a claim `neuron` of the user looks like that of the conversion."""
    return any(
        entry.get("name") == names.POD_CLAIM and _is_ours(entry.get("resourceClaimTemplateName") or "", template)
        for entry in pod.decode_claims() or ()
    )


def verified_conversion(
    pod: pods.Pod | Mapping[str, Any], template: Callable[[str], ClaimSpec | None], *, dry_run: bool = False
) -> Converted | None:
    """The conversion of a pod whose claim requests no more devices than its record.

    For code that judges a pod and does not change it, such as policies.

    Args:
        pod: its view, or the whole object.
        template: gives the spec of a ResourceClaimTemplate of the pod's namespace; None if it is unknown.
        dry_run: whether the pod is not stored. In a dry run conversion creates no template, so an unknown template is
            taken for the one that it would create. A forged record is harmless, because nothing is stored.

    Returns:
        None if the pod is not converted (`find_conversion`), a container has lost its reference, or the template is
        unknown or requests more than the record. Then limits and claims must be judged as the pod has them, and an
        unknown template as one that can request any number of devices.

    Raises:
        webhook.decisions.pods.UnreadableError: a field of the pod has the wrong type.
    """
    conversion = find_conversion(pod if isinstance(pod, pods.Pod) else pods.view(pod))
    if conversion is None or conversion.lost:
        return None
    spec = template(conversion.template)
    if spec is None:
        return conversion if dry_run else None
    return conversion if _is_covered(spec, conversion.asks) else None


def _is_covered(spec: ClaimSpec, asks: Sequence[Ask]) -> bool:
    """Whether a claim requests at most the devices that conversion requests for these asks, on any instance type."""
    held = 0
    for request in spec.requests:
        most = [_held(alternative, spec.constraints) for alternative in request.alternatives]
        if None in most:
            return False
        held += max((each for each in most if each is not None), default=0)
    return held <= _most_devices(asks)


def _held(request: DeviceRequest, constraints: Sequence[Constraint]) -> int | None:
    """Devices of one request of a generated template; None if the request is not generated."""
    if request.everything or request.admin_access:
        return None
    first = request.selectors[0].expression if request.selectors else ""
    if first == _OTHER_DRIVER:
        return 0
    if first == _WHOLE_NODE:
        return request.count * _DEVICES_OF_A_NODE
    # A whole node is in no window.
    grouped = not first and any(
        group_size(each.match_attribute) and covers(frozenset(each.requests), request.reference) for each in constraints
    )
    return request.count if grouped or selectors.selects_single_devices(first) else None


def _most_devices(asks: Sequence[Ask]) -> int:
    """The most devices that conversion requests for a pod: the total of `neuron.layout.lay_out`, on any type."""
    apps = sum(_rounded(ask) for ask in asks if ask.role is Role.APP)
    later = apps
    extra = 0
    for ask in reversed(asks):
        if ask.role is Role.SIDECAR:
            later += _rounded(ask)
        elif ask.role is Role.INIT:
            extra = max(extra, _rounded(ask) - later)
    return later + extra


def _rounded(ask: Ask) -> int:
    if not ask.in_cores:
        return ask.amount
    return next((count for count in _COUNTS if count >= ask.amount), ask.amount)
