"""Reviews with policies: findings, metrics, and the cost if no policy matches."""

import asyncio
import datetime as dt
import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cluster.store import Store
from conversion.objects import wire
from conversion.patches.decision import Decision, Outcome, denied, unchanged
from neuron.findings import Finding, warning
from neuron.hardware.instances import Catalogue
from policies.applying.requests import ClusterLookups
from policies.files.loader import load
from policies.files.store import Loaded, PolicyStore, StoreOptions
from policies.judging.rules import PolicySet
from tests.support.serving import Answering, decoded_review
from webhook.reviews.policed import PolicedValidator
from webhook.reviews.policy_metrics import PolicyMetrics
from webhook.reviews.policy_requests import Execution
from webhook.reviews.reviewer import Reviewer

NOW = dt.datetime(2026, 6, 1, 12, tzinfo=dt.UTC)
POLICY = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata: {name: %s}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
"""
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train"}, "spec": {"containers": []}}


def policy(spec: str, name: str = "p") -> str:
    return POLICY % name + "".join(f"  {line}\n" for line in spec.splitlines())


def pod_review(**members: Any) -> wire.AdmissionRequest:
    return decoded_review(**{"object": POD, **members})


class Labelled(Store):
    """A cluster with one namespace."""

    def namespace_labels(self, name: str) -> dict[str, str] | None:
        return {"team": "ml"} if name == "default" else None


class Bench:
    """A reviewer with policies, with its store, metrics and cluster."""

    def __init__(self, *texts: str, answer: Decision | None = None, excluded: frozenset[str] = frozenset()) -> None:
        files = {f"{at}.yaml": text.encode() for at, text in enumerate(texts)}
        self.now = NOW
        self.store = PolicyStore(Path("policies"), StoreOptions(lambda: NOW), Loaded(load(files), {}), (), frozenset())
        self.metrics = PolicyMetrics(self.store)
        self.catalogues: list[Catalogue] = []
        self.inner = Answering(answer)
        self.reviewer = PolicedValidator(
            self._make,
            self.store,
            ClusterLookups(Labelled()),
            excluded,
            self.metrics,
            lambda: self.now,
            Execution(clock=lambda: 0.0),
        )

    def _make(self, policies: PolicySet) -> Reviewer:
        self.catalogues.append(policies.catalogue)
        return self.inner

    def review(self, **members: Any) -> Decision:
        return self.reviewed(pod_review(**members))

    def reviewed(self, sent: wire.AdmissionRequest) -> Decision:
        return asyncio.run(self.reviewer.review(sent))

    def samples(self) -> dict[tuple[str, ...], float]:
        """Every sample but the buckets', by name and label values."""
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in self.metrics.collect()
            for sample in family.samples
            if "le" not in sample.labels
        }


def texts_of(findings: tuple[Finding, ...]) -> list[str]:
    return [str(finding) for finding in findings]


def test_a_denial_has_every_message_and_the_first_reason() -> None:
    spec = (
        "validations:\n- {expression: 'false', message: one, reason: Forbidden}\n- {expression: 'false', message: two}"
    )
    decision = Bench(policy(spec)).review()
    assert texts_of(decision.errors) == ["NEU801: policy 'p': one", "NEU801: policy 'p': two"]
    assert (decision.outcome, decision.reason) == (Outcome.DENIED, "policy")
    assert (decision.status_code, decision.status_reason) == (403, "Forbidden")


def test_a_warning_admits() -> None:
    decision = Bench(policy("validationActions: [Warn]\nvalidations: [{expression: 'false', message: hm}]")).review()
    assert decision.allowed
    assert texts_of(decision.warnings) == ["NEU802: policy 'p': hm"]


def test_the_action_audit_only_adds_an_annotation() -> None:
    decision = Bench(policy("validationActions: [Audit]\nvalidations: [{expression: 'false', message: hm}]")).review()
    assert (decision.allowed, decision.warnings) == (True, ())
    assert json.loads(decision.audit["validation-failure"]) == [{"policy": "p", "message": "hm"}]


def test_a_policy_that_cannot_be_evaluated_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(policy("validations: [{expression: object.none.x}]"))
    with caplog.at_level(logging.WARNING):
        first, second = bench.review(), bench.review()
    message = "NEU803: policy 'p': expression 'object.none.x' resulted in error: no such key: 'none'"
    assert texts_of(first.errors)[0].startswith(message)
    assert first.errors == second.errors
    assert [record.__dict__["policy"] for record in caplog.records] == ["p"], "each error is logged once"


def test_audit_annotations_have_keys_that_the_api_server_takes() -> None:
    name = "a-policy-with-a-long-name." * 4 + "x"
    spec = "auditAnnotations: [{key: who, valueExpression: request.userInfo.username}]"
    bench = Bench(policy(spec), policy(spec, name))
    audit = bench.review(userInfo={"username": "jane", "groups": ["a"]}).audit
    assert audit["p.who"] == "jane"
    (other,) = set(audit) - {"p.who"}
    assert len(other) == 63
    assert other.startswith("a-policy-with-a-long-name.a-policy-with-a-long-name.")


EXCEPTION = """validations: [{{expression: 'false', message: stop}}]
exceptions:
- {{name: old, owner: ml, reason: r, expires: {day}, matchConditions: [{{name: a, expression: 'true'}}]}}"""


@pytest.mark.parametrize(
    ("day", "errors", "warnings"),
    [
        pytest.param("2027-01-01", [], [], id="holds"),
        pytest.param("2026-06-10", [], ["NEU804: policy 'p': exception 'old' of ml ends on 2026-06-10."], id="near"),
        pytest.param(
            "2026-05-31",
            ["NEU801: policy 'p': stop. Exception 'old' of ml ended on 2026-05-31."],
            [],
            id="expired",
        ),
    ],
)
def test_exceptions(day: str, errors: list[str], warnings: list[str]) -> None:
    decision = Bench(policy(EXCEPTION.format(day=day))).review()
    assert (texts_of(decision.errors), texts_of(decision.warnings)) == (errors, warnings)
    assert decision.audit == ({} if errors else {"p.exception": "old"})


def test_the_same_review_is_judged_again_at_the_edges_of_a_schedule() -> None:
    bench = Bench(
        policy("validations: [{expression: 'false'}]\nschedule: [{from: '12:00', to: '13:00', timeZone: UTC}]")
    )
    allowed = []
    for minutes in (-1, 0, 59, 60, 24 * 60):
        bench.now = NOW + dt.timedelta(minutes=minutes)
        allowed.append(not bench.review().errors)
    assert allowed == [True, False, False, True, False]


def test_findings_of_the_other_reviewer_come_first_with_their_status() -> None:
    answer = denied("invalid", Finding("NEU520", "spec", "seven"), warnings=(warning("NEU524", "", "loose"),))
    spec = "validations: [{expression: 'false', message: stop, reason: Forbidden}]"
    decision = Bench(policy(spec), answer=answer).review()
    assert [finding.code for finding in (*decision.errors, *decision.warnings)] == ["NEU520", "NEU801", "NEU524"]
    assert (decision.status_code, decision.reason) == (422, "invalid")


def test_a_decision_without_findings_is_the_same_object() -> None:
    answer = unchanged("valid")
    bench = Bench(policy("validations: [{expression: 'true'}]"), answer=answer)
    assert bench.review() is answer
    assert bench.review(operation="UPDATE") is answer


def test_an_object_is_decoded_only_if_a_policy_can_match() -> None:
    bench = Bench(policy("validations: [{expression: 'true'}]"))
    broken = msgspec.structs.replace(pod_review(operation="DELETE"), oldObject=msgspec.Raw(b"{"))
    assert asyncio.run(bench.reviewer.review(broken)).allowed


def test_excluded_namespaces_are_not_judged() -> None:
    bench = Bench(policy("validations: [{expression: 'false'}]"), excluded=frozenset({"default"}))
    assert bench.review().allowed


@pytest.mark.parametrize(
    "expression",
    [
        "namespaceObject.metadata.labels.team == 'ml'",
        "request.name == 'train' && request.resource.resource == 'pods'",
        "request.options.kind == 'CreateOptions'",
        "oldObject == null && request.userInfo.groups == ['a']",
    ],
)
def test_expressions_read_the_fields_of_the_request(expression: str) -> None:
    bench = Bench(policy(f'validations: [{{expression: "{expression}"}}]'))
    options, user = {"kind": "CreateOptions"}, {"username": "jane", "groups": ["a"]}
    assert texts_of(bench.review(name="train", options=options, userInfo=user).errors) == []


def test_a_new_set_replaces_the_old_one_at_once() -> None:
    bench = Bench(policy("validations: [{expression: 'true'}]"))
    assert bench.review().allowed
    bench.store.current = load({"a": policy("validations: [{expression: 'false'}]").encode()})
    assert not bench.review().allowed
    bench.store.current = PolicySet()
    assert bench.review().allowed
    assert len(bench.catalogues) == 3


def test_metrics() -> None:
    texts = [
        policy("validations: [{expression: 'false'}]\nvalidationActions: [Audit, Warn]", "w"),
        policy(EXCEPTION.format(day="2026-06-10"), "e"),
        policy("validations: [{expression: object.none}]", "f"),
    ]
    bench = Bench(*texts)
    bench.review()
    bench.review()
    samples = bench.samples()
    for series, value in {
        ("neuron_dra_policy_results_total", "w", "Audit,Warn", "warn"): 2,
        ("neuron_dra_policy_results_total", "e", "Deny", "except"): 2,
        ("neuron_dra_policy_results_total", "f", "Deny", "deny"): 2,
        ("neuron_dra_policy_errors_total", "f"): 2,
        ("neuron_dra_policy_exceptions_used_total", "e", "old"): 2,
        ("neuron_dra_policy_evaluation_seconds_count",): 6,
        ("neuron_dra_policy_reloads_total", "success"): 0,
        ("neuron_dra_policy_last_reload_success",): 1,
        ("neuron_dra_policy_last_good_timestamp_seconds",): NOW.timestamp(),
        ("neuron_dra_policies",): 3,
        ("neuron_dra_policy_exception_expiry_timestamp_seconds", "e", "old"): dt.datetime(
            2026, 6, 10, 23, 59, 59, tzinfo=dt.UTC
        ).timestamp(),
    }.items():
        assert samples[series] == value, series
