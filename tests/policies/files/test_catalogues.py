"""The catalogue of policy files, as the driver reads it: without CEL, whatever else the files say."""

import dataclasses
import subprocess
import sys

import pytest

from neuron.hardware import sources
from neuron.hardware.instances import InstanceType, Topology
from policies.files.folders import PolicyError
from policies.files.reading import read_catalogue

BUILT_IN = read_catalogue({})

HEAD = """\
apiVersion: policy.neuron.aws.com/v1alpha1
kind: InstanceTypeCatalog
metadata: {name: new}
spec:
  instanceTypes:
"""
TRN9 = HEAD + "  - {name: trn9.48xlarge, devices: 16, coresPerDevice: 8, deviceGroups: [2, 4]}\n"
BROKEN_POLICY = "apiVersion: policy.neuron.aws.com/v1alpha1\nkind: ValidatingPolicy\nspec: {no: such}\n"


def test_the_types_of_all_files_are_added_and_other_kinds_are_ignored() -> None:
    chain = HEAD.replace("new", "other") + "  - {name: inf9.large, devices: 6, topology: chain}\n"
    files = {"a.yaml": f"{BROKEN_POLICY}---\n{TRN9}", "b.yaml": chain, "c.yaml": "- not a policy\n"}
    found = read_catalogue({name: text.encode() for name, text in files.items()})
    trn9, inf9 = found.get("trn9.48xlarge"), found.get("inf9.large")
    assert trn9 is not None
    assert inf9 is not None
    assert (trn9.groups, trn9.cores_per_device, trn9.topology) == ((2, 4), 8, Topology.SWITCH)
    assert (inf9.consecutive, inf9.devices) == (True, 6)
    assert "trn1.32xlarge" in found
    assert read_catalogue({}).names() == tuple(
        name for name in found.names() if name not in ("trn9.48xlarge", "inf9.large")
    )


def entry(fields: str, name: str = "trn9.48xlarge") -> InstanceType:
    """The type of an entry with these fields."""
    found = read_catalogue({"x.yaml": f"{HEAD}  - {{name: {name}{fields}}}\n".encode()}).get(name)
    assert found is not None
    return found


def stated(made: InstanceType) -> list[str]:
    """The figures whose source is a policy file."""
    return [figure for figure, source in made.sources.items() if source == sources.POLICY_FILE]


def test_an_entry_states_every_field() -> None:
    made = entry(
        ", family: trn10, devices: 8, coresPerDevice: 4, logicalNeuronCores: [1, 2], defaultLogicalNeuronCore: 1,"
        " memoryGiB: 96, topology: switch, deviceGroups: [8, 2, 4, 2], ultraserverNodes: [1, 2]"
    )
    assert made == InstanceType(
        name="trn9.48xlarge",
        family="trn10",
        devices=8,
        cores_per_device=4,
        logical_neuron_cores=(1, 2),
        default_logical_neuron_core=1,
        memory_gib=96,
        topology=Topology.SWITCH,
        groups=(2, 4, 8),
        groups_known=True,
        ultraserver_nodes=(1, 2),
    )
    assert stated(made) == ["name", "devices", "cores", "lnc", "memory", "topology", "groups", "ultraserver"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("", {}),
        (", devices: 1", {"devices": 1, "topology": Topology.SINGLE}),
        (", devices: 2", {"devices": 2}),
        (", logicalNeuronCores: [1, 2]", {"logical_neuron_cores": (1, 2), "default_logical_neuron_core": 2}),
    ],
    ids=["name", "one-device", "two-devices", "lnc"],
)
def test_a_new_type_gets_what_its_entry_does_not_state(fields: str, expected: dict[str, object]) -> None:
    bare = InstanceType(
        name="trn9.3xlarge",
        family="trn9",
        devices=None,
        cores_per_device=None,
        logical_neuron_cores=(1,),
        default_logical_neuron_core=1,
        memory_gib=None,
        topology=Topology.SWITCH,
        groups=(),
        groups_known=True,
        ultraserver_nodes=(),
    )
    assert entry(fields, "trn9.3xlarge") == dataclasses.replace(bare, **expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["trn2.48xlarge", "trn2u.48xlarge", "trn1.32xlarge", "trn3s-es.48xlarge"])
@pytest.mark.parametrize(
    ("fields", "changes", "figures"),
    [
        ("", {}, []),
        (", memoryGiB: 7", {"memory_gib": 7}, ["memory"]),
        (", family: other", {"family": "other"}, []),
        (", logicalNeuronCores: [1]", {"logical_neuron_cores": (1,), "default_logical_neuron_core": 1}, ["lnc"]),
        (", defaultLogicalNeuronCore: 1", {"default_logical_neuron_core": 1}, ["lnc"]),
        (", deviceGroups: []", {"groups": (), "groups_known": True}, ["groups"]),
        (", ultraserverNodes: []", {"ultraserver_nodes": ()}, ["ultraserver"]),
    ],
)
def test_a_known_type_keeps_what_an_entry_does_not_state(
    name: str, fields: str, changes: dict[str, object], figures: list[str]
) -> None:
    known, made = BUILT_IN.get(name), entry(fields, name)
    assert known is not None
    kept = dataclasses.replace(made, offered=known.offered, released=known.released)
    assert kept == dataclasses.replace(known, **changes)  # type: ignore[arg-type]
    assert made.sources == {**known.sources, **dict.fromkeys(["name", *figures], sources.POLICY_FILE)}


@pytest.mark.parametrize(
    ("fields", "candidate"),
    [
        ("", False),
        (", memoryGiB: 7", False),
        (", family: trn3", False),
        (", devices: 16", True),
        (", coresPerDevice: 8", True),
        (", defaultLogicalNeuronCore: 1", True),
        (", topology: switch", True),
        (", deviceGroups: [4]", True),
        (", ultraserverNodes: []", True),
    ],
)
def test_a_type_that_aws_does_not_offer_is_a_candidate_if_the_entry_states_what_claims_need(
    fields: str, candidate: bool
) -> None:
    made = entry(fields, "trn3s-es.48xlarge")
    assert (made.released, made.offered) == (candidate, candidate)
    assert entry(", memoryGiB: 7", "trn2.48xlarge").released
    assert entry(fields, "trn9.3xlarge" if "deviceGroups" not in fields else "trn9.48xlarge").released


@pytest.mark.parametrize(
    "fields",
    [
        "devices: 4, deviceGroups: [2, 4]",
        "devices: 32, ultraserverNodes: [1]",
        "devices: 33",
        "ultraserverNodes: [1]",
        "deviceGroups: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]",
    ],
)
def test_figures_at_their_bounds_have_no_problem(fields: str) -> None:
    assert entry(f", {fields}").name == "trn9.48xlarge"


PROBLEMS: dict[str, str] = {
    "x.yaml:7: spec.more: unknown field.": TRN9 + "  more: 1\n",
    "x.yaml:1: this is not YAML: ": "a: [",
    "x.yaml:6: instance type trn9.big: deviceGroups has 13 sizes, but a device can publish 12.": (
        HEAD + "  - {name: trn9.big, deviceGroups: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]}\n"
    ),
    "x.yaml:6: instance type trn9.big: deviceGroups has 8, but the node has 4 devices.": (
        HEAD + "  - {name: trn9.big, devices: 4, deviceGroups: [2, 4, 8]}\n"
    ),
    "x.yaml:6: instance type trn9.big: deviceGroups has 8, which does not divide the 12 devices of a node: some"
    " devices would be in no group.": HEAD + "  - {name: trn9.big, devices: 12, deviceGroups: [2, 8]}\n",
    "x.yaml:6: instance type trn9.big: ultraserverNodes needs a node of at most 32 devices, and this one has "
    "33: the driver could not publish the whole node.": (
        HEAD + "  - {name: trn9.big, devices: 33, ultraserverNodes: [1]}\n"
    ),
    "x.yaml:7: instance type trn9.48xlarge is already in x.yaml:6; keep one.": (
        TRN9 + "  - {name: trn9.48xlarge, devices: 8}\n"
    ),
}


@pytest.mark.parametrize(("problem", "text"), PROBLEMS.items(), ids=PROBLEMS)
def test_problems_of_a_catalogue_are_reported_with_their_place(text: str, problem: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_catalogue({"x.yaml": text.encode()})
    assert str(caught.value).startswith(problem)


def test_reading_needs_no_cel() -> None:
    """The driver reads catalogues; it has no use for the CEL engine."""
    program = "import sys, policies.files.reading; print([n for n in sys.modules if n in ('kubecel', 'celpy', 'lark')])"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
