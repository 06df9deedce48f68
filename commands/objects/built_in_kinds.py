"""Finds kinds that no API server has: `Deploymnet` or `pod` of a group of Kubernetes. Pure.

kubectl refuses such an object ("no matches for kind"). No other program can add kinds to a group without a dot. A kind
that resembles none of the group is not judged: a newer Kubernetes may have it, or the file is for another program.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from neuron.findings import Finding, quoted, short

_CORE: Final = (
    "Binding ComponentStatus ConfigMap Endpoints Event LimitRange List Namespace Node PersistentVolume"
    " PersistentVolumeClaim Pod PodStatusResult PodTemplate RangeAllocation ReplicationController ResourceQuota Secret"
    " SerializedReference Service ServiceAccount Status"
    # Of kubectl's configuration, and of OpenShift.
    " Config Template"
)
KINDS_OF_GROUPS: Final[Mapping[str, frozenset[str]]] = {
    group: frozenset(kinds.split())
    for group, kinds in {
        "": _CORE,
        "apps": "ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet",
        "batch": "CronJob Job",
        "autoscaling": "HorizontalPodAutoscaler Scale",
        "policy": "Eviction PodDisruptionBudget PodSecurityPolicy",
        "networking.k8s.io": "IPAddress Ingress IngressClass NetworkPolicy ServiceCIDR",
        "rbac.authorization.k8s.io": "ClusterRole ClusterRoleBinding Role RoleBinding",
        "resource.k8s.io": (
            "DeviceClass DeviceTaintRule PodSchedulingContext ResourceClaim ResourceClaimParameters"
            " ResourceClaimTemplate ResourceClass ResourceClassParameters ResourcePoolStatusRequest ResourceSlice"
        ),
    }.items()
}
"""Kinds by API group, in all versions."""

_VERSIONS: Final = {
    "": "v1",
    "apps": "apps/v1",
    "batch": "batch/v1",
    "policy": "policy/v1",
    "autoscaling": "autoscaling/v2",
}
_ELSEWHERE: Final = {
    **{kind: _VERSIONS.get(group, f"{group}/v1") for group, kinds in KINDS_OF_GROUPS.items() for kind in kinds},
    "VerticalPodAutoscaler": "autoscaling.k8s.io/v1",
}
"""Kind -> its API version."""
_SIMILARITY: Final = 0.8


def missing_kind(api_version: str, kind: str) -> Iterator[Finding]:
    """NEU718 if no API server has the kind, and a kind is known that is probably meant."""
    group = api_version.rpartition("/")[0]
    kinds = KINDS_OF_GROUPS.get(group)
    if not kind or len(kind) > 64 or (not group and api_version != "v1"):
        return
    if kinds is None:
        meant = _close(group, [each for each in KINDS_OF_GROUPS if each]) if "." not in group else ""
        if meant and kind in KINDS_OF_GROUPS[meant]:
            message = f"no API server has the group {quoted(group)}. Did you mean apiVersion: {_ELSEWHERE[kind]}?"
            yield Finding("NEU718", "apiVersion", message, "kubectl refuses the object: correct it.", group)
        return
    if kind in kinds or kind.removesuffix("List") in kinds:
        return
    elsewhere = _ELSEWHERE.get(kind, "")
    meant = "" if elsewhere else _close(kind, kinds) or _close(kind, _ELSEWHERE)
    if not elsewhere and not meant:
        return
    here = _ELSEWHERE.get(meant, "")
    wanted = f"apiVersion: {elsewhere}" if elsewhere else f"kind: {meant}"
    if meant and meant not in kinds:
        wanted += f" of apiVersion: {here}"
    message = f"no API server has a kind {quoted(kind)} in {short(api_version)}. Did you mean {wanted}?"
    path = "apiVersion" if elsewhere else "kind"
    yield Finding("NEU718", path, message, "kubectl refuses the object: correct it.", kind)


def _close(word: str, known: Iterable[str]) -> str:
    """The known word that a word probably means; capitals do not count."""
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=_SIMILARITY)
    return by_lower[found[0]] if found else ""
