"""ResourceSlices and claims of the API, read into the allocator's model."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.claims.device_index import SelectorSyntaxError
from commands.devices.allocator_inputs import (
    PodClaim,
    Selects,
    UnknownClassError,
    device_of,
    read_demand,
    result_of,
)
from commands.explain.explanation import Block
from neuron import names
from neuron.allocator.search import AllocatorDevice, AllocatorResult
from neuron.api import stored_claims
from neuron.api.claim_reader import claim_spec
from neuron.api.claim_specs import ClassSpec, Selector
from neuron.api.configs import ConfigEntry, ConfigSource, NeuronConfig
from neuron.api.slices import read_slice
from neuron.api.stored_claims import read_stored_claim
from neuron.api.taints import Taint
from neuron.hardware.device_shapes import Version
from tests.support.emulated import SICK, EmulatedCluster
from tests.support.explaining import explained, legacy_pod, live

REQUEST = {"name": "r", "exactly": {"deviceClassName": names.DEVICE_CLASS}}


def test_a_device_is_read_with_all_fields_that_allocation_uses() -> None:
    policy = {"default": "4", "validValues": ["1", "2", "4"]}
    entry = {
        "name": "d0",
        "attributes": {"deviceId": {"int": 0}, "x.y/ok": {"bool": True}, "v": {"version": "1.2.3"}, "l": {"list": []}},
        "capacity": {"neuroncores": {"value": "4", "requestPolicy": policy}, "memory": {"value": "1Gi"}},
        "allowMultipleAllocations": True,
        "consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}}],
        "taints": [{"key": "k", "value": "v", "effect": "NoExecute"}],
    }
    spec = {"driver": names.DRIVER, "pool": {"name": "a"}, "devices": [entry]}
    device = device_of(read_slice({"spec": spec}).devices[0])
    assert device.attributes == {"neuron.aws.com/deviceId": 0, "x.y/ok": True, "neuron.aws.com/v": Version("1.2.3")}
    assert (device.capacity["neuroncores"].default, device.capacity["neuroncores"].valid) == (4, (1, 2, 4))
    assert device.capacity["memory"].value == 2**30
    assert (device.shared, device.counters) == (True, {"s/c": 1})
    assert device.taints == (Taint("k", "v", "NoExecute"),)


def test_results_of_other_drivers_are_left_out() -> None:
    results = [
        {"driver": names.DRIVER, "request": "r", "device": "d0", "pool": "a", "consumedCapacity": {"neuroncores": "2"}},
        {"driver": "dra.net", "request": "n", "device": "eth0", "pool": "a"},
    ]
    claim = {"metadata": {}, "status": {"allocation": {"devices": {"results": results}}}}
    assert tuple(map(result_of, read_stored_claim(claim).ours)) == (AllocatorResult("r", "d0", {"neuroncores": 2}),)
    assert read_stored_claim({"metadata": {}}).ours == ()
    assert result_of(stored_claims.Result("r", names.DRIVER, "a", "d", True)).admin_access


def test_selectors_of_the_class_count() -> None:
    classes = {names.DEVICE_CLASS: ClassSpec((Selector("", 'device.attributes["neuron.aws.com"].deviceId == 1'),))}
    demand = read_demand([PodClaim("neuron", claim_spec({"devices": {"requests": [REQUEST]}}))], classes, Selects())
    [part] = demand.claim.requests[0].alternatives
    found = [part.selects(AllocatorDevice(f"d{index}", {"neuron.aws.com/deviceId": index})) for index in range(3)]
    assert found == [False, True, False]


def test_cached_selector_results_are_separate_for_each_type() -> None:
    demand = read_demand(
        [
            PodClaim(
                "neuron",
                claim_spec(
                    {
                        "devices": {
                            "requests": [
                                {
                                    "name": "r",
                                    "exactly": {
                                        "deviceClassName": names.DEVICE_CLASS,
                                        "selectors": [
                                            {
                                                "cel": {
                                                    "expression": 'device.attributes["neuron.aws.com"].x == dyn(true)'
                                                }
                                            }
                                        ],
                                    },
                                }
                            ]
                        }
                    }
                ),
            )
        ],
        None,
        Selects(),
    )
    [part] = demand.claim.requests[0].alternatives
    assert part.selects(AllocatorDevice("a", {"neuron.aws.com/x": True}))
    assert not part.selects(AllocatorDevice("b", {"neuron.aws.com/x": 1}))


def test_a_constraint_without_requests_covers_its_own_claim_only() -> None:
    spec = {"devices": {"requests": [REQUEST], "constraints": [{"matchAttribute": "x/y"}]}}
    demand = read_demand(
        [PodClaim("a", claim_spec(spec)), PodClaim("b", claim_spec({"devices": {"requests": [REQUEST]}}))],
        None,
        Selects(),
    )
    assert [request.name for request in demand.claim.requests] == ["a:r", "b:r"]
    assert demand.claim.constraints[0].requests == frozenset({"a:r"})


def test_a_constraint_matches_or_keeps_apart() -> None:
    constraints = [
        {"distinctAttribute": "x/y"},
        {"matchAttribute": "x/z"},
        {"matchAttribute": "x/m", "distinctAttribute": "x/d"},
    ]
    spec = claim_spec({"devices": {"requests": [REQUEST], "constraints": constraints}})
    found = read_demand([PodClaim("a", spec)], None, Selects()).claim.constraints
    assert [(each.attribute, each.distinct) for each in found] == [("x/y", True), ("x/z", False), ("x/m", False)]


def test_configs_belong_to_the_claim_of_the_request() -> None:
    parameters = {"apiVersion": names.CONFIG_API_VERSION, "kind": "NeuronConfig", "logicalNeuronCore": 2}
    config = [{"opaque": {"driver": names.DRIVER, "parameters": parameters}}]
    spec = {"devices": {"requests": [REQUEST], "config": config}}
    plain = {"devices": {"requests": [REQUEST]}}
    both = read_demand([PodClaim("a", claim_spec(spec)), PodClaim("b", claim_spec(plain))], None, Selects())
    own = (ConfigEntry(ConfigSource.FROM_CLAIM, (), NeuronConfig(2)),)
    assert both.configs_of("a:r") == (own, "r")
    assert both.configs_of("b:r/s0") == ((), "r/s0")
    assert read_demand([PodClaim("a", claim_spec(spec))], None, Selects()).configs_of("r") == (own, "r")


def test_a_class_that_does_not_exist_and_a_selector_that_is_no_cel() -> None:
    claim = PodClaim("neuron", claim_spec({"devices": {"requests": [REQUEST]}}))
    with pytest.raises(UnknownClassError, match=r"neuron\.aws\.com"):
        read_demand([claim], {}, Selects())
    broken = {names.DEVICE_CLASS: ClassSpec((Selector("", "device."),))}
    with pytest.raises(SelectorSyntaxError):
        read_demand([claim], broken, Selects())


@given(
    held=st.sets(st.integers(0, 15)),
    sick=st.sets(st.integers(0, 15), max_size=4),
    count=st.sampled_from(["1", "4", "8", "16"]),
)
def test_the_verdict_is_correct_for_any_devices_in_use(held: set[int], sick: set[int], count: str) -> None:
    """What fits gets free and healthy devices of one group; what does not fit is not for want of a free group."""
    cluster = EmulatedCluster()
    cluster.node("a", taints=dict.fromkeys(sick, SICK))
    for index in held:
        cluster.claim(f"c{index}", "a", [index])
    [found] = explained(legacy_pod({names.RESOURCE_NEURON: count}), cluster=live(cluster))
    assert found.nodes is not None
    [verdict] = found.nodes
    size = int(count)
    free = set(range(16)) - held - sick
    groups = [set(range(start, start + size)) for start in range(0, 16, size)]
    devices = {int(each.device.rpartition("-")[2]) for each in verdict.devices}
    if any(group <= free for group in groups):
        assert verdict.fits
        assert devices in groups
        assert devices <= free
        return
    untainted = any(not group & held for group in groups)
    expected = Block.TAINTED if untainted or all(group & sick for group in groups) else None
    enough = Block.NOT_CONNECTED if len(free) >= size else Block.HELD
    assert verdict.block is (expected or enough)


@given(
    instance_type=st.sampled_from([("inf2.48xlarge", 12, 2), ("inf1.24xlarge", 16, 4)]),
    held=st.sets(st.integers(0, 15), max_size=6),
    count=st.integers(2, 15),
)
def test_a_reason_counts_fewer_free_devices_than_the_pod_needs_or_names_them(
    instance_type: tuple[str, int, int], held: set[int], count: int
) -> None:
    name, devices, cores = instance_type
    cluster = EmulatedCluster()
    cluster.node("a", name)
    held = {index for index in held if index < devices}
    for index in held:
        cluster.claim(f"c{index}", "a", [index], cores=cores)
    wanted = min(count, devices - 1)
    [found] = explained(legacy_pod({names.RESOURCE_NEURON: str(wanted)}), cluster=live(cluster))
    assert found.nodes is not None
    [verdict] = found.nodes
    if verdict.fits:
        assert len(verdict.devices) == wanted
        return
    free = devices - len(held)
    assert (verdict.block is Block.HELD) == (free < wanted)
    if verdict.block is Block.HELD:
        assert verdict.reason == f"{free} of {devices} devices free, the pod needs {wanted}"
        return
    wraps = name == "inf2.48xlarge"
    runs = [
        {(start + offset) % devices for offset in range(wanted)}
        for start in range(devices if wraps else devices - wanted + 1)
    ]
    named = set(range(devices)) - held
    if any(run <= named for run in runs):
        shown = re.fullmatch(r"free: devices ([0-9, -]+); not tried by the claim", verdict.reason)
        assert shown is not None
        assert (verdict.block, _numbers(shown[1])) == (Block.NOT_TRIED, next(run for run in runs if run <= named))
    else:
        assert verdict.block is Block.NOT_CONNECTED
        assert verdict.reason.startswith(f"{free} devices are free")


def _numbers(ranges: str) -> set[int]:
    """The numbers of a text such as `0-3, 6`."""
    found: set[int] = set()
    for each in ranges.split(", "):
        first, _, last = each.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def test_the_free_run_is_found_beside_another_type() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", "inf2.48xlarge")
    cluster.node("chain", "inf1.24xlarge")
    for index in (6, 7):
        cluster.claim(f"c{index}", "a", [index], cores=2)
    [found] = explained(legacy_pod({names.RESOURCE_NEURON: "10"}), cluster=live(cluster))
    assert found.nodes is not None
    [verdict] = [each for each in found.nodes if each.node == "a"]
    assert {each.device for each in verdict.devices} == {f"neuron-device-{at}" for at in (*range(6), *range(8, 12))}
