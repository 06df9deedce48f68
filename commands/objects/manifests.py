"""The objects of a document, their pod templates, and a store of such objects."""

import dataclasses
import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import orjson

from cluster import from_files
from cluster.store import Store
from commands.objects.documents import Document, RepeatedKey
from conversion.objects.kinds import KINDS, pod_templates
from conversion.objects.pod_places import Path, find_pods, path_text
from neuron.api.claim_specs import GROUP
from neuron.api.fields import text
from neuron.findings import Finding, quoted, short, warning

DEFAULT_NAMESPACE: Final = "default"
"""Namespace of objects that set none, as in kubectl."""

_WRAPPER: Final = ("workload.codeflare.dev", "AppWrapper")
_MOST_WRITTEN: Final = 60
"""Characters of a value in a message."""
_STEP: Final = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """One object of a document.

    Attributes:
        path: in the document; empty unless the document is a list.
        data: the object. Items of typed lists get their kind from the list.
        written_namespace: `metadata.namespace`, or that of the AppWrapper around it, or "".
        namespace: the namespace in which it is created: for an object that sets none, that of the command line; empty
            for a cluster-scoped kind with pods, whose pods run in other namespaces.
        name: name, or generateName with a star.
        wrapped: whether it is inside an AppWrapper.
        form: findings about how it is written: keys that stand twice, a kind that does not exist.
    """

    path: Path
    data: dict[str, object]
    group: str
    kind: str
    written_namespace: str
    namespace: str
    name: str
    wrapped: bool = False
    form: tuple[Finding, ...] = ()

    @property
    def wraps(self) -> bool:
        """Whether it is an AppWrapper: the objects that it holds are listed after it."""
        return (self.group, self.kind) == _WRAPPER

    def __str__(self) -> str:
        """`Kind namespace/name`."""
        name = f"{self.written_namespace}/{self.name}" if self.written_namespace else self.name
        return f"{self.kind} {name}".rstrip()

    def pod_templates(self) -> Iterator[tuple[Path, dict[str, object]]]:
        """Its pod templates, with their paths in the object. A Pod is its own template."""
        return pod_templates(self.data, self.group, self.kind)


def manifests(document: Document, namespace: str = DEFAULT_NAMESPACE) -> Iterator[Manifest]:
    """The objects of a document: itself, the items of a list, or the objects that an AppWrapper holds.

    Args:
        namespace: of objects that set none.
    """
    found = list(manifests_of(document.data, namespace))
    forms: list[list[Finding]] = [list(each.form) for each in found]
    for key in document.repeated:
        # Of the objects around the mapping, the innermost.
        around = [at for at, each in enumerate(found) if key.path[: len(each.path)] == each.path]
        if around:
            at = max(around, key=lambda each: len(found[each].path))
            forms[at].append(_repeated(key, found[at].path))
    for each, form in zip(found, forms, strict=True):
        yield dataclasses.replace(each, form=tuple(form)) if form else each


def _repeated(key: RepeatedKey, outer: Path) -> Finding:
    """NEU717. `outer`: path of the object in the document."""
    lines = dict.fromkeys(map(str, key.lines))
    place = f" in line{'s' if len(lines) > 1 else ''} {' and '.join(lines)}" if lines else ""
    message = (
        f"the key {quoted(key.key)} stands twice{place}, with {_written(key.ignored)} and {_written(key.value)}: the"
        " last value counts, for kubectl, too."
    )
    path = path_text((*key.path[len(outer) :], key.key))
    return warning("NEU717", path, message, "Keep one of them.", short(_written(key.value)))


def _written(value: object) -> str:
    """A value as JSON, for messages."""
    return short(
        orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode(errors="replace"), _MOST_WRITTEN
    )


def manifests_of(data: dict[str, object] | None, namespace: str = DEFAULT_NAMESPACE) -> Iterator[Manifest]:
    """The objects of a document's data."""
    if data is not None:
        yield from _manifests((), data, namespace)


def _manifests(path: Path, data: dict[str, object], namespace: str, outer: str | None = None) -> Iterator[Manifest]:
    kind, version = data.get("kind"), data.get("apiVersion")
    items = data.get("items")
    if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list):
        # Items of typed lists may omit apiVersion and kind; items of a plain List may not.
        defaults = {} if kind == "List" else {"apiVersion": version, "kind": kind.removesuffix("List")}
        for index, item in enumerate(items):
            if isinstance(item, dict):
                yield from _manifests((*path, "items", index), {**defaults, **item}, namespace, outer)
        return
    metadata = data.get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    written = text(known.get("namespace")) or outer or ""
    version, kind = text(version), text(kind)
    form = missing_kind(version, kind) if version and kind else _unnamed(data, version, kind)
    group = version.rpartition("/")[0]
    if form and not version:
        meant = _ELSEWHERE.get(kind, "").rpartition("/")[0]
        group = meant if (meant, kind) in KINDS else group
    kind_entry = KINDS.get((group, kind))
    manifest = Manifest(
        path,
        data,
        group=group,
        kind=kind,
        written_namespace=written,
        namespace=(written or namespace) if kind_entry is None or kind_entry.namespaced else "",
        name=text(known.get("name")) or (f"{text(known.get('generateName'))}*" if known.get("generateName") else ""),
        wrapped=outer is not None,
        form=form,
    )
    yield manifest
    for steps, wrapped in _wrapped(manifest):
        # The wrapper creates its objects in its own namespace, if they set none.
        yield from _manifests((*path, *steps), wrapped, namespace, written)


def _wrapped(manifest: Manifest) -> Iterator[tuple[Path, dict[str, object]]]:
    """The objects that an AppWrapper creates."""
    if not manifest.wraps:
        return
    spec = manifest.data.get("spec")
    components = spec.get("components") if isinstance(spec, dict) else None
    for index, component in enumerate(components if isinstance(components, list) else ()):
        wrapped = component.get("template") if isinstance(component, dict) else None
        if isinstance(wrapped, dict):
            yield ("spec", "components", index, "template"), wrapped


def path_steps(text: str) -> Path:
    return tuple(bracketed or name for bracketed, name in _STEP.findall(text))


_CORE: Final = (
    "Binding ComponentStatus ConfigMap Endpoints Event LimitRange List Namespace Node PersistentVolume"
    " PersistentVolumeClaim Pod PodStatusResult PodTemplate RangeAllocation ReplicationController ResourceQuota Secret"
    " SerializedReference Service ServiceAccount Status"
    # Of kubectl's configuration, and of OpenShift.
    " Config Template"
)
KINDS_OF_GROUPS: Final[Mapping[str, frozenset[str]]] = {
    group: frozenset(kinds.split())
    for group, kinds in {
        "": _CORE,
        "apps": "ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet",
        "batch": "CronJob Job",
        "autoscaling": "HorizontalPodAutoscaler Scale",
        "policy": "Eviction PodDisruptionBudget PodSecurityPolicy",
        "networking.k8s.io": "IPAddress Ingress IngressClass NetworkPolicy ServiceCIDR",
        "rbac.authorization.k8s.io": "ClusterRole ClusterRoleBinding Role RoleBinding",
        "resource.k8s.io": (
            "DeviceClass DeviceTaintRule PodSchedulingContext ResourceClaim ResourceClaimParameters"
            " ResourceClaimTemplate ResourceClass ResourceClassParameters ResourcePoolStatusRequest ResourceSlice"
        ),
    }.items()
}
"""Kinds by API group, in all versions."""

_VERSIONS: Final = {
    "": "v1",
    "apps": "apps/v1",
    "batch": "batch/v1",
    "policy": "policy/v1",
    "autoscaling": "autoscaling/v2",
}
_ELSEWHERE: Final = {
    **{kind: _VERSIONS.get(group, f"{group}/v1") for group, kinds in KINDS_OF_GROUPS.items() for kind in kinds},
    "VerticalPodAutoscaler": "autoscaling.k8s.io/v1",
}
"""Kind -> its API version."""
_SIMILARITY: Final = 0.8


_OF_OTHERS: Final = frozenset({"Config", "List", "Status", "Template"})
"""Kinds that files of other programs have, too."""
_ONE_VERSION: Final = frozenset({"", "apps", "batch"})
"""Groups of which API servers with DRA have the version in `_VERSIONS` only."""


@functools.lru_cache(maxsize=256)
def missing_kind(api_version: str, kind: str) -> tuple[Finding, ...]:
    """NEU718 if no API server with DRA has the kind, and a kind is known that is probably meant."""
    group = api_version.rpartition("/")[0]
    kinds = KINDS_OF_GROUPS.get(group)
    elsewhere = _ELSEWHERE.get(kind, "")
    if not kind or len(kind) > 64:
        return ()
    if kinds is None:
        if "." in group or not elsewhere or kind in _OF_OTHERS:
            return ()
        return _does_not_exist("apiVersion", f"the group {quoted(group)}", f"apiVersion: {elsewhere}", group)
    if kind in kinds:
        if group not in _ONE_VERSION or api_version == elsewhere or kind in _OF_OTHERS:
            return ()
        what = f"a kind {quoted(kind)} in {short(api_version)}"
        return _does_not_exist("apiVersion", what, f"apiVersion: {elsewhere}", api_version)
    if kind.removesuffix("List") in kinds or (not group and api_version != "v1"):
        return ()
    meant = "" if elsewhere else _close(kind, kinds) or _close(kind, _ELSEWHERE)
    if not elsewhere and not meant:
        return ()
    wanted = f"apiVersion: {elsewhere}" if elsewhere else f"kind: {meant}"
    if meant and meant not in kinds:
        wanted += f" of apiVersion: {_ELSEWHERE[meant]}"
    what = f"a kind {quoted(kind)} in {short(api_version)}"
    return _does_not_exist("apiVersion" if elsewhere else "kind", what, wanted, kind)


def _does_not_exist(path: str, what: str, meant: str, value: str) -> tuple[Finding]:
    message = f"no API server has {what}. Did you mean {meant}?"
    return (Finding("NEU718", path, message, "kubectl refuses the object: correct it.", value),)


def _unnamed(data: dict[str, object], version: str, kind: str) -> tuple[Finding, ...]:
    """NEU718 for an object of Kubernetes without apiVersion or kind. Files of other programs may have one of them."""
    meant = _ELSEWHERE.get(kind, "") if kind not in _OF_OTHERS else ""
    lacks, has = ("kind", f"apiVersion {quoted(version)}") if version else ("apiVersion", f"kind {quoted(kind)}")
    if not (version or kind) or not (meant or ("metadata" in data and any(find_pods(data)))):
        return ()
    message = f"an object with {has} has no {lacks}."
    fix = f"kubectl refuses the object: write apiVersion: {meant}." if meant else "kubectl refuses the object: add it."
    return (Finding("NEU718", lacks, message, fix),)


def _close(word: str, known: Iterable[str]) -> str:
    """The known word that a word probably means; capitals do not count."""
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=_SIMILARITY)
    return by_lower[found[0]] if found else ""


# --- a store of them --------------------------------------------------------------------------------------------------

_AS_WRITTEN: Final = ((GROUP, "ResourceClaim"), (GROUP, "ResourceClaimTemplate"), ("", "ResourceQuota"))


class FileStore(Store):
    """A store that also knows how claims, templates and quotas are written: claims are enriched when they are applied,
    and a quota says what is used."""

    def __init__(self, found: Iterable[Manifest] = (), below: Store | None = None) -> None:
        """Take objects; of two with one name, the later one counts."""
        super().__init__(below)
        self._written: dict[tuple[str, str], dict[str, Manifest]] = {}
        for manifest in found:
            self.take(manifest)

    def take(self, manifest: Manifest) -> None:
        """Read what an object means for others."""
        from_files.take(self, manifest.group, manifest.kind, manifest.namespace, manifest.name, manifest.data)
        if (manifest.group, manifest.kind) in _AS_WRITTEN:
            known = self._written.setdefault((manifest.kind, manifest.namespace), {})
            known.pop(manifest.name, None)
            known[manifest.name] = manifest

    def written(self, kind: str, namespace: str) -> Mapping[str, Manifest]:
        """The manifests of claims, templates or quotas by name, in the order in which they were taken."""
        return self._written.get((kind, namespace), {})
