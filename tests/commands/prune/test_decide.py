"""Which templates may be removed, and when."""

import datetime as dt
from typing import Any

import pytest

from commands import prune
from conversion.claims.templates import Template, is_unchanged
from tests.support.generated import MARK, NOW, stored, template

DAY = dt.timedelta(days=1)
MINUTE = dt.timedelta(minutes=1)


def read(**metadata: Any) -> prune.Generated:
    found = prune.read_generated(stored(**metadata))
    assert found is not None
    return found


def test_a_template_that_the_webhook_created_is_recognised() -> None:
    found = read(uid="u", resourceVersion="7", mark="soon")
    assert (found.namespace, found.name, found.uid, found.version) == ("team", template(4).name, "u", "7")
    assert found.created == NOW - dt.timedelta(days=3)
    assert found.mark == "soon"


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"labels": None}, id="no label"),
        pytest.param({"labels": {"app.kubernetes.io/managed-by": "Helm"}}, id="foreign label"),
        pytest.param({"name": "neuron-4"}, id="no hash in the name"),
        pytest.param({"name": "my-own-devices"}, id="a name of its own"),
        pytest.param({"name": "neuron-4-0123456789ab"}, id="forged hash"),
        pytest.param({"name": template(8).name}, id="another spec than the name says"),
        pytest.param({"name": template(4).name.removeprefix("neuron-")}, id="no prefix"),
        pytest.param({"name": template(4).name.replace("neuron-4", "neuron-" + "4" * 41)}, id="too long a summary"),
        pytest.param({"name": template(4).name.replace("neuron-4", "neuron-")}, id="no summary"),
        pytest.param({"manager": "kubectl-client-side-apply"}, id="applied by a user"),
        pytest.param({"managedFields": [{"manager": "neuron-dra"}, {"manager": "argocd"}]}, id="changed by another"),
        pytest.param({"managedFields": None}, id="no record of who wrote it"),
        pytest.param({"ownerReferences": [{"kind": "Deployment", "name": "x"}]}, id="owned"),
        pytest.param({"deletionTimestamp": "2026-03-01T12:00:00Z"}, id="on its way out"),
        pytest.param({"creationTimestamp": None}, id="no age"),
        pytest.param({"creationTimestamp": "yesterday"}, id="unreadable age"),
    ],
)
def test_other_templates_are_not_recognised(metadata: dict[str, Any]) -> None:
    assert prune.read_generated(stored(**metadata)) is None


@pytest.mark.parametrize("summary", ["4", "8-8-lnc1", "us4", "1or2-16", "x" * 60, "a" * 39 + "-" + "b" * 9])
def test_every_generated_name_is_recognised(summary: str) -> None:
    made = Template.make(summary, template(4).spec)
    assert is_unchanged(made.name, {}, made.spec)
    assert not is_unchanged(made.name, {}, template(8).spec)


@pytest.mark.parametrize(
    ("age", "referred", "found"),
    [
        pytest.param(DAY + MINUTE, False, True, id="old and unused"),
        pytest.param(DAY, False, False, id="just a day"),
        pytest.param(DAY - MINUTE, False, False, id="young"),
        pytest.param(-DAY, False, False, id="from the future"),
        pytest.param(9 * DAY, True, False, id="in use"),
    ],
)
def test_old_and_unused_ones_are_candidates(age: dt.timedelta, referred: bool, found: bool) -> None:
    each = read(age=age)
    pods = {each.key} if referred else {("other", each.name), ("team", "x")}
    assert prune.candidates([each], pods, NOW, DAY) == ((each,) if found else ())


def test_candidates_are_in_order() -> None:
    several = [read(count=count, namespace=where) for where in ("b", "a") for count in (8, 4)]
    found = prune.candidates(several, (), NOW, DAY)
    assert [each.key for each in found] == sorted(each.key for each in several)


def test_marks_are_timestamps_and_unique() -> None:
    marks = [prune.mark(NOW + dt.timedelta(microseconds=n), MINUTE) for n in range(2)]
    assert marks == ["2026-03-01T12:01:00.000000Z", "2026-03-01T12:01:00.000001Z"]


@pytest.mark.parametrize(
    ("mark", "due"),
    [
        pytest.param("", False, id="none"),
        pytest.param("2026-03-01T11:55:00.000000Z", True, id="five minutes ago"),
        pytest.param("2026-02-28T03:17:00Z", True, id="yesterday"),
        pytest.param("2026-03-01T13:00:00+02:00", True, id="another zone"),
        pytest.param("2026-03-01T11:55:01Z", False, id="too recent for two clocks"),
        pytest.param("2027-01-01T00:00:00Z", False, id="far off"),
        pytest.param("2026-02-28T03:17:00", False, id="no zone"),
        pytest.param("soon", False, id="unreadable"),
    ],
)
def test_marks_of_earlier_runs_count_after_their_time_and_a_clock_margin(mark: str, due: bool) -> None:
    assert prune.left_over(read(mark=mark), NOW) is due


def test_a_restored_template_equals_the_original_without_the_mark() -> None:
    item = stored(mark="soon", labels={"app.kubernetes.io/managed-by": "neuron-dra", "team": "a"})
    found = prune.read_generated(item)
    assert found is not None
    again = found.manifest()
    assert again["spec"] == item["spec"]
    assert again["metadata"] == {"name": found.name, "namespace": "team", "labels": item["metadata"]["labels"]}
    assert MARK not in str(again)


CARRIED = {"name": "team-a-four", "annotations": {"neuron.aws.com/template-digest": template(4).digest, "note": "x"}}


def test_an_unchanged_template_of_a_policy_is_recognised() -> None:
    found = read(**CARRIED)
    assert found.manifest()["metadata"]["annotations"] == CARRIED["annotations"]
    assert prune.read_generated(stored(8, **CARRIED)) is None
    assert prune.read_generated(stored(**CARRIED, manager="kubectl")) is None
