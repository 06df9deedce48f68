"""Joins the parts: pods of files, and pods of a cluster, to explanations. Pure."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from checks.claims.device_index import SelectorError
from cluster.resources import PODS
from commands.cluster.reader import ENDED, Object, items
from commands.cluster.snapshot import stored
from commands.devices.allocator_inputs import PodClaim, UnknownClassError, read_demand
from commands.devices.node_devices import ClusterDevices
from commands.explain.admission_preview import AdmissionPreview, Chosen, Previewer, store_of
from commands.explain.diagnosis import diagnose
from commands.explain.explanation import Block, Blocked, DiagnosisInputs, Explanation, NodeVerdict, gates_of
from commands.explain.placement import judge, place
from commands.explain.reads import KUEUE_GATE, QUEUED, Live, StoredPod, live_manifest
from commands.objects.manifest_files import ManifestSource
from commands.objects.manifests import Manifest, manifests
from conversion.claims.containers import scheduled
from conversion.findings.pod_findings import READERS, unread
from conversion.patches.decision import Outcome
from neuron.api.claim_reader import claim_spec
from neuron.api.claim_specs import ClaimSpec, DeviceRequest, Request
from neuron.api.fields import mapping, mappings
from neuron.api.nodes import Node
from neuron.api.stored_claims import Allocation, StoredClaim
from neuron.api.workloads import POD_GROUP, ULTRASERVER_WORKLOAD, group_of, template_of
from runtime.text import cited, named

_OTHERS: Final = "Not judged: devices of other drivers ({})."
_NO_LOADS: Final = "Not judged: CPU, memory and the number of pods of nodes, because pods cannot be listed."


class Explainer:
    """Explains pods of files, with or without a cluster, and pods of a cluster.

    Attributes:
        unread: lines about objects in the files on which decisions depend, and that have a wrong form; after `files`.
        pods: how many were explained.
        blocked: whether one of them is refused, or does not run.
    """

    def __init__(
        self,
        chosen: Chosen,
        files: Sequence[ManifestSource] = (),
        facts: Iterable[Manifest] = (),
        live: Live | None = None,
        namespace: str = "",
    ) -> None:
        """Prepare.

        Args:
            facts: the objects of the files that mean something for others; they count before those of the cluster.
            live: a cluster, or None.
            namespace: of objects in files that set none.
        """
        self.unread: list[str] = []
        self.pods = 0
        self.blocked = False
        self._live = live
        self._files = files
        self._namespace = namespace
        self._view = store_of(
            [*(live.objects if live else ()), *facts],
            {**stored(live.snapshot), **live.pools} if live else None,
            listed=live.listed if live else (),
            kubernetes=live.version if live else "",
            unknown_pools=live.unknown_pools if live else "",
        )
        self._previewer = Previewer(self._view, chosen)
        catalogue = chosen.policies.catalogue if chosen.policies else None
        self._cluster = ClusterDevices.of(live.snapshot, live.version, catalogue) if live else None
        claims = items(live.snapshot.claims) if live else ()
        self._claims = {(each.metadata.namespace, each.metadata.name): each for each in claims}

    def files(self) -> Iterator[Explanation]:
        """The pods of the files, in their order."""
        for source in self._files:
            for document in source.documents:
                for manifest in list(manifests(document, self._namespace)):
                    place = f"{source.name}:{document.line_of(manifest.path)}"
                    if (manifest.group, manifest.kind) in READERS:
                        found = unread(manifest.group, manifest.kind, manifest.data)
                        self.unread += [f"{place}: {each.path}: {each}" for each in found]
                    yield from map(self._explained, list(self._previewer.previews(manifest, place)))

    def workload(self, manifest: Manifest) -> Iterator[Explanation]:
        """The pods that a workload of the cluster creates."""
        yield from map(self._explained, self._previewer.previews(manifest, ""))

    def pod(self, facts: StoredPod) -> Explanation:
        """A pod of the cluster, which exists."""
        pod = facts.pod or {}
        manifest = live_manifest(_unbound(pod), PODS, "Pod")
        preview = self._previewer.stored(manifest)
        claims = self._claims_of(pod)
        namespace = str(pod["metadata"].get("namespace") or "")
        labels = self._view.namespace_labels(namespace)
        nodes, notes, unknown_class = self._nodes(preview, pod, claims)
        live = self._live
        bound = (pod.get("spec") or {}).get("nodeName")
        all_nodes = self._cluster.nodes if self._cluster else ()
        groups = self._objects(POD_GROUP, namespace)
        group = next((each.data for each in groups if each.name == group_of(pod)), None)
        knows_groups = live is not None and (POD_GROUP, namespace) in live.listed
        group_missing = knows_groups and bool(group_of(pod)) and group is None
        templates = self._templates_of(pod)
        workloads = self._objects(ULTRASERVER_WORKLOAD, namespace)
        diagnosis = diagnose(
            DiagnosisInputs(
                pod,
                facts.events,
                preview,
                claims=claims,
                templates=templates,
                nodes=nodes,
                node=next((node for node in all_nodes if bound and node.name == bound), None),
                all_nodes=all_nodes,
                slices=items(live.snapshot.slices) if live else (),
                not_called=live.installation.not_called(namespace, labels) if live else "",
                unknown_class=unknown_class,
                in_tree=self._in_tree(pod) is not None,
                group=group,
                group_missing=group_missing,
                workload=next((each.data for each in workloads if template_of(each.data) in templates), None),
                queued=self._queued(pod),
            )
        )
        told = (*notes, *facts.notes, *(live.notes if live else ()))
        return self._counted(Explanation(preview, None if bound else nodes, told, diagnosis))

    def _explained(self, preview: AdmissionPreview) -> Explanation:
        return self._counted(self._explanation(preview))

    def _counted(self, explanation: Explanation) -> Explanation:
        self.pods += 1
        self.blocked = self.blocked or explanation.blocked
        return explanation

    # --- where it could run -------------------------------------------------------------------------------------

    def _explanation(self, preview: AdmissionPreview) -> Explanation:
        notes = self._live.notes if self._live else ()
        # Thousands of pods are explained together: what is printed does not need them.
        shown = dataclasses.replace(preview, before={}, after={})
        if preview.refused or not preview.concerns_us:
            return Explanation(shown, None, notes)
        nodes, more, unknown_class = self._nodes(preview, preview.after, {})
        if unknown_class:
            more = (*more, f"DeviceClass {named(unknown_class)} does not exist: no node can take the pod.")
        if preview.decision.outcome is Outcome.SHADOWED:
            more = (*more, "--mode convert explains what conversion would make of it.")
        return Explanation(shown, nodes, (*more, *notes))

    def _nodes(
        self, preview: AdmissionPreview, pod: Object, claims: Mapping[str, StoredClaim | None]
    ) -> tuple[tuple[NodeVerdict, ...] | None, tuple[str, ...], str]:
        """The verdicts, notes, and a DeviceClass that does not exist."""
        cluster = self._cluster
        if cluster is None:
            return None, (), ""
        unjudged: tuple[str, ...] = (_NO_LOADS,) if cluster.loads is None else ()
        implicit = self._in_tree(preview.after)
        if +scheduled(preview.after.get("spec")) and not preview.claims and implicit is None:
            return place_legacy(pod, cluster), unjudged, ""
        waiting = [implicit] if implicit else []
        allocated: list[Allocation] = []
        notes: list[str] = []
        for use in preview.claims:
            own = claims.get(use.name)
            if own is None and use.kind == "ResourceClaim":
                own = self._claims.get((preview.namespace, use.object))
            spec = (claim_spec(own.spec) if own is not None and own.spec else None) or use.spec
            if own is not None and own.allocation is not None:
                allocated.append(own.allocation)
            elif spec is None:
                why = "has the wrong form" if use.known else "is not known"
                notes.append(f"Nodes are not judged: {use.kind} {named(use.object)} of claim {named(use.name)} {why}.")
            else:
                waiting.append(PodClaim(use.name, spec))
        if notes:
            return None, tuple(notes), ""
        try:
            demand = read_demand(waiting, self._view.device_classes(), cluster.selects)
        except UnknownClassError as error:
            return None, (), str(error)
        except SelectorError as error:
            return None, (f"Nodes are not judged: a selector of the claim cannot be evaluated: {cited(error)}.",), ""
        if demand.elsewhere:
            unjudged = (_OTHERS.format(", ".join(map(named, demand.elsewhere))), *unjudged)
        found = place(preview.after, demand, allocated, cluster)
        if implicit:
            # On a node with a device plugin, its resources count first.
            plugin = {each.node: each for each in place_legacy(preview.after, cluster)}
            offers = {node.name for node in cluster.nodes if node.legacy}
            found = tuple(plugin[each.node] if each.node in offers else each for each in found)
        return found, unjudged, ""

    def _in_tree(self, pod: Object) -> PodClaim | None:
        """The claim that the scheduler makes for a pod's limits, if DeviceClasses serve all of them (KEP-5004)."""
        wanted, serving = +scheduled(pod.get("spec")), self._previewer.context.extended_resources
        if not wanted or any(resource not in serving for resource in wanted):
            return None
        requests = []
        for number, (resource, amount) in enumerate(wanted.items()):
            name = f"request-{number}"
            requests.append(Request("", name, (DeviceRequest("", name, serving[resource], count=amount),)))
        return PodClaim("extended-resources", ClaimSpec("", tuple(requests)))

    # --- a pod of the cluster -----------------------------------------------------------------------------------

    def _claims_of(self, pod: Object) -> dict[str, StoredClaim | None]:
        """The claim of each entry of `spec.resourceClaims`; None if it does not exist."""
        namespace = pod["metadata"].get("namespace") or ""
        statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
        made = {each.get("name"): each.get("resourceClaimName") for each in statuses}
        found: dict[str, StoredClaim | None] = {}
        for entry in (pod.get("spec") or {}).get("resourceClaims") or ():
            name = entry.get("resourceClaimName") or made.get(entry.get("name"))
            if entry.get("resourceClaimTemplateName") and entry.get("name") in made and not name:
                continue  # The controller decided that no claim is needed.
            found[str(entry.get("name"))] = self._claims.get((namespace, name)) if name else None
        return found

    def _objects(self, kind: str, namespace: str) -> Iterator[Manifest]:
        found = self._live.objects if self._live else ()
        return (each for each in found if (each.kind, each.namespace) == (kind, namespace))

    def _templates_of(self, pod: Object) -> dict[str, bool | None]:
        namespace = pod["metadata"].get("namespace") or ""
        listed = self._live is not None and ("ResourceClaimTemplate", namespace) in self._live.listed
        known = {each.name for each in self._objects("ResourceClaimTemplate", namespace)}
        wanted = [each.get("resourceClaimTemplateName") for each in (pod.get("spec") or {}).get("resourceClaims") or ()]
        return {name: name in known if listed else None for name in wanted if name}

    def _queued(self, pod: Object) -> Object | None:
        """The Workload that Kueue made of a pod which it holds back; of several pods, they own it together."""
        metadata = pod["metadata"]
        if not metadata.get("uid") or KUEUE_GATE not in gates_of(pod):
            return None
        known = self._objects(QUEUED[1], metadata.get("namespace") or "")
        for each in known:
            owners = mappings(mapping(each.data.get("metadata")).get("ownerReferences"))
            if each.group == QUEUED[0] and any(owner.get("uid") == metadata["uid"] for owner in owners):
                return each.data
        return None


def _unbound(pod: Object) -> Object:
    """The pod as it was admitted: conversion leaves a pod with `nodeName` alone."""
    spec = {key: value for key, value in (pod.get("spec") or {}).items() if key != "nodeName"}
    return {**pod, "spec": spec}


# --- nodes for the limits of the device plugin ------------------------------------------------------------------------


# The scheduler counts extended resources: the node's allocatable amount, less what its pods request.


def place_legacy(pod: Object, cluster: ClusterDevices) -> tuple[NodeVerdict, ...]:
    """The verdict for each node, by name."""
    wanted = scheduled(pod.get("spec"))
    used: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for each in cluster.pods:
        node = (each.get("spec") or {}).get("nodeName")
        if node and (each.get("status") or {}).get("phase") not in ENDED:
            used[node].update(scheduled(each.get("spec")))
    return judge(pod, cluster, lambda node: _missing(node, wanted, used[node.name]) or ())


def _missing(node: Node, wanted: Counter[str], used: Counter[str]) -> Blocked | None:
    for resource, amount in wanted.items():
        offered = node.offered(resource)
        if not offered:
            return Blocked(Block.NO_PLUGIN, f"no device plugin offers {resource} there")
        if offered - used[resource] < amount:
            free = max(0, offered - used[resource])
            return Blocked(Block.HELD, f"{free} of {offered} {resource} free, the pod needs {amount}", free=free)
    return None
