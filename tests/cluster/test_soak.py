"""Zero failed reviews: pods are created without a pause while everything that happens to a webhook happens.

Each disturbance logs its figures (`--log-cli-level=info`). NEURON_DRA_SOAK sets how many seconds of quiet load come
before and after each; the default keeps the file short enough for every run.
"""

import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.cluster.controlplane import ControlPlane
from tests.cluster.load import Figures, Load
from tests.cluster.processes import eventually
from tests.cluster.releases import PACK, Release, released
from tests.support.faults import Outcome

QUIET: Final = float(os.environ.get("NEURON_DRA_SOAK", "3"))

Report = Callable[[Outcome], None]

log = logging.getLogger(__name__)

pytestmark = pytest.mark.timeout(300 + 20 * QUIET)


@pytest.fixture(scope="module")
def release(lent_control_plane: ControlPlane, full: bool) -> Iterator[Release]:
    with released(lent_control_plane, full=full) as made:
        yield made


@contextlib.contextmanager
def under_load(release: Release, what: str) -> Iterator[Load]:
    """Load before, during and after; its figures are logged."""
    began = time.monotonic()
    with release.load() as running:
        time.sleep(QUIET)
        yield running
        time.sleep(QUIET)
    log.info("%s: %s, %.0f s", what, running.figures, time.monotonic() - began)


def no_failure(figures: Figures) -> None:
    assert figures.sent > 0
    assert not figures.failed, str(figures)


@pytest.mark.fault
def test_no_review_fails_without_disturbance(release: Release, report_fault: Report) -> None:
    with under_load(release, "no disturbance") as running:
        time.sleep(QUIET)
    no_failure(running.figures)
    report_fault(running.outcome("no disturbance", time.monotonic()))


def test_no_review_fails_during_the_rotation_of_the_leaf(release: Release) -> None:
    with under_load(release, "leaf rotation") as running:
        release.rotate("leaf")
    no_failure(running.figures)


def test_no_review_fails_during_the_rotation_of_the_ca(release: Release) -> None:
    with under_load(release, "CA rotation") as running:
        release.rotate("ca")
    no_failure(running.figures)


def taken_since(release: Release, moment: float) -> bool:
    """Whether every replica has loaded its policies after a moment of the wall clock."""
    gauge = "neuron_dra_policy_last_good_timestamp_seconds"
    return all(replica.metric(gauge) >= moment for replica in release.replicas)


def test_policy_reloads(release: Release) -> None:
    copy = release.policies / "more.yaml"
    with under_load(release, "policy reload, 5 times") as running:
        for number in range(5):
            written = time.time()
            copy.write_text(PACK.read_text().replace("name: pinned-cores", f"name: pinned-cores-{number}", 1))
            eventually("every replica to take it", functools.partial(taken_since, release, written))
    copy.unlink()
    no_failure(running.figures)


@pytest.mark.fault
def test_a_rolling_restart_with_surge_and_drain(release: Release, report_fault: Report) -> None:
    with under_load(release, "rolling restart of 2 replicas") as running:
        for old in list(release.replicas):
            release.surge()
            release.retire(old)
        over = time.monotonic()
    no_failure(running.figures)
    report_fault(running.outcome("rolling restart of two webhook replicas", over))


def test_sigterm_under_load(release: Release) -> None:
    with under_load(release, "SIGTERM") as running:
        victim = release.replicas[0]
        release.retire(victim)
        time.sleep(QUIET)
        release.surge()
    no_failure(running.figures)


@pytest.mark.fault
def test_a_frozen_replica_fails_only_requests_in_progress(release: Release, report_fault: Report) -> None:
    """Requests on a connection of the frozen replica fail by the time-out; no other replica can answer them."""
    victim = release.replicas[0]
    with under_load(release, "SIGSTOP of one of two replicas") as running:
        victim.freeze()
        frozen = time.monotonic()
        try:
            taken_out = release.endpoints.wait_out(victim.name)
            # Time-outs end what hangs on it; the API server then takes new connections, which go elsewhere.
            time.sleep(7)
            calm = time.monotonic()
            time.sleep(QUIET)
        finally:
            victim.thaw()
        eventually("it to come back", lambda: release.endpoints.ready(victim.name), timeout=30)
    log.info("out of the endpoints after %.1f s; afterwards: %s", taken_out, running.since(calm))
    no_failure(running.since(calm))
    # The replica stays frozen: recovery is when the others answer everything.
    report_fault(running.outcome("one of two webhook replicas frozen (SIGSTOP)", frozen))
