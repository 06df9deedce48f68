"""The examples that are written for DRA, as they are in `deploy/examples`, on a real scheduler and kubelet."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.api import Api
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import (
    Driver,
    indices,
    neuron_environment,
    running,
    wait_gone,
    wait_running,
    wait_unprepared,
)
from tests.cluster.kubelet import Kubelet

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
LNC = {"NEURON_LOGICAL_NC_CONFIG": "1"}


def ultraserver(nodes: int, mode: str) -> dict[str, str]:
    """The variables of a node of an emulated UltraServer."""
    return {
        "NEURON_RT_ULTRASERVER_MODE": mode,
        "NEURON_RT_ULTRASERVER_SERVER_ID": hashlib.sha256(f"us-0/{nodes}/0".encode()).hexdigest()[:16],
        "NEURON_RT_ULTRASERVER_NODE_ID": "0",
    }


SEEN = {
    "trn2.48xlarge": {
        "dra-connected-devices": (4, {}),
        "dra-all-devices": (16, {}),
        "dra-logical-neuron-cores": (16, LNC),
        "dra-driver-version": (8, {}),
    },
    "trn2u.48xlarge": {
        "dra-ultraserver-2": (16, ultraserver(2, "3")),
        "dra-ultraserver-4": (16, ultraserver(4, "1")),
        "dra-ultraserver-lnc": (16, ultraserver(2, "3") | LNC),
    },
}
"""Instance type -> example -> number of devices and variables of the container."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.needs("counters")) if name == "trn2u.48xlarge" else name for name in SEEN
    ],
)
def driver(request: pytest.FixtureRequest, control_plane: ControlPlane, kubelet: Kubelet) -> Iterator[Driver]:
    with running(control_plane, kubelet, request.param) as driver:
        yield driver


def test_every_example_for_dra_is_run() -> None:
    run = {name for examples in SEEN.values() for name in examples}
    assert {folder.name for folder in EXAMPLES.glob("dra-*")} == run


def test_an_example_gets_its_devices_and_variables(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver, request: pytest.FixtureRequest
) -> None:
    for name, (devices, variables) in SEEN[request.node.callspec.params["driver"]].items():
        objects = [each for each in yaml.safe_load_all((EXAMPLES / name / "pod.yaml").read_text()) if each]
        for each in objects:
            api.create(each, namespace)
        pod = objects[-1]["metadata"]["name"]
        wait_running(api, namespace, pod)
        [seen] = kubelet.runtime.created(namespace, pod).values()
        assert len(indices(seen)) == devices, name
        assert neuron_environment(seen) == variables, name
        wait_gone(api, namespace, pod)
        wait_unprepared(kubelet, driver)
