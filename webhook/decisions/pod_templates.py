"""Finds the pod templates of an object by its kind. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

Path: TypeAlias = tuple[str | int, ...]
"""Steps into a document: names of members and indices of items."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ANY: Final = "*"
_TEMPLATE: Final = ("spec", "template")
_REPLICATED_JOBS: Final = ("replicatedJobs", _ANY, "template", "spec", "template")
_RAY_GROUPS: Final = (("headGroupSpec", "template"), ("workerGroupSpecs", _ANY, "template"))

POD_TEMPLATES: Final[Mapping[tuple[str, str], tuple[Path, ...]]] = {
    ("", "Pod"): ((),),
    ("", "PodTemplate"): (("template",),),
    ("", "ReplicationController"): (_TEMPLATE,),
    **{
        (group, kind): (_TEMPLATE,)
        for group in ("apps", "extensions")
        for kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")
    },
    ("batch", "Job"): (_TEMPLATE,),
    ("batch", "CronJob"): (("spec", "jobTemplate", *_TEMPLATE),),
    ("jobset.x-k8s.io", "JobSet"): (("spec", *_REPLICATED_JOBS),),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): (
        ("spec", "leaderWorkerTemplate", "leaderTemplate"),
        ("spec", "leaderWorkerTemplate", "workerTemplate"),
    ),
    **{
        ("kubeflow.org", kind): (("spec", f"{prefix}ReplicaSpecs", _ANY, "template"),)
        for kind, prefix in (
            ("MPIJob", "mpi"),
            ("PyTorchJob", "pytorch"),
            ("TFJob", "tf"),
            ("XGBoostJob", "xgb"),
            ("PaddleJob", "paddle"),
            ("JAXJob", "jax"),
        )
    },
    **{
        ("trainer.kubeflow.org", kind): (("spec", "template", "spec", *_REPLICATED_JOBS),)
        for kind in ("TrainingRuntime", "ClusterTrainingRuntime")
    },
    ("ray.io", "RayCluster"): tuple(("spec", *path) for path in _RAY_GROUPS),
    ("ray.io", "RayJob"): (
        *(("spec", "rayClusterSpec", *path) for path in _RAY_GROUPS),
        ("spec", "submitterPodTemplate"),
    ),
    ("ray.io", "RayService"): tuple(("spec", "rayClusterConfig", *path) for path in _RAY_GROUPS),
    ("batch.volcano.sh", "Job"): (("spec", "tasks", _ANY, "template"),),
    ("argoproj.io", "Rollout"): (_TEMPLATE,),
    ("kubeflow.org", "Notebook"): (_TEMPLATE,),
    # AWS's documents use both spellings.
    ("sagemaker.amazonaws.com", "HyperPodPyTorchJob"): (("spec", "replicaSpecs", _ANY, "template"),),
    ("sagemaker.amazonaws.com", "HyperPodPytorchJob"): (("spec", "replicaSpecs", _ANY, "template"),),
}
"""Paths of pod templates by API group and kind, for all versions; `*` is each item or member."""


WITHOUT_METADATA: Final = frozenset({("kubeflow.org", "Notebook")})
"""Kinds whose pod template has a `spec` and no `metadata`: the API server refuses it as an unknown field."""


def pod_templates(data: Any, group: str, kind: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The pod templates of an object of a known kind, with their paths. A Pod is its own template."""
    for pattern in POD_TEMPLATES.get((group, kind), ()):
        for path, value in _walk(data, pattern):
            if isinstance(value, dict):
                yield path, value


def matches(path: Path, pattern: Path) -> bool:
    """Whether a path is one of a pattern of `POD_TEMPLATES`."""
    return len(path) == len(pattern) and all(step in (_ANY, at) for at, step in zip(path, pattern, strict=True))


def path_text(path: Sequence[str | int]) -> str:
    """A path as Kubernetes writes field paths: `spec.containers[0].resources`."""
    steps = (f".{step}" if _NAME.fullmatch(str(step)) else f"[{step}]" for step in path)
    return "".join(steps).removeprefix(".")


def _walk(value: Any, pattern: Path) -> Iterator[tuple[Path, Any]]:
    """All values that match a pattern, with their paths."""
    found: list[tuple[Path, Any]] = [((), value)]
    for step in pattern:
        found = [((*path, name), child) for path, parent in found for name, child in _children(parent, step)]
    return iter(found)


def _children(parent: Any, step: str | int) -> list[tuple[str | int, Any]]:
    match parent:
        case dict() if step == _ANY:
            return list(parent.items())
        case dict() if step in parent:
            return [(step, parent[step])]
        case list() if step == _ANY:
            return list(enumerate(parent))
        case _:
            return []
