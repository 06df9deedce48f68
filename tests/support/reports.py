"""Reports of objects in memory, without files or a cluster."""

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from typing import Any

from commands.devices.node_devices import ClusterDevices
from commands.objects.file_policies import FilePolicies
from commands.objects.manifests import FileStore, manifests_of
from commands.report.build import ReportBuilder
from commands.report.inventory import Found
from commands.report.model import Heading, Report, Shadowed, Workload
from kubecel_tests.evaluating import frozen_clock
from tests.policies.policy_files import loaded
from tests.support.emulated import EmulatedCluster
from tests.support.trainium import trainium

NOW = dt.datetime(2026, 11, 22, 9, 0, tzinfo=dt.UTC)
HEADING = Heading("manifests", "2026-11-22T09:00:00Z", "0.1.0")
FACTS = ("Namespace", "ResourceQuota", "LimitRange", "ResourceClaimTemplate", "DeviceClass", "NodePool")

Object = dict[str, Any]


def pod_spec(count: Any = 4, resource: str = "neuron", **fields: Any) -> Object:
    """The spec of a pod with one container."""
    limits = {f"aws.amazon.com/{resource}": str(count)}
    return {"containers": [{"name": "main", "image": "app:1", "resources": {"limits": limits}}], **fields}


def deployment(
    name: str = "train", count: Any = 4, *, namespace: str = "team-a", replicas: int = 1, uid: str = "", **fields: Any
) -> Object:
    """A Deployment; other fields go to the spec of its pods, `annotations` and `labels` to their metadata."""
    metadata = {key: fields.pop(key) for key in ("annotations", "labels") if key in fields}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "uid": uid or f"{namespace}-{name}"},
        "spec": {"replicas": replicas, "template": {"metadata": metadata, "spec": pod_spec(count, **fields)}},
    }


def owned(item: Object, owner: Object) -> Object:
    """The object with a controller."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    return {**item, "metadata": {**item["metadata"], "ownerReferences": [reference]}}


def running(
    name: str, node: str = "node-1", *, namespace: str = "team-a", phase: str = "Running", **spec: Any
) -> Object:
    """A pod of the device plugin that exists."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}"},
        "spec": {**pod_spec(**spec), "nodeName": node},
        "status": {"phase": phase},
    }


def three_nodes() -> EmulatedCluster:
    """Two nodes of the device plugin, and one of the driver, on which a claim holds 4 of 16 devices."""
    made = EmulatedCluster()
    for name in ("node-1", "node-2"):
        made.node(name, "trn1.32xlarge", driver=False, allocatable={"aws.amazon.com/neuron": "16"})
    made.node("node-3", "trn1.32xlarge")
    made.claim("other", "node-3", range(4))
    return made


def found(item: Mapping[str, Any], source: str = "", line: int = 0) -> Found:
    group, _, version = str(item["apiVersion"]).rpartition("/")
    return Found(group, version, str(item["kind"]), json.dumps(item).encode(), source, line)


def report(
    *items: Object,
    policies: Iterable[str] = (),
    cluster: EmulatedCluster | None = None,
    shadowed: tuple[Shadowed, ...] = (),
    **options: Any,
) -> Report:
    """The report about objects, read in this order."""
    texts = tuple(policies)
    files = FilePolicies(loaded(*texts), NOW, frozen_clock) if texts else None
    facts = [manifest for item in items if item["kind"] in FACTS for manifest in manifests_of(item)]
    devices = None if cluster is None else ClusterDevices.of(cluster.snapshot(), "v1.36.3")
    builder = ReportBuilder(trainium(**options), FileStore(facts), files, devices)
    for item in items:
        if item["kind"] not in FACTS:
            builder.take(found(item))
    for manifest in facts:
        builder.judge(manifest)
    return builder.build(HEADING, shadowed)


def only_workload(*items: Object, **options: Any) -> Workload:
    """The only workload of a report."""
    [only] = report(*items, **options).workloads
    return only


def obstacles(*items: Object, **options: Any) -> list[tuple[str, str, bool]]:
    """Cause, code and whether it blocks, of the only workload."""
    only = only_workload(*items, **options)
    return [(each.cause.value, each.finding.code, each.blocks) for each in only.obstacles]
