"""A replica that starts in a cluster with 5,000 ResourceSlices: its requests, when it serves, and its memory."""

import concurrent.futures
import math
import signal
from collections.abc import Iterator

import pytest
import yaml

from benchmarks.scale import requests_of
from runtime.watching import PAGE_SIZE
from tests.cluster.api import Api
from tests.cluster.controlplane import ControlPlane
from tests.cluster.nodes import resource_slice
from tests.cluster.webhooks import ROOT, Webhook, install_rbac
from tests.support.memory import peak

SLICES = 5000
TYPE = "trn2.48xlarge"
LIMIT = yaml.safe_load((ROOT / "deploy/chart/values.yaml").read_text())["webhook"]["resources"]["limits"]["memory"]


@pytest.fixture(scope="module")
def webhook(own_control_plane: ControlPlane) -> Iterator[Webhook]:
    """Not started. Scheduler and controllers stand still: every list of slices is the replica's."""
    api, kubeconfig = own_control_plane.admin, install_rbac(own_control_plane)
    for process in (own_control_plane.scheduler, own_control_plane.controller_manager):
        process.signal(signal.SIGSTOP)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: api.create(resource_slice(f"node-{number}", TYPE)), range(SLICES)))
    made = Webhook(own_control_plane, kubeconfig)
    yield made
    made.stop()
    for process in (own_control_plane.scheduler, own_control_plane.controller_manager):
        process.signal(signal.SIGCONT)


def lists(api: Api) -> int:
    """Lists of ResourceSlices that the API server has answered, each page by itself."""
    return requests_of(api.answer("GET", "/metrics").text)["LIST resourceslices"]


@pytest.mark.timeout(300)
def test_a_replica_reads_page_by_page_and_serves_when_it_knows_all(
    own_control_plane: ControlPlane, webhook: Webhook
) -> None:
    before = lists(own_control_plane.admin)
    seen: list[tuple[bool, float]] = []

    def looked(ready: bool) -> None:
        seen.append((ready, webhook.cached("resourceslices.resource.k8s.io") if ready else 0))

    webhook.start(looked=looked)
    assert seen[-1] == (True, SLICES)
    assert lists(own_control_plane.admin) - before == math.ceil(SLICES / PAGE_SIZE)
    assert peak(webhook.pid) < int(LIMIT.removesuffix("Mi")) * 2**20
    webhook.install()
