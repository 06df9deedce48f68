"""Equal parts of cached objects are kept once, in a table of bounded size."""

import dataclasses
import gc
import json
import tracemalloc
from typing import Any

import pytest

from cluster.bounded_objects import KEPT, Holdings
from cluster.kinds import claim_templates
from cluster.kinds.claim_templates import SharedParts
from conversion.claims.templates import Template


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    path: str
    count: int = 1
    inner: tuple["Part", ...] = ()
    names: frozenset[str] = frozenset()
    data: Any = None


def new_text(value: str) -> str:
    """A new object, as a decoder makes it."""
    return "".join(list(value))


def part(name: str, *inner: Part) -> Part:
    return Part(new_text("spec.devices"), 4, inner, frozenset({new_text(name)}))


def test_equal_parts_are_the_same_object() -> None:
    shared = SharedParts()
    first, second = (shared.of(part(name, part("x"))) for name in ("a", "b"))
    assert (first, second) == (part("a", part("x")), part("b", part("x")))
    assert first.path is second.path
    assert first.inner is second.inner
    assert first.names is not second.names


def test_parts_that_cannot_be_hashed_are_not_shared() -> None:
    shared = SharedParts()
    first = shared.of(Part("x", inner=(Part("y", data={"a": [1]}),)))
    assert first == Part("x", inner=(Part("y", data={"a": [1]}),))
    assert shared.of(Part("x", data=[1])).data == [1]


@pytest.mark.parametrize("value", ["x" * (KEPT.part + 1), tuple(map(str, range(KEPT.part + 1)))], ids=["text", "tuple"])
def test_long_values_are_not_shared(value: Any) -> None:
    shared = SharedParts()
    assert shared.of(Part("p", data=value)).data is value if isinstance(value, str) else value
    assert all(key[1] != value for key in shared._parts)


def test_the_table_is_bounded() -> None:
    shared = SharedParts(most=10)
    for number in range(1000):
        assert shared.of(Part(f"path-{number}")).path == f"path-{number}"
        assert len(shared) <= 10


def decoded_template(number: int) -> Any:
    """A template as it is decoded: no two objects share a part."""
    request = {"name": f"n{number}", "exactly": {"deviceClassName": "neuron.aws.com", "count": 4}}
    made = Template.make("4", {"spec": {"devices": {"requests": [request]}}})
    metadata = {"name": made.name, "namespace": f"team-{number % 5}", "labels": {}}
    return json.loads(json.dumps({"metadata": metadata, "spec": made.spec}))


def test_a_cached_template_takes_little_memory() -> None:
    kept = Holdings(dataclasses.replace(claim_templates.BOUNDS, total=1 << 30, of_one=1 << 30))
    several = 2000
    items = [json.dumps(decoded_template(number)) for number in range(2 * several)]

    def fill(start: int) -> None:
        for text in items[start : start + several]:
            item = json.loads(text)
            key = item["metadata"]["namespace"], item["metadata"]["name"]
            kept.put(key, claim_templates.project_template(item))

    fill(0)
    tracemalloc.start()
    try:
        fill(several)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] / several < 1000, "bytes; 1300 if nothing is shared"
    finally:
        tracemalloc.stop()
    assert len(kept) == 2 * several


def test_removed_objects_leave_no_weight() -> None:
    kept = Holdings(claim_templates.BOUNDS)
    for number in range(20):
        item = decoded_template(number)
        kept.put((item["metadata"]["namespace"], item["metadata"]["name"]), claim_templates.project_template(item))
    assert kept.weight > 0
    for key in kept.keys():  # noqa: SIM118 - not a dictionary
        kept.remove(key)
    assert (kept.weight, len(kept), dict(kept._shares)) == (0, 0, {})
