"""How many pods a workload has for each of its pod templates. Pure.

The number is what the object asks for. A product of the numbers on the way to the template: the Jobs of a JobSet and
the pods of each, the groups of a LeaderWorkerSet and the pods of each.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from neuron.api.fields import mapping

_MOST: Final = 1_000_000
_TRAINER: Final = "trainer.kubeflow.org"
_NO_PODS: Final = frozenset({("", "PodTemplate"), (_TRAINER, "TrainingRuntime"), (_TRAINER, "ClusterTrainingRuntime")})
"""Other objects make the pods of these templates."""


def pods_of(group: str, kind: str, data: Mapping[str, object], path: Sequence[str | int]) -> int | None:
    """Number of pods of one template; None if the object does not say it.

    Args:
        path: of the pod template in the object.
    """
    if (group, kind) == ("", "Pod"):
        return 1
    if (group, kind) in _NO_PODS:
        return 0
    if kind == "DaemonSet":
        return _whole(mapping(data.get("status")).get("desiredNumberScheduled"), None)
    if kind == "LeaderWorkerSet":
        return _of_groups(data, path)
    spec = mapping(data.get("spec"))
    if spec.get("suspend") is True and kind == "CronJob":
        return 0
    count = 1
    at: Any = data
    for step in path:
        at = at[step]
        if isinstance(at, dict):
            count = min(_MOST, count * _here(at))
    return count


def _here(part: Mapping[str, object]) -> int:
    """The factor of one part of the object: `replicas`, or `parallelism` bounded by `completions`."""
    replicas = _whole(part.get("replicas"), 1)
    parallelism = _whole(part.get("parallelism"), 1)
    completions = _whole(part.get("completions"), parallelism)
    return (1 if replicas is None else replicas) * min(parallelism or 0, completions or 0)


def _of_groups(data: Mapping[str, object], path: Sequence[str | int]) -> int:
    spec = mapping(data.get("spec"))
    template = mapping(spec.get("leaderWorkerTemplate"))
    groups, size = _whole(spec.get("replicas"), 1) or 0, _whole(template.get("size"), 1) or 0
    if path[-1] == "leaderTemplate":
        return groups
    leaders = 1 if isinstance(template.get("leaderTemplate"), dict) else 0
    return min(_MOST, groups * max(0, size - leaders))


def _whole(value: object, default: int | None) -> int | None:
    """A number of pods; `default` for an absent one, and for a value that is not one."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return min(value, _MOST)
    return default
