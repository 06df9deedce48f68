"""Which objects of a cluster a command line names, as kubectl reads it: `pod/NAME`, `deploy/NAME`, `job NAME`. Pure."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from commands.cluster.reader import Object
from conversion.objects.kinds import KINDS

Kind = tuple[str, str]
"""API group and kind."""

POD: Final[Kind] = ("", "Pod")
MOST_PODS: Final = 3
"""Pods of one workload that are explained."""
_SHORT: Final = {
    "po": POD,
    "rc": ("", "ReplicationController"),
    "deploy": ("apps", "Deployment"),
    "ds": ("apps", "DaemonSet"),
    "rs": ("apps", "ReplicaSet"),
    "sts": ("apps", "StatefulSet"),
    "cj": ("batch", "CronJob"),
}
"""kubectl's short names."""


class NamedObjectError(ValueError):
    """The words name no object; the message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class NamedObject:
    """An object of the cluster that is to be explained."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind[1]} {self.name}"


def targets(words: Sequence[str]) -> list[NamedObject]:
    """The objects that words name, if any: `TYPE/NAME`, `TYPE NAME` or, of a pod, `NAME`.

    Raises:
        NamedObjectError: a type holds no pods or is not known, or a name is empty.
    """
    known = POD
    if len(words) > 1 and not any("/" in word for word in words):
        first = _kind(words[0])
        known, words = (POD, words) if first is None else (first, words[1:])
    elif len(words) == 1 and _kind(words[0]) is not None:
        raise NamedObjectError(f"{words[0]} is a type: add the name of an object, as in {words[0]}/NAME.")
    return [_target(word, known) for word in words]


def names_type(word: str) -> bool:
    """Whether a word is a type with pods, or begins with one and a slash."""
    return _kind(word.partition("/")[0]) is not None


def _target(word: str, known: Kind) -> NamedObject:
    kind_word, slash, name = word.rpartition("/")
    kind = _kind(kind_word) if slash else known
    if kind is None:
        raise NamedObjectError(
            f"{word}: {kind_word} is no type of objects with pods that is known here. For another object: kubectl get"
            f" {word} -o yaml | neuron-dra explain -f -"
        )
    if not name:
        raise NamedObjectError(f"{word} has no name.")
    return NamedObject(kind, name)


def _kind(word: str) -> Kind | None:
    """The kind of `deployment`, `Deployments`, `deploy`, `deployment.apps`; of several groups the first in `KINDS`."""
    wanted, _, group = word.lower().partition(".")
    if not group and wanted in _SHORT:
        return _SHORT[wanted]
    found = (key for key, kind in KINDS.items() if wanted in (kind.kind.lower(), kind.plural))
    return next((key for key in found if not group or key[0] == group), None)


def label_selector(workload: Object) -> str:
    """The label selector of a workload's pods; empty if it has none."""
    return ",".join(f"{key}={value}" for key, value in _labels(workload).items())


def waiting(pods: Sequence[Object], workload: Object) -> list[str]:
    """Names of the pods of a workload that have not ended and are not ready."""
    return sorted(str(each["metadata"]["name"]) for each in pods if _matches(each, workload) and not _is_well(each))


def _labels(workload: Object) -> Mapping[str, str]:
    selector = (workload.get("spec") or {}).get("selector") or {}
    # A ReplicationController has the labels themselves.
    found = selector.get("matchLabels", selector) if isinstance(selector, dict) else {}
    return {key: value for key, value in (found or {}).items() if isinstance(value, str)}


def _matches(pod: Object, workload: Object) -> bool:
    return _labels(workload).items() <= (pod["metadata"].get("labels") or {}).items()


def _is_well(pod: Object) -> bool:
    status = pod.get("status") or {}
    ready = {each.get("type"): each.get("status") for each in status.get("conditions") or ()}
    return status.get("phase") in ("Succeeded", "Failed") or ready.get("Ready") == "True"
