"""Decides about a Pod on UPDATE: applying the original manifest again must change nothing. Pure.

`kubectl apply` over a converted pod sends the old claims and the legacy limits. If the manifest has claims of its own,
the generated claim is missing. `kubectl replace` sends nothing that conversion added. Most of these fields are
immutable, so missing items are restored from the old object at their old index: the API server compares lists in order.
A changed count is refused.

The author of the pod may have written its record. A pod whose manifest is applied again gets back what the old object
has, as its record asks for it. Other updates get back label, record and labels of policies: fields that may change. For
those the conversion must be verified, and the labels be those of policies in force, or the record could keep others
from removing them.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from conversion.asks import efa_limits
from conversion.asks.claimed import Restated, restated
from conversion.asks.records import AddedHints
from conversion.claims import containers as demand
from conversion.claims.containers import Role
from conversion.claims.scheduling import SchedulingHints
from conversion.findings.verification import Verified
from conversion.objects import pods
from conversion.objects.nesting import key_of, keys_of
from conversion.objects.pod_places import pointer
from conversion.patches import hints
from conversion.patches.claim_patches import mark, strip_legacy
from conversion.patches.decision import (
    MOST_BYTES,
    Decision,
    Operation,
    Outcome,
    add,
    denied,
    replace,
    size_of,
    unchanged,
)
from neuron import names, quantities
from neuron.findings import Finding, short

Labels: TypeAlias = Mapping[str, str | None]


@dataclasses.dataclass(frozen=True, slots=True)
class UpdateFacts:
    """Facts about the old object that few updates need. Each is a function, called at most once.

    Attributes:
        labels: all labels of the new and of the old object.
        verified: the conversion of the old object, if it is verified.
        hints: those that the policies in force give such a pod.
    """

    labels: Callable[[], tuple[Labels, Labels]]
    verified: Callable[[], Verified | None]
    hints: Callable[[], SchedulingHints]


def restore(new: pods.Pod, old: pods.Pod, facts: UpdateFacts) -> Decision:
    """Decide about an UPDATE of a pod.

    Args:
        new: the object as it would be stored.
        old: the object as it is stored.
        facts: about the old object.
    """
    conversion = restated(old)
    if conversion is None:
        return unchanged("not-converted")
    # Conversion accepts no such pod, so this is a change that the API server refuses.
    if new.excess() is not None:
        return unchanged("too-large")
    if new.repeated() is not None:
        return unchanged("duplicate-names")
    sections = (
        ("initContainers", new.init_containers, old.init_containers, conversion.init_containers),
        ("containers", new.containers, old.containers, conversion.containers),
    )
    findings: list[Finding] = []
    patch: list[Operation] = []
    reapplied = False
    for section, containers, old_containers, recorded in sections:
        stored = {container.name: container for container in old_containers}
        for index, container in enumerate(containers):
            where = f"spec.{section}[{index}]"
            resources = container.decode_resources(where)
            if not demand.names_legacy(resources or {}):
                findings += _removal(container, where, resources, stored.get(container.name), conversion)
                continue
            reapplied = True
            findings += _changes(container.name, where, resources or {}, recorded.get(container.name, {}))
            findings += _changed_interfaces(container.name, where, resources or {}, conversion)
            path = pointer("spec", section, index)
            patch += strip_legacy(path, resources, efa=conversion.gets_interfaces(container.name))
            if container.name in stored:
                patch += _restore_container(path, resources or {}, container, stored[container.name], conversion)
    if findings:
        return denied("immutable", *findings)
    if reapplied:
        patch += _restore_spec(new, old, conversion)
    patch += _restore_marks(new, old, conversion, facts, reapplied=reapplied)
    if not patch:
        return unchanged("already-converted")
    if size_of(patch) > MOST_BYTES:
        # Conversion makes no patch of this size, so this is a change that the API server refuses.
        return unchanged("too-large")
    return Decision(Outcome.RESTORED, "reapplied" if reapplied else "marks-restored", patch=tuple(patch))


def _restore_marks(
    new: pods.Pod, old: pods.Pod, conversion: Restated, facts: UpdateFacts, *, reapplied: bool
) -> list[Operation]:
    """Restore label and record, which stay as long as the claim, and labels of policies."""
    marks = mark(new, old.annotations.converted_from)
    added = conversion.hints
    if added.labels or added.replaced_labels:
        added = added if reapplied else added.by(facts.hints())
        marks += hints.restored_labels(*facts.labels(), added)
    return marks if marks and (reapplied or facts.verified() is not None) else []


def _changes(container: str, path: str, resources: Mapping[str, Any], recorded: Mapping[str, str]) -> list[Finding]:
    """NEU115 if the container's request differs from the recorded one."""
    now, findings = demand.read(
        container, Role.APP, path, resources.get("limits") or {}, resources.get("requests") or {}
    )
    before, _ = demand.read(container, Role.APP, path, recorded, {})
    if findings or (now.resource, now.amount) == (before.resource, before.amount):
        return findings
    asks = f"{now.resource}: {now.amount}" if now.amount else "no Neuron devices"
    had = f"{before.resource}: {before.amount}" if before.amount else "none"
    called = short(container)
    return [
        Finding(
            "NEU115",
            now.resource_path if now.amount else f"{path}.resources.limits",
            f"container {called} now asks for {asks}, but the pod was converted with {had}, which cannot change.",
            "Delete the pod and create it again.",
            str(now.amount),
        )
    ]


def _changed_interfaces(
    container: str, path: str, resources: Mapping[str, object], conversion: Restated
) -> list[Finding]:
    """NEU115 if the container's EFA limit differs from the recorded one."""
    efa, now = conversion.efa, efa_limits.count(resources)
    if efa is None or efa.container != container or now == efa.count:
        return []
    asks = "an invalid number" if now is None else now or "none"
    return [
        Finding(
            "NEU115",
            f"{path}.resources.limits[{names.RESOURCE_EFA}]",
            f"container {short(container)} now asks for {names.RESOURCE_EFA}: {asks}, but the pod was converted"
            f" with {efa.count}, which cannot change.",
            "Delete the pod and create it again.",
            str(asks),
        )
    ]


def _removal(
    new: pods.Container,
    path: str,
    resources: Mapping[str, Any] | None,
    old: pods.Container | None,
    conversion: Restated,
) -> list[Finding]:
    """NEU115 if the container has neither limits nor a reference to the claim any more.

    The API server would refuse that too, but its message is a diff of Go structures.
    """
    before = [] if old is None else (old.decode_resources() or {}).get("claims") or []
    now = (resources or {}).get("claims") or []
    present = keys_of(now)
    if not any(entry.get("name") == conversion.claim and key_of(entry) not in present for entry in before):
        return []
    return _changes(new.name, path, {}, conversion.of(new.name))


def _restore_container(
    path: str, resources: Mapping[str, Any], new: pods.Container, old: pods.Container, conversion: Restated
) -> list[Operation]:
    """Restore the container's references to the claim, and the variable that conversion set."""
    old_claims = (old.decode_resources() or {}).get("claims")
    operations = _reinsert(
        f"{path}/resources/claims",
        resources.get("claims"),
        old_claims,
        lambda entry: entry.get("name") == conversion.claim,
    )
    # Read once: a list may have thousands of variables.
    before = old.variables if old.may_set_variables else []
    if names.ENV_NUM_CORES in before and not new.core_variables:
        # A view has only the names of variables. The value is in the record.
        value = conversion.of(new.name).get(names.RESOURCE_NEURONCORE)
        if value is not None:
            position = min(before.index(names.ENV_NUM_CORES), len(new.variables))
            variable = {"name": names.ENV_NUM_CORES, "value": str(quantities.parse_count(value))}
            operations.append(
                add(f"{path}/env", [variable]) if not new.has_env else add(f"{path}/env/{position}", variable)
            )
    return operations


def _reinsert(
    path: str,
    new: Any,
    old: Any,
    is_ours: Callable[[Any], bool],
    is_there: Callable[[Any], bool] | None = None,
) -> list[Operation]:
    """Insert our items of the old list that the new list lacks, at their old index.

    Args:
        path: JSON pointer of the list.
        new: the list as it would be stored, or None.
        old: the list as it is stored, or None.
        is_ours: whether conversion added an item of the old list.
        is_there: whether the new list has an item of the old one; None: compares for equality.
    """
    old_items, new_items = list(old or ()), list(new or ())
    if old_items == new_items:
        return []
    if is_there is None:
        present = keys_of(new_items)
        missing = [(i, item) for i, item in enumerate(old_items) if is_ours(item) and key_of(item) not in present]
    else:
        missing = [(i, item) for i, item in enumerate(old_items) if is_ours(item) and not is_there(item)]
    if not missing:
        return []
    if new is None:
        return [add(path, [item for _, item in missing])]
    return [add(f"{path}/{min(index, len(new_items) + place)}", item) for place, (index, item) in enumerate(missing)]


def _restore_spec(new: pods.Pod, old: pods.Pod, conversion: Restated) -> list[Operation]:
    """Restore the claim and the scheduling hints in the pod's spec."""
    operations = _reinsert(
        "/spec/resourceClaims",
        new.decode_claims(),
        old.decode_claims(),
        lambda entry: entry.get("name") == conversion.claim,
    )
    added = conversion.hints
    tolerations = old.decode_tolerations() or []
    operations += _reinsert(
        "/spec/tolerations",
        new.decode_tolerations(),
        tolerations,
        hints.ours(tolerations, added),
        hints.among(new.decode_tolerations() or (), tolerations),
    )
    operations += hints.restored_scheduler(new.spec.schedulerName, old.spec.schedulerName, added)
    operations += hints.restored_priority_class(new.spec.priorityClassName, old.spec.priorityClassName, added)
    return operations + _restore_affinity(new.decode_affinity(), old.decode_affinity(), added)


def _restore_affinity(new: Any, old: Any, added: AddedHints) -> list[Operation]:
    """Restore the old affinity if the new one differs only in the hints.

    Any other difference is a change by the user, which the API server refuses.
    """
    if new == old or not hints.lacks_only_hints(new, old, added.node_affinity):
        return []
    return [add("/spec/affinity", old)] if new is None else [replace("/spec/affinity", old)]
