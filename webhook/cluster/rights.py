"""What the webhook may do in the cluster, as it has to be granted: `deploy/manifests/rbac.yaml` in code.

A missing permission is always named as the rule that an administrator has to add, in the words of RBAC.
"""

import dataclasses
from typing import Final

from neuron import names
from webhook.cluster.api import RESOURCE_GROUP, rule_text

SECRET: Final = "neuron-dra-tls"  # noqa: S105 - its name
"""The Secret with CA and serving certificate, as it is called in what is shipped."""

_CERTIFICATES: Final = "keeping certificates"


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """One rule of the webhook's ClusterRole, or of its Role.

    Attributes:
        group: API group; empty for the core.
        resources: plural names.
        verbs: what is done with them.
        purpose: what does not work without it.
        needed: whether conversion depends on it.
        names: `resourceNames`, where the rule is about these alone.
        own: whether it is of the Role in the webhook's own namespace.
    """

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    purpose: str = ""
    needed: bool = True
    names: tuple[str, ...] = ()
    own: bool = False

    def __str__(self) -> str:
        return rule_text(self.group, self.resources, self.verbs, self.names)


RULES: Final = (
    Rule("", ("namespaces", "resourcequotas", "limitranges"), ("list", "watch"), "knowing what namespaces say"),
    Rule(RESOURCE_GROUP, ("resourceslices", "deviceclasses"), ("list", "watch"), "knowing instance types and classes"),
    Rule(
        RESOURCE_GROUP,
        ("resourceclaimtemplates",),
        ("get", "list", "watch", "create", "patch"),
        "making the templates of converted pods",
    ),
    Rule(RESOURCE_GROUP, ("resourceclaims",), ("get",), "telling pods that their claim does not exist", needed=False),
    Rule("events.k8s.io", ("events",), ("create", "patch"), "Events about refused conversions", needed=False),
    Rule(
        "admissionregistration.k8s.io",
        ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"),
        ("list", "watch", "patch"),
        "keeping caBundle",
        names=(names.MANAGER,),
    ),
    Rule("", ("secrets",), ("get", "list", "watch", "patch"), _CERTIFICATES, names=(SECRET,), own=True),
    Rule("", ("secrets",), ("create",), _CERTIFICATES, own=True),
    Rule(
        "coordination.k8s.io",
        ("leases",),
        ("list", "watch", "create", "patch", "delete"),
        "telling replicas from each other",
        own=True,
    ),
)
"""What is shipped: the ClusterRole, and the Role for certificates that the webhook keeps itself (`--tls-secret`)."""
