"""Disturbances of a node, while pods with claims come and go: each of them runs.

A pod counts as failed if the kubelet reports that its claim could not be prepared: it tries again, up to 90 s later.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Self

import pytest

from tests.cluster.api import Api, Object
from tests.cluster.clocks import Clock
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import Driver, run_pod, running, wait_gone, wait_running, wait_unprepared
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import claim_template, container, devices_request, events, pod
from tests.cluster.processes import eventually
from tests.cluster.test_driver_shares import share
from tests.support.faults import Attempts, Outcome
from tests.support.loops import Loop

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

Report = Callable[[Outcome], None]

AT_ONCE = 3
LONGEST = 200.0
"""Seconds until a pod that does not run is lost."""


@pytest.fixture(scope="module")
def kubelet_sync(*, full: bool) -> str:
    """After a failed preparation the kubelet tries again when it next looks at the pod."""
    return "" if full else "10s"


@pytest.fixture
def clock(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Clock:
    return Clock(tmp_path_factory.mktemp("clock"))


@dataclasses.dataclass(frozen=True)
class Kind:
    """A type of node, and what the pods claim there.

    Attributes:
        instance_type: of the node.
        request: of each pod.
        flags: of the driver.
    """

    instance_type: str
    request: Object
    flags: tuple[str, ...] = ()


COUNTERS = Kind("trn2u.48xlarge", devices_request("one"))
"""Devices and the whole node consume counters."""
SHARES = Kind("inf1.6xlarge", share("one"), ("--share-cores=on",))
"""Several claims on one device."""


@pytest.fixture(params=[COUNTERS, SHARES], ids=["counters", "shares"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def driver(control_plane: ControlPlane, kubelet: Kubelet, clock: Clock, kind: Kind) -> Iterator[Driver]:
    with running(control_plane, kubelet, kind.instance_type, flags=kind.flags, environment=clock.environment) as driver:
        yield driver


class Pods(Loop):
    """Pods with a claim for one device, or a share of one: created, awaited, deleted, by several threads."""

    def __init__(self, api: Api, namespace: str, kind: Kind) -> None:
        super().__init__(*[self._turn] * AT_ONCE)
        self.attempts = Attempts()
        self._api = api
        self._namespace = namespace
        self._numbers = itertools.count(1)
        self.kind = kind
        api.create(claim_template("one", {"devices": {"requests": [kind.request]}}), namespace)

    def __enter__(self) -> Self:
        super().__enter__()
        self.go_on(2 * AT_ONCE)
        return self

    def go_on(self, count: int) -> None:
        """Return when so many more pods have run or are lost."""
        enough = len(self.attempts.all()) + count
        eventually(f"{count} pods", lambda: len(self.attempts.all()) >= enough, timeout=LONGEST + 60)

    def _turn(self) -> None:
        uses = container(resources={"claims": [{"name": "neuron"}]})
        claims = [{"name": "neuron", "resourceClaimTemplateName": "one"}]
        name = f"p-{next(self._numbers)}"
        began = time.monotonic()
        self._api.create(pod(name, uses, resourceClaims=claims, terminationGracePeriodSeconds=0), self._namespace)
        runs = self._runs(name)
        failed = bool(events(self._api, self._namespace, name, "FailedPrepareDynamicResources"))
        self.attempts.add(began, failed=failed, lost=not runs)
        self._api.delete("Pod", name, self._namespace)

    def _runs(self, name: str) -> bool:
        def attempt() -> bool:
            return bool(self._api.get("Pod", name, self._namespace)["status"]["phase"] == "Running")

        try:
            return eventually(f"{name} to run", attempt, timeout=LONGEST, interval=0.1)
        except TimeoutError:
            return False


def end(pods: Pods, disturbance: str, over: float, report: Report) -> Outcome:
    """All pods so far run, and more after them."""
    pods.go_on(3 * AT_ONCE)
    outcome = Outcome.of(disturbance, "pods", pods.attempts.all(), over)
    assert outcome.lost == 0
    if pods.kind is COUNTERS:  # the table has a row for each disturbance
        report(outcome)
    return outcome


def test_the_driver_ends_and_starts_again(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver, kind: Kind, report_fault: Report
) -> None:
    """No call of the kubelet fails: pods wait for the slices of the next instance."""
    with Pods(api, namespace, kind) as pods:
        driver.process.stop()
        driver.start()
        outcome = end(pods, "driver ended (SIGTERM) and started again", time.monotonic(), report_fault)
    assert outcome.failed == 0
    wait_unprepared(kubelet, driver)


def test_the_driver_is_killed(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver, kind: Kind, report_fault: Report
) -> None:
    """Its slices stay, so pods are scheduled meanwhile; the kubelet tries again."""
    with Pods(api, namespace, kind) as pods:
        driver.process.kill()
        driver.start()
        end(pods, "driver killed, and started again", time.monotonic(), report_fault)
    wait_unprepared(kubelet, driver)


def complete(driver: Driver) -> bool:
    """Whether the pool has all its slices; the scheduler allocates from no other."""
    pools = [each["spec"]["pool"] for each in driver.slices()]
    return bool(pools) and all(each["resourceSliceCount"] == len(pools) for each in pools)


def test_a_pod_waits_for_a_driver_that_is_away(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver, kind: Kind
) -> None:
    # Without counters the driver publishes twice: first it has to see that the API server drops them.
    eventually("the slices to be published", lambda: complete(driver) and bool(driver.devices()))
    driver.process.kill()  # its slices stay
    run_pod(api, namespace, "waits", {"devices": {"requests": [kind.request]}})
    eventually("the pod to be scheduled", lambda: api.get("Pod", "waits", namespace)["spec"].get("nodeName"))
    driver.start()
    wait_running(api, namespace, "waits", timeout=150)
    wait_gone(api, namespace, "waits")
    wait_unprepared(kubelet, driver)


def test_the_kubelet_restarts(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver, kind: Kind, report_fault: Report
) -> None:
    with Pods(api, namespace, kind) as pods:
        kubelet.restart()
        over = time.monotonic()
        eventually("the slices to be back", lambda: bool(driver.slices()), timeout=60)
        end(pods, "kubelet restarted", over, report_fault)
    wait_unprepared(kubelet, driver)


def test_the_clock_of_the_driver_jumps(
    api: Api, namespace: str, kubelet: Kubelet, driver: Driver, kind: Kind, clock: Clock, report_fault: Report
) -> None:
    """Nothing that it keeps depends on the wall clock."""
    if not clock.available:
        pytest.skip("no C compiler (cc) to make a clock that jumps")
    with Pods(api, namespace, kind) as pods:
        for days in (100, -100):
            clock.shift(days)
            pods.go_on(2 * AT_ONCE)
        clock.shift(0)
        outcome = end(pods, "clock of the driver 100 days ahead, then 100 days behind", time.monotonic(), report_fault)
    assert outcome.failed == 0
    wait_unprepared(kubelet, driver)
