"""Policy files applied to manifests: the server's rules, without values that only a server knows."""

import datetime as dt
from typing import Any

import pytest

from commands.objects.file_policies import FilePolicies
from commands.objects.manifest_files import ManifestSource
from commands.objects.manifests import manifests_of
from kubecel_tests.evaluating import frozen_clock
from policies.files.loader import load
from tests.commands.rewrite.test_convert_files import deployment_of, named, text
from tests.policies.judging.test_mutations import mutating_text as policy_text
from tests.policies.policy_files import policy
from tests.support.converting import Conversion, convert_sources, source
from tests.support.explaining import explained
from tests.support.manifests import container, pod
from tests.support.mutating_policies import configuration, json_patch
from tests.support.trainium import trainium
from tests.support.validating_files import Validated, validate_sources

NOW = dt.datetime(2026, 6, 1, 12, tzinfo=dt.UTC)
FEW = """
validations:
- expression: neuron.devices <= 4
  messageExpression: "'the pod asks for ' + string(neuron.devices)"
"""
FOUR, SIXTEEN = pod(container(neuron="4")), pod(container(neuron="16"))
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab", "labels": {"team": "blue"}}}
CLASS_QUOTA = "neuron.aws.com.deviceclass.resource.k8s.io/devices"


def conversion(spec: str, name: str = "steers", order: int = 10) -> str:
    head = f"apiVersion: policy.neuron.aws.com/v1alpha1\nkind: ConversionPolicy\nmetadata: {{name: {name}}}\n"
    return f"{head}spec:\n  order: {order}\n" + "".join(f"  {line}\n" for line in spec.strip().splitlines())


def file_policies(*texts: str, now: dt.datetime = NOW) -> FilePolicies:
    return FilePolicies(load({f"{at}.yaml": each.encode() for at, each in enumerate(texts)}), now, frozen_clock)


def changing(fields: Any, group: str = "", resource: str = "pods") -> str:
    rule = {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]}
    return policy_text({**fields, "matchConstraints": {"resourceRules": [rule]}})


def sources(*objects: Any) -> list[ManifestSource]:
    return [source("m.yaml", text(*objects))]


def judged(policies: FilePolicies, *objects: Any, **options: Any) -> Validated:
    return validate_sources(sources(*objects), trainium(**options), policies)


def said(policies: FilePolicies, *objects: Any, **options: Any) -> list[str]:
    """Findings of policies, as `severity code path: message and fix`."""
    found = [each.finding for each in judged(policies, *objects, **options).located]
    ours = [each for each in found if each.code.startswith("NEU8")]
    return [f"{each.severity} {each.code} {each.path}: {each.message} {each.fix}".rstrip() for each in ours]


def convert_with(policies: FilePolicies, *objects: Any) -> Conversion:
    return convert_sources(sources(*objects), trainium(), policies)


def notice_lines(conversion_: Conversion) -> list[str]:
    return [f"{each.line} {each.path}: {each.text}" for each in conversion_.notices]


class TestValidate:
    @pytest.mark.parametrize(
        ("actions", "expected"),
        [
            ("[Deny]", "error NEU801"),
            ("[Warn]", "warning NEU802"),
            ("[Audit]", "note NEU805"),
            ("[Warn, Audit]", "warning NEU802"),
        ],
    )
    def test_an_action_is_a_severity(self, actions: str, expected: str) -> None:
        policies = file_policies(policy(f"validationActions: {actions}{FEW}"))
        assert said(policies, SIXTEEN) == [f"{expected} : policy 'limits': the pod asks for 16"]
        assert said(policies, FOUR) == []

    def test_notes_are_neither_errors_nor_warnings(self) -> None:
        report = judged(file_policies(policy(f"validationActions: [Audit]{FEW}")), SIXTEEN)
        tally = report.tally
        assert (tally.errors, tally.warnings, tally.notes) == (0, 0, 1)

    def test_pods_of_a_workload_are_judged_where_their_template_stands(self) -> None:
        report = judged(file_policies(policy(FEW)), named("first", FOUR), deployment_of(SIXTEEN))
        (found,) = report.located
        assert (found.subject, found.finding.path) == ("Deployment web", "spec.template")
        assert found.line == text(named("first", FOUR), deployment_of(SIXTEEN)).splitlines().index("  template:") + 1

    def test_a_workload_is_judged_itself_as_well(self) -> None:
        about = policy("validations: [{expression: 'object.spec.replicas > 1'}]\nfailurePolicy: Ignore", "replicas")
        about = about.replace('apiGroups: [""]', "apiGroups: [apps]").replace("[pods]", "[deployments]")
        one = deployment_of(FOUR)
        one["spec"]["replicas"] = 1
        message = "policy 'replicas': failed expression: object.spec.replicas > 1"
        assert said(file_policies(about), one) == [f"error NEU801 : {message}"]

    def test_policies_see_pods_as_conversion_leaves_them(self) -> None:
        spec = "validations: [{expression: '!neuron.converted && !has(object.spec.resourceClaims)', message: claims}]"
        assert said(file_policies(policy(spec)), FOUR) == ["error NEU801 : policy 'limits': claims"]
        off = conversion("mode: off")
        assert said(file_policies(policy(spec), off), FOUR) == []

    def test_generated_fields_have_placeholder_values(self) -> None:
        spec = """
        validations:
        - expression: "false"
          messageExpression: >-
            object.metadata.name + ' of ' + object.metadata.ownerReferences[0].kind + ' in ' +
            object.metadata.namespace + ' and ' + request.namespace +
            ', request.name ' + (has(request.name) ? request.name : 'empty')
        """
        expected = "policy 'limits': web-xxxxx of ReplicaSet in default and default, request.name empty"
        assert said(file_policies(policy(spec)), deployment_of(FOUR)) == [f"error NEU801 spec.template: {expected}"]

    @pytest.mark.parametrize(("with_namespace", "team"), [(True, "blue"), (False, "nobody")])
    def test_the_namespace_is_the_one_in_the_files(self, with_namespace: bool, team: str) -> None:
        spec = """
        validations:
        - {expression: "false", messageExpression: "namespaceObject.metadata.?labels[?'team'].orValue('nobody')"}
        """
        objects = [NAMESPACE] * with_namespace + [named("train", FOUR, "lab")]
        assert said(file_policies(policy(spec)), *objects) == [f"error NEU801 : policy 'limits': {team}"]

    def test_exceptions_hold_until_they_end(self) -> None:
        spec = f"""{FEW}
exceptions:
- name: spring
  owner: team-a
  reason: moves
  expires: 2026-06-10
  matchConditions: [{{name: all, expression: 'true'}}]
"""
        warned = "warning NEU804 : policy 'limits': exception 'spring' of team-a ends on 2026-06-10."
        assert said(file_policies(policy(spec)), SIXTEEN) == [warned]
        assert said(file_policies(policy(spec), now=NOW - dt.timedelta(days=90)), SIXTEEN) == []
        refused = "policy 'limits': the pod asks for 16. Exception 'spring' of team-a ended on 2026-06-10."
        later = file_policies(policy(spec), now=NOW + dt.timedelta(days=30))
        assert said(later, SIXTEEN) == [f"error NEU801 : {refused}"]

    def test_excluded_namespaces_are_not_judged(self) -> None:
        policies = file_policies(policy(FEW))
        assert said(policies, named("x", SIXTEEN, "lab"), excluded_namespaces=frozenset({"lab"})) == []

    def test_a_policy_that_cannot_be_evaluated_is_reported(self) -> None:
        policies = file_policies(policy("validations: [{expression: object.none.x}]"))
        (found,) = said(policies, FOUR)
        assert found.startswith("error NEU803 : policy 'limits': expression 'object.none.x' resulted in error:")

    def test_an_unreadable_pod_is_reported_once(self) -> None:
        broken = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": "none"}}
        report = judged(file_policies(policy(FEW)), broken)
        assert [each.finding.code for each in report.located] == ["NEU114"]

    def test_catalogues_count(self) -> None:
        catalogue = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: InstanceTypeCatalog
metadata: {name: new}
spec: {instanceTypes: [{name: trn9.48xlarge, devices: 14, coresPerDevice: 8, deviceGroups: [7]}]}
"""
        seven = pod(container(neuron="7"), annotations={"neuron.aws.com/instance-type": "trn9.48xlarge"})
        assert judged(file_policies(catalogue), seven).tally.errors == 0
        report = judged(file_policies(policy(FEW)), seven)
        assert [each.finding.code for each in report.located] == ["NEU218", "NEU801"]

    @pytest.mark.parametrize(
        ("hard", "expected"),
        [
            pytest.param(None, "unknown", id="no-quota-among-the-files"),
            pytest.param({"pods": "5"}, "none", id="of-something-else"),
            pytest.param({CLASS_QUOTA: "16"}, "16", id="of-devices"),
        ],
    )
    def test_quotas_in_the_files_are_used(self, hard: dict[str, str] | None, expected: str) -> None:
        spec = f"""
        validations:
        - expression: "false"
          messageExpression: >-
            !neuron.quotasKnown ? 'unknown' : neuron.quotas[?'{CLASS_QUOTA}'].optMap(n, string(n)).orValue('none')
        """
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "lab"}}
        objects = [{**quota, "spec": {"hard": hard}}] if hard else []
        assert said(file_policies(policy(spec)), *objects, named("t", FOUR, "lab")) == [
            f"error NEU801 : policy 'limits': {expected}"
        ]

    @pytest.mark.parametrize(
        ("quotas", "expected"),
        [
            pytest.param({"default": "16"}, "16", id="that-name-it"),
            pytest.param({"": "8"}, "8", id="that-name-none-either"),
            pytest.param({"default": "16", "": "8"}, "8", id="the-smaller-of-both"),
            pytest.param({"lab": "4"}, "unknown", id="of-another-namespace"),
        ],
    )
    def test_an_object_without_a_namespace_gets_the_quotas_of_its_target_namespace(
        self, quotas: dict[str, str], expected: str
    ) -> None:
        objects = [
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": f"q{at}", **({"namespace": namespace} if namespace else {})},
                "spec": {"hard": {CLASS_QUOTA: amount}},
            }
            for at, (namespace, amount) in enumerate(quotas.items())
        ]
        text = f"""
        validations:
        - expression: "false"
          messageExpression: >-
            !neuron.quotasKnown ? 'unknown' : neuron.quotas[?'{CLASS_QUOTA}'].optMap(n, string(n)).orValue('none')
        """
        lost = {**FOUR, "metadata": {"name": "lost"}}
        assert said(file_policies(policy(text)), *objects, lost) == [f"error NEU801 : policy 'limits': {expected}"]


class TestConvert:
    def test_a_policy_that_turns_conversion_off_is_reported(self) -> None:
        done = convert_with(
            file_policies(conversion("match: {namespaces: [lab]}\nmode: off")), deployment_of(FOUR, "w", "lab")
        )
        assert not done.changes[0][1].rewrites
        assert [line.partition(" ")[2] for line in notice_lines(done)] == [
            "spec.template: not converted: policy 'steers' turns it off."
        ]

    def test_mode_shadow_changes_nothing_and_reports_the_conversion(self) -> None:
        done = convert_with(file_policies(conversion("mode: shadow")), FOUR)
        assert not done.changes[0][1].rewrites
        assert "NEU208: shadow mode" in notice_lines(done)[0]

    def test_an_annotation_overrides_a_policy_that_is_not_locked(self) -> None:
        on = pod(container(neuron="4"), annotations={"neuron.aws.com/convert": "convert"})
        for locked, rewrites in ((False, True), (True, False)):
            policies = file_policies(conversion(f"mode: off\nlocked: {str(locked).lower()}"))
            assert convert_with(policies, on).changes[0][1].rewrites is rewrites

    def test_device_class_and_families_are_those_of_the_first_policy_that_matches(self) -> None:
        first = conversion("match: {namespaces: [other]}\ndeviceClass: not-mine", "a", 1)
        second = conversion("deviceClass: mine\nfamilies: [trn2]", "b", 2)
        (change,) = convert_with(file_policies(first, second), named("t", FOUR, "lab")).changes[0][1:]
        (template,) = change.templates
        assert template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == "mine"
        assert "trn1.32xlarge" not in str(change.wanted)

    def test_a_policy_that_fails_is_ignored_and_reported(self) -> None:
        failing = conversion("match: {conditions: [{name: c, expression: object.metadata.none == 'x'}]}\nmode: off")
        done = convert_with(file_policies(failing), FOUR)
        assert done.changes[0][1].rewrites
        assert notice_lines(done)[0].startswith(
            "1 : NEU803: policy steers: match condition 'c' failed: no such key: 'none'"
        )
        assert done.refused == 0

    def test_a_pod_has_no_generated_name_yet_as_on_the_server(self) -> None:
        named_only = conversion("match: {conditions: [{name: c, expression: has(object.metadata.name)}]}\nmode: off")
        assert convert_with(file_policies(named_only), deployment_of(FOUR)).changes[0][1].rewrites
        assert not convert_with(file_policies(named_only), named("t", FOUR)).changes[0][1].rewrites

    def test_no_policy_is_evaluated_for_pods_without_neuron(self) -> None:
        failing = conversion("match: {conditions: [{name: c, expression: object.metadata.none == 'x'}]}\nmode: off")
        assert notice_lines(convert_with(file_policies(failing), pod(container()))) == []


class TestChanges:
    """Mutating policies: the same pods as the server makes."""

    LABELLED = changing(configuration("Object{metadata: Object.metadata{labels: {'team': 'blue'}}}"))
    FOUR_DEVICES = changing(
        configuration(
            "Object{spec: Object.spec{containers: object.spec.containers.map(c, Object.spec.containers{name: c.name,"
            " resources: Object.spec.containers.resources{limits: {'aws.amazon.com/neuron': '4'}}})}}"
        )
    )
    SEES_CLAIMS = changing(
        json_patch(
            "(has(object.metadata.annotations) ? [] : [JSONPatch{op: 'add', path: '/metadata/annotations', value: {}}])"
            " + [JSONPatch{op: 'add', path: '/metadata/annotations/claims',"
            " value: string(object.spec.?resourceClaims.orValue([]).size())}]",
            reinvocationPolicy="IfNeeded",
        )
    )
    FAILING = changing(json_patch("[JSONPatch{op: 'remove', path: '/spec/nothing'}]"))
    OF_DEPLOYMENTS = changing(configuration("Object{spec: Object.spec{replicas: 7}}"), "apps", "deployments")
    OF_TEMPLATES = changing(
        configuration("Object{metadata: Object.metadata{labels: {'a': 'b'}}}"),
        "resource.k8s.io",
        "resourceclaimtemplates",
    )

    @pytest.mark.parametrize(
        "made", [named("train", FOUR, "lab"), deployment_of(FOUR, "train", "lab")], ids=["pod", "workload"]
    )
    def test_a_converted_pod_has_what_policies_add(self, made: Any) -> None:
        change = convert_with(file_policies(self.LABELLED), made).changes[0][1]
        pods = [template for each in manifests_of(change.wanted) for _, template in each.pod_templates()]
        assert [each["metadata"]["labels"]["team"] for each in pods] == ["blue"]
        assert all("ownerReferences" not in each["metadata"] for each in pods), "what only the created pod has"
        assert all(each["spec"]["resourceClaims"] for each in pods)

    def test_what_policies_add_is_converted(self) -> None:
        plain = named("plain", pod({"name": "main", "image": "x"}), "lab")
        change = convert_with(file_policies(self.FOUR_DEVICES), plain).changes[0][1]
        assert [each["kind"] for each in change.templates] == ["ResourceClaimTemplate"]

    def test_a_policy_that_asks_runs_after_conversion(self) -> None:
        change = convert_with(file_policies(self.SEES_CLAIMS), named("train", FOUR, "lab")).changes[0][1]
        assert change.wanted["metadata"]["annotations"]["claims"] == "1"

    def test_the_object_of_a_workload_is_changed(self) -> None:
        change = convert_with(file_policies(self.OF_DEPLOYMENTS), deployment_of(FOUR, "train", "lab")).changes[0][1]
        assert change.wanted["spec"]["replicas"] == 7
        assert change.wanted["spec"]["template"]["spec"]["resourceClaims"]

    def test_claim_templates_are_changed_and_completed(self) -> None:
        device = {"name": "n", "exactly": {"deviceClassName": "neuron.aws.com", "count": 4}}
        template = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "four"},
            "spec": {"spec": {"devices": {"requests": [device]}}},
        }
        (change,) = [each for _, each in convert_with(file_policies(self.OF_TEMPLATES), template).changes]
        assert change.wanted["metadata"]["labels"]["a"] == "b"
        assert (
            change.wanted["spec"] == convert_with(file_policies(self.LABELLED), template).changes[0][1].wanted["spec"]
        )

    def test_items_of_a_list_and_objects_without_pods_are_changed(self) -> None:
        found = file_policies(changing(configuration("Object{data: {'x': 'y'}}"), "", "configmaps"))
        item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "b"}}
        (change,) = [
            each for _, each in convert_with(found, {"apiVersion": "v1", "kind": "List", "items": [item]}).changes
        ]
        assert change.wanted["items"][0]["data"] == {"a": "b", "x": "y"}

    def test_an_object_that_a_cluster_has_stored_is_not_changed(self) -> None:
        stored = deployment_of(FOUR, "train", "lab")
        stored["metadata"]["uid"] = "1"
        change = convert_with(file_policies(self.OF_DEPLOYMENTS), stored).changes[0][1]
        assert "replicas" not in change.wanted["spec"]

    @pytest.mark.parametrize("form", [FOUR, deployment_of(FOUR)], ids=["pod", "workload"])
    def test_a_policy_that_fails_refuses(self, form: Any) -> None:
        (finding,) = said(file_policies(self.FAILING), form)
        assert finding.startswith("error NEU806 ")
        assert (
            "policy 'change' cannot change the object: mutations[0] (JSONPatch) failed: at '/spec/nothing'" in finding
        )
        assert convert_with(file_policies(self.FAILING), form).refused

    def test_validating_policies_see_the_changed_pod(self) -> None:
        labelled = policy(
            "validations: [{expression: \"!('team' in object.metadata.?labels.orValue({}))\", message: labelled}]"
        )
        assert said(file_policies(labelled), FOUR) == []
        (found,) = said(file_policies(labelled, self.LABELLED), FOUR)
        assert found == "error NEU801 : policy 'limits': labelled"

    def test_nothing_is_changed_in_an_excluded_namespace(self) -> None:
        assert said(file_policies(self.FAILING), named("x", FOUR, "kube-system")) == []

    def test_explain_names_the_policies_in_the_order_in_which_they_run(self) -> None:
        found = file_policies(self.SEES_CLAIMS)
        (explanation,) = explained(named("train", FOUR, "team-a"), policies=found)
        hits = [(each.policy, each.effect) for each in explanation.preview.hits]
        assert hits == [("change", "changes it, before conversion"), ("change", "changes it, after conversion")]
        assert explanation.preview.claims
