"""How many pods the pod templates of an object make at one time, by kind. Pure.

Updates, autoscalers and the schedules of others are not in an object: a rolling update may have some more pods.

Sources: the defaults of the kinds' APIs (k8s.io/api apps/v1 and batch/v1, JobSet, LeaderWorkerSet, Kubeflow, KubeRay,
Volcano).
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from conversion.objects.kinds import KINDS, GroupKind, shared_claims
from conversion.objects.pod_places import Path, path_text
from neuron.api import workloads
from neuron.api.fields import mapping

MOST_TEMPLATES: Final = 256
"""Pod templates of one object that are counted."""

_Number: TypeAlias = int | str
"""A number of pods, or why it is not known."""
_Count: TypeAlias = Callable[[Mapping[str, Any], Path], _Number]
"""The object, and the path of a template -> the pods of that template."""


@dataclasses.dataclass(frozen=True, slots=True)
class WorkloadPods:
    """The pods of one pod template.

    Attributes:
        path: of the template in the object.
        number: pods at one time; None if that is not known.
        why: why it is not known; else empty.
    """

    path: str
    template: Mapping[str, object]
    number: int | None
    why: str = ""


_NOT_IN_IT: Final = "the object does not say how many pods it makes"
_PER_NODE: Final = "a DaemonSet has a pod on each node"
_NO_TEMPLATE: Final = "it has no pod template"


def pods_of_workload(data: Mapping[str, object], group: str, kind: str) -> Sequence[WorkloadPods] | None:
    """The pod templates of an object with their numbers of pods; None if its kind is not in the table of kinds.

    A kind of the table that makes no pods has none. Beyond `MOST_TEMPLATES`, the number of pods is not known.
    """
    found = KINDS.get((group, kind))
    if found is None:
        return None
    if found.check is not None:
        return _sharing(data, group, kind)
    count = _NUMBERS.get((group, kind))
    places = found.pods(data)
    pods = []
    for place in itertools.islice(places, MOST_TEMPLATES):
        number = _NOT_IN_IT if count is None else count(data, place.path)
        known, why = (None, number) if isinstance(number, str) else (number, "")
        pods.append(WorkloadPods(path_text(place.path), place.template, known, why))
    if not pods:
        return [WorkloadPods("", {}, None, _NO_TEMPLATE)]
    if more := sum(1 for _ in places):
        every = MOST_TEMPLATES + more
        pods.append(WorkloadPods("", {}, None, f"only {MOST_TEMPLATES} of its {every} pod templates are counted"))
    return pods


def _sharing(data: Mapping[str, object], group: str, kind: str) -> Sequence[WorkloadPods]:
    """The claims that the pods of a group share, as those of one pod. Other kinds without pods hold nothing."""
    fields = {what: field for field, what in workloads.OBJECTS.items()}
    named = [(fields[what], name) for what, name in shared_claims(data, group, kind)]
    if not named:
        return ()
    claims = [{"name": f"shared-{at}", field: name} for at, (field, name) in enumerate(named)]
    number, why = (1, "") if kind == workloads.POD_GROUP else (None, "it does not say how many groups there are")
    return [WorkloadPods("spec", {"spec": {"resourceClaims": claims}}, number, why)]


def _replicas(data: Mapping[str, Any], path: Path) -> _Number:
    """The `replicas` beside a template."""
    return _field(data, path[:-1], "replicas", 1)


def _job(data: Mapping[str, Any], path: Path) -> _Number:
    """The pods of a Job at one time; `completions` bounds those that run at last."""
    spec = path[:-1]
    parallel = _field(data, spec, "parallelism", 1)
    wanted = parallel if mapping(_at(data, spec)).get("completions") is None else _field(data, spec, "completions", 1)
    return min(parallel, wanted) if isinstance(parallel, int) and isinstance(wanted, int) else _why(parallel, wanted)


def _cron_job(data: Mapping[str, Any], path: Path) -> _Number:
    if mapping(data.get("spec")).get("concurrencyPolicy") not in ("Forbid", "Replace"):
        return "with concurrencyPolicy Allow several Jobs can run at once"
    return _job(data, path)


def _replicated_job(data: Mapping[str, Any], path: Path) -> _Number:
    """A template of a JobSet, `…replicatedJobs[i].template.spec.template`."""
    return _product(_field(data, path[:-3], "replicas", 1), _job(data, path))


def _group(data: Mapping[str, Any], path: Path) -> _Number:
    """A template of a LeaderWorkerSet: one leader, and the others of each group are workers."""
    groups, size = _field(data, ("spec",), "replicas", 1), _field(data, path[:-1], "size", 1)
    if path[-1] == "leaderTemplate":
        return groups
    leads = isinstance(_at(data, (*path[:-1], "leaderTemplate")), dict)
    return _product(groups, max(0, size - 1) if leads and isinstance(size, int) else size)


def _kubeflow(data: Mapping[str, Any], path: Path) -> _Number:
    """A template of a Kubeflow job; `elasticPolicy` may scale its workers."""
    elastic = mapping(mapping(data.get("spec")).get("elasticPolicy"))
    replicas = _replicas(data, path)
    if path[-2] != "Worker" or elastic.get("maxReplicas") is None:
        return replicas
    most = _field(data, ("spec", "elasticPolicy"), "maxReplicas", 1)
    return max(replicas, most) if isinstance(replicas, int) and isinstance(most, int) else _why(replicas, most)


def _ray(data: Mapping[str, Any], path: Path) -> _Number:
    """A template of a Ray cluster: its head, the workers of a group, or the submitter of a RayJob."""
    if path[-2] == "headGroupSpec" or path[-1] == "submitterPodTemplate":
        return 1
    cluster, group = path[:-3], path[:-1]
    replicas = _field(data, group, "replicas", 0)
    if mapping(_at(data, cluster)).get("enableInTreeAutoscaling"):
        most = _field(data, group, "maxReplicas", None)
        replicas = max(replicas, most) if isinstance(replicas, int) and isinstance(most, int) else _why(replicas, most)
    return _product(replicas, _field(data, group, "numOfHosts", 1))


_NUMBERS: Final[Mapping[GroupKind, _Count]] = {
    ("", "Pod"): lambda *_: 1,
    ("", "PodTemplate"): lambda *_: 1,
    ("", "ReplicationController"): _replicas,
    **{("apps", kind): _replicas for kind in ("Deployment", "StatefulSet", "ReplicaSet")},
    ("apps", "DaemonSet"): lambda *_: _PER_NODE,
    ("batch", "Job"): _job,
    ("batch", "CronJob"): _cron_job,
    ("jobset.x-k8s.io", "JobSet"): _replicated_job,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _group,
    **{("kubeflow.org", f"{kind}Job"): _kubeflow for kind in ("MPI", "PyTorch", "TF", "XGBoost", "Paddle", "JAX")},
    ("kubeflow.org", "Notebook"): lambda *_: 1,
    ("trainer.kubeflow.org", "TrainingRuntime"): _replicated_job,
    ("trainer.kubeflow.org", "ClusterTrainingRuntime"): _replicated_job,
    ("trainer.kubeflow.org", "TrainJob"): lambda data, _: _field(data, ("spec", "trainer"), "numNodes", None),
    **{("ray.io", kind): _ray for kind in ("RayCluster", "RayJob", "RayService")},
    ("batch.volcano.sh", "Job"): _replicas,
    ("argoproj.io", "Rollout"): _replicas,
    **{("sagemaker.amazonaws.com", f"HyperPod{kind}Job"): _replicas for kind in ("PyTorch", "Pytorch")},
}
"""Other kinds of the table decide their number of pods while they run, such as workflows and autoscaled services."""


def _at(data: object, path: Path) -> object:
    value: Any = data
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and step < len(value) else None
        else:
            value = mapping(value).get(step)
    return value


def _field(data: Mapping[str, Any], path: Path, name: str, default: int | None) -> _Number:
    """A number of the mapping at `path`; `default`: if it is not set, None if it is then not known."""
    value = mapping(_at(data, path)).get(name)
    place = path_text((*path, name))
    if value is None:
        return f"{place} is not set" if default is None else default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return f"{place} is not a number"
    return max(0, int(value))


def _why(*numbers: _Number) -> str:
    return next(each for each in numbers if isinstance(each, str))


def _product(*numbers: _Number) -> _Number:
    known = [each for each in numbers if isinstance(each, int)]
    # Without pods of one factor there are none.
    return math.prod(known) if len(known) == len(numbers) or 0 in known else _why(*numbers)
