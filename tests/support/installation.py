"""An installation that is well: the shipped manifests, two replicas, two nodes. Tests break one thing at a time."""

import base64
import copy
import datetime as dt
import functools
import hashlib
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from certs import material
from cluster.kinds.replicas import ReplicaStatus, lease_body
from commands.status.checks import judge
from commands.status.lines import CheckResult, StatusLine
from commands.status.snapshot import RULES, StatusSnapshot
from neuron.api.nodes import read_node
from neuron.api.slices import read_slice

MANIFESTS = Path(__file__).parents[2] / "deploy" / "manifests"
NOW = dt.datetime(2026, 7, 1, 12, 0, tzinfo=dt.UTC)
HOST = "neuron-dra.neuron-dra.svc"

AUTHORITY = material.make_authority("neuron-dra", now=NOW, lifetime=dt.timedelta(days=3650))
STRANGER = material.make_authority("someone else", now=NOW, lifetime=dt.timedelta(days=3650))


def leaf(host: str = HOST, days: float = 90, authority: material.Authority = AUTHORITY) -> bytes:
    lifetime = dt.timedelta(days=days)
    return material.issue_serving(
        authority, host, [host], now=NOW - dt.timedelta(days=1), lifetime=lifetime
    ).certificate_pem


LEAF = leaf()


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


@functools.cache
def _documents(file: str) -> list[Any]:
    return list(yaml.load_all((MANIFESTS / file).read_text(), yaml.CSafeLoader))


def manifest(file: str, kind: str) -> Any:
    """A copy, which the caller may change."""
    return copy.deepcopy(next(document for document in _documents(file) if document["kind"] == kind))


def configuration(kind: str, bundle: bytes = AUTHORITY.certificate_pem) -> Any:
    found = manifest("webhook.yaml" if kind.startswith("Mut") else "validating.yaml", kind)
    for entry in found["webhooks"]:
        entry["clientConfig"]["caBundle"] = encoded(bundle)
    return found


def deployment(namespace: str = "neuron-dra", **status: int) -> Any:
    found = manifest("webhook.yaml", "Deployment")
    found["metadata"]["namespace"] = namespace
    found["status"] = {"availableReplicas": 2, "updatedReplicas": 2} | status
    return found


def secret(certificate: bytes = LEAF) -> Any:
    return {"metadata": {"name": "neuron-dra-tls"}, "data": {"tls.crt": encoded(certificate)}}


def report(**fields: Any) -> ReplicaStatus:
    digest = x509.load_pem_x509_certificate(LEAF).fingerprint(hashes.SHA256()).hex()
    bundle = hashlib.sha256(AUTHORITY.certificate_pem).hexdigest()
    said = {"version": "0.1.0", "mode": "convert", "ready": True, "bundle": bundle, "serving": digest}
    return ReplicaStatus(**(said | {"not_after": (NOW + dt.timedelta(days=89)).isoformat()} | fields))


def lease(name: str, age: float = 5, **fields: Any) -> Any:
    return lease_body(name, report(**fields), NOW - dt.timedelta(seconds=age))


def endpoints(*ready: bool) -> Any:
    return {"metadata": {"name": "neuron-dra-x"}, "endpoints": [{"conditions": {"ready": each}} for each in ready]}


def pod_endpoints(*ready: bool) -> Any:
    """The same, of the pods pod-1, pod-2, …"""
    made = endpoints(*ready)
    for number, each in enumerate(made["endpoints"], start=1):
        each["targetRef"] = {"kind": "Pod", "name": f"pod-{number}"}
    return made


def node_object(
    name: str, instance_type: str = "trn1.32xlarge", kubelet: str = "v1.36.2", *, ready: bool = True, **allocatable: str
) -> Any:
    labels = {"node.kubernetes.io/instance-type": instance_type}
    amounts = {f"aws.amazon.com/{resource}": value for resource, value in allocatable.items()}
    conditions = [{"type": "Ready", "status": str(ready)}]
    status = {"allocatable": amounts, "nodeInfo": {"kubeletVersion": kubelet}, "conditions": conditions}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def node(name: str, *arguments: str, ready: bool = True, **allocatable: str) -> Any:
    return read_node(node_object(name, *arguments, ready=ready, **allocatable))


def slice_object(
    name: str,
    devices: int = 16,
    generation: int = 1,
    *,
    instance_type: str = "trn1.32xlarge",
    whole_node: bool = True,
    taint: str = "",
) -> Any:
    attributes = {
        "instanceType": {"string": instance_type},
        "resourceType": {"string": "neuron_device"},
        "draDriverVersion": {"version": "1.0.0"},
    }
    made: list[Any] = [{"name": f"neuron-device-{index}", "attributes": attributes} for index in range(devices)]
    if whole_node:
        made.append({"name": "neuron-node", "attributes": attributes | {"resourceType": {"string": "neuron_node"}}})
    if taint:
        made = [device | {"taints": [{"key": taint, "effect": "NoSchedule"}]} for device in made]
    pool = {"name": name, "generation": generation}
    spec = {"driver": "neuron.aws.com", "nodeName": name, "pool": pool, "devices": made}
    metadata = {"name": f"{name}-{generation}", "managedFields": [{"manager": "neuron-dra-kubelet-plugin"}]}
    return {"metadata": metadata, "spec": spec}


def resource_slice(name: str, *arguments: int, **fields: Any) -> Any:
    return read_slice(slice_object(name, *arguments, **fields))


def driver_pod(node: str, *, ready: bool = True) -> Any:
    conditions = [{"type": "Ready", "status": str(ready)}]
    metadata = {"name": f"neuron-dra-kubelet-plugin-{node}", "namespace": "neuron-dra"}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"conditions": conditions}}


def named(name: str, **annotations: str) -> Any:
    return {"metadata": {"name": name, "annotations": annotations}}


def well(**changes: Any) -> StatusSnapshot:
    parts: dict[str, Any] = {
        "address": "https://cluster",
        "namespace": "neuron-dra",
        "version": "v1.36.2-eks-1a2b3c4",
        "versions": ("v1", "v1beta2"),
        "mutating": (configuration("MutatingWebhookConfiguration"),),
        "validating": (configuration("ValidatingWebhookConfiguration"),),
        "rendered": (manifest("webhook.yaml", "ConfigMap"),),
        "deployments": (deployment(),),
        "daemon_sets": (),
        "service": (manifest("webhook.yaml", "Service"),),
        "endpoint_slices": (endpoints(True, True),),
        "secret": (secret(),),
        "leases": (lease("pod-1"), lease("pod-2")),
        "device_classes": (named("neuron.aws.com"),),
        "resource_slices": (resource_slice("n1"), resource_slice("n2")),
        "own_slices": frozenset({"n1", "n2"}),
        "driver_pods": (driver_pod("n1"), driver_pod("n2")),
        "nodes": (node("n1"), node("n2"), node("cpu", "m5.large")),
        "templates": ({"metadata": {"name": "neuron-4-x", "namespace": "team-a"}},),
        "namespaces": (named("default"), named("team-a", **{"neuron.aws.com/convert": "shadow"})),
        "account": "system:serviceaccount:neuron-dra:neuron-dra",
        "rights": {
            (rule, resource, verb): True for rule in RULES for resource in rule.resources for verb in rule.verbs
        },
    }
    return StatusSnapshot(**(parts | changes))


def said(snapshot: StatusSnapshot, *verdicts: CheckResult) -> list[StatusLine]:
    """Lines of these verdicts; of all but `WELL` where none is given."""
    return [
        line for line in judge(snapshot, NOW) if line.verdict in (verdicts or set(CheckResult) - {CheckResult.WELL})
    ]


def edited(kind: str, entry: str = "mutate.neuron.aws.com", **fields: Any) -> Any:
    """A shipped configuration with fields of one entry replaced; `service` goes into its clientConfig."""
    made = copy.deepcopy(configuration(kind))
    webhook = next(each for each in made["webhooks"] if each["name"] == entry)
    webhook["clientConfig"]["service"] |= fields.pop("service", {})
    webhook["clientConfig"] |= fields.pop("clientConfig", {})
    webhook.update(fields)
    return made


def mutating(**fields: Any) -> StatusSnapshot:
    return well(mutating=(edited("MutatingWebhookConfiguration", **fields),))
