"""A whole UltraServer node and its devices exclude each other on a real scheduler, and modes reach containers."""

import hashlib
from collections.abc import Iterator

import pytest

from tests.cluster.api import Api
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import (
    Driver,
    attribute,
    connected,
    indices,
    neuron_environment,
    opaque,
    run_pod,
    running,
    started,
    wait_gone,
    wait_running,
    wait_unprepared,
    whole_node,
)
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import devices_request, events, unschedulable_message
from tests.cluster.processes import eventually


@pytest.fixture(scope="module")
def driver(control_plane: ControlPlane, kubelet: Kubelet) -> Iterator[Driver]:
    with running(control_plane, kubelet, "trn2u.48xlarge") as driver:
        yield driver


def server_id(nodes: int) -> str:
    """The UltraServer set of the emulated node."""
    return hashlib.sha256(f"us-0/{nodes}/0".encode()).hexdigest()[:16]


def variables(mode: int, server: str, node: int) -> dict[str, str]:
    return {
        "NEURON_RT_ULTRASERVER_MODE": str(mode),
        "NEURON_RT_ULTRASERVER_SERVER_ID": server,
        "NEURON_RT_ULTRASERVER_NODE_ID": str(node),
    }


EXAMPLES = {
    "us-1-node": ((opaque("UltraServerConfig", ultraserverMode=1),), variables(4, "0" * 16, -1)),
    "us-2-node": ((opaque("UltraServerConfig", ultraserverMode=2),), variables(3, server_id(2), 0)),
    "us-4-node": ((opaque("UltraServerConfig", ultraserverMode=4),), variables(1, server_id(4), 0)),
    "us-and-lnc": (
        (opaque("UltraServerConfig", ultraserverMode=2), opaque("NeuronConfig", logicalNeuronCore=1)),
        variables(3, server_id(2), 0) | {"NEURON_LOGICAL_NC_CONFIG": "1"},
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.needs("counters")
def test_an_ultraserver_example_gets_the_whole_node_and_its_mode(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver, name: str
) -> None:
    config, environment = EXAMPLES[name]
    run_pod(api, namespace, name, whole_node(*config))
    wait_running(api, namespace, name)
    seen = started(kubelet, namespace, name)
    assert indices(seen) == list(range(16))
    assert neuron_environment(seen) == environment
    wait_gone(api, namespace, name)
    wait_unprepared(kubelet, driver)


@pytest.mark.needs("counters")
def test_the_whole_node_and_its_devices_wait_for_each_other(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    run_pod(api, namespace, "four", connected(4))
    wait_running(api, namespace, "four")
    run_pod(api, namespace, "whole", whole_node())
    unschedulable_message(api, namespace, "whole", "cannot allocate all claims")
    wait_gone(api, namespace, "four")
    wait_running(api, namespace, "whole")
    run_pod(api, namespace, "one", {"devices": {"requests": [devices_request("one")]}})
    unschedulable_message(api, namespace, "one", "cannot allocate all claims")
    wait_gone(api, namespace, "whole")
    wait_running(api, namespace, "one")
    assert len(indices(started(kubelet, namespace, "one"))) == 1, "an unselective request means a device"
    wait_gone(api, namespace, "one")
    wait_unprepared(kubelet, driver)


def test_a_mode_for_a_single_device_is_refused_on_the_node_with_its_reason(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    request = devices_request("one", selectors=(attribute("resourceType", "neuron_device"),))
    config = [opaque("UltraServerConfig", ultraserverMode=2)]
    run_pod(api, namespace, "wrong", {"devices": {"requests": [request], "config": config}})

    def said() -> bool:
        reasons = events(api, namespace, "wrong", "FailedPrepareDynamicResources")
        return any("NEU414" in message and "needs a neuron_node device" in message for message in reasons)

    eventually("the event on the pod", said, timeout=40)
    wait_gone(api, namespace, "wrong")
    wait_unprepared(kubelet, driver)
