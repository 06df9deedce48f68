"""Commands know the templates of ClaimTemplates: they make them, check pods against them, and show them."""

from pathlib import Path

import pytest
import yaml
from click.testing import Result

from commands.prune import read_generated
from neuron.api.fields import mapping
from policies.files.loader import load
from tests.policies.files.test_claim_templates import template_policy
from tests.support.invoking import invoke

PODS = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: by-claim, namespace: team-a}
spec:
  replicas: 2
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec:
      containers: [{name: main, image: a, resources: {claims: [{name: d, request: REQUEST}]}}]
      resourceClaims: [{name: d, resourceClaimTemplateName: xl-trn2}]
---
apiVersion: v1
kind: Pod
metadata: {name: by-annotation, namespace: team-a, annotations: {neuron.aws.com/template: NAME}}
spec:
  containers: [{name: main, image: a}]
"""


def run_on_pods(folder: Path, *argv: str, name: str = "xl-trn2", request: str = "r") -> Result:
    (folder / "policies").mkdir(exist_ok=True)
    (folder / "policies/xl.yaml").write_text(template_policy())
    (folder / "pods.yaml").write_text(PODS.replace("NAME", name).replace("REQUEST", request))
    arguments = [*argv, "-f", str(folder / "pods.yaml"), "--policies", str(folder / "policies")]
    return invoke(*arguments)


def test_convert_prints_the_template_and_the_claim(tmp_path: Path) -> None:
    done = run_on_pods(tmp_path, "convert")
    assert done.exit_code == 0, done.output
    objects = [each for each in yaml.safe_load_all(done.stdout) if each]
    (template,) = [each for each in objects if each["kind"] == "ResourceClaimTemplate"]
    assert (template["metadata"]["name"], template["metadata"]["namespace"]) == ("xl-trn2", "team-a")
    (pod,) = [each for each in objects if each["kind"] == "Pod"]
    assert pod["spec"]["resourceClaims"] == [{"name": "neuron", "resourceClaimTemplateName": "xl-trn2"}]


def test_validate_checks_pods_against_the_template(tmp_path: Path) -> None:
    assert run_on_pods(tmp_path, "validate").exit_code == 0
    wrong = run_on_pods(tmp_path, "validate", request="rr")
    assert "NEU708" in wrong.output, wrong.output


@pytest.mark.parametrize("command", ["validate", "explain"])
def test_an_unknown_name_in_the_annotation_is_an_error(command: str, tmp_path: Path) -> None:
    wrong = run_on_pods(tmp_path, command, name="xxl")
    assert wrong.exit_code == 1
    assert "NEU722" in wrong.output


def test_explain_names_the_policy_and_the_devices(tmp_path: Path) -> None:
    done = run_on_pods(tmp_path, "explain")
    assert done.output.count("makes ResourceClaimTemplate xl-trn2, version 1, if the namespace has none") == 2
    assert "16 devices of neuron.aws.com" in done.output


def test_report_lists_the_workloads_with_their_template(tmp_path: Path) -> None:
    done = run_on_pods(tmp_path, "report")
    assert done.output.count("is converted already: it uses the template of a ClaimTemplate") == 2
    assert "Deployment by-claim     2" in done.output
    assert done.output.count("xl-trn2") == 2


def test_policy_check_and_test_know_the_kind(tmp_path: Path) -> None:
    run_on_pods(tmp_path, "validate")
    done = invoke("policy", "check", tmp_path / "policies")
    assert done.stdout == "1 file: policies: 1 with named templates. No problems.\n"
    done = invoke("policy", "explain", "--policies", tmp_path / "policies", tmp_path / "pods.yaml")
    assert "xl: makes ResourceClaimTemplate xl-trn2, version 1, if the namespace has none of this name" in done.output


def test_prune_removes_a_template_that_only_the_webhook_wrote() -> None:
    (rule,) = load({"xl.yaml": template_policy().encode()}).templates
    made = rule.template.manifest("team-a")
    metadata = {"uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    fields = [{"manager": "neuron-dra"}]
    stored = {**made, "metadata": {**mapping(made["metadata"]), **metadata, "managedFields": fields}}
    found = read_generated(stored)
    assert found is not None
    assert mapping(found.manifest()["metadata"])["annotations"] == mapping(made["metadata"])["annotations"]
    edited = {**stored, "metadata": {**stored["metadata"], "managedFields": [*fields, {"manager": "kubectl"}]}}
    assert read_generated(edited) is None
