"""The chart: the effect of its values, and rules for every object that it renders."""

import base64
import re
from typing import Any

import helm_python as helm
import pytest
import yaml

from deploy import kinds as kinds_of_pods
from deploy import render as rendering
from neuron.hardware.instances import TYPES
from tests.deploy.charts import (
    AUDIT,
    CHART,
    EVERYTHING,
    NAMESPACE,
    ROOT,
    Object,
    find,
    flags,
    pod_specs,
    render,
    render_texts,
)
from webhook.cluster.policy_entry import ENTRY
from webhook.server import settings

SECRET: Object = {"certificates": {"mode": "secret"}}
SYSTEM = ["kube-system", "kube-node-lease", NAMESPACE]
EXTRAS: Object = {"prune": {"enabled": True}, "map": {"enabled": True}}
BUNDLE = base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode()
INLINE: Object = {"certificates": {"mode": "secret", "caBundle": BUNDLE}}


@pytest.fixture(scope="module")
def default() -> list[Object]:
    return render()


@pytest.fixture(scope="module")
def everything() -> list[Object]:
    return render(EVERYTHING)


def kinds(objects: list[Object]) -> set[tuple[str, str]]:
    return {(each["kind"], each["metadata"]["name"]) for each in objects}


# --- the chart itself -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [{}, EVERYTHING, SECRET], ids=["default", "everything", "secret"])
def test_helm_lint_passes(values: Object) -> None:
    report = helm.lint(CHART, values, strict=True, namespace=NAMESPACE)
    assert report["errors"] == []
    assert {message["error"] for message in report["messages"]} <= {"icon is recommended"}


def test_versions_match_the_distribution_and_the_required_api() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert (about["appVersion"], about["kubeVersion"]) == (version[1], ">=1.34.0-0")


def test_the_plain_manifests_match_the_chart() -> None:
    written = {path.name: path.read_text() for path in (ROOT / "deploy" / "manifests").iterdir()}
    wanted = rendering.manifests() | {"kustomization.yaml": rendering.kustomization()}
    assert written == wanted, "run `make manifests`"


def test_kustomize_finds_what_the_chart_installs_by_default() -> None:
    listed = yaml.safe_load(rendering.kustomization())["resources"]
    assert listed == list(rendering.INSTALL)


def test_the_schema_knows_the_types_of_the_catalogue() -> None:
    assert (CHART / "values.schema.json").read_text() == rendering.schema(), "run `make manifests`"


def test_the_rules_for_workloads_match_the_table_of_kinds() -> None:
    assert kinds_of_pods.PATH.read_text() == kinds_of_pods.text(), "run `make manifests`"


def test_the_plain_manifests_have_every_object_of_the_chart() -> None:
    texts = rendering.manifests().values()
    written = [each for text in texts for each in yaml.safe_load_all(text)]
    with_extras = render({**EXTRAS, **AUDIT})
    charted = [each for each in with_extras if each["metadata"]["labels"].get("app.kubernetes.io/component") != "test"]
    # The plain webhook has no policies that it could keep.
    kept = {("ConfigMap", "neuron-dra-policies-kept")} | {
        (f"ValidatingAdmissionPolicy{end}", "neuron-dra-kept-policies") for end in ("", "Binding")
    }
    assert kinds(written) == (kinds(charted) - kept) | {("Namespace", NAMESPACE)}
    labels = [key for each in written for key in each["metadata"].get("labels", {})]
    assert not [key for key in labels if "helm" in key or key.endswith("managed-by")]


def test_the_chart_has_the_packs_of_the_program() -> None:
    charted = {path.name: path.read_text() for path in (CHART / "files" / "packs").iterdir()}
    shipped = {path.name: path.read_text() for path in (ROOT / "policies" / "packs").glob("*.yaml")}
    assert charted == shipped, "run `make manifests`"
    with helm.Chart.load(CHART) as chart:
        schema = chart.schema
    assert schema
    offered = schema["properties"]["policies"]["properties"]["packs"]["items"]["enum"]
    assert {f"{name}.yaml" for name in offered} == set(shipped)
    told = (CHART / "values.yaml").read_text().partition("# Shipped policy files")[2].partition("packs:")[0]
    assert [name for name in offered if name not in told] == []


def test_the_driver_runs_on_every_type_of_the_catalogue() -> None:
    with helm.Chart.load(CHART) as chart:
        assert chart.values["kubeletPlugin"]["instanceTypes"] == [each.name for each in TYPES]


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"replicas": 3}, "at '': additional properties 'replicas' not allowed"),
        ({"webhook": {"replica": 3}}, "at '/webhook': additional properties 'replica' not allowed"),
        ({"webhook": {"port": 443}}, "at '/webhook/port': minimum: got 443, want 1,024"),
        ({"webhook": {"metricsPort": "9090"}}, "at '/webhook/metricsPort': got string, want integer"),
        ({"webhook": {"dnsPolicy": "None"}}, "at '/webhook/dnsPolicy': value must be one of ''"),
        ({"webhook": {"hostNetwork": "yes"}}, "at '/webhook/hostNetwork': got string, want boolean"),
        ({"webhook": {"replicas": 0}}, "at '/webhook/replicas': minimum: got 0, want 1"),
        ({"conversion": {"families": ["trn2.48xlarge"]}}, "at '/conversion/families/0'"),
        ({"conversion": {"families": ["p5"]}}, "at '/conversion/families/0': value must be one of 'trn1'"),
        ({"kubeletPlugin": {"instanceTypes": ["p5.48xlarge"]}}, "at '/kubeletPlugin/instanceTypes/0'"),
        ({"kubeletPlugin": {"emulate": "trn2"}}, "at '/kubeletPlugin/emulate': value must be one of ''"),
        ({"webhook": {"nodeSelector": {"a b": "c"}}}, "invalid propertyName 'a b'"),
        ({"webhook": {"tolerations": [{"kye": "a"}]}}, "at '/webhook/tolerations/0': additional properties 'kye'"),
        (
            {"map": {"tolerations": [{"operator": "Is"}]}},
            "at '/map/tolerations/0/operator': value must be one of 'Exists'",
        ),
        ({"webhook": {"affinity": {"nodeAfinity": {}}}}, "at '/webhook/affinity': additional properties 'nodeAfinity'"),
        ({"webhook": {"resources": {"limits": {"memory": "256 MB"}}}}, "at '/webhook/resources/limits/memory'"),
        ({"webhook": {"extraArgs": ["--no-such-flag"]}}, "'--no-such-flag' does not match pattern '^--(body-timeout="),
        ({"webhook": {"extraArgs": ["--drain-delay=soon"]}}, "'--drain-delay=soon' does not match pattern '^--("),
        ({"webhook": {"extraArgs": ["--drain-delay"]}}, "'--drain-delay' does not match pattern '^--("),
        ({"webhook": {"extraArgs": ["--ca-lifetime=10y"]}}, "'--ca-lifetime=10y' does not match pattern '^--("),
        ({"webhook": {"extraArgs": ["--mode=converts"]}}, "'--mode=converts' does not match pattern '^--("),
        ({"webhook": {"extraArgs": ["--events=false"]}}, "'--events=false' does not match pattern '^--("),
        ({"kubeletPlugin": {"extraArgs": ["--no-such-flag"]}}, "'--no-such-flag' does not match pattern '^--("),
        ({"prune": {"extraArgs": ["--older"]}}, "'--older' does not match pattern '^--(all-namespaces$|"),
        ({"audit": {"extraArgs": ["--families1"]}}, "'--families1' does not match pattern '^--(cluster=|"),
        ({"kubeletPlugin": {"bindAddress": "999.1.1.1"}}, "'999.1.1.1' is not valid ipv4"),
        ({"kubeletPlugin": {"seLinuxOptions": {"typ": "spc_t"}}}, "additional properties 'typ' not allowed"),
        ({"networkPolicy": {"webhookFrom": [{"ipBlock": {"cidr": "10.0.0.1"}}]}}, "webhookFrom/0/ipBlock/cidr'"),
        ({"networkPolicy": {"metricsFrom": [{}]}}, "at '/networkPolicy/metricsFrom/0': minProperties"),
        ({"deviceClasses": {"extra": {"Upper": {}}}}, "invalid propertyName 'Upper'"),
        ({"deviceClasses": {"extra": {"a": {"selector": []}}}}, "additional properties 'selector' not allowed"),
        ({"deviceClasses": {"default": {"extendedResourceName": "neuron"}}}, "/default/extendedResourceName'"),
        ({"certificates": {"certManager": {"issuerRef": {"kind": "ClusterIssuer"}}}}, "properties 'name' required"),
        ({"validation": {"matchConditions": [{"name": "a b", "expression": "true"}]}}, "/matchConditions/0/name'"),
        ({"commonLabels": {"a": "b c"}}, "at '/commonLabels/a'"),
        ({"webhook": {"extraEnv": [{"value": "x"}]}}, "at '/webhook/extraEnv/0': missing property 'name'"),
        ({"webhook": {"topologySpread": {"nodes": "Off"}}}, "at '/webhook/topologySpread/nodes'"),
        ({"kubeletPlugin": {"updateStrategy": {"type": "Recreate"}}}, "at '/kubeletPlugin/updateStrategy/type'"),
        ({"kubeletPlugin": {"updateStrategy": {"rollingUpdate": {"maxSurge": "1"}}}}, "rollingUpdate/maxSurge'"),
        ({"podDisruptionBudget": {"minAvailable": -1}}, "at '/podDisruptionBudget/minAvailable'"),
        (
            {"conversion": {"mode": "on"}},
            "at '/conversion/mode': value must be one of 'convert', 'convert-if-enriched', 'shadow', 'off'",
        ),
        ({"admission": {"claims": {"failurePolicy": "fail"}}}, "value must be one of 'Fail', 'Ignore'"),
        ({"admission": {"claims": {"timeoutSeconds": 31}}}, "at '/admission/claims/timeoutSeconds': maximum"),
        ({"policies": {"packs": ["privilege"]}}, "at '/policies/packs/0': value must be one of 'admin-access'"),
        ({"policies": {"files": {"readme.md": "x"}}}, "additional properties 'readme.md' not allowed"),
        ({"certificates": {"mode": "auto"}}, "one of 'managed', 'cert-manager', 'secret'"),
        ({"certificates": {"mode": "secret", "caBundle": "-----BEGIN"}}, "at '/certificates/caBundle'"),
        ({"validation": {"extraRules": [{"resources": ["pods"]}]}}, "missing properties 'apiGroups', 'apiVersions'"),
        ({"webhook": {"extraArgs": ["mode=off"]}}, "at '/webhook/extraArgs/0'"),
        ({"kubeletPlugin": {"cdiDir": "run/cdi"}}, "at '/kubeletPlugin/cdiDir'"),
        ({"image": {"registry": "https://registry.example"}}, "at '/image/registry'"),
        ({"image": {"tag": "0.1.0@sha256:abc"}}, "at '/image/tag'"),
        ({"webhook": {"autoscaling": {"minReplicas": 0}}}, "at '/webhook/autoscaling/minReplicas'"),
        ({"tracing": {"endpoint": "collector:4318"}}, "at '/tracing/endpoint'"),
        ({"tracing": {"endpoint": "http://user:word@collector:4318"}}, "at '/tracing/endpoint'"),
        ({"tracing": {"sampleRatio": 10}}, "at '/tracing/sampleRatio': maximum: got 10, want 1"),
        ({"tracing": {"env": {"HTTPS_PROXY": "x"}}}, "'HTTPS_PROXY' does not match pattern '^OTEL_"),
        ({"tracing": {"env": {"OTEL_EXPORTER_OTLP_HEADERS": "secret"}}}, "invalid propertyName 'OTEL_EXPORTER"),
    ],
)
def test_invalid_values_are_refused_with_their_path(values: Object, fault: str) -> None:
    with pytest.raises(helm.HelmValuesError, match=re.escape(fault)):
        render(values)


@pytest.mark.parametrize(
    ("webhook", "policy"),
    [
        ({"hostNetwork": True}, "ClusterFirstWithHostNet"),
        ({"hostNetwork": True, "dnsPolicy": "Default"}, "Default"),
        ({"dnsPolicy": "Default"}, "Default"),
        ({}, None),
    ],
    ids=["node's network", "both", "policy", "default"],
)
def test_the_webhook_can_listen_on_the_network_of_the_node(webhook: Object, policy: str | None) -> None:
    deployment = find(render({"webhook": webhook}), "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    host = webhook.get("hostNetwork", False)
    assert (spec.get("hostNetwork", False), spec.get("dnsPolicy")) == (host, policy)
    # Two pods cannot have the same port of a node, so the old one ends first.
    wanted = {"maxUnavailable": 1, "maxSurge": 0} if host else {"maxUnavailable": 0, "maxSurge": 1}
    assert deployment["spec"]["strategy"]["rollingUpdate"] == wanted


def test_ports_of_the_webhook_are_values_and_its_service_keeps_its_own() -> None:
    objects = render({"webhook": {"port": 10260, "metricsPort": 10261}})
    spec = pod_specs(objects)["Deployment/neuron-dra"]
    assert (flags(spec)["--port"], flags(spec)["--metrics-port"]) == (["10260"], ["10261"])
    [container] = spec["containers"]
    assert {each["name"]: each["containerPort"] for each in container["ports"]} == {"https": 10260, "metrics": 10261}
    ports = find(objects, "Service")["spec"]["ports"]
    assert [(each["port"], each["targetPort"]) for each in ports] == [(443, "https"), (9090, "metrics")]


@pytest.mark.parametrize("kind", ["OnDelete", "RollingUpdate"])
def test_the_api_servers_rolling_update_can_be_left(kind: str) -> None:
    """Helm removes a value that is null."""
    objects = render({"kubeletPlugin": {"updateStrategy": {"type": kind, "rollingUpdate": None}}})
    [driver] = [each for each in objects if each["kind"] == "DaemonSet"]
    assert not driver["spec"]["updateStrategy"].get("rollingUpdate")


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"webhook": {"port": 9090}}, "webhook.port and webhook.metricsPort are both 9090: set different ports"),
        (
            {"webhook": {"hostNetwork": True}, "openshift": {"enabled": True}},
            "webhook.hostNetwork is true with openshift.enabled",
        ),
        ({"commonLabels": {"app.kubernetes.io/name": "x"}}, "commonLabels has app.kubernetes.io/name, a label that"),
        ({"webhook": {"podLabels": {"helm.sh/chart": "x"}}}, "webhook.podLabels has helm.sh/chart, a label that"),
        (
            {"kubeletPlugin": {"updateStrategy": {"rollingUpdate": {"maxSurge": "0%"}}}},
            "maxUnavailable is 0 and maxSurge is 0%: a DaemonSet needs one of them, and 0 for the other",
        ),
        (
            {"kubeletPlugin": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 1}}}},
            "maxUnavailable is 1 and maxSurge is 1: a DaemonSet needs one of them, and 0 for the other",
        ),
        ({"webhook": {"clientCA": {"names": ["a"]}}}, "webhook.clientCA.names is set without webhook.clientCA.secretN"),
        ({"certificates": {"caBundle": "abcd"}}, "certificates.caBundle is not the base64 of a certificate in PEM"),
        ({"podDisruptionBudget": {"maxUnavailable": None}}, "podDisruptionBudget has neither minAvailable nor max"),
        ({"policies": {"files": {"a.yaml": "kind: [1"}}}, "policies.files: a.yaml is not YAML: "),
    ],
    ids=[
        "ports",
        "OpenShift",
        "common label",
        "pod label",
        "no update",
        "two updates",
        "clients",
        "CA",
        "budget",
        "YAML",
    ],
)
def test_values_that_a_schema_cannot_judge_are_refused_with_a_sentence(values: Object, fault: str) -> None:
    with pytest.raises(helm.HelmRenderError, match=re.escape(fault)):
        render(values)


def test_a_policy_file_with_the_name_of_a_pack_is_refused() -> None:
    with pytest.raises(helm.HelmRenderError, match=r"policies\.files has privileged\.yaml, .* of the pack privileged"):
        render({"policies": {"packs": ["privileged"], "files": {"privileged.yaml": "# mine"}}})


@pytest.mark.parametrize(("values", "namespace"), [({"test": {"namespace": "kube-system"}}, "x"), ({}, "default")])
def test_an_excluded_test_namespace_is_refused(values: Object, namespace: str) -> None:
    with pytest.raises(helm.HelmRenderError, match="which is an excluded namespace, so the test cannot pass"):
        render(values, namespace)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {},
            [
                "in mode shadow",
                "helm test anything",
                "kubectl annotate namespace <name> neuron.aws.com/convert=convert",
            ],
        ),
        ({"conversion": {"mode": "convert"}}, ["in mode convert", "neuron.aws.com/convert=off"]),
        ({"conversion": {"mode": "off"}}, ["Nothing is converted"]),
        (SECRET, ["The Secret neuron-dra-tls must exist in neuron-dra"]),
        ({"kubeletPlugin": {"enabled": False}}, ["converted pods need another driver"]),
        (
            {"policies": {"packs": ["device-limit", "privileged"]}},
            ["The packs privileged do not see pods without claims: set validation.podConditions"],
        ),
        ({"policies": {"existingConfigMap": "mine"}}, ["The chart cannot read the ConfigMap mine: neuron-dra status"]),
    ],
    ids=["shadow", "convert", "off", "secret", "no-driver", "guards", "config-map"],
)
def test_the_notes_have_the_next_steps(values: Object, said: list[str]) -> None:
    notes = render_texts(values)["NOTES.txt"]
    assert [text for text in said if text not in notes] == []


# --- rules for every object -----------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [{}, EVERYTHING, SECRET], ids=["default", "everything", "secret"])
def test_names_are_fixed_and_objects_labelled(values: Object) -> None:
    for each in render(values):
        metadata = each["metadata"]
        if each["kind"] != "DeviceClass":
            assert re.fullmatch(r"neuron-dra(-[a-z-]+)?", metadata["name"])
        assert metadata["labels"]["app.kubernetes.io/name"] == "neuron-dra"
        assert metadata["labels"]["helm.sh/chart"].startswith("neuron-dra-")


def test_pods_have_the_least_privileges(everything: list[Object]) -> None:
    specs = pod_specs(everything)
    assert set(specs) == {
        "Deployment/neuron-dra",
        "DaemonSet/neuron-dra-kubelet-plugin",
        "CronJob/neuron-dra-audit",
        "CronJob/neuron-dra-prune",
        "Deployment/neuron-dra-map",
        "Pod/neuron-dra-test",
    }
    for name, spec in specs.items():
        pod = spec["securityContext"]
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        # The driver writes into directories that root owns.
        assert pod.get("runAsNonRoot", False) is (name != "DaemonSet/neuron-dra-kubelet-plugin")
        [container] = spec["containers"]
        # The driver looks at processes of pods before it gives away a device whose claim was removed by force.
        added = {"add": ["SYS_PTRACE"]} if name == "DaemonSet/neuron-dra-kubelet-plugin" else {}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], **added},
        }
        assert "memory" in container["resources"]["limits"]
        assert "cpu" not in container["resources"]["limits"]


def test_tokens_are_mounted_only_on_request(everything: list[Object]) -> None:
    accounts = {each["metadata"]["name"]: each for each in everything if each["kind"] == "ServiceAccount"}
    assert {account["automountServiceAccountToken"] for account in accounts.values()} == {False}
    for spec in pod_specs(everything).values():
        assert spec["serviceAccountName"] in accounts
        assert spec["enableServiceLinks"] is False


def test_the_rendered_permissions_are_the_golden_ones(everything: list[Object]) -> None:
    values = {**EXTRAS, **AUDIT, "validation": {"followPolicies": True}}
    managed = [each for each in render(values) if each["kind"] in ("Role", "ClusterRole")]
    found = {f"{each['kind']}/{each['metadata']['name']}": each["rules"] for each in managed}
    assert found == yaml.safe_load((ROOT / "tests" / "golden" / "chart" / "rbac.yaml").read_text())
    for each in [*managed, *everything]:
        for rule in each.get("rules", ()) if each["kind"].endswith("Role") else ():
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]


@pytest.mark.parametrize(
    ("values", "secrets", "configurations"),
    [({}, True, True), (SECRET, False, True), (INLINE, False, False), (EVERYTHING, False, False)],
    ids=["managed", "secret", "secret-and-bundle", "cert-manager"],
)
def test_permissions_depend_on_the_certificate_mode(values: Object, secrets: bool, configurations: bool) -> None:
    objects = render(values)
    resources = [resource for rule in find(objects, "Role")["rules"] for resource in rule["resources"]]
    assert ("secrets" in resources) is secrets
    assert (("ClusterRole", "neuron-dra-certificates") in kinds(objects)) is configurations


def test_the_right_to_ask_for_permissions_needs_a_value() -> None:
    name = ("ClusterRole", "neuron-dra-access-reviews")
    assert name not in kinds(render({}))
    objects = render({"validation": {"accessReviews": True}})
    (role,) = [each for each in objects if (each["kind"], each["metadata"]["name"]) == name]
    assert role["rules"] == [
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]}
    ]
    assert ("ClusterRoleBinding", "neuron-dra-access-reviews") in kinds(objects)


def test_only_followed_policies_need_the_permission_for_their_entry() -> None:
    name = ("ClusterRole", "neuron-dra-policy-rules")
    values = {"policies": {"packs": ["privileged"]}, **INLINE}
    assert name not in kinds(render(values))
    assert name in kinds(render({**values, "validation": {"followPolicies": True}}))


# --- the webhook ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [{}, EVERYTHING, SECRET], ids=["default", "everything", "secret"])
def test_the_server_knows_every_flag_it_is_given(values: Object) -> None:
    known = {setting.flag for setting in settings.declarations()}
    given = set(flags(pod_specs(render(values))["Deployment/neuron-dra"]))
    assert given <= known


def test_the_deployment_settings_let_a_replica_end_without_losing_a_review(default: list[Object]) -> None:
    deployment = find(default, "Deployment")["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    spec = deployment["template"]["spec"]
    sleep = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    given = flags(spec)
    drain = int(given["--drain-delay"][0]) + int(given["--drain-timeout"][0])
    assert sleep > 0
    assert spec["terminationGracePeriodSeconds"] > sleep + drain
    assert spec["priorityClassName"] == "system-cluster-critical"
    budget = find(default, "PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"].items() <= deployment["template"]["metadata"]["labels"].items()


def test_the_grace_period_follows_the_drain() -> None:
    values = {"webhook": {"preStopSeconds": 0, "drainDelaySeconds": 60, "drainTimeoutSeconds": 90}}
    spec = pod_specs(render(values))["Deployment/neuron-dra"]
    assert spec["terminationGracePeriodSeconds"] == 155
    assert "lifecycle" not in spec["containers"][0]


def test_conversion_begins_in_shadow_mode(default: list[Object]) -> None:
    given = flags(pod_specs(default)["Deployment/neuron-dra"])
    assert (given["--mode"], given["--exclude-namespace"]) == (["shadow"], SYSTEM)
    assert not any(flag.startswith("--no-hint") for flag in given)


def test_values_become_flags_of_conversion() -> None:
    conversion = {
        "mode": "convert",
        "deviceClass": "trn.example.com",
        "hints": {"affinity": False},
        "onTemplateFailure": "admit",
    }
    given = flags(pod_specs(render({"conversion": conversion}))["Deployment/neuron-dra"])
    assert given["--mode"] == ["convert"]
    assert given["--device-class"] == ["trn.example.com"]
    assert given["--on-template-failure"] == ["admit"]
    assert [flag for flag in given if flag.startswith("--no-hint")] == ["--no-hint-affinity"]


def test_entries_have_the_documented_failure_policies(default: list[Object]) -> None:
    entries = {
        entry["name"]: entry
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for entry in find(default, kind)["webhooks"]
    }
    answers = {name: (entry["failurePolicy"], entry["timeoutSeconds"]) for name, entry in entries.items()}
    assert answers == {
        "mutate.neuron.aws.com": ("Fail", 5),
        "claims.mutate.neuron.aws.com": ("Fail", 5),
        "groups.mutate.neuron.aws.com": ("Ignore", 2),
        "claims.validate.neuron.aws.com": ("Fail", 5),
        "pods.validate.neuron.aws.com": ("Ignore", 2),
    }
    for entry in entries.values():
        assert entry["namespaceSelector"]["matchExpressions"][0]["values"] == SYSTEM
        assert entry["clientConfig"]["service"]["namespace"] == NAMESPACE
    assert {condition["name"] for condition in entries["mutate.neuron.aws.com"]["matchConditions"]} == {
        "neuron",
        "changed",
    }


def policy_file(kind: str, spec: str, *, group: str = "policy.neuron.aws.com/v1alpha1") -> dict[str, Any]:
    text = f"apiVersion: {group}\nkind: {kind}\nmetadata: {{name: p}}\nspec: {{{spec}}}\n"
    return {"files": {"p.yaml": f"# a comment\n---\n{text}"}}


ADMISSION = "admissionregistration.k8s.io/v1"


@pytest.mark.parametrize(
    ("policies", "failure_policy"),
    [
        pytest.param({"packs": ["device-limit", "host-devices"]}, "Ignore", id="packs"),
        pytest.param(policy_file("ValidatingPolicy", "validationActions: [Audit]"), "Ignore", id="audit"),
        pytest.param(policy_file("ValidatingPolicy", "validationActions: [Warn, Audit]"), "Ignore", id="warn"),
        pytest.param(policy_file("ValidatingPolicy", "validationActions: [Audit, Deny]"), "Fail", id="deny"),
        pytest.param(policy_file("ValidatingPolicy", "severity: high"), "Fail", id="the default"),
        pytest.param(policy_file("ConversionPolicy", "mode: convert"), "Ignore", id="conversion"),
        pytest.param(policy_file("ConversionPolicy", "mode: convert, locked: true"), "Fail", id="locked"),
        pytest.param(policy_file("InstanceTypeCatalog", "types: []"), "Ignore", id="catalogue"),
        pytest.param(
            policy_file("ValidatingAdmissionPolicyBinding", "validationActions: [Audit]", group=ADMISSION),
            "Ignore",
            id="binding",
        ),
        pytest.param(
            policy_file("ValidatingAdmissionPolicyBinding", "validationActions: [Deny]", group=ADMISSION),
            "Fail",
            id="binding with deny",
        ),
        pytest.param(policy_file("List", ""), "Fail", id="unknown"),
        pytest.param({"existingConfigMap": "mine"}, "Fail", id="ConfigMap"),
    ],
)
def test_pods_depend_on_the_webhook_only_where_a_policy_can_deny(policies: Any, failure_policy: str) -> None:
    entries = find(render({"policies": policies}), "ValidatingWebhookConfiguration")["webhooks"]
    pods = next(each for each in entries if each["name"] == "pods.validate.neuron.aws.com")
    assert pods["failurePolicy"] == failure_policy


def test_entries_follow_values() -> None:
    one = {"failurePolicy": "Ignore", "timeoutSeconds": 3}
    objects = render(
        {
            "admission": {
                "conversion": one,
                "claims": {"enabled": False},
                "workloads": {"failurePolicy": "Fail"},
                "excludedNamespaces": ["another", "kube-system"],
            }
        }
    )
    mutating, groups = find(objects, "MutatingWebhookConfiguration")["webhooks"]
    assert groups["failurePolicy"] == "Ignore"
    [workloads] = find(objects, "ValidatingWebhookConfiguration")["webhooks"]
    assert {key: mutating[key] for key in one} == one
    assert workloads["failurePolicy"] == "Fail"
    assert mutating["namespaceSelector"]["matchExpressions"][0]["values"] == [*SYSTEM, "another"]
    assert flags(pod_specs(objects)["Deployment/neuron-dra"])["--exclude-namespace"] == [*SYSTEM, "another"]


def test_extra_rules_get_a_separate_entry(everything: list[Object]) -> None:
    entries = find(everything, "ValidatingWebhookConfiguration")["webhooks"]
    names = [entry["name"].partition(".")[0] for entry in entries]
    assert names == ["claims", "pods", "workloads", "policies", "followed-policies"]
    extra = entries[-2]
    assert extra["rules"] == EVERYTHING["validation"]["extraRules"]
    assert extra["matchConditions"] == EVERYTHING["validation"]["matchConditions"]
    assert (extra["failurePolicy"], extra["clientConfig"]["service"]["path"]) == ("Fail", "/validate")


def test_the_webhook_writes_the_rules_of_its_entry_for_policies(everything: list[Object]) -> None:
    *_, extra, entry = find(everything, "ValidatingWebhookConfiguration")["webhooks"]
    assert entry["name"] == ENTRY
    assert "rules" not in entry, "an upgrade would reset them"
    assert {**entry, "name": extra["name"], "rules": extra["rules"]} == extra
    given = flags(pod_specs(everything)["Deployment/neuron-dra"])
    assert "--follow-policies" in given
    assert given["--policy-reload"] == ["together"]
    assert given["--webhook-configuration"] == ["neuron-dra"], "also with cert-manager"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "followPolicies is true, and there are no policies to follow"),
        (
            {"policies": {"packs": ["privileged"]}, "admission": {"workloads": {"enabled": False}}},
            "adds only what admission.claims and admission.workloads do not send: enable both",
        ),
    ],
)
def test_following_policies_needs_policies_and_the_other_entries(values: Object, said: str) -> None:
    with pytest.raises(helm.HelmRenderError, match=said):
        render({**values, "validation": {"followPolicies": True}})


@pytest.mark.parametrize(
    ("policy", "with_policies", "answers"),
    [
        ("Auto", False, {"pods": ("Ignore", 2)}),
        ("Auto", True, {"pods": ("Fail", 5), "workloads": ("Ignore", 2)}),
        ("Fail", True, {"pods": ("Fail", 2)}),
        ("Ignore", True, {"pods": ("Ignore", 2)}),
    ],
)
def test_pods_have_an_entry_with_failure_policy_fail_if_a_policy_can_deny(
    policy: str, with_policies: bool, answers: dict[str, tuple[str, int]]
) -> None:
    values = {
        "admission": {"workloads": {"failurePolicy": policy}},
        "policies": policy_file("ConversionPolicy", "locked: true") if with_policies else {},
    }
    _, *entries = find(render(values), "ValidatingWebhookConfiguration")["webhooks"]
    assert {
        entry["name"].partition(".")[0]: (entry["failurePolicy"], entry["timeoutSeconds"]) for entry in entries
    } == answers
    asked = [resource for entry in entries for rule in entry["rules"] for resource in rule["resources"]]
    assert asked.count("pods") == asked.count("deployments") == 1
    if len(entries) > 1:
        assert [rule["resources"] for rule in entries[0]["rules"]] == [["pods"]]


# --- certificates ---------------------------------------------------------------------------------------------


def bundles(objects: list[Object]) -> list[Any]:
    found = []
    for each in objects:
        if each["kind"].endswith("WebhookConfiguration"):
            found += [entry["clientConfig"].get("caBundle") for entry in each["webhooks"]]
    return found


def test_managed_certificates_need_no_volume_and_no_bundle(default: list[Object]) -> None:
    spec = pod_specs(default)["Deployment/neuron-dra"]
    given = flags(spec)
    assert (given["--tls-secret"], given["--service"]) == (["neuron-dra-tls"], ["neuron-dra"])
    assert given["--webhook-configuration"] == ["neuron-dra"]
    assert "--tls-dir" not in given
    assert [volume["name"] for volume in spec["volumes"]] == ["tmp"]
    fields = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in spec["containers"][0]["env"]}
    assert fields == {
        "NEURON_DRA_POD_NAME": "metadata.name",
        "NEURON_DRA_POD_UID": "metadata.uid",
        "NEURON_DRA_NAMESPACE": "metadata.namespace",
    }
    # If Helm wrote these fields, an upgrade would overwrite the webhook's content.
    assert set(bundles(default)) == {None}
    assert not {"data", "stringData", "type"} & set(find(default, "Secret", "neuron-dra-tls"))


def test_cert_manager_signs_with_a_ca_that_outlives_the_certificate(everything: list[Object]) -> None:
    serving = find(everything, "Certificate", "neuron-dra-webhook")["spec"]
    assert serving["dnsNames"][0] == "neuron-dra.neuron-dra.svc"
    assert serving["issuerRef"]["name"] == "neuron-dra"
    assert find(everything, "Issuer")["spec"] == {"ca": {"secretName": "neuron-dra-ca"}}
    assert find(everything, "Certificate", "neuron-dra-ca")["spec"]["isCA"] is True
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        annotations = find(everything, kind)["metadata"]["annotations"]
        assert annotations == {"cert-manager.io/inject-ca-from": "neuron-dra/neuron-dra-webhook"}
    assert bundles(everything) == [None] * 8


def test_an_issuer_of_the_admin_is_used_instead() -> None:
    issuer = {"name": "company", "kind": "ClusterIssuer"}
    objects = render({"certificates": {"mode": "cert-manager", "certManager": {"issuerRef": issuer}}})
    assert find(objects, "Certificate", "neuron-dra-webhook")["spec"]["issuerRef"] == issuer
    assert "Issuer" not in {kind for kind, _ in kinds(objects)}


@pytest.mark.parametrize(("values", "injects", "bundle"), [(SECRET, True, None), (INLINE, False, BUNDLE)])
def test_a_secret_of_the_admin_is_mounted(values: Object, injects: bool, bundle: str | None) -> None:
    objects = render(values)
    spec = pod_specs(objects)["Deployment/neuron-dra"]
    [volume] = [each for each in spec["volumes"] if each["name"] == "tls"]
    assert volume["secret"] == {"secretName": "neuron-dra-tls", "defaultMode": 0o440}
    given = flags(spec)
    assert given["--tls-dir"] == ["/etc/neuron-dra/tls"]
    assert ("--inject-ca" in given) is injects
    assert bundles(objects) == [bundle] * 5


# --- policies -------------------------------------------------------------------------------------------------


def test_no_folder_is_mounted_without_policies(default: list[Object]) -> None:
    assert "--policies" not in flags(pod_specs(default)["Deployment/neuron-dra"])
    assert ("ConfigMap", "neuron-dra-policies") not in kinds(default)


def test_packs_files_and_a_config_map_share_one_directory(everything: list[Object]) -> None:
    spec = pod_specs(everything)["Deployment/neuron-dra"]
    [volume] = [each for each in spec["volumes"] if each["name"] == "policies"]
    sources = [source["configMap"]["name"] for source in volume["projected"]["sources"]]
    assert sources == ["neuron-dra-policies", "more-policies"]
    assert flags(spec)["--policies"] == ["/etc/neuron-dra/policies"]
    data = find(everything, "ConfigMap", "neuron-dra-policies")["data"]
    assert set(data) == {"device-limit.yaml", "privileged.yaml", "own.yaml"}
    assert data["own.yaml"] == EVERYTHING["policies"]["files"]["own.yaml"]


def test_packs_are_not_changed() -> None:
    packs = {path.stem: path.read_text() for path in (ROOT / "policies" / "packs").glob("*.yaml")}
    data = find(render({"policies": {"packs": sorted(packs)}}), "ConfigMap", "neuron-dra-policies")["data"]
    assert data == {f"{name}.yaml": text for name, text in packs.items()}


def test_the_webhook_may_replace_only_the_config_map_of_kept_policies() -> None:
    for values in ({}, {"policies": {"packs": ["host-devices"]}}):
        objects = render(values)
        rules = [
            rule
            for rule in find(objects, "Role", "neuron-dra")["rules"]
            if "configmaps" in rule["resources"] and rule["resourceNames"] != ["neuron-dra-rendered"]
        ]
        kept = [each for each in objects if each["metadata"]["name"] == "neuron-dra-policies-kept"]
        arguments = pod_specs(objects)["Deployment/neuron-dra"]["containers"][0]["args"]
        assert ("--policies-state-config-map=neuron-dra-policies-kept" in arguments) is bool(values)
        assert [each.keys() & {"data", "binaryData"} for each in kept] == ([set()] if values else [])
        wanted = {"resourceNames": ["neuron-dra-policies-kept"], "verbs": ["get", "update"]}
        assert [{name: rule[name] for name in wanted} for rule in rules] == ([wanted] if values else [])


def test_an_existing_config_map_alone_creates_no_other() -> None:
    objects = render({"policies": {"existingConfigMap": "mine"}})
    made = {name for kind, name in kinds(objects) if kind == "ConfigMap"}
    assert made == {"neuron-dra-policies-kept", "neuron-dra-rendered"}
    [volume] = [v for v in pod_specs(objects)["Deployment/neuron-dra"]["volumes"] if v["name"] == "policies"]
    assert volume["projected"]["sources"] == [{"configMap": {"name": "mine"}}]


def test_the_version_of_the_scheduler_is_a_value() -> None:
    audit = {"policies": {"packs": ["privileged"]}, "audit": {"enabled": True}}
    for given, wanted in (("", None), ("1.35", ["1.35"]), ("v1.36.2-eks-1", ["v1.36.2-eks-1"])):
        specs = pod_specs(render({**audit, "conversion": {"kubernetesVersion": given}}))
        for name in ("Deployment/neuron-dra", "CronJob/neuron-dra-audit"):
            assert flags(specs[name]).get("--kubernetes-version") == wanted, name


def test_families_and_the_watch_of_nodes_are_values() -> None:
    default = render({})
    assert {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]} in find(default, "ClusterRole")[
        "rules"
    ]
    given = flags(pod_specs(default)["Deployment/neuron-dra"])
    assert not {"--families", "--no-watch-nodes"}.intersection(given)
    without = render({"conversion": {"families": ["inf2", "trn1"], "watchNodes": False}})
    given = flags(pod_specs(without)["Deployment/neuron-dra"])
    assert (given["--families"], "--no-watch-nodes" in given) == (["inf2", "trn1"], True)
    assert not [rule for rule in find(without, "ClusterRole")["rules"] if "nodes" in rule["resources"]]


PROGRAMS = {
    "Deployment/neuron-dra": "k8s.namespace.name=$(NEURON_DRA_NAMESPACE),k8s.pod.name=$(NEURON_DRA_POD_NAME)",
    "DaemonSet/neuron-dra-kubelet-plugin": "k8s.node.name=$(NEURON_DRA_NODE_NAME),k8s.pod.uid=$(NEURON_DRA_POD_UID)",
}
"""What traces say of their pod."""


def variables(spec: Object) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in spec["containers"][0].get("env", ())}


def test_nothing_is_traced_by_default(default: list[Object]) -> None:
    for name, spec in pod_specs(default).items():
        assert [each for each in variables(spec) if each.startswith("OTEL_")] == [], name


def test_the_values_of_tracing_become_variables_of_both_programs(everything: list[Object]) -> None:
    specs = pod_specs(everything)
    traced = {name for name, spec in specs.items() if "OTEL_EXPORTER_OTLP_ENDPOINT" in variables(spec)}
    assert traced == set(PROGRAMS)
    for name, attributes in PROGRAMS.items():
        given = variables(specs[name])
        # A variable is expanded only if it stands after those that its value names.
        assert list(given).index("OTEL_RESOURCE_ATTRIBUTES") > max(
            list(given).index(each) for each in re.findall(r"\$\((\w+)\)", attributes)
        )
        assert {key: value for key, value in given.items() if key.startswith("OTEL_")} == {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector.observability:4318",
            "OTEL_RESOURCE_ATTRIBUTES": f"{attributes},cluster=one",
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.1",
            "OTEL_EXPORTER_OTLP_HEADERS": {"secretKeyRef": {"name": "collector-token", "key": "headers"}},
            "OTEL_EXPORTER_OTLP_CERTIFICATE": "/etc/neuron-dra/collector-ca/ca.crt",
            "OTEL_BSP_MAX_QUEUE_SIZE": "4096",
        }
        mounts = {each["name"]: each["mountPath"] for each in specs[name]["containers"][0]["volumeMounts"]}
        assert mounts["collector-ca"] == "/etc/neuron-dra/collector-ca"
        [volume] = [each for each in specs[name]["volumes"] if each["name"] == "collector-ca"]
        assert volume["secret"] == {"secretName": "collector-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}


def test_an_endpoint_alone_needs_no_secret() -> None:
    for name, spec in pod_specs(render({"tracing": {"endpoint": "http://collector:4318"}})).items():
        given = [each for each in variables(spec) if each.startswith("OTEL_")]
        assert given == (["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_RESOURCE_ATTRIBUTES"] if name in PROGRAMS else [])
        assert "collector-ca" not in {each["name"] for each in spec.get("volumes", ())}


def test_objects_of_mutation_extra_rules_have_an_entry_that_leaves_out_pods_of_the_first() -> None:
    rule = {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["deployments"]}
    condition = {"name": "trained", "expression": "has(object.spec.template)"}
    values = {"mutation": {"extraRules": [rule], "failurePolicy": "Ignore", "matchConditions": [condition]}}
    *_, entry = find(render(values), "MutatingWebhookConfiguration")["webhooks"]
    assert (entry["name"], entry["rules"]) == ("policies.mutate.neuron.aws.com", [rule])
    assert (entry["failurePolicy"], entry["clientConfig"]["service"]["path"]) == ("Ignore", "/mutate")
    assert [each["name"] for each in entry["matchConditions"]] == ["not-converted", "trained"]
    with pytest.raises(helm.HelmValuesError, match="missing properties 'apiGroups'"):
        render({"mutation": {"extraRules": [{"resources": ["pods"]}]}})


def test_labels_annotations_and_variables_are_values() -> None:
    env = [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]
    part = {
        "podLabels": {"sidecar": "no"},
        "extraEnv": env,
        "serviceAccount": {"annotations": {"example.com/role": "x"}},
    }
    objects = render(
        {
            "commonLabels": {"team": "ml"},
            "webhook": {**part, "service": {"annotations": {"example.com/zone": "a"}}},
            "kubeletPlugin": {**part, "extraArgs": ["--no-claim-status"]},
        }
    )
    assert all(each["metadata"]["labels"]["team"] == "ml" for each in objects)
    for kind, name in (("Deployment", "neuron-dra"), ("DaemonSet", "neuron-dra-kubelet-plugin")):
        spec = find(objects, kind, name)["spec"]
        labels = spec["template"]["metadata"]["labels"]
        assert (labels["team"], labels["sidecar"]) == ("ml", "no")
        assert not {"team", "sidecar"} & spec["selector"]["matchLabels"].keys()
        assert env[0] in spec["template"]["spec"]["containers"][0]["env"]
        account = find(objects, "ServiceAccount", name)
        assert account["metadata"]["annotations"] == {"example.com/role": "x"}
    assert find(objects, "Service", "neuron-dra")["metadata"]["annotations"] == {"example.com/zone": "a"}
    driver = find(objects, "DaemonSet", "neuron-dra-kubelet-plugin")["spec"]["template"]["spec"]["containers"][0]
    assert "--no-claim-status" in driver["args"]


def test_spread_budget_and_updates_are_values() -> None:
    objects = render(
        {
            "webhook": {"topologySpread": {"nodes": "DoNotSchedule"}},
            "podDisruptionBudget": {"minAvailable": "50%"},
            "kubeletPlugin": {"updateStrategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "10%"}}},
        }
    )
    spread = find(objects, "Deployment", "neuron-dra")["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert {each["topologyKey"]: each["whenUnsatisfiable"] for each in spread} == {
        "kubernetes.io/hostname": "DoNotSchedule",
        "topology.kubernetes.io/zone": "ScheduleAnyway",
    }
    budget = find(objects, "PodDisruptionBudget", "neuron-dra")["spec"]
    assert (budget["minAvailable"], "maxUnavailable" in budget) == ("50%", False)
    driver = find(objects, "DaemonSet", "neuron-dra-kubelet-plugin")["spec"]
    assert driver["updateStrategy"] == {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "10%"}}
    objects = render({"kubeletPlugin": {"updateStrategy": {"type": "OnDelete"}}})
    assert find(objects, "DaemonSet", "neuron-dra-kubelet-plugin")["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_affinity_of_the_driver_is_added_to_each_term_of_the_chart() -> None:
    own = find(render(), "DaemonSet", "neuron-dra-kubelet-plugin")["spec"]["template"]["spec"]["affinity"]
    [shipped] = own["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}
    name = {"key": "metadata.name", "operator": "In", "values": ["node-1"]}
    preferred = [{"weight": 1, "preference": {"matchExpressions": [zone]}}]
    apart = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname"}]}
    nodes = {
        "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchFields": [name]}]
        },
    }
    objects = render({"kubeletPlugin": {"affinity": {"nodeAffinity": nodes, "podAntiAffinity": apart}}})
    found = find(objects, "DaemonSet", "neuron-dra-kubelet-plugin")["spec"]["template"]["spec"]["affinity"]
    assert found["podAntiAffinity"] == apart
    assert found["nodeAffinity"] == {
        "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [*shipped["matchExpressions"], zone]},
                {"matchExpressions": shipped["matchExpressions"], "matchFields": [name]},
            ]
        },
    }


@pytest.mark.parametrize(
    "schedule", ["0 0 1 JAN sun", "*/5 0-23/2 1,15 * MON-FRI", "@daily", "@every 6h", "59 23 31 12 6", "?  *\t? * 0"]
)
def test_schedules_of_kubernetes_are_accepted(schedule: str) -> None:
    assert render({"prune": {"enabled": True, "schedule": schedule}})


@pytest.mark.parametrize(
    "schedule",
    [
        "",
        "* * * *",
        "* * * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 7",
        "TZ=UTC * * * * *",
        "@noon",
        "every night",
        "5-3 * * * *",
        "* * * * fri-mon",
        "*/0 * * * *",
        "* * * * monday",
        "1-2-3 * * * *",
        "*-5 * * * *",
    ],
)
def test_schedules_that_kubernetes_refuses_are_refused(schedule: str) -> None:
    with pytest.raises(
        helm.HelmRenderError, match=rf"prune\.schedule is \"{re.escape(schedule)}\", which is no schedule"
    ):
        render({"prune": {"enabled": True, "schedule": schedule}})


def test_policy_files_may_have_further_types() -> None:
    own = {"policies": {"existingConfigMap": "types"}}
    assert render({**own, "conversion": {"families": ["trn9"]}, "kubeletPlugin": {"instanceTypes": ["trn9.big"]}})
    assert render({"kubeletPlugin": {"instanceTypes": ["ml.trn2.48xlarge"]}})
