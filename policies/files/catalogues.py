"""The instance catalogue of policy files: the built-in types, with those that InstanceTypeCatalogs add or change.

Webhook and driver read the same files, so that the driver publishes what the webhook requests. This needs no CEL.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from neuron.api.fields import mapping
from neuron.hardware import sources
from neuron.hardware.connections import MOST_GROUPS
from neuron.hardware.instances import Catalogue, InstanceType, Topology
from policies.files import reading
from policies.files.folders import PolicyError
from policies.schema import documents
from policies.schema.documents import PolicyDocument, PolicyProblem
from policies.schema.kinds import CatalogueEntry, InstanceTypeCatalog

_MOST_OF_A_WHOLE_NODE: Final = 32
"""Shared counters of one set in a ResourceSlice: one for each device."""


def read(files: Mapping[str, bytes]) -> Catalogue:
    """The catalogue of policy files. Documents of other kinds are ignored, whether they are valid or not.

    Args:
        files: content by name.

    Raises:
        PolicyError: a file is not YAML, or an InstanceTypeCatalog has a problem.
    """
    problems: list[PolicyProblem] = []
    documents_read = reading.read_documents(files, problems)
    found = (each for each in documents_read if mapping(each.data).get("kind") == "InstanceTypeCatalog")
    policies = reading.policies(found, problems)
    catalogue, faults = assemble([(where, each) for where, each in policies if isinstance(each, InstanceTypeCatalog)])
    if problems or faults:
        raise PolicyError([*problems, *faults])
    return catalogue


def assemble(found: Sequence[tuple[PolicyDocument, InstanceTypeCatalog]]) -> tuple[Catalogue, list[PolicyProblem]]:
    """The built-in catalogue with the types of all documents, and what is wrong with them."""
    catalogue, problems = Catalogue(), []
    seen: dict[str, str] = {}
    for document, policy in found:
        for at, entry in enumerate(policy.spec.instance_types):
            path: documents.Path = ("spec", "instanceTypes", at)
            if entry.name in seen:
                message = f"instance type {entry.name} is already in {seen[entry.name]}; keep one."
                problems.append(document.problem(path, message))
            seen.setdefault(entry.name, f"{document.file}:{document.line(path)}")
            made = instance_type(entry, catalogue.get(entry.name))
            fault = _fault(made)
            if fault:
                problems.append(document.problem(path, f"instance type {entry.name}: {fault}."))
            catalogue = catalogue.extended([made])
    return catalogue, problems


def instance_type(entry: CatalogueEntry, known: InstanceType | None) -> InstanceType:
    """The instance type of a policy file's entry; fields that the entry lacks come from `known`."""
    lncs = entry.logical_neuron_cores or (known.logical_neuron_cores if known else (1,))
    topology = entry.topology or (known.topology if known else _guess_topology(entry.devices))
    groups = entry.device_groups
    default: int | None = entry.default_logical_neuron_core
    if default is None:
        default = known.default_logical_neuron_core if known and not entry.logical_neuron_cores else lncs[-1]
    return InstanceType(
        name=entry.name,
        family=entry.family or (known.family if known else entry.name.partition(".")[0]),
        devices=entry.devices or (known.devices if known else None),
        cores_per_device=entry.cores_per_device or (known.cores_per_device if known else None),
        logical_neuron_cores=tuple(lncs),
        default_logical_neuron_core=default,
        memory_gib=entry.memory_gib or (known.memory_gib if known else None),
        topology=topology,
        groups=(known.groups if known else ()) if groups is None else tuple(sorted(set(groups))),
        groups_known=groups is not None or known is None or known.groups_known,
        ultraserver_nodes=(
            (known.ultraserver_nodes if known else ()) if entry.ultraserver_nodes is None else entry.ultraserver_nodes
        ),
        accelerator=known.accelerator if known else None,
        sources={**(known.sources if known else {}), **dict.fromkeys(_stated(entry), sources.POLICY_FILE)},
    )


def _stated(entry: CatalogueEntry) -> Iterator[str]:
    """The figures that an entry states."""
    yield "name"
    fields = {
        "devices": entry.devices,
        "cores": entry.cores_per_device,
        "lnc": entry.logical_neuron_cores or entry.default_logical_neuron_core,
        "memory": entry.memory_gib,
        "topology": entry.topology,
        "groups": entry.device_groups,
        "ultraserver": entry.ultraserver_nodes,
    }
    yield from (figure for figure, value in fields.items() if value is not None)


def _guess_topology(devices: int | None) -> Topology:
    return Topology.SINGLE if devices == 1 else Topology.SWITCH


def _fault(made: InstanceType) -> str:
    """Why the type is not valid; empty if it is."""
    if made.default_logical_neuron_core not in made.logical_neuron_cores:
        return f"defaultLogicalNeuronCore {made.default_logical_neuron_core} is not in logicalNeuronCores"
    if made.devices is not None and made.groups and made.groups[-1] > made.devices:
        return f"deviceGroups has {made.groups[-1]}, but the node has {made.devices} devices"
    odd = next((size for size in made.groups if made.devices is not None and made.devices % size), None)
    if odd is not None:
        return (
            f"deviceGroups has {odd}, which does not divide the {made.devices} devices of a node: some devices would be"
            " in no group"
        )
    if len(made.groups) > MOST_GROUPS:
        return f"deviceGroups has {len(made.groups)} sizes, but a device can publish {MOST_GROUPS}"
    if made.consecutive and made.groups:
        # Its nodes publish windows instead, so a claim for a group would never be allocated.
        return (
            f"deviceGroups does not apply to topology {made.topology.value}, which gives any number of consecutive"
            " devices; write deviceGroups: []"
        )
    if made.ultraserver_nodes and made.devices is not None and made.devices > _MOST_OF_A_WHOLE_NODE:
        return (
            f"ultraserverNodes needs a node of at most {_MOST_OF_A_WHOLE_NODE} devices, and this one has "
            f"{made.devices}: the driver could not publish the whole node"
        )
    return ""
