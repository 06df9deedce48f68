"""The table of rules for policies, and generated policies: the API server refuses what the loader refuses.

Type checks: it writes the warnings of the loader into the status of the policy.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from click.testing import CliRunner

from commands.cli.main import main
from policies.files.api_types import Served, nothing_served
from policies.files.loader import load
from tests.cluster.api import Api, ApiError
from tests.cluster.controlplane import ControlPlane
from tests.cluster.processes import eventually
from tests.policies.policy_files import loaded, problems
from tests.support.custom_kinds import LIMITS, LOOSE, TEAMS, WARNED_BY_THE_API_SERVER
from tests.support.custom_kinds import TYPED as TYPED_CUSTOM
from tests.support.policy_probes import BINDING, BINDING_PROBES, POLICY, PROBES, generated, with_value

_GROUP = "/apis/admissionregistration.k8s.io/v1"
_CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEFINITIONS: Final = (TEAMS, LOOSE, LIMITS)
_DOCUMENT: Final = "/openapi/v3/apis/example.com/v1"
_COUNT = 400
_SEED = 20261127


def dry_run_refusal(api: Api, data: dict[str, Any]) -> str:
    """Why the API server refuses an object on a dry run; empty if it accepts it."""
    plural = "validatingadmissionpolicies" if data["kind"].endswith("Policy") else "validatingadmissionpolicybindings"
    try:
        api.request("POST", f"{_GROUP}/{plural}?dryRun=All&fieldValidation=Strict", json=data)
    except ApiError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("path", "value", "accepted"), PROBES.values(), ids=PROBES)
def test_policies(api: Api, path: str, value: Any, accepted: bool) -> None:
    why = dry_run_refusal(api, with_value(POLICY, path, value))
    assert (not why) is accepted, why


@pytest.mark.parametrize(("path", "value", "accepted"), BINDING_PROBES.values(), ids=BINDING_PROBES)
def test_bindings(api: Api, path: str, value: Any, accepted: bool) -> None:
    why = dry_run_refusal(api, with_value(BINDING, path, value))
    assert (not why) is accepted, why


def test_generated_policies(api: Api) -> None:
    different = []
    for policy in generated(_COUNT, _SEED):
        theirs, ours = dry_run_refusal(api, policy), problems(yaml.safe_dump(policy))
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


def type_warnings(api: Api, data: dict[str, Any]) -> set[str]:
    """The places of which the API server's type checking warns; the policy is created and deleted."""
    path, name = f"{_GROUP}/validatingadmissionpolicies", data["metadata"]["name"]
    api.request("POST", path, json=data)
    try:
        eventually(
            "type checking",
            lambda: api.request("GET", f"{path}/{name}").body.get("status", {}).get("observedGeneration"),
        )
        status = api.request("GET", f"{path}/{name}").body["status"]
    finally:
        api.request("DELETE", f"{path}/{name}")
    return {each["fieldRef"] for each in status.get("typeChecking", {}).get("expressionWarnings", ())}


@pytest.mark.parametrize(
    ("name", "rules"),
    [("typed-pods", [PODS]), ("typed-deployments", [DEPLOYMENTS]), ("typed-both", [PODS, DEPLOYMENTS])],
)
def test_type_checks(api: Api, name: str, rules: list[dict[str, Any]]) -> None:
    data = typed(rules, name)
    theirs = type_warnings(api, data)
    # A question in one expression silences what the others read.
    each_alone = [with_value(data, "spec.validations", [each]) for each in data["spec"]["validations"]]
    ours = {
        f"spec.validations[{at}].expression" for at, one in enumerate(each_alone) if loaded(yaml.safe_dump(one)).notes
    }
    assert {f"{ref}: {TYPED[int(ref[17:].partition(']')[0])]}" for ref in theirs ^ ours} == set()


@pytest.fixture(scope="module")
def custom(lent_control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """A control plane that serves three custom kinds, and publishes their schemas."""
    api = lent_control_plane.admin
    for each in DEFINITIONS:
        api.request("POST", _CRDS, json=each)
    eventually("the group's document", lambda: "apis/example.com/v1" in api.request("GET", "/openapi/v3").body["paths"])
    wanted = {each["spec"]["names"]["plural"] for each in DEFINITIONS}
    eventually(
        "the schemas of the custom kinds",
        lambda: wanted <= {path.rpartition("/")[2] for path in api.request("GET", _DOCUMENT).body["paths"]},
    )
    yield lent_control_plane
    for each in DEFINITIONS:
        api.request("DELETE", f"{_CRDS}/{each['metadata']['name']}")


def custom_policy(name: str, resource: str, expressions: list[str]) -> dict[str, Any]:
    data = with_value(POLICY, "spec.validations", [{"expression": each} for each in expressions])
    rule = {**PODS, "apiGroups": ["example.com"], "resources": [resource]}
    data = with_value(data, "spec.matchConstraints.resourceRules", [rule])
    return with_value(data, "metadata.name", name)


def noted(files: dict[str, bytes], served: Served) -> bool:
    return bool(load(files, run_tests=False, served=served).notes)


@pytest.mark.parametrize("road", ["definition", "cluster"])
def test_type_checks_of_custom_kinds(custom: ControlPlane, road: str) -> None:
    api = custom.admin
    expressions = [each for each, _ in TYPED_CUSTOM]
    refs = type_warnings(api, custom_policy("typed-teams", "teams", expressions))
    theirs = {expressions[int(ref[17:].partition("]")[0])] for ref in refs}

    def served(api_version: str) -> object:
        return api.request("GET", f"/openapi/v3/apis/{api_version}").body if road == "cluster" else None

    files = {"teams.yaml": yaml.safe_dump(TEAMS).encode()} if road == "definition" else {}
    ours = set()
    for each in expressions:
        alone = yaml.safe_dump(custom_policy("typed-teams", "teams", [each])).encode()
        if noted({"policy.yaml": alone, **files}, served):
            ours.add(each)
    assert theirs - ours == WARNED_BY_THE_API_SERVER
    assert ours - theirs == set()


def test_type_checks_of_a_kind_without_a_schema(custom: ControlPlane) -> None:
    """Its objects have any field: the API server warns of each, we of none."""
    data = custom_policy("typed-looses", "looses", ["object.spec.x == 3", "object.metadata.name != ''"])
    assert type_warnings(custom.admin, data) == {"spec.validations[0].expression"}
    assert not noted({"a": yaml.safe_dump(data).encode(), "b": yaml.safe_dump(LOOSE).encode()}, nothing_served)


@pytest.mark.parametrize(("expression", "warned"), [("params.spec.most > 3", False), ("params.spec.mots > 3", True)])
def test_type_checks_of_custom_parameters(custom: ControlPlane, expression: str, warned: bool) -> None:
    data = with_value(POLICY, "spec.validations", [{"expression": expression}])
    data = with_value(data, "spec.paramKind", {"apiVersion": "example.com/v1", "kind": "Limit"})
    data = with_value(data, "metadata.name", "typed-params")
    assert bool(type_warnings(custom.admin, data)) is warned
    policy_file = {"a.yaml": yaml.safe_dump(data).encode()}
    assert noted({**policy_file, "b.yaml": yaml.safe_dump(LIMITS).encode()}, nothing_served) is warned
    assert noted(policy_file, lambda version: custom.admin.request("GET", f"/openapi/v3/apis/{version}").body) is warned


def test_any_user_may_check_the_fields_of_custom_kinds(custom: ControlPlane, tmp_path: Path) -> None:
    wrong = yaml.safe_dump(custom_policy("teams", "teams", ["object.spec.replcas > 3"]))
    (tmp_path / "policy.yaml").write_text(wrong)
    kubeconfig = custom.user_kubeconfig("without-rights")
    arguments = ["policy", "check", str(tmp_path / "policy.yaml"), "--kubeconfig", str(kubeconfig)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.stderr
    assert "'Team.spec' has no field 'replcas'. Did you mean 'replicas'? (example.com/v1 Team)" in done.stderr
