"""The status of a replica, stored in one Lease per replica (`coordination.k8s.io/v1`).

kubelets, kube-apiserver and leader election also use Leases as heartbeats. The certificate keeper relies on them (a new
CA is served only when every living replica trusts it), and `neuron-dra status` shows them. With one Lease per replica,
no two replicas write the same object.
"""

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

import msgspec

LABELS: Final = {"app.kubernetes.io/name": "neuron-dra", "app.kubernetes.io/component": "webhook"}
"""Labels of the webhook's Deployment, and of the Leases of its replicas."""
SELECTOR: Final = ",".join(f"{key}={value}" for key, value in LABELS.items())


def is_labelled(item: Mapping[str, Any]) -> bool:
    """Whether an object has the labels of the webhook. Anybody can set them."""
    return LABELS.items() <= (item["metadata"].get("labels") or {}).items()


ANNOTATION_REPLICA: Final = "neuron.aws.com/replica"
"""Annotation of a Lease: the replica's `ReplicaStatus` as JSON."""

RENEW_EVERY: Final = 10.0
"""Seconds."""

DURATION: Final = 40
"""`spec.leaseDurationSeconds`. A replica whose Lease was not renewed for so long counts as gone."""


LONGEST_CONDITION: Final = 1024
"""Characters of `UnsentStatus.condition`; more than the shipped policies have."""


class UnsentStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Requests that a policy denies and that the shipped webhook configuration does not send.

    Attributes:
        resource: plural name, with the subresource.
        operation: CREATE, UPDATE, DELETE or CONNECT.
        condition: CEL that is true for the objects, cut to `LONGEST_CONDITION`; empty: all.
    """

    policy: str
    group: str = ""
    resource: str
    operation: str
    condition: str = ""


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The status of one replica. Fields may be added: readers ignore unknown fields.

    Attributes:
        version: of the program.
        mode: default mode of conversion.
        secret: the Secret in which it keeps certificates; empty if another component manages them.
        bundle: hex SHA-256 of the CA bundle that it uses (PEM as in `caBundle`); empty without managed certificates.
        serving: hex SHA-256 of the serving certificate (DER).
        not_after: end of that certificate's validity, RFC 3339.
        ready: whether `/readyz` passes.
        problems: why it is not ready, or other problems; one sentence each.
        policies: digest of the active policy set; empty without policies.
        policies_problem: why a newer set was refused.
        policies_since: when the older set was loaded that is in force, RFC 3339; empty: the set of the folder is.
        unsent: what policies with Deny see only if the webhook configuration was changed for them.
        templates: of ClaimTemplate policies, as `NAME=VERSION`.
        types: instance types that it knows of nodes without a pool, with the values of these Nodes' labels.
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
    policies_since: str = ""
    unsent: tuple[UnsentStatus, ...] = ()
    templates: tuple[str, ...] = ()
    types: dict[str, tuple[str, ...]] = {}


class Replica(msgspec.Struct, frozen=True):
    """A replica, as read from its Lease.

    Attributes:
        name: of the Lease, and of the pod.
        renewed: time of the last renewal.
    """

    name: str
    renewed: dt.datetime
    report: ReplicaStatus

    def lives(self, now: dt.datetime) -> bool:
        """Whether the Lease has not expired. `now` is the time of the API server's clock."""
        return now - self.renewed < dt.timedelta(seconds=DURATION)


def lease_body(
    name: str, report: ReplicaStatus, now: dt.datetime, owner: Mapping[str, str] | None = None
) -> dict[str, object]:
    """The Lease of a replica, without its `resourceVersion`.

    Args:
        name: of the Lease: the pod's name.
        now: an aware time.
        owner: `metav1.OwnerReference` of the pod, so that the Lease is deleted with it; None outside of a pod.
    """
    metadata: dict[str, object] = {
        "name": name,
        "labels": dict(LABELS),
        "annotations": {ANNOTATION_REPLICA: msgspec.json.encode(report).decode()},
    }
    if owner is not None:
        metadata["ownerReferences"] = [dict(owner)]
    spec = {"holderIdentity": name, "leaseDurationSeconds": DURATION, "renewTime": micro_time(now)}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def read_lease(item: Mapping[str, Any]) -> Replica | None:
    """The replica of a Lease; None if it is not the Lease of a replica."""
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
    """A time in the format of `metav1.MicroTime`."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
