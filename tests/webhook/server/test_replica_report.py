"""The report of a replica."""

import dataclasses
import datetime as dt

import pytest

from cluster.kinds.replicas import ReplicaStatus, UnsentStatus
from policies.judging.coverage import Unsent
from webhook.edge.endpoints import Check
from webhook.server.certificates import report


@dataclasses.dataclass(frozen=True)
class Policies:
    digest: str = "ab12"
    problem: str = ""
    older_since: dt.datetime | None = dt.datetime(2026, 6, 1, 12, tzinfo=dt.UTC)
    unsent: tuple[Unsent, ...] = ()
    templates: tuple[str, ...] = ()


def says(passed: bool, detail: str = "") -> Check:
    return lambda: (passed, detail)


@pytest.mark.parametrize(
    ("checks", "ready", "problems"),
    [
        pytest.param({"tls": says(True, "valid until 2027"), "caches": says(True)}, True, (), id="well"),
        pytest.param({"caches": says(False, "not seen yet: pods")}, False, ("caches: not seen yet: pods",), id="ill"),
        pytest.param({"shutdown": says(False)}, False, ("shutdown",), id="without a word"),
        pytest.param({"caches": says(True, "cannot watch pods")}, True, ("cannot watch pods",), id="well, but behind"),
        pytest.param(
            {f"c{number:02}": says(False, "x" * 9000) for number in range(30)},
            False,
            tuple(f"c{number:02}: {'x' * 495}" for number in range(10)),
            id="bounded",
        ),
    ],
)
def test_a_replica_is_ready_where_every_check_passes(
    checks: dict[str, Check], ready: bool, problems: tuple[str, ...]
) -> None:
    said = report("1.2", "shadow", checks, None)
    assert (said.ready, said.problems) == (ready, problems)


def test_policies_are_reported_with_the_fault_of_newer_ones() -> None:
    said = report("1.2", "shadow", {}, Policies(problem="p.yaml:3: no", templates=("xl-trn2=1",)))
    assert said == ReplicaStatus(
        version="1.2",
        mode="shadow",
        ready=True,
        policies="ab12",
        policies_problem="p.yaml:3: no",
        policies_since="2026-06-01T12:00:00+00:00",
        templates=("xl-trn2=1",),
    )


def test_the_report_of_requests_that_policies_do_not_see_is_bounded() -> None:
    unseen = tuple(Unsent(f"p{number}", "", "pods", "CREATE", "x" * 9000) for number in range(30))
    found = report("1.2", "shadow", {}, Policies(unsent=unseen)).unsent
    assert len(found) == 16
    assert found[0] == UnsentStatus(policy="p0", resource="pods", operation="CREATE", condition="x" * 1024)
