"""Claims of a pod for our devices. All but the one of its conversion are the user's own. Pure."""

from collections.abc import Sequence

from webhook.decisions import pods
from webhook.decisions.ports import ClusterView
from webhook.decisions.wire import ABSENT


def claims_from_templates(pod: pods.Pod) -> tuple[tuple[str, str], ...]:
    """Claims in `spec.resourceClaims` that come from templates: names of the claims and of the templates."""
    if pod.spec.resourceClaims is ABSENT or pod.excess() is not None:
        return ()
    return tuple(
        (str(entry.get("name")), template)
        for entry in pod.decode_claims() or ()
        if (template := entry.get("resourceClaimTemplateName"))
    )


def requesting(
    named: Sequence[tuple[str, str]], namespace: str, cluster: ClusterView, device_class: str
) -> tuple[str, ...]:
    """Names of the claims that request a DeviceClass, as far as templates are known.

    Args:
        named: what `claims_from_templates` found.
        namespace: the pod's.
        cluster: what is known of templates.
        device_class: name of the DeviceClass.
    """
    return tuple(
        claim for claim, template in named if device_class in cluster.template_device_classes(namespace, template)
    )


def find_claims(pod: pods.Pod, namespace: str, cluster: ClusterView, device_class: str) -> tuple[str, ...]:
    """Names of a pod's claims that request a DeviceClass, as far as templates are known."""
    return requesting(claims_from_templates(pod), namespace, cluster, device_class)
