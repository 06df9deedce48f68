"""The kubelet's answers about claims in use are read from its socket, and no answer is never taken for "not in use"."""

import asyncio
import dataclasses
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.discover.processes import ProcessScan, ProcessUse
from kubeletplugin.ports import UsageUnknownError
from kubeletplugin.prepare.checkpoint import PreparedClaim, PreparedDevice, Share
from kubeletplugin.prepare.pod_resources import NoKubeletError, PodResources, UsedDevice
from tests.kubeletplugin.fakes import NODE, uid
from tests.kubeletplugin.kubelet_server import FakeProcesses, KubeletServer, pod, usage

CLAIM = PreparedClaim(
    uid(1),
    "ns",
    "claim-1",
    "digest",
    (
        PreparedDevice("n0/a", NODE, "neuron-device-0", (0,)),
        PreparedDevice("n1", NODE, "neuron-device-4", (4,), share=Share("s-1", (0,))),
    ),
    {"n0": {"A": "1"}},
)


@pytest.fixture
def kubelet() -> Iterator[KubeletServer]:
    # Paths of sockets are short.
    with tempfile.TemporaryDirectory() as directory, KubeletServer(Path(directory) / "k.sock") as server:
        yield server


def test_devices_pods_and_claims_are_read(kubelet: KubeletServer) -> None:
    kubelet.pods = [pod("none"), pod("p", CLAIM), pod("other", CLAIM, driver="gpu.example.com")]
    assert asyncio.run(PodResources(kubelet.socket).used()) == (
        UsedDevice("ns/p", "ns", "claim-1", uid(1), "n0", "neuron-device-0", NODE, container="main"),
        UsedDevice("ns/p", "ns", "claim-1", uid(1), "n1", "neuron-device-4", NODE, "s-1", "main"),
    )


def test_a_device_without_cdi_ids_has_the_name_of_its_claim(kubelet: KubeletServer) -> None:
    kubelet.pods = [pod("p", CLAIM, with_ids=False)]
    [first, _] = asyncio.run(PodResources(kubelet.socket).used())
    assert (first.uid, first.request, first.claim) == ("", "", "claim-1")


def test_a_hanging_kubelet_gives_no_answer(kubelet: KubeletServer) -> None:
    kubelet.hangs = True
    with pytest.raises(UsageUnknownError, match=r"the kubelet does not answer at .*k\.sock: DEADLINE_EXCEEDED"):
        asyncio.run(PodResources(kubelet.socket, 0.2).used())


def test_a_missing_or_unserved_socket_gives_no_answer(tmp_path: Path) -> None:
    with pytest.raises(NoKubeletError, match="does not exist"):
        asyncio.run(PodResources(tmp_path / "k.sock").used())
    (tmp_path / "k.sock").touch()
    with pytest.raises(UsageUnknownError, match="UNAVAILABLE"):
        asyncio.run(PodResources(tmp_path / "k.sock", 1.0).used())


# --- what uses a claim ----------------------------------------------------------------------------------------


class Kubelet:
    """Its answer."""

    def __init__(self, *used: UsedDevice, fails: bool = False) -> None:
        self._used = used
        self._fails = fails

    async def used(self) -> tuple[UsedDevice, ...]:
        if self._fails:
            raise UsageUnknownError("the kubelet hangs")
        return self._used


USED = UsedDevice("ns/p", "ns", "claim-1", uid(1), "n0", "neuron-device-0", NODE)
OPEN = ProcessUse(2, "train", "pod-1", 0, open=True)
SEES = ProcessUse(1, "sh", "pod-1", 0, open=False)
OF_KUBELET = "the kubelet reports that pod ns/p uses it"
OF_PROCESS = "process 2 (train) of pod pod-1 has /dev/neuron0 open"
UNKNOWN = "it is not known whether a pod uses it: "
USES: dict[str, tuple[Kubelet, ProcessScan, str]] = {
    "nothing": (Kubelet(), ProcessScan(), ""),
    "by-uid": (Kubelet(USED), ProcessScan(), OF_KUBELET),
    "another-claim-of-that-name": (Kubelet(dataclasses.replace(USED, uid=uid(9))), ProcessScan(), ""),
    "by-name": (Kubelet(dataclasses.replace(USED, uid="")), ProcessScan(), OF_KUBELET),
    "of-another-namespace": (Kubelet(dataclasses.replace(USED, uid="", namespace="other")), ProcessScan(), ""),
    "open-device-before-a-device-node": (Kubelet(), ProcessScan((SEES, OPEN)), OF_PROCESS),
    "known-before-unknown": (Kubelet(fails=True), ProcessScan((OPEN,)), OF_PROCESS),
    "no-answer-of-the-kubelet": (Kubelet(fails=True), ProcessScan(), f"{UNKNOWN}the kubelet hangs"),
    "kubelet-before-a-doubt": (Kubelet(USED), ProcessScan((), "no right"), OF_KUBELET),
    "kubelet-before-a-process": (Kubelet(USED), ProcessScan((OPEN,)), OF_KUBELET),
    "explained": (Kubelet(), ProcessScan((dataclasses.replace(OPEN, pod="other"),)), ""),
    "of-the-host": (
        Kubelet(),
        ProcessScan((dataclasses.replace(OPEN, pod=""),)),
        "process 2 (train) of the host has /dev/neuron0 open",
    ),
    "admin-access": (Kubelet(), ProcessScan((dataclasses.replace(OPEN, index=7),)), ""),
}


@pytest.mark.parametrize(("kubelet_says", "scan", "why"), USES.values(), ids=USES)
def test_a_claim_is_in_use_if_kubelet_or_processes_say_it(kubelet_says: Kubelet, scan: ProcessScan, why: str) -> None:
    look = PreparedDevice("look", NODE, "neuron-device-7", (7,), admin_access=True)
    claim = dataclasses.replace(CLAIM, devices=(*CLAIM.devices, look))
    found = asyncio.run(usage(kubelet_says, FakeProcesses(scan)).of([claim], {0: ("other", "")}))
    assert {key: each.text for key, each in found.items()} == ({uid(1): why} if why else {})
    assert all(each.known is not why.startswith(UNKNOWN) for each in found.values())


def test_a_scan_that_hangs_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubeletplugin.prepare.usage._LONGEST_WAIT", 0.05)
    goes_on, calls = threading.Event(), []

    class Hanging:
        def using(self, indices: Any) -> ProcessScan:
            calls.append(indices)
            goes_on.wait(30)
            return ProcessScan()

    async def twice() -> list[str]:
        hanging = usage(Kubelet(), Hanging())
        found = [(await hanging.of([CLAIM], {}))[uid(1)].text for _ in range(2)]
        goes_on.set()
        hanging.close()
        return found

    assert asyncio.run(twice()) == [
        f"{UNKNOWN}the look at the processes of the node takes too long",
        f"{UNKNOWN}the last look at the processes of the node has not ended",
    ]
    assert calls == [{0, 4}]
