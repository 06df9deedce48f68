"""Policies and exceptions with a schedule."""

import datetime as dt

import pytest

from kubecel_tests.evaluating import frozen_clock
from policies.judging.evaluate import evaluate, unjudged
from policies.judging.explain import explain
from policies.judging.export import NotExportableError, to_vap
from policies.judging.subjects import of_object
from policies.judging.verdicts import PolicyOutcome
from tests.policies.policy_files import POD, loaded, policy, problems

STOP = "validations: [{expression: 'false', message: stop}]"
NIGHT = "{days: [Fri, Sun], from: 22:00, to: 06:00, timeZone: Europe/Berlin}"
NOON = "{from: '12:00', to: '13:00', timeZone: Asia/Kolkata}"


def outcome(spec: str, at: str) -> PolicyOutcome:
    (verdict,) = evaluate(loaded(policy(spec)).validating, of_object(POD), dt.datetime.fromisoformat(at), frozen_clock)
    return verdict.outcome


@pytest.mark.parametrize(
    ("windows", "at", "holds"),
    [
        pytest.param(NIGHT, "2026-07-03T19:59:59+00:00", False, id="before"),
        pytest.param(NIGHT, "2026-07-03T20:00:00+00:00", True, id="first-second"),
        pytest.param(NIGHT, "2026-07-04T03:59:59+00:00", True, id="last-second-on-the-day-after"),
        pytest.param(NIGHT, "2026-07-04T04:00:00+00:00", False, id="after"),
        pytest.param(NIGHT, "2026-07-04T21:00:00+00:00", False, id="another-day"),
        pytest.param(NIGHT, "2026-07-03T01:00:00+00:00", False, id="morning-of-the-first-day"),
        pytest.param(NIGHT, "2026-07-06T03:00:00+00:00", True, id="monday-after-sunday"),
        pytest.param(NIGHT, "2026-12-04T20:30:00+00:00", False, id="winter-time"),
        pytest.param(NIGHT, "2026-12-04T21:00:00+00:00", True, id="winter-time-begins-an-hour-later"),
        pytest.param(NIGHT, "2026-07-03T22:00:00+02:00", True, id="time-in-another-zone"),
        # The clocks go from 02:00 to 03:00 in this night, and from 03:00 to 02:00 in the other.
        pytest.param(NIGHT, "2027-03-29T03:59:59+00:00", True, id="night-after-spring-forward"),
        pytest.param(NIGHT, "2026-10-26T04:59:59+00:00", True, id="night-after-fall-back"),
        pytest.param(NOON, "2026-07-01T06:30:00+00:00", True, id="zone-with-half-hours"),
        pytest.param(NOON, "2026-07-01T07:30:00+00:00", False, id="end-is-outside"),
        pytest.param(f"{NIGHT}, {NOON}", "2026-07-01T06:30:00+00:00", True, id="second-window"),
        pytest.param(
            "{days: [Wed], from: '00:00', to: '24:00', timeZone: UTC}",
            "2026-07-01T23:59:59+00:00",
            True,
            id="whole-day",
        ),
    ],
)
def test_a_policy_is_in_force_in_its_windows_only(windows: str, at: str, *, holds: bool) -> None:
    assert outcome(f"{STOP}\nschedule: [{windows}]", at) is (PolicyOutcome.DENY if holds else PolicyOutcome.NO_MATCH)


def test_an_exception_admits_in_its_windows_only() -> None:
    spec = (
        f"{STOP}\nexceptions: [{{name: old, owner: ml, reason: r, expires: '2027-01-01', schedule: [{NOON}],"
        " matchConditions: [{name: a, expression: 'true'}]}]"
    )
    assert outcome(spec, "2026-07-01T06:30:00+00:00") is PolicyOutcome.EXCEPT
    assert outcome(spec, "2026-07-01T07:30:00+00:00") is PolicyOutcome.DENY


def test_a_request_that_could_not_be_evaluated_is_denied_only_in_the_windows() -> None:
    rules = loaded(policy(f"{STOP}\nschedule: [{NOON}]")).validating
    noon = dt.datetime(2026, 7, 1, 6, 30, tzinfo=dt.UTC)
    assert [each.outcome for each in unjudged(rules, of_object(POD), "busy", noon, frozen_clock)] == [
        PolicyOutcome.DENY
    ]
    assert unjudged(rules, of_object(POD), "busy", noon + dt.timedelta(hours=1), frozen_clock) == ()


def test_explain_names_a_schedule_that_is_not_in_force() -> None:
    found = loaded(policy(f"{STOP}\nschedule: [{NOON}]"))
    now = dt.datetime(2026, 7, 1, 9, tzinfo=dt.UTC)
    assert "limits: does not match: its schedule is not in force at 2026-07-01T09:00+00:00" in list(
        explain(found, of_object(POD), now, frozen_clock)
    )


def test_a_policy_with_a_schedule_is_not_exported() -> None:
    (rule,) = loaded(policy(f"{STOP}\nschedule: [{NOON}]")).validating
    with pytest.raises(NotExportableError, match="it has a schedule, which the API server does not support"):
        to_vap(rule)


@pytest.mark.parametrize(
    ("window", "message"),
    [
        pytest.param("{from: 22:00, to: 06:00, timeZone: Mars}", "timeZone is 'Mars': the IANA time zone", id="zone"),
        pytest.param("{from: 22:00, to: 06:00, timeZone: ../x}", "timeZone is '../x': the IANA", id="zone-as-path"),
        pytest.param("{from: 22:00, to: 06:00, timeZone: 1}", "write the name of a time zone", id="zone-as-number"),
        pytest.param(
            "{from: 22:0, to: 06:00, timeZone: UTC}", "from is '22:0': write a time of day as HH:MM", id="from"
        ),
        pytest.param("{from: 22, to: 06:00, timeZone: UTC}", "from is 22: write a time of day as HH:MM", id="number"),
        pytest.param("{from: '24:00', to: 06:00, timeZone: UTC}", "from is '24:00'", id="from-24"),
        pytest.param("{from: 22:00, to: 24:01, timeZone: UTC}", "to is '24:01'", id="to"),
        pytest.param("{from: 22:00, to: 22:00, timeZone: UTC}", "from and to are both 22:00", id="empty"),
        pytest.param("{from: 22:00, to: 06:00}", "timeZone", id="no-zone"),
        pytest.param("{days: [], from: 22:00, to: 06:00, timeZone: UTC}", "days", id="no-days"),
        pytest.param("{days: [Mo], from: 22:00, to: 06:00, timeZone: UTC}", "days[0] is 'Mo'", id="day"),
    ],
)
def test_a_wrong_window_is_refused(window: str, message: str) -> None:
    (problem,) = problems(policy(f"{STOP}\nschedule: [{window}]"))
    assert message in problem


CASE = "tests: [{name: night, expect: Deny, %sobject: {apiVersion: v1, kind: Pod, metadata: {name: a}}}]"


@pytest.mark.parametrize(
    ("at", "message"),
    [
        pytest.param("", "test 'night' has no time, and there is a schedule: add at:", id="without"),
        pytest.param(
            "at: 2026-07-01T07:30:00Z, ", "test 'night' of limits: expected Deny, came NoMatch.", id="outside"
        ),
        pytest.param("at: 2026-07-01T06:30:00Z, ", "", id="inside"),
    ],
)
def test_a_case_gives_the_time(at: str, message: str) -> None:
    found = problems(policy(f"{STOP}\nschedule: [{NOON}]\n{CASE % at}"))
    assert message in "\n".join(found)
    assert bool(found) == bool(message)
