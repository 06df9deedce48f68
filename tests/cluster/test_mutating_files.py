"""MutatingAdmissionPolicies as policy files: the webhook applies them before and after conversion."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.cluster.api import Api, ApiError
from tests.cluster.kubectl import Kubectl
from tests.cluster.manifests import is_converted, pod
from tests.cluster.webhooks import Webhook
from tests.support.mutating_policies import json_patch, policy

_EXAMPLE: Final = Path(__file__).parents[2] / "deploy/policy-examples/priority.yaml"
_CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
_CLAIMS: Final = (
    "(has(object.metadata.annotations) ? [] : [JSONPatch{op: 'add', path: '/metadata/annotations', value: {'a': 'b'}}])"
    " + [JSONPatch{op: 'add', path: '/metadata/annotations/claims',"
    " value: string(object.spec.?resourceClaims.orValue([]).size())}]"
)


@pytest.fixture
def with_policies(webhook: Webhook, api: Api, tmp_path: Path) -> Iterator[Webhook]:
    folder = tmp_path / "policies"
    folder.mkdir()
    example, _ = _EXAMPLE.read_text().split("\n---\n")
    (folder / "priority.yaml").write_text(example.replace("== '16'", "== '4'"))
    counting = policy("counting", json_patch(_CLAIMS, reinvocationPolicy="IfNeeded"))
    failing = policy("failing", json_patch("[JSONPatch{op: 'remove', path: '/spec/nothing'}]"))
    for case, documents in {"counting": counting, "failing": failing}.items():
        (folder / f"{case}.yaml").write_text(yaml.safe_dump_all(documents))
    api.request("POST", _CLASSES, json={"metadata": {"name": "whole-nodes"}, "value": 1000})
    with webhook.running_with(f"--policies={folder}"):
        yield webhook
    api.request("DELETE", f"{_CLASSES}/whole-nodes")


@pytest.mark.usefixtures("with_policies")
def test_a_pod_gets_a_priority_class_and_is_converted(api: Api, kubectl: Kubectl) -> None:
    manifest = pod("p", labels={"case": "counting"})
    for _ in range(2):
        applied = kubectl.feed("apply", manifest)
        assert applied.ok, applied.stderr
    stored = api.get("Pod", "p", kubectl.namespace)
    assert is_converted(stored)
    assert (stored["spec"]["priorityClassName"], stored["spec"]["priority"]) == ("whole-nodes", 1000)
    assert stored["metadata"]["annotations"]["claims"] == "1", "it ran again after conversion"


@pytest.mark.usefixtures("with_policies")
def test_a_policy_that_fails_denies_the_pod(api: Api, kubectl: Kubectl) -> None:
    with pytest.raises(ApiError, match=r"NEU806.*policy 'failing' cannot change the object: mutations\[0\]"):
        api.create(pod("p", labels={"case": "failing"}), kubectl.namespace)
