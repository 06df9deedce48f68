"""Makes the scene of a rehearsal from the objects of a cluster. Pure.

Workloads are taken first, then pods: each pod that uses Neuron devices is judged by the webhook's own decision
(`commands.report.assess`), equal pods once. Workloads without pods, as in a folder of manifests, get pods, which are
placed as the scheduler would.
"""

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson

from cluster.kinds.namespaces import devices_by_class
from cluster.store import Store
from commands.cluster.reader import ENDED, Object
from commands.devices.allocator_inputs import (
    Hardware,
    catalogue_hardware,
    result_of,
)
from commands.devices.node_devices import ClusterDevices, DeviceModel, Results
from commands.present import listed
from commands.rehearse.model import AssumedPool, Form, Group, Maker, PlayedPod, PodKind, Reason, WaitCause
from commands.rehearse.play import POD_DISRUPTION_BUDGET, DrainBudgets, RehearsalScene
from commands.rehearse.played_nodes import (
    DRIVER,
    DRIVER_LABEL,
    PLUGIN,
    PlayedNode,
    PlayedNodes,
    amounts_of,
    with_scores,
)
from commands.report.assess import Assessment, Assessor, NotReadableError
from commands.report.inventory import Found, Inventory, Owner, Root
from commands.report.model import Cause, Fate, Prospect, Reference, TemplatePods, Workload
from commands.report.plan import Places, namespace_order
from conversion.asks.conversion_context import ConversionOptions
from conversion.claims.candidates import labels_of
from conversion.claims.containers import basic_requests, scheduled
from conversion.objects import pods as pod_views
from neuron import names
from neuron.api.claim_reader import claim_spec
from neuron.api.fields import mapping, mappings, text
from neuron.api.nodes import Node
from neuron.api.stored_claims import StoredClaim
from neuron.findings import Finding, Severity
from neuron.hardware.instances import Catalogue, InstanceType
from runtime.answers import identity
from runtime.text import counted

if TYPE_CHECKING:
    from commands.objects.file_policies import FilePolicies

GROUP_LABELS: Final = (
    "eks.amazonaws.com/nodegroup",
    "alpha.eksctl.io/nodegroup-name",
    *names.KARPENTER_POOL_LABELS,
    "sagemaker.amazonaws.com/instance-group-name",
    "node.kubernetes.io/instancegroup",
)
"""Labels of node groups, the first that a node has."""
_LWS: Final = "leaderworkerset.sigs.k8s.io/name"
_LWS_GROUP: Final = "leaderworkerset.sigs.k8s.io/group-index"
_REVISIONS: Final = (
    "pod-template-hash",
    "controller-revision-hash",
    "leaderworkerset.sigs.k8s.io/template-revision-hash",
)
_KEEP: Final = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
    "karpenter.sh/do-not-evict": "true",
}
"""Annotations by which a pod asks not to be evicted. `kubectl drain` does not read them."""
_PLACED: Final = "AWS_NEURON_IDS"
"""Annotation in which the scheduler extension writes the devices of a pod."""
_IDS: Final = re.compile(r"[0-9]{1,3}(?:\s*,\s*[0-9]{1,3})*", re.ASCII)
_TEMPLATES: Final = re.compile(rb'"resourceClaimTemplateName"\s*:\s*"([^"\\]+)"')
_SELECTION: Final = ("nodeSelector", "affinity", "tolerations")
_CONTAINERS: Final = ("initContainers", "containers")
_FIELDS: Final = ("name", "resources", "restartPolicy", "env")
_WAITING: Final = {
    Cause.QUEUE: WaitCause.QUEUE,
    Cause.KARPENTER: WaitCause.POOL,
    Cause.SELECTION: WaitCause.SELECTION,
}
"""Obstacles for which a pod waits whatever is free."""
_MOST_SYNTHETIC: Final = 100_000


class NoSuchTypeError(Exception):
    """No node of the cluster has the type, and the catalogue lacks it; the message is the type."""


@dataclasses.dataclass(frozen=True, slots=True)
class GatheringSettings:
    """What the user chose.

    Attributes:
        options: of conversion.
        policies: that steer it, or None.
        past_shadow: whether to convert also where shadow mode is set.
        converting: namespaces that may be converted; None: all.
        group_label: label of node groups; empty: the known ones.
        counted_classes: DeviceClasses whose claims Kueue is known to count.
        pools: number of nodes that Karpenter pools shall have, by name.
    """

    options: ConversionOptions
    policies: "FilePolicies | None" = None
    past_shadow: bool = True
    converting: frozenset[str] | None = None
    group_label: str = ""
    counted_classes: Collection[str] = ()
    pools: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def catalogue(self) -> Catalogue:
        """The instance types, those of policy files among them."""
        return self.policies.catalogue if self.policies else Catalogue()


class Gathering:
    """Takes the objects of a cluster, and makes the scene.

    Attributes:
        workloads: assessments, one for each workload and kind of pods, with their number.
        assumed: pools with nodes in `cluster` that do not exist.
    """

    def __init__(
        self,
        settings: GatheringSettings,
        store: Store,
        cluster: ClusterDevices,
        assumed: tuple[AssumedPool, ...] = (),
    ) -> None:
        """Prepare. `cluster`: nodes, slices and claims."""
        self.assumed = assumed
        self._joined = {name for each in assumed if each.driver for name in each.added}
        self._settings = settings
        self._store = store
        self._cluster = cluster
        self._places = Places(cluster, store.device_classes)
        chosen = settings.options, store, settings.policies, None, self._places, settings.counted_classes
        self._assessor = Assessor(*chosen, past_shadow=settings.past_shadow)
        self._inventory = Inventory()
        self._roots: list[Root] = []
        self._budgets = DrainBudgets()
        self._failing: set[tuple[str, str]] = set()
        """Namespace and name of Jobs that fail when a pod is evicted."""
        self._kinds: dict[object, PodKind | None] = {}
        self._pods: list[PlayedPod] = []
        self._with_pods: set[str] = set()
        self._loads: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._forms: dict[object, Form] = {}
        self._unjudged: Counter[str] = Counter()
        self._models: dict[str, DeviceModel | None] = {}
        self._catalogue = dict(catalogue_hardware(cluster.catalogue))
        self._holders: defaultdict[tuple[str, str], list[StoredClaim]] = defaultdict(list)
        for claim in cluster.claims:
            for user in claim.pods if claim.ours else ():
                self._holders[claim.metadata.namespace, user.name].append(claim)
        self._assessed: dict[PodKind, Workload] = {}
        self._assumed = 0
        self._own_claims: list[str] = []
        """Pods that do not run, and manifests, that have claims of their own."""
        self._states: list[PlayedNode] = []
        self.workloads: Counter[Workload] = Counter()
        self.unreadable: list[str] = []

    # --- objects ------------------------------------------------------------------------------------------------

    def take(self, found: Found) -> None:
        """Take an object: workloads and PodDisruptionBudgets first, pods last."""
        if (found.group, found.kind) == ("", "Pod"):
            self._take_pod(found)
            return
        if (found.group, found.kind) == POD_DISRUPTION_BUDGET:
            self._budgets.take(_loaded(found.raw))
            return
        if (found.group, found.kind) == ("batch", "Job"):
            item = _loaded(found.raw)
            if mapping(item.get("spec")).get("backoffLimit") == 0:
                self._failing.add(_name(mapping(item.get("metadata"))))
        root = self._inventory.take(found)
        if root is not None:
            self._roots.append(root)
        elif not identity(found.raw).uid:
            self._note_claims(found)

    def _take_pod(self, found: Found) -> None:
        item = _loaded(found.raw)
        holds = self._holders.get(_name(mapping(item.get("metadata"))))
        metadata, spec, status = (mapping(item.get(key)) for key in ("metadata", "spec", "status"))
        if not holds and not pod_views.may_concern_us(found.raw):
            self._count(item)
            if not spec.get("nodeName") and status.get("phase") not in ENDED:
                self._note_claims(found)
            return
        if not status and not spec.get("nodeName"):
            manifest = self._inventory.take(found)
            self._roots += [manifest] if manifest is not None else []
            return
        if status.get("phase") in ENDED:
            return
        kind = self._kind_of(found, metadata, spec)
        if kind is None:
            self._count(item)
            return
        self._note(spec)
        owner = _owner(metadata)
        labels = {str(key): str(value) for key, value in mapping(metadata.get("labels")).items()}
        namespace, name = _name(metadata)
        converted = bool(holds) or not kind.plugin.plugin
        above = self._root(owner, namespace)
        self._with_pods |= {text(metadata.get("uid")), above.uid if above is not None else ""}
        group = f"{namespace}/{labels[_LWS]}/{labels[_LWS_GROUP]}" if {_LWS, _LWS_GROUP} <= labels.keys() else ""
        # By its annotation of the scheduler extension; not known if that has another form.
        said = text(mapping(metadata.get("annotations")).get(_PLACED)).strip()
        placed = tuple(sorted({int(each) for each in said.split(",")})) if _IDS.fullmatch(said) else None
        node, budgets, keeps = (
            text(spec.get("nodeName")),
            self._budgets.of(namespace, labels),
            self._keeps(metadata, owner),
        )
        self._pods.append(
            PlayedPod(namespace, name, kind, node, budgets, _maker(owner), group, keeps, converted, placed)
        )

    def _count(self, item: Object) -> None:
        """Count what a pod requests that is no part of the rehearsal."""
        spec = mapping(item.get("spec"))
        node = text(spec.get("nodeName"))
        if node and mapping(item.get("status")).get("phase") not in ENDED:
            self._loads[node].update(with_scores(amounts_of(basic_requests(spec))))

    def _note_claims(self, found: Found) -> None:
        """Note an object whose claims are of our class, and written by its user: it is not played."""
        known = identity(found.raw)
        templates = {name.decode() for name in _TEMPLATES.findall(found.raw)}
        specs = [self._store.claim_template(known.namespace or "default", each) for each in templates]
        if any(each is not None and devices_by_class(each)[self._settings.options.device_class] for each in specs):
            self._own_claims.append(f"{found.kind} {known.namespace or 'default'}/{known.name}")

    def _keeps(self, metadata: Mapping[str, object], owner: Mapping[str, object]) -> str:
        annotations = mapping(metadata.get("annotations"))
        found = next((key for key, value in _KEEP.items() if annotations.get(key) == value), "")
        if found:
            return f"annotation {found}"
        if owner.get("kind") == "Job" and (_name(metadata)[0], owner.get("name")) in self._failing:
            return f"its Job {text(owner.get('name'))} has backoffLimit 0, and fails when it is evicted"
        return ""

    def _note(self, spec: Mapping[str, object]) -> None:
        """Count what decides about the place of a pod and is not judged."""
        affinity = mapping(spec.get("affinity"))
        if affinity.get("podAffinity") or affinity.get("podAntiAffinity") or spec.get("topologySpreadConstraints"):
            self._unjudged["affinity to other pods, or spreads over zones or nodes"] += 1
        if any(each.get("persistentVolumeClaim") for each in mappings(spec.get("volumes"))):
            self._unjudged["volumes, which can bind them to a zone or node"] += 1
        ports = (each for part in mappings(spec.get("containers")) for each in mappings(part.get("ports")))
        if any(each.get("hostPort") for each in ports):
            self._unjudged["host ports"] += 1

    # --- kinds of pods ------------------------------------------------------------------------------------------

    def _kind_of(self, found: Found, metadata: Mapping[str, object], spec: Mapping[str, object]) -> PodKind | None:
        """What a pod has in common with others of its owner; None if it is not about Neuron devices of ours."""
        owner = _owner(metadata)
        labels, annotations = mapping(metadata.get("labels")), mapping(metadata.get("annotations"))
        parts = [
            text(metadata.get("namespace")),
            [owner.get(each) for each in ("uid", "kind", "name")] if owner else _name(metadata),
            [labels.get(each) for each in _REVISIONS],
            {key: value for key, value in annotations.items() if names.DRIVER in str(key)},
            [[[each.get(name) for name in _FIELDS] for each in mappings(spec.get(part))] for part in _CONTAINERS],
            [spec.get(each) for each in (*_SELECTION, "schedulerName", "resourceClaims")],
        ]
        # As text: a result of orjson keeps a buffer of 4 KiB.
        key = orjson.dumps(parts, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
        if key not in self._kinds:
            root = Root(found, None, text(metadata.get("uid")), running=True)
            holders = self._holders.get(_name(metadata), ())
            made = [self._claimed(metadata, spec, holders)] if holders else self.kinds(self.assess(root), owner)
            self._kinds[key] = made[0] if made else None
        kind = self._kinds[key]
        if kind in self._assessed:
            self.workloads[self._assessed[kind]] += 1
        return kind

    def _claimed(
        self, metadata: Mapping[str, object], spec: Mapping[str, object], holders: Sequence[StoredClaim]
    ) -> PodKind:
        """The kind of pods that have devices by claims already."""
        owner = _owner(metadata)
        namespace = _name(metadata)[0]
        bare = Reference("", "Pod", namespace, text(metadata.get("name")), text(metadata.get("uid")))
        ref = self._owner_reference(owner, namespace) or bare
        selection = {"spec": {key: spec[key] for key in _SELECTION if spec.get(key)}}
        amounts = with_scores(amounts_of(basic_requests(spec)))
        devices = sum(len(each.ours) for each in holders)
        demand = self._places.joined(claim_spec(each.spec) for each in holders)
        claims = None if demand is None else Form(selection, {}, demand, amounts, devices)
        return PodKind(ref, Form(selection, {}, None, amounts, devices), claims=claims, decided=True)

    def _root(self, owner: Mapping[str, object], namespace: str) -> Owner | None:
        """The workload above a pod, by its controller; None without one."""
        if not owner:
            return None
        group, _, version = text(owner.get("apiVersion")).rpartition("/")
        kind, name, uid = (text(owner.get(each)) for each in ("kind", "name", "uid"))
        return self._inventory.root_of(Owner(group, version, kind, name, uid, namespace))

    def _owner_reference(self, owner: Mapping[str, object], namespace: str) -> Reference | None:
        root = self._root(owner, namespace)
        return None if root is None else Reference(root.group, root.kind, namespace, root.name, root.uid)

    def assess(self, root: Root) -> Assessment | None:
        """What admission makes of an object, of the cluster or not; None if it cannot be read."""
        try:
            return self._assessor.assess(root)
        except NotReadableError:
            self.unreadable.append(f"{root.found.kind} of {root.found.source or 'the cluster'}")
            return None

    def kinds(self, assessment: Assessment | None, owner: Mapping[str, object] | None = None) -> list[PodKind]:
        """One kind for each pod template of an assessed object. `owner`: the controller of a pod."""
        if assessment is None:
            return []
        workload = assessment.workload
        if not assessment.judged:
            said = next((f" ({each.finding.message})" for each in workload.obstacles), "")
            self.unreadable.append(f"{workload.ref}{said}")
        above = self._owner_reference(owner or {}, workload.ref.namespace)
        workload = dataclasses.replace(workload, ref=above) if above is not None else workload
        found = []
        for part, group in zip(assessment.judged, workload.groups, strict=False):
            kind = self._kind(workload, group, part.place.template)
            self._assessed[kind] = dataclasses.replace(workload, groups=(group,))
            found.append(kind)
        return found

    def _kind(self, workload: Workload, group: TemplatePods, template: Mapping[str, object]) -> PodKind:
        spec = mapping(template.get("spec"))
        plugin = self._plugin_form(spec, group)
        errors = [each.finding for each in workload.obstacles if each.finding.severity is Severity.ERROR]
        blocking = [each for each in workload.obstacles if each.blocks]
        refused: Finding | None = None
        waits: Reason | None = None
        claims: Form | None = None
        if workload.prospect is Prospect.BLOCKED:
            refused = next(iter([*errors, *(each.finding for each in blocking)]), None)
        elif workload.fate is Fate.CONVERTS:
            claims = self._claim_form(group, plugin)
            for each in blocking:
                if waits is None and each.cause in _WAITING:
                    waits = Reason(_WAITING[each.cause], each.finding.message, each.finding.fix)
        decided = workload.mode.startswith("convert")
        after = None if claims is None else group.after or group.before
        return PodKind(workload.ref, plugin, group.before, after, claims, decided, refused, waits, workload.why)

    def _plugin_form(self, spec: Mapping[str, object], group: TemplatePods) -> Form:
        selection = {key: spec[key] for key in _SELECTION if spec.get(key)}
        amounts = with_scores(amounts_of(basic_requests(spec)))
        wanted = dict(+scheduled(spec))
        # Cores are counted as the devices that they take after conversion.
        devices = group.before.devices or (group.after.devices if group.after is not None else 0)
        found = orjson.dumps([selection, amounts, wanted], default=str, option=orjson.OPT_SORT_KEYS)
        key = found.decode(), devices
        if key not in self._forms:
            self._forms[key] = Form({"spec": selection}, wanted, None, amounts, devices)
        return self._forms[key]

    def _claim_form(self, group: TemplatePods, plugin: Form) -> Form | None:
        need = group.need
        claim = None if need is None else self._places.claim(need)
        if need is None or claim is None:
            return None
        key = need, plugin
        if key not in self._forms:
            charge = sum(devices_by_class(spec)[self._settings.options.device_class] for spec in need.claims)
            devices = group.after.devices if group.after is not None else plugin.devices
            self._forms[key] = Form(need.pod, {}, claim, plugin.amounts, devices, charge)
        return self._forms[key]

    # --- nodes --------------------------------------------------------------------------------------------------

    def _model_after(self, instance_type: str) -> DeviceModel | None:
        """The devices of nodes of a type once they have the driver; None if the catalogue lacks the type."""
        if instance_type not in self._models:
            hardware = self._catalogue.get(instance_type)
            self._models[instance_type] = None if hardware is None else self._model(hardware, instance_type)
        return self._models[instance_type]

    def _model(self, hardware: Hardware, instance_type: str) -> DeviceModel:
        entry = self._cluster.catalogue.get(instance_type)
        return DeviceModel(hardware, entry, counters_leak=self._cluster.counters_leak, minor=self._cluster.minor)

    def _node(self, node: Node) -> PlayedNode:
        cluster = self._cluster
        instance_type = cluster.instance_type(node)
        group = group_name(node, instance_type, self._settings.group_label)
        after = self._model_after(instance_type)
        side = ""
        fixed: Results = ()
        if node.legacy:
            side = PLUGIN
        elif cluster.publishes(node.name):
            found = cluster.devices(node.name)
            side, fixed = DRIVER, found.held
            after = self._model(found.hardware, instance_type) if found.missing is None else None
        elif node.name in self._joined:
            side = DRIVER
        used = self._loads.get(node.name)
        return PlayedNode(node, instance_type, group=group, side=side, after=after, fixed=fixed, used=used)

    def with_spares(self, scene: RehearsalScene, spares: Mapping[str, int], prefix: str) -> RehearsalScene:
        """The scene with spare nodes, which have the driver from the start. Raises NoSuchTypeError."""
        made = [
            self._spare(f"{prefix}-{kind}-{number}", kind)
            for kind, count in spares.items()
            for number in range(1, count + 1)
        ]
        played = [*scene.played.copy().nodes.values(), *made]
        return dataclasses.replace(scene, played=PlayedNodes(played)) if made else scene

    def _spare(self, name: str, instance_type: str) -> PlayedNode:
        entry = self._cluster.catalogue.get(instance_type)
        model = self._model_after(instance_type)
        if entry is None or model is None:
            raise NoSuchTypeError(instance_type)
        same = [each.node for each in self._states if each.instance_type == instance_type]
        labels = common_labels(entry, same) | {"kubernetes.io/hostname": name, **DRIVER_LABEL}
        made = Node(name, labels=labels, allocatable=without_legacy(same))
        return PlayedNode(made, instance_type, side=DRIVER, after=model)

    # --- the scene ----------------------------------------------------------------------------------------------

    def scene(self, *, manifests: bool = True) -> RehearsalScene:
        """The scene. Call it after all objects were taken. `manifests`: whether they get pods."""
        self._states = [
            state
            for node in sorted(self._cluster.nodes, key=lambda each: each.name)
            if (state := self._node(node)).side or state.instance_type in self._cluster.catalogue
        ]
        played = PlayedNodes(self._states)
        created = self._of_manifests() if manifests else []
        pods: list[PlayedPod] = []
        late: list[PlayedPod] = []
        for pod in self._pods:
            if pod.node in played.nodes:
                state = played.nodes[pod.node]
                if not pod.converted:
                    state.add(len(pods), pod.kind.plugin, (), pod.kind.spread)
                elif pod.kind.claims is not None:
                    state.add(len(pods), pod.kind.claims, self._own(state, pod), pod.kind.spread)
                pods.append(pod)
            elif not pod.node:
                late.append(pod)
            else:
                self._unjudged["nodes that are not known"] += 1
        pods += late
        for pod in created:
            node = played.place(len(pods), pod.kind.plugin, pod.kind.spread)
            self._assumed += bool(node)
            pods.append(dataclasses.replace(pod, node=node))
        groups: defaultdict[str, list[PlayedNode]] = defaultdict(list)
        for state in self._states:
            if state.side != DRIVER:
                groups[state.group].append(state)
        made = tuple(
            Group(name, tuple(each.node.name for each in found), tuple(sorted({each.instance_type for each in found})))
            for name, found in sorted(groups.items())
            if any(each.side == PLUGIN for each in found)
        )
        return RehearsalScene(
            PlayedNodes(played.nodes.values()),
            tuple(pods),
            made,
            self._budgets.found,
            self._namespaces(),
            self._settings.converting,
            self._quotas({pod.namespace for pod in pods}),
        )

    def _own(self, state: PlayedNode, pod: PlayedPod) -> Results:
        """The devices that a pod alone holds. They are no longer what others hold on its node."""
        claims = self._holders.get((pod.namespace, pod.name), ())
        mine = tuple(
            result_of(each) for claim in claims if len(claim.users) == 1 for each in claim.ours if each.pool == pod.node
        )
        left = list(state.held.fixed)
        for each in mine:
            if each in left:
                left.remove(each)
        state.held.fix(tuple(left))
        return tuple(each for each in mine if each.device in self._cluster.devices(pod.node).hardware.names)

    def _of_manifests(self) -> list[PlayedPod]:
        """Pods of workloads that are manifests: no cluster has created them yet."""
        made = []
        for root in self._roots:
            assessment = None if root.uid or root.running else self.assess(root)
            if assessment is None:
                continue
            kinds = self.kinds(assessment)
            for kind, group, part in zip(kinds, assessment.workload.groups, assessment.judged, strict=False):
                self.workloads[self._assessed[kind]] += group.known_pods
                metadata, spec = (mapping(part.place.template.get(key)) for key in ("metadata", "spec"))
                self._note(spec)
                ref = kind.workload
                if Owner(ref.group, "", ref.kind, ref.name, "", ref.namespace).by_name in self._with_pods:
                    continue  # A dump without uids: its pods are there.
                labels = {str(key): str(value) for key, value in mapping(metadata.get("labels")).items()}
                bare = ref.kind == "Pod"
                for number in range(1, min(group.known_pods, _MOST_SYNTHETIC) + 1):
                    name = ref.name if bare else f"{ref.name}-{number}"
                    budgets = self._budgets.of(ref.namespace, labels)
                    maker = Maker.NOBODY if bare else Maker.CONTROLLER
                    made.append(PlayedPod(ref.namespace, name, kind, "", budgets, maker))
        return made

    def _namespaces(self) -> tuple[str, ...]:
        found: defaultdict[str, list[Workload]] = defaultdict(list)
        for workload in self.workloads:
            found[workload.ref.namespace].append(workload)
        return tuple(sorted(found, key=lambda each: namespace_order(each, found[each])))

    def _quotas(self, namespaces: Iterable[str]) -> dict[str, int]:
        """Devices that namespaces with a quota may still claim."""
        device_class = self._settings.options.device_class
        resource = device_class + names.CLASS_QUOTA
        used: Counter[str] = Counter()
        for claim in self._cluster.claims:
            used[claim.metadata.namespace] += devices_by_class(claim_spec(claim.spec))[device_class]
        found = {}
        for namespace in namespaces:
            allowed = (self._store.quotas(namespace) or {}).get(resource)
            if allowed is not None:
                found[namespace] = max(0, allowed - used[namespace])
        return found

    # --- what is told -------------------------------------------------------------------------------------------

    def unknown(self, scene: RehearsalScene) -> tuple[str, ...]:
        """What cannot be known, each with its reason."""
        found = ["Which of several equal nodes the scheduler chooses: the first by name is assumed."]
        unplaced = sum(bool(pod.node) and not pod.converted and pod.devices is None for pod in scene.pods)
        if unplaced:
            found.append(
                f"Which devices {counted(unplaced, 'pod')} of the device plugin {'has' if unplaced == 1 else 'have'}:"
                f" there is no annotation {_PLACED}; pictures show the first free ones. No step depends on it."
            )
        for why, pods in sorted(self._unjudged.items()):
            found.append(f"Whether {counted(pods, 'pod')} may run elsewhere: not judged are {why}.")
        keeps = [str(pod) for pod in scene.pods if pod.keeps]
        if keeps:
            found.append(f"When pods end that must not be evicted: {listed(keeps, 3)}.")
        if self._assumed:
            found.append(
                f"Where {counted(self._assumed, 'pod')} of manifests would run: as the scheduler would place them on"
                " the nodes as they are."
            )
        strange = sorted({state.instance_type or "without a type" for state in self._states if state.after is None})
        if strange:
            types = listed(strange, 3)
            found.append(f"What nodes will publish whose type is not in the catalogue ({types}): no pod fits there.")
        idle = [each.uid for each in self._roots if each.uid and each.uid not in self._with_pods]
        if idle:
            found.append(
                f"What happens to {counted(len(idle), 'workload')} without pods now: not played (`neuron-dra report`)."
            )
        for each in self.assumed:
            if each.added and each.open_labels:
                labels = listed(each.open_labels, 3)
                found.append(
                    f"Which {labels} the assumed nodes of {each.pool} have: no pod that selects one runs there."
                )
        if self._own_claims:
            found.append(
                f"Which devices {listed(self._own_claims, 3)} will take: not played are pods that do not run yet and"
                " have claims of their own."
            )
        if self.unreadable:
            found.append(f"What becomes of {listed(self.unreadable, 3)}: not readable.")
        return tuple(found)

    def told(self) -> list[Workload]:
        """The workloads, with the number of pods that they have."""
        return [
            dataclasses.replace(each, groups=tuple(dataclasses.replace(group, pods=pods) for group in each.groups))
            for each, pods in self.workloads.items()
        ]


def group_name(node: Node, instance_type: str, label: str = "") -> str:
    """The node group of a node: its label `key=value`; without one, its instance type."""
    for key in [label] if label else GROUP_LABELS:
        if node.labels.get(key):
            return f"{key}={node.labels[key]}"
    return f"{names.LABEL_INSTANCE_TYPE}={node.type_label or instance_type}"


def common_labels(entry: InstanceType, nodes: Iterable[Node]) -> dict[str, str]:
    """The labels that a type determines, and those that all of some nodes have."""
    of_type = {key: value for key, value in labels_of(entry).items() if value is not None}
    shared = [set(node.labels.items()) for node in nodes]
    return of_type | dict(sorted(set.intersection(*shared)) if shared else ())


def without_legacy(nodes: Iterable[Node]) -> dict[str, object]:
    """What the first of some nodes offers beside Neuron devices; nothing without one."""
    offered = next((node.allocatable for node in nodes), {})
    return {resource: amount for resource, amount in offered.items() if resource not in names.LEGACY_RESOURCES}


def _name(metadata: Mapping[str, object]) -> tuple[str, str]:
    """Namespace and name."""
    return text(metadata.get("namespace")) or "default", text(metadata.get("name"))


def _loaded(raw: bytes) -> Mapping[str, Any]:
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _owner(metadata: Mapping[str, object]) -> Mapping[str, object]:
    """The controller of a pod; empty if it has none."""
    return next((each for each in mappings(metadata.get("ownerReferences")) if each.get("controller")), {})


def _maker(owner: Mapping[str, object]) -> Maker:
    if not owner:
        return Maker.NOBODY
    return {"DaemonSet": Maker.DAEMON_SET, "Node": Maker.KUBELET}.get(text(owner.get("kind")), Maker.CONTROLLER)
