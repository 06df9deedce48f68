"""Pods and clusters for tests of `neuron-dra explain`."""

from collections.abc import Mapping, Sequence
from typing import Any

import jsonpatch
import yaml

from cluster.resources import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from commands.explain.admission_preview import Chosen
from commands.explain.explaining import Explainer
from commands.explain.explanation import Explanation
from commands.explain.reads import Installation, Live, StoredPod, live_manifest
from commands.objects.file_policies import FilePolicies
from commands.objects.manifest_files import ManifestSource
from commands.objects.manifests import Manifest, manifests
from conversion.asks.conversion_context import ConversionOptions
from neuron import names
from tests.support import converting
from tests.support.emulated import EmulatedCluster

Object = dict[str, Any]

WELL = Installation(called=True)


def legacy_pod(
    limits: Mapping[str, str] | None = None, *, name: str = "train", namespace: str = "", **spec: Any
) -> Object:
    """A pod that requests legacy resources; four devices by default."""
    metadata: Object = {"name": name, **({"namespace": namespace} if namespace else {})}
    resources = {"limits": dict(limits if limits is not None else {names.RESOURCE_NEURON: "4"})}
    container = {"name": "main", "image": "x", "resources": resources}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def source(*objects: Mapping[str, Any], name: str = "pod.yaml") -> ManifestSource:
    """A file with these objects."""
    text = "---\n".join(yaml.safe_dump(dict(each), sort_keys=False) for each in objects)
    return converting.source(name, text)


def live(
    cluster: EmulatedCluster,
    objects: Sequence[Manifest] = (),
    *,
    installation: Installation = WELL,
    version: str = "v1.36.3",
    listed: Sequence[tuple[str, str]] = (("ResourceClaimTemplate", "team-a"),),
) -> Live:
    """The cluster as explanations read it."""
    found = cluster.snapshot()
    own = [live_manifest(each, RESOURCE_CLAIMS, "ResourceClaim") for each in cluster.claims]
    return Live(found, (*own, *objects), frozenset(listed), installation, {}, version, ())


def template_manifest(name: str, spec: Mapping[str, Any], namespace: str = "team-a") -> Manifest:
    """A ResourceClaimTemplate of the cluster."""
    item = {"metadata": {"name": name, "namespace": namespace}, "spec": {"spec": spec}}
    return live_manifest(item, RESOURCE_CLAIM_TEMPLATES, "ResourceClaimTemplate")


def explained(
    *objects: Mapping[str, Any],
    cluster: Live | None = None,
    options: ConversionOptions = ConversionOptions(),
    policies: FilePolicies | None = None,
    namespace: str = "team-a",
    default: str = "the default",
) -> list[Explanation]:
    """Explanations of the pods in a file with these objects."""
    chosen = Chosen(options, default, policies)
    file = source(*objects)
    facts = [each for document in file.documents for each in manifests(document, namespace)]
    return list(Explainer(chosen, [file], facts, cluster, namespace).files())


def explained_pod(
    found: Mapping[str, Any],
    cluster: Live,
    events: Sequence[Mapping[str, Any]] = (),
    options: ConversionOptions = ConversionOptions(),
) -> Explanation:
    """The explanation of a pod of the cluster."""
    return Explainer(Chosen(options, "the default"), (), (), cluster, "team-a").pod(StoredPod(found, tuple(events)))


def converted_pod(families: tuple[str, ...] = (), **spec: Any) -> tuple[Object, Manifest]:
    """A pod for four devices as admission leaves it, and the template that it needs."""
    options = ConversionOptions(families=families)
    sent = legacy_pod(namespace="team-a", **spec)
    [explanation] = explained(sent, options=options)
    made = explanation.preview.decision.templates[0]
    found = jsonpatch.apply_patch(sent, list(explanation.preview.decision.patch))
    found["metadata"] |= {"uid": "uid"}
    found["status"] = {"phase": "Pending"}
    return found, template_manifest(made.name, made.spec["spec"])


def event(reason: str, message: str, *, seen: str = "2026-11-22T09:00:00Z", kind: str = "Warning") -> Object:
    """An Event of the pod."""
    metadata = {"name": "train.18a3f"}
    told = {"reason": reason, "message": message, "lastTimestamp": seen, "type": kind}
    return {**told, "metadata": metadata, "reportingComponent": "kubelet"}
