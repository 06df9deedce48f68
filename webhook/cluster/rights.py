"""What the webhook may do in the cluster, as it has to be granted: `deploy/manifests/rbac.yaml` in code.

A missing permission is always named as the rule that an administrator has to add, in the words of RBAC.
"""

import dataclasses
from typing import Final

from webhook.cluster.api import RESOURCE_GROUP, rule_text


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a ClusterRole.

    Attributes:
        group: API group; empty for the core.
        resources: plural names.
        verbs: what is done with them.
        purpose: what does not work without it.
        needed: whether conversion depends on it.
    """

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    purpose: str = ""
    needed: bool = True

    def __str__(self) -> str:
        return rule_text(self.group, self.resources, self.verbs)


RULES: Final = (
    Rule("", ("namespaces", "resourcequotas", "limitranges"), ("list", "watch"), "knowing what namespaces say"),
    Rule(RESOURCE_GROUP, ("resourceslices", "deviceclasses"), ("list", "watch"), "knowing instance types and classes"),
    Rule(
        RESOURCE_GROUP,
        ("resourceclaimtemplates",),
        ("get", "list", "watch", "create"),
        "making the templates of converted pods",
    ),
    Rule(RESOURCE_GROUP, ("resourceclaims",), ("get",), "telling pods that their claim does not exist", needed=False),
    Rule("events.k8s.io", ("events",), ("create", "patch"), "Events about refused conversions", needed=False),
)
"""The ClusterRole of the webhook."""
