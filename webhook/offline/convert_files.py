"""Converts manifests with the webhook's own conversion: changed documents, needed templates, messages.

Pure: documents in, changes out. A Pod is converted as on CREATE, and so is each pod template of a workload, which the
webhook itself does not change.
"""

import dataclasses
import functools
import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jsonpatch
import orjson

from neuron.families import Families
from neuron.findings import Finding, warning
from neuron.instances import Catalogue
from neuron.templates import Template
from webhook.decisions import leader_worker_sets, pods
from webhook.decisions.check_resources import misspelt_resources
from webhook.decisions.conversion_context import ConversionContext, ConversionOptions
from webhook.decisions.convert_pods import convert
from webhook.decisions.decision import Decision, denied, unchanged
from webhook.decisions.modes import Mode
from webhook.decisions.own_claims import find_claims
from webhook.decisions.pod_places import NOT_REWRITTEN, find_pods
from webhook.decisions.pod_templates import POD_TEMPLATES, WITHOUT_METADATA, Path
from webhook.decisions.steering import NO_STEERING, Steering
from webhook.offline import current_versions
from webhook.offline.manifest_advice import advice
from webhook.offline.manifest_cluster import ManifestCluster
from webhook.offline.manifests import DEFAULT_NAMESPACE, Document, Manifest, manifests
from webhook.offline.notices import TURNED_OFF, Notice, PartDecision, Reporter, Source

if TYPE_CHECKING:
    from webhook.offline.file_policies import FilePolicies


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """The change of one document.

    Attributes:
        document: before the change.
        wanted: data after the change.
        templates: ResourceClaimTemplates to insert before it.
    """

    document: Document
    wanted: dict[str, Any] | None
    templates: Sequence[dict[str, Any]] = ()

    @property
    def rewrites(self) -> bool:
        """Whether the document itself changes."""
        return self.wanted is not self.document.data


@dataclasses.dataclass(frozen=True, slots=True)
class Conversion:
    """The changes of all files.

    Attributes:
        changes: per source, one per document.
        notices: refusals and warnings, in the order of the files.
        refused: number of refused objects.
        left: number of objects that still have Neuron limits, without the refused ones.
    """

    changes: Sequence[tuple[Source, Sequence[Change]]]
    notices: Sequence[Notice]
    refused: int
    left: int


def convert_sources(
    sources: Sequence[Source],
    options: ConversionOptions,
    policies: "FilePolicies | None" = None,
    namespace: str = DEFAULT_NAMESPACE,
) -> Conversion:
    """Convert all files.

    Args:
        sources: the files. Namespaces, ResourceQuotas, LimitRanges, DeviceClasses and ResourceClaimTemplates in one
            file apply to the objects in all files.
        options: as for the webhook. The command `convert` sets the mode `convert`.
        policies: policies that steer conversion, or None.
        namespace: of objects that set none.
    """
    converter = _Converter(sources, options, policies, namespace)
    changes = [(source, [converter.convert(source, document) for document in source.documents]) for source in sources]
    return Conversion(changes, converter.notices, converter.refused, converter.left)


class _Converter:
    """One run over all files; they share templates."""

    def __init__(
        self,
        sources: Sequence[Source],
        options: ConversionOptions,
        policies: "FilePolicies | None",
        namespace: str,
    ) -> None:
        self._policies = policies
        self._namespace = namespace
        documents = (document for source in sources for document in source.documents)
        self._cluster = ManifestCluster(each for document in documents for each in manifests(document, namespace))
        self._world = ConversionContext(
            policies.catalogue if policies else Catalogue(),
            Families(declared=options.families),
            dict(self._cluster.extended_resources()),
            options,
        )
        self._printed: set[tuple[str, str]] = set()
        self.notices: list[Notice] = []
        self.refused = 0
        self.left = 0

    def convert(self, source: Source, document: Document) -> Change:
        """Convert every object of a document."""
        wanted = document.data
        templates: list[dict[str, Any]] = []
        for manifest in manifests(document, self._namespace):
            say = Reporter(source, document, manifest, self.notices)
            patches = list(self._decide(manifest))
            for patch in patches:
                say.decision(patch)
            clashes = list(self._clashes(manifest, patches))
            for path, clash in clashes:
                say.finding(path, clash)
            refused = self._name_pods(manifest, say)
            if refused or clashes or any(patch.decision.errors for patch in patches):
                # A workload of which only a part is converted does not run: leave it unchanged.
                self.refused += 1
                continue
            for path, text in advice(manifest, {patch.path for patch in patches if patch.decision.patch}):
                say.line(path, text)
            current = current_versions.current(manifest)
            if current is not None or any(patch.decision.patch for patch in patches):
                if wanted is document.data:
                    wanted = orjson.loads(orjson.dumps(document.data))
                if current is not None:
                    _replace(wanted, manifest, current)
                _apply(wanted, manifest, patches)
            templates += self._templates(manifest, patches)
            if not manifest.wraps:
                self.left += any(True for _ in find_pods(_part(wanted, manifest.path)))
        return Change(document, wanted, templates)

    def _name_pods(self, manifest: Manifest, say: Reporter) -> bool:
        """Name the pods of an object that cannot be rewritten. Returns whether the webhook would refuse one of them."""
        key = manifest.group, manifest.kind
        if key in POD_TEMPLATES or manifest.wraps or not manifest.kind or "apiVersion" not in manifest.data:
            return False
        refused = False
        for place in find_pods(manifest.data):
            try:
                decision = self._decide_template(manifest, (), place.template).decision
            except pods.UnreadableError:
                continue
            findings = [*misspelt_resources(pods.view(place.template), self._world.extended_resources)]
            if key in NOT_REWRITTEN and decision.errors:
                findings += decision.errors
                refused = True
            elif decision.reason in TURNED_OFF:
                say.decision(PartDecision(place.path, dataclasses.replace(decision, warnings=())))
            elif decision.resource:
                say.finding(place.path, left_as_it_is(manifest))
            for finding in findings:
                say.finding((), dataclasses.replace(finding, path=place.field_path(finding.path)))
        return refused

    def _decide(self, manifest: Manifest) -> Iterator[PartDecision]:
        if (manifest.group, manifest.kind) not in POD_TEMPLATES:
            return
        for path, template in manifest.pod_templates():
            try:
                yield self._decide_template(manifest, path, template)
            except pods.UnreadableError as error:
                yield PartDecision(path, denied("unreadable", _unreadable(manifest, error)))
        if manifest.kind == "LeaderWorkerSet" and manifest.namespace not in self._world.options.excluded_namespaces:
            try:
                placed = self._place(manifest)
            except pods.UnreadableError as error:
                placed = denied("unreadable", _unreadable(manifest, error))
            yield PartDecision((), placed)

    def _place(self, manifest: Manifest) -> Decision:
        workload = leader_worker_sets.decode(orjson.dumps(manifest.data))
        named = leader_worker_sets.named_templates(workload)
        modes_of = leader_worker_sets.ultraserver_modes(named, manifest.namespace, self._cluster)
        facts, default = self._cluster.namespace(manifest.namespace), Mode(self._world.options.mode)
        return leader_worker_sets.place(workload, modes_of, facts, default, self._steerings(manifest))

    def _steerings(self, manifest: Manifest) -> list[Steering]:
        """Steering of the pods of a LeaderWorkerSet. Errors are reported for its pod templates."""
        if self._policies is None:
            return []
        templates = leader_worker_sets.pod_templates(manifest.data)
        return [self._policies.steer(manifest, dict(template), self._cluster)[0] for template in templates]

    def _decide_template(self, manifest: Manifest, path: Path, template: dict[str, Any]) -> PartDecision:
        pod = pods.view(template)
        if not pod.concerns_us:
            return PartDecision(path, unchanged("not-neuron", *misspelt_resources(pod, self._world.extended_resources)))
        if manifest.namespace in self._world.options.excluded_namespaces:
            return PartDecision(path, unchanged("excluded-namespace"))
        facts = self._cluster.namespace(manifest.namespace)
        device_class = self._world.options.device_class
        claiming = find_claims(pod, manifest.namespace, self._cluster, device_class)
        steering, faults = NO_STEERING, list[Finding]()
        if self._policies is not None:
            steering, faults = self._policies.steer(manifest, template, self._cluster)
        decision = convert(pod, facts, self._world, claiming, steering)
        misspelt = tuple(misspelt_resources(pod, self._world.extended_resources))
        if faults or misspelt:
            decision = dataclasses.replace(decision, warnings=(*decision.warnings, *faults, *misspelt))
        if (manifest.group, manifest.kind) in WITHOUT_METADATA:
            patch = tuple(each for each in decision.patch if not each["path"].startswith("/metadata"))
            decision = dataclasses.replace(decision, patch=patch)
        return PartDecision(path, decision, steering.policy)

    def _clashes(self, manifest: Manifest, patches: Sequence[PartDecision]) -> Iterator[tuple[Path, Finding]]:
        """Templates in the manifests that have the name of a generated template and another spec."""
        for patch in patches:
            for template in patch.decision.templates:
                digest = self._cluster.template_digest(manifest.namespace, template.name)
                if digest not in (None, template.digest):
                    yield patch.path, _foreign(template)

    def _templates(self, manifest: Manifest, patches: Sequence[PartDecision]) -> Iterator[dict[str, Any]]:
        """The templates that an object needs, except those printed before or present in the manifests."""
        for patch in patches:
            for template in patch.decision.templates:
                key = (manifest.namespace, template.name)
                if key not in self._printed and self._cluster.template_digest(*key) is None:
                    self._printed.add(key)
                    yield template.manifest(manifest.written_namespace)


def left_as_it_is(manifest: Manifest) -> Finding:
    why = NOT_REWRITTEN.get((manifest.group, manifest.kind), "neuron-dra does not know this kind")
    return warning(
        "NEU220",
        "",
        f"the {manifest.kind} is left as it is: {why}.",
        "The webhook converts its pods when they are created.",
        manifest.kind,
    )


def _part(data: Any, path: Path) -> Any:
    return functools.reduce(operator.getitem, path, data)


def _replace(wanted: Any, manifest: Manifest, current: dict[str, Any]) -> None:
    """Replace an object in a copy of the document's data."""
    if not manifest.path:
        wanted.update(current)
        return
    *above, last = manifest.path
    owner = _part(wanted, tuple(above))
    given = owner[last]
    # An item of a typed list may take apiVersion and kind from the list.
    owner[last] = orjson.loads(orjson.dumps({name: value for name, value in current.items() if name in given}))
    if "apiVersion" not in given:
        _part(wanted, tuple(above[:-1]))["apiVersion"] = current["apiVersion"]


def _apply(wanted: Any, manifest: Manifest, patches: Sequence[PartDecision]) -> None:
    """Apply decisions to a copy of the document's data."""
    for patch in patches:
        part = _part(wanted, (*manifest.path, *patch.path))
        # A copy: values of the patch become part of the data, and later operations may change them.
        operations = orjson.loads(orjson.dumps(patch.decision.patch))
        before = dict(part)
        jsonpatch.apply_patch(part, operations, in_place=True)
        if patch.path and "metadata" in part and "metadata" not in before:
            # By convention, metadata comes before the spec.
            metadata = part.pop("metadata")
            rest = dict(part)
            part.clear()
            part.update({"metadata": metadata, **rest})


def _unreadable(manifest: Manifest, error: Exception) -> Finding:
    """The error of `/mutate`; the path is the place that the decoder reports."""
    path, message = pods.place(error)
    what = "Pod" if POD_TEMPLATES[manifest.group, manifest.kind] == ((),) else "pod template"
    return Finding(
        "NEU114",
        path,
        f"the object contains no readable {what}: {message}.",
        "Compare it with the API reference of its kind.",
    )


def _foreign(template: Template) -> Finding:
    return Finding(
        "NEU303",
        "spec.resourceClaims",
        f"a ResourceClaimTemplate {template.name} in the manifests has another spec than its name's hash.",
        "Remove it: the right one is printed instead.",
        template.name,
    )
