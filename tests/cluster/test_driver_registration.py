"""A kubelet that does not know the driver gets no devices offered, and is told of the driver again."""

import signal
from collections.abc import Iterator

import pytest

from tests.cluster.api import Api
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import EVENTS, Driver, connected, run_pod, running, wait_gone, wait_running, wait_unprepared
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import events
from tests.cluster.processes import eventually


@pytest.fixture
def driver(control_plane: ControlPlane, kubelet: Kubelet) -> Iterator[Driver]:
    with running(control_plane, kubelet, "trn2.48xlarge", pod_uid="lost") as driver:
        yield driver


def test_a_registration_socket_that_was_removed_is_made_again(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    run_pod(api, namespace, "before", connected(4))
    wait_running(api, namespace, "before")
    [socket] = kubelet.plugins_registry.glob("*-reg.sock")
    inode, [slice_] = socket.stat().st_ino, driver.slices()
    socket.unlink()
    why = f"its registration socket {socket} was removed"

    def told() -> bool:
        return any(why in each for each in events(api, EVENTS, kubelet.node, "RegistrationLost"))

    eventually("the event", told, timeout=30)

    def again() -> bool:
        found = driver.slices()
        return bool(found) and found[0]["metadata"]["uid"] != slice_["metadata"]["uid"]

    eventually("the slices to be made again", again, timeout=60)
    assert socket.stat().st_ino != inode
    eventually("the event", lambda: events(api, EVENTS, kubelet.node, "RegistrationBack")[-1:], timeout=30)
    assert driver.metric("registered") == 1
    run_pod(api, namespace, "after", connected(4))
    wait_running(api, namespace, "after")
    for name in ("before", "after"):
        wait_gone(api, namespace, name)
    wait_unprepared(kubelet, driver)


def test_a_kubelet_that_came_back_without_the_socket_registers_the_driver_again(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver
) -> None:
    """The socket's folder is emptied while the kubelet is down, as by a script that mends nodes."""
    driver.process.signal(signal.SIGSTOP)
    try:
        for path in kubelet.plugins_registry.iterdir():
            path.unlink()
        kubelet.restart()
    finally:
        driver.process.signal(signal.SIGCONT)
    # Until it sees that the socket is gone, the driver takes itself for registered, and its slices are there.
    eventually("the socket to be made again", lambda: [*kubelet.plugins_registry.iterdir()], timeout=60)
    eventually("the driver to be registered", lambda: driver.metric("registered") == 1, timeout=60)
    eventually("the slices", lambda: len(driver.devices()) == 16, timeout=60)
    run_pod(api, namespace, "after", connected(4))
    wait_running(api, namespace, "after")
    wait_gone(api, namespace, "after")
    wait_unprepared(kubelet, driver)


def test_slices_that_a_user_deletes_come_back(driver: Driver, api: Api) -> None:
    [slice_] = driver.slices()
    api.delete("ResourceSlice", slice_["metadata"]["name"])

    def again() -> bool:
        found = driver.slices()
        return bool(found) and found[0]["metadata"]["uid"] != slice_["metadata"]["uid"]

    eventually("the slices to be made again", again, timeout=60)
    assert len(driver.devices()) == 16
