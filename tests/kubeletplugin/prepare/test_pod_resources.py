"""The kubelet's answers about claims in use are read from its socket, and no answer is never taken for "not in use"."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeletplugin.ports import UsageUnknownError
from kubeletplugin.prepare.checkpoint import PreparedClaim, PreparedDevice, Share
from kubeletplugin.prepare.pod_resources import NoKubeletError, PodResources, UsedDevice
from tests.kubeletplugin.fakes import NODE, uid
from tests.kubeletplugin.kubelet_server import KubeletServer, pod

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
