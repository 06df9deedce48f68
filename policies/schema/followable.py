"""Which requests the webhook entry for policies may follow.

Users who may write policy files choose the rules of this entry, which usually has failurePolicy Fail. So only requests
of users are followed. If the control plane, kubelets or authorization depended on the webhook, a policy file could stop
the cluster; a rule for Secrets would send them to the webhook. An admin adds such rules in the chart's
`validation.extraRules`. The chart's ValidatingAdmissionPolicy neuron-dra-configurations refuses other rules.
"""

from collections.abc import Mapping
from typing import Final

_ALL: Final = ("CREATE", "UPDATE", "DELETE", "CONNECT")
_CREATED: Final = ("CREATE", "CONNECT")
"""For kinds whose objects the control plane or kubelets update and delete all the time."""
FOLLOWED: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "": {
        "pods": _CREATED,
        "services": _ALL,
        "namespaces": _ALL,
        "podtemplates": _ALL,
        "replicationcontrollers": _ALL,
        "resourcequotas": _ALL,
        "limitranges": _ALL,
        "persistentvolumes": _CREATED,
        "persistentvolumeclaims": _CREATED,
    },
    "apps": {
        "deployments": _ALL,
        "statefulsets": _ALL,
        "daemonsets": _ALL,
        "replicasets": _CREATED,
    },
    "batch": {"cronjobs": _ALL, "jobs": _CREATED},
    "resource.k8s.io": {
        "resourceclaims": _CREATED,
        "resourceclaimtemplates": _ALL,
        "deviceclasses": _ALL,
    },
}
"""Followed operations, by resource of Kubernetes' own groups. Other resources of these groups are not followed."""
SUBRESOURCES: Final = (
    *("attach", "ephemeralcontainers", "eviction", "exec", "portforward", "proxy", "resize", "scale"),
)
"""Subresources that users request; of a resource that is followed, or of a group that is not Kubernetes' own."""
GROUPS: Final = (
    *("", "apps", "batch", "resource.k8s.io", "jobset.x-k8s.io", "leaderworkerset.x-k8s.io", "kubeflow.org"),
    *("trainer.kubeflow.org", "ray.io", "batch.volcano.sh", "argoproj.io", "sagemaker.amazonaws.com"),
)
"""The groups that are followed by default; the chart's `validation.followGroups`."""
CORE: Final = "core"
"""Name of the group "" in settings."""


def is_of_kubernetes(group: str) -> bool:
    """Whether an API group is Kubernetes' own: without a dot, or below k8s.io."""
    return "." not in group or group.endswith(".k8s.io")
