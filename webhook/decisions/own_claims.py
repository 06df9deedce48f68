"""Claims that a pod's author wrote: they ask for devices beside those that conversion asks for. Pure."""

from collections.abc import Sequence

from webhook.decisions import pods
from webhook.decisions.records import find_conversion
from webhook.edge.wire import ABSENT
from webhook.ports import ClusterView


def own_templates(pod: pods.Pod) -> tuple[tuple[str, str], ...]:
    """The user's own claims in `spec.resourceClaims` that come from templates: names of the claims and templates."""
    if pod.spec.resourceClaims is ABSENT or pod.excess() is not None:
        return ()
    conversion = find_conversion(pod)
    ours = conversion.index if conversion else None
    return tuple(
        (str(entry.get("name")), template)
        for index, entry in enumerate(pod.decode_claims() or ())
        if index != ours and (template := entry.get("resourceClaimTemplateName"))
    )


def requesting(
    named: Sequence[tuple[str, str]], namespace: str, cluster: ClusterView, device_class: str
) -> tuple[str, ...]:
    """Names of the claims that request a DeviceClass, as far as templates are known.

    Args:
        named: what `own_templates` found.
        namespace: the pod's.
        cluster: what is known of templates.
        device_class: name of the DeviceClass.
    """
    return tuple(
        claim for claim, template in named if device_class in cluster.template_device_classes(namespace, template)
    )


def find_own_claims(pod: pods.Pod, namespace: str, cluster: ClusterView, device_class: str) -> tuple[str, ...]:
    """The user's own claims that request a DeviceClass, as far as templates are known."""
    return requesting(own_templates(pod), namespace, cluster, device_class)
