"""A pool of ResourceSlices: computes the writes from the existing slices to the desired ones. Pure.

Rules: `resourceslicecontroller.go` of `k8s.io/dynamic-resource-allocation` and the pool fields of
`resource.k8s.io/v1`.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kubeletplugin.discover.health import NodeFacts
from kubeletplugin.ports import JsonObject
from kubeletplugin.publish.slices import DesiredSlice
from neuron import names

API_VERSION: Final = "resource.k8s.io/v1"


@dataclasses.dataclass(frozen=True, slots=True)
class Writes:
    """The writes, in this order: deletions, updates, creations. Bodies are complete ResourceSlices."""

    delete: tuple[str, ...] = ()
    update: tuple[JsonObject, ...] = ()
    create: tuple[JsonObject, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.delete or self.update or self.create)


def plan_writes(
    facts: NodeFacts, desired: Iterable[DesiredSlice], existing: Mapping[str, JsonObject], last_generation: int = 0
) -> Writes:
    """The writes that turn the existing slices into the desired ones; none if they are equal.

    All slices of a pool have the same generation and the number of slices. A change of more than one slice increases
    the generation, so that the scheduler does not mix old and new slices.

    Args:
        existing: the driver's slices of this node, by name.
        last_generation: the highest one that was written, also if its slices have been deleted.
    """
    wanted = {piece.name: piece for piece in desired}
    generations = {body["spec"]["pool"]["generation"] for body in existing.values()}
    changed = [name for name, piece in wanted.items() if not _is_current(facts, piece, existing.get(name), len(wanted))]
    same_names = wanted.keys() == existing.keys()
    in_place = same_names and len(generations) == 1 and len(changed) <= 1
    if in_place and not changed:
        return Writes()
    generation = max(generations, default=0) if in_place else max((last_generation, *generations)) + 1
    pool = {"name": facts.name, "generation": generation, "resourceSliceCount": len(wanted)}
    touched = changed if in_place else list(wanted)
    update = [_body(facts, wanted[name], pool, existing[name]) for name in touched if name in existing]
    create = [_body(facts, wanted[name], pool, None) for name in touched if name not in existing]
    return Writes(tuple(sorted(existing.keys() - wanted.keys())), tuple(update), tuple(create))


def _is_current(facts: NodeFacts, piece: DesiredSlice, body: JsonObject | None, count: int) -> bool:
    if body is None or body["spec"]["pool"]["resourceSliceCount"] != count:
        return False
    owners = [owner["uid"] for owner in body["metadata"].get("ownerReferences") or ()]
    content = {key: value for key, value in body["spec"].items() if key != "pool"}
    noted = (body["metadata"].get("annotations") or {}).get(names.ANNOTATION_NODE_CHECKS, "") == piece.note
    return noted and owners == [facts.uid] and without_times(content) == piece.content


def without_times(content: Mapping[str, object]) -> JsonObject:
    """A slice's content without the times at which taints were added."""
    return _with_taints(content, lambda _, taint: {key: taint[key] for key in taint if key != "timeAdded"})


def _with_taints(content: Mapping[str, Any], edit: Callable[[str, JsonObject], JsonObject]) -> JsonObject:
    if not any("taints" in device for device in content.get("devices") or ()):
        return dict(content)
    devices = [
        device | {"taints": [edit(device["name"], taint) for taint in device["taints"]]}
        if "taints" in device
        else device
        for device in content["devices"]
    ]
    return dict(content) | {"devices": devices}


def _body(facts: NodeFacts, piece: DesiredSlice, pool: JsonObject, existing: JsonObject | None) -> JsonObject:
    metadata: JsonObject = {"name": piece.name}
    if existing is not None:
        metadata["resourceVersion"] = existing["metadata"]["resourceVersion"]
    kept = (existing or {}).get("metadata", {}).get("annotations") or {}
    annotations = {key: value for key, value in kept.items() if key != names.ANNOTATION_NODE_CHECKS}
    if annotations := annotations | ({names.ANNOTATION_NODE_CHECKS: piece.note} if piece.note else {}):
        metadata["annotations"] = annotations
    owner = {"apiVersion": "v1", "kind": "Node", "name": facts.name, "uid": facts.uid, "controller": True}
    metadata["ownerReferences"] = [owner]
    content = _keep_times(piece.content, existing)
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceSlice",
        "metadata": metadata,
        "spec": {"pool": pool} | content,
    }


def _keep_times(content: JsonObject, existing: JsonObject | None) -> JsonObject:
    """Content with the existing `timeAdded` of taints: `tolerationSeconds` of NoExecute begin at that time."""
    devices = (existing or {}).get("spec", {}).get("devices") or ()
    times = {
        (device["name"], *_identity(taint)): {"timeAdded": taint["timeAdded"]}
        for device in devices
        for taint in device.get("taints") or ()
        if "timeAdded" in taint
    }
    return _with_taints(content, lambda device, taint: taint | times.get((device, *_identity(taint)), {}))


def _identity(taint: Mapping[str, str]) -> tuple[str, str, str]:
    return taint["key"], taint.get("value", ""), taint["effect"]


def dropped_fields(sent: object, stored: object, path: str = "spec") -> tuple[str, ...]:
    """Paths that were sent and not stored: the API server drops fields of disabled features without an error."""
    if isinstance(sent, Mapping) and isinstance(stored, Mapping):
        lost = []
        for key, value in sent.items():
            below = f"{path}.{key}"
            lost += [below] if key not in stored and value else list(dropped_fields(value, stored.get(key), below))
        return tuple(lost)
    if isinstance(sent, list) and isinstance(stored, list):
        pairs = enumerate(zip(sent, stored, strict=False))
        return tuple(item for index, (a, b) in pairs for item in dropped_fields(a, b, f"{path}[{index}]"))
    return ()
