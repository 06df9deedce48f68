from hypothesis import given
from hypothesis import strategies as st

from neuron.demand import Ask, Role
from neuron.layout import EXTRA, lay_out

COUNTS = (1, 4, 8, 16)
DEVICE = "aws.amazon.com/neuron"


def asks(*roles: str) -> list[Ask]:
    return [Ask(f"c{index}", Role(role), f"spec[{index}]", DEVICE, 1) for index, role in enumerate(roles)]


def test_long_lived_containers_have_requests_of_their_own() -> None:
    layout = lay_out(asks("sidecar", "app", "app"), [1, 4, 0], COUNTS)
    assert layout.counts == {0: 1, 1: 4}
    assert layout.uses == ((0,), (1,), ())


def test_an_init_container_uses_what_a_later_container_has() -> None:
    layout = lay_out(asks("init", "app", "app"), [4, 1, 4], COUNTS)
    assert layout.counts == {1: 1, 2: 4}
    assert layout.uses[0] == (2,)


def test_a_smaller_init_container_uses_the_smallest_request_that_is_enough() -> None:
    layout = lay_out(asks("init", "app", "app"), [1, 16, 4], COUNTS)
    assert layout.uses[0] == (2,)
    assert layout.total == 20


def test_only_the_difference_becomes_an_extra_request() -> None:
    layout = lay_out(asks("init", "app"), [8, 4], COUNTS)
    assert layout.counts == {1: 4, EXTRA: 4}
    assert set(layout.uses[0]) == {1, EXTRA}


def test_init_containers_share_the_extra_request() -> None:
    layout = lay_out(asks("init", "init", "app"), [4, 8, 1], COUNTS)
    assert layout.counts == {2: 1, EXTRA: 7}
    # Of {1}, {7} and {1, 7}, only the last is a connectable set: the first container gets more, not less.
    assert set(layout.uses[0]) == {2, EXTRA}


def test_a_sidecar_that_started_before_keeps_its_devices() -> None:
    layout = lay_out(asks("sidecar", "init", "app"), [4, 4, 1], COUNTS)
    assert layout.counts == {0: 4, 2: 1, EXTRA: 3}
    assert 0 not in layout.uses[1]


def test_a_sidecar_that_starts_later_lends_its_devices() -> None:
    layout = lay_out(asks("init", "sidecar", "app"), [4, 4, 1], COUNTS)
    assert layout.counts == {1: 4, 2: 1}
    assert layout.uses[0] == (1,)


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
def test_every_container_gets_at_least_what_it_asked_for(containers: list[tuple[str, int]]) -> None:
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
