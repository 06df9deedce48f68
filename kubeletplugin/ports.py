"""What the driver's parts share: errors, Kubernetes objects as JSON, and how long they wait for what."""

import dataclasses
import datetime as dt
from typing import Any, Final

JsonObject = dict[str, Any]
"""A Kubernetes object as decoded JSON."""


class UsageUnknownError(Exception):
    """It is not known whether a device is in use; the message has the reason."""


class NoProcessesError(UsageUnknownError):
    """The driver was not given the host's processes: it will never know."""


def version_of(body: JsonObject) -> int:
    """The object's resourceVersion; 0 if it has none.

    Comparable for objects of one kind: specified since Kubernetes 1.35 (KEP-5504), true also before.
    """
    text = body["metadata"].get("resourceVersion", "")
    return int(text) if text.isdecimal() else 0


def timestamp(now: float) -> str:
    """Seconds since the epoch as `metav1.Time`."""
    return dt.datetime.fromtimestamp(now, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclasses.dataclass(frozen=True, slots=True)
class Waits:
    """How long the driver waits for what, in seconds; requests to the API server are in `runtime.retries`."""

    # --- The calls of the kubelet, which end after 45 s (KEP-4381).
    call: float = 40.0  # retries within one call: an answer has the reason, a call that ends has none
    answer: float = 3.0  # what is left of the kubelet's time-out when the retries end
    held: float = 15.0  # for devices of another claim; the pod's event, which names that claim, comes after them
    unprepare: float = 5.0  # for a look at the processes; after that the device stays held
    health_resent: float = 10.0  # the kubelet sets a device's health to unknown if no update arrives in time
    health_lost: int = 30  # until it does so

    # --- The state that two instances of the driver share, and the node.
    state_lock: float = 10.0
    sysfs: float = 5.0  # for the UltraServer files, which claims for several nodes need
    scan: float = 10.0  # for the processes of the node
    scan_and_queue: float = 15.0  # for a scan and the one before it
    kubelet_answer: float = 5.0  # of the PodResources API
    probe: float = 3.0  # for a call of an own socket
    sweep_retry: float = 10.0  # until a failed sweep is repeated
    sweep_look: float = 10.0  # between two looks at the CDI specs, and at claims that were refused
    look: float = 15.0  # between two looks at the containers of claims, and at the use of devices
    files: float = 600.0  # until the node's files are checked again, if the hardware did not change

    # --- Registration, and who publishes.
    sockets_look: float = 2.0  # between two looks at the own sockets
    first_renewal: float = 5.0  # until a registration socket that the kubelet does not use is made again
    last_renewal: float = 60.0
    recent: float = 10.0  # a restarted kubelet registers the plugin and deletes its slices in any order, so far apart
    other_look: float = 5.0  # between two looks at the sockets of another driver
    other_stays: float = 300.0  # how long slices without a socket stay that came back after their deletion
    publish_lock: float = 1.0  # between two looks whether another instance has ended
    restored: float = 10.0  # for the devices that are held, before the first slices

    # --- The end.
    withdrawn: float = 5.0  # for the deletion of the slices
    placed: float = 1.0  # for pods that the scheduler places here before it sees that the slices are withdrawn
    deregistered: float = 1.5  # the kubelet looks once a second for registration sockets that have gone
    grace: float = 5.0  # for the last calls

    # --- Writes and watches.
    spread: float = 5.0  # a server that ends cuts the watches of all nodes at once: they come back within this time
    quiet: float = 60.0  # without a change: then a task looks again, and a write is not a repetition of the last one
    watch: float = 200.0  # the shortest watch, jitter adds up to the same: after it the features are asked for again
    refused: float = 600.0  # for a claim whose status the API server refused: only an admin can change that


WAITS: Final = Waits()
