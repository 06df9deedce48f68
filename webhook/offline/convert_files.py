"""Converts manifests with the webhook's own conversion: changed documents, needed templates, messages.

Pure: documents in, changes out. A Pod is converted as on CREATE, and so is each pod template of a workload, which the
webhook itself does not change.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import jsonpatch
import orjson

from neuron import names
from neuron.families import Families
from neuron.findings import Finding, warning
from neuron.instances import Catalogue
from neuron.templates import Template
from webhook.decisions import leader_worker_sets, pods
from webhook.decisions.conversion_context import ConversionContext, ConversionOptions
from webhook.decisions.convert_pods import convert
from webhook.decisions.decision import Decision, denied, unchanged
from webhook.decisions.modes import Mode
from webhook.decisions.own_claims import find_claims
from webhook.decisions.pod_templates import POD_TEMPLATES, Path, path_text
from webhook.decisions.steering import NO_STEERING, Steering
from webhook.offline.manifest_advice import advice
from webhook.offline.manifest_cluster import ManifestCluster
from webhook.offline.manifests import Document, Manifest, manifests, path_steps

if TYPE_CHECKING:
    from webhook.offline.file_policies import FilePolicies

_NAMESPACE: Final = ("metadata", "namespace")
"""Path of findings about the object as a whole, even if a pod template caused them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A file. `mark` is its byte order mark, or ""."""

    name: str
    mark: str
    documents: Sequence[Document]


@dataclasses.dataclass(frozen=True, slots=True)
class Notice:
    """A message about one place.

    Attributes:
        source: the file's name.
        line: line of the file, counted from 1.
        where: document and object, e.g. `document 2, Pod team/train`.
        path: field path in the document; empty for the whole object.
        text: code, sentence and fix.
    """

    source: str
    line: int
    where: str
    path: str
    text: str

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}: [{self.where}]"
        return ": ".join(filter(None, (f"{place} {self.path}".rstrip(), self.text)))


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
    """

    changes: Sequence[tuple[Source, Sequence[Change]]]
    notices: Sequence[Notice]
    refused: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Patch:
    """The decision about a part of an object, and the policy that steered it, or ""."""

    path: Path
    decision: Decision
    policy: str = ""


def convert_sources(
    sources: Sequence[Source], options: ConversionOptions, policies: "FilePolicies | None" = None
) -> Conversion:
    """Convert all files.

    Args:
        sources: the files. Namespaces, ResourceQuotas, LimitRanges, DeviceClasses and ResourceClaimTemplates in one
            file apply to the objects in all files.
        options: as for the webhook. The command `convert` sets the mode `convert`.
        policies: policies that steer conversion, or None.
    """
    converter = _Converter(sources, options, policies)
    changes = [(source, [converter.convert(source, document) for document in source.documents]) for source in sources]
    return Conversion(changes, converter.notices, converter.refused)


class _Converter:
    """One run over all files; they share templates."""

    def __init__(self, sources: Sequence[Source], options: ConversionOptions, policies: "FilePolicies | None") -> None:
        self._policies = policies
        self._cluster = ManifestCluster(
            manifest for source in sources for document in source.documents for manifest in manifests(document)
        )
        self._world = ConversionContext(
            policies.catalogue if policies else Catalogue(),
            Families(declared=options.families),
            dict(self._cluster.extended_resources()),
            options,
        )
        self._printed: set[tuple[str, str]] = set()
        self.notices: list[Notice] = []
        self.refused = 0

    def convert(self, source: Source, document: Document) -> Change:
        """Convert every object of a document."""
        wanted = document.data
        templates: list[dict[str, Any]] = []
        for manifest in manifests(document):
            say = _Reporter(source, document, manifest, self.notices)
            patches = list(self._decide(manifest))
            for patch in patches:
                say.decision(patch)
            clashes = list(self._clashes(manifest, patches))
            for path, clash in clashes:
                say.finding(path, clash)
            if clashes or any(patch.decision.errors for patch in patches):
                # A workload of which only a part is converted does not run: leave it unchanged.
                self.refused += 1
                continue
            for path, text in advice(manifest, {patch.path for patch in patches if patch.decision.patch}):
                say.line(path, text)
            if any(patch.decision.patch for patch in patches):
                if wanted is document.data:
                    wanted = orjson.loads(orjson.dumps(document.data))
                _apply(wanted, manifest, patches)
            templates += self._templates(manifest, patches)
        return Change(document, wanted, templates)

    def _decide(self, manifest: Manifest) -> Iterator[_Patch]:
        if (manifest.group, manifest.kind) not in POD_TEMPLATES:
            return
        for path, template in manifest.pod_templates():
            try:
                yield self._decide_template(manifest, path, template)
            except pods.UnreadableError as error:
                yield _Patch(path, denied("unreadable", _unreadable(manifest, error)))
        if manifest.kind == "LeaderWorkerSet" and manifest.namespace not in self._world.options.excluded_namespaces:
            try:
                placed = self._place(manifest)
            except pods.UnreadableError as error:
                placed = denied("unreadable", _unreadable(manifest, error))
            yield _Patch((), placed)

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

    def _decide_template(self, manifest: Manifest, path: Path, template: dict[str, Any]) -> _Patch:
        pod = pods.view(template)
        if not pod.concerns_us:
            return _Patch(path, unchanged("not-neuron"))
        if manifest.namespace in self._world.options.excluded_namespaces:
            return _Patch(path, unchanged("excluded-namespace"))
        facts = self._cluster.namespace(manifest.namespace)
        device_class = self._world.options.device_class
        claiming = find_claims(pod, manifest.namespace, self._cluster, device_class)
        steering, faults = NO_STEERING, list[Finding]()
        if self._policies is not None:
            steering, faults = self._policies.steer(manifest, template, self._cluster)
        decision = convert(pod, facts, self._world, claiming, steering)
        if self._policies is not None:
            decision = self._policies.checked(decision, manifest.namespace, self._world.options, self._cluster)
        if faults:
            decision = dataclasses.replace(decision, warnings=(*decision.warnings, *faults))
        return _Patch(path, decision, steering.policy)

    def _clashes(self, manifest: Manifest, patches: Sequence[_Patch]) -> Iterator[tuple[Path, Finding]]:
        """Templates in the manifests that have the name of a generated template and another spec."""
        for patch in patches:
            for template in patch.decision.templates:
                digest = self._cluster.template_digest(manifest.namespace, template.name)
                if digest not in (None, template.digest):
                    yield patch.path, _foreign(template)

    def _templates(self, manifest: Manifest, patches: Sequence[_Patch]) -> Iterator[dict[str, Any]]:
        """The templates that an object needs, except those printed before or present in the manifests."""
        for patch in patches:
            for template in patch.decision.templates:
                key = (manifest.namespace, template.name)
                if key not in self._printed and self._cluster.template_digest(*key) is None:
                    self._printed.add(key)
                    yield template.manifest(manifest.namespace)


def _apply(wanted: Any, manifest: Manifest, patches: Sequence[_Patch]) -> None:
    """Apply decisions to a copy of the document's data."""
    for patch in patches:
        part = wanted
        for step in (*manifest.path, *patch.path):
            part = part[step]
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


class _Reporter:
    """Writes notices about one object."""

    def __init__(self, source: Source, document: Document, manifest: Manifest, notices: list[Notice]) -> None:
        self._source = source
        self._document = document
        self._manifest = manifest
        self._notices = notices
        self._reported: set[Notice] = set()

    def line(self, path: Path, text: str) -> None:
        """Add a message about a place in the object, unless it was added before."""
        path = (*self._manifest.path, *path)
        line = self._document.line_of(path)
        where = ", ".join(filter(None, (f"document {self._document.number}", str(self._manifest))))
        notice = Notice(self._source.name, line, where, path_text(path), text)
        if notice not in self._reported:
            self._reported.add(notice)
            self._notices.append(notice)

    def finding(self, path: Path, finding: Finding) -> None:
        """Add a finding about the part of the object at `path`."""
        steps = path_steps(finding.path)
        self.line(steps if steps == _NAMESPACE else (*path, *steps), str(finding))

    def decision(self, patch: _Patch) -> None:
        """Add the findings of a decision, and the reason if a part is not converted."""
        for finding in (*patch.decision.errors, *patch.decision.warnings, *_repeated(patch.decision)):
            self.finding(patch.path, finding)
        match patch.decision.reason:
            case "mode-off-by-pod":
                path = (*patch.path, "metadata", "annotations", names.ANNOTATION_CONVERT)
                self.line(path, "not converted: the annotation turns conversion off.")
            case "mode-off-by-namespace":
                text = f"{names.ANNOTATION_CONVERT} of Namespace {self._manifest.namespace} turns it off."
                self.line(_NAMESPACE, f"not converted: {text}")
            case "mode-off-by-policy":
                self.line(patch.path, f"not converted: policy '{patch.policy}' turns it off.")
            case "excluded-namespace":
                text = f"namespace {self._manifest.namespace} is excluded (--exclude-namespace)."
                self.line(_NAMESPACE, f"not converted: {text}")


def _repeated(decision: Decision) -> Iterator[Finding]:
    """NEU209 for containers that refer to one claim more than once.

    Not reported by the webhook: only server-side apply of such a manifest fails.
    """
    references: Counter[tuple[str, str]] = Counter()
    for operation in decision.patch:
        container, claims, _ = operation["path"].partition("/resources/claims")
        if claims and operation["op"] == "add":
            added = operation["value"]
            references.update((container, entry["name"]) for entry in (added if isinstance(added, list) else [added]))
    for (container, claim), count in references.items():
        if count > 1:
            _, section, index = container.removeprefix("/").split("/")
            yield warning(
                "NEU209",
                f"spec.{section}[{index}].resources.claims",
                f"the container refers to claim {claim} {count} times, which kubectl apply --server-side refuses.",
                "Apply it client-side.",
                claim,
            )


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
