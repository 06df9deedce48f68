"""The same ValidatingAdmissionPolicies and pods, to the API server's own implementation and to ours."""

import contextlib
import copy
import datetime as dt
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import policies
from conversion.patches.decision import Decision, unchanged
from policies.files.folders import PolicyError
from policies.files.loader import load
from policies.judging.evaluate import evaluate
from policies.judging.export import NotExportableError, to_vap
from policies.judging.subjects import of_object
from tests.cluster.api import Api, ApiError, Object
from tests.cluster.processes import eventually
from tests.conformance.objects import EXPORTABLE
from webhook.reviews.policed import merged

_PATIENCE = 30.0
PACKS = Path(policies.__file__).parent / "packs"
_GROUP = "/apis/admissionregistration.k8s.io/v1"

CASES: dict[str, str] = {
    # name: spec beside matchConstraints
    "holds": "validations: [{expression: 'true'}]",
    "message": "validations: [{expression: 'size(object.spec.containers) > 3', message: four or more}]",
    "default-message": "validations: [{expression: ' size(object.spec.containers) > 3 '}]",
    "reason": "validations: [{expression: 'false', message: stop, reason: Forbidden}]",
    "reason-too-large": "validations: [{expression: 'false', message: stop, reason: RequestEntityTooLarge}]",
    "reason-invalid": "validations: [{expression: 'false', message: stop, reason: Invalid}]",
    "message-expression": (
        """validations: [{expression: 'false', message: plain, messageExpression: "'pod ' + object.metadata.name"}]"""
    ),
    "message-expression-fails": (
        "validations: [{expression: 'false', message: plain, messageExpression: string(object.metadata.labels.none)}]"
    ),
    "message-expression-blank": """validations: [{expression: 'false', message: plain, messageExpression: "'  '"}]""",
    "warns": "validations: [{expression: 'false', message: careful}]",
    "warns-twice": "validations: [{expression: 'false', message: one}, {expression: 'false', message: two}]",
    "audits": "validations: [{expression: 'false', message: noted}]",
    "condition-false": "matchConditions: [{name: a, expression: 'false'}]\nvalidations: [{expression: 'false'}]",
    "condition-false-beats-error": (
        "matchConditions: [{name: a, expression: object.metadata.labels.none == 'x'}, {name: b, expression: 'false'}]\n"
        "validations: [{expression: 'false'}]"
    ),
    "condition-error-ignored": (
        "failurePolicy: Ignore\nmatchConditions: [{name: a, expression: object.metadata.labels.none == 'x'}]\n"
        "validations: [{expression: 'false', message: stop}]"
    ),
    "error-ignored": "failurePolicy: Ignore\nvalidations: [{expression: object.metadata.labels.none == 'x'}]",
    "variables": (
        "variables: [{name: names, expression: 'object.spec.containers.map(c, c.name)'},\n"
        "  {name: joined, expression: \"variables.names.join('+')\"}]\n"
        "validations: [{expression: \"variables.joined == 'x'\", messageExpression: variables.joined}]"
    ),
    "lazy-variable": (
        "variables: [{name: bad, expression: object.metadata.labels.none}]\n"
        "validations: [{expression: \"true || variables.bad == 'x'\"}]"
    ),
    "or-value-of-no-optional": (
        "validations: [{expression: \"object.metadata.name.orValue('x') == 'x'\", message: its name}]"
    ),
    "absent-fields": (
        "validations: [{expression: 'has(request.subResource) || has(request.requestSubResource)', message: absent}]"
    ),
    "absent-field-fails": (
        "failurePolicy: Ignore\nvalidations: [{expression: \"request.subResource == 'x'\", message: absent}]"
    ),
    "request-kind": (
        "validations: [{expression: 'request.requestKind.kind == request.kind.kind && "
        'request.requestResource.resource == "services"\', message: pods}]'
    ),
    "named-format": (
        "validations: [{expression: \"format.dns1123Label().validate('a.b').value()[0] == ''\",\n"
        "  messageExpression: \"format.dns1123Label().validate('a.b').value()[0]\"}]"
    ),
    "variable-twice": (
        "variables: [{name: a, expression: \"'first'\"}, {name: a, expression: \"'second'\"}]\n"
        "validations: [{expression: \"variables.a == ''\", messageExpression: variables.a}]"
    ),
    "variable-fails": (
        "variables: [{name: bad, expression: object.metadata.labels.none}]\n"
        "validations: [{expression: \"variables.bad == 'x'\"}]"
    ),
    "quantity": (
        "validations: [{expression: \"quantity(object.spec.containers[0].resources.limits['memory'])"
        ".isLessThan(quantity('1Gi'))\", message: too large}]"
    ),
    "optional": (
        "validations: [{expression: \"object.metadata.?annotations['owner'].orValue('') != ''\", message: whose}]"
    ),
    "namespace": "validations: [{expression: namespaceObject.metadata.name != request.namespace, message: same}]",
    "message-expression-of-two-lines": (
        r"""validations: [{expression: 'false', message: plain, messageExpression: '"one\\ntwo"'}]"""
    ),
    "message-expression-too-long": (
        "validations: [{expression: 'false', message: plain, messageExpression: \"'0123456789'.replace('', "
        "'0123456789'.replace('', '0123456789'.replace('', '0123456789')))\"}]"
    ),
    "strings": (
        "validations: [{expression: 'false', messageExpression: \"'%s %d'.format([object.metadata.name.upperAscii(), "
        "size(object.spec.containers)]) + object.metadata.name.substring(1, 3) + ' a-b-c'.replace('-', '+', 1).trim()"
        " + 'x,y'.split(',').join('|') + string('train'.indexOf('i'))\"}]"
    ),
    "lists": (
        "validations: [{expression: 'false', messageExpression: \"string([3, 1, 2].sum()) + string([3, 1, 2].max()) + "
        "string([1, 2].isSorted()) + string(['a', 'b', 'a'].lastIndexOf('a')) + string([[1], [2]].map(x, x[0])[1])\"}]"
    ),
    "regexes": (
        "validations: [{expression: 'false', messageExpression: \"'a1b22'.find('[0-9]{2}') + "
        "'a1b22'.findAll('[0-9]+').join('/') + string('pause'.matches('^pa.*e$'))\"}]"
    ),
    "optional-types": (
        "validations: [{expression: 'false', messageExpression: \"object.metadata.?labels[?'none'].or("
        "optional.of('or')).value() + string(object.?spec.?containers.hasValue()) + "
        "object.spec.containers[?0].optMap(c, c.name).orValue('-') + string(optional.none().hasValue())\"}]"
    ),
    "condition-on-namespace": (
        "matchConditions: [{name: ns, expression: \"namespaceObject.metadata.labels['kubernetes.io/metadata.name'] == "
        "request.namespace\"}]\nvalidations: [{expression: 'false', message: in its namespace}]"
    ),
    "audit-annotation-of-null": (
        "auditAnnotations: [{key: k, valueExpression: \"null\"}]\nvalidations: [{expression: 'false', message: after}]"
    ),
    "reason-of-the-first": (
        "validations: [{expression: 'false', message: first, reason: Forbidden}, "
        "{expression: 'false', message: second}]"
    ),
    "types-do-not-fit": (
        "failurePolicy: Ignore\nvalidations: [{expression: object.metadata.name > 3, message: compared}]"
    ),
    "error-fails": "validations: [{expression: object.metadata.labels.none == 'x'}]",
}
ACTIONS = {"warns": "[Warn]", "warns-twice": "[Warn, Audit]", "audits": "[Audit]"}
"""Of the bindings; of the others [Deny]."""
WORDED_DIFFERENTLY = {"error-fails", "variable-fails"}
ONLY_OURS = "condition-on-namespace"
"""The API server evaluates match conditions without the Namespace (apiserver, webhook/matchconditions/matcher.go)."""


def policy_text(case: str) -> str:
    spec, actions = CASES[case], ACTIONS.get(case, "[Deny]")
    body = "".join(f"  {line}\n" for line in spec.splitlines())
    return f"""
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{name: {case}}}
spec:
  matchConstraints:
    objectSelector: {{matchLabels: {{case: {case}}}}}
    resourceRules:
    - {{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}}
{body}---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {{name: {case}}}
spec: {{policyName: {case}, validationActions: {actions}}}
"""


def case_pod(case: str, namespace: str) -> Object:
    container = {"name": "main", "image": "pause", "resources": {"limits": {"memory": "2Gi"}}}
    metadata = {"name": "train", "namespace": namespace, "labels": {"case": case}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


@pytest.fixture(scope="module")
def installed(api: Api) -> Iterator[None]:
    """Every policy with its binding."""
    paths = {
        "ValidatingAdmissionPolicy": f"{_GROUP}/validatingadmissionpolicies",
        "ValidatingAdmissionPolicyBinding": f"{_GROUP}/validatingadmissionpolicybindings",
    }
    for case in CASES:
        for document in yaml.safe_load_all(policy_text(case)):
            api.request("POST", paths[document["kind"]], json=document)
    yield
    for path in paths.values():
        for case in CASES:
            api.request("DELETE", f"{path}/{case}")


def theirs(api: Api, case: str, namespace: str) -> tuple[bool, int, list[str]]:
    """Whether the API server allows the pod, the code if not, and its messages."""
    try:
        answer = api.create(case_pod(case, namespace), namespace, dry_run=True)
    except ApiError as error:
        return False, error.code, [str(error).partition("denied request: ")[2]]
    return True, 0, [warning.partition(f"binding '{case}': ")[2] for warning in answer.warnings]


def ours(case: str, namespace: str) -> tuple[bool, int, list[str]]:
    """The same for the webhook's own evaluation."""
    rules = load({"policy.yaml": policy_text(case).encode()}).validating
    now = dt.datetime.now(dt.UTC)
    verdicts = evaluate(rules, of_object(case_pod(case, namespace)), now, time.monotonic)
    decision: Decision = merged(unchanged("valid"), verdicts, now)
    told = decision.errors[:1] or decision.warnings
    code = 0 if decision.allowed else decision.status_code
    return decision.allowed, code, [finding.message.removeprefix(f"policy '{case}': ") for finding in told]


def settled(read: Callable[[], Any], wanted: Any) -> Any:
    """What is read once it is as wanted, or after a while: policies take effect a moment after they were made."""
    deadline = time.monotonic() + _PATIENCE
    while (found := read()) != wanted and time.monotonic() < deadline:
        time.sleep(0.25)
    return found


def test_the_api_server_and_the_loader_refuse_the_reason_unauthorized(api: Api) -> None:
    text = policy_text("reason").replace("reason: Forbidden", "reason: Unauthorized")
    policy, _ = yaml.safe_load_all(text)
    with pytest.raises(ApiError, match='Unsupported value: "Unauthorized"'):
        api.request("POST", f"{_GROUP}/validatingadmissionpolicies", json=policy, params={"dryRun": "All"})
    with pytest.raises(PolicyError, match="this must be one of Forbidden, Invalid, RequestEntityTooLarge"):
        load({"policy.yaml": text.encode()})


def test_the_api_server_accepts_an_exported_policy(api: Api) -> None:
    (rule,) = load({"policy.yaml": EXPORTABLE.encode()}).validating
    policy, binding = to_vap(rule)
    for path, exported in (("validatingadmissionpolicies", policy), ("validatingadmissionpolicybindings", binding)):
        api.request("POST", f"{_GROUP}/{path}", json=exported, params={"dryRun": "All"})


def complete(object_: Object, pack: str, namespace: str) -> Object:
    """A pod of an embedded case, with what the API server asks of every pod."""
    made = copy.deepcopy(object_)
    found = made.setdefault("metadata", {}).get("namespace", namespace)
    made["metadata"] = {**made["metadata"], "name": "case", "namespace": found, "labels": {"pack": pack}}
    made["spec"]["containers"] = made["spec"].get("containers") or [{"name": "main"}]
    for each in (*made["spec"]["containers"], *made["spec"].get("initContainers", ())):
        each["image"] = "pause"
    return made


@pytest.mark.parametrize("pack", ["host-devices", "privileged"])
def test_an_exported_pack_answers_as_its_cases_say(api: Api, namespace: str, pack: str) -> None:
    (rule,) = load({"pack.yaml": (PACKS / f"{pack}.yaml").read_bytes()}).validating
    policy, binding = to_vap(rule)
    policy["spec"]["matchConstraints"]["objectSelector"] = {"matchLabels": {"pack": pack}}
    binding["spec"]["validationActions"] = ["Deny"]
    cases = [each for each in rule.tests if each.resource in (None, "pods") and (each.object or {})["kind"] == "Pod"]
    pods = {each.name: complete(each.object or {}, pack, namespace) for each in cases}
    spaces = {each["metadata"]["namespace"] for each in pods.values()} - {namespace}
    for name in spaces:
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def answers() -> dict[str, str]:
        found = {}
        for name, made in pods.items():
            try:
                api.create(made, made["metadata"]["namespace"], dry_run=True)
                found[name] = ""
            except ApiError as error:
                # What Kubernetes itself refuses does not reach the policy.
                if "is invalid: " not in str(error) or "ValidatingAdmissionPolicy" in str(error):
                    found[name] = str(error)
        return found

    try:
        api.request("POST", f"{_GROUP}/validatingadmissionpolicies", json=policy)
        api.request("POST", f"{_GROUP}/validatingadmissionpolicybindings", json=binding)
        eventually("the exported policy to be in force", lambda: any(answers().values()))
        found = answers()
    finally:
        for kind in ("policybindings", "policies"):
            with contextlib.suppress(ApiError):
                api.request("DELETE", f"{_GROUP}/validatingadmission{kind}/{pack}")
        for name in spaces:
            api.delete("Namespace", name)
    wanted = {each.name: each for each in cases if each.name in found}
    assert {name: bool(said) for name, said in found.items()} == {
        name: case.expect == "Audit" for name, case in wanted.items()
    }
    assert all(case.message in found[name] for name, case in wanted.items() if case.message)
    assert sum(map(bool, found.values())) >= 4


@pytest.mark.usefixtures("installed")
def test_only_this_webhook_has_namespace_object_in_match_conditions(api: Api, namespace: str) -> None:
    settled(lambda: theirs(api, ONLY_OURS, namespace)[0], wanted=False)
    allowed, _, said = theirs(api, ONLY_OURS, namespace)
    assert (allowed, "no such key: metadata" in said[0]) == (False, True)
    assert ours(ONLY_OURS, namespace) == (False, 422, ["in its namespace"])
    (rule,) = load({"policy.yaml": policy_text(ONLY_OURS).encode()}).validating
    with pytest.raises(NotExportableError, match="namespaceObject"):
        to_vap(rule)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("case", [case for case in CASES if case != ONLY_OURS])
def test_the_api_server_and_the_webhook_give_the_same_verdict(api: Api, namespace: str, case: str) -> None:
    # Until a policy that denies is in effect, an allowed pod proves nothing.
    settled(lambda: theirs(api, "error-fails", namespace)[0], wanted=False)
    expected = ours(case, namespace)
    if case in WORDED_DIFFERENTLY:
        found = settled(lambda: theirs(api, case, namespace)[:2], expected[:2])
        assert found == expected[:2]
        return
    assert settled(lambda: theirs(api, case, namespace), expected) == expected
