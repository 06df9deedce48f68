"""Writes the conversion of a made pod back into its object, whose fields the pod was made of. Pure.

An Argo template, for example, has the fields of a pod beside `container`: each changed field goes to the template,
which then counts instead of the default of the whole Workflow.
"""

from typing import Any, Final

from commands.objects.manifests import patched, path_steps
from conversion.objects.made_pods import SPEC_FIELDS
from conversion.objects.pod_places import PodPlace
from conversion.patches.decision import Decision

_SECTIONS: Final = ("initContainers", "containers")


def write_back(data: Any, place: PodPlace, decision: Decision) -> None:
    """Change an object as a decision about one of its made pods says.

    Args:
        data: the object, changed in place; its values are those of which the pod was made.
    """
    before, after = place.template, patched(place.template, decision.patch)
    owner = _at(data, place.path)
    for field in ("labels", "annotations"):
        was = (before.get("metadata") or {}).get(field) or {}  # type: ignore[attr-defined]
        for key, value in (after.get("metadata") or {}).get(field, {}).items():  # type: ignore[attr-defined]
            if was.get(key) != value:
                owner.setdefault("metadata", {}).setdefault(field, {})[key] = value
    old: Any = before["spec"]
    new: Any = after["spec"]
    for field in SPEC_FIELDS:
        if new.get(field) != old.get(field):
            owner[field] = new[field]
    for section in _SECTIONS:
        for index, container in enumerate(new.get(section) or ()):
            if container != old[section][index]:
                target = _at(data, path_steps(place.field_path(f"spec.{section}[{index}]")))
                named = (
                    container if "name" in target else {key: each for key, each in container.items() if key != "name"}
                )
                target.clear()
                target.update(named)


def _at(data: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        data = data[int(step) if isinstance(data, list) else step]
    return data
