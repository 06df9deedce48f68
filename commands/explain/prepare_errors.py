"""What an Event about a failed preparation means. Pure.

The texts are those of the kubelet, and of the driver (`kubeletplugin/prepare/decide.py`, `neuron/api/allocation.py`). A
user with the right to create Events in the namespace can write them too. So the message only selects one of the cases
below; no part of it is repeated, except a code of `neuron.codes.CODES`, which is explained there.
"""

from collections.abc import Sequence
from typing import Final

from commands.explain.explanation import Diagnosis, PodState
from neuron.codes import CODES
from neuron.findings import known_codes

_CONFIGS: Final = "NEU4"
_RETRIES: Final = "The kubelet tries again by itself, every 60 to 90 s; a deleted pod is tried at once."
_LOG: Final = "The log of the kubelet plugin's pod on the node has the reason. "


def prepare_failure(message: str, node: str, *, publishes: bool) -> Diagnosis:
    """The diagnosis of an Event FailedPrepareDynamicResources.

    Args:
        publishes: whether the driver publishes slices of that node now.
    """
    if "not registered" in message:
        return _unregistered(node, publishes=publishes)
    codes = known_codes(message)
    config = next((code for code in codes if code.startswith(_CONFIGS)), "")
    if config or "strict decoding error" in message:
        what = f" ({config}: {CODES[config].title})" if config else ""
        text = f"An Event reports that the driver refuses a config of its claim{what}."
        fix = "Correct opaque.parameters of the template, and recreate the pod: its claim keeps the old config."
        return Diagnosis("config-refused", PodState.STUCK, text, fix)
    if "logicalNeuronCore" in message:
        text = "An Event reports that the driver refuses its logicalNeuronCore."
        fix = (
            "Set the same logicalNeuronCore as the other pods on the device, or request whole devices, and recreate it."
        )
        return Diagnosis("lnc-conflict", PodState.STUCK, text, fix)
    if "ResourceClaim no longer exists" in message:
        text = f"An Event reports that a pod whose claim was removed uses a device of its claim on node {node}."
        fix = (
            "End that pod (an Event of the driver on the Node names it), or delete this one to have it allocated to"
            f" other devices. {_RETRIES}"
        )
        return Diagnosis("device-kept", PodState.STUCK, text, fix)
    if "has adminAccess, which the driver refuses" in message:
        text = "An Event reports that the driver refuses adminAccess in its namespace."
        fix = "Only an administrator of the driver can allow it; then delete the pod to have it prepared again."
        return Diagnosis("admin-access-refused", PodState.STUCK, text, fix)
    if _has(message, ("still prepared for", "driver lost which of its cores", "still restores", "may be in use")):
        text = f"An Event reports that a device of its claim is not free on node {node} yet."
        fix = f"`neuron-dra map {node}` shows which claims hold its devices. {_RETRIES}"
        return Diagnosis("device-held", PodState.WAITS, text, fix)
    if _has(message, ("has vanished", "no device node")):
        text = f"An Event reports that a device of its claim is gone from node {node}."
        fix = "Check the Neuron kernel driver on the node, and delete the pod to have it allocated again."
        return Diagnosis("device-gone", PodState.STUCK, text, fix)
    if _has(message, ("connection refused", "no such file or directory", "DeadlineExceeded", "Unavailable")):
        text = f"An Event reports that the driver on node {node} does not answer the kubelet."
        fix = "Check the kubelet plugin's pod on the node (its log has the reason). " + _RETRIES
        return Diagnosis("driver-not-running", PodState.STUCK, text, fix)
    what = f": {codes[0]}, {CODES[codes[0]].title}" if codes else ""
    text = f"An Event reports that the driver on node {node} cannot prepare its claim{what}."
    return Diagnosis("prepare-failed", PodState.STUCK, text, _LOG + _RETRIES)


def _unregistered(node: str, *, publishes: bool) -> Diagnosis:
    if publishes:
        text = (
            f"The kubelet of node {node} had not registered the driver when the pod came. By now the driver publishes."
        )
        return Diagnosis("driver-registering", PodState.WAITS, text, _RETRIES)
    text = (
        f"The driver does not run on node {node}: the kubelet has not registered it, and it publishes no devices there."
    )
    fix = (
        "Check the kubelet plugin's pod on the node (kubectl get pods -A -o wide -l app.kubernetes.io/component="
        f"kubelet-plugin --field-selector spec.nodeName={node})."
    )
    return Diagnosis("driver-not-running", PodState.STUCK, text, fix)


def _has(message: str, words: Sequence[str]) -> bool:
    return any(word in message for word in words)
