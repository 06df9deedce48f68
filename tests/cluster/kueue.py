"""Kueue's own manager beside a control plane: its scheduler, its controllers and its webhooks.

NEURON_DRA_KUEUE names a folder of one version of Kueue, with `manager`, the program of its image, and `crds`, its
CustomResourceDefinitions as YAML files; the folder has the name of the version, such as 0.19.2. What the kubelet does
for Kueue's pod is done here: the certificate that it writes into a Secret becomes files, and an EndpointSlice leads to
the process.
"""

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from commands.status.kueue import CONFIG, FILE, MANAGER, NAMESPACE
from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.manifests import workload
from tests.cluster.processes import Process, eventually, free_ports
from tests.cluster.webhooks import load

FOLDER: Final = os.environ.get("NEURON_DRA_KUEUE", "")
QUEUE: Final = "team"
IN_QUEUE: Final = {"kueue.x-k8s.io/queue-name": QUEUE}
GATE: Final = "kueue.x-k8s.io/admission"
MUTATING: Final = "kueue-mutating-webhook-configuration"

_GROUP: Final = "kueue.x-k8s.io"
_SERVICE: Final = "kueue-webhook-service"
_SECRET: Final = "kueue-webhook-server-cert"
_CONVERTED: Final = ("clusterqueues", "cohorts", "localqueues", "multikueueclusters", "workloads")
"""Resources in whose CRDs the manager writes the certificate of its conversion webhook."""
_KINDS: Final = (
    ("", "v1", "pod"),
    ("batch", "v1", "job"),
    ("apps", "v1", "deployment"),
    ("apps", "v1", "statefulset"),
    (_GROUP, "v1beta2", "workload"),
    (_GROUP, "v1beta2", "clusterqueue"),
    (_GROUP, "v1beta2", "resourceflavor"),
)


class Kueue:
    """The manager as a process; it has the rights of an administrator."""

    def __init__(self, plane: ControlPlane, folder: Path, address: str) -> None:
        """`address`: of this host, not loopback."""
        self._api = plane.admin
        self._folder = folder
        self._address = address
        self._tls = plane.directory / "kueue-tls"
        self._tls.mkdir()
        self._settings = plane.directory / "kueue.yaml"
        [self._port] = free_ports(1, address)
        self._probe, self._metrics = free_ports(2)
        argv = [folder / "manager", f"--config={self._settings}", f"--kubeconfig={plane.admin_kubeconfig}"]
        self._process = Process("Kueue's manager", argv, plane.directory / "kueue.log", plane.tuning.environment)

    def install(self) -> None:
        """Create what Kueue's manifests create, but accounts and rights."""
        for path in sorted((self._folder / "crds").glob("*.yaml")):
            for crd in load(path):
                if crd["metadata"]["name"].partition(".")[0] in _CONVERTED:
                    webhook = {"clientConfig": self._client("/convert"), "conversionReviewVersions": ["v1"]}
                    crd["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
                self._api.create(crd)
        self._api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        self._api.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": _SECRET}}, NAMESPACE)
        ports = [{"name": "https", "port": 443, "targetPort": self._port}]
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": _SERVICE}, "spec": {"ports": ports}}
        self._api.create(service, NAMESPACE)
        endpoints = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": _SERVICE, "labels": {"kubernetes.io/service-name": _SERVICE}},
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": self._port}],
            "endpoints": [{"addresses": [self._address], "conditions": {"ready": True}}],
        }
        self._api.request("POST", f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices", json=endpoints)
        for kind, verb, operations in (
            ("Mutating", "mutate", ["CREATE"]),
            ("Validating", "validate", ["CREATE", "UPDATE"]),
        ):
            configuration = {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": f"{kind}WebhookConfiguration",
                # The manager looks for these names, which it makes of the name of its Service.
                "metadata": {"name": f"kueue-{kind.lower()}-webhook-configuration"},
                "webhooks": [self._webhook(verb, operations, *each) for each in _KINDS],
            }
            self._api.create(configuration)

    def _webhook(self, verb: str, operations: list[str], group: str, version: str, kind: str) -> Object:
        rule = {"apiGroups": [group], "apiVersions": [version], "resources": [f"{kind}s"], "operations": operations}
        others = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", NAMESPACE]}
        return {
            "name": f"{verb}-{kind}.kueue.test",
            "clientConfig": self._client(f"/{verb}-{group.replace('.', '-')}-{version}-{kind}"),
            "rules": [rule],
            "namespaceSelector": {"matchExpressions": [others]},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }

    @staticmethod
    def _client(path: str) -> Object:
        return {"service": {"namespace": NAMESPACE, "name": _SERVICE, "path": path}}

    def restart(self, settings: Mapping[str, Any]) -> None:
        """Run with a Configuration, as a cluster admin writes it, which `status` can read too."""
        self.stop()
        self._api.delete("ConfigMap", CONFIG, NAMESPACE)
        self._api.delete("Deployment", MANAGER, NAMESPACE)
        config = {"metadata": {"name": CONFIG}, "data": {FILE: yaml.safe_dump(dict(settings))}}
        self._api.create({"apiVersion": "v1", "kind": "ConfigMap", **config}, NAMESPACE)
        image = f"kueue:v{self._folder.name}"
        template = {"metadata": {}, "spec": {"containers": [{"name": "manager", "image": image}]}}
        self._api.create(workload("Deployment", MANAGER, template, replicas=0), NAMESPACE)
        here = {
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._probe}"},
            "metrics": {"bindAddress": f"127.0.0.1:{self._metrics}"},
            "webhook": {"host": self._address, "port": self._port, "certDir": str(self._tls)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {
                "enable": True,
                "webhookServiceName": _SERVICE,
                "webhookSecretName": _SECRET,
            },
            "integrations": {"frameworks": ["batch/job", "pod", "deployment", "statefulset"]},
            # Its server writes its certificate into a folder of the image.
            "featureGates": {"VisibilityOnDemand": False, **settings.get("featureGates", {})},
        }
        self._settings.write_text(yaml.safe_dump({**settings, **here}))
        self._process.start()
        self._process.wait_ready(self._ready, timeout=90)

    def _ready(self) -> bool:
        for name, value in (self._api.get("Secret", _SECRET, NAMESPACE).get("data") or {}).items():
            (self._tls / name).write_bytes(base64.b64decode(value))
        try:
            return httpx.get(f"http://127.0.0.1:{self._probe}/readyz", trust_env=False, timeout=2).is_success
        except httpx.HTTPError:
            return False

    def stop(self) -> None:
        """Stop the process; its objects stay."""
        self._process.stop()


def add_queue(api: Api, namespace: str, **quota: int) -> None:
    """A LocalQueue `QUEUE` of a namespace with a ClusterQueue of its own: so much of each resource."""
    made: list[tuple[str, str, Object]] = [
        ("ResourceFlavor", "", {}),
        ("ClusterQueue", "", {"namespaceSelector": {}, "resourceGroups": [_quotas(namespace, quota)]}),
        ("LocalQueue", namespace, {"clusterQueue": namespace}),
    ]
    for kind, place, spec in made:
        meta = {"name": QUEUE if place else namespace}
        api.create({"apiVersion": f"{_GROUP}/v1beta2", "kind": kind, "metadata": meta, "spec": spec}, place)


def _quotas(flavor: str, quota: Mapping[str, int]) -> Object:
    amounts = [{"name": name, "nominalQuota": amount} for name, amount in quota.items()]
    return {"coveredResources": list(quota), "flavors": [{"name": flavor, "resources": amounts}]}


def workload_of(api: Api, namespace: str, owner: str) -> Object:
    """The Workload that Kueue makes of an object with this name."""

    def attempt() -> Object | None:
        owners = {each["name"]: item for item in api.list("Workload", namespace) for each in _owners(item)}
        return owners.get(owner)

    return eventually(f"a Workload of {owner}", attempt)


def _owners(item: Object) -> list[Object]:
    owners: list[Object] = item["metadata"].get("ownerReferences", [])
    return owners


def charged(api: Api, namespace: str, owner: str) -> dict[str, int]:
    """What an admitted Workload is charged for; without resources that it does not use."""

    def attempt() -> Object:
        admission: Object = workload_of(api, namespace, owner).get("status", {}).get("admission", {})
        assert admission, waits_for(api, namespace, owner)
        return admission

    found: dict[str, int] = {}
    for each in eventually(f"{owner} to be admitted", attempt)["podSetAssignments"]:
        for name, amount in each["resourceUsage"].items():
            found[name] = found.get(name, 0) + int(amount)
    return {name: amount for name, amount in found.items() if amount}


def waits_for(api: Api, namespace: str, owner: str) -> str:
    """Why a Workload has no quota, once Kueue says so; empty until then."""
    conditions = workload_of(api, namespace, owner).get("status", {}).get("conditions", [])
    messages = [each["message"] for each in conditions if (each["type"], each["status"]) == ("QuotaReserved", "False")]
    return messages[0] if messages else ""
