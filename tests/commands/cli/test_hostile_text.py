"""Objects with any text in any field: no command prints a control character, whatever its format."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.runtime.test_console import controls, texts
from tests.support.invoking import invoke

SETTINGS = settings(
    deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

COMMANDS = [
    ("explain", "-f"),
    ("explain", "-o", "json", "-f"),
    ("validate", "-f"),
    ("validate", "-o", "json", "-f"),
    ("validate", "-o", "sarif", "-f"),
    ("report", "-f"),
    ("report", "-o", "json", "-f"),
    ("report", "-o", "html", "-f"),
    ("report", "-o", "markdown", "-f"),
    ("report", "-o", "sarif", "-f"),
    ("convert", "-o", "json", "-f"),
    ("map", "-f"),
    ("map", "-o", "wide", "-f"),
    ("map", "-o", "json", "-f"),
    ("map", "-o", "html", "-f"),
    ("map", "-o", "svg", "-f"),
]


@st.composite
def objects(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A pod, a Deployment, a claim, a template, a DeviceClass, a Node and a slice with any text in them."""
    text = lambda: draw(texts)  # noqa: E731

    def metadata(**more: Any) -> dict[str, Any]:
        labels = {text(): text(), "neuron.aws.com/converted": text()}
        notes = {text(): text(), "neuron.aws.com/convert": text(), "neuron.aws.com/converted-from": text()}
        return {"name": text(), "namespace": text(), "labels": labels, "annotations": notes, **more}

    def pod() -> dict[str, Any]:
        limits = {"aws.amazon.com/neuron": draw(st.sampled_from(["4", "7"]) | texts), text(): text()}
        container = {"name": text(), "image": text(), "resources": {"limits": limits, "claims": [{"name": text()}]}}
        return {
            "containers": [container],
            "schedulerName": text(),
            "nodeSelector": {text(): text(), "node.kubernetes.io/instance-type": text()},
            "resourceClaims": [{"name": text(), "resourceClaimTemplateName": text()}],
            "tolerations": [{"key": text(), "value": text()}],
        }

    request = {"name": text(), "exactly": {"deviceClassName": text(), "selectors": [{"cel": {"expression": text()}}]}}
    opaque = {"driver": "neuron.aws.com", "parameters": {"apiVersion": text(), "kind": text(), text(): text()}}
    spec = {"devices": {"requests": [request], "config": [{"opaque": opaque}]}}
    device = {"name": text(), "attributes": {"instanceType": {"string": text()}, "deviceId": {"int": 0}}}
    taint = {"key": text(), "value": text(), "effect": "NoSchedule"}
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata(), "spec": pod()},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata(),
            "spec": {"replicas": 2, "template": {"metadata": metadata(), "spec": pod()}},
        },
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata(), "spec": spec},
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": metadata(),
            "spec": {"spec": spec},
        },
        {"apiVersion": text(), "kind": text(), "metadata": metadata()},
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": metadata(),
            "spec": {"taints": [taint]},
            "status": {"conditions": [{"type": "Ready", "status": "True", "message": text()}]},
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": text()},
            "spec": {
                "driver": "neuron.aws.com",
                "nodeName": (node := text()),
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": [{**device, "taints": [taint]}],
            },
        },
    ]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@SETTINGS
@given(found=objects())
def test_no_command_prints_control_characters(tmp_path: Path, command: tuple[str, ...], found: list[Any]) -> None:
    file = tmp_path / "all.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": found}), encoding="utf-8")
    result = invoke(*command, file)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert not controls(result.stdout)
    assert not controls(result.stderr)
    if ("json" in command or "sarif" in command) and result.exit_code < 2:
        json.loads(result.stdout)


@SETTINGS
@given(value=texts)
def test_messages_of_wrong_use_are_escaped_too(value: str) -> None:
    result = invoke("map", "-l", value, "-o", value)
    assert not controls(result.output)
