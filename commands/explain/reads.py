"""Reads what explanations need of a cluster.

What cannot be read becomes a note, and the rest is explained.
"""

import asyncio
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from cluster import resources
from cluster.collections import SUPPLIES
from cluster.kinds.replicas import SELECTOR, is_labelled
from cluster.store import POOLS, StoredKind
from commands.cluster.reader import ENDED, ClusterReader, Kind, Object, Seen, Unseen, items, whole
from commands.cluster.snapshot import ClusterSnapshot, Kept, read_kinds, read_snapshot
from commands.explain.explanation import event_order, gates_of
from commands.objects.manifests import Manifest
from conversion.asks.conversion_context import ConversionOptions
from conversion.objects.kinds import KINDS
from conversion.objects.queues import KUEUE_GROUP
from neuron import names
from neuron.api import workloads
from neuron.api.stored_claims import StoredClaim, read_stored_claim
from neuron.api.workloads import POD_GROUP, SCHEDULING, group_of
from neuron.api.workloads import VERTICAL_AUTOSCALER as AUTOSCALER
from policies.judging.matching import selects
from policies.schema.base import LabelSelector
from runtime.api_server import ApiServerError, Resource
from runtime.settings import SettingsError
from webhook.server import settings

# --- the webhook's settings, as its Deployment and webhook configurations give them -----------------------------------


_ENTRY: Final = f"mutate.{names.DRIVER}"
_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"


@dataclasses.dataclass(frozen=True, slots=True)
class Installation:
    """What is known of the webhook.

    Attributes:
        options: of conversion; None if its Deployment was not found or has settings that cannot be read.
        default: what sets the default mode, e.g. `the webhook's default (Deployment neuron-dra/neuron-dra)`.
        config_maps: namespace and name of the ConfigMaps with its policy files.
        called: whether the API server calls it for new pods; None if that is not known.
        why_not: why it does not, as a clause.
        namespaces: the namespaceSelector of its entry for pods.
        service_namespace: namespace of the Service that the entry calls; empty if that is not known.
    """

    options: ConversionOptions | None = None
    default: str = ""
    config_maps: tuple[tuple[str, str], ...] = ()
    called: bool | None = None
    why_not: str = ""
    namespaces: LabelSelector = dataclasses.field(default_factory=LabelSelector)
    service_namespace: str = ""

    def not_called(self, namespace: str, labels: Mapping[str, str] | None) -> str:
        """Why the API server does not call it for pods of a namespace, as a sentence; empty if it does.

        Args:
            labels: of the namespace; None if they are not known.
        """
        if self.called is False:
            return f"{self.why_not[:1].upper()}{self.why_not[1:]}."
        if labels is None or selects(self.namespaces, {_NAMESPACE_NAME: namespace, **labels}):
            return ""
        return f"The namespaceSelector of the webhook configuration leaves namespace {namespace} out."


def read_installation(deployments: Iterable[Object], configurations: Iterable[Object] | None) -> Installation:
    """The installation among a cluster's objects.

    Args:
        configurations: all MutatingWebhookConfigurations; None if they are not known.
    """
    called = _called(configurations)
    # Anybody can label a Deployment. The webhook's is where the API server sends reviews, which only admins decide.
    found = [each for each in deployments if is_labelled(each)]
    places = {called.service_namespace}
    if configurations is None:
        places = {each["metadata"].get("namespace") for each in found}
    ours = next((each for each in found if len(places) == 1 and each["metadata"].get("namespace") in places), None)
    if ours is None:
        return called
    metadata, pod = ours["metadata"], ours["spec"]["template"]["spec"]
    container: Object = next(iter(pod.get("containers") or ()), {})
    place = f"Deployment {metadata['namespace']}/{metadata['name']}"
    flags = dict(_flags([*(container.get("command") or ()), *(container.get("args") or ())]))
    variables = {each.variable for each in settings.declarations() if each.name in settings.CONVERSION}
    given = (each for each in container.get("env") or () if each.get("name") in variables and each.get("value"))
    environment = {str(each["name"]): str(each["value"]) for each in given}
    try:
        options = settings.load(flags, environment).conversion()
    except SettingsError:
        return called
    maps = tuple((metadata["namespace"], name) for name in _policy_maps(pod))
    default = f"the webhook's default ({place}, --mode)"
    return dataclasses.replace(called, options=options, default=default, config_maps=maps)


def _flags(arguments: Sequence[str]) -> Iterator[tuple[str, object]]:
    """The settings of conversion among arguments of the command line, as `settings.load` expects them."""
    declared = {each.flag: each for each in settings.declarations() if each.name in settings.CONVERSION}
    repeated: dict[str, list[str]] = {}
    for place, argument in enumerate(arguments):
        flag, given, value = str(argument).partition("=")
        positive = f"--{flag[5:]}" if flag.startswith("--no-") else flag
        setting = declared.get(positive)
        if setting is None:
            continue
        if setting.switch:
            yield setting.name, positive == flag
            continue
        text = value if given else str(arguments[place + 1]) if place + 1 < len(arguments) else ""
        if setting.repeated:
            repeated.setdefault(setting.name, []).append(text)
        else:
            yield setting.name, text
    for name, values in repeated.items():
        yield name, tuple(values)


def _policy_maps(pod: Object) -> Iterator[str]:
    for volume in pod.get("volumes") or ():
        if volume.get("name") != "policies":
            continue
        sources = [volume, *((volume.get("projected") or {}).get("sources") or ())]
        for source in sources:
            name = (source.get("configMap") or {}).get("name")
            if name:
                yield str(name)


def _called(configurations: Iterable[Object] | None) -> Installation:
    """What the webhook configurations say."""
    if configurations is None:
        return Installation()
    entries = (entry for each in configurations for entry in each.get("webhooks") or ())
    ours = next((entry for entry in entries if str(entry.get("name", "")) == _ENTRY), None)
    if ours is None:
        return Installation(called=False, why_not="the cluster has no MutatingWebhookConfiguration of neuron-dra")
    try:
        selector = LabelSelector.model_validate(ours.get("namespaceSelector") or {})
    except ValidationError:
        selector = LabelSelector()
    service = (ours.get("clientConfig") or {}).get("service") or {}
    return Installation(called=True, namespaces=selector, service_namespace=str(service.get("namespace") or ""))


# --- reads ------------------------------------------------------------------------------------------------------------


T = TypeVar("T")


KUEUE_GATE: Final = f"{KUEUE_GROUP}/admission"
"""The scheduling gate of pods that Kueue has not admitted."""
QUEUED: Final = (KUEUE_GROUP, "Workload")

_WORKLOADS: Final = (workloads.ULTRASERVERS, workloads.ULTRASERVER_WORKLOAD)
_OF_NAMESPACE: Final = (
    (resources.RESOURCE_QUOTAS, "ResourceQuota"),
    (resources.LIMIT_RANGES, "LimitRange"),
    (resources.RESOURCE_CLAIM_TEMPLATES, "ResourceClaimTemplate"),
)


class CannotExplainError(Exception):
    """An object that the user named cannot be read; the message has the reason and the fix."""


@dataclasses.dataclass(frozen=True, slots=True)
class Live:
    """The objects of a cluster that explanations need.

    Attributes:
        snapshot: nodes, slices, claims, pods, classes.
        objects: of the namespaces: the Namespace, quotas, LimitRanges, templates, claims.
        listed: kinds and namespaces of `objects` that are complete.
        policy_files: its policy files, by name.
        version: of the API server, e.g. `v1.36.2`; empty if unknown.
        notes: what could not be read, one sentence each.
        pools: what describes the pools of autoscalers, as a store keeps it.
    """

    snapshot: ClusterSnapshot
    objects: tuple[Manifest, ...]
    listed: frozenset[tuple[str, str]]
    installation: Installation
    policy_files: Mapping[str, bytes]
    version: str
    notes: tuple[str, ...]
    pools: Mapping[StoredKind[Any], Kept[Any]] = dataclasses.field(default_factory=dict)

    @property
    def unknown_pools(self) -> str:
        """Why the pools of autoscalers are not known, as a clause; empty if they are."""
        return next((each.why for each in self.pools.values() if isinstance(each, Unseen)), "")


@dataclasses.dataclass(frozen=True, slots=True)
class StoredPod:
    """A pod of the cluster and its Events; the pod is None if it does not exist."""

    pod: Object | None
    events: tuple[Object, ...] = ()
    notes: tuple[str, ...] = ()


class Reads:
    """Reads of one cluster."""

    def __init__(self, reader: ClusterReader, address: str) -> None:
        self._reader = reader
        self._address = address

    async def live(self, namespaces: Iterable[str]) -> Live:
        """Everything for pods of some namespaces.

        Raises:
            ApiServerError: the cluster does not answer, or refuses the credentials.
        """
        reader = self._reader
        version = await reader.version()
        found = await read_snapshot(reader, self._address, with_loads=True)
        notes: list[str] = []
        claims = found.claims
        pools = await read_kinds(reader, (each for each in SUPPLIES if each.kind.name in POOLS))
        objects: list[Manifest] = []
        listed: set[tuple[str, str]] = set()
        own: list[StoredClaim] = []
        of_namespace = (*_OF_NAMESPACE, *await self._others(found))
        for namespace in dict.fromkeys(namespaces):
            for resource, kind in of_namespace:
                seen = await reader.list(resource, namespace, keep=whole)
                objects += [live_manifest(each, resource, kind) for each in items(seen)]
                notes += _note(seen, f"{kind}s of namespace {namespace} are not known.")
                listed |= set() if isinstance(seen, Unseen) else {(kind, namespace)}
            resizing = await reader.list(resources.VERTICAL_POD_AUTOSCALERS, namespace, keep=whole, absent=True)
            objects += [
                live_manifest(each, resources.VERTICAL_POD_AUTOSCALERS, AUTOSCALER[1]) for each in items(resizing)
            ]
            notes += _note(resizing, "VerticalPodAutoscalers that resize pods in place are not known.")
            known = await reader.get(resources.NAMESPACES, "", namespace)
            objects += [live_manifest(each, resources.NAMESPACES, "Namespace") for each in items(known)]
            notes += _note(known, f"The annotations of Namespace {namespace} are not known.")
            if isinstance(claims, Unseen):
                own += items(await reader.list(resources.RESOURCE_CLAIMS, namespace, keep=read_stored_claim))
        if isinstance(claims, Unseen):
            notes += _note(claims, "Devices that claims of other namespaces hold are taken for free.")
            found = dataclasses.replace(found, claims=tuple(own))
        for each in items(found.claims):
            # The part of a claim that validation reads.
            about = {"namespace": each.metadata.namespace, "name": each.metadata.name, "uid": each.metadata.uid}
            claim = {"metadata": about, "spec": each.spec}
            objects.append(live_manifest(claim, resources.RESOURCE_CLAIMS, "ResourceClaim"))
        notes += _note(found.nodes, "Nodes cannot be judged.") + _note(found.slices, "Devices cannot be judged.")
        installation, files, more = await self._installation()
        notes += more
        known_version = "" if isinstance(version, Unseen) else version
        return Live(found, tuple(objects), frozenset(listed), installation, files, known_version, tuple(notes), pools)

    async def _others(self, found: ClusterSnapshot) -> tuple[tuple[Resource, str], ...]:
        """PodGroups, if pods with devices belong to some; workloads of AWS's UltraServer operator, if it manages nodes;
        Workloads of Kueue, if it holds pods back.

        Few clusters serve them.
        """
        devices = [device for each in items(found.slices) for device in each.devices]
        wanted = [
            *([(SCHEDULING, POD_GROUP)] if any(map(group_of, items(found.pods))) else []),
            *([_WORKLOADS] if any(device.text(names.ATTRIBUTE_ULTRASERVER) for device in devices) else []),
            *([QUEUED] if any(KUEUE_GATE in gates_of(pod) for pod in items(found.pods)) else []),
        ]
        if not wanted:
            return ()
        try:
            served = await self._reader.served()
        except ApiServerError:
            return ()
        return tuple((served[each].resource, each[1]) for each in wanted if each in served)

    async def pod(self, namespace: str, name: str) -> StoredPod:
        """A pod and its Events, the oldest first.

        Raises:
            CannotExplainError: the pod cannot be read.
        """
        seen = await self._reader.get(resources.PODS, namespace, name)
        if isinstance(seen, Unseen):
            raise CannotExplainError(str(seen))
        if not seen:
            return StoredPod(None)
        (pod,) = seen
        uid = pod["metadata"].get("uid", "")
        about = f"involvedObject.uid={uid}"
        events = await self._reader.list(resources.CORE_EVENTS, namespace, keep=whole, fieldSelector=about)
        notes = tuple(_note(events, "The pod's Events are not known."))
        return StoredPod(pod, tuple(sorted(items(events), key=event_order)), notes)

    async def workload(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """A workload; None if it does not exist.

        Raises:
            CannotExplainError: it cannot be read, or the cluster does not serve its kind.
        """
        resource = await self._resource(kind)
        seen = await self._reader.get(resource, namespace, name)
        if isinstance(seen, Unseen):
            raise CannotExplainError(str(seen))
        return live_manifest(seen[0], resource, kind[1]) if seen else None

    async def waiting(self, workload: Manifest) -> tuple[str, ...]:
        """Names of the pods of a workload that are not ready; none if they are not known."""
        labels = _selected(workload.data)
        if not labels:
            return ()
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        pods = await self._reader.list(resources.PODS, workload.namespace, keep=whole, labelSelector=selector)
        own = (each for each in items(pods) if labels.items() <= (each["metadata"].get("labels") or {}).items())
        return tuple(sorted(str(each["metadata"]["name"]) for each in own if not _is_well(each)))

    async def _resource(self, kind: Kind) -> Resource:
        group, name = kind
        if not group:
            return Resource("", "v1", KINDS[kind].plural)
        try:
            served = await self._reader.served()
        except ApiServerError as error:
            raise CannotExplainError(f"{error}.") from error
        found = served.get(kind)
        if found is None:
            raise CannotExplainError(f"it serves no {name} of {group}.")
        return found.resource

    async def _installation(self) -> tuple[Installation, dict[str, bytes], list[str]]:
        deployments, configurations = await asyncio.gather(
            self._reader.list(resources.DEPLOYMENTS, keep=whole, labelSelector=SELECTOR),
            self._reader.list(resources.MUTATING_CONFIGURATIONS, keep=whole),
        )
        known = None if isinstance(configurations, Unseen) else configurations
        installation = read_installation(items(deployments), known)
        notes = _note(deployments, "The webhook's settings are not known.")
        notes += _note(configurations, "It is not known whether the API server calls the webhook.")
        files: dict[str, bytes] = {}
        for namespace, name in installation.config_maps:
            seen = await self._reader.get(resources.CONFIG_MAPS, namespace, name)
            notes += _note(seen, f"The policies in ConfigMap {namespace}/{name} are not known.")
            for each in items(seen):
                files |= {f"{name}/{key}": str(text).encode() for key, text in (each.get("data") or {}).items()}
        return installation, files, notes


def _selected(workload: Object) -> Mapping[str, str]:
    """The labels that select a workload's pods; empty if it has none."""
    selector = (workload.get("spec") or {}).get("selector") or {}
    # A ReplicationController has the labels themselves.
    found = selector.get("matchLabels", selector) if isinstance(selector, dict) else {}
    return {key: value for key, value in (found or {}).items() if isinstance(value, str)}


def _is_well(pod: Object) -> bool:
    """Whether a pod has ended or is ready."""
    status = pod.get("status") or {}
    ready = {each.get("type"): each.get("status") for each in status.get("conditions") or ()}
    return status.get("phase") in ENDED or ready.get("Ready") == "True"


def _note(seen: Seen[T], consequence: str) -> list[str]:
    return [seen.told(consequence)] if isinstance(seen, Unseen) else []


def live_manifest(item: Object, resource: Resource, kind: str) -> Manifest:
    """An object of a list or answer of the API server, whose items have no kind."""
    version = f"{resource.group}/{resource.version}" if resource.group else resource.version
    metadata = item.get("metadata") or {}
    data = {"apiVersion": version, "kind": kind, **item}
    namespace, name = str(metadata.get("namespace") or ""), str(metadata.get("name") or "")
    return Manifest((), data, resource.group, kind, namespace, namespace, name)
