"""Checks opaque configs of a claim or class against each other and against the devices that the requests can match.

`neuron.api.configs` decodes one config. The checks here need the whole claim.
"""

import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from checks.claims.device_index import DeviceIndex
from neuron import names
from neuron.api import allocation
from neuron.api import configs as opaque_configs
from neuron.api.claim_reader import value_text
from neuron.api.claim_specs import ClaimSpec, ClassSpec, Config, DeviceRequest, entries_of
from neuron.api.configs import (
    ConfigEntry,
    ConfigsInForce,
    ConfigSource,
    NeuronConfig,
    UltraServerConfig,
    configs_in_force,
    covers,
)
from neuron.findings import Finding, Severity, as_warning, did_you_mean, warning
from neuron.hardware.instances import Catalogue, InstanceType, Topology

_Kinds = NeuronConfig | UltraServerConfig
_NOTHING_SET = ConfigsInForce()


class Placed(Struct, frozen=True):
    """A decoded config and its place in the claim."""

    config: Config
    entry: ConfigEntry


def decode(configs: Iterable[Config], source: ConfigSource) -> tuple[list[Placed], list[Finding]]:
    """Decode the configs for our driver.

    Returns:
        The decoded configs, and NEU4xx and NEU512 with full paths.
    """
    placed, findings = [], []
    for config in configs:
        if config.driver != names.DRIVER:
            findings += _near_miss(config)
            continue
        decoded = opaque_configs.decode(config.parameters)
        findings += [each.below(f"{config.path}.opaque.parameters") for each in decoded.findings]
        if decoded.config is not None:
            placed.append(Placed(config, ConfigEntry(source, config.requests, decoded.config)))
    return placed, findings


def entries_by_class(claim: ClaimSpec, classes: Mapping[str, ClassSpec]) -> dict[str, list[ConfigEntry]]:
    """By DeviceClass, the readable configs that apply to its requests: those of the class, and of the claim."""
    own = entries_of(claim.configs, ConfigSource.FROM_CLAIM)
    listed = {name: classes[name].configs if name in classes else () for name in ("", *claim.device_classes)}
    return {name: [*entries_of(each, ConfigSource.FROM_CLASS), *own] for name, each in listed.items()}


def _near_miss(config: Config) -> list[Finding]:
    """NEU512: the driver's name is misspelt, so no driver would read the config."""
    if not did_you_mean(config.driver, [names.DRIVER]) or not config.driver:
        return []
    message = f"no driver is called {value_text(config.driver)}. Did you mean '{names.DRIVER}'?"
    fix = f"Write driver: {names.DRIVER}; configs of other drivers are ignored without a message."
    return [Finding("NEU512", f"{config.path}.opaque.driver", message, fix, config.driver)]


# --- one config against another -----------------------------------------------------------------------------------


def check_conflicts(claim: ClaimSpec, placed: Sequence[Placed]) -> list[Finding]:
    """NEU510: later configs override a config for all requests to which it applies.

    The later entry takes precedence (resource.k8s.io/v1, `DeviceAllocationResult.config`). A general config followed by
    an exception is valid.
    """
    if len(placed) < 2:
        return []
    covered = _covered(placed, _references(claim))
    findings = []
    for index, earlier in enumerate(placed):
        for place in range(index + 1, len(placed)) if covered[index] else ():
            later = placed[place]
            same_kind = type(earlier.entry.config) is type(later.entry.config)
            if same_kind and earlier.entry.config != later.entry.config and not covered[index] & ~covered[place]:
                findings.append(_conflict(earlier, later))
                break
    return findings


def _references(claim: ClaimSpec) -> list[str]:
    return [each.reference for request in claim.requests for each in request.alternatives]


def _covered(placed: Iterable[Placed], references: Sequence[str]) -> list[int]:
    """The requests to which each config applies: masks whose bits are indexes in `references`."""
    named: dict[str, int] = {}
    for place, reference in enumerate(references):
        for name in {reference, reference.partition("/")[0]}:
            named[name] = named.get(name, 0) | 1 << place
    everything = (1 << len(references)) - 1
    masks = []
    for each in placed:
        mask = 0
        for name in each.entry.requests:
            mask |= named.get(name, 0)
        masks.append(mask if each.entry.requests else everything)
    return masks


def _conflict(earlier: Placed, later: Placed) -> Finding:
    kind = type(earlier.entry.config).__name__
    field, first = _setting(earlier.entry.config)
    _, second = _setting(later.entry.config)
    place = later.config.path.rpartition(".")[2]
    message = f"two {kind} entries disagree: {field} {first} here and {second} in {place}, which wins."
    fix = "Keep one of them, or give each its own requests."
    return Finding("NEU510", f"{earlier.config.path}.opaque.parameters.{field}", message, fix, str(first))


def _setting(config: _Kinds) -> tuple[str, int]:
    if isinstance(config, NeuronConfig):
        return "logicalNeuronCore", config.logical_neuron_core
    return "ultraserverMode", config.ultraserver_mode


# --- a config against the requests ----------------------------------------------------------------------------------


def check_targets(claim: ClaimSpec, placed: Sequence[Placed], foreign: Collection[str]) -> list[Finding]:
    """NEU511: configs for our driver that apply only to requests for other drivers' devices.

    `foreign`: references of the requests that cannot match a Neuron device.
    """
    if not foreign:
        return []
    references, others = _references(claim), frozenset(foreign)
    theirs = sum(1 << place for place, reference in enumerate(references) if reference in others)
    findings = []
    for each, mine in zip(placed, _covered(placed, references), strict=True):
        if mine and not mine & ~theirs:
            listed = ", ".join(sorted(references[place] for place in range(len(references)) if mine >> place & 1))
            message = f"the config is for {names.DRIVER}, and {listed[:40]} asks for other devices."
            fix = "List a request for Neuron devices under requests."
            findings.append(warning("NEU511", f"{each.config.path}.opaque.driver", message, fix, names.DRIVER))
    return findings


def check_other_drivers(claim: ClaimSpec, *, only_ours: bool) -> list[Finding]:
    """NEU511: configs for another driver in a claim that requests Neuron devices only."""
    findings = []
    for config in claim.configs:
        if only_ours and config.driver and config.driver != names.DRIVER and not _near_miss(config):
            message = f"the config is for {value_text(config.driver)[:48]}, and the claim asks for Neuron devices only."
            fix = "Drop it, or request devices of that driver."
            findings.append(warning("NEU511", f"{config.path}.opaque.driver", message, fix, config.driver))
    return findings


def check_hardware(
    request: DeviceRequest,
    placed: Sequence[Placed],
    class_entries: Sequence[ConfigEntry],
    admitted: int,
    index: DeviceIndex,
    catalogue: Catalogue,
) -> list[Finding]:
    """NEU412 to NEU414, NEU514: settings that devices which the request can match do not have.

    Args:
        admitted: shapes that it can match.
        index: all shapes.

    Returns:
        Errors if no admitted device has the setting, or an UltraServerConfig can apply to a single device; NEU514 if
        some have it.
    """
    in_force = configs_in_force([*class_entries, *(each.entry for each in placed)], request.reference)
    if in_force == _NOTHING_SET:
        return []
    refusals, able = _hardware(in_force, admitted, index, catalogue)
    made = (
        _hardware_finding(field, refused, able[field], placed, request, index.present)
        for field, refused in refusals.items()
    )
    return [each for each in made if each is not None]


@functools.lru_cache(maxsize=32)
def _hardware(
    in_force: ConfigsInForce, admitted: int, index: DeviceIndex, catalogue: Catalogue
) -> tuple[Mapping[str, Sequence[tuple[str, Finding]]], Mapping[str, Sequence[str]]]:
    """By setting: the types of the admitted devices that do not have it, with the reason; and those that have it.

    Most requests of a claim admit the same devices with the same settings.
    """
    refusals: dict[str, list[tuple[str, Finding]]] = {}
    fields = {"logicalNeuronCore": in_force.logical_neuron_core, "ultraserverMode": in_force.ultraserver_mode}
    able: dict[str, list[str]] = {field: [] for field in fields}
    # Types that the cluster has come first: they are named in messages.
    for instance_type in sorted(index.types(admitted), key=lambda each: each not in index.present):
        mine = admitted & index.of_type(instance_type)
        entry = catalogue.get(instance_type) or _unlisted(instance_type)
        single = bool(mine & ~index.whole_nodes)
        resource_type = names.RESOURCE_TYPE_DEVICE if single else names.RESOURCE_TYPE_NODE
        found = allocation.check_hardware(in_force, entry, resource_type)
        for finding in found:
            refusals.setdefault(finding.path, []).append((instance_type, finding))
        for field in fields:
            if not any(finding.path == field for finding in found):
                able[field].append(instance_type)
    return refusals, able


def _hardware_finding(
    field: str,
    refused: Sequence[tuple[str, Finding]],
    able: Sequence[str],
    placed: Sequence[Placed],
    request: DeviceRequest,
    present: Collection[str],
) -> Finding | None:
    """A finding about one setting; None if only types that the cluster does not have lack it."""
    instance_type, finding = refused[0]
    path = _path_of(field, placed, request.reference)
    where = f"{path}.{field}" if path else request.path
    if finding.code == "NEU414":
        selector = (
            f"device.attributes['{names.DRIVER}'].{names.ATTRIBUTE_RESOURCE_TYPE} == '{names.RESOURCE_TYPE_NODE}'"
        )
        fix = f"Add the selector {selector} to request {request.reference}."
        return dataclasses.replace(finding, path=where, fix=fix)
    if not able:
        return dataclasses.replace(finding, path=where)
    if present and instance_type not in present:
        return None
    of_catalogue = "" if present else " (by the catalogue)"
    message = (
        f"request {request.reference[:24]} also admits {instance_type}{of_catalogue}, which does not take {field}"
        f" {finding.value}."
    )
    fix = f"Select an instance type that does, such as {able[0]}."
    if present and able[0] not in present:
        fix = f"The cluster has no instance type that does; of the catalogue, {able[0]} does."
    return warning("NEU514", where, message, fix, finding.value)


def _path_of(field: str, placed: Sequence[Placed], reference: str) -> str:
    """Field path of the setting in force for a request; empty if the DeviceClass sets it."""
    covering = [
        each for each in placed if _setting(each.entry.config)[0] == field and covers(each.entry.requests, reference)
    ]
    return f"{covering[-1].config.path}.opaque.parameters" if covering else ""


def _unlisted(instance_type: str) -> InstanceType:
    return InstanceType(instance_type, instance_type.partition(".")[0], None, None, (), 1, None, Topology.SWITCH)


def ratcheted(findings: Iterable[Finding], before: Iterable[Finding]) -> tuple[Finding, ...]:
    """Errors that the stored object has too become warnings, so that the object can still be updated."""
    stored = {(finding.code, finding.message) for finding in before if finding.severity is Severity.ERROR}
    return tuple(as_warning(finding) if (finding.code, finding.message) in stored else finding for finding in findings)
