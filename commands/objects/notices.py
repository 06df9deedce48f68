"""Messages about conversion, each with its file, line, object and field, and advice about converted objects."""

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, Final

from commands.objects.documents import Document, Documents
from commands.objects.manifests import Manifest, path_steps
from conversion.objects.pod_places import Path, PodPlace, path_text
from conversion.patches.decision import Decision
from neuron import names
from neuron.findings import Finding, warning

_NAMESPACE: Final = ("metadata", "namespace")
"""Path of findings about the object as a whole, even if a pod template caused them."""


@dataclasses.dataclass(frozen=True, slots=True)
class ManifestSource:
    """A file: its name and its documents, which are read again in each iteration."""

    name: str
    documents: Documents


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
        cores = _cores_of_first(template)
        if cores and _RAY_CORES not in str(known):
            text = f"KubeRay derives {_RAY_CORES} from {names.RESOURCE_NEURONCORE}, which conversion removed."
            fix = f"Add {_RAY_CORES}: {cores} to resources in rayStartParams."
            yield (*path[:-1], "rayStartParams"), f"{text} {fix}"


def _cores_of_first(template: dict[str, Any]) -> Any:
    """Cores that the first container of a pod template requests."""
    containers = (template.get("spec") or {}).get("containers") or [{}]
    limits = (containers[0].get("resources") or {}).get("limits") or {}
    return limits.get(names.RESOURCE_NEURONCORE)
