"""A cluster of emulated nodes with claims and pods as a scheduler leaves them: as a snapshot, or in a fake API.

Slices are those that the kubelet plugin publishes for the node's type.
"""

import datetime as dt
import functools
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from commands.cluster.snapshot import ClusterSnapshot, NodeLoads
from kubeletplugin.discover import emulate, sysfs
from kubeletplugin.discover.devices import NODE_DEVICE, device_name, shares_cores
from kubeletplugin.discover.health import NodeFacts
from kubeletplugin.publish.slices import ClusterFeatures, NodeDevices, desired_slices
from neuron import names
from neuron.api.nodes import read_node
from neuron.api.slices import read_slice
from neuron.api.stored_claims import read_stored_claim
from neuron.api.taints import Taint
from neuron.hardware.instances import Catalogue
from tests.support.fake_api import FakeApi

Object = dict[str, Any]

TAKEN = dt.datetime(2026, 11, 22, 9, 0, tzinfo=dt.UTC)
SICK = Taint("neuron.aws.com/unhealthy", "hbm-ecc", "NoSchedule")
PLUGIN = Taint(names.TAINT_DEVICE_PLUGIN, "", "NoSchedule")
CATALOGUE = Catalogue()


@functools.cache
def hardware(instance_type: str) -> sysfs.NodeHardware:
    entry = emulate.emulated_type(instance_type)
    with tempfile.TemporaryDirectory() as folder:
        emulate.write_tree(Path(folder), entry)
        return sysfs.discover(Path(folder) / "sys", Path(folder) / "dev")


class EmulatedCluster:
    """Nodes, claims and pods. Devices are given by index; -1 is the device that stands for the whole node."""

    def __init__(self) -> None:
        self.nodes: list[Object] = []
        self.slices: list[Object] = []
        self.claims: list[Object] = []
        self.pods: list[Object] = []
        self.classes: list[Object] = [{"metadata": {"name": names.DEVICE_CLASS}, "spec": {}}]

    def node(
        self,
        name: str,
        instance_type: str = "trn2.48xlarge",
        *,
        taints: Mapping[int, Taint] | None = None,
        common_taints: Sequence[Taint] = (),
        labels: Mapping[str, str] | None = None,
        allocatable: Mapping[str, str] | None = None,
        unschedulable: bool = False,
        ready: bool = True,
        driver: bool = True,
        features: ClusterFeatures = ClusterFeatures(),
        whole_node_alone: bool = False,
    ) -> None:
        """Add a node; without `driver` it publishes nothing."""
        self.nodes.append(
            {
                "metadata": {
                    "name": name,
                    "uid": f"{name}-uid",
                    "labels": {names.LABEL_INSTANCE_TYPE: instance_type, **(labels or {})},
                },
                "spec": {"unschedulable": True} if unschedulable else {},
                "status": {
                    "allocatable": {"cpu": "192", **(allocatable or {})},
                    "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
                },
            }
        )
        if not driver:
            return
        instance = CATALOGUE.get(instance_type)
        found = NodeDevices(
            hardware(instance_type),
            instance,
            taints={device_name(index): taint for index, taint in (taints or {}).items()},
            common_taints=tuple(common_taints),
            whole_node_alone=whole_node_alone,
            shares_cores=shares_cores("auto", instance),
        )
        pieces = desired_slices(NodeFacts(name, f"{name}-uid"), found, "1.2.3", features)
        for piece in pieces:
            pool = {"name": name, "generation": 1, "resourceSliceCount": len(pieces)}
            self.slices.append({"metadata": {"name": piece.name}, "spec": {**piece.content, "pool": pool}})

    def claim(
        self,
        name: str,
        node: str,
        devices: Iterable[int],
        *,
        namespace: str = "team-a",
        cores: int | None = None,
        admin: bool = False,
        pods: Sequence[str] | None = None,
        request: str = "n0",
    ) -> Object:
        """Add an allocated claim, and its pod of the same name."""
        results = [_result(request, node, index, cores, admin=admin) for index in devices]
        holders = [name] if pods is None else pods
        claim: Object = {
            "metadata": {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}-uid"},
            "spec": {"devices": {"requests": [_request(request, len(results), cores, admin=admin)]}},
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [{"resource": "pods", "name": pod, "uid": f"{pod}-uid"} for pod in holders],
            },
        }
        self.claims.append(claim)
        for pod in holders:
            self.pods.append(
                {
                    "metadata": {"name": pod, "namespace": namespace, "uid": f"{pod}-uid"},
                    "spec": {
                        "nodeName": node,
                        "resourceClaims": [{"name": "neuron", "resourceClaimName": name}],
                        "containers": [{"name": "main", "resources": {"claims": [{"name": "neuron"}]}}],
                    },
                    "status": {"phase": "Running"},
                }
            )
        return claim

    def legacy_pod(
        self, name: str, node: str, amount: str, *, resource: str = names.RESOURCE_NEURON, namespace: str = "team-a"
    ) -> None:
        """Add a running pod of the device plugin."""
        self.pods.append(
            {
                "metadata": {"name": name, "namespace": namespace, "uid": f"{name}-uid"},
                "spec": {
                    "nodeName": node,
                    "containers": [{"name": "main", "resources": {"limits": {resource: amount}}}],
                },
                "status": {"phase": "Running"},
            }
        )

    def snapshot(self) -> ClusterSnapshot:
        """What `read_snapshot` would read."""
        loads = NodeLoads()
        for each in self.pods:
            loads.add(each)
        return ClusterSnapshot(
            "https://cluster.example",
            TAKEN,
            tuple(map(read_node, self.nodes)),
            tuple(map(read_slice, self.slices)),
            tuple(map(read_stored_claim, self.claims)),
            tuple(self.pods),
            tuple(self.classes),
            loads=loads,
        )

    def put_into(self, api: FakeApi) -> None:
        """Store everything in a fake API server."""
        for plural, items in (
            ("nodes", self.nodes),
            ("resourceslices", self.slices),
            ("resourceclaims", self.claims),
            ("pods", self.pods),
            ("deviceclasses", self.classes),
        ):
            for item in items:
                api.put(plural, item)


def _result(request: str, node: str, index: int, cores: int | None, *, admin: bool) -> Object:
    result: Object = {
        "driver": names.DRIVER,
        "pool": node,
        "device": NODE_DEVICE if index < 0 else device_name(index),
        "request": request,
    }
    if cores is not None:
        result |= {"shareID": f"share-{index}", "consumedCapacity": {names.CAPACITY_CORES: str(cores)}}
    return result | ({"adminAccess": True} if admin else {})


def _request(name: str, count: int, cores: int | None, *, admin: bool) -> Object:
    exactly: Object = {"deviceClassName": names.DEVICE_CLASS, "allocationMode": "ExactCount", "count": count}
    if cores is not None:
        exactly["capacity"] = {"requests": {names.CAPACITY_CORES: str(cores)}}
    return {"name": name, "exactly": exactly | ({"adminAccess": True} if admin else {})}
