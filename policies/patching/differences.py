"""The JSON patch that makes one object of another: fields that did not change, known or not, are not in it."""

from collections.abc import Iterator
from typing import Any

from conversion.objects.pod_places import pointer
from conversion.patches.decision import Operation
from conversion.patches.operations import add, remove, replace
from policies.patching.json_patch import same


def difference(before: Any, after: Any) -> tuple[Operation, ...]:
    """The operations, in the order in which they have to be applied."""
    return tuple(_difference(before, after, ""))


def _difference(before: Any, after: Any, path: str) -> Iterator[Operation]:
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        yield from (remove(path + pointer(key)) for key in before if key not in after)
        for key, value in after.items():
            here = path + pointer(key)
            if key in before:
                yield from _difference(before[key], value, here)
            else:
                yield add(here, value)
    elif isinstance(before, list) and isinstance(after, list):
        front, back = _equal_ends(before, after)
        shared = min(len(before), len(after)) - back
        for at in range(front, shared):
            yield from _difference(before[at], after[at], f"{path}/{at}")
        # From the end, so that the indices before it stay right.
        yield from (remove(f"{path}/{at}") for at in reversed(range(shared, len(before) - back)))
        for at in range(shared, len(after) - back):
            yield add(f"{path}/{at}" if back else f"{path}/-", after[at])
    elif not same(before, after):
        yield replace(path, after)


def _equal_ends(before: list[Any], after: list[Any]) -> tuple[int, int]:
    """How many items at the beginning and at the end are the same."""
    least = min(len(before), len(after))
    front = next((at for at in range(least) if not same(before[at], after[at])), least)
    back = next((at for at in range(least - front) if not same(before[-1 - at], after[-1 - at])), least - front)
    return front, back
