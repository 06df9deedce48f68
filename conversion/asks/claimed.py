"""Reads what a pod says about its own conversion: label, record, and an entry in `spec.resourceClaims`. Pure.

Users can write all of it. So it is a request at most (`restated`), with no more power than limits of the same amounts:
conversion computes the claim again, with the DeviceClasses and counts of policies and catalogue. Code that judges a
pod, or that treats an object as ours, takes a `conversion.findings.verification.Verified` instead. An import contract
in `pyproject.toml` lists the modules that may read this one.
"""

import dataclasses

from conversion.asks import records
from conversion.asks.records import CLAIM_NAMES, AddedHints, EfaRequest, Record, Requests, may_be_ours
from conversion.claims import containers as demand
from conversion.claims.containers import Ask, Role
from conversion.objects import pods


@dataclasses.dataclass(frozen=True, slots=True)
class Claimed:
    """A conversion that a pod claims to have had. Not verified.

    Attributes:
        claim: name of the entry in `spec.resourceClaims` that conversion may have added.
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


class Restated(Requests, frozen=True):
    """What a pod asks for by its record, as by limits, and the entry of `spec.resourceClaims` that conversion writes.

    It has no DeviceClass, and conversion replaces the template of the entry unless it is the one that it computes.

    Attributes:
        claim: name of the entry.
        template: the ResourceClaimTemplate that it uses now.
        hints: what an earlier pass may have added; see `conversion.asks.records.AddedHints`.
    """

    claim: str
    index: int
    template: str
    hints: AddedHints


def claimed(pod: pods.Pod) -> Claimed | None:
    """The conversion that a pod claims, or None if its parts do not fit each other.

    They fit if all of this holds:

    - The pod has the label, and a record of at most `MOST_BYTES` that can be decoded.
    - Each container in the record is in the pod, each amount is valid, and at least one container requests devices.
    - `spec.resourceClaims` has an entry of the record's name, with the template of the record, or with the name of a
      generated template if the record has none.
    - No container with recorded devices has its limits and lacks the claim. A container without both has lost its
      reference, most likely to another webhook: it is in `lost`.
    """
    text = pod.annotations.converted_from
    if not pod.labelled or not text or pod.excess() is not None:
        return None
    record = records.decode(text)
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
    return Claimed(record, claim, index, template, asks, tuple(lost))


def restated(pod: pods.Pod) -> Restated | None:
    """What a pod asks for by its record; None if it claims no conversion."""
    found = claimed(pod)
    if found is None:
        return None
    record = found.record
    return Restated(
        record.containers,
        record.init_containers,
        record.efa,
        found.claim,
        found.index,
        found.template,
        record.hints,
    )


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


def _is_only(efa: EfaRequest, record: Record) -> bool:
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
        if name in CLAIM_NAMES:
            if name in found:
                return None  # The API server refuses two entries with one name.
            found[name] = (index, name, template)
    wanted = (record.claim,) if record.claim else CLAIM_NAMES
    return next(
        (found[name] for name in wanted if name in found and may_be_ours(found[name][2], record.template)), None
    )
