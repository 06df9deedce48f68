"""Reads what a rehearsal needs: from a cluster, page by page, or from files."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
import orjson

from cluster.resources import POD_DISRUPTION_BUDGETS
from cluster.store import DEVICE_CLASS
from commands.cluster.reader import ClusterReader, Progress, Unseen, items, whole
from commands.devices.cluster_devices import ClusterDevices
from commands.devices.snapshot import gather, stored
from commands.explain.cluster_view import store_of
from commands.objects.manifest_files import ReadProblem
from commands.rehearse.budgets import POD_DISRUPTION_BUDGET
from commands.rehearse.gather import Gathering, GatheringSettings
from commands.report.cluster_inputs import ClusterInputs, read_surroundings
from commands.report.file_inputs import FileInputs
from commands.report.inventory import Found
from commands.status import kueue
from conversion.objects.pods import may_concern_us, mentions
from neuron.hardware.instances import Catalogue
from runtime.api_server import RESOURCE_GROUP, TimedApiServer

if TYPE_CHECKING:
    import datetime as dt

NODE = ("", "Node")
_DEVICE_KINDS = (NODE, (RESOURCE_GROUP, "ResourceSlice"), (RESOURCE_GROUP, "DeviceTaintRule"))


class CannotPlayError(Exception):
    """Nothing can be played: nodes or slices are not readable. The message has the reason and the fix."""


class _Metadata(msgspec.Struct, omit_defaults=True):
    namespace: msgspec.Raw = msgspec.Raw()
    name: msgspec.Raw = msgspec.Raw()


class _Container(msgspec.Struct, omit_defaults=True):
    resources: msgspec.Raw = msgspec.Raw()
    restartPolicy: msgspec.Raw = msgspec.Raw()  # noqa: N815 - the wire's spelling


class _Spec(msgspec.Struct, omit_defaults=True):
    nodeName: msgspec.Raw = msgspec.Raw()  # noqa: N815
    containers: list[_Container] = []
    initContainers: list[_Container] = []  # noqa: N815
    resources: msgspec.Raw = msgspec.Raw()
    overhead: msgspec.Raw = msgspec.Raw()


class _OtherPodStatus(msgspec.Struct, omit_defaults=True):
    phase: msgspec.Raw = msgspec.Raw()


class _OtherPod(msgspec.Struct, omit_defaults=True):
    """What counts of a pod without Neuron devices."""

    metadata: _Metadata
    spec: _Spec
    status: _OtherPodStatus


_decode_other: Final = msgspec.json.Decoder(_OtherPod).decode


def reduced(kind: str, raw: bytes) -> bytes:
    """JSON of an object; of a pod without Neuron devices and claims only what counts: a cluster has many of them."""
    if kind != "Pod" or may_concern_us(raw) or mentions(raw, b"esourceClaim"):
        return raw
    try:
        return msgspec.json.encode(_decode_other(raw))
    except msgspec.DecodeError:
        return raw


def from_files(
    inputs: FileInputs,
    settings: GatheringSettings,
    kubernetes: str,
    now: "dt.datetime",
    step: Callable[[], None],
) -> tuple[Gathering, list[str]]:
    """The cluster of files, and what could not be read of them.

    Args:
        inputs: of `commands.report.file_inputs.read_files`.
        kubernetes: version of the API server; empty: that of the newest kubelet.
        step: is called after each object.
    """
    devices: list[Found] = []
    others: list[Found] = []
    for found in inputs.found:
        (devices if (found.group, found.kind) in _DEVICE_KINDS else others).append(found)
    read = [{**orjson.loads(each.raw), "kind": each.kind} for each in devices]
    read += [each.data for each in inputs.facts if each.group == RESOURCE_GROUP]
    seen = gather(read, "files", now)
    version = kubernetes or max((node.kubelet for node in items(seen.nodes)), key=_numbers, default="")
    cluster = ClusterDevices(seen, version, settings.policies.catalogue if settings.policies else Catalogue())
    # Files need not have all DeviceClasses: those that they have are among the facts.
    known = {kind: each for kind, each in stored(seen).items() if kind is not DEVICE_CLASS}
    store = store_of(inputs.facts, known, kubernetes=version)
    gathered = Gathering(settings, store, cluster)
    for found in sorted(
        others, key=lambda each: (each.kind == "Pod", (each.group, each.kind) != POD_DISRUPTION_BUDGET)
    ):
        gathered.take(found)
        step()
    return gathered, [*map(str, inputs.faults), *cluster.map.problems]


def _numbers(version: str) -> tuple[int, ...]:
    """`v1.36.2-eks-1` as numbers."""
    parts = version.removeprefix("v").partition("-")[0].split(".")
    return tuple(int(each) for each in parts if each.isdecimal())


async def from_cluster(
    server: TimedApiServer, address: str, settings: GatheringSettings, progress: Progress
) -> tuple[Gathering, list[str]]:
    """A cluster, and what could not be read of it.

    Raises:
        CannotPlayError: nodes or slices cannot be read.
        ApiServerError: the cluster does not answer.
        ClusterUnavailableError: a kind without which nothing can be said cannot be listed.
    """
    reader = ClusterReader(server, progress=progress)
    catalogue = settings.policies.catalogue if settings.policies else Catalogue()
    around = await read_surroundings(reader, address, catalogue)
    if around.devices is None:
        raise CannotPlayError(" ".join(map(str, around.unseen)))
    problems = list(around.problems)
    settings = settings.counting(kueue.counted_classes(around.queues))
    gathered = Gathering(settings, around.store, around.devices)
    group, kind = POD_DISRUPTION_BUDGET
    budgets = await reader.list(POD_DISRUPTION_BUDGETS, keep=whole)
    if isinstance(budgets, Unseen):
        problems.append(f"{budgets} Drains are played as if there were no PodDisruptionBudgets.")
    for each in items(budgets):
        gathered.take(Found(group, "v1", kind, orjson.dumps(each)))

    def problem(found: ReadProblem) -> None:
        problems.append(f"{found}.")

    await ClusterInputs(reader, "").read_workloads(gathered.take, problem)
    return gathered, problems
