"""The reviews of the benchmarks, as the API server sends them for a pod of a ReplicaSet, each with its own uid."""

import copy
import json
import uuid
from pathlib import Path
from typing import Any

Object = dict[str, Any]

VARIANTS = 256
NUMBER = "@n@"
"""What `replay.lua` replaces with the number of the request."""


def pod(neuron: str | None) -> Object:
    """A pod of about 3 KB, after the API server's defaulting and in-tree admission."""
    amounts = {"cpu": "8", "memory": "64Gi"} | ({"aws.amazon.com/neuron": neuron} if neuron else {})
    container = {
        "name": "trainer",
        "image": "registry.example/training/neuronx-trainer:2.31.0",
        "command": ["torchrun", "--nproc_per_node=8", "train.py"],
        "env": [{"name": f"TRAINING_SETTING_{index}", "value": f"value-{index}" * 3} for index in range(12)],
        "resources": {"limits": dict(amounts), "requests": dict(amounts)},
        "volumeMounts": [
            {"name": "dshm", "mountPath": "/dev/shm"},  # noqa: S108 - a mount path in a pod
            {
                "name": "kube-api-access-x7k2p",
                "readOnly": True,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            },
        ],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
    token = {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
    root = {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "generateName": "trainer-7d9c5b8f6d-",
            "namespace": "team-a",
            "labels": {"app": "trainer", "pod-template-hash": "7d9c5b8f6d", "team": "vision"},
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "9400"},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": "trainer-7d9c5b8f6d",
                    "uid": "c0a1e1d2-0000-4000-8000-000000000001",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "volumes": [
                {"name": "dshm", "emptyDir": {"medium": "Memory"}},
                {"name": "kube-api-access-x7k2p", "projected": {"sources": [token, root], "defaultMode": 420}},
            ],
            "containers": [container],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "serviceAccount": "default",
            "securityContext": {},
            "schedulerName": "default-scheduler",
            "tolerations": [
                {
                    "key": f"node.kubernetes.io/{key}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
                for key in ("not-ready", "unreachable")
            ],
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {},
    }


def template() -> Object:
    """A typical ResourceClaimTemplate of about 1.5 KB: connected devices, LNC, a driver version."""
    attributes = 'device.attributes["neuron.aws.com"]'
    selectors = [
        f'"instanceType" in {attributes} && {attributes}.instanceType == "trn2.48xlarge"',
        f'"neuronDriverVersion" in {attributes} && {attributes}.neuronDriverVersion == "2.25.4.0"',
        f'!("resourceType" in {attributes}) || {attributes}.resourceType == "neuron_device"',
    ]
    config = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": 1}
    exactly = {
        "deviceClassName": "neuron.aws.com",
        "allocationMode": "ExactCount",
        "count": 4,
        "selectors": [{"cel": {"expression": expression}} for expression in selectors],
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {
            "name": "four-connected-lnc-1",
            "namespace": "team-a",
            "labels": {"app.kubernetes.io/part-of": "training"},
            "annotations": {"description": "Four connected trn2 devices with physical cores, for fine-tuning. " * 3},
        },
        "spec": {
            "metadata": {"labels": {"app.kubernetes.io/part-of": "training"}},
            "spec": {
                "devices": {
                    "requests": [{"name": "neurons", "exactly": exactly}],
                    "constraints": [{"requests": ["neurons"], "matchAttribute": "resource.aws.com/devicegroup4_id"}],
                    "config": [{"requests": ["neurons"], "opaque": {"driver": "neuron.aws.com", "parameters": config}}],
                }
            },
        },
    }


def review(manifest: Object) -> Object:
    group, _, version = manifest["apiVersion"].rpartition("/")
    gvk = {"group": group, "version": version, "kind": manifest["kind"]}
    resource = {"group": group, "version": version, "resource": f"{manifest['kind'].lower()}s"}
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": str(uuid.uuid4()),
            "kind": gvk,
            "resource": resource,
            "requestKind": gvk,
            "requestResource": resource,
            "namespace": "team-a",
            "operation": "CREATE",
            "userInfo": {
                "username": "system:serviceaccount:kube-system:replicaset-controller",
                "uid": "c0a1e1d2-0000-4000-8000-000000000002",
                "groups": ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"],
            },
            "object": manifest,
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    }


def write(path: Path, manifest: Object) -> None:
    """Write variants of a review, one per line: replicas of one workload."""
    lines = []
    for index in range(VARIANTS):
        variant = copy.deepcopy(manifest)
        variant["metadata"]["labels"]["replica"] = str(index)
        lines.append(json.dumps(review(variant), separators=(",", ":")))
    path.write_text("\n".join(lines) + "\n")


def write_renamed(path: Path, manifest: Object) -> None:
    """Write one review whose containers or requests the load generator names: no two have the same names."""
    _write_one(path, _renamed(manifest))


def write_distinct(path: Path, manifest: Object) -> None:
    """Write one review in which the load generator also numbers what is decided: no two are of one kind.

    A pod has other tolerations, a template other names of its alternatives.
    """
    variant = _renamed(manifest)
    if "containers" in variant["spec"]:
        variant["spec"]["tolerations"][0]["key"] = f"team-{NUMBER}"
    else:
        request = variant["spec"]["spec"]["devices"]["requests"][0]
        request["firstAvailable"] = [{"name": f"four-{NUMBER}", **request.pop("exactly")}]
    _write_one(path, variant)


def _renamed(manifest: Object) -> Object:
    variant = copy.deepcopy(manifest)
    variant["metadata"]["labels"]["replica"] = NUMBER
    if "containers" in variant["spec"]:
        variant["spec"]["containers"][0]["name"] = f"trainer-{NUMBER}"
    else:
        devices = variant["spec"]["spec"]["devices"]
        devices["requests"][0]["name"] = f"neurons-{NUMBER}"
        tolerations = [{"key": f"team-{NUMBER}", "operator": "Exists", "effect": "NoSchedule"}]
        devices["requests"][0]["exactly"]["tolerations"] = tolerations
        devices["constraints"][0]["requests"] = [f"neurons-{NUMBER}"]
        devices["config"][0]["requests"] = [f"neurons-{NUMBER}"]
    return variant


def _write_one(path: Path, manifest: Object) -> None:
    path.write_text(json.dumps(review(manifest), separators=(",", ":")) + "\n")
