"""Pods that an object describes, and where their fields are in the object. Pure.

`find_pods` finds them by structure, for kinds that `kinds` does not list: a mapping with `containers`, or the
`resources` of a single container.

The pods of kinds without a pod template are made: Argo, Knative, KServe, Spark, Kubeflow's TrainJob. Only fields that a
decision about the pod reads are set: metadata, containers, claims, and how nodes are selected. Values of wrong types
are left out: the API server has the schema of the kind.

Sources: workflow/controller/workflowpod.go of Argo Workflows; docs/serving/spec of Knative; `PredictorSpec` and
`ComponentExtensionSpec` of KServe; `SparkPodSpec` of the Spark operator; `TrainJobSpec` of Kubeflow Trainer.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from checks.words import meant
from neuron import names
from neuron.api.fields import mapping, mappings, text

Path: TypeAlias = tuple[str | int, ...]
"""Steps into a document: names of members and indices of items."""

ANY: Final = "*"
"""A step of a pattern: each item or member."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_METADATA_KEY: Final = re.compile(r"metadata\.(labels|annotations)(?:\.([A-Za-z0-9_]+)|\[([^\]]*)\])", re.ASCII)
_SECTIONS: Final = ("containers", "initContainers")
_AMOUNTS: Final = ("limits", "requests")


@dataclasses.dataclass(frozen=True, slots=True)
class PodPlace:
    """A pod that an object describes.

    Attributes:
        path: in the object: of the pod template, or of what takes its place.
        template: the pod template. In kinds without pod templates, one that is made of the fields of the object.
        fields: for a made template: field paths in it, and where the object has them. Empty: the template is at `path`.
        metadata: for a made template: `labels` or `annotations`, some of them, and where the object has these. The
            first with a key counts.
    """

    path: Path
    template: dict[str, object]
    fields: tuple[tuple[str, str], ...] = ()
    metadata: tuple[tuple[str, Mapping[str, object], Path], ...] = ()

    @property
    def is_template(self) -> bool:
        """Whether the object has a pod template at `path`."""
        return not self.fields

    def field_path(self, path: str) -> str:
        """Field path in the object for a field path in the template."""
        outer = path_text(self.path)
        if not self.fields:
            return f"{outer}.{path}" if outer and path else outer or path
        if (key := _METADATA_KEY.match(path)) is not None:
            field, name = key[1], key[2] or key[3]
            where = next((at for each, found, at in self.metadata if each == field and name in found), None)
            if where is not None:
                return f"{path_text(where)}[{name}]{path[key.end() :]}"
        fields, inner = dict(self.fields), path
        while inner not in fields:
            if not inner:
                return outer
            inner = inner[: max(inner.rfind("."), inner.rfind("["), 0)]
        return outer if path and not inner else (fields[inner] + path.removeprefix(inner)).removeprefix(".")


def find_pods(data: object) -> Iterator[PodPlace]:
    """The pods of an object of any kind that name a legacy resource, or one that looks like it."""
    return _search((), data, None)


def values_at(value: object, pattern: Path) -> Iterator[tuple[Path, object]]:
    """All values that match a pattern, with their paths."""
    found: list[tuple[Path, object]] = [((), value)]
    for step in pattern:
        found = [((*path, name), child) for path, parent in found for name, child in _children(parent, step)]
    return iter(found)


def matches(path: Path, pattern: Path) -> bool:
    """Whether a path is one of a pattern."""
    return len(path) == len(pattern) and all(step in (ANY, at) for at, step in zip(path, pattern, strict=True))


def path_text(path: Sequence[str | int]) -> str:
    """A path as Kubernetes writes field paths: `spec.containers[0].resources`."""
    steps = (f".{step}" if _NAME.fullmatch(str(step)) else f"[{step}]" for step in path)
    return "".join(steps).removeprefix(".")


def _children(parent: object, step: str | int) -> list[tuple[str | int, object]]:
    match parent:
        case dict() if step == ANY:
            return list(parent.items())
        case dict() if step in parent:
            return [(step, parent[step])]
        case list() if step == ANY:
            return list(enumerate(parent))
        case list() if isinstance(step, int) and step < len(parent):
            return [(step, parent[step])]
        case _:
            return []


def _search(path: Path, value: object, parent: Mapping[str, object] | None) -> Iterator[PodPlace]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, dict | list):
                yield from _search((*path, index), item, None)
    if not isinstance(value, dict):
        return
    containers = _containers(value, "containers")
    is_spec = any(isinstance(each.get("name"), str) for each in containers)
    if is_spec and any(_asks(each.get("resources")) for section in _SECTIONS for each in _containers(value, section)):
        yield _spec_place(path, value, parent)
    for name, item in value.items():
        if is_spec and name in _SECTIONS:
            continue
        if name.startswith("resources") and _asks(item):
            yield resources_place((*path, name), str(value.get("name") or (path[-1] if path else "main")), item)
        elif isinstance(item, dict | list):
            yield from _search((*path, name), item, value)


def resources_place(path: Path, container: str, resources: object) -> PodPlace:
    """A pod with one container, of which the object has the `resources` only. `path`: their path."""
    fields = (("spec.containers[0].resources", path_text(path)),)
    return PodPlace(path, {"spec": {"containers": [{"name": container, "resources": resources}]}}, fields)


def _spec_place(path: Path, spec: dict[str, object], parent: Mapping[str, object] | None) -> PodPlace:
    if path and path[-1] == "spec" and parent is not None and len(path) > 1:
        metadata = parent.get("metadata")
        return PodPlace(path[:-1], {**({"metadata": metadata} if isinstance(metadata, dict) else {}), "spec": spec})
    return PodPlace(path, {"spec": spec}, (("spec", path_text(path)),))


def _containers(spec: Mapping[str, object], section: str) -> list[dict[str, object]]:
    found = spec.get(section)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _asks(resources: object) -> bool:
    """Whether `resources` name a legacy resource, or one that looks like it."""
    if not isinstance(resources, dict):
        return False
    amounts = [resources.get(field) for field in _AMOUNTS]
    return any(
        isinstance(name, str) and (name in names.LEGACY_RESOURCES or bool(meant(name)))
        for each in amounts
        if isinstance(each, dict)
        for name in each
    )


def pointer(*parts: str | int) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join([f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in parts])


CLAIMS: Final = "resourceClaims"
SPEC_FIELDS: Final = ("nodeSelector", "affinity", "tolerations", "schedulerName", CLAIMS)
"""Fields of a pod, beside containers, that say where it runs and which claims it has."""
_METADATA: Final = ("labels", "annotations")
_MOST_KEYS: Final = 1024
"""Labels of one object that its pods get. Each pod of a Workflow gets a copy of them."""

_ARGO_MAIN: Final = "main"
_KNATIVE_CONTAINER: Final = "user-container"
"""Default of `container-name-template` in Knative's ConfigMap config-defaults."""
_KSERVE_CONTAINER: Final = "kserve-container"
_KSERVE_COMPONENTS: Final = ("predictor", "transformer", "explainer")
_TRAINER: Final = "node"
"""Name of the Job of the trainer, and of its container."""


class _Maker:
    """Collects the fields of one pod, with their places in the object."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._metadata: dict[str, dict[str, object]] = {}
        self._keys: list[tuple[str, Mapping[str, object], Path]] = []
        self._spec: dict[str, Any] = {}
        self._fields: list[tuple[str, str]] = []

    def labelled(self, path: Path, metadata: object) -> None:
        """Add labels and annotations; those that are set already stay. `path`: of `metadata` in the object."""
        owner = mapping(metadata)
        for field in _METADATA if owner else ():
            found = mapping(owner.get(field))
            if len(found) > _MOST_KEYS:
                found = dict(itertools.islice(found.items(), _MOST_KEYS))
            if found:
                known = self._metadata.setdefault(field, {})
                known.update({key: value for key, value in found.items() if key not in known})
                self._keys.append((field, found, (*path, field)))

    def scheduled(self, path: Path, owner: object) -> None:
        """Set the fields for scheduling and claims that are not set yet. `path`: of `owner` in the object."""
        found = mapping(owner)
        for field in SPEC_FIELDS if found else ():
            value = found.get(field)
            if value and field not in self._spec:
                self._spec[field] = value
                self._fields.append((f"spec.{field}", path_text((*path, field))))

    def container(self, path: Path, value: object, default: str, section: str = "containers") -> None:
        """Add a container. `default`: its name if it has none."""
        if not isinstance(value, dict):
            return
        containers = self._spec.setdefault(section, [])
        self._fields.append((f"spec.{section}[{len(containers)}]", path_text(path)))
        containers.append({**value, "name": value.get("name") or default})

    def containers(self, path: Path, value: object, default: str, section: str = "containers") -> None:
        """Add the containers of a list. `path`: of the list in the object."""
        for index, each in enumerate(value if isinstance(value, list) else ()):
            name = default if index == 0 else f"{default}-{index}"
            self.container((*path, index), each, name, section)

    def limited(self, path: Path, resource: object, amount: object, default: str) -> None:
        """Add a limit to the first container. `path`: of the amount in the object."""
        if not isinstance(resource, str) or not resource:
            return
        if "containers" not in self._spec:
            self.container(path[:-1], {}, default)
        first = self._spec["containers"][0]
        resources = mapping(first.get("resources"))
        first["resources"] = {**resources, "limits": {**mapping(resources.get("limits")), resource: amount}}
        self._fields.append((f"spec.containers[0].resources.limits[{resource}]", path_text(path)))

    def declared_elsewhere(self) -> None:
        """Declare the claims to which containers refer: the object adds them in a form that is not read here."""
        declared = mappings(self._spec.get(CLAIMS))
        known = {name: None for each in declared if isinstance(name := each.get("name"), str)}
        places = [values_at(self._spec, (each, "*", "resources", "claims", "*", "name")) for each in _SECTIONS]
        used = {name: None for _, name in itertools.chain(*places) if isinstance(name, str)}
        added = [{"name": name} for name in used if name not in known]
        if added:
            self._spec[CLAIMS] = [*(self._spec.get(CLAIMS) or ()), *added]

    def made(self) -> Iterator[PodPlace]:
        """The pod; none without containers."""
        if "containers" in self._spec:
            metadata = {"metadata": self._metadata} if self._metadata else {}
            yield PodPlace(self.path, {**metadata, "spec": self._spec}, tuple(self._fields), tuple(self._keys))


def pods_of_workflow(data: object, spec_at: Path) -> Iterator[PodPlace]:
    """The pods of an Argo Workflow: one for each template with containers."""
    spec = next((mapping(found) for _, found in values_at(data, spec_at)), {})
    defaults = mapping(spec.get("templateDefaults"))
    patched = any(CLAIMS in text(owner.get("podSpecPatch")) for owner in (defaults, spec))
    for path, template in values_at(spec, ("templates", "*")):
        if not isinstance(template, dict):
            continue
        at = (*spec_at, *path)
        pod = _Maker(at)
        for where, owner in ((at, template), ((*spec_at, "templateDefaults"), defaults)):
            pod.labelled((*where, "metadata"), owner.get("metadata"))
            pod.scheduled(where, owner)
        pod.labelled((*spec_at, "podMetadata"), spec.get("podMetadata"))
        pod.scheduled(spec_at, spec)
        for field in ("container", "script"):
            pod.container((*at, field), template.get(field), _ARGO_MAIN)
        inner = mapping(template.get("containerSet")).get("containers")
        pod.containers((*at, "containerSet", "containers"), inner, _ARGO_MAIN)
        pod.containers((*at, "sidecars"), template.get("sidecars"), "sidecar")
        pod.containers((*at, "initContainers"), template.get("initContainers"), "init", "initContainers")
        if patched or CLAIMS in text(template.get("podSpecPatch")):
            pod.declared_elsewhere()
        yield from pod.made()


def pods_of_knative(data: object, template_at: Path) -> Iterator[PodPlace]:
    """The pod of a Knative Service, Configuration or Revision.

    Args:
        template_at: path of metadata and spec of the pod; () for a Revision.
    """
    for path, template in values_at(data, template_at):
        pod = _Maker(path)
        owner = mapping(template)
        spec = mapping(owner.get("spec"))
        pod.labelled((*path, "metadata"), owner.get("metadata"))
        pod.scheduled((*path, "spec"), spec)
        for section in ("containers", "initContainers"):
            pod.containers((*path, "spec", section), spec.get(section), _KNATIVE_CONTAINER, section)
        yield from pod.made()


def pods_of_inference_service(data: object) -> Iterator[PodPlace]:
    """The pods of a KServe InferenceService: one for each component, and one for the workers of the predictor."""
    for component in _KSERVE_COMPONENTS:
        path = ("spec", component)
        for _, owner in values_at(data, path):
            yield from _kserve(path, owner, data)


def pods_of_serving_runtime(data: object) -> Iterator[PodPlace]:
    """The pods of a KServe ServingRuntime."""
    for path, owner in values_at(data, ("spec",)):
        yield from _kserve(path, owner, None)


def _kserve(path: Path, owner: object, service: object) -> Iterator[PodPlace]:
    """The pods of one component. `service`: the InferenceService, whose labels and annotations its pods get."""
    component = mapping(owner)
    pod = _Maker(path)
    pod.labelled(path, component)
    pod.labelled(("metadata",), mapping(service).get("metadata"))
    pod.scheduled(path, component)
    # `model`, or a field with the name of a framework: a container with further fields.
    for name, value in component.items():
        if isinstance(value, dict) and isinstance(value.get("resources"), dict):
            pod.container((*path, name), value, _KSERVE_CONTAINER)
    for section in ("containers", "initContainers"):
        pod.containers((*path, section), component.get(section), _KSERVE_CONTAINER, section)
    yield from pod.made()
    worker = component.get("workerSpec")
    if isinstance(worker, dict):
        workers = _Maker((*path, "workerSpec"))
        workers.labelled(path, component)
        workers.scheduled(workers.path, worker)
        for section in ("containers", "initContainers"):
            workers.containers((*workers.path, section), worker.get(section), "worker-container", section)
        yield from workers.made()


def pods_of_spark(data: object, spec_at: Path) -> Iterator[PodPlace]:
    """The driver and the executors of a SparkApplication. `gpu` may name any extended resource."""
    spec = next((mapping(found) for _, found in values_at(data, spec_at)), {})
    for role in ("driver", "executor"):
        owner, at = mapping(spec.get(role)), (*spec_at, role)
        template = mapping(owner.get("template"))
        inner = mapping(template.get("spec"))
        pod = _Maker(at)
        pod.labelled(at, owner)
        pod.labelled((*at, "template", "metadata"), template.get("metadata"))
        for where, each in ((at, owner), ((*at, "template", "spec"), inner), (spec_at, spec)):
            pod.scheduled(where, each)
        for section in ("containers", "initContainers"):
            pod.containers((*at, "template", "spec", section), inner.get(section), f"spark-{role}", section)
        gpu = mapping(owner.get("gpu"))
        pod.limited((*at, "gpu", "quantity"), gpu.get("name"), gpu.get("quantity"), f"spark-kubernetes-{role}")
        yield from pod.made()


def pods_of_train_job(data: object) -> Iterator[PodPlace]:
    """The trainer's pods of a TrainJob, as far as it overrides its TrainingRuntime."""
    at = ("spec", "trainer", "resourcesPerNode")
    for path, resources in values_at(data, at):
        if not isinstance(resources, dict):
            continue
        pod = _Maker(path)
        # Later overrides win.
        for field in ("podTemplateOverrides", "podSpecOverrides"):
            for where, override in reversed(list(values_at(data, ("spec", field, "*")))):
                targets = [mapping(each).get("name") for _, each in values_at(override, ("targetJobs", "*"))]
                if _TRAINER in targets:
                    inner = ("spec",) if field == "podTemplateOverrides" else ()
                    pod.labelled((*where, "metadata"), mapping(override).get("metadata"))
                    pod.scheduled((*where, *inner), mapping(override).get("spec") if inner else override)
        pod.container(path, {"resources": resources}, _TRAINER)
        for place in pod.made():
            found = dict(resources_place(path, _TRAINER, resources).fields)
            others = [each for each in place.fields if each[0] != "spec.containers[0]"]
            yield PodPlace(path, place.template, (*others, *found.items()), place.metadata)
