"""The kinds of objects that hold pods or say how pods get devices: where the pods are, how queues count them. Pure.

The rules of the webhook configuration are written from this table (`deploy/kinds.py`), so that what is reviewed
at apply time and what the commands check are the same kinds.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from checks.workloads import check_claims, check_ultraserver, check_workload
from conversion.objects import pod_places
from conversion.objects.pod_places import ANY, Path, PodPlace, values_at
from neuron.api import workloads
from neuron.findings import Finding

GroupKind: TypeAlias = tuple[str, str]
"""API group and kind."""

_TEMPLATE: Final = ("spec", "template")
_REPLICATED_JOBS: Final = ("replicatedJobs", ANY, "template", "spec", "template")
_RAY_GROUPS: Final = (("headGroupSpec", "template"), ("workerGroupSpecs", ANY, "template"))
_ARGO_WITH_CLAIMS: Final = "Argo Workflows newer than 4.0"
_SPARK: Final = "its fields are settings of Spark, which has none for claims"
_KNATIVE: Final = "Knative accepts no claims in it"
_KSERVE: Final = "KServe merges it with the containers of a ServingRuntime"
_TRAIN_JOB: Final = "its pod templates are those of a TrainingRuntime"


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object that holds pods, in all its versions.

    Attributes:
        templates: patterns of the paths of its pod templates; `*` is each item or member.
        made: for a kind without pod templates: object -> its pods.
        no_claims: why it cannot hold claims; empty if it can.
        claims_since: the program, with its version, that first has the field for claims; empty if all versions have it.
        metadata: whether its pod templates may have `metadata`; else the API server refuses it as an unknown field.
        namespaced: whether its objects are in namespaces.
        counted_by_template: whether Kueue (0.17 and later) counts its pod templates, which admission does not change.
        copies_queue: whether Kueue copies its queue label to its pod template.
        controller: API version and kind of the controller of its pods, if that is another object.
        check: for a kind without pods: object -> findings about its own fields. The errors refuse the object.
    """

    group: str
    kind: str
    templates: tuple[Path, ...] = ()
    made: Callable[[object], Iterator[PodPlace]] | None = None
    no_claims: str = ""
    claims_since: str = ""
    metadata: bool = True
    namespaced: bool = True
    counted_by_template: bool = False
    copies_queue: bool = False
    controller: tuple[str, str] | None = None
    check: Callable[[Mapping[str, object]], Iterable[Finding]] | None = None

    @property
    def plural(self) -> str:
        """Name of the resource in the API."""
        lower = self.kind.lower()
        return f"{lower[:-1]}ies" if lower.endswith("y") else f"{lower}s"

    def pods(self, data: object) -> Iterator[PodPlace]:
        """The pods of an object. A Pod is its own template."""
        if self.made is not None:
            yield from self.made(data)
        for pattern in self.templates:
            for path, value in values_at(data, pattern):
                if isinstance(value, dict):
                    yield PodPlace(path, value)


def _argo(spec_at: Path) -> Callable[[object], Iterator[PodPlace]]:
    return functools.partial(pod_places.pods_of_workflow, spec_at=spec_at)


def _knative(template_at: Path) -> Callable[[object], Iterator[PodPlace]]:
    return functools.partial(pod_places.pods_of_knative, template_at=template_at)


_ALL: Final = (
    Kind("", "Pod", ((),)),
    Kind("", "PodTemplate", (("template",),)),
    Kind("", "ReplicationController", (_TEMPLATE,)),
    *(
        Kind(
            "apps",
            kind,
            (_TEMPLATE,),
            counted_by_template=kind == "StatefulSet",
            copies_queue=kind == "Deployment",
            controller=("apps/v1", "ReplicaSet") if kind == "Deployment" else None,
        )
        for kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")
    ),
    Kind("batch", "Job", (_TEMPLATE,), counted_by_template=True),
    Kind(
        "batch",
        "CronJob",
        (("spec", "jobTemplate", *_TEMPLATE),),
        counted_by_template=True,
        controller=("batch/v1", "Job"),
    ),
    Kind(
        "jobset.x-k8s.io",
        "JobSet",
        (("spec", *_REPLICATED_JOBS),),
        counted_by_template=True,
        controller=("batch/v1", "Job"),
    ),
    Kind(
        "leaderworkerset.x-k8s.io",
        "LeaderWorkerSet",
        (
            ("spec", "leaderWorkerTemplate", "leaderTemplate"),
            ("spec", "leaderWorkerTemplate", "workerTemplate"),
        ),
        counted_by_template=True,
        copies_queue=True,
    ),
    *(
        Kind("kubeflow.org", kind, (("spec", f"{prefix}ReplicaSpecs", ANY, "template"),), counted_by_template=True)
        for kind, prefix in (
            ("MPIJob", "mpi"),
            ("PyTorchJob", "pytorch"),
            ("TFJob", "tf"),
            ("XGBoostJob", "xgb"),
            ("PaddleJob", "paddle"),
            ("JAXJob", "jax"),
        )
    ),
    Kind("kubeflow.org", "Notebook", (_TEMPLATE,), metadata=False),
    *(
        Kind(
            "trainer.kubeflow.org",
            kind,
            (("spec", "template", "spec", *_REPLICATED_JOBS),),
            counted_by_template=True,
            namespaced=kind == "TrainingRuntime",
        )
        for kind in ("TrainingRuntime", "ClusterTrainingRuntime")
    ),
    Kind("ray.io", "RayCluster", tuple(("spec", *path) for path in _RAY_GROUPS), counted_by_template=True),
    Kind(
        "ray.io",
        "RayJob",
        (*(("spec", "rayClusterSpec", *path) for path in _RAY_GROUPS), ("spec", "submitterPodTemplate")),
        counted_by_template=True,
    ),
    Kind(
        "ray.io",
        "RayService",
        tuple(("spec", "rayClusterConfig", *path) for path in _RAY_GROUPS),
        counted_by_template=True,
    ),
    Kind("batch.volcano.sh", "Job", (("spec", "tasks", ANY, "template"),)),
    Kind("argoproj.io", "Rollout", (_TEMPLATE,)),
    # AWS's documents use both spellings.
    Kind("sagemaker.amazonaws.com", "HyperPodPyTorchJob", (("spec", "replicaSpecs", ANY, "template"),)),
    Kind("sagemaker.amazonaws.com", "HyperPodPytorchJob", (("spec", "replicaSpecs", ANY, "template"),)),
    *(
        Kind(
            "argoproj.io",
            kind,
            made=_argo(("spec",)),
            claims_since=_ARGO_WITH_CLAIMS,
            namespaced="Cluster" not in kind,
        )
        for kind in ("Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate")
    ),
    Kind("argoproj.io", "CronWorkflow", made=_argo(("spec", "workflowSpec")), claims_since=_ARGO_WITH_CLAIMS),
    # --- kinds that cannot hold claims: the webhook converts their pods when they are created ---
    *(
        Kind(
            "sparkoperator.k8s.io",
            kind,
            made=functools.partial(pod_places.pods_of_spark, spec_at=spec_at),
            no_claims=_SPARK,
            counted_by_template=True,
        )
        for kind, spec_at in (("SparkApplication", ("spec",)), ("ScheduledSparkApplication", ("spec", "template")))
    ),
    *(
        Kind("serving.knative.dev", kind, made=_knative(_TEMPLATE), no_claims=_KNATIVE)
        for kind in ("Service", "Configuration")
    ),
    Kind("serving.knative.dev", "Revision", made=_knative(()), no_claims=_KNATIVE),
    Kind("serving.kserve.io", "InferenceService", made=pod_places.pods_of_inference_service, no_claims=_KSERVE),
    *(
        Kind(
            "serving.kserve.io",
            kind,
            made=pod_places.pods_of_serving_runtime,
            no_claims=_KSERVE,
            namespaced="Cluster" not in kind,
        )
        for kind in ("ServingRuntime", "ClusterServingRuntime")
    ),
    Kind(
        "trainer.kubeflow.org",
        "TrainJob",
        made=pod_places.pods_of_train_job,
        no_claims=_TRAIN_JOB,
        counted_by_template=True,
    ),
    # --- kinds without pods: their own fields are checked ---
    *(
        Kind(workloads.SCHEDULING, kind, check=functools.partial(check_claims, kind))
        for kind in (workloads.POD_GROUP, workloads.WORKLOAD)
    ),
    Kind(workloads.ULTRASERVERS, workloads.ULTRASERVER_WORKLOAD, check=check_workload),
    Kind(workloads.ULTRASERVERS, workloads.ULTRASERVER, check=check_ultraserver),
)

KINDS: Final[Mapping[GroupKind, Kind]] = {(each.group, each.kind): each for each in _ALL}
"""All kinds by API group and kind."""

WITHOUT_PODS: Final = tuple(key for key, each in KINDS.items() if each.check is not None)
"""Kinds that say how the pods of other objects get devices."""

_COUNTED_GROUPS: Final = frozenset({"workload.codeflare.dev"})
"""Groups without a kind in the table, whose kinds Kueue counts by their pod template."""


def holds_claims(group: str, kind: str) -> bool:
    """Whether the pod templates of a kind are known and can hold claims."""
    found = KINDS.get((group, kind))
    return found is not None and bool(found.templates) and not found.no_claims


def shared_claims(data: Mapping[str, object], group: str, kind: str) -> Iterator[tuple[str, str]]:
    """Kind and name of the claims and templates that a PodGroup or Workload shares among pods; none for other kinds."""
    if group == workloads.SCHEDULING and (group, kind) in KINDS:
        for claims in workloads.claim_lists(kind, data):
            yield from (each for claim in claims for each in claim.objects)


def pods_of(data: object, group: str, kind: str) -> Iterator[PodPlace]:
    """The pods of an object of a known kind; none for other kinds."""
    found = KINDS.get((group, kind))
    return iter(()) if found is None else found.pods(data)


def pod_templates(data: object, group: str, kind: str) -> Iterator[tuple[Path, dict[str, object]]]:
    """The pod templates of an object whose kind can hold claims, with their paths. A Pod is its own template."""
    if holds_claims(group, kind):
        for place in pods_of(data, group, kind):
            yield place.path, place.template


def is_counted_by_template(group: str, kind: str) -> bool:
    """Whether Kueue counts the pod templates of a kind, which admission does not change."""
    found = KINDS.get((group, kind))
    return group in _COUNTED_GROUPS if found is None else found.counted_by_template


def copies_queue(group: str, kind: str) -> bool:
    """Whether Kueue copies the queue label of a kind to its pod template."""
    found = KINDS.get((group, kind))
    return found is not None and found.copies_queue


def controller_of_pods(group: str, kind: str, version: str) -> tuple[str, str]:
    """API version and kind of the controller of the pods of an object, whose API version is `version`."""
    found = KINDS.get((group, kind))
    return (version, kind) if found is None or found.controller is None else found.controller
