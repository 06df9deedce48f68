"""Pods with shares of devices run on while the driver is replaced by an older version, and by this one again."""

import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import (
    Driver,
    indices,
    install_rbac,
    neuron_environment,
    run_pod,
    started,
    wait_gone,
    wait_running,
    wait_unprepared,
)
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import devices_request
from tests.cluster.nodes import DRIVER
from tests.cluster.processes import eventually
from tests.cluster.test_driver_shares import share

ROOT = Path(__file__).parents[2]
TYPE = "inf1.6xlarge"
SWEEP = "--sweep-interval=2"


@pytest.fixture(scope="module")
def kubelet_sync() -> str:
    """After a failure the kubelet tries again when it next looks at the pod."""
    return "10s"


@pytest.fixture(params=["18f08a8", "ff565bc"], ids=["with shares", "without shares"])
def older(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The code of an older version, from the history."""
    command = [
        "git",
        "-C",
        str(ROOT),
        "archive",
        request.param,
        "kubeletplugin",
        "neuron",
        "runtime",
        "policies",
        "kubecel",
    ]
    with (tmp_path / "older.tar").open("wb") as out:
        found = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, check=False)
    if found.returncode:
        pytest.skip(f"no history here: {found.stderr.decode().strip()}")
    with tarfile.open(tmp_path / "older.tar") as tar:
        tar.extractall(tmp_path / "older", filter="data")
    return tmp_path / "older"


@pytest.fixture
def drivers(control_plane: ControlPlane, kubelet: Kubelet, older: Path) -> Iterator[tuple[Driver, Driver]]:
    """This version and the older one, of which one runs at a time."""
    install_rbac(control_plane.admin)
    share = {"NEURON_DRA_SHARE_CORES": "on"}
    path = {"PYTHONPATH": str(older), "PYTHONSAFEPATH": "1", **share}
    new = Driver(control_plane, kubelet, TYPE, flags=(SWEEP,), environment=share)
    old = Driver(control_plane, kubelet, TYPE, flags=(SWEEP,), environment=path)
    try:
        yield new, old
    finally:
        for each in (new, old):
            each.process.stop()


def cores(kubelet: Kubelet, namespace: str, name: str) -> tuple[list[int], str]:
    seen = started(kubelet, namespace, name)
    return indices(seen), neuron_environment(seen)["NEURON_RT_VISIBLE_CORES"]


def on_first(amount: int) -> Object:
    """A claim for cores of the first device."""
    request = share(cores=amount)
    request["exactly"]["selectors"] = [{"cel": {"expression": f'device.attributes["{DRIVER}"].deviceId == 0'}}]
    return {"devices": {"requests": [request]}}


@pytest.mark.needs("shares")
def test_no_core_is_given_twice(api: Api, namespace: str, kubelet: Kubelet, drivers: tuple[Driver, Driver]) -> None:
    new, old = drivers
    new.start()
    for name, amount in (("two", 2), ("one", 1)):
        run_pod(api, namespace, name, on_first(amount))
        wait_running(api, namespace, name)
    before = {name: cores(kubelet, namespace, name) for name in ("two", "one")}
    assert before == {"two": ([0], "0-1"), "one": ([0], "2")}
    new.process.stop()
    old.start()
    # It writes its state when a claim comes and when it goes.
    others = devices_request("n", count=2, selectors=(f'device.attributes["{DRIVER}"].deviceId > 0',))
    run_pod(api, namespace, "whole", {"devices": {"requests": [others]}})
    wait_running(api, namespace, "whole")
    wait_gone(api, namespace, "whole")
    eventually("the claim to be unprepared", lambda: old.metric("prepared_claims") == 2)
    old.process.stop()
    new.start()
    run_pod(api, namespace, "last", on_first(1))
    wait_running(api, namespace, "last")
    assert cores(kubelet, namespace, "last") == ([0], "3"), "the core that is free"
    assert {name: cores(kubelet, namespace, name) for name in before} == before
    for each in api.list("Pod", namespace):
        wait_gone(api, namespace, each["metadata"]["name"])
    wait_unprepared(kubelet, new)
