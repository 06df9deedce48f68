"""`authorizer` in expressions: the API server's own answers, those of the webhook's look-ups, and its right to ask."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Final

import pytest

from kubecel.budget import POLICY_LIMITS, Budget
from kubecel.compile import Cel
from kubecel.errors import CelError
from kubecel.library.authorization import AccessDecision, Question
from policies.judging.subjects import of_object, types_with
from tests.cluster.api import Api, ApiError, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.processes import eventually
from tests.cluster.replicas import Installation
from tests.cluster.statuses import status
from tests.cluster.webhooks import install_rbac
from tests.deploy.charts import render
from webhook.cluster.for_policies import review

_GROUP: Final = "/apis/admissionregistration.k8s.io/v1"
_PODS: Final = "authorizer.group('').resource('pods')"
_BUILDER: Final = "authorizer.serviceAccount('%(ns)s', 'builder').group('')"
EXPRESSIONS: Final = {
    "admin": f"string({_PODS}.check('create').allowed())",
    "reason": f"{_PODS}.check('create').reason()",
    "account": f"string({_BUILDER}.resource('pods').namespace('%(ns)s').check('get').allowed())",
    "account-reason": f"{_BUILDER}.resource('pods').namespace('%(ns)s').check('get').reason()",
    "account-verb": f"string({_BUILDER}.resource('pods').namespace('%(ns)s').check('delete').allowed())",
    "account-elsewhere": f"string({_BUILDER}.resource('pods').namespace('other').check('get').allowed())",
    "account-everywhere": f"string({_BUILDER}.resource('pods').check('get').allowed())",
    "account-name": f"string({_BUILDER}.resource('secrets').namespace('%(ns)s').name('one').check('get').allowed())",
    "account-other-name": f"string({_BUILDER}.resource('secrets').namespace('%(ns)s').name('two').check('get')"
    ".allowed())",
    "account-log": f"string({_BUILDER}.resource('pods').subresource('log').namespace('%(ns)s').check('get').allowed())",
    "account-path": "string(authorizer.serviceAccount('%(ns)s', 'builder').path('/healthz').check('get').allowed())",
    "selectors": f"string({_BUILDER}.resource('pods').namespace('%(ns)s').fieldSelector('spec.nodeName=a')"
    ".labelSelector('a in (b)').check('get').allowed())",
    "bad-selectors": f"string({_BUILDER}.resource('pods').namespace('%(ns)s').fieldSelector('===')"
    ".labelSelector('a in b').check('get').allowed())",
    "empty-selector": f"string({_BUILDER}.resource('pods').namespace('%(ns)s').fieldSelector('').check('get')"
    ".allowed())",
    "request": "string(authorizer.requestResource.check('create').allowed())",
    "errored": f"string({_BUILDER}.resource('pods').check('get').errored())"
    f" + {_BUILDER}.resource('pods').check('get').error()",
    "two": f"string({_PODS}.check('get').allowed() && {_PODS}.check('list').allowed())",
    "in-a-variable": "string(variables.pods.check('get').allowed())",
    "empty-path": "string(authorizer.path('').check('get').allowed())",
    "bad-account": "string(authorizer.serviceAccount('a b', 'builder').group('').resource('x').check('get').allowed())",
    "too-many": " + ".join(f"string({_PODS}.check('{verb}').allowed())" for verb in ("get", "list", "watch")),
}
_OTHER: Final = "it fails"


@pytest.fixture
def account(api: Api, namespace: str) -> str:
    """The namespace, with a service account that may read pods and one Secret."""
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["one"], "verbs": ["get"]},
    ]
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    api.request("POST", f"{rbac}/roles", json={"metadata": {"name": "builder"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "builder", "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "builder"}
    api.request(
        "POST",
        f"{rbac}/rolebindings",
        json={"metadata": {"name": "builder"}, "roleRef": reference, "subjects": [subject]},
    )
    return namespace


def _policy(name: str, expression: str) -> tuple[Object, Object]:
    """A policy that writes the value of the expression into an annotation: messages have no `authorizer`."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    value = f"Object{{metadata: Object.metadata{{annotations: {{'answer': {expression}}}}}}}"
    spec = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [rule], "objectSelector": {"matchLabels": {"case": name}}},
        "variables": [{"name": "pods", "expression": _PODS}],
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": value}}],
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": f"access-{name}"}}
    return (
        {**head, "kind": "MutatingAdmissionPolicy", "spec": spec},
        {**head, "kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": f"access-{name}"}},
    )


def _object(name: str, namespace: str) -> Object:
    metadata = {"name": f"c-{name}", "namespace": namespace, "labels": {"case": name}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def _theirs(api: Api, name: str, namespace: str) -> str:
    def answered() -> str | None:
        try:
            made = api.create(_object(name, namespace), namespace, dry_run=True).body
        except ApiError:
            return _OTHER
        found: str | None = made["metadata"].get("annotations", {}).get("answer")
        return found if found is None else f"'{found}'"

    return eventually(f"the policy {name}", answered)


def _ours(api: Api, name: str, expression: str, namespace: str, user: Object) -> str:
    def ask(question: Question) -> AccessDecision:
        body = review(user, question)
        status = api.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", json=body).body["status"]
        return AccessDecision(status["allowed"], status.get("reason", ""), status.get("evaluationError", ""))

    subject = dataclasses.replace(of_object(_object(name, namespace)), user_info=user, ask=ask)
    engine = Cel()
    variables: Any = subject.activation({})
    budget = Budget(lambda: 0.0, POLICY_LIMITS)  # Here the look-ups are made while it evaluates.
    try:
        pods = engine.compile(_PODS, types_with({}))
        variables["variables"] = {"pods": pods.evaluate(variables, budget)}
        program = engine.compile(expression, types_with({"pods": pods.result}))
        return f"'{program.evaluate(variables, budget)}'"
    except CelError:
        return _OTHER


def test_permissions_are_those_of_the_api_server(api: Api, account: str, control_plane: ControlPlane) -> None:
    if control_plane.assets.version < (1, 36, 0):
        pytest.skip("MutatingAdmissionPolicy is v1 since Kubernetes 1.36")
    user = api.request(
        "POST",
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
        json={"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
    ).body["status"]["userInfo"]
    expressions = {name: text % {"ns": account} for name, text in EXPRESSIONS.items()}
    made = [(name, each) for name, text in expressions.items() for each in _policy(name, text)]
    try:
        for _, each in made:
            api.request("POST", f"{_GROUP}/{_plural(each)}", json=each)
        theirs = {name: _theirs(api, name, account) for name in expressions}
        ours = {name: _ours(api, name, text, account, user) for name, text in expressions.items()}
    finally:
        for _, each in made:
            api.answer("DELETE", f"{_GROUP}/{_plural(each)}/{each['metadata']['name']}")
    assert ours == theirs
    answers = ("admin", "account", "account-verb", "account-name", "account-other-name", "empty-path", "too-many")
    assert [theirs[name] for name in answers] == ["'true'", "'true'", "'false'", "'true'", "'false'", _OTHER, _OTHER]


def _plural(each: Object) -> str:
    return "mutatingadmissionpolicies" if each["kind"].endswith("Policy") else "mutatingadmissionpolicybindings"


# --- the webhook's own right to ask -------------------------------------------------------------------------------

CLAIMS: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SAYS: Final = "a policy reads authorizer, and the webhook may not create subjectaccessreviews"
POLICY: Final = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata: {name: who-may-claim}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [resource.k8s.io], apiVersions: [v1], operations: [CREATE], resources: [resourceclaims]}
  validations:
  - expression: authorizer.group('').resource('nodes').check('delete').allowed()
    message: only who may delete nodes claims devices
"""


def test_the_missing_right_to_ask_is_said_and_its_rule_mends_it(
    lent_control_plane: ControlPlane, tmp_path: Path
) -> None:
    api, kubectl = lent_control_plane.admin, lent_control_plane.kubectl().within("")
    (tmp_path / "policy.yaml").write_text(POLICY)
    with Installation(lent_control_plane, install_rbac(lent_control_plane)) as installation:
        replica = installation.replica(f"--policies={tmp_path}")
        installation.configure(replica)
        replica.wait_ready()
        installation.wait_configured()

        ready = eventually("the check", lambda: (found := replica.readiness()[1]) and SAYS in found and found)
        assert f"[+]policy permissions ok: {SAYS}: set validation.accessReviews: true" in ready
        assert '"policies cannot be evaluated"' in replica.log()
        assert SAYS in replica.log()
        said = eventually("the report", lambda: _status(lent_control_plane))
        assert "set validation.accessReviews: true in the chart's values" in said
        denied = eventually("the policy to be asked", lambda: _refusal(api))
        assert "NEU803: policy 'who-may-claim'" in denied
        assert "the permission 'delete' on 'nodes' is not known: the webhook may not create subjectaccessrev" in denied

        added = [each for each in render(RIGHT) if each["metadata"]["name"] == "neuron-dra-access-reviews"]
        assert [each["kind"] for each in added] == ["ClusterRole", "ClusterRoleBinding"]
        for each in added:
            kubectl.must("apply", "-f", "-", stdin=json.dumps(each))
        eventually("the policy to get an answer", lambda: not _refusal(api))
        eventually("the check", lambda: "policy permissions ok\n" in replica.readiness()[1])
        eventually("the report", lambda: not _status(lent_control_plane))


def test_every_account_may_read_the_schemas_of_kinds_and_nobody_without_an_account(control_plane: ControlPlane) -> None:
    document = ("get", "--raw", "/openapi/v3/apis/resource.k8s.io/v1")
    read = control_plane.kubectl(control_plane.user_kubeconfig("without-rights")).must(*document)
    assert "io.k8s.api.resource.v1.ResourceClaim" in json.loads(read.stdout)["components"]["schemas"]
    assert (
        "Unauthorized" in control_plane.kubectl(control_plane.token_kubeconfig("nobody", "none")).run(*document).stderr
    )


RIGHT: Final = {"policies": {"packs": ["privileged"]}, "validation": {"accessReviews": True}}


def _status(plane: ControlPlane) -> str:
    """What `neuron-dra status` says about the right; empty: nothing."""
    return next((each for each in status(plane.admin_kubeconfig).texts("note") if SAYS in each), "")


def _refusal(api: Api) -> str:
    """What the dry run of a claim is answered; empty: it is admitted."""
    request = {"name": "r", "exactly": {"deviceClassName": "neuron.aws.com", "count": 1}}
    spec = {"devices": {"requests": [request]}}
    body = {"metadata": {"name": "asks"}, "spec": spec}
    answer = api.answer("POST", CLAIMS, json=body, params={"dryRun": "All"})
    return "" if answer.is_success else answer.text
