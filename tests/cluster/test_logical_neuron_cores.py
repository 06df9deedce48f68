"""Containers of one pod that set different logical NeuronCores, on a real API server, scheduler, kubelet and driver.

Legacy pods go through the webhook. What a container sees is what the stand-in runtime was told to make.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.api import Api, ApiError, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import Driver, indices, neuron_environment, running, wait_gone, wait_running, wait_unprepared
from tests.cluster.kubectl import Kubectl
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import claim_of, claim_template, container, devices_request, legacy_names, pod
from tests.cluster.nodes import DRIVER

VARIABLE = "NEURON_LOGICAL_NC_CONFIG"
TYPE = {"neuron.aws.com/instance-type": "trn2.48xlarge"}

pytestmark = [pytest.mark.usefixtures("webhook"), pytest.mark.timeout(300)]


@pytest.fixture
def driver(control_plane: ControlPlane, kubelet: Kubelet) -> Iterator[Driver]:
    with running(control_plane, kubelet, "trn2.48xlarge") as driver:
        yield driver


def sets(name: str, lnc: int | None, **limits: int) -> Object:
    env = {} if lnc is None else {"env": [{"name": VARIABLE, "value": str(lnc)}]}
    return container(name, **limits, **env)


def two(name: str, *containers: Object, **spec: Any) -> Object:
    return pod(name, *containers, annotations=TYPE, terminationGracePeriodSeconds=0, **spec)


def lncs(claim: Object) -> list[tuple[list[str], int]]:
    """Requests and logical NeuronCore of each NeuronConfig of the spec."""
    configs = claim["spec"]["devices"].get("config", [])
    return [(each["requests"], each["opaque"]["parameters"]["logicalNeuronCore"]) for each in configs]


def test_each_container_has_its_own(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver, kubectl: Kubectl
) -> None:
    made = two("two", sets("one", 1, neuroncore=12), sets("other", 2, neuroncore=4), sets("third", None, neuron=1))
    assert kubectl.feed("apply", made).ok
    assert legacy_names(api.get("Pod", "two", namespace)) == []
    wait_running(api, namespace, "two")
    seen = kubelet.runtime.created(namespace, "two")
    assert {name: len(indices(each)) for name, each in seen.items()} == {"one": 2, "other": 1, "third": 1}
    assert len({index for each in seen.values() for index in indices(each)}) == 4
    environment = {name: neuron_environment(each) for name, each in seen.items()}
    assert environment == {
        "one": {VARIABLE: "1", "NEURON_RT_NUM_CORES": "12"},
        "other": {VARIABLE: "2", "NEURON_RT_NUM_CORES": "4"},
        "third": {},
    }
    claim = claim_of(api, namespace, api.get("Pod", "two", namespace))
    assert lncs(claim) == [(["n0"], 1), (["n1"], 2)]
    before = api.get("Pod", "two", namespace)["spec"]
    again = kubectl.feed("apply", made)
    assert again.ok, again.stderr
    assert api.get("Pod", "two", namespace)["spec"] == before
    wait_gone(api, namespace, "two")
    wait_unprepared(kubelet, driver)


def test_an_init_container_uses_the_same_devices_with_its_own(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    compiles = sets("compile", 1, neuron=16) | {"command": ["true"]}
    api.create(two("node", sets("main", 2, neuron=16), initContainers=[compiles]), namespace)
    wait_running(api, namespace, "node")
    seen = kubelet.runtime.created(namespace, "node")
    for name, lnc in (("compile", "1"), ("main", "2")):
        assert (indices(seen[name]), neuron_environment(seen[name])) == (list(range(16)), {VARIABLE: lnc})
    assert lncs(claim_of(api, namespace, api.get("Pod", "node", namespace))) == []
    wait_gone(api, namespace, "node")
    wait_unprepared(kubelet, driver)


@pytest.mark.parametrize("references", [["n0"], ["n0/a", "n0/b"], ["n0", "n0/a"]], ids=str)
def test_the_api_server_takes_names_of_requests_and_of_alternatives(
    api: Api, namespace: str, references: list[str]
) -> None:
    api.create(claim_template("named", spec(references)), namespace)


@pytest.mark.parametrize("reference", ["n1", "n0/c"])
def test_the_api_server_refuses_names_that_name_nothing(api: Api, namespace: str, reference: str) -> None:
    with pytest.raises(ApiError):
        api.create(claim_template("nothing", spec([reference])), namespace)


def spec(references: list[str]) -> Object:
    alternatives = [{"name": name, "deviceClassName": DRIVER, "count": 1} for name in ("a", "b")]
    parameters = {"apiVersion": f"{DRIVER}/v1", "kind": "NeuronConfig", "logicalNeuronCore": 1}
    config = {"requests": references, "opaque": {"driver": DRIVER, "parameters": parameters}}
    requests = [{"name": "n0", "firstAvailable": alternatives}, devices_request("other")]
    return {"devices": {"requests": requests, "config": [config]}}
