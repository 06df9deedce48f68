"""Reads everything that `neuron-dra status` checks."""

import asyncio
import dataclasses
import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import orjson
from msgspec import structs

from cluster import resources
from cluster.kinds.rendered_entries import CONFIG_MAP
from cluster.kinds.replicas import SELECTOR, is_labelled
from commands.cluster.reader import ClusterReader, Object, Seen, Unseen, items, unseen, whole
from commands.status import kueue
from commands.status.probe import ProbeResult, attempt, namespace_of
from neuron import names
from neuron.api.fields import mapping, mappings
from neuron.api.nodes import Node, read_node
from neuron.api.slices import PublishedDevice, Slice, read_slice
from neuron.hardware.device_shapes import DRA_DRIVER_VERSION, Value, qualified
from runtime.api_server import (
    GROUP_PATH,
    RESOURCE_GROUP,
    ApiServerError,
    rule_text,
    served_versions,
)

# --- the RBAC rules that the webhook needs, the same as in deploy/manifests/rbac.yaml ---------------------------------


SECRET: Final = "neuron-dra-tls"  # noqa: S105 - its name
"""Name of the Secret with CA and serving certificate in the shipped manifests."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """One rule of the webhook's ClusterRole, or of its Role.

    Attributes:
        group: API group; empty for the core.
        resources: plural names.
        purpose: what does not work without it.
        needed: whether conversion depends on it.
        names: `resourceNames`; empty: no restriction.
        own: whether it belongs to the Role in the webhook's namespace.
    """

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    purpose: str = ""
    needed: bool = True
    names: tuple[str, ...] = ()
    own: bool = False

    def __str__(self) -> str:
        return rule_text(self.group, self.resources, self.verbs, self.names)


_WATCH: Final = ("list", "watch")
_ADMISSION: Final = "admissionregistration.k8s.io"
_HOOKS: Final = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_COMPARING: Final = "comparing the webhook configurations with the release"
RULES: Final = (
    Rule("", ("namespaces", "resourcequotas", "limitranges"), _WATCH, "reading annotations and quotas of namespaces"),
    Rule("autoscaling.k8s.io", ("verticalpodautoscalers",), _WATCH, "knowing what resizes pods in place", needed=False),
    Rule(RESOURCE_GROUP, ("resourceslices", "deviceclasses"), _WATCH, "finding types and classes"),
    Rule("", ("nodes",), _WATCH, "learning instance types from Nodes", needed=False),
    Rule("karpenter.sh", ("nodepools",), _WATCH, "knowing the pools of Karpenter", needed=False),
    Rule("karpenter.k8s.aws", ("ec2nodeclasses",), _WATCH, "knowing the zones of its pools", needed=False),
    Rule(
        "cluster.x-k8s.io", ("machinedeployments",), _WATCH, "knowing node groups of Cluster Autoscaler", needed=False
    ),
    Rule(
        RESOURCE_GROUP,
        ("resourceclaimtemplates",),
        ("get", *_WATCH, "create", "patch"),
        "creating the templates of converted pods",
    ),
    Rule(RESOURCE_GROUP, ("resourceclaims",), ("get",), "warning about claims that do not exist", needed=False),
    Rule("events.k8s.io", ("events",), ("create", "patch"), "Events about refused conversions", needed=False),
    Rule(_ADMISSION, _HOOKS, (*_WATCH, "patch"), "updating caBundle", names=(names.MANAGER,)),
    Rule(_ADMISSION, _HOOKS, ("get",), _COMPARING, needed=False, names=(names.MANAGER,)),
    Rule("", ("configmaps",), ("get",), _COMPARING, needed=False, names=(CONFIG_MAP,), own=True),
    Rule("", ("secrets",), ("get", *_WATCH, "patch", "create"), "managing certificates", names=(SECRET,), own=True),
    Rule("coordination.k8s.io", ("leases",), (*_WATCH, "create", "patch", "delete"), "coordinating replicas", own=True),
)
"""The shipped rules: of the ClusterRole, and of the Role for certificates in a Secret (`--tls-secret`)."""


# --- reads ------------------------------------------------------------------------------------------------------------


NAME: Final = "neuron-dra"
"""Name of the webhook configurations and the Service, and value of the label `app.kubernetes.io/name`."""


_KARPENTER: Final = "app.kubernetes.io/name=karpenter"
"""Label of the Deployment in Karpenter's chart."""
TIMEOUT: Final = 15.0
"""Seconds that one request may take."""

Asked: TypeAlias = tuple[Rule, str, str]
"""A rule, one of its resources and one of its verbs."""


@dataclasses.dataclass(frozen=True, slots=True)
class StatusSnapshot:
    """Objects of the cluster, most of them as JSON.

    Single objects are a tuple of one, or an empty tuple if they do not exist.

    Attributes:
        address: URL of the API server.
        namespace: where the webhook runs.
        version: of the API server.
        versions: served versions of `resource.k8s.io`, e.g. `("v1", "v1beta2")`.
        account: user name of the webhook's ServiceAccount.
        rights: whether that account is allowed each rule.
        own_slices: nodes whose slices our driver wrote.
        node_checks: by node, the faults that the driver's checks of it found: check, result, what was found.
        driver_pods: of our driver, in all namespaces.
        probed: the answer to a dry-run pod; None: there is no conversion that could answer.
        probed_in: the namespace of that pod.
        karpenter: Deployments of Karpenter.
        rendered: the ConfigMap with the entries of the webhook configurations that the release renders.
    """

    address: str
    namespace: str
    version: str | Unseen
    versions: tuple[str, ...] | Unseen
    mutating: Seen[Object] = ()
    validating: Seen[Object] = ()
    rendered: Seen[Object] = ()
    deployments: Seen[Object] = ()
    daemon_sets: Seen[Object] = ()
    service: Seen[Object] = ()
    endpoint_slices: Seen[Object] = ()
    secret: Seen[Object] = ()
    leases: Seen[Object] = ()
    device_classes: Seen[Object] = ()
    resource_slices: Seen[Slice] = ()
    own_slices: frozenset[str] = frozenset()
    node_checks: Mapping[str, tuple[tuple[str, str, str], ...]] = dataclasses.field(default_factory=dict)
    driver_pods: Seen[Object] = ()
    nodes: Seen[Node] = ()
    templates: Seen[Object] = ()
    namespaces: Seen[Object] = ()
    kueue_setup: Seen[kueue.KueueSetup] = ()
    karpenter: Seen[Object] = ()
    probed: ProbeResult | None = None
    probed_in: str = "default"
    account: str = ""
    rights: Mapping[Asked, bool] | Unseen = dataclasses.field(default_factory=dict)

    @property
    def outside(self) -> bool:
        """Whether the webhook is a process outside the cluster, as of `make sandbox`: every entry calls a URL."""
        entries = own_entries(self.mutating, self.validating)
        return bool(entries) and all((entry.get("clientConfig") or {}).get("url") for entry in entries)


def own_configuration(seen: Seen[Object]) -> Object | None:
    """This installation's webhook configuration; None if it does not exist, or could not be read."""
    return next((item for item in items(seen) if item["metadata"]["name"] == NAME), None)


def own_entries(*seen: Seen[Object]) -> tuple[Object, ...]:
    """The entries of this installation's webhook configurations."""
    return tuple(entry for each in map(own_configuration, seen) for entry in (each or {}).get("webhooks") or ())


def own_deployments(seen: Seen[Object], namespace: str) -> list[Object]:
    """The Deployments of the webhook in its namespace, by their labels: the chart may give them another name."""
    return [each for each in items(seen) if each["metadata"]["namespace"] == namespace and is_labelled(each)]


async def read_status(reader: ClusterReader, address: str, namespace: str) -> StatusSnapshot:
    """Read everything.

    Args:
        reader: sends each request once: what fails now is a result.

    Raises:
        ApiServerError: the cluster does not answer, or refuses the credentials.
    """
    version = await reader.version()
    label = f"app.kubernetes.io/name={NAME}"

    driver = f"{label},app.kubernetes.io/component=kubelet-plugin"
    ours = f"{names.LABEL_MANAGED_BY}={names.MANAGER}"
    wanted = {
        "mutating": reader.list(resources.MUTATING_CONFIGURATIONS, keep=whole),
        "validating": reader.list(resources.VALIDATING_CONFIGURATIONS, keep=whole),
        "rendered": reader.get(resources.CONFIG_MAPS, namespace, CONFIG_MAP),
        "deployments": reader.list(resources.DEPLOYMENTS, keep=whole, labelSelector=label),
        "karpenter": reader.list(resources.DEPLOYMENTS, keep=whole, labelSelector=_KARPENTER),
        "daemon_sets": reader.list(resources.DAEMON_SETS, keep=whole, labelSelector=label),
        "service": reader.get(resources.SERVICES, namespace, NAME),
        "endpoint_slices": reader.list(
            resources.ENDPOINT_SLICES, namespace, keep=whole, labelSelector=f"kubernetes.io/service-name={NAME}"
        ),
        "secret": reader.get(resources.SECRETS, namespace, SECRET),
        "leases": reader.list(resources.LEASES, namespace, keep=whole, labelSelector=SELECTOR),
        "device_classes": reader.list(resources.DEVICE_CLASSES, keep=whole),
        "published": reader.list(
            resources.RESOURCE_SLICES, keep=_Publications().read, fieldSelector=f"spec.driver={names.DRIVER}"
        ),
        "driver_pods": reader.list(resources.PODS, keep=_pod, labelSelector=driver),
        "nodes": reader.list(resources.NODES, keep=_node),
        "templates": reader.list(resources.RESOURCE_CLAIM_TEMPLATES, keep=_Templates().read, labelSelector=ours),
        "namespaces": reader.list(resources.NAMESPACES, keep=_namespace),
    }
    fetched: dict[str, Any] = dict(zip(wanted, await asyncio.gather(*wanted.values()), strict=True))
    account = f"system:serviceaccount:{namespace}:{_account(fetched['deployments'], namespace)}"
    tried = namespace_of(*map(items, (fetched["mutating"], fetched["namespaces"])))
    versions, rights, queues, probed = await asyncio.gather(
        _versions(reader), _rights(reader, account, namespace), kueue.read(reader), _probe(reader, fetched, tried)
    )
    published: Seen[_Publication] = fetched.pop("published")
    return StatusSnapshot(
        address,
        namespace,
        version,
        versions,
        resource_slices=published if isinstance(published, Unseen) else tuple(each.slice for each in published),
        own_slices=frozenset(each.slice.node for each in items(published) if each.own),
        node_checks={each.slice.node: each.faults for each in items(published) if each.faults},
        **fetched,
        kueue_setup=queues,
        probed=probed,
        probed_in=tried,
        account=account,
        rights=rights,
    )


async def _probe(reader: ClusterReader, fetched: Mapping[str, Seen[Object]], namespace: str) -> ProbeResult | None:
    return None if own_configuration(fetched["mutating"]) is None else await attempt(reader.server, namespace)


async def _versions(reader: ClusterReader) -> tuple[str, ...] | Unseen:
    try:
        return await served_versions(reader.server, TIMEOUT)
    except ApiServerError as error:
        return Unseen(f"{GROUP_PATH} cannot be read: {error}.")


async def _rights(reader: ClusterReader, account: str, namespace: str) -> Mapping[Asked, bool] | Unseen:
    asked = [(rule, resource, verb) for rule in RULES for resource in rule.resources for verb in rule.verbs]
    try:
        answers = await asyncio.gather(*(_may(reader, account, namespace, each) for each in asked))
    except ApiServerError as error:
        return unseen(error, resources.ACCESS_REVIEWS, "create")
    return dict(zip(asked, answers, strict=True))


async def _may(reader: ClusterReader, account: str, namespace: str, asked: Asked) -> bool:
    rule, resource, verb = asked
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    wanted = {"group": rule.group, "resource": resource, "verb": verb}
    if rule.own:
        wanted["namespace"] = namespace
    if rule.names:
        wanted["name"] = rule.names[0]
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": account, "groups": groups, "resourceAttributes": wanted},
    }
    answer = await reader.review(resources.ACCESS_REVIEWS, body)
    return bool((answer.get("status") or {}).get("allowed"))


# --- what is kept of the objects of long lists ------------------------------------------------------------------------


_READ: Final = tuple(map(qualified, (names.ATTRIBUTE_INSTANCE_TYPE, names.ATTRIBUTE_RESOURCE_TYPE, DRA_DRIVER_VERSION)))
"""The attributes of devices that checks read."""


class _Publication(NamedTuple):
    """A ResourceSlice.

    Attributes:
        own: whether our driver wrote it; another driver may have the same name.
        faults: what the driver's checks of its node found.
    """

    slice: Slice
    own: bool
    faults: tuple[tuple[str, str, str], ...]


class _Publications:
    """Reads slices; devices that differ only in what no check reads share their attributes."""

    def __init__(self) -> None:
        self._shared: dict[object, Mapping[str, Value]] = {}

    def read(self, item: Object) -> _Publication:
        found = read_slice(item)
        devices = tuple(map(self._device, found.devices))
        metadata = item["metadata"]
        own = any(each.get("manager") == names.DRIVER_PROGRAM for each in mappings(metadata.get("managedFields")))
        return _Publication(structs.replace(found, devices=devices, counters={}), own, _faults(metadata))

    def _device(self, device: PublishedDevice) -> PublishedDevice:
        attributes = {name: device.attributes[name] for name in _READ if name in device.attributes}
        shared = self._shared.setdefault(tuple(attributes.items()), attributes)
        return PublishedDevice(sys.intern(device.name), shared, taints=device.taints)


class _Templates:
    """Reads templates; those with one name have one spec, because the name is a hash of it."""

    def __init__(self) -> None:
        self._specs: dict[str, object] = {}

    def read(self, item: Object) -> Object:
        spec = item.get("spec")
        # As text: a result of orjson keeps a buffer of 4 KiB.
        shared = self._specs.setdefault(orjson.dumps(spec).decode(), spec)
        return {"metadata": _named(item), "spec": shared}


def _named(item: Object) -> dict[str, Any]:
    return {key: item["metadata"][key] for key in ("name", "namespace") if key in item["metadata"]}


def _pod(item: Object) -> Object:
    metadata = _named(item) | {"deletionTimestamp": item["metadata"].get("deletionTimestamp")}
    ready = [each for each in mappings(mapping(item.get("status")).get("conditions")) if each.get("type") == "Ready"]
    return {
        "metadata": metadata,
        "spec": {"nodeName": mapping(item.get("spec")).get("nodeName")},
        "status": {"conditions": [{"type": "Ready", "status": each.get("status")} for each in ready]},
    }


def _node(item: Object) -> Node:
    node = read_node(item)
    ours = {key: value for key, value in node.annotations.items() if names.DRIVER in key}
    return structs.replace(node, annotations=ours)


def _namespace(item: Object) -> Object:
    metadata = item["metadata"]
    settings = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
    return {"metadata": _named(item) | settings}


def _faults(metadata: Object) -> tuple[tuple[str, str, str], ...]:
    """What the driver's checks of the node found; empty if it cannot be read."""
    text = (metadata.get("annotations") or {}).get(names.ANNOTATION_NODE_CHECKS)
    try:
        found = msgspec.json.decode(text or "[]", type=list[_Fault])
    except (msgspec.MsgspecError, TypeError):
        return ()
    return tuple((each.check, each.result, each.found) for each in found)


class _Fault(msgspec.Struct, frozen=True):
    check: str
    result: str
    found: str = ""


def _account(deployments: Seen[Object], namespace: str) -> str:
    """The webhook's ServiceAccount: of its Deployment, else the shipped name."""
    for each in own_deployments(deployments, namespace):
        return str(each["spec"]["template"]["spec"].get("serviceAccountName") or "default")
    return NAME
