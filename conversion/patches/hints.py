"""Scheduling hints of a converted pod, as JSON patch operations.

Built-in hints: a toleration of the Neuron taint, required node affinity to the instance types that can serve the pod,
and the default scheduler instead of the scheduler extension's. A SchedulingHintPolicy adds hints or switches them off.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from msgspec import Struct

from conversion.asks.conversion_context import ConversionOptions
from conversion.asks.records import NO_AFFINITY, NOTHING_ADDED, AddedAffinity, AddedHints, union
from conversion.asks.steering import Steering
from conversion.claims import candidates, scheduling
from conversion.claims.scheduling import NO_HINTS, Entry
from conversion.objects import pods
from conversion.objects.nesting import key_of, keys_of
from conversion.objects.pod_places import pointer
from conversion.patches.decision import Operation, add, append, remove, replace, set_value
from neuron import names
from neuron.api.nodes import PREFERRED, REQUIRED, Affinity, required_terms
from neuron.findings import Finding, short, warning

_VOLCANO: Final = "volcano"
_KAI: Final = "kai-scheduler"
_KAI_FIX: Final = (
    "KAI Scheduler up to 0.17.0 allocates nothing from ResourceSlices with shared counters, which UltraServer nodes"
    " publish from Kubernetes 1.36 on (kai-scheduler/KAI-Scheduler#2100): use a later release there."
)
_MOST_CHANGED: Final = 8
"""Node selector terms that are changed one by one. If more lack requirements, the whole list is replaced."""


class HintPatch(Struct, frozen=True):
    """The hints of one pod.

    Attributes:
        labels: operations on `metadata.labels`, which must exist.
        added: what a policy added, now or in an earlier pass.
        warnings: NEU203.
    """

    patch: tuple[Operation, ...]
    labels: tuple[Operation, ...]
    added: AddedHints
    warnings: tuple[Finding, ...]


def hint_patch(
    pod: pods.Pod,
    affinity: Affinity | None,
    selection: candidates.NodeSelection,
    types: Sequence[str] | None,
    options: ConversionOptions,
    steering: Steering,
    recorded: AddedHints = NOTHING_ADDED,
) -> HintPatch:
    """Find the hints that a pod lacks.

    Args:
        affinity: of the pod, decoded.
        selection: its node selection, with the policy's requirements.
        types: instance types that can serve it; None if its own node selection allows no others.
        options: the server's settings, used where no policy sets others.
        recorded: what was added before, by its record.
    """
    hints = steering.hints
    tolerations = pod.decode_tolerations()
    scheduler, warnings = _scheduler(pod.spec.schedulerName, options, steering)
    patch = _set_scheduler(pod.spec.schedulerName, scheduler)
    missing = scheduling.missing_tolerations(tolerations, hints, neuron=options.hint_toleration)
    patch += append("/spec/tolerations", tolerations, missing)
    priority_class = scheduling.priority_class_for(pod.spec.priorityClassName, hints)
    if priority_class is not None:
        # The admission plugin Priority runs before webhooks, and again after one that changed the pod. It refuses a
        # priority or a preemption policy that is not that of the class, and computes them if they are not set.
        patch.append(set_value("/spec/priorityClassName", pod.spec.priorityClassName, priority_class))
        patch += [remove(f"/spec/{each}") for each in pod.spec.computed_priority]
    required = [dict(entry) for entry in hints.required]
    typed = options.hint_affinity if hints.affinity is None else hints.affinity
    if typed and types is not None and not candidates.is_sagemaker(selection):
        required.append({"key": names.LABEL_INSTANCE_TYPE, "operator": "In", "values": list(types)})
    preferred = _lacking(hints.preferred, _preferred(affinity))
    patch += node_affinity(affinity, required, preferred)
    if hints is NO_HINTS and recorded is NOTHING_ADDED:
        return HintPatch(tuple(patch), (), NOTHING_ADDED, tuple(warnings))
    terms = required_terms(affinity)
    return HintPatch(
        tuple(patch),
        tuple(add("/metadata/labels" + pointer(key), value) for key, value in steering.labels),
        _added(
            recorded.held(tolerations, terms, _preferred(affinity), pod.spec.schedulerName, pod.spec.priorityClassName),
            AddedHints(
                tolerations=tuple(entry for entry in missing if entry in hints.tolerations),
                node_affinity=AddedAffinity(_lacked(terms, hints.required), tuple(preferred)),
                scheduler_name=scheduler if scheduler != names.DEFAULT_SCHEDULER else None,
                priority_class_name=priority_class,
                replaced_priority_class=(pod.spec.priorityClassName or None) if priority_class else None,
            ),
            _labels(steering, recorded),
            replaces=hints.replaces_labels,
        ),
        tuple(warnings),
    )


def _added(before: AddedHints, now: AddedHints, labels: dict[str, str], *, replaces: bool) -> AddedHints:
    """What was added in an earlier pass, and now."""
    if not (before or now or labels):
        return NOTHING_ADDED
    earlier, later = before.node_affinity, now.node_affinity
    return AddedHints(
        tolerations=union(before.tolerations, now.tolerations),
        node_affinity=AddedAffinity(union(earlier.required, later.required), union(earlier.preferred, later.preferred)),
        scheduler_name=now.scheduler_name or before.scheduler_name,
        priority_class_name=now.priority_class_name or before.priority_class_name,
        replaced_priority_class=(now if now.priority_class_name else before).replaced_priority_class,
        labels={} if replaces else labels,
        replaced_labels=labels if replaces else {},
    )


def _labels(steering: Steering, recorded: AddedHints) -> dict[str, str]:
    """Labels that the policy sets now or set in an earlier pass. A label that is only in the record is ignored."""
    known = recorded.labels | recorded.replaced_labels
    now = dict(steering.labels)
    return {
        key: value for key, value in steering.hints.labels.items() if now.get(key) == value or known.get(key) == value
    }


def _lacking(wanted: Sequence[Entry], present: Sequence[Entry]) -> list[dict[str, object]]:
    """Wanted entries that are not present."""
    if not wanted:
        return []
    known = keys_of(present)
    return [dict(entry) for entry in wanted if key_of(entry) not in known]


def _lacked(terms: Sequence[Entry] | None, required: Sequence[Entry]) -> tuple[dict[str, object], ...]:
    """Requirements that at least one term lacks."""
    if not terms or not required:
        return tuple(dict(each) for each in required)
    everywhere = frozenset.intersection(*(keys_of(term.get("matchExpressions") or ()) for term in terms))
    return tuple(dict(each) for each in required if key_of(each) not in everywhere)


def _scheduler(current: str | None, options: ConversionOptions, steering: Steering) -> tuple[str | None, list[Finding]]:
    """The scheduler name to set, or None; NEU203 if the pod has a custom scheduler, which is not replaced."""
    hints = steering.hints
    name = scheduling.scheduler_for(current, hints, legacy=options.hint_scheduler)
    switched = options.hint_scheduler if hints.scheduler is None else hints.scheduler
    # NEU232 says what Volcano needs.
    known = (*scheduling.REPLACED_SCHEDULERS, hints.scheduler_name, _VOLCANO)
    if not switched or current in known:
        return name, []
    finding = warning(
        "NEU203",
        "spec.schedulerName",
        f"scheduler {short(current or '')!r} must support Dynamic Resource Allocation to place this pod.",
        _KAI_FIX if current == _KAI else "",
        short(current or ""),
    )
    return None, [finding]


def _set_scheduler(current: str | None, name: str | None) -> list[Operation]:
    return [] if name is None else [set_value("/spec/schedulerName", current, name)]


def node_affinity(
    affinity: Affinity | None, required: Sequence[Entry], preferred: Sequence[Entry] = ()
) -> list[Operation]:
    """Operations that add requirements and preferences to the pod's node affinity.

    Terms are ORed, so each term gets the requirements. A term without expressions matches no node and is not changed.
    """
    wanted = _wanted(required, preferred)
    if not wanted:
        return []
    if not affinity:
        return [add("/spec/affinity", {"nodeAffinity": wanted})]
    node = affinity.get("nodeAffinity")
    path = "/spec/affinity/nodeAffinity"
    if not node:
        return [add(path, wanted)]
    terms = (node.get(REQUIRED) or {}).get("nodeSelectorTerms") or ()
    operations: list[Operation] = []
    if required and not terms:
        operations.append(add(f"{path}/{REQUIRED}", wanted[REQUIRED]))
    elif required:
        operations += _narrow(path + pointer(REQUIRED, "nodeSelectorTerms"), terms, required)
    return operations + append(f"{path}/{PREFERRED}", node.get(PREFERRED), wanted.get(PREFERRED, ()))


def _narrow(path: str, terms: Sequence[Mapping[str, Any]], required: Sequence[Entry]) -> list[Operation]:
    """Add requirements to each term of the list at `path`. More than `_MOST_CHANGED` changes replace the whole list."""
    operations: list[Operation] = []
    changed = 0
    for index, term in enumerate(terms):
        expressions = term.get("matchExpressions")
        if not expressions and not term.get("matchFields"):
            continue
        missing = scheduling.missing_requirements(term, required)
        changed += bool(missing)
        if changed > _MOST_CHANGED:
            # Each operation repeats the path: one operation makes a smaller patch.
            keyed = [(key_of(entry), dict(entry)) for entry in required]
            return [replace(path, [_narrowed(each, keyed) for each in terms])]
        operations += append(f"{path}/{index}/matchExpressions", expressions, missing)
    return operations


def _wanted(required: Sequence[Entry], preferred: Sequence[Entry]) -> dict[str, Any]:
    """Node affinity with only these requirements and preferences."""
    wanted: dict[str, Any] = {}
    if required:
        wanted[REQUIRED] = {"nodeSelectorTerms": [{"matchExpressions": [dict(entry) for entry in required]}]}
    if preferred:
        wanted[PREFERRED] = [dict(entry) for entry in preferred]
    return wanted


def _preferred(affinity: Affinity | None) -> Sequence[Mapping[str, object]]:
    return ((affinity or {}).get("nodeAffinity") or {}).get(PREFERRED) or ()


# --- on UPDATE ----------------------------------------------------------------------------------------------


def lacks_only_hints(affinity: Affinity | None, hinted: Affinity | None, added: AddedAffinity = NO_AFFINITY) -> bool:
    """Whether `hinted` is exactly `affinity` with the built-in hint and the policy's additions."""
    if not hinted:
        return False
    choices: list[list[Entry]] = []
    # It is the last requirement of each term that lacked it; the user's own terms may have it already.
    pairs = zip_longest(required_terms(hinted) or (), required_terms(affinity) or ())
    filled = (found[-1] for term, own in pairs if term != own and (found := (term or {}).get("matchExpressions")))
    typed = (last for last in filled if last.get("key") == names.LABEL_INSTANCE_TYPE and last.get("values"))
    if (last := next(typed, None)) is not None:
        choices.append([*added.required, last])
    if added.required or added.preferred:
        choices.append(list(added.required))
    # Apply the hints again and compare: that needs no inverse operation.
    known = keys_of(_preferred(affinity))
    preferred = [entry for entry in added.preferred if key_of(entry) not in known]
    return any(_with_hints(affinity, required, preferred) == hinted for required in choices)


def _with_hints(
    affinity: Affinity | None, required: Sequence[Entry], preferred: Sequence[Entry]
) -> Mapping[str, object] | None:
    """The result of the patch that `node_affinity` makes."""
    wanted = _wanted(required, preferred)
    if not wanted:
        return affinity
    node = (affinity or {}).get("nodeAffinity")
    if not node:
        return {**(affinity or {}), "nodeAffinity": wanted}
    made: dict[str, object] = {**node}
    kept = node.get(REQUIRED) or {}
    terms = kept.get("nodeSelectorTerms")
    if required and not terms:
        made[REQUIRED] = wanted[REQUIRED]
    elif required:
        keyed = [(key_of(entry), dict(entry)) for entry in required]
        made[REQUIRED] = {
            **(node[REQUIRED] or {}),
            "nodeSelectorTerms": [_narrowed(term, keyed) for term in terms or ()],
        }
    if preferred:
        made[PREFERRED] = [*(node.get(PREFERRED) or ()), *wanted[PREFERRED]]
    return {**(affinity or {}), "nodeAffinity": made}


def _narrowed(term: Mapping[str, Any], required: Sequence[tuple[str, dict[str, object]]]) -> Mapping[str, object]:
    """The term with the requirements that it lacks. A term that matches no node is not changed."""
    expressions = term.get("matchExpressions") or []
    if not expressions and not term.get("matchFields"):
        return term
    known = keys_of(expressions)
    missing = [entry for key, entry in required if key not in known]
    return {**term, "matchExpressions": [*expressions, *missing]} if missing else term


def among(others: Iterable[Entry], old: Iterable[Entry]) -> Callable[[Entry], bool]:
    """A test: is a toleration of the old object among `others`?

    A difference in `tolerationSeconds` does not count, unless the old object has both: it is the only field that users
    may change later.

    Args:
        others: tolerations to compare with.
        old: all tolerations of the old object.
    """
    listed, kept = list(others), keys_of(old)
    exactly = keys_of(listed)
    roughly = keys_of(_without_seconds(each) for each in listed if key_of(each) not in kept)
    return lambda toleration: key_of(toleration) in exactly or key_of(_without_seconds(toleration)) in roughly


def ours(old: Sequence[Entry], added: AddedHints) -> Callable[[Entry], bool]:
    """A test: did conversion add a toleration of the old object?"""
    return among((scheduling.NEURON_TOLERATION, *added.tolerations), old)


def _without_seconds(toleration: Entry) -> dict[str, object]:
    return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}


def restored_scheduler(new: str | None, old: str | None, added: AddedHints) -> list[Operation]:
    """Restore the old scheduler name if the new one is the name that conversion replaced."""
    from_default = new in (None, "", names.DEFAULT_SCHEDULER) and old == added.scheduler_name
    if new == old or not old or not (new in names.LEGACY_SCHEDULERS or from_default):
        return []
    return _set_scheduler(new, old)


def restored_priority_class(new: str | None, old: str | None, added: AddedHints) -> list[Operation]:
    """Restore the class that a policy set if the new one is that of the manifest: it cannot change.

    Kubernetes keeps the priority of the old object.
    """
    of_manifest = not new or new == added.replaced_priority_class
    if new == old or not old or old != added.priority_class_name or not of_manifest:
        return []
    return [set_value("/spec/priorityClassName", new, old)]


def restored_labels(new: Mapping[str, str | None], old: Mapping[str, str | None], added: AddedHints) -> list[Operation]:
    """Restore a policy's labels that were removed, or changed although the policy's value takes precedence."""
    wanted = [(key, value) for key, value in added.labels.items() if key not in new]
    wanted += [(key, value) for key, value in added.replaced_labels.items() if new.get(key) != value]
    return [add("/metadata/labels" + pointer(key), value) for key, value in wanted if old.get(key) == value]
