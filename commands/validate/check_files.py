"""Validates manifests in files as the webhook and the API server would.

All files are one set: a pod is checked with the template that it names, in whichever file it is.
"""

import dataclasses
import functools
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from msgspec import structs

from commands.objects.current_versions import CURRENT, is_older
from commands.objects.documents import Document
from commands.objects.file_view import FileView
from commands.objects.manifests import DEFAULT_NAMESPACE, Manifest, manifests, path_steps
from commands.objects.shapes import Look, Recorded, Shapes
from commands.rewrite.convert_files import left_as_it_is
from neuron.api import taint_rules
from neuron.api.claim_reader import VERSIONS, shown
from neuron.api.claim_specs import GROUP, KINDS, ClaimSpec
from neuron.check.claims import ClaimContext, ClaimJudgement, judge_claim, validate
from neuron.check.taint_rules import check_taint_rule
from neuron.findings import Finding, Severity, did_you_mean
from neuron.hardware.instances import Catalogue
from policies.selectors.engine import DeviceSelectors
from webhook.decisions import check_workloads, pods, queues
from webhook.decisions.check_pods import KnownClaim, claim_names
from webhook.decisions.claim_context import claim_context
from webhook.decisions.conversion_context import ConversionContext, ConversionOptions, conversion_context
from webhook.decisions.convert_pods import convert
from webhook.decisions.decision import Decision
from webhook.decisions.own_claims import find_claims
from webhook.decisions.pod_places import NOT_REWRITTEN, find_pods
from webhook.decisions.pod_templates import POD_TEMPLATES, Path, path_text
from webhook.decisions.ports import WorldView
from webhook.decisions.steering import NO_STEERING, Steering
from webhook.decisions.template_findings import KnownTemplates

if TYPE_CHECKING:
    from commands.objects.file_policies import FilePolicies


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


@dataclasses.dataclass(slots=True)
class Tally:
    """Numbers for the summary.

    Attributes:
        files: files that were read.
        objects: validated objects.
        errors: findings for which an object or its pods would be denied.
        warnings: findings that deny nothing.
        notes: findings that policies write only to the audit log, and objects that conversion leaves as they are.
    """

    files: int = 0
    objects: int = 0
    errors: int = 0
    warnings: int = 0
    notes: int = 0

    def count(self, finding: Finding) -> None:
        """Count a finding."""
        match finding.severity:
            case Severity.ERROR:
                self.errors += 1
            case Severity.WARNING:
                self.warnings += 1
            case Severity.NOTE:
                self.notes += 1


@dataclasses.dataclass(frozen=True, slots=True)
class FileContext:
    """How files are read.

    Attributes:
        options: as for the webhook.
        policies: policies to apply, or None.
        namespace: of objects that set none.
    """

    options: ConversionOptions
    policies: "FilePolicies | None" = None
    namespace: str = DEFAULT_NAMESPACE


@dataclasses.dataclass(frozen=True, slots=True)
class _Judged:
    """The findings about a document, which begins at `line`, and the number of its validated objects."""

    line: int
    located: tuple[Located, ...]
    objects: int


def _locate(source: str, document: Document, manifest: Manifest, finding: Finding) -> Located:
    line = document.line_of((*manifest.path, *path_steps(finding.path)))
    return Located(source, line, str(manifest), finding)


def _moved(located: Located, known: Recorded[_Judged], source: str, lines: int, look: Look) -> Located:
    """The finding about another document that differs in values that do not matter."""
    name, first = known.name_in(look), known.name_in(known.look)
    subject = located.subject if name is None else f"{located.subject.removesuffix(first or '')}{name}"
    return Located(source, located.line + lines, subject, located.finding)


class FileValidator:
    """One run over all files. Objects that mean something for others are passed to `take` first.

    Attributes:
        tally: numbers for the summary.
    """

    def __init__(self, context: FileContext) -> None:
        self._context = context
        self._options = context.options
        self._policies = context.policies
        self._served: Collection[str] | None = None
        self._view = FileView()
        self._shapes = Shapes[_Judged]() if context.policies is None else None
        self.tally = Tally()

    def take(self, manifest: Manifest) -> None:
        """Read what an object means for others."""
        self._view.take(manifest)

    def join(self, live: WorldView | None, served: Collection[str] | None) -> None:
        """Compare the files with a cluster. `served`: versions of `resource.k8s.io` that it serves; None: not known."""
        self._view.join(live)
        self._served = served

    @functools.cached_property
    def _conversion(self) -> ConversionContext:
        catalogue = self._policies.catalogue if self._policies else Catalogue()
        return conversion_context(self._options, catalogue, self._view)

    @functools.cached_property
    def _world(self) -> ClaimContext:
        world = claim_context(self._options, self._conversion.catalogue, self._view, self._policies)
        return structs.replace(world, classes={**world.classes, **self._view.file_classes()})

    def recall(self, source: str, document: Document) -> list[Located] | None:
        """The findings about a document that differs from an earlier one in values that do not matter; else None.

        Args:
            source: name of its file.
            document: the document.
        """
        look = self._look(document)
        known = None if self._shapes is None or look is None else self._shapes.find(look)
        if known is None or look is None:
            return None
        judged = known.result
        return self._counted(
            [_moved(each, known, source, document.line - judged.line, look) for each in judged.located], judged.objects
        )

    async def validate(self, source: str, document: Document) -> list[Located]:
        """The findings about a document. `source`: name of its file."""
        judged = await self._validate(source, document)
        look = self._look(document)
        if self._shapes is not None and look is not None and document.root is not None:
            found = list(manifests(document, self._context.namespace))
            if len(found) == 1:
                self._shapes.record(look, document.root, found[0], (), judged)
        return self._counted(list(judged.located), judged.objects)

    def _look(self, document: Document) -> Look | None:
        return None if self._shapes is None or document.json else Look.at(document.text)

    def _counted(self, found: list[Located], objects: int) -> list[Located]:
        self.tally.objects += objects
        for each in found:
            self.tally.count(each.finding)
        return found

    async def _validate(self, source: str, document: Document) -> "_Judged":
        located: list[Located] = []
        objects = 0
        for manifest in manifests(document, self._context.namespace):
            findings = await self.judge(manifest)
            objects += findings is not None
            located += [_locate(source, document, manifest, finding) for finding in findings or ()]
        return _Judged(document.line, tuple(located), objects)

    def _for_one_object(self) -> ClaimContext:
        return structs.replace(self._world, engine=DeviceSelectors())

    async def judge(self, manifest: Manifest) -> list[Finding] | None:
        """All findings about one object; None for an object that is not validated."""
        own, by_policies = await self._judge(manifest), self._by_policies(manifest)
        return None if own is None and by_policies is None else [*(own or ()), *(by_policies or ())]

    async def _judge(self, manifest: Manifest) -> list[Finding] | None:
        if manifest.kind in KINDS:
            return self._judge_claim(manifest)
        if (manifest.group, manifest.kind) == (GROUP, taint_rules.KIND):
            return list(check_taint_rule(manifest.data))
        if (manifest.group, manifest.kind) in POD_TEMPLATES:
            try:
                return await self._judge_workload(manifest)
            except pods.UnreadableError as error:
                message = f"the object is not a readable {manifest.kind}: {error}."
                return [Finding("NEU114", "spec", message, "Compare it with the API reference of its kind.")]
        if manifest.wraps or not manifest.kind or "apiVersion" not in manifest.data:
            return None
        declared = list(queues.declared(manifest.group, manifest.kind, manifest.data, self._options.device_class))
        return declared or self._judge_places(manifest)

    def _judge_places(self, manifest: Manifest) -> list[Finding] | None:
        """Findings about the pods of an object that conversion cannot rewrite; None if it has no Neuron pods."""
        places = list(find_pods(manifest.data))
        if not places or manifest.namespace in self._options.excluded_namespaces:
            return [] if places else None
        context = check_workloads.TemplateContext(
            self._view.namespace(manifest.namespace), self._conversion, self._world
        )
        known = (manifest.group, manifest.kind) in NOT_REWRITTEN
        queued = check_workloads.QueueCheck(manifest.group, manifest.kind, manifest.data)
        findings: list[Finding] = []
        for place in places:
            try:
                checked = check_workloads.check_template("", pods.view(place.template), {}, context)
            except pods.UnreadableError:
                continue
            queued.add(place.field_path(""), place.template, checked.claimed_class)
            found = [dataclasses.replace(each, path=place.field_path(each.path)) for each in checked.findings]
            # The structure of an unknown kind may mean something else: it is not refused.
            found = found if known else check_workloads.as_warnings(manifest.kind, found)
            note = dataclasses.replace(left_as_it_is(manifest), severity=Severity.NOTE, path=path_text(place.path))
            findings += [note, *found]
        return findings + queued.findings()

    def _judge_claim(self, manifest: Manifest) -> list[Finding]:
        version = manifest.data.get("apiVersion")
        if manifest.group != GROUP:
            hint = did_you_mean(str(version), VERSIONS)
            message = f"apiVersion {shown(str(version))} has no {manifest.kind}.{hint}"
            return [Finding("NEU503", "apiVersion", message, f"Write apiVersion: {VERSIONS[0]}.", str(version))]
        spec = manifest.data.get("spec")
        found = validate(manifest.kind, str(version), spec, self._for_one_object(), accepted=False)
        return [*self._check_served(manifest), *found]

    def _check_served(self, manifest: Manifest) -> Iterator[Finding]:
        """NEU720: a warning without a cluster, an error if the cluster does not serve the version."""
        if not is_older(manifest):
            return
        version = str(manifest.data["apiVersion"])
        if self._served is None:
            message = f"{version} is not served by default: a cluster that serves only {CURRENT} refuses this object."
        elif version.rpartition("/")[2] in self._served:
            return
        else:
            message = f"the cluster does not serve {version}, only {GROUP}/{', '.join(self._served)}."
        fix = f"Write apiVersion: {CURRENT}; neuron-dra convert rewrites the object."
        severity = Severity.WARNING if self._served is None else Severity.ERROR
        yield Finding("NEU720", "apiVersion", message, fix, version, severity)

    async def _judge_workload(self, manifest: Manifest) -> list[Finding]:
        if manifest.namespace in self._options.excluded_namespaces:
            return []
        facts = self._view.namespace(manifest.namespace)
        templates = KnownTemplates(manifest.namespace)
        if self._policies is not None:
            specs = {name: self._view.claim_template(manifest.namespace, name) for name in self._policies.named}
            templates = KnownTemplates(manifest.namespace, specs, complete=self._view.is_live)
        context = check_workloads.TemplateContext(facts, self._conversion, self._world, templates)
        queued = check_workloads.QueueCheck(manifest.group, manifest.kind, manifest.data)
        findings: list[Finding] = []
        modes: set[int] = set()
        for steps, template in manifest.pod_templates():
            pod = pods.view(template)
            known = {name: await self._claim(manifest, kind, each) for name, kind, each in claim_names(pod)}
            path = path_text(steps)
            steering, faults = self._steering(manifest, template)
            findings += [check_workloads.under(path, fault) for fault in faults if pod.concerns_us]
            checked = check_workloads.check_template(path, pod, known, context, steering)
            findings += checked.findings
            queued.add(path, template, checked.claimed_class)
            modes |= check_workloads.ultraserver_modes(pod, known, context, steering)
        findings += queued.findings()
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
