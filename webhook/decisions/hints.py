"""Scheduling hints: what helps a converted pod to its node, as JSON patch operations.

Built-in are a toleration of the Neuron taint, required node affinity to the instance types that can serve the pod, and
the way back from the scheduler extension's scheduler names. A SchedulingHintPolicy adds to them, or switches them off.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jsonpatch

from neuron import candidates, names, scheduling
from neuron.findings import Finding, warning
from neuron.scheduling import Entry
from webhook.decisions import pods
from webhook.decisions.added_hints import NO_AFFINITY, NOTHING_ADDED, AddedAffinity, AddedHints
from webhook.decisions.decision import Operation
from webhook.decisions.patches import add, append, pointer, replace
from webhook.decisions.steering import Steering
from webhook.decisions.world import ConversionOptions

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclasses.dataclass(frozen=True, slots=True)
class Given:
    """The hints of one pod.

    Attributes:
        patch: operations on its spec.
        labels: operations on its labels, which have to be there.
        added: what a policy added, now or in an earlier pass.
        warnings: what the user should know (NEU203).
    """

    patch: tuple[Operation, ...]
    labels: tuple[Operation, ...]
    added: AddedHints
    warnings: tuple[Finding, ...]


def give(
    pod: pods.Pod,
    selection: candidates.NodeSelection,
    types: Sequence[str] | None,
    options: ConversionOptions,
    steering: Steering,
    recorded: AddedHints = NOTHING_ADDED,
) -> Given:
    """Find the hints that a pod lacks.

    Args:
        pod: its view.
        selection: what it says of its nodes, with what a policy requires.
        types: instance types that can serve it; None where it keeps to them by itself.
        options: which built-in hints there are, where no policy says.
        steering: what policies say.
        recorded: what its record says that was added before.
    """
    hints = steering.hints
    tolerations, affinity = pod.decode_tolerations(), pod.decode_affinity()
    scheduler, warnings = _scheduler(pod.spec.schedulerName, options, steering)
    patch = _set_scheduler(pod.spec.schedulerName, scheduler)
    missing = scheduling.missing_tolerations(tolerations, hints, neuron=options.hint_toleration)
    patch += append("/spec/tolerations", tolerations, missing)
    terms = required_terms(affinity)
    required = [dict(entry) for entry in hints.required]
    typed = options.hint_affinity if hints.affinity is None else hints.affinity
    if typed and types is not None and not candidates.is_sagemaker(selection):
        required.append(_of_types(types))
    preferred = [dict(entry) for entry in hints.preferred if entry not in _preferred(affinity)]
    patch += node_affinity(affinity, required, preferred)
    return Given(
        tuple(patch),
        tuple(add("/metadata/labels" + pointer(key), value) for key, value in steering.labels),
        _added(
            recorded.held(tolerations, terms, _preferred(affinity), pod.spec.schedulerName),
            AddedHints(
                tolerations=tuple(entry for entry in missing if entry in hints.tolerations),
                node_affinity=AddedAffinity(
                    tuple(dict(each) for each in hints.required if _lacked(terms, each)), tuple(preferred)
                ),
                scheduler_name=scheduler if scheduler != names.DEFAULT_SCHEDULER else None,
            ),
            _labels(steering, recorded),
            replaces=hints.replaces_labels,
        ),
        tuple(warnings),
    )


def _added(before: AddedHints, now: AddedHints, labels: dict[str, str], *, replaces: bool) -> AddedHints:
    """What was added in an earlier pass, and now."""
    earlier, later = before.node_affinity, now.node_affinity
    return AddedHints(
        tolerations=_union(before.tolerations, now.tolerations),
        node_affinity=AddedAffinity(
            _union(earlier.required, later.required), _union(earlier.preferred, later.preferred)
        ),
        scheduler_name=now.scheduler_name or before.scheduler_name,
        labels={} if replaces else labels,
        replaced_labels=labels if replaces else {},
    )


def _union(before: tuple[dict[str, Any], ...], now: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    return (*before, *(entry for entry in now if entry not in before))


def _labels(steering: Steering, recorded: AddedHints) -> dict[str, str]:
    """Labels that the policy sets now, or set in an earlier pass; never what a record alone says."""
    known = recorded.labels | recorded.replaced_labels
    now = dict(steering.labels)
    return {
        key: value for key, value in steering.hints.labels.items() if now.get(key) == value or known.get(key) == value
    }


def _lacked(terms: Sequence[Entry] | None, requirement: Entry) -> bool:
    return not terms or any(requirement not in (term.get("matchExpressions") or ()) for term in terms)


def _scheduler(current: str | None, options: ConversionOptions, steering: Steering) -> tuple[str | None, list[Finding]]:
    """The scheduler name to set, if any; a scheduler of the user's own is the user's business."""
    hints = steering.hints
    name = scheduling.scheduler_for(current, hints, legacy=options.hint_scheduler)
    switched = options.hint_scheduler if hints.scheduler is None else hints.scheduler
    usual = (None, "", names.DEFAULT_SCHEDULER, *names.LEGACY_SCHEDULERS, hints.scheduler_name)
    if not switched or current in usual:
        return name, []
    finding = warning(
        "NEU203",
        "spec.schedulerName",
        f"scheduler {current!r} must support Dynamic Resource Allocation to place this pod.",
        value=current or "",
    )
    return None, [finding]


def _set_scheduler(current: str | None, name: str | None) -> list[Operation]:
    if name is None:
        return []
    return [add("/spec/schedulerName", name) if current is None else replace("/spec/schedulerName", name)]


def _of_types(types: Sequence[str]) -> dict[str, Any]:
    return {"key": names.LABEL_INSTANCE_TYPE, "operator": "In", "values": list(types)}


def node_affinity(
    affinity: Mapping[str, Any] | None, required: Sequence[Entry], preferred: Sequence[Entry] = ()
) -> list[Operation]:
    """Require more, and prefer more, in addition to whatever the pod does.

    Terms are ORed, so the requirements go into each; a term without any expression matches nothing, and must stay
    that way.
    """
    wanted: dict[str, Any] = {}
    if required:
        wanted[_REQUIRED] = {"nodeSelectorTerms": [{"matchExpressions": [dict(entry) for entry in required]}]}
    if preferred:
        wanted[_PREFERRED] = [dict(entry) for entry in preferred]
    if not wanted:
        return []
    if not affinity:
        return [add("/spec/affinity", {"nodeAffinity": wanted})]
    node = affinity.get("nodeAffinity")
    path = "/spec/affinity/nodeAffinity"
    if not node:
        return [add(path, wanted)]
    terms = (node.get(_REQUIRED) or {}).get("nodeSelectorTerms")
    operations: list[Operation] = []
    if required and not terms:
        operations.append(add(f"{path}/{_REQUIRED}", wanted[_REQUIRED]))
    for index, term in enumerate(terms or ()):
        expressions = term.get("matchExpressions")
        if expressions or term.get("matchFields"):
            where = path + pointer(_REQUIRED, "nodeSelectorTerms", index, "matchExpressions")
            operations += append(where, expressions, scheduling.missing_requirements(term, required))
    return operations + append(f"{path}/{_PREFERRED}", node.get(_PREFERRED), wanted.get(_PREFERRED, ()))


def required_terms(affinity: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]] | None:
    """`nodeSelectorTerms` of required node affinity; None where there is none."""
    required = ((affinity or {}).get("nodeAffinity") or {}).get(_REQUIRED)
    return None if required is None else required.get("nodeSelectorTerms") or ()


def _preferred(affinity: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    return ((affinity or {}).get("nodeAffinity") or {}).get(_PREFERRED) or ()


# --- on UPDATE ----------------------------------------------------------------------------------------------


def lacks_only_hints(
    affinity: Mapping[str, Any] | None, hinted: Mapping[str, Any] | None, added: AddedAffinity = NO_AFFINITY
) -> bool:
    """Whether `hinted` is `affinity` plus the built-in hint and what a policy added, and nothing else."""
    if not hinted:
        return False
    choices: list[list[dict[str, Any]]] = []
    filled = (term["matchExpressions"] for term in required_terms(hinted) or () if term.get("matchExpressions"))
    last: dict[str, Any] = next(filled, [{}])[-1]
    if last.get("key") == names.LABEL_INSTANCE_TYPE and last.get("values"):
        choices.append([*added.required, last])
    if added.required or added.preferred:
        choices.append(list(added.required))
    # Applying the hints again must lead to the same place; that is simpler to trust than taking it apart.
    preferred = [entry for entry in added.preferred if entry not in _preferred(affinity)]
    return any(_applied(affinity, required, preferred) == hinted for required in choices)


def _applied(affinity: Mapping[str, Any] | None, required: Sequence[Entry], preferred: Sequence[Entry]) -> Any:
    document: dict[str, Any] = {"spec": {} if affinity is None else {"affinity": affinity}}
    patched = jsonpatch.apply_patch(document, node_affinity(affinity, required, preferred))
    return patched["spec"].get("affinity")


def is_ours(toleration: Entry, old: Sequence[Entry], added: AddedHints) -> bool:
    """Whether conversion added a toleration of the old object."""
    return _among(toleration, (scheduling.NEURON_TOLERATION, *added.tolerations), old)


def holds(tolerations: Sequence[Entry], toleration: Entry, old: Sequence[Entry]) -> bool:
    """Whether a toleration of the old object is still there."""
    return _among(toleration, tolerations, old)


def _among(toleration: Entry, others: Sequence[Entry], old: Sequence[Entry]) -> bool:
    """Whether it is one of others, or one that differs in how long it holds: that alone, users may change later."""
    return toleration in others or any(_lasting(each) == _lasting(toleration) and each not in old for each in others)


def _lasting(toleration: Entry) -> dict[str, Any]:
    return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}


def restored_scheduler(new: str | None, old: str | None, added: AddedHints) -> list[Operation]:
    """The old scheduler name, where the new one is what conversion replaced."""
    from_default = new in (None, "", names.DEFAULT_SCHEDULER) and old == added.scheduler_name
    if new == old or not old or not (new in names.LEGACY_SCHEDULERS or from_default):
        return []
    return _set_scheduler(new, old)


def restored_labels(new: Mapping[str, str | None], old: Mapping[str, str | None], added: AddedHints) -> list[Operation]:
    """Labels of a policy that were taken away, or put aside by the pod's own value where the policy's comes first."""
    wanted = [(key, value) for key, value in added.labels.items() if key not in new]
    wanted += [(key, value) for key, value in added.replaced_labels.items() if new.get(key) != value]
    return [add("/metadata/labels" + pointer(key), value) for key, value in wanted if old.get(key) == value]
