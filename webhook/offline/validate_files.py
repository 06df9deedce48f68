"""Validates manifests in files as the webhook and the API server would.

All files are one set: a pod is checked with the template that it names, in whichever file it is.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neuron.claim_reader import VERSIONS, read_claim, read_class, shown
from neuron.claim_specs import GROUP, KINDS, ClaimSpec, ClassSpec
from neuron.findings import Finding, Severity, did_you_mean
from neuron.instances import Catalogue
from neuron.validate_claims import ClaimContext, ClaimJudgement, judge_claim, validate
from policies.selectors.engine import DeviceSelectors
from webhook.decisions import check_workloads, pods
from webhook.decisions.check_pods import KnownClaim, claim_names
from webhook.decisions.claim_context import claim_context
from webhook.decisions.conversion_context import ConversionOptions, conversion_context
from webhook.decisions.convert_pods import convert
from webhook.decisions.decision import Decision
from webhook.decisions.own_claims import find_claims
from webhook.decisions.pod_templates import POD_TEMPLATES, Path, path_text
from webhook.decisions.ports import NO_FACTS, NamespaceFacts, WorldView
from webhook.decisions.steering import NO_STEERING, Steering
from webhook.decisions.template_findings import KnownTemplates
from webhook.offline.convert_files import Source
from webhook.offline.manifest_cluster import ManifestCluster
from webhook.offline.manifests import Document, Manifest, manifests, path_steps

if TYPE_CHECKING:
    from webhook.offline.file_policies import FilePolicies

_CLAIM_KINDS = ("ResourceClaim", "ResourceClaimTemplate")


@dataclasses.dataclass(frozen=True, slots=True)
class Located:
    """A finding and the place of its object.

    Attributes:
        source: name of the file.
        line: line of the file, counted from 1.
        subject: kind and name of the object.
        finding: its path is that in the object.
    """

    source: str
    line: int
    subject: str
    finding: Finding


@dataclasses.dataclass(frozen=True, slots=True)
class ValidationReport:
    """The result for all files.

    Attributes:
        located: findings in the order of the files.
        files: number of files.
        objects: number of validated objects.
    """

    located: tuple[Located, ...]
    files: int
    objects: int

    @property
    def errors(self) -> int:
        """Number of findings for which an object or its pods would be denied."""
        return sum(each.finding.severity is Severity.ERROR for each in self.located)

    @property
    def warnings(self) -> int:
        return sum(each.finding.severity is Severity.WARNING for each in self.located)

    @property
    def notes(self) -> int:
        """Number of notes, which policies write only to the audit log."""
        return len(self.located) - self.errors - self.warnings

    def without_notes(self) -> "ValidationReport":
        """The report with errors and warnings only."""
        kept = tuple(each for each in self.located if each.finding.severity is not Severity.NOTE)
        return dataclasses.replace(self, located=kept)


async def validate_sources(
    sources: Sequence[Source],
    options: ConversionOptions,
    live: WorldView | None = None,
    policies: "FilePolicies | None" = None,
) -> ValidationReport:
    """Validate all files.

    Args:
        sources: the files.
        options: as for the webhook.
        live: a cluster to compare them with, or None.
        policies: policies to apply, or None.
    """
    validator = _FileValidator(sources, options, live, policies)
    located: list[Located] = []
    objects = 0
    for source in sources:
        for document in source.documents:
            for manifest in manifests(document):
                findings = await validator.judge(manifest)
                objects += findings is not None
                located += [_locate(source, document, manifest, finding) for finding in findings or ()]
    return ValidationReport(tuple(located), len(sources), objects)


def _locate(source: Source, document: Document, manifest: Manifest, finding: Finding) -> Located:
    line = document.line_of((*manifest.path, *path_steps(finding.path)))
    return Located(source.name, line, str(manifest), finding)


class FileView:
    """A `WorldView` of the files, and of a cluster for everything that is not in the files."""

    def __init__(self, found: Sequence[Manifest], live: WorldView | None) -> None:
        self._files = ManifestCluster(found)
        self._live = live
        self._claims: dict[tuple[str, str, str], ClaimSpec] = {}
        self._classes: dict[str, ClassSpec] = {}
        for manifest in found:
            if manifest.group != GROUP:
                continue
            version, spec = str(manifest.data.get("apiVersion")), manifest.data.get("spec")
            if manifest.kind in _CLAIM_KINDS:
                key = manifest.kind, manifest.namespace, manifest.name
                self._claims[key] = read_claim(manifest.kind, version, spec)[0]
            elif manifest.kind == "DeviceClass":
                self._classes[manifest.name] = read_class(version, spec)[0]

    @property
    def is_live(self) -> bool:
        """Whether there is a cluster."""
        return self._live is not None

    @property
    def version(self) -> int:
        """Files do not change."""
        return 0

    @property
    def claim_version(self) -> int:
        """Files do not change."""
        return 0

    def observations(self) -> Mapping[str, Any]:
        """Only a cluster has nodes."""
        return self._live.observations() if self._live else {}

    def extended_resources(self) -> Mapping[str, str]:
        return {**(self._live.extended_resources() if self._live else {}), **self._files.extended_resources()}

    def namespace(self, name: str) -> NamespaceFacts:
        """The file's Namespace, if there is one."""
        facts = self._files.namespace(name)
        return self._live.namespace(name) if facts == NO_FACTS and self._live else facts

    def namespace_labels(self, name: str) -> Mapping[str, str] | None:
        """The file's Namespace, if there is one."""
        labels = self._files.namespace_labels(name)
        return self._live.namespace_labels(name) if labels is None and self._live else labels

    def quotas(self, name: str) -> Mapping[str, int] | None:
        """The smaller limits of both, because quotas in the files will be applied."""
        found, live = self._files.quotas(name), self._live.quotas(name) if self._live else None
        if found is None or live is None:
            return live if found is None else found
        return {key: min(found.get(key, amount), amount) for key, amount in {**found, **live}.items()}

    def template_device_classes(self, namespace: str, name: str) -> frozenset[str]:
        found = self._files.template_device_classes(namespace, name)
        return found or (self._live.template_device_classes(namespace, name) if self._live else frozenset())

    def template_ultraserver_mode(self, namespace: str, name: str) -> int | None:
        found = self._files.template_ultraserver_mode(namespace, name)
        return self._live.template_ultraserver_mode(namespace, name) if found is None and self._live else found

    def device_shapes(self) -> Sequence[Any]:
        """Only a cluster has slices."""
        return self._live.device_shapes() if self._live else ()

    def device_classes(self) -> Mapping[str, ClassSpec] | None:
        """Of both; None without a cluster, because other classes are unknown."""
        known = self._live.device_classes() if self._live else None
        return None if known is None else {**known, **self._classes}

    def file_classes(self) -> Mapping[str, ClassSpec]:
        """DeviceClasses in the files."""
        return self._classes

    def claim(self, kind: str, namespace: str, name: str) -> ClaimSpec | None:
        """A claim or template in the files; one without a namespace matches every namespace."""
        for key in ((kind, namespace, name), (kind, "", name)):
            if key in self._claims:
                return self._claims[key]
        if namespace:
            return None
        return next((spec for (each, _, known), spec in self._claims.items() if (each, known) == (kind, name)), None)

    def claim_template(self, namespace: str, name: str) -> ClaimSpec | None:
        found = self.claim("ResourceClaimTemplate", namespace, name)
        return self._live.claim_template(namespace, name) if found is None and self._live else found

    async def exist(self, kind: str, namespace: str, names: Iterable[str]) -> Mapping[str, bool | None]:
        """Which objects exist; None if there is no cluster or no namespace."""
        found: dict[str, bool | None] = {
            name: True if self.claim(kind, namespace, name) is not None else None for name in names
        }
        unknown = [name for name, exists in found.items() if exists is None]
        if self._live and namespace and unknown:
            found |= await self._live.exist(kind, namespace, unknown)
        return found


class _FileValidator:
    """One run over all files."""

    def __init__(
        self,
        sources: Sequence[Source],
        options: ConversionOptions,
        live: WorldView | None,
        policies: "FilePolicies | None",
    ) -> None:
        self._options = options
        self._policies = policies
        self._view = FileView(list(_all(sources)), live)
        self._conversion = conversion_context(options, policies.catalogue if policies else Catalogue(), self._view)
        world = claim_context(options, self._conversion.catalogue, self._view)
        classes = {**world.classes, **self._view.file_classes()}
        unconnected = policies is not None and policies.unconnected
        self._world = dataclasses.replace(world, classes=classes, unconnected=unconnected)

    def _for_one_object(self) -> ClaimContext:
        return dataclasses.replace(self._world, engine=DeviceSelectors())

    async def judge(self, manifest: Manifest) -> list[Finding] | None:
        """All findings about one object; None for an object that is not validated."""
        own, by_policies = await self._judge(manifest), self._by_policies(manifest)
        return None if own is None and by_policies is None else [*(own or ()), *(by_policies or ())]

    async def _judge(self, manifest: Manifest) -> list[Finding] | None:
        if manifest.kind in KINDS:
            return self._judge_claim(manifest)
        if (manifest.group, manifest.kind) in POD_TEMPLATES:
            try:
                return await self._judge_workload(manifest)
            except pods.UnreadableError as error:
                message = f"the object is not a readable {manifest.kind}: {error}."
                return [Finding("NEU114", "spec", message, "Compare it with the API reference of its kind.")]
        return None

    def _judge_claim(self, manifest: Manifest) -> list[Finding]:
        version = manifest.data.get("apiVersion")
        if manifest.group != GROUP:
            hint = did_you_mean(str(version), VERSIONS)
            message = f"apiVersion {shown(str(version))} has no {manifest.kind}.{hint}"
            return [Finding("NEU503", "apiVersion", message, f"Write apiVersion: {VERSIONS[0]}.", str(version))]
        spec = manifest.data.get("spec")
        return list(validate(manifest.kind, str(version), spec, self._for_one_object(), accepted=False))

    async def _judge_workload(self, manifest: Manifest) -> list[Finding]:
        if manifest.namespace in self._options.excluded_namespaces:
            return []
        facts = self._view.namespace(manifest.namespace)
        templates = KnownTemplates(manifest.namespace)
        if self._policies is not None:
            specs = {name: self._view.claim_template(manifest.namespace, name) for name in self._policies.named}
            templates = KnownTemplates(manifest.namespace, specs, complete=self._view.is_live)
        context = check_workloads.TemplateContext(facts, self._conversion, self._world, templates)
        findings: list[Finding] = []
        modes: set[int] = set()
        for steps, template in manifest.pod_templates():
            pod = pods.view(template)
            known = {name: await self._claim(manifest, kind, each) for name, kind, each in claim_names(pod)}
            path = path_text(steps)
            steering, faults = self._steering(manifest, template)
            findings += [check_workloads.under(path, fault) for fault in faults if pod.concerns_us]
            findings += check_workloads.check_template(path, pod, known, context, steering)
            modes |= check_workloads.ultraserver_modes(pod, known, context, steering)
        return findings + check_workloads.check_size(manifest.kind, manifest.data, modes)

    def _steering(self, manifest: Manifest, template: dict[str, Any]) -> tuple[Steering, list[Finding]]:
        if self._policies is None:
            return NO_STEERING, []
        return self._policies.steer(manifest, template, self._view)

    def _by_policies(self, manifest: Manifest) -> list[Finding] | None:
        """Findings of policies about an object and its pods; None if no policy matches."""
        if self._policies is None or manifest.namespace in self._options.excluded_namespaces:
            return None
        is_pod = (manifest.group, manifest.kind) == ("", "Pod")
        found_by_policies: list[tuple[Path, list[Finding] | None]] = []
        if not is_pod:
            found_by_policies.append(((), self._policies.judge_object(manifest, self._view)))
        for steps, template in manifest.pod_templates():
            try:
                decision = self._converted(manifest, template)
            except pods.UnreadableError:
                continue  # reported already; it creates no pod
            found_by_policies.append((steps, self._policies.judge_pod(manifest, template, decision, self._view)))
        if all(found is None for _, found in found_by_policies):
            return None
        return [
            check_workloads.under(path_text(steps), each) for steps, found in found_by_policies for each in found or ()
        ]

    def _converted(self, manifest: Manifest, template: dict[str, Any]) -> Decision:
        """The conversion of a template's pods, which policies see converted."""
        pod = pods.view(template)
        claiming = find_claims(pod, manifest.namespace, self._view, self._options.device_class)
        steering, _ = self._steering(manifest, template)
        return convert(pod, self._view.namespace(manifest.namespace), self._conversion, claiming, steering)

    async def _claim(self, manifest: Manifest, kind: str, name: str) -> KnownClaim:
        """The claim that a pod names, as far as it is known."""
        spec = self._view.claim(kind, manifest.namespace, name)
        if spec is None and kind == "ResourceClaimTemplate":
            spec = self._view.claim_template(manifest.namespace, name)
        if spec is not None:
            return KnownClaim(self._judged(spec))
        exist = await self._view.exist(kind, manifest.namespace, [name])
        return KnownClaim(missing=exist[name] is False)

    def _judged(self, spec: ClaimSpec) -> ClaimJudgement:
        return judge_claim(spec, self._for_one_object())


def _all(sources: Sequence[Source]) -> Iterator[Manifest]:
    for source in sources:
        for document in source.documents:
            yield from manifests(document)
