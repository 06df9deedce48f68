import copy
import json
from typing import Any

import jsonpatch
import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from conversion.asks.conversion_context import ConversionContext
from conversion.claims.families import Families
from conversion.claims.templates import Template
from conversion.facts import NO_FACTS
from conversion.objects import pods
from conversion.objects.kinds import KINDS as KINDS_WITH_PODS
from conversion.patches.convert_pods import convert
from neuron.hardware.instances import DEFAULT_FAMILIES, Catalogue
from tests.support.converting import Converted, convert_texts, documents
from tests.support.diffs import patched
from tests.support.manifests import CORE, NEURON, container, pod
from tests.support.trainium import trainium
from tests.support.yaml_styles import written

CONVERT = "neuron.aws.com/convert"
LNC = "neuron.aws.com/logical-neuron-core"


def text(*objects: Any) -> str:
    return "---\n".join(yaml.safe_dump(each, sort_keys=False) for each in objects)


def named(name: str, manifest: dict[str, Any], namespace: str = "") -> dict[str, Any]:
    metadata = {key: value for key, value in manifest["metadata"].items() if key not in ("name", "namespace")}
    return {**manifest, "metadata": {"name": name, **({"namespace": namespace} if namespace else {}), **metadata}}


def deployment_of(template: Any, name: str = "web", namespace: str = "") -> dict[str, Any]:
    inner = {"metadata": {"labels": {"app": name}}, "spec": template["spec"]}
    manifest = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {}, "spec": {"template": inner}}
    return named(name, manifest, namespace)


# --- properties -------------------------------------------------------------------------------------------

COUNTS = st.sampled_from([1, "4", 8, 16, 7, "0", 0, "4k", 4.5])


@st.composite
def containers(draw: st.DrawFn, prefix: str) -> list[dict[str, Any]]:
    made = []
    for index in range(draw(st.integers(prefix == "c", 3))):
        each: dict[str, Any] = {"name": f"{prefix}{index}", "image": draw(st.sampled_from(["app:1", "yes", "1.10"]))}
        if draw(st.booleans()):
            limits = {draw(st.sampled_from([NEURON, CORE, "cpu"])): draw(COUNTS)}
            limits |= draw(st.sampled_from([{}, {"memory": "1Gi"}]))
            each["resources"] = {"limits": limits}
            if draw(st.booleans()):
                each["resources"]["requests"] = copy.deepcopy(limits)
            each["resources"] |= draw(st.sampled_from([{}, {"claims": [{"name": "mine"}]}]))
        each |= draw(
            st.sampled_from([{}, {"env": []}, {"env": [{"name": "A", "value": "on"}]}, {"args": ["a\nb\n", "no"]}])
        )
        made.append(each)
    return made


@st.composite
def pod_manifests(draw: st.DrawFn) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": draw(containers("c"))}
    init = draw(containers("i"))
    if init:
        spec["initContainers"] = init
    spec |= draw(
        st.sampled_from(
            [
                {},
                {"tolerations": [{"key": "a", "operator": "Exists"}], "nodeSelector": {"zone": "1"}},
                {"resourceClaims": [{"name": "mine", "resourceClaimTemplateName": "t"}]},
                {"schedulerName": "my-scheduler", "affinity": {"nodeAffinity": {}}},
                {"affinity": None, "tolerations": []},
            ]
        )
    )
    annotations = draw(st.sampled_from([None, {}, {LNC: "1"}, {CONVERT: "off"}, {CONVERT: "shadow"}, {"a": "b"}]))
    metadata = {"name": "p"} | ({} if annotations is None else {"annotations": annotations})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@given(pod_manifests().flatmap(lambda manifest: st.tuples(st.just(manifest), written(manifest))))
def test_pods_are_converted_as_by_the_webhook(case: tuple[dict[str, Any], str]) -> None:
    manifest, written_text = case
    # A template of that name, so that a container may refer to the claim; an undeclared claim is an error of its own.
    declares = "resourceClaims" in manifest["spec"]
    assume(declares or '"claims"' not in json.dumps(manifest))
    done = convert_texts(written_text)
    decision = convert(
        pods.view(manifest),
        NO_FACTS,
        ConversionContext(Catalogue(), Families(declared=DEFAULT_FAMILIES), {}, trainium()),
    )
    wanted = jsonpatch.apply_patch(manifest, list(decision.patch))
    assert done.named("Pod") == wanted
    templates = [each for each in done.objects if each["kind"] == "ResourceClaimTemplate"]
    assert templates == [template.manifest() for template in decision.templates]
    assert done.conversion.refused == bool(decision.errors)
    assert [
        line for line in done.said if "anchor" not in line and "alias" not in line and "merge key" not in line
    ] == []


@given(st.lists(pod_manifests(), min_size=1, max_size=3).flatmap(lambda each: st.tuples(*map(written, each))))
def test_converting_a_converted_file_changes_nothing(texts: tuple[str, ...]) -> None:
    once = convert_texts(*texts)
    again = convert_texts(once.yaml)
    assert again.yaml == once.yaml
    assert again.diff == ""
    from_json = convert_texts(once.json)
    assert json.loads(from_json.json) == json.loads(once.json)
    assert from_json.diff == ""


@given(pod_manifests().flatmap(written))
def test_applying_the_diff_of_a_file_gives_the_printed_output(written_text: str) -> None:
    done = convert_texts(written_text)
    changed = patched(written_text, done.diff)
    if written_text.startswith("{"):
        # A file of JSON stays JSON, with one object after the other; a stream has lines '---' between them.
        assert [part.data for part in documents(changed)] == [part.data for part in documents(done.yaml)]
    else:
        assert changed == done.yaml


# --- kinds ------------------------------------------------------------------------------------------------


def test_every_kind_with_pod_templates_is_converted() -> None:
    template = {"spec": pod(container(neuron=4))["spec"]}
    for (group, kind), paths in ((key, each.templates) for key, each in KINDS_WITH_PODS.items() if each.templates):
        if kind == "Pod":
            continue
        spec: Any = {"apiVersion": f"{group}/v1" if group else "v1", "kind": kind, "metadata": {"name": "x"}}
        for path in paths:
            place = spec
            for step in path[:-1]:
                place = place.setdefault(step, {})
            place[path[-1]] = copy.deepcopy(template)
        done = convert_texts(text(spec))
        assert NEURON not in json.dumps(done.named(kind)).replace(f'\\"{NEURON}\\"', "").replace(
            f'"key": "{NEURON}"', ""
        )
        assert json.dumps(done.named(kind)).count('"resourceClaimTemplateName"') == len(paths)
        assert len([each for each in done.objects if each["kind"] == "ResourceClaimTemplate"]) == 1


def test_metadata_of_a_template_without_any_stands_before_its_spec() -> None:
    done = convert_texts("kind: Job\napiVersion: batch/v1\nspec:\n  template:\n    " + _SPEC)
    assert list(done.named("Job")["spec"]["template"]) == ["metadata", "spec"]
    assert list(json.loads(done.json)["items"][1]["spec"]["template"]) == ["metadata", "spec"]


_SPEC = "spec: {containers: [{name: m, resources: {limits: {aws.amazon.com/neuron: 1}}}]}\n"


def test_objects_of_other_kinds_are_unchanged_byte_for_byte() -> None:
    other = "# c\napiVersion: v1\nkind: ConfigMap\ndata:   {a: 'b' ,  c: [ ]}  # d\n\n\n---\n#e"
    done = convert_texts(other)
    assert (done.yaml, done.diff, done.notices) == (other, "", [])


def test_a_workload_is_converted_whole_or_not_at_all() -> None:
    leader, worker = (pod(container(neuron=count)) for count in (4, 7))
    spec = {"leaderWorkerTemplate": {"leaderTemplate": leader, "workerTemplate": worker}}
    workload = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "w"}}
    done = convert_texts(text({**workload, "spec": spec}, pod(container(neuron=1))))
    assert done.named("LeaderWorkerSet")["spec"] == spec
    assert done.conversion.refused == 1
    assert done.named("Pod")["spec"]["resourceClaims"]
    assert done.named("ResourceClaimTemplate")["metadata"]["name"].startswith("neuron-1-")


def test_an_ultraserver_of_workers_gets_its_topology() -> None:
    worker = pod(container(neuron=16), annotations={"neuron.aws.com/ultraserver-mode": "2"})
    workload = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "w"},
        "spec": {"leaderWorkerTemplate": {"size": 2, "workerTemplate": worker}},
    }
    done = convert_texts(text(workload))
    key = "leaderworkerset.sigs.k8s.io/exclusive-topology"
    assert done.named("LeaderWorkerSet")["metadata"]["annotations"] == {
        key: "neuron.amazonaws.com/ultraserver-server-id-2"
    }
    assert convert_texts(done.yaml).diff == ""


def test_items_of_lists_keep_their_place_and_templates_are_inserted_before() -> None:
    item = {"metadata": {"name": "a"}, "spec": pod(container(neuron=4))["spec"]}
    done = convert_texts(text({"apiVersion": "v1", "kind": "PodList", "items": [item, {"metadata": {"name": "b"}}]}))
    assert [each["kind"] for each in done.objects] == ["ResourceClaimTemplate", "Pod", "Pod"]
    assert "kind: Pod\n" not in done.yaml
    assert [each["kind"] for each in json.loads(done.json)["items"]] == ["ResourceClaimTemplate", "Pod", "Pod"]


# --- templates --------------------------------------------------------------------------------------------


def test_a_template_is_printed_once_in_each_namespace() -> None:
    first, second = (
        text(*(named(f"p{i}", pod(container(neuron=4)), namespace) for i in range(2))) for namespace in "ab"
    )
    done = convert_texts(first, second, first.replace("name: p", "name: q"))
    kinds = [(each["kind"], each["metadata"]["namespace"]) for each in done.objects]
    assert kinds == [
        *(("ResourceClaimTemplate", "a"), ("Pod", "a"), ("Pod", "a")),
        *(("ResourceClaimTemplate", "b"), ("Pod", "b"), ("Pod", "b")),
        *(("Pod", "a"), ("Pod", "a")),
    ]


def test_a_converted_pod_without_its_template_in_the_file_gets_it_again() -> None:
    done = convert_texts(text(named("p", pod(container(neuron=4)))))
    alone = text(done.named("Pod"))
    again = convert_texts(alone)
    assert again.named("ResourceClaimTemplate") == done.named("ResourceClaimTemplate")
    assert again.named("Pod") == done.named("Pod")


def test_a_foreign_template_under_our_name_is_refused() -> None:
    converted = convert_texts(text(named("p", pod(container(neuron=4)))))
    template = converted.named("ResourceClaimTemplate")
    template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] = 8
    done = convert_texts(text(named("p", pod(container(neuron=4)))), text(template))
    name = template["metadata"]["name"]
    assert done.conversion.refused == 1
    assert done.diff == ""
    assert done.notices == [
        f"f0.yaml:5: [document 1, Pod p] spec.resourceClaims: NEU303: a ResourceClaimTemplate {name} in the"
        " manifests has another spec than its name's hash. Remove it: the right one is printed instead."
    ]


# --- what manifests say of the cluster --------------------------------------------------------------------


def facts(kind: str, name: str = "n", namespace: str = "", **fields: Any) -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **fields.pop("metadata", {})}
    return {"apiVersion": fields.pop("version", "v1"), "kind": kind, "metadata": metadata, **fields}


def notices(*objects: Any, **options: Any) -> list[str]:
    return [notice.partition("] ")[2] for notice in convert_texts(text(*objects), **options).notices]


def in_team(**limits: Any) -> dict[str, Any]:
    return named("p", pod(container(**limits)), "team")


def test_annotations_of_namespaces_among_the_files_are_defaults() -> None:
    namespace = facts("Namespace", "team", metadata={"annotations": {LNC: "1"}})
    for order in ([namespace, in_team(neuron=4)], [in_team(neuron=4), namespace]):
        assert "-lnc1-" in convert_texts(*map(text, order)).named("ResourceClaimTemplate")["metadata"]["name"]
    assert "-lnc1-" not in convert_texts(text(namespace, named("p", pod(container(neuron=4)), "other"))).yaml


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        (
            [facts("Namespace", "team", metadata={"annotations": {CONVERT: "off"}}), in_team(neuron=4)],
            ["metadata.namespace: not converted: neuron.aws.com/convert of Namespace team turns it off."],
        ),
        (
            [named("p", pod(container(neuron=4), annotations={CONVERT: "false"}))],
            ["metadata.annotations[neuron.aws.com/convert]: not converted: the annotation turns conversion off."],
        ),
        (
            [named("p", pod(container(neuron=4)), "kube-system")],
            ["metadata.namespace: not converted: namespace kube-system is excluded (--exclude-namespace)."],
        ),
        ([named("p", pod(container()), "kube-system")], []),
        (
            [
                facts("ResourceQuota", "q", "team", spec={"hard": {f"requests.{NEURON}": "16"}}),
                facts("LimitRange", "l", "team", spec={"limits": [{"type": "Container", "max": {NEURON: "8"}}]}),
                deployment_of(pod(container(neuron=4)), namespace="team"),
            ],
            [
                "metadata.namespace: NEU205: LimitRange l has a min, max or ratio for a Neuron resource, which refuses"
                " this pod. Drop it; bound Neuron devices by quota neuron.aws.com.deviceclass.resource.k8s.io/devices.",
                "metadata.namespace: NEU204: ResourceQuota q no longer counts this pod. Use"
                " neuron.aws.com.deviceclass.resource.k8s.io/devices in its spec.hard.",
            ],
        ),
        (
            [
                facts(
                    "ResourceClaimTemplate",
                    "own",
                    "team",
                    version="resource.k8s.io/v1",
                    spec={
                        "spec": {
                            "devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "neuron.aws.com"}}]}
                        }
                    },
                ),
                named(
                    "p",
                    pod(container(neuron=4), resourceClaims=[{"name": "own", "resourceClaimTemplateName": "own"}]),
                    "team",
                ),
            ],
            [
                "spec.resourceClaims: NEU206: claim own already requests neuron.aws.com devices; the limits add more"
                " of them.",
                "spec.resourceClaims[0]: NEU702: no container refers to claim 'own': its devices are allocated and no"
                " container sees them. Add {name: own} to resources.claims of the container that needs them.",
            ],
        ),
        (
            [
                facts(
                    "DeviceClass",
                    version="resource.k8s.io/v1",
                    spec={"extendedResourceName": NEURON},
                ),
                named("p", pod(container(neuron=1), annotations={CONVERT: "convert-if-enriched"})),
            ],
            [],
        ),
        (
            [facts("Namespace", "team", metadata={"annotations": ["x"]}), in_team(neuron=4)],
            [
                "metadata.annotations: NEU905: Namespace team cannot be read: Expected `object | null`, got `array`."
                " Pods are decided without what cannot be read. kubectl refuses the object: correct the field."
            ],
        ),
        ([facts("ResourceQuota", "q", "team", spec=None), in_team(neuron=4)], []),
    ],
    ids=[
        *("namespace-off", "pod-off", "excluded", "excluded-without-neuron", "quota-and-limit-range", "own-claim"),
        *("extended-resource", "unreadable-namespace", "unreadable-quota"),
    ],
)
def test_classes_and_quotas_in_the_files_are_used(objects: list[Any], said: list[str]) -> None:
    assert notices(*objects) == said


def test_a_class_with_an_extended_resource_serves_pods_that_want_no_more() -> None:
    device_class = facts("DeviceClass", version="resource.k8s.io/v1", spec={"extendedResourceName": NEURON})
    legacy = named("p", pod(container(neuron=1), annotations={CONVERT: "convert-if-enriched"}))
    assert convert_texts(text(device_class, legacy)).diff == ""
    assert convert_texts(text(legacy)).diff != ""


def test_settings_decide_as_they_do_for_the_webhook() -> None:
    options = {
        "device_class": "trn.example.com",
        "hint_affinity": False,
        "hint_toleration": False,
        "hint_scheduler": False,
        "excluded_namespaces": frozenset({"kept"}),
    }
    legacy = named("p", pod(container(neuron=4), schedulerName="my-scheduler"))
    done = convert_texts(text(legacy, named("q", pod(container(neuron=4)), "kept")), **options)
    spec = done.named("Pod", "p")["spec"]
    assert {"affinity", "tolerations"}.isdisjoint(spec)
    assert spec["schedulerName"] == "my-scheduler"
    request = done.named("ResourceClaimTemplate")["spec"]["spec"]["devices"]["requests"][0]
    assert request["exactly"]["deviceClassName"] == "trn.example.com"
    assert "resourceClaims" not in done.named("Pod", "q")["spec"]


# --- what is said -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written_text", "said"),
    [
        (
            "# c\n---\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: d\n  namespace: ns\nspec:\n"
            "  template:\n    spec:\n      containers:\n      - name: m\n        resources:\n          limits:\n"
            "            aws.amazon.com/neuron: 7\n",
            [
                "f0.yaml:16: [document 1, Deployment ns/d]"
                " spec.template.spec.containers[0].resources.limits[aws.amazon.com/neuron]: NEU105: Instance type"
                " trn1.32xlarge does not support requests for device: 7. Please request a different number of devices."
                " Nearest valid counts: 4 or 8. Instance types that serve 7: inf2.48xlarge, inf1.24xlarge."
            ],
        ),
        (
            "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata:\n    generateName: g-\n"
            "    annotations:\n      neuron.aws.com/convert: of\n  spec:\n    containers:\n    - name: m\n"
            "      resources: {limits: {aws.amazon.com/neuron: 1}}\n",
            [
                "f0.yaml:9: [document 1, Pod g-*] items[0].metadata.annotations[neuron.aws.com/convert]: NEU109:"
                " annotation neuron.aws.com/convert is 'of'. Allowed: convert, convert-if-enriched, shadow, off, true,"
                " false. Did you mean 'off'?"
            ],
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {annotations: {neuron.aws.com/convert: shadow}}\n" + _SPEC,
            ["f0.yaml:1: [document 1, Pod]: NEU208: shadow mode: this pod would be converted, with template "],
        ),
        (
            "apiVersion: batch/v1\nkind: Job\nspec:\n  template:\n    spec:\n      containers: {}\n",
            [
                "f0.yaml:6: [document 1, Job] spec.template.spec.containers: NEU114: the object contains no readable"
                " pod template: Expected `array | null`, got `object`. Compare it with the API reference of its kind."
            ],
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata:\n  annotations:\n    neuron.aws.com/convert: off\n" + _SPEC,
            [
                "f0.yaml:5: [document 1, Pod] metadata.annotations[neuron.aws.com/convert]: NEU114: the object contains"
                " no readable Pod: Expected `str | null`, got `bool`. It has to be text: write the value in quotes."
            ],
        ),
        (
            "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata:\n  annotations: []\n",
            [
                "f0.yaml:4: [document 1, LeaderWorkerSet] metadata.annotations: NEU114: the object contains no readable"
                " pod template: Expected `object | null`, got `array`. Compare it with the API reference of its kind."
            ],
        ),
        (
            "replicaCount: 1\n",
            [
                "f0.yaml:1: [document 1]: left unchanged: without apiVersion and kind it is not a Kubernetes object.",
            ],
        ),
        (
            "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nspec:\n  trainer:\n    resourcesPerNode:\n"
            "      limits: {aws.amazon.com/neuron: 16}\n",
            [
                "f0.yaml:5: [document 1, TrainJob] spec.trainer.resourcesPerNode: NEU220: the TrainJob is left as it"
                " is: its pod templates are those of a TrainingRuntime. The webhook converts its pods when they are"
                " created."
            ],
        ),
        (
            "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: ClusterTrainingRuntime\nspec:\n  template:\n    spec:\n"
            "      replicatedJobs:\n      - template:\n          spec:\n            template:\n              " + _SPEC,
            [
                "f0.yaml:1: [document 1, ClusterTrainingRuntime]: its pods run in the namespaces of TrainJobs: apply"
                " the ResourceClaimTemplates before it in each of them."
            ],
        ),
        (
            "apiVersion: ray.io/v1\nkind: RayCluster\nspec:\n  headGroupSpec:\n    rayStartParams: {}\n    template:\n"
            "      spec: {containers: [{name: m, resources: {limits: {aws.amazon.com/neuroncore: 32}}}]}\n",
            [
                "f0.yaml:5: [document 1, RayCluster] spec.headGroupSpec.rayStartParams: KubeRay derives neuron_cores"
                " from aws.amazon.com/neuroncore, which conversion removed."
                " Add neuron_cores: 32 to resources in rayStartParams."
            ],
        ),
    ],
    ids=[
        *("refusal", "in-a-list", "shadow", "wrong-type", "yaml-boolean", "no-workload", "no-object", "unknown-kind"),
        *("cluster-scoped", "ray-cores"),
    ],
)
def test_every_message_has_file_line_object_and_field(written_text: str, said: list[str]) -> None:
    found = convert_texts(written_text).notices
    assert len(found) == len(said)
    for notice, start in zip(found, said, strict=True):
        assert notice.startswith(start)


def test_templates_of_a_cluster_scoped_object_are_printed_once() -> None:
    template = {"spec": pod(container(neuron=4))["spec"]}
    jobs = {"replicatedJobs": [{"template": {"spec": {"template": template}}}]}
    spec = {"template": {"spec": jobs}}
    runtime = facts("ClusterTrainingRuntime", "r", version="trainer.kubeflow.org/v1", spec=spec)
    once = convert_texts(text(runtime))
    assert convert_texts(once.yaml).yaml == once.yaml


def test_equal_messages_about_an_object_are_printed_once() -> None:
    quota = facts("ResourceQuota", "q", "team", spec={"hard": {f"requests.{NEURON}": "16"}})
    template = {"spec": pod(container(neuron=4))["spec"]}
    spec = {"pytorchReplicaSpecs": {"Master": {"template": template}, "Worker": {"template": template}}}
    job = facts("PyTorchJob", "j", "team", version="kubeflow.org/v1", spec=spec)
    assert [notice[:28] for notice in notices(quota, job)] == ["metadata.namespace: NEU204: "]


def test_ray_groups_that_declare_their_cores_get_no_notice() -> None:
    group = {
        "rayStartParams": {"resources": '"{\\"neuron_cores\\": 32}"'},
        "template": {"spec": pod(container(neuroncore=32))["spec"]},
    }
    cluster = facts("RayCluster", "r", version="ray.io/v1", spec={"headGroupSpec": group})
    assert [notice for notice in notices(cluster) if "neuron_cores" in notice] == []


def test_a_template_in_a_workload_is_named_by_its_content() -> None:
    done = convert_texts(text(deployment_of(pod(container(neuron=4)))))
    template = done.named("ResourceClaimTemplate")
    assert Template.make("4", template["spec"]).name == template["metadata"]["name"]


def test_a_document_that_cannot_be_edited_in_place_is_rewritten_and_reported() -> None:
    source = "? kind\n: Pod\n# c\napiVersion: v1\n" + _SPEC
    done = convert_texts(source)
    assert done.named("Pod")["spec"]["resourceClaims"]
    assert done.said == ["f0.yaml:1: [document 1] rewritten, without comments and layout: the whole document changes."]
    assert convert_texts(done.yaml).diff == ""
    assert patched(source, done.diff) == done.yaml


def converted_pods(done: Converted) -> list[str]:
    return [
        each["metadata"]["name"] for each in done.objects if each["kind"] == "Pod" and "resourceClaims" in each["spec"]
    ]


def test_anchors_shared_by_pods_leave_the_pod_that_opted_out_alone() -> None:
    shared = """\
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: a}
  spec:
    containers:
    - &c
      name: m
      resources: &r {limits: {aws.amazon.com/neuron: 4}}
    - <<: *c
      name: s
- apiVersion: v1
  kind: Pod
  metadata: {name: b, annotations: {neuron.aws.com/convert: "off"}}
  spec:
    containers:
    - *c
    - {name: s, resources: *r}
"""
    done = convert_texts(shared)
    assert converted_pods(done) == ["a"]
    before = yaml.safe_load(shared)["items"]
    assert done.named("Pod", "b") == before[1]
    claims = [each["resources"] for each in done.named("Pod", "a")["spec"]["containers"]]
    assert claims == [{"claims": [{"name": "neuron", "request": name}]} for name in ("n0", "n1")]


def test_repeated_references_to_the_claim_are_reported() -> None:
    three = pod(*(container(name, neuron=count) for name, count in (("a", 4), ("b", 4), ("c", 1))))
    three["spec"]["initContainers"] = [container("i", neuron=8)]
    (said,) = notices(three)
    assert said.endswith(
        "spec.initContainers[0].resources.claims: NEU209: the container refers to claim neuron 2 times,"
        " which kubectl apply --server-side refuses. Apply it client-side."
    )
