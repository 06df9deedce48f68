"""The chart except the webhook: driver, classes, network, monitoring, pruning, the test."""

import json
import re
import shutil
from collections.abc import Iterator

import click
import helm_python as helm
import pytest
import yaml
from click.testing import CliRunner

from cluster.resources import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from commands.cli.main import main
from commands.status import kueue
from conversion.objects.kinds import KINDS as KINDS_WITH_PODS
from conversion.objects.kinds import holds_claims
from kubeletplugin.cli import main as plugin_main
from kubeletplugin.discover.own_node import KEYS
from kubeletplugin.node_events import (
    APPEARED,
    CHECK_FAILED,
    CHECK_NOTE,
    CHECKS_WELL,
    FREED,
    KEPT,
    LEFT,
    LOST,
    OTHER,
    OTHER_LEFT,
    REGISTERED,
)
from neuron import names
from tests.deploy.charts import AUDIT, CHART, EVERYTHING, Object, find, flags, pod_specs, render
from tests.support.invoking import invoke

DRIVER = "neuron-dra-kubelet-plugin"
NEEDED: list[Object] = [
    {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceslices"],
        "verbs": ["get", "list", "watch", "create", "update", "delete"],
    },
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["patch"]},
    {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceclaims/driver"],
        "resourceNames": ["neuron.aws.com"],
        "verbs": ["associated-node:patch"],
    },
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
]
"""The driver's permissions; docs/driver.md has the same list."""

MONITORING = {key: EVERYTHING[key] for key in ("monitoring", "networkPolicy")}


@pytest.fixture(scope="module")
def default() -> list[Object]:
    return render()


def kinds(objects: list[Object]) -> set[str]:
    return {each["kind"] for each in objects}


# --- the driver -----------------------------------------------------------------------------------------------


def policies_of_the_driver(objects: list[Object]) -> list[str]:
    found = [each["metadata"]["name"] for each in objects if each["kind"] == "ValidatingAdmissionPolicy"]
    return [name for name in found if name.startswith(DRIVER)]


def test_the_driver_knows_every_flag_it_is_given() -> None:
    values = {"kubeletPlugin": {"emulate": "trn2.48xlarge", "instanceTypes": []}}
    given = flags(pod_specs(render(values))[f"DaemonSet/{DRIVER}"])
    known = CliRunner().invoke(plugin_main, ["--help"], terminal_width=300).output
    assert [flag for flag in given if f"{flag} " not in known] == []
    assert given["--emulate"] == ["trn2.48xlarge"]


@pytest.mark.parametrize(
    ("value", "given"), [("auto", "auto"), ("on", "on"), ("off", "off"), (True, "on"), (False, "off")]
)
def test_sharing_of_cores_can_be_set_with_and_without_quotes(value: object, given: str) -> None:
    objects = render({"kubeletPlugin": {"shareCores": value}})
    assert flags(pod_specs(objects)[f"DaemonSet/{DRIVER}"])["--share-cores"] == [given]


@pytest.mark.parametrize(
    ("policies", "config_maps"),
    [
        ({}, []),
        ({"packs": ["privileged"]}, []),
        ({"files": {"types.yaml": "kind: InstanceTypeCatalog\n"}}, ["neuron-dra-policies"]),
        ({"existingConfigMap": "mine"}, ["mine"]),
    ],
)
def test_the_driver_reads_the_policy_files_that_may_have_instance_types(
    policies: dict[str, object], config_maps: list[str]
) -> None:
    spec = pod_specs(render({"policies": policies}))[f"DaemonSet/{DRIVER}"]
    volumes = [volume["projected"]["sources"] for volume in spec["volumes"] if volume["name"] == "policies"]
    sources = [source["configMap"] for volume in volumes for source in volume]
    assert sources == [{"name": name, "optional": True} for name in config_maps]
    mounts = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    folder = [mounts["policies"]] if config_maps else None
    assert flags(spec).get("--policies") == folder


def test_the_driver_has_the_rights_it_is_documented_to_need(default: list[Object]) -> None:
    assert find(default, "ClusterRole", DRIVER)["rules"] == NEEDED


def test_a_driver_that_writes_no_claim_status_has_no_right_to_write_it(default: list[Object]) -> None:
    without = render({"kubeletPlugin": {"claimStatus": False}})
    rules = find(without, "ClusterRole", DRIVER)["rules"]
    assert not any("/" in resource for rule in rules for resource in rule["resources"])
    assert policies_of_the_driver(without) == [DRIVER, f"{DRIVER}-nodes", f"{DRIVER}-events"]
    [container] = pod_specs(without)[f"DaemonSet/{DRIVER}"]["containers"]
    assert "--no-claim-status" in container["args"]
    [container] = pod_specs(default)[f"DaemonSet/{DRIVER}"]["containers"]
    assert "--no-claim-status" not in container["args"]


def test_nodes_with_a_faulty_kubelet_are_a_setting(default: list[Object]) -> None:
    for objects, value in (
        (default, "Publish"),
        (render({"kubeletPlugin": {"faultyKubelet": "Withhold"}}), "Withhold"),
    ):
        [container] = pod_specs(objects)[f"DaemonSet/{DRIVER}"]["containers"]
        assert f"--faulty-kubelet={value}" in container["args"]


def test_two_instances_of_the_driver_may_overlap(default: list[Object]) -> None:
    daemon_set = find(default, "DaemonSet", DRIVER)["spec"]
    assert daemon_set["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    spec = daemon_set["template"]["spec"]
    env = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in spec["containers"][0]["env"]}
    assert env == {"NEURON_DRA_NODE_NAME": "spec.nodeName", "NEURON_DRA_POD_UID": "metadata.uid"}
    assert not any("hostPort" in port for port in spec["containers"][0]["ports"])


def test_the_driver_mounts_only_the_host_paths_that_it_needs(default: list[Object]) -> None:
    spec = pod_specs(default)[f"DaemonSet/{DRIVER}"]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    mounts = {
        mount["mountPath"]: (paths[mount["name"]], mount.get("readOnly", False))
        for mount in spec["containers"][0]["volumeMounts"]
    }
    assert mounts == {
        "/sys": ("/sys", True),
        "/dev": ("/dev", True),
        "/opt/aws/neuron": ("/opt/aws/neuron", True),
        "/var/run/cdi": ("/var/run/cdi", False),
        "/var/lib/kubelet/plugins": ("/var/lib/kubelet/plugins", False),
        "/var/lib/kubelet/plugins_registry": ("/var/lib/kubelet/plugins_registry", False),
        "/var/lib/kubelet/pod-resources": ("/var/lib/kubelet/pod-resources", True),
        "/host/proc": ("/proc", True),
    }
    assert flags(spec)["--proc-root"] == ["/host/proc"]
    # The kubelet would have to create the file in the host's /dev, which is mounted read-only.
    assert not spec["containers"][0]["terminationMessagePath"].startswith("/dev/")


def test_directories_of_the_host_are_values() -> None:
    values = {"kubeletPlugin": {"cdiDir": "/etc/cdi", "kubeletDir": "/data/kubelet"}}
    spec = pod_specs(render(values))[f"DaemonSet/{DRIVER}"]
    paths = {volume["hostPath"]["path"] for volume in spec["volumes"]}
    of_the_kubelet = {f"/data/kubelet/{name}" for name in ("plugins", "plugins_registry", "pod-resources")}
    assert paths == {"/sys", "/dev", "/proc", "/opt/aws/neuron", "/etc/cdi", *of_the_kubelet}
    given = flags(spec)
    assert given["--kubelet-registry-dir"] == ["/data/kubelet/plugins_registry"]
    assert given["--pod-resources-socket"] == ["/data/kubelet/pod-resources/kubelet.sock"]


def test_the_process_check_has_its_own_right_that_can_be_switched_off() -> None:
    default = pod_specs(render({}))[f"DaemonSet/{DRIVER}"]
    assert default["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE"]}
    assert not default.get("hostPID")
    spec = pod_specs(render({"kubeletPlugin": {"processScan": False}}))[f"DaemonSet/{DRIVER}"]
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "/proc" not in {volume["hostPath"]["path"] for volume in spec["volumes"]}
    assert "--proc-root" not in flags(spec)


def test_the_driver_runs_on_neuron_nodes_and_tolerates_their_taints(default: list[Object]) -> None:
    spec = pod_specs(default)[f"DaemonSet/{DRIVER}"]
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [term] = required["nodeSelectorTerms"]
    operators = {each["key"]: each["operator"] for each in term["matchExpressions"]}
    assert operators == {"eks.amazonaws.com/compute-type": "NotIn", "node.kubernetes.io/instance-type": "In"}
    types = next(each["values"] for each in term["matchExpressions"] if each["operator"] == "In")
    assert types[:2] == ["trn1.32xlarge", "ml.trn1.32xlarge"]
    listed = render({"kubeletPlugin": {"instanceTypes": ["trn1.2xlarge", "ml.trn1.2xlarge"]}})
    required = pod_specs(listed)[f"DaemonSet/{DRIVER}"]["affinity"]["nodeAffinity"]
    [term] = required["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    types = next(each["values"] for each in term["matchExpressions"] if each["operator"] == "In")
    assert types == ["trn1.2xlarge", "ml.trn1.2xlarge"]
    assert {"key": "aws.amazon.com/neuron", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]


def test_the_driver_can_be_installed_node_group_by_node_group() -> None:
    more = {"key": "dedicated", "operator": "Exists"}
    values = {"kubeletPlugin": {"nodeSelector": {"neuron-driver": "dra"}, "tolerations": [more]}}
    spec = pod_specs(render(values))[f"DaemonSet/{DRIVER}"]
    assert spec["nodeSelector"] == {"neuron-driver": "dra"}
    assert (len(spec["tolerations"]), spec["tolerations"][-1]) == (4, more)


def test_the_policy_names_the_account_that_the_driver_runs_as() -> None:
    objects = render(namespace="ml-system")
    account = find(objects, "DaemonSet", DRIVER)["spec"]["template"]["spec"]["serviceAccountName"]
    for name in (DRIVER, f"{DRIVER}-nodes", f"{DRIVER}-events"):
        [condition] = find(objects, "ValidatingAdmissionPolicy", name)["spec"]["matchConditions"]
        assert condition["expression"] == f"request.userInfo.username == 'system:serviceaccount:ml-system:{account}'"
        binding = find(objects, "ValidatingAdmissionPolicyBinding", name)["spec"]
        assert binding == {"policyName": name, "validationActions": ["Deny"]}


def test_the_policy_about_nodes_knows_the_labels_that_the_driver_sets(default: list[Object]) -> None:
    variables = find(default, "ValidatingAdmissionPolicy", f"{DRIVER}-nodes")["spec"]["variables"]
    [keys] = [each["expression"] for each in variables if each["name"] == "keys"]
    listed = {f"neuron.amazonaws.com/{each}" for each in re.findall(r"'([a-z0-9-]+)'", keys.partition("]")[0])}
    assert listed == {*KEYS, names.LABEL_PRESENT}


def test_the_policy_about_events_knows_the_reasons_that_the_driver_writes(default: list[Object]) -> None:
    validations = find(default, "ValidatingAdmissionPolicy", f"{DRIVER}-events")["spec"]["validations"]
    [about] = [each["expression"] for each in validations if "reason" in each["expression"]]
    listed = set(re.findall(r"'([A-Z][A-Za-z]+)'", about.rpartition(" in ")[2]))
    ends = {each.reason for each in (LEFT, OTHER_LEFT, REGISTERED, CHECKS_WELL)}
    assert listed == {APPEARED, OTHER, KEPT, FREED, LOST, CHECK_FAILED, CHECK_NOTE, *ends}


def test_the_driver_has_no_right_to_patch_nodes_without_labels(default: list[Object]) -> None:
    def verbs(objects: list[Object]) -> list[str]:
        rules = find(objects, "ClusterRole", DRIVER)["rules"]
        [found] = [rule["verbs"] for rule in rules if rule["resources"] == ["nodes"]]
        return list(found)

    one = render({"kubeletPlugin": {"ultraserverLabels": False}})
    without = render({"kubeletPlugin": {"ultraserverLabels": False, "presentLabel": False}})
    assert verbs(default) == verbs(one) == ["get", "list", "watch", "patch"]
    assert verbs(without) == ["get", "list", "watch"]
    flags_without = pod_specs(without)[f"DaemonSet/{DRIVER}"]["containers"][0]["args"]
    assert {"--no-ultraserver-labels", "--no-present-label"} <= set(flags_without)
    assert policies_of_the_driver(without) == [DRIVER, f"{DRIVER}-events", f"{DRIVER}-claims"]


def test_the_behaviour_beside_a_device_plugin_is_a_value() -> None:
    values = {"kubeletPlugin": {"devicePluginGuard": "Withhold", "ultraserverPublish": "node"}}
    given = flags(pod_specs(render(values))[f"DaemonSet/{DRIVER}"])
    assert (given["--device-plugin-guard"], given["--ultraserver-publish"]) == (["Withhold"], ["node"])


def test_a_chart_without_the_driver_has_none_of_its_objects() -> None:
    objects = render({"kubeletPlugin": {"enabled": False}})
    assert not [each for each in objects if each["metadata"]["name"] == DRIVER]
    assert "DaemonSet" not in kinds(objects)
    assert not policies_of_the_driver(objects)


# --- admin access -----------------------------------------------------------------------------------------------


def test_admin_access_is_for_the_listed_namespaces(default: list[Object]) -> None:
    for objects, listed, given in (
        (default, "[]", None),
        (render({"adminAccess": {"namespaces": ["a", "b"]}}), "['a', 'b']", ["a", "b"]),
    ):
        label, claims = (
            find(objects, "ValidatingAdmissionPolicy", name)["spec"]["validations"][0]["expression"]
            for name in ("neuron-dra-admin-access", "neuron-dra-admin-access-claims")
        )
        assert label.startswith(f"object.metadata.name in {listed} || authorizer.")
        assert claims == f"request.namespace in {listed}"
        assert flags(pod_specs(objects)[f"DaemonSet/{DRIVER}"]).get("--admin-access-namespace") == given


def test_admin_access_is_guarded_also_beside_another_driver() -> None:
    objects = render({"kubeletPlugin": {"enabled": False}})
    assert find(objects, "ValidatingAdmissionPolicy", "neuron-dra-admin-access")


# --- classes, network -----------------------------------------------------------------------------------------


def test_the_default_class_selects_the_published_devices(default: list[Object]) -> None:
    spec = find(default, "DeviceClass", "neuron.aws.com")["spec"]
    assert spec == {"selectors": [{"cel": {"expression": "device.driver == 'neuron.aws.com'"}}]}


def test_classes_are_values() -> None:
    objects = render(EVERYTHING)
    assert find(objects, "DeviceClass", "neuron.aws.com")["spec"]["extendedResourceName"] == "aws.amazon.com/neuron"
    extra = EVERYTHING["deviceClasses"]["extra"]["trn2.example.com"]
    assert find(objects, "DeviceClass", "trn2.example.com")["spec"] == extra
    assert "DeviceClass" not in kinds(render({"deviceClasses": {"default": {"enabled": False}}}))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"networkPolicy": {"enabled": False}}, "NetworkPolicy"),
        ({"podDisruptionBudget": {"enabled": False}}, "PodDisruptionBudget"),
        ({"admission": {"conversion": {"enabled": False}}}, "MutatingWebhookConfiguration"),
        (
            {"admission": {"claims": {"enabled": False}, "workloads": {"enabled": False}}},
            "ValidatingWebhookConfiguration",
        ),
        ({"certificates": {"mode": "secret"}}, "Secret"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_switched_off_parts_are_not_rendered(default: list[Object], values: Object, kind: str) -> None:
    assert kind in kinds(default)
    assert kind not in kinds(render(values))


def test_the_policies_of_the_driver_can_be_switched_off(default: list[Object]) -> None:
    assert len(policies_of_the_driver(default)) == 4
    assert policies_of_the_driver(render({"kubeletPlugin": {"admissionPolicy": {"enabled": False}}})) == []
    without = render({"adminAccess": {"admissionPolicy": {"enabled": False}}})
    assert [each for each in default if each["metadata"]["name"].startswith("neuron-dra-admin-access")]
    assert not [each for each in without if each["metadata"]["name"].startswith("neuron-dra-admin-access")]


# --- images ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ({}, "neuron-dra:0.1.0"),
        ({"image": {"registry": "registry.example.com/ml/", "tag": "1.2"}}, "registry.example.com/ml/neuron-dra:1.2"),
        ({"webhook": {"image": {"digest": f"sha256:{'a' * 64}"}}}, f"neuron-dra@sha256:{'a' * 64}"),
    ],
    ids=["default", "registry", "digest"],
)
def test_values_set_the_images(values: Object, image: str) -> None:
    specs = pod_specs(render({**values, "prune": {"enabled": True}, "map": {"enabled": True}}))
    images = {name: spec["containers"][0]["image"] for name, spec in specs.items()}
    assert {images[name] for name in images if not name.startswith("DaemonSet")} == {image}


# --- monitoring -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[helm.Chart]:
    """The chart with an alert and a dashboard whose braces Helm must not render."""
    folder = tmp_path_factory.mktemp("chart") / "neuron-dra"
    shutil.copytree(CHART, folder)
    rule = {"alert": "Down", "expr": "up == 0", "annotations": {"summary": "{{ $labels.pod }} is down"}}
    groups = {"groups": [{"name": "neuron-dra", "rules": [rule]}]}
    (folder / "files" / "alerts.yaml").write_text(yaml.safe_dump(groups))
    (folder / "files" / "dashboard.json").write_text(json.dumps({"title": "{{pod}}"}, indent=1))
    with helm.Chart.load(folder) as chart:
        yield chart


def test_monitoring_is_off_by_default(default: list[Object]) -> None:
    assert not kinds(default) & {"ServiceMonitor", "PodMonitor", "PrometheusRule"}


def test_alerts_and_dashboard_are_taken_from_the_charts_files(stocked: helm.Chart) -> None:
    rendered = stocked.render(MONITORING, name="x", namespace="y")
    rule = yaml.safe_load(rendered["neuron-dra/templates/monitoring/alerts.yaml"])
    assert rule["spec"]["groups"][0]["rules"][0]["annotations"]["summary"] == "{{ $labels.pod }} is down"
    board = yaml.safe_load(rendered["neuron-dra/templates/monitoring/dashboard.yaml"])
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(board["data"]["neuron-dra.json"]) == {"title": "{{pod}}"}


def test_monitors_find_what_they_scrape() -> None:
    objects = render(MONITORING)
    monitor = find(objects, "ServiceMonitor")
    service = find(objects, "Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
    pods = find(objects, "PodMonitor", DRIVER)["spec"]
    labels = find(objects, "DaemonSet", DRIVER)["spec"]["template"]["metadata"]["labels"]
    assert pods["selector"]["matchLabels"].items() <= labels.items()


# --- pruning, the test ----------------------------------------------------------------------------------------


def test_pruning_is_a_job_with_an_account_of_its_own(default: list[Object]) -> None:
    assert "CronJob" not in kinds(default)
    objects = render({"prune": {"enabled": True, "schedule": "0 1 * * *", "extraArgs": ["--older-than=48h"]}})
    job = find(objects, "CronJob", "neuron-dra-prune")["spec"]
    assert (job["schedule"], job["concurrencyPolicy"]) == ("0 1 * * *", "Forbid")
    spec = pod_specs(objects)["CronJob/neuron-dra-prune"]
    assert spec["serviceAccountName"] == "neuron-dra-prune"
    assert spec["containers"][0]["command"] == ["neuron-dra", "templates", "prune"]
    assert spec["containers"][0]["args"] == ["--older-than=48h"]


def test_the_audit_is_a_job_with_an_account_of_its_own(default: list[Object]) -> None:
    assert "neuron-dra-audit" not in {each["metadata"]["name"] for each in default}
    values = {"audit": {"enabled": True, "schedule": "0 1 * * *", "extraArgs": ["--families=trn1"]}}
    objects = render({**AUDIT, **values, "admission": {"excludedNamespaces": ["ci"]}})
    job = find(objects, "CronJob", "neuron-dra-audit")["spec"]
    assert (job["schedule"], job["concurrencyPolicy"]) == ("0 1 * * *", "Forbid")
    spec = pod_specs(objects)["CronJob/neuron-dra-audit"]
    assert spec["serviceAccountName"] == "neuron-dra-audit"
    [container] = spec["containers"]
    assert container["command"] == ["neuron-dra", "report"]
    assert container["args"] == [
        "--write-policy-reports",
        "--no-webhook-records",
        "--policies=/etc/neuron-dra/policies",
        "--exclude-namespace=kube-system",
        "--exclude-namespace=kube-node-lease",
        "--exclude-namespace=neuron-dra",
        "--exclude-namespace=ci",
        "--families=trn1",
    ]
    result = invoke("report", *container["args"], "--help")
    assert (result.exit_code, "PolicyReports" in result.output) == (0, True)
    webhook = pod_specs(objects)["Deployment/neuron-dra"]
    assert spec["volumes"] == [each for each in webhook["volumes"] if each["name"] == "policies"]


def test_the_audit_needs_policies() -> None:
    with pytest.raises(helm.HelmRenderError, match=r"there are no policies to audit: set policies\.packs"):
        render({"audit": {"enabled": True}})


def test_the_audit_may_list_every_kind_whose_pods_are_known() -> None:
    rules = find(render(AUDIT), "ClusterRole", "neuron-dra-audit")["rules"]
    allowed = {(group, resource) for rule in rules for group in rule["apiGroups"] for resource in rule["resources"]}
    wanted = {(each.group, each.plural) for key, each in KINDS_WITH_PODS.items() if holds_claims(*key)}
    assert wanted - allowed == set()


def test_the_audit_may_read_the_set_up_of_kueue_where_a_value_says_so() -> None:
    assert not [each for each in render(AUDIT) if each["metadata"].get("namespace") == kueue.NAMESPACE]
    objects = render({**AUDIT, "audit": {"enabled": True, "readKueue": True}})
    role, binding = [each for each in objects if each["metadata"].get("namespace") == kueue.NAMESPACE]
    allowed = {
        (rule["apiGroups"][0], rule["resources"][0], *rule["resourceNames"], *rule["verbs"]) for rule in role["rules"]
    }
    assert allowed == {("", "configmaps", kueue.CONFIG, "get"), ("apps", "deployments", kueue.MANAGER, "get")}
    account = {"kind": "ServiceAccount", "name": "neuron-dra-audit", "namespace": "neuron-dra"}
    assert (binding["roleRef"]["name"], binding["subjects"]) == (role["metadata"]["name"], [account])


def test_the_map_is_off_by_default_and_has_no_part_in_admission(default: list[Object]) -> None:
    objects = render({"map": {"enabled": True, "intervalSeconds": 30}})
    added = {
        (each["kind"], each["metadata"]["name"]): each
        for each in objects
        if each["metadata"]["name"] not in {one["metadata"]["name"] for one in default}
    }
    kinds_added = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Deployment"}
    assert set(added) == {(kind, "neuron-dra-map") for kind in kinds_added}
    assert [each for each in objects if each["kind"] not in kinds_added] == [
        each for each in default if each["kind"] not in kinds_added
    ]


def test_the_map_may_only_list_and_serves_on_loopback() -> None:
    objects = render({"map": {"enabled": True, "intervalSeconds": 30}})
    rules = find(objects, "ClusterRole", "neuron-dra-map")["rules"]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"list"}
    read = {resource for rule in rules for resource in rule["resources"]}
    lists = (NODES, PODS, RESOURCE_SLICES, RESOURCE_CLAIMS, DEVICE_CLASSES)
    assert read == {*(str(each.plural) for each in lists), "devicetaintrules"}
    spec = pod_specs(objects)["Deployment/neuron-dra-map"]
    assert spec["serviceAccountName"] == "neuron-dra-map"
    [container] = spec["containers"]
    assert "ports" not in container
    parent = click.Context(main, **main.context_settings)
    command = main.get_command(parent, "map")
    assert command is not None
    context = command.make_context("map", list(container["command"][2:]), parent)
    assert (context.params["serve"], context.params["host"], context.params["interval"]) == (True, "127.0.0.1", 30)
    policies = [each for each in objects if each["kind"] == "NetworkPolicy"]
    [policy] = [each for each in policies if "map" in str(each["spec"]["podSelector"].get("matchExpressions", ""))]
    assert "ingress" not in policy["spec"]
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_the_test_runs_a_command_that_exists(default: list[Object]) -> None:
    container = pod_specs(default)["Pod/neuron-dra-test"]["containers"][0]
    result = invoke(*container["command"][1:], *container["args"], "--help")
    assert (result.exit_code, "dry run" in result.output) == (0, True)


def test_the_helm_test_and_its_rights_are_deleted_together(default: list[Object]) -> None:
    hooks = [each for each in default if each["metadata"].get("annotations", {}).get("helm.sh/hook") == "test"]
    assert {each["kind"] for each in hooks} == {"ServiceAccount", "Role", "RoleBinding", "Pod"}
    assert all("hook-succeeded" in each["metadata"]["annotations"]["helm.sh/hook-delete-policy"] for each in hooks)
    assert find(hooks, "Role", "neuron-dra-test")["metadata"]["namespace"] == "default"
    assert "Pod" not in kinds(render({"admission": {"conversion": {"enabled": False}}}))


# --- replicas -------------------------------------------------------------------------------------------------


def test_an_autoscaler_sets_the_replicas_where_it_is_enabled(default: list[Object]) -> None:
    assert find(default, "Deployment", "neuron-dra")["spec"]["replicas"] == 2
    assert "HorizontalPodAutoscaler" not in kinds(default)
    values = {"webhook": {"autoscaling": {"enabled": True, "maxReplicas": 6}}}
    scaled = render(values)
    assert "replicas" not in find(scaled, "Deployment", "neuron-dra")["spec"]
    spec = find(scaled, "HorizontalPodAutoscaler", "neuron-dra")["spec"]
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "neuron-dra"}
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 6)
    assert spec["metrics"][0]["resource"] == {
        "name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": 70},
    }


def test_more_min_replicas_than_max_replicas_are_refused() -> None:
    values = {"webhook": {"autoscaling": {"enabled": True, "minReplicas": 5, "maxReplicas": 3}}}
    with pytest.raises(helm.HelmRenderError, match="minReplicas is 5 and maxReplicas is 3"):
        render(values)


def amounts(request: object, limit: object) -> Object:
    return {"requests": {"memory": request}, "limits": {"memory": limit}}


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"webhook": {"extraEnv": [{"name": "A"}, {"name": "B"}, {"name": "A"}]}}, "webhook.extraEnv has A twice"),
        ({"kubeletPlugin": {"extraEnv": [{"name": "A"}] * 2}}, "kubeletPlugin.extraEnv has A twice: keep one"),
        (
            {"webhook": {"resources": amounts("1Gi", "512Mi")}},
            "webhook.resources: the request of memory is 1Gi, and its limit is 512Mi: no container requests more",
        ),
        ({"audit": {"resources": {"limits": {"cpu": "5m"}}}}, "audit.resources: the request of cpu is 10m, and its"),
        ({"map": {"resources": amounts(2, "1500m")}}, "map.resources: the request of memory is 2, and its limit"),
        (
            {"certificates": {"certManager": {"duration": "1h", "renewBefore": "90m"}}},
            "certManager: renewBefore is 90m and duration is 1h: renew certificates before they end",
        ),
        ({"certificates": {"certManager": {"duration": "720h"}}}, "renewBefore is 720h and duration is 720h"),
    ],
)
def test_values_that_the_api_server_or_cert_manager_would_refuse_are_refused(values: Object, fault: str) -> None:
    with pytest.raises(helm.HelmRenderError, match=fault):
        render(values)


@pytest.mark.parametrize(
    "values",
    [
        {"webhook": {"extraEnv": [{"name": "A"}, {"name": "B"}]}, "kubeletPlugin": {"extraEnv": [{"name": "A"}]}},
        {"webhook": {"resources": amounts("0.5Gi", "512Mi")}},
        {"webhook": {"resources": amounts("1e3", "1k")}},
        {"webhook": {"resources": {"requests": {"cpu": "8"}, "limits": None}}},
        {"webhook": {"resources": None}},
        {"certificates": {"certManager": {"duration": "1h30m", "renewBefore": "1h29m59s"}}},
        {"certificates": {"certManager": {"renewBefore": None}}},
        {"webhook": {"extraArgs": ["--drain-delay=2.5", "--ca-lifetime=10d", "--mode=off", "--no-events", "--host=x"]}},
    ],
)
def test_values_at_the_border_are_accepted(values: Object) -> None:
    assert render(values)


@pytest.mark.parametrize(
    ("part", "workload"),
    [
        ("prune", "CronJob/neuron-dra-prune"),
        ("audit", "CronJob/neuron-dra-audit"),
        ("test", "Pod/neuron-dra-test"),
        ("map", "Deployment/neuron-dra-map"),
    ],
)
@pytest.mark.parametrize(
    "placement",
    [
        {"nodeSelector": {"role": "system"}, "tolerations": [{"key": "dedicated", "operator": "Exists"}]},
        {"nodeSelector": {"role": "system"}},
        {"tolerations": [{"operator": "Exists"}]},
        {},
    ],
    ids=["both", "selector", "tolerations", "none"],
)
def test_jobs_run_where_their_values_say(part: str, workload: str, placement: Object) -> None:
    enabled = {} if part == "test" else {"enabled": True}
    spec = pod_specs(render({"policies": {"packs": ["device-limit"]}, part: enabled | placement}))[workload]
    assert {key: spec[key] for key in ("nodeSelector", "tolerations") if key in spec} == placement
