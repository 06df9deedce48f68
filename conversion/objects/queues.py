"""Finds queues that count a legacy resource and not the claim of a converted pod, and writes NEU232 about them. Pure.

Sources: Kueue counts the pod template of Job-like kinds, of StatefulSets (from 0.17 on) and of LeaderWorkerSets
(`constructWorkload` in pkg/controller/jobs) if the workload has the queue label, and else each pod that has it
(pkg/controller/jobs/pod/pod_webhook.go); it counts claims only of DeviceClasses in `deviceClassMappings`, and admits
none with alternatives (KEP-2941, pkg/dra/claims.go). Volcano and YuniKorn count each pod. Volcano's capacity plugin
counts claims under `deviceclass/<name>` (docs/design/capacity-dra-support.md). Limits of a Karpenter NodePool count
what its nodes offer.
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from conversion.objects.kinds import copies_queue, is_counted_by_template
from conversion.objects.pod_places import pointer
from neuron import names
from neuron.api.fields import mapping, mappings, sequence, text
from neuron.findings import Finding, quoted, short, warning

KUEUE: Final = "Kueue"
VOLCANO: Final = "Volcano"
YUNIKORN: Final = "YuniKorn"
KUEUE_GROUP: Final = "kueue.x-k8s.io"
KUEUE_LABEL: Final = f"{KUEUE_GROUP}/queue-name"
_KUEUE_MANAGED: Final = f"{KUEUE_GROUP}/managed"
"""Label of pods with a scheduling gate of Kueue."""
_KUEUE_PARENT: Final = f"{KUEUE_GROUP}/pod-suspending-parent"
"""Annotation of such pods that Kueue counts by their workload."""
QUEUE_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    KUEUE: (KUEUE_LABEL,),
    VOLCANO: ("scheduling.volcano.sh/queue-name", "volcano.sh/queue-name"),
    YUNIKORN: ("yunikorn.apache.org/queue",),
}
"""Labels and annotations of pods and workloads that name a queue."""
ALL_KEYS: Final = frozenset(key for keys in QUEUE_KEYS.values() for key in keys)
SCHEDULERS: Final[Mapping[str, str]] = {"volcano": VOLCANO, "yunikorn": YUNIKORN}
"""Scheduler names of the systems."""

SCHEDULER: Final = "/spec/schedulerName"
POINTERS: Final = {SCHEDULER: SCHEDULER, **{f"/metadata/labels{pointer(key)}": key for key in sorted(ALL_KEYS)}}
"""JSON pointers of the fields that policies may add to a pod and that show a queue, with their labels; the scheduler's
name with its pointer."""

_VOLCANO_JOB: Final = ("batch.volcano.sh", "Job")
_COUNTED_KINDS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("scheduling.volcano.sh", "Queue"): ("capability", "deserved", "guarantee"),
    ("karpenter.sh", "NodePool"): ("limits",),
    ("karpenter.sh", "Provisioner"): ("limits",),
}
"""Fields of `spec` with amounts of resources."""
COUNTING_KINDS: Final = frozenset({*_COUNTED_KINDS, (KUEUE_GROUP, "ClusterQueue")})
"""Group and kind of the objects for which `declared` has findings."""
_VOLCANO_NEEDS: Final = "Volcano allocates claims from 1.12 on. "
"""Source: volcano-sh/volcano#3799, #4400. No other finding says what this scheduler needs."""
_ALTERNATIVES: Final = (
    "Let the pod select one instance type. If its claim still has alternatives (consecutive devices of Inferentia,"
    " groups on UltraServer nodes), make it a Job or a StatefulSet, which Kueue counts by the template, or keep it on"
    " the device plugin by queued of a ConversionPolicy."
)
_LABEL_WORKLOAD: Final = (
    f"Set the label {KUEUE_LABEL} in metadata of the workload: Kueue then counts its pod template, which keeps its"
    " limits. Now it counts each pod."
)
_MOST_NAME: Final = 63


@dataclasses.dataclass(frozen=True, slots=True)
class Queue:
    """A queue that counts the pods of an object.

    Attributes:
        system: `KUEUE`, `VOLCANO` or `YUNIKORN`.
        name: of the queue; empty if the object does not name it.
        path: field path in the object of what shows it.
        only_pods: whether Kueue counts each pod of a workload whose pod template it could count.
    """

    system: str
    name: str = ""
    path: str = ""
    only_pods: bool = False


def queues_of_pod(pod: Mapping[str, object], *, only_pods: bool = False) -> tuple[Queue, ...]:
    """The queues of a pod or a pod template, one for each system. `only_pods`: see `Queue`."""
    return tuple(_unique(_queues("", pod, mapping(pod.get("spec")).get("schedulerName"), only_pods=only_pods)))


def queues_of_workload(
    group: str, kind: str, data: object, templates: Iterable[tuple[str, Mapping[str, object]]]
) -> tuple[Queue, ...]:
    """The queues of a workload and of its pods, one for each system.

    Args:
        data: the workload, of any content.
        templates: its pod templates, with their field paths.
    """
    data = mapping(data)
    spec = mapping(data.get("spec"))
    found = list(_queues("", data, None))
    if not (is_counted_by_template(group, kind) or copies_queue(group, kind) or kind == "Pod"):
        found = [each for each in found if each.system != KUEUE]
    if (group, kind) == _VOLCANO_JOB:
        # The controller gives the pods the scheduler and the queue of the Job; its default scheduler is Volcano.
        name, path = spec.get("schedulerName"), "spec.schedulerName"
        system = VOLCANO if name in (None, "") else SCHEDULERS.get(str(name))
        if system is not None:
            found.append(Queue(system, text(spec.get("queue")), path if name else "spec"))
    if (group, kind) == ("batch", "CronJob"):
        found += _queues("spec.jobTemplate", mapping(spec.get("jobTemplate")), None)
    only_pods = is_counted_by_template(group, kind) and not _takes_labels(group, kind, data)
    for path, template in templates:
        found += _queues(path, template, mapping(template.get("spec")).get("schedulerName"), only_pods=only_pods)
    return tuple(_unique(found))


def copied_labels(group: str, kind: str, data: Mapping[str, object]) -> dict[str, str]:
    """The queue label that Kueue copies from a workload to its pods."""
    if not copies_queue(group, kind):
        return {}
    value = mapping(mapping(data.get("metadata")).get("labels")).get(KUEUE_LABEL)
    return {KUEUE_LABEL: value} if isinstance(value, str) else {}


def owned_by_job(owners: object) -> bool:
    """Whether Kueue can count a pod with these `ownerReferences` by the template of its owner."""
    return any(
        is_counted_by_template(text(each.get("apiVersion")).rpartition("/")[0], text(each.get("kind")))
        for each in mappings(owners)
        if each.get("controller") is True
    )


def counted_alone(labels: Mapping[str, object], annotations: Mapping[str, object]) -> bool:
    """Whether Kueue counts a pod by itself: its webhook has seen the pod, and no owner that Kueue counts."""
    return labels.get(_KUEUE_MANAGED) == "true" and _KUEUE_PARENT not in annotations


def losing_count(found: Iterable[Queue], *, by_template: bool, by_claims: bool = False) -> tuple[Queue, ...]:
    """The queues that stop counting pods which are converted at admission.

    Args:
        by_template: whether Kueue counts these pods by a template that stays as it is, if the workload has the label.
        by_claims: whether Kueue is known to count their claims.
    """
    return tuple(
        each for each in found if each.system != KUEUE or not (by_claims or (by_template and not each.only_pods))
    )


def uncounted(queue: Queue, device_class: str, said: str = "", *, alternatives: bool = False) -> Finding:
    """NEU232 about a queue.

    Args:
        said: a sentence about how often this is said; or "".
        alternatives: whether the claim has some.
    """
    where = f" in queue {quoted(queue.name, _MOST_NAME)}" if queue.name else ""
    if alternatives and queue.system == KUEUE:
        message = f"Kueue admits no pod{where} whose claim has alternatives (firstAvailable), as the one of this pod."
        fix = _ALTERNATIVES
    else:
        message = (
            f"{queue.system} counts {names.RESOURCE_NEURON}{where}, and does not count the claims of converted pods"
            " unless it is set up for them."
        )
        fix = (_VOLCANO_NEEDS if queue.system == VOLCANO else "") + _fix(queue.system, device_class)
    if queue.only_pods:
        fix = _LABEL_WORKLOAD
    return warning("NEU232", queue.path, message, f"{fix} {said}".rstrip(), queue.name or queue.system)


def device_class_mappings(classes: Collection[str], mapped: Mapping[str, str]) -> list[str]:
    """Entries of Kueue's `resources.deviceClassMappings`, in YAML: one for each resource.

    Kueue has one entry for each resource, and refuses workloads with a claim of a DeviceClass without an entry.

    Args:
        classes: those of generated claims.
        mapped: the resource of each DeviceClass that has an entry; entries of these resources keep their classes.
    """
    wanted = dict(mapped)
    for each in sorted(classes):
        wanted.setdefault(each, names.RESOURCE_EFA if each == names.EFA_DEVICE_CLASS else names.RESOURCE_NEURON)
    needed = dict.fromkeys(wanted[each] for each in sorted(classes))
    return [_entry(resource, [each for each in wanted if wanted[each] == resource]) for resource in needed]


def _entry(resource: str, classes: Sequence[str]) -> str:
    return f"{{name: {resource}, deviceClassNames: [{', '.join(classes)}]}}"


def _fix(system: str, device_class: str, resource: str = names.RESOURCE_NEURON) -> str:
    if system == KUEUE:
        return f"Kueue's Configuration needs {_entry(resource, [device_class])} in resources.deviceClassMappings."
    if system == VOLCANO:
        return f"Where Volcano's capacity plugin counts claims, give the Queue amounts of deviceclass/{device_class}."
    return (
        "YuniKorn has no setting for claims: bound the namespace by a ResourceQuota with"
        f" {device_class}.deviceclass.resource.k8s.io/devices."
    )


def declared(group: str, kind: str, data: object, device_class: str) -> Iterator[Finding]:
    """NEU232 for each place where a ClusterQueue, a Volcano Queue or a Karpenter NodePool names a legacy resource.

    Args:
        data: the object, of any content.
    """
    data = mapping(data)
    spec = mapping(data.get("spec"))
    name = quoted(mapping(data.get("metadata")).get("name"), _MOST_NAME)
    if (group, kind) == (KUEUE_GROUP, "ClusterQueue"):
        for path, resource in _covered(spec):
            told = f"ClusterQueue {name} counts {resource}, and the claims of converted pods only by a mapping."
            fix = f"{_fix(KUEUE, device_class, resource)}{_in_devices(resource)}"
            yield warning("NEU232", path, told, fix, resource)
        return
    for field in _COUNTED_KINDS.get((group, kind), ()):
        for path, resource in _amounts(f"spec.{field}", mapping(spec.get(field))):
            if group == "karpenter.sh":
                told = f"{kind} {name} limits {resource}, which nodes of the DRA driver do not offer."
                fix = "Limit cpu or nodes; Karpenter makes no nodes for pods with Neuron claims."
            elif _has_class(spec, device_class):
                continue
            else:
                told = f"Queue {name} counts {resource} in {field}, and not the claims of converted pods."
                fix = f"{_fix(VOLCANO, device_class)}{_in_devices(resource)}"
            yield warning("NEU232", path, told, fix, resource)


def _has_class(spec: Mapping[str, object], device_class: str) -> bool:
    """Whether a Volcano Queue counts the DeviceClass."""
    fields = (mapping(spec.get(each)) for each in _COUNTED_KINDS["scheduling.volcano.sh", "Queue"])
    key = f"deviceclass/{device_class}"
    return any(key in each or key in mapping(each.get("resource")) for each in fields)


def _in_devices(resource: str) -> str:
    return " Claims count devices, not cores." if resource == names.RESOURCE_NEURONCORE else ""


def _covered(spec: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The legacy resources that a ClusterQueue covers, with their field paths."""
    for number, group in enumerate(sequence(spec.get("resourceGroups"))):
        for index, resource in enumerate(sequence(mapping(group).get("coveredResources"))):
            if resource in names.LEGACY_RESOURCES:
                yield f"spec.resourceGroups[{number}].coveredResources[{index}]", str(resource)


def _amounts(path: str, amounts: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The legacy resources of a list of amounts; `guarantee` and older `limits` have it under `resource(s)`."""
    for resource in names.LEGACY_RESOURCES:
        if resource in amounts:
            yield f"{path}[{resource}]", resource
        for inner in ("resource", "resources"):
            if resource in mapping(amounts.get(inner)):
                yield f"{path}.{inner}[{resource}]", resource


def _takes_labels(group: str, kind: str, data: Mapping[str, object]) -> bool:
    """Whether a Job, or each Job of a CronJob, gets the labels of its pod template.

    The API server gives them to a Job without labels (`SetDefaults_Job` in pkg/apis/batch/v1/defaults.go).
    """
    if group != "batch":
        return False
    job = mapping(mapping(data.get("spec")).get("jobTemplate")) if kind == "CronJob" else data
    return not mapping(job.get("metadata")).get("labels")


def _queues(path: str, owner: Mapping[str, object], scheduler: object, *, only_pods: bool = False) -> Iterator[Queue]:
    """The queues that `metadata` and the scheduler's name show. `only_pods`: of a queue of Kueue."""
    prefix = f"{path}." if path else ""
    metadata = mapping(owner.get("metadata"))
    for field in ("labels", "annotations"):
        values = mapping(metadata.get(field))
        for system, keys in QUEUE_KEYS.items():
            for key in keys:
                if values.get(key) and (system != KUEUE or field == "labels"):
                    name, where = short(str(values[key]), _MOST_NAME), f"{prefix}metadata.{field}[{key}]"
                    yield Queue(system, name, where, only_pods=only_pods and system == KUEUE)
    if isinstance(scheduler, str) and scheduler in SCHEDULERS:
        yield Queue(SCHEDULERS[scheduler], "", f"{prefix}spec.schedulerName")


def _unique(found: Iterable[Queue]) -> Iterator[Queue]:
    """The first queue of each system; one with a name before others."""
    kept: dict[str, Queue] = {}
    for each in sorted(found, key=lambda each: not each.name):
        kept.setdefault(each.system, each)
    yield from kept.values()
