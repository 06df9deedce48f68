"""Reads an allocated ResourceClaim for one driver on one node: devices, requests and settings.

Source: `status.allocation` of `resource.k8s.io/v1`; v1beta1 and v1beta2 are equal there.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

from neuron import names
from neuron.api.configs import ConfigEntry, ConfigsInForce, configs_in_force, decode_object
from neuron.api.fields import WrongFormError
from neuron.api.stored_claims import AllocatedConfig, Result, StoredClaim, Tie, read_stored_claim
from neuron.findings import Finding, Severity
from neuron.hardware.instances import InstanceType
from neuron.quantities import NotACountError, parse_count

POD_CLAIM_ANNOTATION: Final = "resource.kubernetes.io/pod-claim-name"
"""kube-controller-manager sets it on claims that it makes from templates."""


class AllocationError(Exception):
    """The claim cannot be prepared on this node; the message has cause and fix.

    Attributes:
        findings: errors of the claim's configs, if they are the cause.
    """

    def __init__(self, message: str, findings: Sequence[Finding] = ()) -> None:
        super().__init__(message)
        self.findings = tuple(findings)


@dataclasses.dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One entry of `status.allocation.devices.results` for our driver.

    Attributes:
        request: `req`, or `req/sub` if the request has alternatives.
        admin_access: whether it is admin access: the device may be allocated to another claim, too.
        share_id: of a device that several claims can share; None for other devices.
        cores: physical cores that the claim consumes of a shared device; None if the device has no such capacity.
    """

    request: str
    pool: str
    device: str
    admin_access: bool = False
    share_id: str | None = None
    cores: int | None = None

    @property
    def parent_request(self) -> str:
        """The name by which containers refer to the request, without the alternative."""
        return self.request.partition("/")[0]


@dataclasses.dataclass(frozen=True, slots=True)
class AllocatedClaim:
    """The devices and configs of a claim, for one driver on one node.

    Attributes:
        devices: the driver's results, in the order of the allocation.
        configs: the driver's configs, in the order of the allocation.
        warnings: findings that refuse nothing, e.g. an older apiVersion.
        pod_claim: its entry in `spec.resourceClaims` of its pod, if it was made from a template; empty otherwise.
        ties: sets of requests, without alternatives, whose devices a `matchAttribute` constraint connects.
    """

    namespace: str
    name: str
    uid: str
    devices: tuple[AllocatedDevice, ...]
    configs: tuple[ConfigEntry, ...] = ()
    warnings: tuple[Finding, ...] = ()
    ties: tuple[frozenset[str], ...] = ()
    pod_claim: str = ""

    def in_force(self, request: str) -> ConfigsInForce:
        """The settings in force for one of the claim's requests."""
        return configs_in_force(self.configs, request)

    def together(self, request: str) -> frozenset[str]:
        """A request, without its alternative, and all requests that constraints connect with it."""
        found = {request}
        for _ in self.ties:
            found.update(*(tie for tie in self.ties if tie & found))
        return frozenset(found)


def read_allocation(claim: object, driver: str, pool: str, uid: str) -> AllocatedClaim:
    """Read a claim as the API server returned it.

    Args:
        driver: its results and configs are read; those of other drivers are ignored.
        pool: the node's pool. A result of another pool means that the claim is allocated to another node.
        uid: the UID in the kubelet's request. A claim with another UID is a different claim.

    Raises:
        AllocationError: for a claim of unknown form, another UID, no allocation, an allocation to another node or
            without a device of the driver, and configs that cannot be decoded.
    """
    stored = _read(claim)
    metadata, allocation = stored.metadata, stored.allocation
    claim_text = f"ResourceClaim {metadata.namespace}/{metadata.name}"
    if metadata.uid != uid:
        raise AllocationError(
            f"{claim_text} has UID {metadata.uid}, not {uid}: it was deleted and made again. "
            "The kubelet asks again for the new one."
        )
    if allocation is None:
        raise AllocationError(
            f"{claim_text} is not allocated. The scheduler has to allocate it before a node can prepare it; a pod with "
            "spec.nodeName set bypasses the scheduler."
        )
    devices = tuple(_device(result) for result in allocation.results if result.driver == driver)
    if not devices:
        raise AllocationError(f"{claim_text} is allocated, but has no device of driver {driver}.")
    elsewhere = next((device for device in devices if device.pool != pool), None)
    if elsewhere is not None:
        raise AllocationError(
            f"{claim_text} is allocated elsewhere: device {elsewhere.device} is in pool {elsewhere.pool}, the pool of "
            f"this node is {pool}."
        )
    entries, findings = config_entries(allocation.configs, driver)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        listed = " ".join(f"{finding.path}: {finding}" for finding in errors)
        message = f"{claim_text} has a config that cannot be used. {listed}{_as_decoders_say(errors)}"
        raise AllocationError(message, errors)
    ties = _ties(stored.ties, devices)
    noted = (metadata.annotations or {}).get(POD_CLAIM_ANNOTATION, "")
    # Part of a path in containers; anybody can annotate a claim.
    pod_claim = noted if names.DNS_LABEL.fullmatch(noted) else ""
    return AllocatedClaim(metadata.namespace, metadata.name, uid, devices, entries, tuple(findings), ties, pod_claim)


def _read(claim: object) -> StoredClaim:
    try:
        return read_stored_claim(claim)
    except WrongFormError as error:
        raise AllocationError(
            f"The API server returned a ResourceClaim that this driver cannot read: {error}. Update the driver."
        ) from error


def _as_decoders_say(errors: Sequence[Finding]) -> str:
    """The words of Kubernetes' strict decoder for unknown fields: people search for them."""
    unknown = [f'unknown field "{finding.value}"' for finding in errors if finding.code == "NEU407" and finding.value]
    return f" (strict decoding error: {', '.join(unknown)})" if unknown else ""


def _device(result: Result) -> AllocatedDevice:
    return AllocatedDevice(
        request=result.request,
        pool=result.pool,
        device=result.device,
        admin_access=bool(result.admin_access),
        share_id=result.share_id,
        cores=None if result.share_id is None else _cores(result),
    )


def _cores(result: Result) -> int | None:
    amount = result.cores
    if amount is None:
        return None
    try:
        return parse_count(amount)
    except NotACountError as error:
        raise AllocationError(
            f"Device {result.device} is allocated with {names.CAPACITY_CORES} {str(amount)[:64]!r}, which "
            f"{error}. The scheduler allocates whole cores; delete the claim to have it allocated again."
        ) from error


def _ties(constraints: Iterable[Tie], devices: Sequence[AllocatedDevice]) -> tuple[frozenset[str], ...]:
    found = []
    for constraint in constraints:
        if not constraint.match_attribute:
            continue
        named = set(constraint.requests or ())
        # Constraints on an alternative that was not chosen have no result.
        tied = {
            device.parent_request
            for device in devices
            if not named or device.request in named or device.parent_request in named
        }
        if len(tied) > 1:
            found.append(frozenset(tied))
    return tuple(found)


def config_entries(configs: Iterable[AllocatedConfig], driver: str) -> tuple[tuple[ConfigEntry, ...], list[Finding]]:
    """The configs of an allocation for a driver, and findings about those that cannot be decoded."""
    entries, findings = [], []
    for index, config in enumerate(configs):
        if config.opaque is None or config.opaque.driver != driver:
            continue
        decoded = decode_object(config.opaque.parameters)
        prefix = f"status.allocation.devices.config[{index}].opaque.parameters"
        findings += [finding.below(prefix) for finding in decoded.findings]
        if decoded.config is not None:
            entries.append(ConfigEntry(config.source, tuple(config.requests or ()), decoded.config))
    return tuple(entries), findings


def check_hardware(in_force: ConfigsInForce, instance: InstanceType, resource_type: str) -> tuple[Finding, ...]:
    """Check settings against an instance type and kind of device.

    Args:
        instance: the node's type. LNC is not checked if the type lists no settings, because they are unknown.
        resource_type: `resourceType` of the devices, `neuron_device` or `neuron_node`.

    Returns:
        NEU412 to NEU414; the path is the name of the field in `parameters`.
    """
    findings = []
    lnc, mode = in_force.logical_neuron_core, in_force.ultraserver_mode
    if lnc is not None and instance.logical_neuron_cores:
        findings += _check_lnc(lnc, instance)
    if mode is None:
        return tuple(findings)
    if resource_type != names.RESOURCE_TYPE_NODE:
        message = f"ultraserverMode {mode} needs a {names.RESOURCE_TYPE_NODE} device, not a {resource_type}."
        fix = f'Request one device whose {names.ATTRIBUTE_RESOURCE_TYPE} is "{names.RESOURCE_TYPE_NODE}".'
        findings.append(Finding("NEU414", "ultraserverMode", message, fix, str(mode)))
    elif instance.ultraserver_nodes is not None and mode not in instance.ultraserver_nodes:
        message = f"ultraserverMode {mode} does not exist on {instance.name}."
        has = " or ".join(map(str, instance.ultraserver_nodes))
        fix = f"Set it to {has}." if has else "Use an UltraServer instance type, such as trn2u.48xlarge."
        findings.append(Finding("NEU413", "ultraserverMode", message, fix, str(mode)))
    return tuple(findings)


def _check_lnc(lnc: int, instance: InstanceType) -> list[Finding]:
    sizes = instance.logical_neuron_cores
    if not instance.configures_logical_neuron_core:
        message = f"logicalNeuronCore cannot be set on {instance.name}, whose size is always {sizes[0]}."
        return [Finding("NEU412", "logicalNeuronCore", message, "Remove the NeuronConfig.", str(lnc))]
    if lnc not in sizes:
        message = f"logicalNeuronCore {lnc} does not exist on {instance.name}."
        fix = f"Set it to {' or '.join(map(str, sizes))}."
        return [Finding("NEU412", "logicalNeuronCore", message, fix, str(lnc))]
    return []
