"""Every example of the AWS documentation is scheduled, prepared and started on a real kubelet."""

from collections.abc import Iterator

import pytest

from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import (
    Driver,
    all_request,
    attribute,
    connected,
    indices,
    match_group,
    neuron_environment,
    opaque,
    run_pod,
    running,
    started,
    wait_gone,
    wait_running,
    wait_unprepared,
)
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import devices_request, unschedulable_message

TRN2 = attribute("instanceType", "trn2.48xlarge")
ALL = list(range(16))


@pytest.fixture(scope="module")
def driver(control_plane: ControlPlane, kubelet: Kubelet) -> Iterator[Driver]:
    with running(control_plane, kubelet, "trn2.48xlarge") as driver:
        yield driver


def claim(*requests: Object, constraints: list[Object] | None = None, config: list[Object] | None = None) -> Object:
    return {"devices": {"requests": list(requests), "constraints": constraints or [], "config": config or []}}


EXAMPLES = {
    "1x4-connected-devices": (
        claim(devices_request("neurons", count=4, selectors=(TRN2,)), constraints=[match_group(4)]),
        [0, 1, 2, 3],
        {},
    ),
    "all-devices": (claim(all_request("neurons", TRN2)), ALL, {}),
    "lnc-setting-trn2": (
        claim(all_request("neurons", TRN2), config=[opaque("NeuronConfig", logicalNeuronCore=1)]),
        ALL,
        {"NEURON_LOGICAL_NC_CONFIG": "1"},
    ),
    "specific-driver-version": (
        claim(all_request("neurons", TRN2, attribute("neuronDriverVersion", "2.25.4.0"))),
        ALL,
        {},
    ),
    "xl-trn2": (claim(devices_request("neurons", count=16, selectors=(TRN2,))), ALL, {}),
    "l-trn2": (
        claim(devices_request("neurons", count=8, selectors=(TRN2,)), constraints=[match_group(8)]),
        list(range(8)),
        {},
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_with_its_devices_and_environment(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver, name: str
) -> None:
    spec, devices, environment = EXAMPLES[name]
    run_pod(api, namespace, name, spec)
    wait_running(api, namespace, name)
    seen = started(kubelet, namespace, name)
    assert indices(seen) == devices
    assert neuron_environment(seen) == environment
    assert {seen.sees.devices[f"/dev/neuron{index}"] for index in devices} == {
        str(driver.dev / f"neuron{index}") for index in devices
    }
    wait_gone(api, namespace, name)
    wait_unprepared(kubelet, driver)


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("seventeen", claim(devices_request("neurons", count=17))),
        ("wrong-type", claim(devices_request("neurons", selectors=(attribute("instanceType", "trn1.32xlarge"),)))),
    ],
    ids=["17-devices", "wrong-type"],
)
def test_what_no_node_can_serve_stays_pending(
    api: Api, namespace: str, driver: Driver, name: str, spec: Object
) -> None:
    run_pod(api, namespace, name, spec)
    unschedulable_message(api, namespace, name, "cannot allocate all claims")
    assert api.get("Pod", name, namespace)["status"]["phase"] == "Pending"


def test_four_times_four_fill_a_node_with_connected_groups(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    pods = [f"four-{number}" for number in range(4)]
    for name in pods:
        run_pod(api, namespace, name, connected(4))
    for name in pods:
        wait_running(api, namespace, name)
    groups = sorted(indices(started(kubelet, namespace, name)) for name in pods)
    assert groups == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert driver.metric("prepared_devices") == 16
    run_pod(api, namespace, "fifth", connected(4))
    unschedulable_message(api, namespace, "fifth", "cannot allocate all claims")
    wait_gone(api, namespace, pods[2])
    wait_running(api, namespace, "fifth")
    freed = next(group for group in groups if group == indices(started(kubelet, namespace, pods[2])))
    assert indices(started(kubelet, namespace, "fifth")) == freed
    for name in [*pods[:2], pods[3], "fifth"]:
        wait_gone(api, namespace, name)
    wait_unprepared(kubelet, driver)
