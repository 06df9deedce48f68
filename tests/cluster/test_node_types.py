"""The webhook learns instance types from Nodes: real metadata-only lists and watches."""

import asyncio
import concurrent.futures
import time
from pathlib import Path

import pytest

from cluster.resources import NODES
from conversion.asks.conversion_context import ConversionOptions, conversion_context
from neuron.hardware.instances import Catalogue, Observation
from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from webhook.cluster.kube import connect

NODES_IN_ALL = 300
NEURON_NODES = 100
TYPE = "node.kubernetes.io/instance-type"


def numbered_node(number: int) -> Object:
    instance_type = "inf2.48xlarge" if number < NEURON_NODES else "m5.large"
    labels = {TYPE: instance_type, **{f"example.com/label-{index}": f"value-{index}" for index in range(20)}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{number}", "labels": labels}}


@pytest.fixture(scope="module")
def kubeconfig(lent_control_plane: ControlPlane) -> Path:
    admin = lent_control_plane.admin
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: admin.create(numbered_node(number)), range(NODES_IN_ALL)))
    return lent_control_plane.admin_kubeconfig


def test_types_are_known_from_nodes_without_a_driver(lent_control_plane: ControlPlane, kubeconfig: Path) -> None:
    admin: Api = lent_control_plane.admin

    async def watch() -> None:
        begun = time.monotonic()
        async with connect(kubeconfig) as world:
            started = time.monotonic() - begun
            (cache,) = (cache for cache in world.caches if cache.resource == NODES)
            assert world.ready() == (True, "")
            assert world.view.observations() == {"inf2.48xlarge": Observation(0, labels=("inf2.48xlarge",))}
            assert conversion_context(ConversionOptions(), Catalogue(), world.view).families.seen == ("inf2",)
            assert len(cache) == NEURON_NODES
            assert cache.counters.unreadable == 0
            assert started < 30
            late = {**numbered_node(0), "metadata": {"name": "late", "labels": {TYPE: "trn1.2xlarge"}}}
            await asyncio.to_thread(admin.create, late)
            async with asyncio.timeout(10):
                while "trn1.2xlarge" not in world.view.observations():  # noqa: ASYNC110 - the view has no event
                    await asyncio.sleep(0.01)
        # TLS connections end a moment after their session (aiohttp's "Graceful Shutdown"), if the loop still runs.
        await asyncio.sleep(0.5)

    asyncio.run(watch())
