"""Finds the claims of a pod that request Neuron devices: the user's own and that of its conversion. Pure."""

from collections.abc import Sequence

from webhook.decisions import pods
from webhook.decisions.ports import ClusterView
from webhook.decisions.wire import ABSENT


def claims_from_templates(pod: pods.Pod) -> tuple[tuple[str, str], ...]:
    """Claims in `spec.resourceClaims` that use a template: names of claim and template."""
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
    """Names of the claims whose template requests a DeviceClass. Unknown templates are ignored.

    Args:
        named: result of `claims_from_templates`.
        namespace: the pod's.
        cluster: the caches.
        device_class: name of the DeviceClass.
    """
    if not named:
        return ()
    return tuple(
        claim for claim, template in named if device_class in cluster.template_device_classes(namespace, template)
    )


def find_claims(pod: pods.Pod, namespace: str, cluster: ClusterView, device_class: str) -> tuple[str, ...]:
    """Names of a pod's claims whose template requests a DeviceClass. Unknown templates are ignored."""
    return requesting(claims_from_templates(pod), namespace, cluster, device_class)
