"""What a replica says about itself, kept in a Lease of its own (`coordination.k8s.io/v1`).

A Lease is what Kubernetes has for "still there, as of": kubelets, kube-apiserver and leader election use it so. The
certificate keeper counts on it (a new CA is served only when every replica that lives has taken it), and
`neuron-dra status` shows it. One Lease per replica means that no two replicas write the same object.
"""

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from webhook.cluster.api import Resource

LEASES: Final = Resource("coordination.k8s.io", "v1", "leases")

LABELS: Final = {"app.kubernetes.io/name": "neuron-dra", "app.kubernetes.io/component": "webhook"}
"""On the Leases of replicas, and what they are found by."""

ANNOTATION_REPLICA: Final = "neuron.aws.com/replica"
"""On a Lease: the replica's `ReplicaStatus`, as JSON."""

RENEW_EVERY: Final = 10.0
"""Seconds."""

DURATION: Final = 40
"""Seconds after which a Lease that was not renewed is a replica that is gone: `spec.leaseDurationSeconds`."""


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one replica says. Fields may be added: readers skip those they do not know.

    Attributes:
        version: of the program.
        mode: what conversion does by default.
        secret: the Secret that it keeps certificates in; empty where somebody else keeps them.
        bundle: hex SHA-256 of the CA bundle it has taken (PEM as in `caBundle`); empty without managed certificates.
        serving: hex SHA-256 of the serving certificate (DER).
        not_after: end of that certificate's validity, RFC 3339.
        ready: whether `/readyz` would pass.
        problems: why not, or what else an operator should know; one sentence each.
        policies: digest of the policy set in force; empty without policies.
        policies_problem: why a newer set was refused.
    """

    version: str = ""
    mode: str = ""
    secret: str = ""
    bundle: str = ""
    serving: str = ""
    not_after: str = ""
    ready: bool = False
    problems: tuple[str, ...] = ()
    policies: str = ""
    policies_problem: str = ""


class Replica(msgspec.Struct, frozen=True):
    """A replica as its Lease shows it.

    Attributes:
        name: of the Lease, and of the pod.
        renewed: when it last said that it is there.
        report: what it said.
    """

    name: str
    renewed: dt.datetime
    report: ReplicaStatus

    def lives(self, now: dt.datetime) -> bool:
        """Whether it said so recently enough. `now` is by the API server's clock or close to it."""
        return now - self.renewed < dt.timedelta(seconds=DURATION)


def lease_body(
    name: str, report: ReplicaStatus, now: dt.datetime, owner: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The Lease of a replica, without its `resourceVersion`.

    Args:
        name: of the Lease: the pod's name.
        report: what the replica says.
        now: an aware time.
        owner: `metav1.OwnerReference` of the pod, so that the Lease goes with it; None outside of a pod.
    """
    metadata: dict[str, Any] = {
        "name": name,
        "labels": dict(LABELS),
        "annotations": {ANNOTATION_REPLICA: msgspec.json.encode(report).decode()},
    }
    if owner is not None:
        metadata["ownerReferences"] = [dict(owner)]
    spec = {"holderIdentity": name, "leaseDurationSeconds": DURATION, "renewTime": micro_time(now)}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def read_lease(item: Mapping[str, Any]) -> Replica | None:
    """The replica that a Lease stands for; None where it is no Lease of a replica."""
    metadata, spec = item["metadata"], item.get("spec") or {}
    text = (metadata.get("annotations") or {}).get(ANNOTATION_REPLICA)
    if text is None or "renewTime" not in spec:
        return None
    try:
        report = msgspec.json.decode(text, type=ReplicaStatus)
        renewed = dt.datetime.fromisoformat(spec["renewTime"])
    except (msgspec.DecodeError, ValueError):
        return None
    return Replica(metadata["name"], renewed, report)


def micro_time(moment: dt.datetime) -> str:
    """A time as `metav1.MicroTime` is written."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
