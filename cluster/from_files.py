"""Fills a store with objects as people write them: of files, or of lists of a cluster. Any of them may be malformed."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from msgspec import structs

from cluster.kinds.claim_templates import UNREADABLE_TEMPLATE, TemplateFacts, project_template
from cluster.store import (
    CLAIM_TEMPLATE,
    KINDS,
    NAMESPACE,
    POD_GROUP,
    RESOURCE_CLAIM,
    RESOURCE_QUOTA,
    TO_COME,
    Store,
    StoredKind,
)
from conversion.claims import templates
from conversion.objects.kinds import WITHOUT_PODS
from neuron.api import workloads
from neuron.api.claim_reader import read_claim
from neuron.api.claim_specs import GROUP
from neuron.api.fields import WrongFormError

T = TypeVar("T")

_READERS: Final[Mapping[tuple[str, str], StoredKind[Any]]] = {
    (kind.group, kind.name): kind for kind in KINDS.values() if kind not in (CLAIM_TEMPLATE, RESOURCE_CLAIM, POD_GROUP)
}
MEANT_FOR_OTHERS: Final = frozenset(
    {*_READERS, (GROUP, CLAIM_TEMPLATE.name), (GROUP, RESOURCE_CLAIM.name), *WITHOUT_PODS}
)
"""Group and kind of the objects on which decisions about others depend, and claims, which policies may judge."""


def take(store: Store, group: str, kind: str, namespace: str, name: str, data: dict[str, object]) -> None:
    """Put an object into a store. Objects of other kinds, and those that cannot be read, are left out.

    If files have a quota of a namespace, they are assumed to have all of them.
    """
    key = (namespace, name)
    if (group, kind) in _READERS:
        target = _READERS[group, kind]
        facts = _read(target.project, data)
        facts = target.unreadable if facts is None else facts
        if not target.namespaced:
            key = ("", name)
        if facts is not None and (name or target is not NAMESPACE):
            store.put(target, key, facts)
        elif facts is None:
            store.drop(target, key)
        if target is RESOURCE_QUOTA:
            store.complete(RESOURCE_QUOTA, namespace)
    elif (group, kind) == (GROUP, CLAIM_TEMPLATE.name):
        spec = read_claim(kind, str(data.get("apiVersion")), data.get("spec"))[0]
        facts = _read(_with_digest, data) or UNREADABLE_TEMPLATE
        store.put(CLAIM_TEMPLATE, key, structs.replace(facts, spec=spec))
    elif (group, kind) == (GROUP, RESOURCE_CLAIM.name):
        store.put(RESOURCE_CLAIM, key, read_claim(kind, str(data.get("apiVersion")), data.get("spec"))[0])
    elif (group, kind) == (workloads.SCHEDULING, workloads.POD_GROUP):
        (claims,) = workloads.claim_lists(kind, data)
        store.put(POD_GROUP, key, claims)
    elif (group, kind) == (workloads.ULTRASERVERS, workloads.ULTRASERVER_WORKLOAD):
        store.put(TO_COME, (namespace, workloads.template_of(data)), True)


def _with_digest(data: Mapping[str, Any]) -> TemplateFacts:
    """The facts of a template with its hash, whatever its name: a policy may carry a template of any name."""
    return structs.replace(project_template(data), digest=templates.digest(data["spec"]))


def _read(project: Callable[[Mapping[str, object]], T | None], data: dict[str, object]) -> T | None:
    """What is kept of an object; None if it is malformed."""
    try:
        return project(data)
    except (KeyError, TypeError, AttributeError, ValueError, WrongFormError):
        return None
