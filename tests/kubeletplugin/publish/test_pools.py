"""From the slices that exist to those that should, under the rules of a pool."""

import copy
from pathlib import Path
from typing import Any

from kubeletplugin.api_store import to_v1
from kubeletplugin.discover.health import NodeFacts
from kubeletplugin.publish.slices import (
    DesiredSlice,
    NodeDevices,
    Writes,
    desired_slices,
    dropped_fields,
    plan_writes,
    without_times,
)
from neuron.api.taints import Taint
from neuron.hardware.instances import Catalogue
from tests.kubeletplugin.fakes import NODE, Node

FACTS = NodeFacts(NODE, "node-uid")


def desired(root: Path, name: str = "trn2u.48xlarge", **options: Any) -> tuple[DesiredSlice, ...]:
    found = NodeDevices(Node(root, name).discover(), Catalogue().get(name), **options)
    return desired_slices(FACTS, found, "1.0.0")


def stored_slices(writes: Writes) -> dict[str, dict[str, Any]]:
    bodies = [copy.deepcopy(body) for body in (*writes.update, *writes.create)]
    for number, body in enumerate(bodies):
        body["metadata"]["resourceVersion"] = str(number + 1)
    return {body["metadata"]["name"]: body for body in bodies}


def pools(writes: Writes) -> list[dict[str, Any]]:
    return [body["spec"]["pool"] for body in (*writes.update, *writes.create)]


def test_slices_are_created_with_owner_and_pool(tmp_path: Path) -> None:
    writes = plan_writes(FACTS, desired(tmp_path), {})
    assert (writes.delete, writes.update, len(writes.create)) == ((), (), 2)
    assert pools(writes) == [{"name": NODE, "generation": 1, "resourceSliceCount": 2}] * 2
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "node-uid", "controller": True}
    for number, body in enumerate(writes.create):
        assert (body["apiVersion"], body["kind"]) == ("resource.k8s.io/v1", "ResourceSlice")
        assert body["metadata"] == {"name": f"{NODE}-neuron.aws.com-{number:03d}", "ownerReferences": [owner]}


def test_correct_slices_cause_no_write(tmp_path: Path) -> None:
    slices = desired(tmp_path)
    assert not plan_writes(FACTS, slices, stored_slices(plan_writes(FACTS, slices, {})))


def test_a_change_in_one_slice_keeps_the_generation(tmp_path: Path) -> None:
    existing = stored_slices(plan_writes(FACTS, desired(tmp_path), {}))
    taint = Taint("k", "v", "NoSchedule")
    writes = plan_writes(FACTS, desired(tmp_path, taints={"neuron-device-1": taint}), existing)
    assert (len(writes.update), len(writes.create), writes.delete) == (1, 0, ())
    assert pools(writes) == [{"name": NODE, "generation": 1, "resourceSliceCount": 2}]
    assert writes.update[0]["metadata"]["resourceVersion"] == "2"


def test_deleted_slices_are_created_again_in_a_later_generation(tmp_path: Path) -> None:
    writes = plan_writes(FACTS, desired(tmp_path), {}, last_generation=7)
    assert [pool["generation"] for pool in pools(writes)] == [8, 8]


def test_one_wiped_slice_raises_the_generation_of_all(tmp_path: Path) -> None:
    existing = stored_slices(plan_writes(FACTS, desired(tmp_path), {}))
    del existing[f"{NODE}-neuron.aws.com-000"]
    writes = plan_writes(FACTS, desired(tmp_path), existing)
    assert (len(writes.update), len(writes.create)) == (1, 1)
    assert [pool["generation"] for pool in pools(writes)] == [2, 2]


def test_surplus_slices_are_deleted(tmp_path: Path) -> None:
    existing = stored_slices(plan_writes(FACTS, desired(tmp_path / "u"), {}))
    writes = plan_writes(FACTS, desired(tmp_path / "d", "trn2.48xlarge"), existing)
    assert writes.delete == (f"{NODE}-neuron.aws.com-001",)
    assert pools(writes) == [{"name": NODE, "generation": 2, "resourceSliceCount": 1}]


def test_a_crash_between_two_writes_is_repaired(tmp_path: Path) -> None:
    existing = stored_slices(plan_writes(FACTS, desired(tmp_path), {}))
    existing[f"{NODE}-neuron.aws.com-001"]["spec"]["pool"]["generation"] = 2
    writes = plan_writes(FACTS, desired(tmp_path), existing)
    assert [pool["generation"] for pool in pools(writes)] == [3, 3]


def test_slices_of_an_earlier_node_object_are_taken_over(tmp_path: Path) -> None:
    existing = stored_slices(plan_writes(FACTS, desired(tmp_path, "trn2.48xlarge"), {}))
    writes = plan_writes(NodeFacts(NODE, "new-uid"), desired(tmp_path, "trn2.48xlarge"), existing)
    assert [body["metadata"]["ownerReferences"][0]["uid"] for body in writes.update] == ["new-uid"]


def test_a_taint_keeps_its_time(tmp_path: Path) -> None:
    first = {"neuron-device-1": Taint("k", "v", "NoExecute")}
    existing = stored_slices(plan_writes(FACTS, desired(tmp_path, taints=first), {}))
    device = existing[f"{NODE}-neuron.aws.com-001"]["spec"]["devices"][1]
    device["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
    assert not plan_writes(FACTS, desired(tmp_path, taints=first), existing)
    second = first | {"neuron-device-2": Taint("k", "v", "NoExecute")}
    [body] = plan_writes(FACTS, desired(tmp_path, taints=second), existing).update
    assert body["spec"]["devices"][1]["taints"][0]["timeAdded"] == "2026-01-01T00:00:00Z"
    assert "timeAdded" not in body["spec"]["devices"][2]["taints"][0]


def test_dropped_fields_are_found() -> None:
    sent = {"a": 1, "devices": [{"name": "x", "taints": [{"key": "k"}]}, {"name": "y"}], "empty": []}
    got = {"a": 1, "extra": 2, "devices": [{"name": "x"}, {"name": "y"}]}
    assert dropped_fields(sent, got) == ("spec.devices[0].taints",)
    assert dropped_fields(sent, sent) == ()


def test_a_device_list_that_is_read_back_as_null_equals_an_empty_list() -> None:
    """As Kubernetes 1.34 returns it."""
    stored = {"spec": {"pool": {"name": "a"}, "devices": None}}
    assert to_v1(stored, "v1")["spec"]["devices"] == []
    assert without_times({"devices": None}) == {"devices": None}
