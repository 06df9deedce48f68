"""`neuron-dra policy` as a command."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml

import policies
from kubecel.budget import Clock
from policies.files.cases import AnyRule, CaseResult, run_cases
from policies.files.folders import PolicyError
from policies.files.loader import load
from tests.support.invoking import invoke

POLICY = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata: {name: few-devices}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  validations:
  - expression: neuron.devices <= 4
    message: at most four devices
  tests:
  - name: none
    object: {apiVersion: v1, kind: Pod}
    expect: Allow
"""
FAILING = """  - name: wrong
    object: {apiVersion: v1, kind: Pod}
    expect: Deny
"""
CATALOG = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: InstanceTypeCatalog
metadata: {name: new}
spec: {instanceTypes: [{name: trn9.big, devices: 2}]}
"""


def run_policy(*arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    result = invoke("policy", *arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies/p.yaml").write_text(POLICY)
    return tmp_path / "policies"


def test_check_counts_the_policies(folder: Path) -> None:
    code, out, _ = run_policy("check", folder)
    assert (code, out) == (0, "1 file: policies: 1 for validation. No problems.\n")


def test_check_notes_requests_that_are_not_sent_and_succeeds(folder: Path) -> None:
    (folder / "p.yaml").write_text(POLICY.replace("resources: [pods]", "resources: [secrets]"))
    code, out, notes = run_policy("check", folder)
    assert (code, out) == (0, "1 file: policies: 1 for validation. No problems.\n")
    assert notes.startswith("note: policy 'few-devices' matches secrets, which the shipped")


def test_check_of_catalogues_alone(folder: Path) -> None:
    (folder / "p.yaml").write_text(CATALOG)
    assert run_policy("check", folder) == (0, "1 file: policies: none (catalogues do not count). No problems.\n", "")
    (folder / "p.yaml").write_text("")
    assert run_policy("check", folder) == (0, "1 file: policies: none (catalogues do not count). No problems.\n", "")


def test_check_names_every_problem_with_its_place(folder: Path) -> None:
    (folder / "p.yaml").write_text(POLICY.replace("neuron.devices", "neuron.device") + "  severty: low\n")
    (folder / "q.yaml").write_text(POLICY.replace("neuron.devices", "neuron.device").replace("few", "q"))
    code, out, err = run_policy("check", folder)
    assert (code, out) == (1, "")
    assert f"{folder}/p.yaml:16: spec.severty: unknown field. Did you mean 'severity'?\n" in err
    assert f"{folder}/q.yaml:10: spec.validations[0].expression" in err
    assert err.endswith("2 problems in 2 files.\n")


def test_check_runs_no_case(folder: Path) -> None:
    (folder / "p.yaml").write_text(POLICY + FAILING)
    assert run_policy("check", folder)[0] == 0


@pytest.mark.parametrize("command", ["check", "test"])
def test_a_folder_that_cannot_be_read_is_an_error(command: str, tmp_path: Path) -> None:
    missing = tmp_path / "none"
    message = f"{missing}: this is not a directory. Give the folder of the policy files.\n"
    assert run_policy(command, missing) == (2, "", message)


@pytest.mark.parametrize("command", ["check", "test"])
def test_a_folder_without_policies_is_an_error(command: str, tmp_path: Path) -> None:
    message = f"{tmp_path}: no policy file (*.yaml, *.yml, *.json) is in it.\n"
    assert run_policy(command, tmp_path) == (2, "", message)


def test_test_lists_passed_cases(folder: Path) -> None:
    assert run_policy("test", folder) == (0, "pass  few-devices  none\n1 case, 0 failed.\n", "")


def test_test_lists_failed_cases_with_their_place(folder: Path) -> None:
    (folder / "p.yaml").write_text(POLICY + FAILING)
    code, out, _ = run_policy("test", folder)
    assert code == 1
    assert out == (
        "pass  few-devices  none\nFAIL  few-devices  wrong\n\n"
        f"{folder}/p.yaml:18: test 'wrong' of few-devices: expected Deny, came Allow.\n2 cases, 1 failed.\n"
    )


def test_test_lists_policies_without_a_case(folder: Path) -> None:
    (folder / "p.yaml").write_text(POLICY.partition("  tests:")[0])
    assert run_policy("test", folder) == (0, "0 cases, 0 failed.\n", "Policies without a case: few-devices.\n")


def test_test_warns_of_cases_for_which_the_webhook_has_no_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policies.files.cases.run_cases", slowly)
    (folder / "q.yaml").write_text(POLICY.replace("few-devices", "others"))
    assert run_policy("test", folder)[2] == "", "4.8 s are below the limit"
    (folder / "q.yaml").write_text(POLICY.replace("few-devices", "others") + FAILING.replace("Deny", "Allow"))
    assert run_policy("test", folder) == (
        0,
        "pass  few-devices  none\npass  others       none\npass  others       wrong\n3 cases, 0 failed.\n",
        "warning: all cases together took 7.2 s, of which others took 4.8 s. The webhook refuses files whose cases are "
        "not finished after 5 s: write fewer cases, or smaller objects in them.\n",
    )


EXCEPTED = """
  exceptions:
  - name: migration
    owner: team-ml
    reason: moves in spring
    expires: 2001-03-31
    matchConditions: [{name: all, expression: "true"}]
  tests:
  - name: many
    object: {apiVersion: v1, kind: Pod, metadata: {name: p, namespace: ml}, spec: {containers: []}}
    expect: Except
"""


@pytest.fixture
def excepted(folder: Path) -> Path:
    """A policy that denies everything, with an expired exception and a case for it."""
    text = POLICY.partition("  tests:")[0].replace("neuron.devices <= 4", "1 == 2")
    (folder / "p.yaml").write_text(text + EXCEPTED.lstrip("\n"))
    return folder


def test_test_tells_which_exception_has_expired(excepted: Path) -> None:
    code, out, _ = run_policy("test", excepted)
    assert code == 1
    assert (
        "expected Except, came Deny. at most four devices; exception 'migration' expired at 2001-03-31T23:59:59+00:00:"
        " renew it, remove it, or set at: in the test"
    ) in out


def test_a_case_can_be_a_request_before_the_end_of_an_exception(excepted: Path) -> None:
    text = (excepted / "p.yaml").read_text()
    (excepted / "p.yaml").write_text(text.replace("    expect:", "    at: 2001-03-31\n    expect:"))
    assert run_policy("test", excepted) == (0, "pass  few-devices  many\n1 case, 0 failed.\n", "")


@pytest.mark.parametrize("expected", ["Except", "Deny"])
def test_a_server_loads_a_file_whose_exception_has_expired(excepted: Path, expected: str) -> None:
    text = (excepted / "p.yaml").read_text()
    load({"p.yaml": text.replace("expect: Except", f"expect: {expected}").encode()})


def test_a_case_after_the_end_of_an_exception_passes(excepted: Path) -> None:
    text = (excepted / "p.yaml").read_text()
    (excepted / "p.yaml").write_text(text.replace("expect: Except", "expect: Deny"))
    assert run_policy("test", excepted)[0] == 0


def test_a_server_refuses_a_case_whose_exception_has_not_expired(excepted: Path) -> None:
    text = (excepted / "p.yaml").read_text().replace("expires: 2001", "expires: 2999")
    assert "2999" in text
    with pytest.raises(PolicyError, match="expected Deny, came Except"):
        load({"p.yaml": text.replace("expect: Except", "expect: Deny").encode()})


def slowly(rule: AnyRule, clock: Clock, **details: Any) -> Iterator[CaseResult]:
    """The results of the cases, as on a machine on which each takes 2.4 s."""
    return (dataclasses.replace(each, seconds=2.4) for each in run_cases(rule, clock, **details))


def test_policies_that_do_not_compile_are_not_tested(folder: Path) -> None:
    (folder / "p.yaml").write_text(POLICY + "  severty: low\n")
    assert run_policy("test", folder)[0] == 2


def test_junit_has_a_suite_per_policy(folder: Path, tmp_path: Path) -> None:
    (folder / "p.yaml").write_text(POLICY + FAILING)
    report = tmp_path / "report.xml"
    assert run_policy("test", folder, "--junit", report)[0] == 1
    (suite,) = ET.parse(report).getroot()  # noqa: S314 - our own file
    assert {name: suite.get(name) for name in ("name", "tests", "failures")} == {
        "name": "few-devices",
        "tests": "2",
        "failures": "1",
    }
    passed, failed = suite
    assert (passed.get("name"), len(passed)) == ("none", 0)
    assert failed[0].get("message") == "test 'wrong' of few-devices: expected Deny, came Allow."


def test_a_report_that_cannot_be_written_is_an_error(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "none/report.xml"
    code, _, err = run_policy("test", folder, "--junit", target)
    assert (code, err) == (2, f"{target}: cannot be written: No such file or directory.\n")


# --- explain --------------------------------------------------------------------------------------------------

OBJECTS = """
apiVersion: v1
kind: Pod
metadata: {name: big}
spec: {containers: [{name: a, resources: {limits: {aws.amazon.com/neuron: 16}}}]}
---
apiVersion: v1
kind: Service
metadata: {name: s, namespace: other}
"""


def explain(folder: Path, content: str, *arguments: str) -> tuple[int, str, str]:
    path = folder.parent / "objects.yaml"
    path.write_text(content)
    return run_policy("explain", "--policies", folder, "-f", path, *arguments)


def test_explain_prints_the_verdict_of_each_policy_on_each_object(folder: Path) -> None:
    assert explain(folder, OBJECTS, "-n", "team") == (
        1,
        "Pod big in team:\n  few-devices: denies it\n      at most four devices\n"
        "Service s in other:\n  few-devices: is not about CREATE of services\n",
        "",
    )


def test_explain_exits_with_0_if_no_policy_denies(folder: Path) -> None:
    assert explain(folder, OBJECTS.replace("16", "4"))[0] == 0
    assert explain(folder, OBJECTS, "--operation", "DELETE")[0] == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [("a: [", "objects.yaml:1:"), ("- a", ":1:1: the document is a list, not a mapping with apiVersion and kind.")],
    ids=["no-yaml", "no-object"],
)
def test_explain_reports_files_that_cannot_be_read(folder: Path, content: str, message: str) -> None:
    code, _, err = explain(folder, content)
    assert code == 2
    assert message in err


def test_explain_looks_into_lists_and_at_the_pods_of_workloads(folder: Path) -> None:
    workload = """
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Namespace
  metadata: {name: lab, labels: {most: "16"}}
- apiVersion: apps/v1
  kind: Deployment
  metadata: {name: serve, namespace: lab}
  spec:
    template:
      spec: {containers: [{name: a, resources: {limits: {aws.amazon.com/neuron: 16}}}]}
"""
    labelled = POLICY.replace("neuron.devices <= 4", "neuron.devices <= int(namespaceObject.metadata.labels.most)")
    (folder / "p.yaml").write_text(labelled.partition("  tests:")[0])
    about = "few-devices: is not about CREATE of"
    expected = f"Namespace lab in the cluster:\n  {about} namespaces\nDeployment serve in lab:\n  {about} deployments\n"
    made = "Pods of spec.template in Deployment serve in lab:\n  few-devices: "
    assert explain(folder, workload) == (0, f"{expected}{made}allows it\n", "")
    code, out, _ = explain(folder, workload.replace('"16"', '"8"'))
    assert (code, out) == (1, f"{expected}{made}denies it\n      at most four devices\n")
    assert "Pods of" not in explain(folder, workload, "--operation", "DELETE")[1]


# --- export ---------------------------------------------------------------------------------------------------


def test_export_prints_exportable_policies_and_lists_the_others(folder: Path) -> None:
    plain = POLICY.replace("few-devices", "plain").replace("neuron.devices <= 4", "1 < 2")
    (folder / "plain.yaml").write_text(plain.replace("  tests:", "  validationActions: [Warn]\n  tests:"))
    code, out, err = run_policy("export", folder, "--to", "vap")
    assert (code, err) == (
        1,
        "few-devices: not exported: it reads neuron.devices, which the API server does not have.\n",
    )
    policy, binding = yaml.safe_load_all(out)
    assert (policy["kind"], policy["metadata"]) == ("ValidatingAdmissionPolicy", {"name": "plain"})
    assert set(policy["spec"]) == {"matchConstraints", "validations"}
    assert binding["spec"] == {"policyName": "plain", "validationActions": ["Warn"]}


def test_a_match_condition_on_the_namespace_is_not_exported(folder: Path) -> None:
    condition = "  matchConditions: [{name: ns, expression: namespaceObject.metadata.name == 'a'}]\n  validations:"
    text = POLICY.replace("neuron.devices <= 4", "1 < 2").replace("  validations:", condition)
    (folder / "p.yaml").write_text(text)
    reason = "match condition 'ns' reads namespaceObject, which the API server leaves empty there"
    assert run_policy("export", folder, "--to", "vap") == (1, "", f"few-devices: not exported: {reason}.\n")


def test_exported_policies_can_be_read_again(folder: Path) -> None:
    (folder / "p.yaml").write_text(POLICY.replace("neuron.devices <= 4", "1 < 2"))
    code, out, _ = run_policy("export", folder, "--to", "vap")
    (folder / "p.yaml").write_text(out)
    assert (code, run_policy("check", folder)[0]) == (0, 0)
    assert run_policy("export", folder, "--to", "vap") == (0, out, "")


def test_a_policy_with_exceptions_is_not_exported(folder: Path) -> None:
    exception = "{name: a, owner: b, reason: c, expires: 2026-12-31, matchConditions: [{name: d, expression: 'true'}]}"
    text = POLICY.replace("neuron.devices <= 4", "1 < 2").replace("  tests:", f"  exceptions: [{exception}]\n  tests:")
    (folder / "p.yaml").write_text(text)
    message = "few-devices: not exported: it has exceptions, which the API server does not support.\n"
    assert run_policy("export", folder, "--to", "vap") == (1, "", message)


# --- scheduling hints -----------------------------------------------------------------------------------------

HINTS = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: SchedulingHintPolicy
metadata: {name: lease}
spec:
  order: 10
  tolerations: {action: Add, items: [{key: lease, operator: Exists}]}
  tests:
  - name: any pod
    object: {apiVersion: v1, kind: Pod, spec: {tolerations: [{key: aws.amazon.com/neuron, operator: Exists}]}}
    expect: Match
    gets: {tolerations: [{key: lease, operator: Exists}]}
"""


def test_a_policy_on_scheduling_hints_is_counted_tested_and_not_exported(folder: Path) -> None:
    for path in folder.glob("*"):
        path.unlink()
    (folder / "hints.yaml").write_text(HINTS)
    assert run_policy("check", folder) == (0, "1 file: policies: 1 for scheduling hints. No problems.\n", "")
    assert run_policy("test", folder) == (0, "pass  lease  any pod\n1 case, 0 failed.\n", "")
    assert run_policy("export", folder, "--to", "vap") == (
        1,
        "",
        "lease: not exported: only the webhook follows it.\n",
    )
    (folder / "hints.yaml").write_text(
        HINTS.replace("gets: {tolerations: [{key: lease,", "gets: {tolerations: [{key: a,")
    )
    code, out, _ = run_policy("test", folder)
    assert code == 1
    assert 'hints.yaml:11: test \'any pod\' of lease: expected tolerations [{"key": "a", "operator": "Exists"}]' in out


MAP = ("export", "--to", "map", "--instance-type")


def test_export_to_map_prints_templates_of_each_namespace_and_bound_policies() -> None:
    code, out, err = run_policy(*MAP, "trn2.48xlarge", "-n", "team-a", "-n", "team-b")
    assert (code, err) == (0, "")
    objects = list(yaml.safe_load_all(out))
    templates = [each["metadata"] for each in objects if each["kind"] == "ResourceClaimTemplate"]
    names = [each["metadata"]["name"] for each in objects if each["kind"] == "MutatingAdmissionPolicy"]
    assert [name.split("-")[1] for name in names] == ["1", "4", "8", "16"]
    wanted = [(space, name) for space in ("team-a", "team-b") for name in names]
    assert [(each["namespace"], each["name"]) for each in templates] == wanted
    bindings = [each["spec"] for each in objects if each["kind"] == "MutatingAdmissionPolicyBinding"]
    assert [each["policyName"] for each in bindings] == names
    (selected,) = {str(each["matchResources"]["namespaceSelector"]) for each in bindings}
    assert "['team-a', 'team-b']" in selected


def test_export_to_map_leaves_out_claims_that_depend_on_the_driver() -> None:
    code, out, err = run_policy(*MAP, "inf2.48xlarge", "--instance-type", "trn1.32xlarge", "-n", "team-a")
    assert code == 1
    assert err == (
        "pods with 4 devices that select no node: not exported: the claim depends on what the driver publishes, "
        "which a policy cannot read.\n"
        "pods with 8 devices that select no node: not exported: the claim depends on what the driver publishes, "
        "which a policy cannot read.\n"
    )
    written = [each for each in yaml.safe_load_all(out) if each["kind"] == "MutatingAdmissionPolicy"]
    (connected,) = [each for each in written if each["metadata"]["name"].startswith("neuron-4-")]
    (selector,) = [each for each in connected["spec"]["matchConditions"] if each["name"] == "node-selector"]
    assert selector["expression"].endswith("in ['trn1.32xlarge'])")


def test_export_to_map_uses_catalogues_and_names_writtenthat_it_leaves_out(folder: Path) -> None:
    (folder / "p.yaml").write_text(CATALOG)
    (folder / "hints.yaml").write_text(HINTS)
    code, out, err = run_policy("export", folder, "--to", "map", "--instance-type", "trn9.big", "-n", "team-a")
    assert (code, err) == (1, "lease: not exported: only the webhook follows it.\n")
    names = [each["metadata"]["name"] for each in yaml.safe_load_all(out)]
    assert {name.split("-")[1] for name in names} == {"1", "2"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["map"], "--to map needs --instance-type and --namespace, each at least once.", id="nothing"),
        pytest.param(
            ["map", "--instance-type", "trn2.48xlrge", "-n", "a"],
            "--instance-type: 'trn2.48xlrge' is not in the catalogue of instance types. Did you mean 'trn2.48xlarge'?",
            id="unknown-type",
        ),
        pytest.param(["map", "--instance-type", "trn2.48xlarge", "-n", "A_b"], "'A_b' is not a valid", id="namespace"),
        pytest.param(["vap"], "--to vap needs DIR or FILE.", id="vap-without-a-folder"),
        pytest.param(
            ["vap", "-n", "a", "."], "--instance-type and --namespace belong to --to map.", id="vap-with-a-namespace"
        ),
    ],
)
def test_export_refuses_options_that_do_not_fit(arguments: list[str], message: str) -> None:
    code, out, err = run_policy("export", "--to", *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_a_file_is_accepted_instead_of_a_folder(folder: Path) -> None:
    (folder / "other.yaml").write_text("this is no policy")
    code, out, _ = run_policy("check", folder / "p.yaml")
    assert (code, out) == (0, "1 file: policies: 1 for validation. No problems.\n")
    assert run_policy("check", folder / "nothing.yaml")[0] == 2


def test_rules_prints_the_rules_that_the_shipped_configuration_lacks(folder: Path) -> None:
    assert run_policy("rules", folder) == (0, "[]\n", "")
    (folder / "p.yaml").write_text(POLICY.replace("resources: [pods]", "resources: [pods, secrets]"))
    code, out, _ = run_policy("rules", folder)
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"], "scope": "*"}
    assert (code, yaml.safe_load(out)) == (0, [rule])


def test_check_lists_the_resources_that_follow_writtenleaves_out(folder: Path) -> None:
    (folder / "p.yaml").write_text(POLICY.replace("resources: [pods]", "resources: [services, secrets]"))
    code, _, notes = run_policy("check", folder)
    assert code == 0
    said = (
        "note: with validation.followPolicies: policy 'few-devices' matches CREATE of secrets: no rule is made for that"
    )
    assert said in notes
    (folder / "p.yaml").write_text(POLICY.replace("resources: [pods]", "resources: [services]"))
    assert "followPolicies: policy" not in run_policy("check", folder)[2]


def test_rules_as_values_have_the_conditions_for_pods_without_claims() -> None:
    packs = Path(policies.__file__).parent / "packs"
    code, out, notes = run_policy("rules", packs / "privileged.yaml", "-o", "values")
    values = yaml.safe_load(out)["validation"]
    assert (code, notes) == (0, "")
    assert [each["resources"] for each in values["extraRules"]] == [["pods/ephemeralcontainers"]]
    [condition] = values["podConditions"]
    assert condition.startswith("object.spec.?hostPID.orValue(false) || ")
    _, _, notes = run_policy("rules", packs / "privileged.yaml")
    assert notes == "note: policies that need pods without claims, which are not sent: 'privileged'. Use -o values.\n"


def test_check_reports_that_pods_without_claims_are_not_denied(folder: Path) -> None:
    packs = Path(policies.__file__).parent / "packs"
    text = (packs / "host-devices.yaml").read_text()
    for action, told in (("Audit", "does not send. `neuron"), ("Deny", "does not send: such pods are not denied. ")):
        (folder / "p.yaml").write_text(text.replace("validationActions: [Audit]", f"validationActions: [{action}]"))
        code, _, notes = run_policy("check", folder)
        assert code == 0
        assert f"matches pods without claims, which the shipped ValidatingWebhookConfiguration {told}" in notes


def test_check_reports_that_older_files_are_read_as_v1(folder: Path) -> None:
    older = POLICY.replace("policy.neuron.aws.com/v1alpha1", "admissionregistration.k8s.io/v1beta1")
    older = older.replace("kind: ValidatingPolicy", "kind: ValidatingAdmissionPolicy").partition("  tests:")[0]
    older = older.replace("neuron.devices", "object.spec.containers.size()")
    (folder / "p.yaml").write_text(older.replace("  validationActions: [Deny]\n", ""))
    code, _, notes = run_policy("check", folder)
    assert code == 0, notes
    assert f"note: {folder}/p.yaml: read as admissionregistration.k8s.io/v1" in notes


CHANGING = """
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: label}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods, Secrets]}
  reinvocationPolicy: Never
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration: {expression: "Object{metadata: Object.metadata{labels: {'team': 'a'}}}"}
---
apiVersion: policy.neuron.aws.com/v1alpha1
kind: MutatingPolicyTest
metadata: {name: label}
spec:
  policyName: label
  tests:
  - name: a pod
    object: {apiVersion: v1, kind: Pod, metadata: {name: a}}
    expect: Change
"""


@pytest.fixture
def changing(tmp_path: Path) -> Path:
    path = tmp_path / "changing.yaml"
    path.write_text(CHANGING)
    return path


def test_check_of_policies_that_change_objects(changing: Path) -> None:
    code, out, told = run_policy("check", changing)
    assert (code, out) == (0, "1 file: policies: 1 for changes. No problems.\n")
    assert told.count("policy 'label' never matches there: no resource is called 'Secrets'") == 1
    assert "and 'label' can change no others there: add the pods to the chart's mutation.extraRules" in told


def test_test_prints_the_object_before_and_after(changing: Path) -> None:
    code, out, _ = run_policy("test", changing)
    assert code == 0
    assert (
        out
        == """pass  label  a pod
      --- before
      +++ after
      @@ -4 +4,3 @@
         name: a
      +  labels:
      +    team: a
1 case, 0 failed.
"""
    )


def test_explain_prints_the_operations_and_export_leaves_the_policy_to_its_file(changing: Path) -> None:
    pod = changing.with_name("pod.yaml")
    pod.write_text("{apiVersion: v1, kind: Pod, metadata: {name: a}}")
    code, out, _ = run_policy("explain", "--policies", changing, "-f", pod)
    assert (code, out) == (0, 'Pod a in default:\n  label: changes it\n      add /metadata/labels: {"team": "a"}\n')
    code, out, told = run_policy("export", changing, "--to", "vap")
    assert (code, out, told) == (0, "", "label: not exported: apply its file, which is what the API server takes.\n")
