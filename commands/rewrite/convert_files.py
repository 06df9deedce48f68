"""Converts manifests with the webhook's own conversion: changed documents, needed templates, and messages.

Pure: one document in, one change out. A Pod is converted as on CREATE. Pod templates of workloads are converted,
too; the webhook itself does not change them.
"""

import dataclasses
import functools
import operator
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson

from commands.objects import current_versions
from commands.objects.decider import Decider
from commands.objects.documents import Document
from commands.objects.manifests import DEFAULT_NAMESPACE, FileStore, Manifest, manifests, path_steps
from commands.objects.shapes import Recorded, Shapes
from commands.objects.text_edits import Splice, TextLayout
from commands.objects.yaml_items import Look
from commands.rewrite.yaml_edits import EditError, edit
from conversion.asks.conversion_context import ConversionOptions
from conversion.claims.templates import Template
from conversion.decide import ObjectDecision
from conversion.findings.pod_findings import OF_THE_RUN
from conversion.objects.kinds import KINDS
from conversion.objects.pod_places import SPEC_FIELDS, Path, PodPlace, find_pods, path_text
from conversion.patches.decision import Decision
from neuron import names
from neuron.api.fields import mapping, mappings
from neuron.findings import Finding, warning
from policies.patching.json_patch import patched

if TYPE_CHECKING:
    from commands.objects.file_policies import FilePolicies

_NAMESPACE: Final = ("metadata", "namespace")
"""Path of findings about the object as a whole, even if a pod template caused them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Notice:
    """A message about one place.

    Attributes:
        line: line of the file, counted from 1.
        subject: kind and name of the object, e.g. `Pod team/train`; or "".
        path: field path in the document; empty for the whole object.
        text: code, sentence and fix.
        code: of the finding, if it is one.
    """

    source: str
    line: int
    number: int
    subject: str
    path: str
    text: str
    code: str = ""

    def __str__(self) -> str:
        where = ", ".join(filter(None, (f"document {self.number}", self.subject)))
        place = f"{self.source}:{self.line}: [{where}]"
        return ": ".join(filter(None, (f"{place} {self.path}".rstrip(), self.text)))


@dataclasses.dataclass(frozen=True, slots=True)
class PartDecision:
    """The decision about a part of an object.

    Attributes:
        made: the pod, if it was made of fields of the object; None: the object has a pod template at `path`.
    """

    path: Path
    decision: Decision
    made: PodPlace | None = None


class Reporter:
    """Writes notices about one object."""

    def __init__(self, source: str, document: Document, manifest: Manifest, notices: list[Notice]) -> None:
        self._source = source
        self._document = document
        self._manifest = manifest
        self._notices = notices
        self._reported: set[Notice] = set()

    def line(self, path: Path, text: str, code: str = "", *, field: str = "") -> None:
        """Add a message about a place in the object, unless it was added before. `field`: its field path in `path`."""
        path = (*self._manifest.path, *path)
        line = self._document.line_of((*path, *path_steps(field)))
        number, subject = self._document.number, str(self._manifest)
        where = ".".join(filter(None, (path_text((*self._document.place, *path)), field)))
        notice = Notice(self._source, line, number, subject, where, text, code)
        if notice not in self._reported:
            self._reported.add(notice)
            self._notices.append(notice)

    def finding(self, path: Path, finding: Finding) -> None:
        """Add a finding about the part of the object at `path`."""
        of_object = path_steps(finding.path) == _NAMESPACE
        self.line(() if of_object else path, str(finding), finding.code, field=finding.path)

    def repeated(self, path: Path, decision: Decision) -> None:
        """Add what server-side apply of the converted manifest would refuse. `path`: of the pod."""
        for finding in _repeated(decision):
            self.finding(path, finding)

    def reason(self, path: Path, decision: Decision, policy: str) -> None:
        """Add the reason if a pod is not converted. `policy`: that steered it, or ""."""
        match decision.reason:
            case "mode-off-by-pod":
                where = (*path, "metadata", "annotations", names.ANNOTATION_CONVERT)
                self.line(where, "not converted: the annotation turns conversion off.")
            case "mode-off-by-namespace":
                text = f"{names.ANNOTATION_CONVERT} of Namespace {self._manifest.namespace} turns it off."
                self.line(_NAMESPACE, f"not converted: {text}")
            case "mode-off-by-policy":
                self.line(path, f"not converted: policy '{policy}' turns it off.")
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


_RAY: Final = "ray.io"
_RAY_CORES: Final = "neuron_cores"


def advice(manifest: Manifest, converted: Collection[Path]) -> Iterator[tuple[Path, str]]:
    """Messages about an object, with their paths.

    Args:
        manifest: the object before conversion.
        converted: paths of the pod templates that are converted.
    """
    if not manifest.kind or "apiVersion" not in manifest.data:
        yield (), "left unchanged: without apiVersion and kind it is not a Kubernetes object."
    elif manifest.group == _RAY:
        yield from _ray(manifest, converted)
    elif manifest.kind == "ClusterTrainingRuntime" and converted:
        yield (
            (),
            "its pods run in the namespaces of TrainJobs: apply the ResourceClaimTemplates before it in each of them.",
        )


def _ray(manifest: Manifest, converted: Collection[Path]) -> Iterator[tuple[Path, str]]:
    """Ask for `neuron_cores` in `rayStartParams`.

    KubeRay derives it from the legacy resource of the first container (`customAcceleratorToRayResourceMap` in its
    `controllers/ray/common/pod.go`), which conversion removes.
    """
    for path, template in manifest.pod_templates():
        if path not in converted or path[-1] != "template":
            continue
        group: Any = manifest.data
        for step in path[:-1]:
            group = group[step]
        parameters = group.get("rayStartParams")
        known = parameters.get("resources") if isinstance(parameters, dict) else None
        first = next(iter(mappings(mapping(template.get("spec")).get("containers"))), {})
        cores = mapping(mapping(first.get("resources")).get("limits")).get(names.RESOURCE_NEURONCORE)
        if cores and _RAY_CORES not in str(known):
            text = f"KubeRay derives {_RAY_CORES} from {names.RESOURCE_NEURONCORE}, which conversion removed."
            fix = f"Add {_RAY_CORES}: {cores} to resources in rayStartParams."
            yield (*path[:-1], "rayStartParams"), f"{text} {fix}"


# --- conversion -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """The change of one document.

    Attributes:
        document: before the change.
        templates: ResourceClaimTemplates to insert before it.
        rewrites: whether the document itself changes.
        wanted: data after the change; None if only the text was computed.
        splices: the change of the text; None if it was not computed, or the text must be written again as a whole.
        fault: why the text must be written again as a whole; or "".
    """

    document: Document
    templates: Sequence[dict[str, object]] = ()
    rewrites: bool = False
    wanted: dict[str, object] | None = None
    splices: tuple[Splice, ...] | None = ()
    layout: TextLayout = dataclasses.field(default_factory=TextLayout)
    fault: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class _Outcome:
    """What conversion found about a document, apart from its change.

    Attributes:
        templates: of all objects, with their namespaces: where they are created, and as written.
        left: objects that still have Neuron limits, without the refused ones.
    """

    templates: tuple[tuple[str, str, Template], ...]
    notices: tuple[Notice, ...]
    refused: int
    left: tuple[Notice, ...]


class Converter:
    """One run over all files; they share templates.

    Namespaces, ResourceQuotas, LimitRanges, DeviceClasses and ResourceClaimTemplates apply to the objects in all files:
    they are passed to `take` first.

    Attributes:
        notices: messages about the documents that were converted; the caller may empty it.
        left: objects that still have Neuron limits, without the refused ones; empty unless it is strict.
    """

    def __init__(
        self,
        options: ConversionOptions,
        policies: "FilePolicies | None" = None,
        namespace: str = DEFAULT_NAMESPACE,
        *,
        texts: bool = True,
        strict: bool = False,
    ) -> None:
        """Prepare.

        Args:
            options: as for the webhook. The command `convert` sets the mode `convert`.
            policies: policies that steer conversion, or None.
            namespace: of objects that set none.
            texts: whether texts are changed; without it, only data.
            strict: whether objects that are left with Neuron limits are looked for, in all of their fields.
        """
        self._namespace = namespace
        self._texts = texts
        self._strict = strict
        self._cluster = FileStore()
        self._decider = Decider(options, self._cluster, policies, rewrites=True)
        self._printed: set[tuple[str, str]] = set()
        # Policies may read every field, and JSON output needs the data.
        self._shapes = Shapes[tuple[Change, _Outcome]]() if texts and policies is None else None
        self.notices: list[Notice] = []
        self.refused = 0
        self.left: list[Notice] = []
        self._said: set[str] = set()

    @property
    def unfinished(self) -> bool:
        """Whether an object was refused, or left with Neuron limits although it is strict."""
        return bool(self.refused or self.left)

    def take(self, manifest: Manifest) -> None:
        """Read what an object means for others."""
        self._cluster.take(manifest)

    def convert(self, source: str, document: Document) -> Change:
        """Convert every object of a document. `source`: name of its file."""
        look = document.look if self._shapes is not None else None
        known = self._shapes.find(look) if self._shapes is not None and look is not None else None
        if known is not None and look is not None:
            change, outcome = _moved(known, source, document, look)
        else:
            change, outcome = self._convert(source, document)
            if self._shapes is not None and look is not None and not change.fault:
                found = list(manifests(document, self._namespace))
                # Without its text and nodes, which take much memory.
                place = Document(0, "", document.line, place=document.place)
                light = dataclasses.replace(change, document=place, wanted=None)
                self._shapes.record(look, document, found, change.splices or (), (light, outcome))
        self.notices += self._unsaid(outcome.notices)
        self.refused += outcome.refused
        self.left += outcome.left
        return dataclasses.replace(change, templates=list(self._unprinted(outcome)))

    def _convert(self, source: str, document: Document) -> tuple[Change, _Outcome]:
        wanted = document.data
        templates: list[tuple[str, str, Template]] = []
        notices: list[Notice] = []
        left: list[Notice] = []
        refused = 0
        for manifest in manifests(document, self._namespace):
            say = Reporter(source, document, manifest, notices)
            decided = self._decider.decide(manifest)
            patches = _patches(manifest, decided)
            for part in decided.parts:
                say.reason(part.place.path, part.decision, ", ".join(part.facts.steering.policy_names))
                say.repeated(part.place.path, part.decision)
            for finding in decided.findings:
                say.finding((), finding)
            clashes = list(self._clashes(manifest, patches))
            for path, clash in clashes:
                say.finding(path, clash)
            if clashes or decided.refused:
                # A workload of which only a part is converted does not run: leave it unchanged.
                refused += 1
                continue
            for path, text in advice(manifest, {patch.path for patch in patches if patch.decision.patch}):
                say.line(path, text)
            for finding in _needs_version(manifest, patches):
                say.finding((), finding)
            current = current_versions.current(manifest)
            patches = self._enrichment(manifest, current, say) + patches
            if current is not None or any(patch.decision.patch for patch in patches):
                if wanted is document.data:
                    wanted = orjson.loads(orjson.dumps(document.data))
                if current is not None:
                    _replace(wanted, manifest, current)
                _apply(wanted, manifest, patches)
            here, written = self._home(manifest), manifest.written_namespace
            templates += [(here, written, each) for patch in patches for each in patch.decision.templates]
            if (
                self._strict
                and not manifest.wraps
                and (
                    any(True for _ in find_pods(_part(wanted, manifest.path)))
                    or any(part.left is not None for part in decided.parts)
                )
            ):
                Reporter(source, document, manifest, left).line((), "it is left with Neuron limits (--strict).")
        change = self._change(document, wanted)
        return change, _Outcome(tuple(templates), tuple(notices), refused, tuple(left))

    def _enrichment(self, manifest: Manifest, current: dict[str, object] | None, say: Reporter) -> list[PartDecision]:
        """What mutating policies change, and what is added to a claim. `current`: in the current version of the API."""
        now = manifest if current is None else dataclasses.replace(manifest, data=current)
        decision = self._decider.created(now).decision
        for finding in () if decision is None else decision.warnings:
            say.finding((), finding)
        return [] if decision is None else [PartDecision((), decision)]

    def _change(self, document: Document, wanted: dict[str, object] | None) -> Change:
        rewrites = wanted is not document.data
        layout = TextLayout.of(document.text, document.tree)
        if not rewrites or not self._texts:
            return Change(document, (), rewrites, wanted, layout=layout)
        if document.tree is None:
            return Change(document, (), rewrites, wanted, splices=None, layout=layout)
        try:
            splices = tuple(edit(document.text, document.tree, wanted if document.part is None else [wanted]))
        except EditError as error:
            return Change(document, (), rewrites, wanted, splices=None, layout=layout, fault=str(error))
        return Change(document, (), rewrites, wanted, splices, layout)

    def _home(self, manifest: Manifest) -> str:
        """Where the templates of an object are. Those of a cluster-scoped object are written without a namespace."""
        return manifest.namespace or self._namespace

    def _clashes(self, manifest: Manifest, patches: Sequence[PartDecision]) -> Iterator[tuple[Path, Finding]]:
        """Templates in the manifests that have the name of a generated template and another spec."""
        for patch in patches:
            for template in patch.decision.templates:
                known = self._cluster.template(self._home(manifest), template.name)
                if known is not None and known.digest != template.digest:
                    yield patch.path, _foreign(template)

    def _unsaid(self, notices: Sequence[Notice]) -> Iterator[Notice]:
        """The messages, each about the whole run once."""
        for each in notices:
            if each.code not in OF_THE_RUN:
                yield each
            elif each.text not in self._said:
                self._said.add(each.text)
                yield each

    def _unprinted(self, outcome: _Outcome) -> Iterator[dict[str, object]]:
        """The templates that a document needs, except those printed before or present in the manifests."""
        for namespace, written, template in outcome.templates:
            key = (namespace, template.name)
            if key not in self._printed and self._cluster.template(*key) is None:
                self._printed.add(key)
                yield template.manifest(written)


def _patches(manifest: Manifest, decided: ObjectDecision) -> list[PartDecision]:
    """The decisions whose patches change the object itself."""
    kind = KINDS.get((manifest.group, manifest.kind))
    if kind is None or kind.no_claims:
        return []  # Its pods are converted when they are created.
    patches = []
    for part in decided.parts:
        decision = part.decision
        if not kind.metadata:
            kept = tuple(each for each in decision.patch if not each["path"].startswith("/metadata"))
            decision = dataclasses.replace(decision, patch=kept)
        patches.append(PartDecision(part.place.path, decision, part.place if kind.made is not None else None))
    if decided.placement is not None:
        patches.append(PartDecision((), decided.placement))
    return patches


def _needs_version(manifest: Manifest, patches: Sequence[PartDecision]) -> Iterator[Finding]:
    """NEU229, if only newer versions of the kind's controller have the field that conversion adds."""
    since = KINDS[manifest.group, manifest.kind].claims_since if patches else ""
    if since and any(patch.decision.patch for patch in patches):
        message = f"the claims of the converted {manifest.kind} need {since}."
        fix = "With an older version, apply the object as it was: the webhook converts its pods."
        yield warning("NEU229", "spec", message, fix, manifest.kind)


def _moved(
    known: Recorded[tuple[Change, _Outcome]], source: str, document: Document, look: Look
) -> tuple[Change, _Outcome]:
    """The result of another document, for a document that differs in values that do not matter."""
    change, outcome = known.result
    place, before = path_text(document.place), path_text(change.document.place)

    def moved(found: Sequence[Notice]) -> tuple[Notice, ...]:
        return tuple(
            dataclasses.replace(
                each,
                source=source,
                number=document.number,
                line=each.line - change.document.line + document.line,
                path=f"{place}{each.path.removeprefix(before)}",
                subject=known.subject(each.subject, look),
            )
            for each in found
        )

    splices = None if change.splices is None else tuple(known.splices(change.splices, look))
    return (
        dataclasses.replace(change, document=document, splices=splices, wanted=None),
        dataclasses.replace(outcome, notices=moved(outcome.notices), left=moved(outcome.left)),
    )


def _part(data: Any, path: Path) -> Any:
    return functools.reduce(operator.getitem, path, data)


def _replace(wanted: Any, manifest: Manifest, current: dict[str, object]) -> None:
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


def _apply(wanted: object, manifest: Manifest, patches: Sequence[PartDecision]) -> None:
    """Apply decisions to a copy of the document's data."""
    for patch in patches:
        if patch.made is not None and patch.decision.patch:
            write_back(_part(wanted, manifest.path), patch.made, patch.decision)
            continue
        part = _part(wanted, (*manifest.path, *patch.path))
        before = dict(part)
        changed = patched(before, patch.decision.patch)
        if patch.path and "metadata" in changed and "metadata" not in before:
            # By convention, metadata comes before the spec.
            changed = {"metadata": changed["metadata"], **changed}
        part.clear()
        part.update(changed)


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


# --- made pods --------------------------------------------------------------------------------------------------------


# An Argo template, for example, has the fields of a pod beside `container`: each changed field goes to the template,
# which then counts instead of the default of the whole Workflow.
_SECTIONS: Final = ("initContainers", "containers")


def write_back(data: Any, place: PodPlace, decision: Decision) -> None:
    """Change an object as a decision about one of its made pods says.

    Args:
        data: the object, changed in place; its values are those of which the pod was made.
    """
    before, after = place.template, patched(place.template, decision.patch)
    owner = _at(data, place.path)
    for field in ("labels", "annotations"):
        was = (before.get("metadata") or {}).get(field) or {}  # type: ignore[attr-defined]
        for key, value in (after.get("metadata") or {}).get(field, {}).items():
            if was.get(key) != value:
                owner.setdefault("metadata", {}).setdefault(field, {})[key] = value
    old: Any = before["spec"]
    new: Any = after["spec"]
    for field in SPEC_FIELDS:
        if new.get(field) != old.get(field):
            owner[field] = new[field]
    for section in _SECTIONS:
        for index, container in enumerate(new.get(section) or ()):
            if container != old[section][index]:
                target = _at(data, path_steps(place.field_path(f"spec.{section}[{index}]")))
                named = (
                    container if "name" in target else {key: each for key, each in container.items() if key != "name"}
                )
                target.clear()
                target.update(named)


def _at(data: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        data = data[int(step) if isinstance(data, list) else step]
    return data
