"""Clusters to rehearse, in memory: nodes of the device plugin, pods with their controllers, budgets."""

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from commands.objects.manifest_files import GivenManifests
from commands.rehearse.gather import Gathering, GatheringSettings
from commands.rehearse.model import Rehearsal
from commands.rehearse.reads import from_files, reduced
from commands.rehearse.rehearsing import RehearsalChoice, rehearse
from commands.report.inputs import read_files
from commands.report.model import Heading
from tests.support.emulated import EmulatedCluster
from tests.support.trainium import trainium

Object = dict[str, Any]

NOW = dt.datetime(2026, 11, 27, 9, 0, tzinfo=dt.UTC)
HEADING = Heading("files", "2026-11-27T09:00:00Z", "0.1.0")
NODEGROUP = "eks.amazonaws.com/nodegroup"
TRN1 = "trn1.32xlarge"
DEVICES = {"trn1.32xlarge": 16, "trn2.48xlarge": 16, "inf2.48xlarge": 12, "inf2.xlarge": 1, "new9.48xlarge": 16}


def node(name: str, group: str = "a", kind: str = TRN1, *, cpu: str = "128", **spec: Any) -> Object:
    """A node of the device plugin. Its devices are those of its type."""
    labels = {"node.kubernetes.io/instance-type": kind, NODEGROUP: group, "kubernetes.io/hostname": name}
    allocatable = {"cpu": cpu, "memory": "512Gi", "pods": "110", "aws.amazon.com/neuron": str(DEVICES[kind])}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": name, "labels": labels},
        "spec": spec,
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def driver_nodes(*names: str, kind: str = TRN1, group: str = "dra") -> list[Object]:
    """Nodes with the driver, and their ResourceSlices."""
    made = EmulatedCluster()
    for name in names:
        made.node(name, kind, labels={NODEGROUP: group})
    slices = [{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **each} for each in made.slices]
    return [*({"apiVersion": "v1", "kind": "Node", **each} for each in made.nodes), *slices]


def pods(
    name: str,
    *nodes: str,
    count: Any = 4,
    namespace: str = "team-a",
    kind: str = "ReplicaSet",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    resource: str = "aws.amazon.com/neuron",
    **spec: Any,
) -> list[Object]:
    """Pods of one controller, one on each node; an empty node name: it waits. An empty kind: no controller."""
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": f"{namespace}-{name}", "controller": True}
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{name}-{number}",
                "namespace": namespace,
                "uid": f"{namespace}-{name}-{number}",
                "labels": {"app": name, **(labels or {})},
                "annotations": dict(annotations or {}),
                "ownerReferences": [owner] if kind else [],
            },
            "spec": {
                **({"nodeName": where} if where else {}),
                "containers": [{"name": "main", "image": "app:1", "resources": {"limits": {resource: str(count)}}}],
                **spec,
            },
            "status": {"phase": "Running" if where else "Pending"},
        }
        for number, where in enumerate(nodes)
    ]


def budget(name: str, namespace: str = "team-a", app: str = "", **spec: Any) -> Object:
    """A PodDisruptionBudget for the pods of `app`."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": {"app": app or name}}, **spec},
    }


def of_namespace(kind: str, name: str, namespace: str = "team-a", **spec: Any) -> Object:
    """A ResourceQuota, LimitRange and the like."""
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def as_list(items: Iterable[Object]) -> str:
    """As `kubectl get … -o json` prints them."""
    return orjson.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}).decode()


def gathered(*items: Object, **settings: Any) -> Gathering:
    """The cluster of objects. `version`: of Kubernetes; others are settings."""
    options = settings.pop("options", None) or trainium(families=())
    options = dataclasses.replace(options, kubernetes_version=settings.pop("version", "v1.36.3"))
    inputs = read_files([GivenManifests("cluster.json", as_list(items).encode())], lambda: None, reduced=reduced)
    found, problems = from_files(inputs, GatheringSettings(options, **settings), NOW, lambda: None)
    assert problems == []
    return found


def rehearsal(*items: Object, choice: RehearsalChoice = RehearsalChoice(), **settings: Any) -> Rehearsal:
    """The rehearsal of objects."""
    return rehearse(gathered(*items, **settings), choice, HEADING)


def after(found: Rehearsal, step: int = -1) -> dict[str, str]:
    """Where pods are after a step: their node, or the cause for which they do not run."""
    where = {str(pod): pod.node for pod in found.pods if pod.node}
    steps = found.best.steps[: len(found.best.steps) + step + 1 if step < 0 else step + 1]
    for each in steps:
        where |= {str(found.pods[move.pod]): move.to for move in each.moves}
        where |= {str(found.pods[number]): str(reason.cause) for number, reason in each.waiting}
        where |= {str(found.pods[number]): "ended" for number in each.ended}
    return where
