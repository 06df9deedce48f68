"""An allocated ResourceClaim, read for one driver on one node: which devices, for which requests, with which
settings.

Reads `resource.k8s.io/v1` `status.allocation`; v1beta1 and v1beta2 have the same shape there.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from neuron import names
from neuron.configs import ConfigEntry, ConfigsInForce, Source, configs_in_force, decode_object
from neuron.findings import Finding, Severity
from neuron.instances import InstanceType


class AllocationError(Exception):
    """The claim cannot be prepared here; the message says why and what to do.

    Attributes:
        findings: what is wrong with the claim's configs, if that is the reason.
    """

    def __init__(self, message: str, findings: Sequence[Finding] = ()) -> None:
        super().__init__(message)
        self.findings = tuple(findings)


@dataclasses.dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One entry of `status.allocation.devices.results` that is ours.

    Attributes:
        request: `req`, or `req/sub` where the request has alternatives.
        pool: the pool's name.
        device: the device's name.
        admin_access: whether the device is only looked at; it may belong to another claim.
    """

    request: str
    pool: str
    device: str
    admin_access: bool = False

    @property
    def parent_request(self) -> str:
        """The request's name as containers refer to it, without the alternative."""
        return self.request.partition("/")[0]


@dataclasses.dataclass(frozen=True, slots=True)
class AllocatedClaim:
    """What a claim was given of one driver on one node.

    Attributes:
        namespace: of the claim.
        name: of the claim.
        uid: of the claim.
        devices: the driver's results, in the order of the allocation.
        configs: the driver's configs, in the order of the allocation.
        warnings: what is odd but works, e.g. an older apiVersion.
    """

    namespace: str
    name: str
    uid: str
    devices: tuple[AllocatedDevice, ...]
    configs: tuple[ConfigEntry, ...] = ()
    warnings: tuple[Finding, ...] = ()

    def in_force(self, request: str) -> ConfigsInForce:
        """The settings that hold for one of the claim's requests."""
        return configs_in_force(self.configs, request)


def read_allocation(claim: Mapping[str, Any], driver: str, pool: str, uid: str) -> AllocatedClaim:
    """Read a claim as the API server returned it.

    Args:
        claim: the ResourceClaim.
        driver: whose results and configs to take; those of other drivers are passed over.
        pool: the node's pool; a result from another one means that the claim was allocated elsewhere.
        uid: the UID that the kubelet asked for; a claim of that name with another one is another claim.

    Returns:
        The devices and configs.

    Raises:
        AllocationError: for another UID, no allocation, an allocation elsewhere or of no device of the driver,
            and configs that do not decode.
    """
    metadata = claim.get("metadata") or {}
    namespace, name = str(metadata.get("namespace", "")), str(metadata.get("name", ""))
    said = f"ResourceClaim {namespace}/{name}"
    if metadata.get("uid") != uid:
        raise AllocationError(
            f"{said} has UID {metadata.get('uid')}, not {uid}: it was deleted and made again. "
            "The kubelet asks again for the new one."
        )
    allocation = (claim.get("status") or {}).get("allocation")
    if not allocation:
        raise AllocationError(
            f"{said} is not allocated. The scheduler has to allocate it before a node can prepare it; a pod with "
            "spec.nodeName set bypasses the scheduler."
        )
    section = allocation.get("devices") or {}
    devices = tuple(_device(result) for result in section.get("results") or () if result["driver"] == driver)
    if not devices:
        raise AllocationError(f"{said} is allocated, but has no device of driver {driver}.")
    elsewhere = next((device for device in devices if device.pool != pool), None)
    if elsewhere is not None:
        raise AllocationError(
            f"{said} is allocated elsewhere: device {elsewhere.device} is in pool {elsewhere.pool}, the pool of "
            f"this node is {pool}."
        )
    entries, findings = _configs(section.get("config") or (), driver)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        listed = " ".join(f"{finding.path}: {finding}" for finding in errors)
        raise AllocationError(f"{said} has a config that cannot be used. {listed}", errors)
    return AllocatedClaim(namespace, name, uid, devices, entries, tuple(findings))


def _device(result: Mapping[str, Any]) -> AllocatedDevice:
    return AllocatedDevice(
        request=result["request"],
        pool=result["pool"],
        device=result["device"],
        admin_access=bool(result.get("adminAccess")),
    )


def _configs(section: Sequence[Mapping[str, Any]], driver: str) -> tuple[tuple[ConfigEntry, ...], list[Finding]]:
    entries, findings = [], []
    for index, config in enumerate(section):
        opaque = config.get("opaque") or {}
        if opaque.get("driver") != driver:
            continue
        decoded = decode_object(opaque.get("parameters"))
        prefix = f"status.allocation.devices.config[{index}].opaque.parameters"
        findings += [_under(prefix, finding) for finding in decoded.findings]
        if decoded.config is not None:
            source = Source(config.get("source", Source.FROM_CLAIM))
            entries.append(ConfigEntry(source, tuple(config.get("requests") or ()), decoded.config))
    return tuple(entries), findings


def _under(prefix: str, finding: Finding) -> Finding:
    path = f"{prefix}.{finding.path}" if finding.path else prefix
    return dataclasses.replace(finding, path=path)


def check_hardware(in_force: ConfigsInForce, instance: InstanceType, resource_type: str) -> tuple[Finding, ...]:
    """Judge settings against what was, or can only be, allocated.

    Args:
        in_force: the settings.
        instance: the node's type. The LNC of one that lists no settings is not judged: nothing is known of it.
        resource_type: `resourceType` of the devices, `neuron_device` or `neuron_node`.

    Returns:
        Errors, their paths relative to `parameters`.
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
    elif mode not in instance.ultraserver_nodes:
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
