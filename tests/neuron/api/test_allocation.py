"""An allocated claim gives our devices and configs, or an error with the reason."""

from typing import Any

import pytest

from neuron.api.allocation import AllocatedDevice, AllocationError, check_hardware, read_allocation
from neuron.api.configs import ConfigsInForce
from neuron.codes import CODES
from neuron.hardware.instances import Catalogue, InstanceType

UID = "0a1b2c3d-0000-4000-8000-000000000001"


def result(device: str, request: str = "n0", **fields: Any) -> dict[str, Any]:
    return {"request": request, "driver": "neuron.aws.com", "pool": "node-1", "device": device, **fields}


def opaque(source: str = "FromClaim", requests: tuple[str, ...] = (), **parameters: Any) -> dict[str, Any]:
    body = {"apiVersion": "neuron.aws.com/v1", **parameters}
    return {"source": source, "requests": list(requests), "opaque": {"driver": "neuron.aws.com", "parameters": body}}


def allocated_claim(*results: dict[str, Any], config: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    allocation = {"devices": {"results": list(results), "config": config or []}}
    metadata = {"namespace": "ns", "name": "c", "uid": UID}
    return {"metadata": metadata, "status": {"allocation": allocation} if results else {}}


def read(body: dict[str, Any], uid: str = UID) -> Any:
    return read_allocation(body, "neuron.aws.com", "node-1", uid)


def test_only_results_and_configs_of_our_driver_are_read() -> None:
    other = {"request": "efa", "driver": "dra.net", "pool": "elsewhere", "device": "efa0"}
    foreign = {"source": "FromClaim", "opaque": {"driver": "dra.net", "parameters": {"kind": "Net"}}}
    ours = opaque(kind="NeuronConfig", logicalNeuronCore=1)
    allocated = read(allocated_claim(other, result("neuron-device-3", "n0/a"), config=[foreign, ours]))
    assert allocated.devices == (AllocatedDevice("n0/a", "node-1", "neuron-device-3"),)
    assert allocated.devices[0].parent_request == "n0"
    assert allocated.in_force("n0/a") == ConfigsInForce(logical_neuron_core=1)


def _written_by(version: str) -> list[dict[str, Any]]:
    """What schedulers write for a class with LNC 1 for all requests, and a claim with LNC 2 for all of them."""
    device_class, of_claim = ({"kind": "NeuronConfig", "logicalNeuronCore": size} for size in (1, 2))
    both = ("n0", "n1")
    if version == "1.34":
        return [opaque("FromClass", **device_class)] * 2 + [opaque(requests=both, **of_claim)] * 2
    if version == "1.36":
        return [opaque("FromClass", ("n0/s1", "n1"), **device_class)] + [opaque(requests=both, **of_claim)] * 2
    cleared = [opaque("FromClass", **device_class), opaque(**of_claim)]
    for each in cleared:
        del each["requests"]
    return cleared


@pytest.mark.parametrize("version", ["1.34", "1.36", "1.37"])
def test_a_config_for_all_requests_is_in_force_as_each_scheduler_writes_it(version: str) -> None:
    allocated = read(allocated_claim(result("d0", "n0/s1"), result("d1", "n1"), config=_written_by(version)))
    assert [allocated.in_force(each) for each in ("n0/s1", "n1")] == [ConfigsInForce(2)] * 2
    of_class = [each for each in _written_by(version) if each["source"] == "FromClass"]
    allocated = read(allocated_claim(result("d0", "n0/s1"), result("d1", "n1"), config=of_class))
    assert [allocated.in_force(each) for each in ("n0/s1", "n1")] == [ConfigsInForce(1)] * 2


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"spec": 1}, "Expected `object | null`, got `int` - at `$.spec`"),
        ({"metadata": {"uid": []}}, "Expected `str`, got `array` - at `$.metadata.uid`"),
        (allocated_claim({"driver": "neuron.aws.com"}), "Object missing required field `request`"),
        (allocated_claim(result("a"), config=[opaque("FromPod")]), "Invalid enum value 'FromPod'"),
    ],
    ids=["spec", "metadata", "result", "source"],
)
def test_a_claim_of_unknown_form_is_refused_with_the_place(change: dict[str, Any], where: str) -> None:
    with pytest.raises(AllocationError) as caught:
        read({**allocated_claim(result("a")), **change})
    assert str(caught.value).startswith("The API server returned a ResourceClaim that this driver cannot read: ")
    assert where in str(caught.value)
    assert str(caught.value).endswith("Update the driver.")


def test_admin_access_is_read() -> None:
    assert read(allocated_claim(result("neuron-device-0", adminAccess=True))).devices[0].admin_access


def test_shares_are_read_in_both_spellings_of_their_capacity() -> None:
    for name in ("neuroncores", "neuron.aws.com/neuroncores"):
        consumed = {"memory": "8Gi", name: "2"}
        [device] = read(allocated_claim(result("a", shareID="id", consumedCapacity=consumed))).devices
        assert (device.share_id, device.cores) == ("id", 2)
    [device] = read(allocated_claim(result("a", shareID="id", consumedCapacity={"memory": "8Gi"}))).devices
    assert (device.share_id, device.cores) == ("id", None)
    [device] = read(allocated_claim(result("a", consumedCapacity={"neuroncores": "2"}))).devices
    assert (device.share_id, device.cores) == (None, None), "not shared: a whole device"


def test_constraints_connect_the_requests_that_were_allocated() -> None:
    body = allocated_claim(result("a", "w/s1"), result("b", "c"), result("d", "e"), result("f", "g"))
    constraints = [
        {"requests": ["w/s0", "e"], "matchAttribute": "x/y"},
        {"requests": ["w/s1", "c"], "matchAttribute": "x/y"},
        {"requests": ["e", "g"], "distinctAttribute": "x/y"},
    ]
    allocated = read(body | {"spec": {"devices": {"constraints": constraints}}})
    assert allocated.ties == (frozenset({"w", "c"}),)
    assert (allocated.together("w"), allocated.together("e")) == ({"w", "c"}, {"e"})
    everything = read(body | {"spec": {"devices": {"constraints": [{"matchAttribute": "x/y"}]}}})
    assert everything.together("g") == {"w", "c", "e", "g"}


def test_configs_of_the_claim_override_those_of_the_class() -> None:
    config = [
        opaque("FromClass", kind="NeuronConfig", logicalNeuronCore=2),
        opaque("FromClaim", ("n1",), kind="NeuronConfig", logicalNeuronCore=1),
    ]
    allocated = read(allocated_claim(result("a", "n0"), result("b", "n1/x"), config=config))
    assert allocated.in_force("n0").logical_neuron_core == 2
    assert allocated.in_force("n1/x").logical_neuron_core == 1


def test_warnings_do_not_stop_a_claim() -> None:
    older = opaque(kind="NeuronConfig", logicalNeuronCore=1)
    older["opaque"]["parameters"]["apiVersion"] = "neuron.aws.com/v1alphav1"
    allocated = read(allocated_claim(result("a"), config=[older]))
    [finding] = allocated.warnings
    assert finding.path == "status.allocation.devices.config[0].opaque.parameters.apiVersion"


REFUSED = {
    "Device a is allocated with neuroncores '500m', which is not a whole number. The scheduler allocates whole "
    "cores; delete the claim to have it allocated again.": (
        allocated_claim(result("a", shareID="id", consumedCapacity={"neuroncores": "500m"})),
        UID,
    ),
    f"ResourceClaim ns/c has UID {UID}, not other: it was deleted and made again.": (
        allocated_claim(result("a")),
        "other",
    ),
    "ResourceClaim ns/c is not allocated.": (allocated_claim(), UID),
    "is not allocated": ({"metadata": allocated_claim()["metadata"], "status": {"allocation": None}}, UID),
    "ResourceClaim ns/c is allocated, but has no device of driver neuron.aws.com.": (
        allocated_claim(result("a") | {"driver": "dra.net"}),
        UID,
    ),
    "ResourceClaim ns/c is allocated elsewhere: device neuron-device-1 is in pool node-2, the pool of this node is "
    "node-1.": (allocated_claim(result("neuron-device-0"), result("neuron-device-1", pool="node-2")), UID),
    "ResourceClaim ns/c has a config that cannot be used. status.allocation.devices.config[0].opaque.parameters."
    'kind: NEU406: The opaque config kind "Partition" is not known.': (
        allocated_claim(result("a"), config=[opaque(kind="Partition")]),
        UID,
    ),
    "a newer field needs a newer version of this program": (
        allocated_claim(result("a"), config=[opaque(kind="NeuronConfig", logicalNeuronCore=1, frequency=3)]),
        UID,
    ),
    '(strict decoding error: unknown field "logicalNeuronCoreCount")': (
        allocated_claim(result("a"), config=[opaque(kind="NeuronConfig", logicalNeuronCoreCount=1)]),
        UID,
    ),
    '(strict decoding error: unknown field "frequency", unknown field "voltage")': (
        allocated_claim(result("a"), config=[opaque(kind="NeuronConfig", logicalNeuronCore=1, frequency=3, voltage=1)]),
        UID,
    ),
    "config[0].opaque.parameters: NEU402: The opaque config is null, not a JSON object.": (
        allocated_claim(result("a"), config=[{"source": "FromClaim", "opaque": {"driver": "neuron.aws.com"}}]),
        UID,
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_a_claim_that_cannot_be_used_is_refused_with_the_reason(said: str) -> None:
    body, uid = REFUSED[said]
    with pytest.raises(AllocationError) as caught:
        read(body, uid)
    assert said in str(caught.value)


def test_every_fault_of_every_config_is_named() -> None:
    config = [opaque(kind="NeuronConfig"), opaque(kind="UltraServerConfig", ultraserverMode=3)]
    with pytest.raises(AllocationError) as caught:
        read(allocated_claim(result("a"), config=config))
    assert [finding.code for finding in caught.value.findings] == ["NEU408", "NEU410"]


# --- hardware -------------------------------------------------------------------------------------------------

CATALOGUE = Catalogue()


def instance(name: str) -> InstanceType:
    found = CATALOGUE.get(name)
    assert found is not None
    return found


HARDWARE: dict[str, tuple[ConfigsInForce, str, str, str]] = {
    "lnc-on-trn2": (ConfigsInForce(1), "trn2.48xlarge", "neuron_device", ""),
    "lnc-on-trn3": (ConfigsInForce(2), "trn3.48xlarge", "neuron_device", ""),
    "lnc-on-trn1": (
        ConfigsInForce(1),
        "trn1.2xlarge",
        "neuron_device",
        "NEU412: logicalNeuronCore cannot be set on trn1.2xlarge, whose size is always 1. Remove the NeuronConfig.",
    ),
    "mode-on-node": (ConfigsInForce(None, 4), "trn2u.48xlarge", "neuron_node", ""),
    "mode-on-device": (
        ConfigsInForce(None, 2),
        "trn2u.48xlarge",
        "neuron_device",
        "NEU414: ultraserverMode 2 needs a neuron_node device, not a neuron_device. "
        'Request one device whose resourceType is "neuron_node".',
    ),
    "mode-without-ultraserver": (
        ConfigsInForce(None, 2),
        "trn2.48xlarge",
        "neuron_node",
        "NEU413: ultraserverMode 2 does not exist on trn2.48xlarge. "
        "Use an UltraServer instance type, such as trn2u.48xlarge.",
    ),
}


@pytest.mark.parametrize("name", HARDWARE)
def test_settings_are_checked_against_the_hardware(name: str) -> None:
    in_force, type_name, resource_type, said = HARDWARE[name]
    findings = check_hardware(in_force, instance(type_name), resource_type)
    assert " ".join(map(str, findings)) == said
    assert all(finding.code in CODES for finding in findings)


def test_sizes_that_a_type_does_not_list_are_named() -> None:
    topology = instance("trn2.3xlarge").topology
    odd = InstanceType("trn9.1xlarge", "trn9", 1, 8, (2, 4), 2, 96, topology, ultraserver_nodes=(2,))
    [lnc, mode] = check_hardware(ConfigsInForce(1, 4), odd, "neuron_node")
    assert str(lnc) == "NEU412: logicalNeuronCore 1 does not exist on trn9.1xlarge. Set it to 2 or 4."
    assert str(mode) == "NEU413: ultraserverMode 4 does not exist on trn9.1xlarge. Set it to 2."


def test_the_lnc_of_an_unknown_type_is_not_judged() -> None:
    unknown = InstanceType("trn9.1xlarge", "trn9", None, None, (), 1, None, instance("trn2.3xlarge").topology)
    assert check_hardware(ConfigsInForce(1), unknown, "neuron_device") == ()
