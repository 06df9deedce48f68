"""The kubelet's answers about claims in use are read from its socket, and no answer is never taken for "not in use"."""

import asyncio
import dataclasses
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeletplugin.discover.processes import ClaimFile, ProcessUse
from kubeletplugin.ports import WAITS, UsageUnknownError
from kubeletplugin.prepare.checkpoint import PreparedClaim, PreparedDevice, Share, uid_before
from kubeletplugin.prepare.usage import NoKubeletError, PodResources, UsedDevice, by_processes, in_use
from tests.kubeletplugin.fakes import NODE, uid
from tests.kubeletplugin.kubelet_server import FakeProcesses, KubeletServer, pod_resources, usage

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
    kubelet.pods = [
        pod_resources("none"),
        pod_resources("p", CLAIM),
        pod_resources("other", CLAIM, driver="gpu.example.com"),
    ]
    assert asyncio.run(PodResources(kubelet.socket).used()) == (
        UsedDevice("ns/p", "ns", "claim-1", uid(1), "n0", "neuron-device-0", NODE, container="main"),
        UsedDevice("ns/p", "ns", "claim-1", uid(1), "n1", "neuron-device-4", NODE, "s-1", "main"),
    )


def test_a_device_without_cdi_ids_has_the_name_of_its_claim(kubelet: KubeletServer) -> None:
    kubelet.pods = [pod_resources("p", CLAIM, with_ids=False)]
    [first, _] = asyncio.run(PodResources(kubelet.socket).used())
    assert (first.uid, first.request, first.claim) == ("", "", "claim-1")


def test_a_hanging_kubelet_gives_no_answer(kubelet: KubeletServer) -> None:
    kubelet.hangs = True
    with pytest.raises(UsageUnknownError, match=r"the kubelet does not answer at .*k\.sock: DEADLINE_EXCEEDED"):
        asyncio.run(PodResources(kubelet.socket, 0.2).used())


def test_a_missing_or_unserved_socket_gives_no_answer(tmp_path: Path) -> None:
    with pytest.raises(NoKubeletError, match="does not exist: mount its directory and set --pod-resources-socket"):
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
NAMES = ProcessUse(3, "python", "pod-1", frozenset({ClaimFile(uid(1), "n0", 7)}))
OTHER = ProcessUse(4, "python", "other", frozenset({ClaimFile(uid(9), "n0", 7)}), frozenset({0, 4}))
OF_KUBELET = "the kubelet reports that pod ns/p uses it"
OF_PROCESS = "process 3 (python) of pod pod-1 is in a container of the claim"
UNKNOWN = "it is not known whether a pod uses it: "
USES: dict[str, tuple[Kubelet, tuple[ProcessUse, ...] | Exception, str]] = {
    "nothing": (Kubelet(), (), ""),
    "by-uid": (Kubelet(USED), (), OF_KUBELET),
    "another-claim-of-that-name": (Kubelet(dataclasses.replace(USED, uid=uid(9))), (), ""),
    "by-name": (Kubelet(dataclasses.replace(USED, uid="")), (), OF_KUBELET),
    "of-another-namespace": (Kubelet(dataclasses.replace(USED, uid="", namespace="other")), (), ""),
    "a-container-names-it": (Kubelet(), (OTHER, NAMES), OF_PROCESS),
    "known-before-unknown": (Kubelet(fails=True), (NAMES,), OF_PROCESS),
    "no-answer-of-the-kubelet": (Kubelet(fails=True), (), f"{UNKNOWN}the kubelet hangs"),
    "kubelet-before-a-doubt": (Kubelet(USED), UsageUnknownError("too slow"), OF_KUBELET),
    "no-answer-about-processes": (Kubelet(), UsageUnknownError("too slow"), f"{UNKNOWN}too slow"),
    "kubelet-before-a-process": (Kubelet(USED), (NAMES,), OF_KUBELET),
    "a-container-of-another-claim": (Kubelet(), (OTHER,), ""),
}


@pytest.mark.parametrize(("kubelet_says", "processes", "why"), USES.values(), ids=USES)
def test_a_claim_is_in_use_if_kubelet_or_processes_say_it(
    kubelet_says: Kubelet, processes: tuple[ProcessUse, ...] | Exception, why: str
) -> None:
    look = PreparedDevice("look", NODE, "neuron-device-7", (7,), admin_access=True)
    claim = dataclasses.replace(CLAIM, devices=(*CLAIM.devices, look))
    found = asyncio.run(in_use(usage(kubelet_says, FakeProcesses(processes)), [claim], {uid(1): claim}))
    assert {key: each.why for key, each in found.items()} == ({uid(1): why} if why else {})
    assert all(each.known is not why.startswith(UNKNOWN) for each in found.values())


@pytest.mark.parametrize(
    ("number", "again", "used"),
    [(7, None, True), (7, 8, True), (8, 8, False)],
    ids=["unprepared", "prepared again", "of the new pod"],
)
def test_containers_of_an_ended_claim_are_told_from_those_of_its_next_preparation(
    number: int, again: int | None, used: bool
) -> None:
    ended = dataclasses.replace(CLAIM, uid=uid_before(uid(1)))
    prepared = {} if again is None else {uid(1): dataclasses.replace(CLAIM, number=again)}
    names = dataclasses.replace(NAMES, files=frozenset({ClaimFile(uid(1), "n0", number)}))
    assert (by_processes(ended, [names], prepared) is not None) is used


async def test_a_scan_that_hangs_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubeletplugin.prepare.usage.WAITS", dataclasses.replace(WAITS, scan_and_queue=0.05))
    goes_on, calls = threading.Event(), []

    class Hanging:
        def scan(self, *, environment: bool) -> tuple[ProcessUse, ...]:
            calls.append(environment)
            goes_on.wait(30)
            return ()

    hanging = usage(Kubelet(), Hanging())
    for _ in range(2):
        with pytest.raises(UsageUnknownError, match="the look at the processes of the node takes too long"):
            await hanging.processes()
    goes_on.set()
    assert await hanging.processes() == ()
    hanging.close()
    assert calls == [False, False]


async def test_callers_share_a_look_that_begins_after_their_call() -> None:
    begun, goes_on = [], threading.Event()

    class Slow:
        def scan(self, *, environment: bool) -> tuple[ProcessUse, ...]:
            begun.append(environment)
            goes_on.wait(30)
            return ()

    slow = usage(Kubelet(), Slow())
    first = asyncio.create_task(slow.processes())
    while not begun:  # noqa: ASYNC110 - another thread sets it
        await asyncio.sleep(0.001)
    others = [asyncio.create_task(slow.processes()) for _ in range(20)]
    await asyncio.sleep(0)
    goes_on.set()
    await asyncio.gather(first, *others)
    slow.close()
    assert len(begun) == 2
