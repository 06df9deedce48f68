"""Validates manifests in files as the webhook and the API server would.

All files are one set: a pod is checked with the template that it names, in whichever file it is.
"""

import dataclasses
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from checks.claims.judging import validate
from checks.words import misspelt_keys
from checks.workloads import check_taint_rule
from cluster.store import Store
from commands.objects.current_versions import CURRENT, is_older
from commands.objects.decider import Decider, is_checked, named_claims
from commands.objects.documents import Document
from commands.objects.manifests import DEFAULT_NAMESPACE, FileStore, Manifest, manifests, path_steps
from commands.objects.shapes import Shapes
from commands.objects.yaml_items import Look
from commands.present import Located
from conversion.asks.conversion_context import ConversionOptions
from conversion.decide import ObjectDecision, located
from conversion.findings.pod_findings import OF_THE_RUN, unread
from conversion.objects.kinds import KINDS
from conversion.objects.pod_places import PodPlace
from neuron.api import slices
from neuron.api.claim_reader import VERSIONS, value_text
from neuron.api.claim_specs import GROUP
from neuron.api.claim_specs import KINDS as CLAIM_KINDS
from neuron.findings import Finding, Severity, did_you_mean, warning
from policies.patching.json_patch import patched

if TYPE_CHECKING:
    from commands.objects.file_policies import FilePolicies


@dataclasses.dataclass(slots=True)
class FindingTally:
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
class _Judged:
    """The findings about a document, which begins at `line`, and the number of its validated objects."""

    line: int
    located: tuple[Located, ...]
    objects: int


def _is_taint_rule(manifest: Manifest) -> bool:
    return (manifest.group, manifest.kind) == (GROUP, slices.TAINT_RULE)


class FileValidator:
    """One run over all files. Objects that mean something for others, and DeviceTaintRules, are passed to `take` first.

    Attributes:
        has_taint_rules: whether a DeviceTaintRule was passed: only then `join` needs the version of the cluster.
    """

    def __init__(
        self, options: ConversionOptions, policies: "FilePolicies | None" = None, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        """Prepare. `policies`: to apply, or None. `namespace`: of objects that set none."""
        self._options = options
        self._policies = policies
        self._namespace = namespace
        self._served: Collection[str] | None = None
        self._rule_version: str | None = None
        self.has_taint_rules = False
        self._store = FileStore()
        self._decider = Decider(options, self._store, policies)
        self._shapes = Shapes[_Judged]() if policies is None else None
        self.tally = FindingTally()
        self._said: set[str] = set()

    def take(self, manifest: Manifest) -> None:
        """Read what an object means for others."""
        self._store.take(manifest)
        self.has_taint_rules = self.has_taint_rules or _is_taint_rule(manifest)

    def join(self, live: Store | None, served: Collection[str] | None, rules: str | None = None) -> None:
        """Compare the files with a cluster.

        Args:
            served: versions of `resource.k8s.io` that it serves; None: not known.
            rules: its preferred version of DeviceTaintRules; empty: it serves none; None: not asked.
        """
        self._store.over(live)
        self._served = served
        self._rule_version = rules

    def recall(self, source: str, document: Document) -> list[Located] | None:
        """The findings about a document that differs from an earlier one in values that do not matter; else None."""
        look = self._look(document)
        known = None if self._shapes is None or look is None else self._shapes.find(look)
        if known is None or look is None:
            return None
        judged, moved = known.result, document.line - known.result.line
        found = [
            Located(source, each.line + moved, known.subject(each.subject, look), each.finding)
            for each in judged.located
        ]
        return self._counted(found, judged.objects)

    async def validate(self, source: str, document: Document) -> list[Located]:
        """The findings about a document. `source`: name of its file."""
        located: list[Located] = []
        objects = 0
        found = list(manifests(document, self._namespace))
        for manifest in found:
            findings = await self.judge(manifest)
            objects += findings is not None
            for each in findings or ():
                line = document.line_of((*manifest.path, *path_steps(each.path)))
                located.append(Located(source, line, str(manifest), each))
        look = self._look(document)
        if self._shapes is not None and look is not None:
            self._shapes.record(look, document, found, (), _Judged(document.line, tuple(located), objects))
        return self._counted(located, objects)

    def _look(self, document: Document) -> Look | None:
        return document.look if self._shapes is not None and document.part is None else None

    def _counted(self, found: list[Located], objects: int) -> list[Located]:
        self.tally.objects += objects
        shown = []
        for each in found:
            if each.finding.code in OF_THE_RUN:
                if each.finding.message in self._said:
                    continue
                self._said.add(each.finding.message)
            self.tally.count(each.finding)
            shown.append(each)
        return shown

    async def judge(self, manifest: Manifest) -> list[Finding] | None:
        """All findings about one object; None for an object that is not validated."""
        own: list[Finding] | None
        if manifest.kind in CLAIM_KINDS:
            own = [] if self._is_excluded(manifest) else self._judge_claim(manifest)
        elif _is_taint_rule(manifest):
            own = [*self._check_rule_version(manifest), *check_taint_rule(manifest.data)]
        elif (manifest.group, manifest.kind) == ("", "Namespace"):
            keys = misspelt_keys(manifest.data.get("metadata"))
            own = [*keys, *unread(manifest.group, manifest.kind, manifest.data)] or None
        else:
            own = None
        decided = ObjectDecision()
        if own is None and is_checked(manifest):
            decided = self._decider.decide(manifest, await self._missing(manifest))
            found = [] if decided.excluded else list(decided.findings)
            checked = (manifest.group, manifest.kind) in KINDS or bool(decided.parts)
            own = found if found or checked else None
        elif manifest.form:
            own = [*manifest.form, *(own or ())]
        by_policies = self._by_policies(manifest, decided)
        return None if own is None and by_policies is None else [*(own or ()), *(by_policies or ())]

    def _is_excluded(self, manifest: Manifest) -> bool:
        """Whether the webhook does not check a claim or template because of its namespace. DeviceClasses have none."""
        return manifest.kind != "DeviceClass" and manifest.namespace in self._options.excluded_namespaces

    async def _missing(self, manifest: Manifest) -> set[tuple[str, str]]:
        """Kind and name of the claims and templates that pods of an object name, and that do not exist."""
        wanted: dict[str, dict[str, None]] = {}
        for kind, name in named_claims(manifest):
            wanted.setdefault(kind, {})[name] = None
        missing = set()
        for kind, names in wanted.items():
            exist = await self._store.exist(kind, manifest.namespace, names)
            missing |= {(kind, name) for name, exists in exist.items() if exists is False}
        return missing

    def _judge_claim(self, manifest: Manifest) -> list[Finding]:
        version = manifest.data.get("apiVersion")
        if manifest.group != GROUP:
            hint = did_you_mean(str(version), VERSIONS)
            message = f"apiVersion {value_text(version)} has no {manifest.kind}.{hint}"
            return [Finding("NEU503", "apiVersion", message, f"Write apiVersion: {VERSIONS[0]}.", str(version))]
        created = self._decider.created(manifest)
        spec, decision = created.stored.data.get("spec"), created.decision
        found = validate(manifest.kind, str(version), spec, self._decider.for_one_object(), accepted=False)
        told = () if decision is None else (*decision.errors, *decision.warnings)
        return [*self._check_served(manifest), *found, *told]

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

    def _check_rule_version(self, manifest: Manifest) -> Iterator[Finding]:
        """NEU720 for a DeviceTaintRule of a version that the cluster does not serve, or perhaps does not."""
        versions, served = slices.TAINT_RULE_VERSIONS, self._rule_version
        version = str(manifest.data["apiVersion"]).rpartition("/")[2]
        if served is None or version == served or version not in versions:
            return
        if not served:
            message = "the cluster serves no DeviceTaintRules."
            fix = "They are on by default from Kubernetes 1.37; neuron-dra cordon works without them."
            yield Finding("NEU720", "apiVersion", message, fix, version)
            return
        fix = f"Write apiVersion: {GROUP}/{served}."
        if served in versions and versions.index(version) > versions.index(served):
            message = f"{GROUP}/{version} is not served by default: the cluster prefers {served}."
            yield warning("NEU720", "apiVersion", message, fix, version)
        else:
            message = f"the cluster serves DeviceTaintRules as {GROUP}/{served}, not as {version}."
            yield Finding("NEU720", "apiVersion", message, fix, version)

    def _by_policies(self, manifest: Manifest, decided: ObjectDecision) -> list[Finding] | None:
        """Findings of policies about an object and its pods; None if no policy matches."""
        if self._policies is None or manifest.namespace in self._options.excluded_namespaces:
            return None
        manifest = self._decider.created(manifest).stored
        is_pod = (manifest.group, manifest.kind) == ("", "Pod")
        found_by_policies: list[tuple[PodPlace | None, list[Finding] | None]] = []
        if not is_pod:
            verdicts = self._policies.object_verdicts(manifest, self._store)
            found_by_policies.append((None, self._policies.findings(verdicts)))
        for part in decided.parts if (manifest.group, manifest.kind) in KINDS else ():
            if part.answer.settings is None:
                continue  # It cannot be read, which is reported: no pod is created from it.
            pod = patched(part.place.template, part.decision.patch)
            verdicts = self._policies.pod_verdicts(manifest, pod, part.decision, self._store)
            found_by_policies.append((part.place, self._policies.findings(verdicts)))
        if all(found is None for _, found in found_by_policies):
            return None
        return [
            each if place is None else located(place, each)
            for place, found in found_by_policies
            for each in found or ()
        ]
