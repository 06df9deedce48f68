"""Converts manifests with the webhook's own conversion: changed documents, needed templates, messages.

Pure: one document in, one change out. A Pod is converted as on CREATE, and so is each pod template of a workload,
which the webhook itself does not change.
"""

import dataclasses
import functools
import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jsonpatch
import orjson

from commands.objects import current_versions
from commands.objects.documents import Document
from commands.objects.manifest_advice import advice, uncounted
from commands.objects.manifest_cluster import ManifestCluster
from commands.objects.manifests import DEFAULT_NAMESPACE, Manifest, manifests
from commands.objects.notices import TURNED_OFF, Notice, PartDecision, Reporter
from commands.objects.shapes import Look, Recorded, Shapes
from commands.objects.text_edits import Splice
from commands.rewrite.yaml_edits import EditError, edit
from commands.rewrite.yaml_layout import Layout
from neuron.demand.families import Families
from neuron.demand.templates import Template
from neuron.findings import Finding, warning
from neuron.hardware.instances import Catalogue
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

if TYPE_CHECKING:
    from commands.objects.file_policies import FilePolicies


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """The change of one document.

    Attributes:
        document: before the change.
        templates: ResourceClaimTemplates to insert before it.
        rewrites: whether the document itself changes.
        wanted: data after the change; None if only the text was computed.
        splices: the change of the text; None if it was not computed, or the text must be written again as a whole.
        layout: of the text.
        fault: why the text must be written again as a whole; or "".
    """

    document: Document
    templates: Sequence[dict[str, Any]] = ()
    rewrites: bool = False
    wanted: dict[str, Any] | None = None
    splices: tuple[Splice, ...] | None = ()
    layout: Layout = dataclasses.field(default_factory=Layout)
    fault: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class _Outcome:
    """What conversion found about a document, apart from its change.

    Attributes:
        templates: of all objects, with their namespaces: where they are created, and as written.
        notices: messages.
        refused: number of refused objects.
        left: number of objects that still have Neuron limits, without the refused ones.
    """

    templates: tuple[tuple[str, str, Template], ...]
    notices: tuple[Notice, ...]
    refused: int
    left: int


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """How files are converted.

    Attributes:
        options: as for the webhook. The command `convert` sets the mode `convert`.
        policies: policies that steer conversion, or None.
        namespace: of objects that set none.
        texts: whether texts are changed; without it, only data.
    """

    options: ConversionOptions
    policies: "FilePolicies | None" = None
    namespace: str = DEFAULT_NAMESPACE
    texts: bool = True


class Converter:
    """One run over all files; they share templates.

    Namespaces, ResourceQuotas, LimitRanges, DeviceClasses and ResourceClaimTemplates apply to the objects in all files:
    they are passed to `take` first.

    Attributes:
        notices: messages about the documents that were converted; the caller may empty it.
        refused: number of refused objects.
        left: number of objects that still have Neuron limits, without the refused ones.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._policies = settings.policies
        self._cluster = ManifestCluster()
        self._printed: set[tuple[str, str]] = set()
        # Policies may read every field, and JSON output needs the data.
        self._shapes = Shapes[tuple[Change, _Outcome]]() if settings.texts and settings.policies is None else None
        self.notices: list[Notice] = []
        self.refused = 0
        self.left = 0

    def take(self, manifest: Manifest) -> None:
        """Read what an object means for others."""
        self._cluster.take(manifest)

    @functools.cached_property
    def _world(self) -> ConversionContext:
        catalogue = self._policies.catalogue if self._policies else Catalogue()
        return ConversionContext(
            catalogue.scheduled(tries_orders=self._settings.options.tries_orders("")),
            Families(declared=self._settings.options.families),
            dict(self._cluster.extended_resources()),
            self._settings.options,
        )

    def convert(self, source: str, document: Document) -> Change:
        """Convert every object of a document. `source`: name of its file."""
        look = Look.at(document.text) if self._shapes is not None and not document.json else None
        known = self._shapes.find(look) if self._shapes is not None and look is not None else None
        if known is not None and look is not None:
            change, outcome = _moved(known, source, document, look)
        else:
            change, outcome = self._convert(source, document)
            if self._shapes is not None and look is not None and document.root is not None and not change.fault:
                found = list(manifests(document, self._settings.namespace))
                if len(found) == 1:
                    # Without its text and nodes, which take much memory.
                    light = dataclasses.replace(change, document=Document(0, "", document.line), wanted=None)
                    self._shapes.record(look, document.root, found[0], change.splices or (), (light, outcome))
        self.notices += outcome.notices
        self.refused += outcome.refused
        self.left += outcome.left
        return dataclasses.replace(change, templates=list(self._unprinted(outcome)))

    def _convert(self, source: str, document: Document) -> tuple[Change, _Outcome]:
        wanted = document.data
        templates: list[tuple[str, str, Template]] = []
        notices: list[Notice] = []
        refused = left = 0
        for manifest in manifests(document, self._settings.namespace):
            say = Reporter(source, document, manifest, notices)
            patches = list(self._decide(manifest))
            for patch in patches:
                say.decision(patch)
            clashes = list(self._clashes(manifest, patches))
            for path, clash in clashes:
                say.finding(path, clash)
            would_be_refused = self._name_pods(manifest, say)
            if would_be_refused or clashes or any(patch.decision.errors for patch in patches):
                # A workload of which only a part is converted does not run: leave it unchanged.
                refused += 1
                continue
            for finding in uncounted(manifest, patches, self._world.options.device_class):
                say.finding((), finding)
            for path, text in advice(manifest, {patch.path for patch in patches if patch.decision.patch}):
                say.line(path, text)
            current = current_versions.current(manifest)
            if current is not None or any(patch.decision.patch for patch in patches):
                if wanted is document.data:
                    wanted = orjson.loads(orjson.dumps(document.data))
                if current is not None:
                    _replace(wanted, manifest, current)
                _apply(wanted, manifest, patches)
            here, written = manifest.namespace, manifest.written_namespace
            templates += [(here, written, each) for patch in patches for each in patch.decision.templates]
            if not manifest.wraps:
                left += any(True for _ in find_pods(_part(wanted, manifest.path)))
        change = self._change(document, wanted)
        return change, _Outcome(tuple(templates), tuple(notices), refused, left)

    def _change(self, document: Document, wanted: dict[str, Any] | None) -> Change:
        rewrites = wanted is not document.data
        layout = Layout.of(document.text, document.root)
        if not rewrites or not self._settings.texts:
            return Change(document, (), rewrites, wanted, layout=layout)
        if document.json or document.root is None:
            return Change(document, (), rewrites, wanted, splices=None, layout=layout)
        try:
            splices = tuple(edit(document.text, document.root, wanted))
        except EditError as error:
            return Change(document, (), rewrites, wanted, splices=None, layout=layout, fault=str(error))
        return Change(document, (), rewrites, wanted, splices, layout)

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
        if manifest.kind == "LeaderWorkerSet" and manifest.namespace not in self._settings.options.excluded_namespaces:
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
        if manifest.namespace in self._settings.options.excluded_namespaces:
            return PartDecision(path, unchanged("excluded-namespace"))
        facts = self._cluster.namespace(manifest.namespace)
        device_class = self._world.options.device_class
        claiming = find_claims(pod, manifest.namespace, self._cluster, device_class)
        steering, faults = NO_STEERING, list[Finding]()
        if self._policies is not None:
            steering, faults = self._policies.steer(manifest, template, self._cluster)
        decision = convert(pod, facts, self._world, claiming, steering)
        if self._policies is not None:
            decision = self._policies.checked(decision, manifest.namespace, self._world.options, self._cluster)
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

    def _unprinted(self, outcome: _Outcome) -> Iterator[dict[str, Any]]:
        """The templates that a document needs, except those printed before or present in the manifests."""
        for namespace, written, template in outcome.templates:
            key = (namespace, template.name)
            if key not in self._printed and self._cluster.template_digest(*key) is None:
                self._printed.add(key)
                yield template.manifest(written)


def _moved(
    known: Recorded[tuple[Change, _Outcome]], source: str, document: Document, look: Look
) -> tuple[Change, _Outcome]:
    """The result of another document, for a document that differs in values that do not matter."""
    change, outcome = known.result
    name, first = known.name_in(look), known.name_in(known.look)
    notices = tuple(
        dataclasses.replace(
            each,
            source=source,
            number=document.number,
            line=each.line - change.document.line + document.line,
            subject=each.subject if name is None else f"{each.subject.removesuffix(first or '')}{name}",
        )
        for each in outcome.notices
    )
    splices = None if change.splices is None else tuple(known.splices(change.splices, look))
    return (
        dataclasses.replace(change, document=document, splices=splices, wanted=None),
        dataclasses.replace(outcome, notices=notices),
    )


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
    if template.policy:
        return Finding(
            "NEU122",
            "spec.resourceClaims",
            f"a ResourceClaimTemplate {template.name} in the manifests has another spec than policy"
            f" '{template.policy}' gives it.",
            "Give the template a new name in the policy, or remove it from the manifests.",
            template.name,
        )
    return Finding(
        "NEU303",
        "spec.resourceClaims",
        f"a ResourceClaimTemplate {template.name} in the manifests has another spec than its name's hash.",
        "Remove it: the right one is printed instead.",
        template.name,
    )
