"""What the kubelet's Event about a failed preparation means. Pure.

The texts are those of the kubelet, and of the driver (`kubeletplugin/decide.py`, `neuron/allocation.py`).
"""

import re
from collections.abc import Sequence
from typing import Final

from neuron.findings import short
from webhook.explain.explanation import Diagnosis, State

_LONGEST: Final = 600
_CONFIG_CODE: Final = re.compile(r"NEU4[0-9]{2}")
_PREFIX: Final = re.compile(r"failed for ResourceClaim [^:]{1,253}: ")
_RETRIES: Final = "The kubelet tries again by itself, every 60 to 90 s; a deleted pod is tried at once."


def prepare_failure(message: str, node: str, *, publishes: bool) -> Diagnosis:
    """The diagnosis of an Event FailedPrepareDynamicResources.

    Args:
        message: of the Event.
        node: of the pod.
        publishes: whether the driver publishes slices of that node now.
    """
    if "not registered" in message:
        return _unregistered(node, publishes=publishes)
    if "strict decoding error" in message or _CONFIG_CODE.search(message):
        code = next(iter(_CONFIG_CODE.findall(message)), "")
        text = f"The driver refuses a config of its claim{f' ({code})' if code else ''}: {_told(message)}"
        fix = "Correct opaque.parameters of the template, and recreate the pod: its claim keeps the old config."
        return Diagnosis("config-refused", State.STUCK, text, fix)
    if "logicalNeuronCore" in message:
        text = f"The driver refuses its logicalNeuronCore: {_told(message)}"
        fix = (
            "Set the same logicalNeuronCore as the other pods on the device, or request whole devices, and recreate it."
        )
        return Diagnosis("lnc-conflict", State.STUCK, text, fix)
    if "ResourceClaim no longer exists" in message:
        text = f"A device of its claim on node {node} is in use by a pod whose claim was removed: {_told(message)}"
        fix = "End the pod that is named, or delete this one to have it allocated to other devices. " + _RETRIES
        return Diagnosis("device-kept", State.STUCK, text, fix)
    if "has adminAccess, which the driver refuses" in message:
        text = f"The driver refuses adminAccess: {_told(message)}"
        fix = "Only an administrator of the driver can allow it; then delete the pod to have it prepared again."
        return Diagnosis("admin-access-refused", State.STUCK, text, fix)
    if _has(message, ("still prepared for", "driver lost which of its cores", "still restores", "may be in use")):
        text = f"A device of its claim is not free on node {node} yet: {_told(message)}"
        return Diagnosis("device-held", State.WAITS, text, "Check the pod that is named. " + _RETRIES)
    if _has(message, ("has vanished", "no device node")):
        text = f"A device of its claim is gone from node {node}: {_told(message)}"
        fix = "Check the Neuron kernel driver on the node, and delete the pod to have it allocated again."
        return Diagnosis("device-gone", State.STUCK, text, fix)
    if _has(message, ("connection refused", "no such file or directory", "DeadlineExceeded", "Unavailable")):
        text = f"The driver on node {node} does not answer the kubelet."
        fix = "Check the kubelet plugin's pod on the node (its log has the reason). " + _RETRIES
        return Diagnosis("driver-not-running", State.STUCK, text, fix)
    text = f"The driver on node {node} cannot prepare its claim: {_told(message)}"
    return Diagnosis("prepare-failed", State.STUCK, text, "Do what the message says. " + _RETRIES)


def _unregistered(node: str, *, publishes: bool) -> Diagnosis:
    if publishes:
        text = (
            f"The kubelet of node {node} had not registered the driver when the pod came. By now the driver publishes."
        )
        return Diagnosis("driver-registering", State.WAITS, text, _RETRIES)
    text = (
        f"The driver does not run on node {node}: the kubelet has not registered it, and it publishes no devices there."
    )
    fix = (
        f"Check the kubelet plugin's pod on the node (kubectl -n neuron-dra get pods -o wide --field-selector"
        f" spec.nodeName={node})."
    )
    return Diagnosis("driver-not-running", State.STUCK, text, fix)


def _has(message: str, words: Sequence[str]) -> bool:
    return any(word in message for word in words)


def _told(message: str) -> str:
    """The driver's own sentences, without the prefixes of the kubelet."""
    found = _PREFIX.search(message)
    return short(message[found.end() :] if found else message, _LONGEST)
