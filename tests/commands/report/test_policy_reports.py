"""Report objects: the schemas of openreports.io and wgpolicyk8s.io, bounded, and stable between runs."""

import datetime as dt
import json
from typing import Any

import jsonschema
import pytest

from commands.report.model import Audit, AuditViolation, Reference
from commands.report.publish import MOST_RESULTS, ReportApi, bodies
from tests.support.reports import NOW

OPEN = ReportApi("openreports.io", "v1alpha1")
OLDER = ReportApi("wgpolicyk8s.io", "v1alpha2")
LATER = NOW + dt.timedelta(hours=1)

_RESULT = {"enum": ["pass", "fail", "warn", "error", "skip"]}
_REFERENCE = {
    "type": "object",
    "additionalProperties": False,
    "properties": {key: {"type": "string"} for key in ("apiVersion", "kind", "name", "namespace", "uid", "fieldPath")},
}


def schema(severities: list[str], *, is_open: bool) -> dict[str, Any]:
    """The fields of the CustomResourceDefinitions, closed, so that a field that a server would prune is an error."""
    timestamp = {
        "type": "object",
        "additionalProperties": False,
        "required": ["nanos", "seconds"],
        "properties": {"nanos": {"type": "integer"}, "seconds": {"type": "integer"}},
    }
    strings = {key: {"type": "string"} for key in ("category", "message", "policy", "rule", "source")}
    result = {
        "type": "object",
        "additionalProperties": False,
        "required": ["policy"],
        "properties": {
            **strings,
            "properties": {"type": "object", "additionalProperties": {"type": "string"}},
            "resources": {"type": "array", "items": _REFERENCE},
            "result": _RESULT,
            "scored": {"type": "boolean"},
            "severity": {"enum": severities},
            "timestamp": timestamp,
        },
    }
    fields: dict[str, Any] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "scope": _REFERENCE,
        "summary": {
            "type": "object",
            "additionalProperties": False,
            "properties": {key: {"type": "integer"} for key in _RESULT["enum"]},
        },
        "results": {"type": "array", "items": result},
    }
    if is_open:
        limits = {
            "type": "object",
            "additionalProperties": False,
            "properties": {"maxResults": {"type": "integer"}, "statusFilter": {"type": "array", "items": _RESULT}},
        }
        configuration = {"type": "object", "required": ["limits"], "properties": {"limits": limits}}
        fields |= {"source": {"type": "string"}, "configuration": configuration}
    return {"type": "object", "additionalProperties": False, "properties": fields}


SCHEMAS = {
    OPEN: schema(["critical", "high", "low", "medium", "info"], is_open=True),
    OLDER: schema(["high", "low", "medium"], is_open=False),
}
VALIDATORS = {api: jsonschema.validators.validator_for(each)(each) for api, each in SCHEMAS.items()}


def violation(name: str = "train", namespace: str = "team-a", **fields: Any) -> AuditViolation:
    ref = Reference("apps", "Deployment", namespace, name, f"uid-{name}", "apps/v1")
    given = {"severity": "medium", "result": "fail", "message": "too many", "action": "Deny", **fields}
    return AuditViolation(
        ref, "spec.template", "few", given["severity"], given["result"], given["message"], given["action"]
    )


def audit(*violations: AuditViolation, passed: int = 3) -> Audit:
    counts = {("team-a", "pass"): passed}
    for each in violations:
        key = (each.ref.namespace, each.result)
        counts[key] = counts.get(key, 0) + 1
    return Audit(("few",), len(violations) + passed, counts, violations)


@pytest.mark.parametrize("api", [OPEN, OLDER])
@pytest.mark.parametrize("severity", ["info", "low", "medium", "high", "critical"])
@pytest.mark.parametrize("result", ["fail", "warn", "error", "skip"])
def test_reports_match_the_schema(api: ReportApi, severity: str, result: str) -> None:
    found = audit(violation(severity=severity, result=result), violation("gpu", "", result=result))
    for body in bodies(found, api, NOW, ()):
        VALIDATORS[api].validate(body)


def test_each_namespace_and_the_cluster_have_one_report() -> None:
    made = bodies(audit(violation(), violation("class", "")), OPEN, NOW, ())
    assert [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in made] == [
        ("ClusterReport", None, "neuron-dra"),
        ("Report", "team-a", "neuron-dra"),
    ]
    assert made[1]["summary"] == {"pass": 3, "fail": 1, "warn": 0, "error": 0, "skip": 0}
    [older] = bodies(audit(violation()), OLDER, NOW, ())
    assert (older["apiVersion"], older["kind"]) == ("wgpolicyk8s.io/v1alpha2", "PolicyReport")


def test_a_namespace_without_violations_has_a_report_with_its_counts() -> None:
    [body] = bodies(audit(), OPEN, NOW, ())
    assert (body["results"], body["summary"]["pass"]) == ([], 3)


def test_a_result_names_the_object_and_the_action() -> None:
    [body] = bodies(audit(violation(severity="critical")), OLDER, NOW, ())
    assert body["results"] == [
        {
            "source": "neuron-dra",
            "policy": "few",
            "category": "Neuron",
            "severity": "high",
            "result": "fail",
            "scored": True,
            "message": "too many",
            "resources": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "Deployment",
                    "namespace": "team-a",
                    "name": "train",
                    "uid": "uid-train",
                }
            ],
            "properties": {"action": "Deny", "podTemplate": "spec.template", "severity": "critical"},
            "timestamp": {"seconds": int(NOW.timestamp()), "nanos": 0},
        }
    ]


def test_a_result_keeps_its_time() -> None:
    first = bodies(audit(violation("a")), OPEN, NOW, ())
    second = bodies(audit(violation("a"), violation("b")), OPEN, LATER, first)
    times = {each["resources"][0]["name"]: each["timestamp"]["seconds"] for each in second[0]["results"]}
    assert times == {"a": int(NOW.timestamp()), "b": int(LATER.timestamp())}
    assert bodies(audit(violation("a")), OPEN, LATER, first) == first


def test_many_results_continue_in_further_objects_below_the_limit_of_etcd() -> None:
    count = 2 * MOST_RESULTS + 1
    many = [violation(f"train-{at}" + "x" * 200, message="m" * 5000) for at in range(count)]
    made = bodies(audit(*many), OPEN, NOW, ())
    assert [each["metadata"]["name"] for each in made] == ["neuron-dra", "neuron-dra-2", "neuron-dra-3"]
    assert [each["summary"]["pass"] for each in made] == [3, 0, 0]
    assert sum(each["summary"]["fail"] for each in made) == count
    assert max(len(json.dumps(each)) for each in made) < 1_500_000
