"""Fields of custom kinds are known from their CustomResourceDefinition, and from the API server's documents."""

import copy
from typing import Any, Final

import pytest
import yaml

from kubecel_tests.evaluating import frozen_clock
from policies.files.api_types import ApiTypes
from policies.files.loader import load
from policies.patching.structured_merge import merged
from tests.policies.policy_files import policy, problems
from tests.support.custom_kinds import TEAM, TEAMS, TYPED

PODS: Final = '{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}'
RULE: Final = "{apiGroups: [example.com], apiVersions: [v1], operations: [CREATE], resources: [teams]}"


def policy_text(expression: str, *, rule: str = RULE) -> str:
    return policy(f"validations: [{{expression: {expression!r}}}]").replace(PODS, rule)


def document(definition: dict[str, Any]) -> dict[str, Any]:
    """What an API server publishes for a definition."""
    group, names = definition["spec"]["group"], definition["spec"]["names"]
    [version] = [each for each in definition["spec"]["versions"] if each["name"] == "v1"]
    gvk = {"group": group, "version": "v1", "kind": names["kind"]}
    schema = {**copy.deepcopy(version["schema"]["openAPIV3Schema"]), "x-kubernetes-group-version-kind": [gvk]}
    meta = {"type": "object", "properties": {"name": {"type": "string"}, "labels": {"type": "object"}}}
    schema["properties"] |= {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"allOf": [{"$ref": "#/components/schemas/io.k8s.ObjectMeta"}], "default": {}},
    }
    path = f"/apis/{group}/v1/namespaces/{{namespace}}/{names['plural']}"
    return {
        "paths": {
            path: {"post": {"x-kubernetes-group-version-kind": gvk}},
            f"{path}/{{name}}": {"patch": {}},
        },
        "components": {"schemas": {"com.example.v1.Team": schema, "io.k8s.ObjectMeta": meta}},
    }


class ServedDocument:
    """Serves one document, and notes what it is asked."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def __call__(self, api_version: str) -> object:
        self.asked.append(api_version)
        return self.answer


def notes(server: ServedDocument, *texts: str) -> tuple[str, ...]:
    files = {f"{at}.yaml": each.encode() for at, each in enumerate(texts)}
    return load(files, clock=frozen_clock, served=server).notes


@pytest.mark.parametrize(("expression", "warned"), TYPED)
def test_fields_by_the_definition_among_the_files(expression: str, warned: bool) -> None:
    found = notes(ServedDocument(None), policy_text(expression), yaml.safe_dump(TEAMS))
    assert bool(found) is warned, found


@pytest.mark.parametrize(("expression", "warned"), TYPED)
def test_fields_by_the_document_of_the_api_server(expression: str, warned: bool) -> None:
    server = ServedDocument(document(TEAMS))
    found = notes(server, policy_text(expression))
    assert bool(found) is warned, found
    assert server.asked == ["example.com/v1"]


def test_the_note_names_the_type_by_its_place() -> None:
    (note,) = notes(
        ServedDocument(None), policy_text("object.spec.members.all(m, m.rol != 'x')"), yaml.safe_dump(TEAMS)
    )
    assert note.endswith("'Team.spec.members' has no field 'rol'. Did you mean 'role'? (example.com/v1 Team)")


def test_each_version_has_its_fields() -> None:
    rule = RULE.replace("[v1]", "[v1alpha1]")
    found = notes(ServedDocument(None), policy_text("object.spec.size > 3", rule=rule), yaml.safe_dump(TEAMS))
    assert found == ()
    (note,) = notes(ServedDocument(None), policy_text("object.spec.size > 3"), yaml.safe_dump(TEAMS))
    assert "has no field 'size'" in note


def test_kubernetes_kinds_are_not_asked_for() -> None:
    server = ServedDocument(None)
    assert notes(server, policy_text("object.spec.containers.size() < 3", rule=PODS)) == ()
    assert server.asked == []


def test_a_definition_among_the_files_is_not_asked_for() -> None:
    server = ServedDocument(document(TEAMS))
    notes(server, policy_text("object.spec.replicas > 3"), yaml.safe_dump(TEAMS))
    assert server.asked == []


def test_each_version_is_asked_for_once_in_a_load() -> None:
    server = ServedDocument(None)
    policies = [policy_text("object.spec.x == 1").replace("limits", name) for name in ("one", "two")]
    assert notes(server, *policies) == ()
    assert server.asked == ["example.com/v1"]


def test_after_no_answer_no_other_version_is_asked_for_and_a_note_says_so() -> None:
    server = ServedDocument("no answer within 3 s")
    rule = RULE.replace("[v1]", "[v1, v2]")
    (note,) = notes(server, policy_text("object.spec.x == 1", rule=rule))
    assert note == (
        "fields of example.com/v1, example.com/v2 are not checked, because the API server does not tell them: no answer"
        " within 3 s"
    )
    assert server.asked == ["example.com/v1"]


@pytest.mark.parametrize(
    "odd", [3, [], {"paths": 3}, {"paths": {"/apis/example.com/v1/teams": {"post": 3}}, "components": []}]
)
def test_a_document_of_another_form_tells_nothing(odd: object) -> None:
    assert notes(ServedDocument(odd), policy_text("object.spec.x == 1")) == ()


@pytest.mark.parametrize("spec", ["{}", "3", "{group: example.com, names: 3, versions: [{served: true}, 3]}"])
def test_a_definition_of_another_form_tells_nothing(spec: str) -> None:
    crd = f"{{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, spec: {spec}}}"
    assert problems(policy_text("object.spec.x == 1"), crd) == []


def test_apply_configurations_are_merged_by_the_keys_of_the_definition() -> None:
    types = ApiTypes(definitions=[TEAMS])
    change = {"spec": {"members": [{"name": "b", "role": "lead"}]}}
    found = merged(types.shape("example.com/v1", "Team"), TEAM, change)
    assert found["spec"]["members"] == [{"name": "a", "role": "x"}, {"name": "b", "role": "lead"}]


def test_unknown_fields_that_a_kind_preserves_are_merged_by_their_form() -> None:
    types = ApiTypes(definitions=[TEAMS])
    live = {**TEAM, "spec": {"half": {"known": "x", "other": {"a": 1}}}}
    found = merged(types.shape("example.com/v1", "Team"), live, {"spec": {"half": {"other": {"b": 2}}}})
    assert found["spec"]["half"] == {"known": "x", "other": {"a": 1, "b": 2}}
