from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import DeviceConfig, Serving, serve
from conversion.claims.layout import EXTRA, Grant, Layout, lay_out, lay_out_shares, share_of
from neuron.hardware.instances import Catalogue

COUNTS = (1, 4, 8, 16)
DEVICE = "aws.amazon.com/neuron"


def asks(*roles: str) -> list[Ask]:
    return [Ask(f"c{index}", Role(role), f"spec[{index}]", DEVICE, 1) for index, role in enumerate(roles)]


LAYOUTS: dict[str, tuple[str, list[int], dict[int, int], str]] = {
    "long-lived containers have requests of their own": ("sidecar app app", [1, 4, 0], {0: 1, 1: 4}, "0, 1, none"),
    "an init container uses the request of a later container": ("init app app", [4, 1, 4], {1: 1, 2: 4}, "2, 1, 2"),
    "the smallest request that is enough": ("init app app", [1, 16, 4], {1: 16, 2: 4}, "2, 1, 2"),
    "a container that asks for nothing uses nothing": ("init app app", [4, 4, 0], {1: 4}, "1, 1, none"),
    "only the difference becomes an extra request": ("init app", [8, 4], {1: 4, EXTRA: 4}, "1 extra, 1"),
    "no extra request for no difference": ("init app", [4, 4], {1: 4}, "1, 1"),
    "fewer requests, the last": ("init app app app", [2, 1, 1, 2], {1: 1, 2: 1, 3: 2}, "3, 1, 2, 3"),
    "fewer requests, the first": (
        "init app app app",
        [2, 2, 1, 1],
        {1: 2, 2: 1, 3: 1},
        "1, 1, 2, 3",
    ),
    # Of {1}, {7} and {1, 7}, only the last is a connectable set: the first container gets more, not less.
    "init containers share the extra request": ("init init app", [4, 8, 1], {2: 1, EXTRA: 7}, "2 extra, 2 extra, 2"),
    "an earlier sidecar keeps its devices": ("sidecar init app", [4, 4, 1], {0: 4, 2: 1, EXTRA: 3}, "0, 2 extra, 2"),
    "a later sidecar's devices are used": ("init sidecar app", [4, 4, 1], {1: 4, 2: 1}, "1, 1, 2"),
}
"""Roles and devices of the containers; the devices of each request; the requests that each container uses."""


@pytest.mark.parametrize(("roles", "devices", "counts", "uses"), LAYOUTS.values(), ids=LAYOUTS)
def test_containers_share_requests(roles: str, devices: list[int], counts: dict[int, int], uses: str) -> None:
    layout = lay_out(asks(*roles.split()), devices, (1, 2, 4, 8, 16))
    names = {EXTRA: "extra"} | {index: str(index) for index in range(len(devices))}
    assert layout.counts == counts
    assert layout.total == sum(counts.values())
    assert ", ".join(" ".join(names[each] for each in use) or "none" for use in layout.uses) == uses


def test_on_a_line_an_init_container_uses_one_request_if_one_is_large_enough() -> None:
    several = lay_out(asks("init", "app", "app", "app", "app"), [2, 1, 1, 8, 4], (1, 2, 4))
    assert set(several.uses[0]) == {1, 2}
    alone = lay_out(asks("init", "app", "app", "app", "app"), [2, 1, 1, 8, 4], (1, 2, 4), alone=True)
    assert alone.uses[0] == (4,)
    assert lay_out(asks("init", "app", "app"), [2, 2, 4], (1, 2, 4), alone=True).uses[0] == (1,)
    assert set(lay_out(asks("init", "app", "app"), [4, 2, 2], (1, 2, 4), alone=True).uses[0]) == {1, 2}


POD = st.lists(st.tuples(st.sampled_from(["init", "sidecar", "app"]), st.sampled_from([0, 1, 4, 8, 16])), max_size=8)


def legacy_total(roles: list[str], devices: list[int]) -> int:
    """The pod resource formula of k8s.io/component-helpers/resource, written from its documentation."""
    running = sum(count for role, count in zip(roles, devices, strict=True) if role == "app")
    sidecars, peak = 0, 0
    for role, count in zip(roles, devices, strict=True):
        if role == "sidecar":
            sidecars += count
        if role == "init":
            peak = max(peak, count + sidecars)
    return max(peak, running + sidecars)


@given(POD)
def test_the_pod_never_holds_more_devices_than_before(containers: list[tuple[str, int]]) -> None:
    containers = sorted(containers, key=lambda each: each[0] == "app")
    roles, devices = [role for role, _ in containers], [count for _, count in containers]
    layout = lay_out(asks(*roles), devices, COUNTS)
    assert layout.total == legacy_total(roles, devices)


@given(POD)
def test_every_container_gets_at_least_its_requested_devices(containers: list[tuple[str, int]]) -> None:
    containers = sorted(containers, key=lambda each: each[0] == "app")
    roles, devices = [role for role, _ in containers], [count for _, count in containers]
    layout = lay_out(asks(*roles), devices, COUNTS)
    for count, use in zip(devices, layout.uses, strict=True):
        assert layout.size(use) >= count
        assert len(set(use)) == len(use)


@given(POD)
def test_containers_that_run_together_share_nothing(containers: list[tuple[str, int]]) -> None:
    containers = sorted(containers, key=lambda each: each[0] == "app")
    roles, devices = [role for role, _ in containers], [count for _, count in containers]
    layout = lay_out(asks(*roles), devices, COUNTS)
    for index, role in enumerate(roles):
        together = [other for other in range(len(roles)) if other != index and _overlap(roles, index, other)]
        held = {identity for other in together for identity in layout.uses[other]}
        assert not held & set(layout.uses[index]), role


def _overlap(roles: list[str], one: int, other: int) -> bool:
    first, second = sorted((one, other))
    if "init" not in (roles[first], roles[second]):
        return True
    return roles[first] == "sidecar"


# --- satisfiability on a node of 16 devices in nested groups of 4, 8 and 16 -----------------------------------


def spread(count: int, free: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All ways to take `count` devices out of the quarters of a node."""
    if not free:
        if not count:
            yield ()
        return
    for here in range(min(count, free[0]) + 1):
        for rest in spread(count - here, free[1:]):
            yield (here, *rest)


def placeable(layout: Layout, groups: dict[tuple[int, ...], int]) -> bool:
    """Search for devices that keep every set of requests in one group. A node is four groups of 4; two make 8."""
    requests = sorted(layout.counts, key=lambda identity: -layout.counts[identity])

    def fits(placed: dict[int, tuple[int, ...]]) -> bool:
        for use, group in groups.items():
            quarters = {q for identity in use for q, n in enumerate(placed.get(identity, ())) if n}
            if len({q * 4 // group for q in quarters}) > 1:
                return False
        return True

    def search(index: int, free: tuple[int, ...], placed: dict[int, tuple[int, ...]]) -> bool:
        if index == len(requests):
            return True
        for taken in spread(layout.counts[requests[index]], free):
            now = {**placed, requests[index]: taken}
            left = tuple(have - used for have, used in zip(free, taken, strict=True))
            if fits(now) and search(index + 1, left, now):
                return True
        return False

    return search(0, (4, 4, 4, 4), {})


ROLES = st.sampled_from(["init", "init", "sidecar", "app"])
SMALL = st.lists(st.tuples(ROLES, st.sampled_from([0, 1, 4, 8])), min_size=2, max_size=6)


@given(SMALL)
@example([("init", 8), ("sidecar", 4), ("init", 8), ("app", 4)])
@example([("init", 4), ("sidecar", 1), ("init", 4), ("init", 1), ("app", 1)])
def test_every_accepted_demand_can_be_placed(containers: list[tuple[str, int]]) -> None:
    containers = sorted(containers, key=lambda each: each[0] == "app")
    entry = Catalogue().get("trn1.32xlarge")
    assert entry is not None
    wanted = [
        structs.replace(ask, amount=count, resource=DEVICE if count else "")
        for ask, (_, count) in zip(asks(*[role for role, _ in containers]), containers, strict=True)
    ]
    serving = serve(entry, wanted, DeviceConfig())
    if isinstance(serving, Serving):
        groups = {each_set.requests: each_set.group for each_set in serving.connected_sets if each_set.group}
        assert placeable(serving.layout, groups)


MIXED = st.lists(st.tuples(ROLES, st.sampled_from([0, 1, 2, 3, 4, 5, 7, 8, 12])), min_size=1, max_size=5)


@given(MIXED, st.booleans())
@example([("init", 4), ("sidecar", 5), ("app", 7)], False)
@example([("init", 8), ("sidecar", 3), ("app", 5)], False)
def test_every_accepted_unconnected_demand_can_be_placed(containers: list[tuple[str, int]], in_cores: bool) -> None:
    containers = sorted(containers, key=lambda each: each[0] == "app")
    entry = Catalogue().get("trn1.32xlarge")
    assert entry is not None
    resource, per_device = ("aws.amazon.com/neuroncore", 2) if in_cores else (DEVICE, 1)
    wanted = [
        structs.replace(ask, amount=count * per_device, resource=resource if count else "")
        for ask, (_, count) in zip(asks(*[role for role, _ in containers]), containers, strict=True)
    ]
    serving = serve(entry, wanted, DeviceConfig(), unconnected=True)
    roles, devices = [role for role, _ in containers], [count for _, count in containers]
    if not isinstance(serving, Serving):
        # A pod of one container is refused for nothing but the size of the node.
        assert len(containers) > 1
        return
    groups = {each_set.requests: each_set.group for each_set in serving.connected_sets if each_set.group}
    assert placeable(serving.layout, groups)
    assert serving.layout.total == legacy_total(roles, devices) <= entry.devices
    for count, use in zip(devices, serving.layout.uses, strict=True):
        assert serving.layout.size(use) >= count
        # What can be connected still is.
        assert count not in (4, 8) or tuple(sorted(use)) in groups


def test_init_containers_around_a_sidecar_share_one_set() -> None:
    layout = lay_out(asks("init", "sidecar", "init", "app"), [8, 4, 8, 4], COUNTS)
    assert set(layout.uses[0]) == set(layout.uses[2]) == {3, EXTRA}


# --- cores that containers share devices for ------------------------------------------------------------------


def test_each_long_lived_container_has_its_own_devices_and_share() -> None:
    found = lay_out_shares(asks("sidecar", "app", "app", "app"), [Grant(0, 2), Grant(1, 4), Grant(2), Grant(0)], 8)
    assert found == Layout({1: 1, 2: 2}, ((0,), (1, share_of(1)), (2,), ()), {0: 2, share_of(1): 4})
    assert len({0, 1, 2, 3, EXTRA, *map(share_of, range(4))}) == 9, "all ids differ"
    assert (found.total, found.size((1, share_of(1))), found.cores((1, share_of(1)), 8)) == (5, 2, 12)


def test_an_init_container_uses_the_smallest_share_that_is_enough() -> None:
    grants = [Grant(0, 2), Grant(0, 1), Grant(1), Grant(0, 4), Grant(0, 2)]
    found = lay_out_shares(asks("init", "app", "app", "app", "app"), grants, 8)
    assert found is not None
    assert found.uses[0] == (4,)
    assert found.shares == {1: 1, 3: 4, 4: 2}


@pytest.mark.parametrize(
    ("needs", "has", "enough"),
    [
        pytest.param(Grant(0, 4), Grant(1), True, id="a-device-is-enough-for-cores"),
        pytest.param(Grant(1), Grant(0, 7), False, id="cores-are-not-enough-for-a-device"),
        pytest.param(Grant(2), Grant(1, 4), False, id="one-device-is-not-enough-for-two"),
        pytest.param(Grant(1, 4), Grant(2), True, id="two-devices-are-enough-for-one-and-cores"),
        pytest.param(Grant(1, 4), Grant(1, 2), False, id="fewer-cores-beside-a-device"),
        pytest.param(Grant(1, 2), Grant(1, 2), True, id="equal"),
        pytest.param(Grant(1), Grant(1), True, id="equal-devices"),
    ],
)
def test_an_init_container_needs_one_later_container_that_has_as_much(needs: Grant, has: Grant, enough: bool) -> None:
    found = lay_out_shares(asks("init", "app"), [needs, has], 8)
    assert (found is not None) is enough
    assert found is None or found.uses[0] == found.uses[1]


def test_an_init_container_that_asks_for_nothing_uses_nothing() -> None:
    found = lay_out_shares(asks("init", "app"), [Grant(0), Grant(0, 2)], 8)
    assert found is not None
    assert found.uses == ((), (1,))


def test_an_init_container_uses_no_cores_of_a_sidecar_that_runs() -> None:
    assert lay_out_shares(asks("sidecar", "init", "app"), [Grant(0, 2), Grant(0, 2), Grant(0, 1)], 8) is None
    found = lay_out_shares(asks("sidecar", "init", "app"), [Grant(0, 2), Grant(0, 2), Grant(0, 4)], 8)
    assert found is not None
    assert found.uses[1] == (2,)


def test_equal_init_containers_before_and_after_a_sidecar_use_what_is_free_then() -> None:
    grants = [Grant(0, 2), Grant(0, 2), Grant(0, 2), Grant(0, 4)]
    found = lay_out_shares(asks("init", "sidecar", "init", "app"), grants, 8)
    assert found is not None
    assert found.uses == ((1,), (1,), (3,), (3,))


GRANTS = st.builds(Grant, st.integers(0, 2), st.sampled_from([0, 1, 2, 4]))


@given(st.lists(st.tuples(st.sampled_from(["init", "sidecar", "app"]), GRANTS), max_size=7))
def test_containers_that_run_together_share_no_cores(containers: list[tuple[str, Grant]]) -> None:
    containers = sorted(containers, key=lambda each: each[0] == "app")
    roles, grants = [role for role, _ in containers], [grant for _, grant in containers]
    layout = lay_out_shares(asks(*roles), grants, 8)
    if layout is None:
        assert "init" in roles
        return
    for index, grant in enumerate(grants):
        assert layout.cores(layout.uses[index], 8) >= grant.devices * 8 + grant.cores
        together = [other for other in range(len(roles)) if other != index and _overlap(roles, index, other)]
        assert not {identity for other in together for identity in layout.uses[other]} & set(layout.uses[index])
