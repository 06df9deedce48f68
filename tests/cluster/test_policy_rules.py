"""The table of rules for policies, and generated policies: the API server refuses what the loader refuses.

Type checks: it writes the warnings of the loader into the status of the policy.
"""

from typing import Any, Final

import pytest
import yaml

from tests.cluster.api import Api, ApiError
from tests.cluster.processes import eventually
from tests.policies.policy_files import loaded, problems
from tests.support.policy_probes import BINDING, BINDING_PROBES, POLICY, PROBES, generated, with_value

_GROUP = "/apis/admissionregistration.k8s.io/v1"
_NO_POLICY = "no file has a policy of that name"
_COUNT = 400
_SEED = 20261127


def refused(api: Api, data: dict[str, Any]) -> str:
    """Why the API server refuses an object on a dry run; empty if it accepts it."""
    plural = "validatingadmissionpolicies" if data["kind"].endswith("Policy") else "validatingadmissionpolicybindings"
    try:
        api.request("POST", f"{_GROUP}/{plural}?dryRun=All&fieldValidation=Strict", json=data)
    except ApiError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("path", "value", "accepted"), PROBES.values(), ids=PROBES)
def test_policies(api: Api, path: str, value: Any, accepted: bool) -> None:
    why = refused(api, with_value(POLICY, path, value))
    assert (not why) is accepted, why


@pytest.mark.parametrize(("path", "value", "accepted"), BINDING_PROBES.values(), ids=BINDING_PROBES)
def test_bindings(api: Api, path: str, value: Any, accepted: bool) -> None:
    why = refused(api, with_value(BINDING, path, value))
    assert (not why) is accepted, why


def test_generated_policies(api: Api) -> None:
    different = []
    for policy in generated(_COUNT, _SEED):
        theirs, ours = refused(api, policy), problems(yaml.safe_dump(policy))
        if bool(theirs) is not bool(ours):
            different.append((policy["spec"], theirs, ours))
    assert different == []


PODS: Final = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
DEPLOYMENTS: Final = {**PODS, "apiGroups": ["apps"], "resources": ["deployments"]}
TYPED: Final = [
    "object.spec.contaners.size() < 3",
    "object.spec.containers.all(c, c.imag != 'x')",
    "!has(object.metadata.lables)",
    "object.metadata.labels.anything == 'x'",
    "object.metadata.name > 3",
    "object.spec.activeDeadlineSeconds > 3",
    "object.spec.activeDeadlineSeconds > 'x'",
    "object.spec.replicas > 3",
    "object.spec.template.spec.contaners.size() < 3",
    "object.spec.template.spec.containers[0].ports[0].containerPort == 80",
    "has(oldObject.spec) && oldObject.spec.x == 1",
    "object.spec.containers.exists(c, has(c.env) && c.env.exists(e, e.nme == 'x'))",
    "object.spec.nodeSelector.all(k, k != 'x')",
    "object.spec.tolerations.all(t, t.operator == 'Exists' || t.tolerationSeconds < 3)",
    "object.spec.volumes.all(v, v.hostpath.path != 'x')",
    "object.spec.securityContext.runAsUser == 'root'",
    "object.spec.containers.map(c, c.name).size() > object.spec.containers.size()",
    "object.status.phase == 'Running'",
    "object.status.phasee == 'Running'",
]
"""Without questions about the kind or about fields that one kind lacks: of those our loader says less. Without maps of
quantities, such as `limits`: the API server leaves these fields out of its types, and warns of them."""


def typed(rules: list[dict[str, Any]], name: str) -> dict[str, Any]:
    data = with_value(POLICY, "spec.validations", [{"expression": each} for each in TYPED])
    data = with_value(data, "spec.matchConstraints.resourceRules", rules)
    return with_value(data, "metadata.name", name)


@pytest.mark.parametrize(
    ("name", "rules"),
    [("typed-pods", [PODS]), ("typed-deployments", [DEPLOYMENTS]), ("typed-both", [PODS, DEPLOYMENTS])],
)
def test_type_checks(api: Api, name: str, rules: list[dict[str, Any]]) -> None:
    path = f"{_GROUP}/validatingadmissionpolicies"
    data = typed(rules, name)
    api.request("POST", path, json=data)
    try:
        status: dict[str, Any] = eventually(
            "type checking", lambda: api.request("GET", f"{path}/{name}").body.get("status", {}).get("typeChecking")
        )
    finally:
        api.request("DELETE", f"{path}/{name}")
    theirs = {each["fieldRef"] for each in status.get("expressionWarnings", ())}
    # A question in one expression silences what the others read.
    each_alone = [with_value(data, "spec.validations", [each]) for each in data["spec"]["validations"]]
    ours = {
        f"spec.validations[{at}].expression" for at, one in enumerate(each_alone) if loaded(yaml.safe_dump(one)).notes
    }
    assert {f"{ref}: {TYPED[int(ref[17:].partition(']')[0])]}" for ref in theirs ^ ours} == set()
