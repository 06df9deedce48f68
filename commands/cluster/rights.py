"""The RBAC rules that the webhook needs; the same as in `deploy/manifests/rbac.yaml`.

Messages about a missing permission print the RBAC rule that an administrator has to add.
"""

import dataclasses
from typing import Final

from cluster.kinds.rendered_entries import CONFIG_MAP
from neuron import names
from runtime.api_server import RESOURCE_GROUP, rule_text

SECRET: Final = "neuron-dra-tls"  # noqa: S105 - its name
"""Name of the Secret with CA and serving certificate in the shipped manifests."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """One rule of the webhook's ClusterRole, or of its Role.

    Attributes:
        group: API group; empty for the core.
        resources: plural names.
        purpose: what does not work without it.
        needed: whether conversion depends on it.
        names: `resourceNames`; empty: no restriction.
        own: whether it belongs to the Role in the webhook's namespace.
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
    Rule(
        "",
        ("namespaces", "resourcequotas", "limitranges"),
        ("list", "watch"),
        "reading annotations and quotas of namespaces",
    ),
    Rule(
        "autoscaling.k8s.io",
        ("verticalpodautoscalers",),
        ("list", "watch"),
        "knowing what resizes pods in place",
        needed=False,
    ),
    Rule(
        RESOURCE_GROUP,
        ("resourceslices", "deviceclasses"),
        ("list", "watch"),
        "finding types and classes",
    ),
    Rule("", ("nodes",), ("list", "watch"), "learning instance types from Nodes", needed=False),
    Rule("karpenter.sh", ("nodepools",), ("list", "watch"), "knowing the pools of Karpenter", needed=False),
    Rule("karpenter.k8s.aws", ("ec2nodeclasses",), ("list", "watch"), "knowing the zones of its pools", needed=False),
    Rule(
        "cluster.x-k8s.io",
        ("machinedeployments",),
        ("list", "watch"),
        "knowing node groups of Cluster Autoscaler",
        needed=False,
    ),
    Rule(
        RESOURCE_GROUP,
        ("resourceclaimtemplates",),
        ("get", "list", "watch", "create", "patch"),
        "creating the templates of converted pods",
    ),
    Rule(RESOURCE_GROUP, ("resourceclaims",), ("get",), "warning about claims that do not exist", needed=False),
    Rule("events.k8s.io", ("events",), ("create", "patch"), "Events about refused conversions", needed=False),
    Rule(
        "admissionregistration.k8s.io",
        ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"),
        ("list", "watch", "patch"),
        "updating caBundle",
        names=(names.MANAGER,),
    ),
    Rule(
        "admissionregistration.k8s.io",
        ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"),
        ("get",),
        "comparing the webhook configurations with the release",
        needed=False,
        names=(names.MANAGER,),
    ),
    Rule(
        "",
        ("configmaps",),
        ("get",),
        "comparing the webhook configurations with the release",
        needed=False,
        names=(CONFIG_MAP,),
        own=True,
    ),
    Rule(
        "",
        ("secrets",),
        ("get", "list", "watch", "patch", "create"),
        "managing certificates",
        names=(SECRET,),
        own=True,
    ),
    Rule(
        "coordination.k8s.io",
        ("leases",),
        ("list", "watch", "create", "patch", "delete"),
        "coordinating replicas",
        own=True,
    ),
)
"""The shipped rules: of the ClusterRole, and of the Role for certificates in a Secret (`--tls-secret`)."""
