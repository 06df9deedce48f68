"""Events about the driver's own Node."""

import secrets
from typing import Final

from kubeletplugin.discover.node_facts import NodeFacts
from kubeletplugin.discover.node_object import EVENT_NAMESPACE
from kubeletplugin.objects import timestamp
from kubeletplugin.ports import JsonObject

COMPONENT: Final = "neuron-dra-kubelet-plugin"
LONGEST_MESSAGE: Final = 1024
"""Characters that the API server accepts."""

_LONGEST_NAME: Final = 253


def node_event(facts: NodeFacts, reason: str, message: str, now: float, *, warning: bool) -> JsonObject:
    """An Event about the Node; `now` is in seconds since the epoch."""
    time = timestamp(now)
    name = facts.name
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name[: _LONGEST_NAME - 17]}.{secrets.token_hex(8)}", "namespace": EVENT_NAMESPACE},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": name, "uid": facts.uid},
        "reason": reason,
        "message": message[:LONGEST_MESSAGE],
        "type": "Warning" if warning else "Normal",
        "source": {"component": COMPONENT, "host": name},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }
