"""Legacy pods become claims that the real scheduler allocates on the right devices."""

import json

import pytest

from tests.cluster.api import Api, Object
from tests.cluster.kubectl import Kubectl
from tests.cluster.manifests import (
    CONVERTED_FROM,
    LNC,
    NEURON,
    ULTRASERVER_MODE,
    allocated,
    claim_of,
    claim_template,
    container,
    devices_request,
    generated_templates,
    is_converted,
    legacy_names,
    pod,
    scheduled_devices,
    template_names,
    unschedulable_message,
    wait_scheduled,
)
from tests.cluster.nodes import DRIVER, INSTANCE_TYPE, Fleet
from tests.cluster.processes import eventually
from tests.cluster.webhooks import Webhook

pytestmark = pytest.mark.usefixtures("webhook")

TRN2 = {INSTANCE_TYPE: "trn2.48xlarge"}
GROUPS_OF_4 = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


def by_container(api: Api, namespace: str, name: str) -> dict[str, list[int]]:
    """Ids of the devices that each container of a scheduled pod may use, through whatever requests."""
    bound = wait_scheduled(api, namespace, name)
    results = allocated(claim_of(api, namespace, bound))
    devices: dict[str, list[int]] = {}
    for each in [*bound["spec"].get("initContainers", []), *bound["spec"]["containers"]]:
        claims = each.get("resources", {}).get("claims", [])
        wanted = {claim.get("request") for claim in claims}
        chosen = [ids for request, ids in results.items() if None in wanted or request.split("/")[0] in wanted]
        devices[each["name"]] = sorted(device for ids in chosen for device in ids) if claims else []
    return devices


def test_a_legacy_pod_is_admitted_with_a_claim_on_connected_devices(
    api: Api, kubectl: Kubectl, namespace: str, fleet: Fleet
) -> None:
    node = fleet.add("trn2.48xlarge")
    kubectl.feed("create", pod("legacy", container(neuron=4)))
    bound = wait_scheduled(api, namespace, "legacy")
    assert bound["spec"]["nodeName"] == node
    assert is_converted(bound)
    assert legacy_names(bound) == []
    assert json.loads(bound["metadata"]["annotations"][CONVERTED_FROM]) == {"containers": {"main": {NEURON: "4"}}}
    assert [entry["name"] for entry in bound["spec"]["resourceClaims"]] == ["neuron"]
    assert template_names(bound) == generated_templates(api, namespace)
    assert [entry["name"] for entry in bound["spec"]["containers"][0]["resources"]["claims"]] == ["neuron"]
    assert scheduled_devices(api, namespace, "legacy") in GROUPS_OF_4


def test_four_pods_of_four_fill_a_node_with_distinct_groups_and_the_fifth_waits(
    api: Api, namespace: str, fleet: Fleet
) -> None:
    fleet.add("trn2.48xlarge")
    for index in range(4):
        api.create(pod(f"p{index}"), namespace)
    assert sorted(scheduled_devices(api, namespace, f"p{index}") for index in range(4)) == GROUPS_OF_4
    api.create(pod("fifth"), namespace)
    unschedulable_message(api, namespace, "fifth", "cannot allocate all claims")
    api.delete("Pod", "p2", namespace, force=True)
    assert scheduled_devices(api, namespace, "fifth") in GROUPS_OF_4
    assert len(generated_templates(api, namespace)) == 1


@pytest.mark.parametrize("count", [8, 16])
def test_larger_sets_are_connected(api: Api, namespace: str, fleet: Fleet, count: int) -> None:
    fleet.add("trn2.48xlarge")
    api.create(pod("large", container(neuron=count)), namespace)
    assert scheduled_devices(api, namespace, "large") == list(range(count))


@pytest.mark.parametrize("resource", ["neuron", "neurondevice"])
def test_a_single_device_is_never_a_whole_ultraserver_node(
    api: Api, namespace: str, fleet: Fleet, resource: str
) -> None:
    fleet.add("trn2u.48xlarge")
    api.create(pod("one", container(neuron=1) if resource == "neuron" else container(neurondevice=1)), namespace)
    claim = claim_of(api, namespace, wait_scheduled(api, namespace, "one"))
    assert [result["device"] for result in claim["status"]["allocation"]["devices"]["results"]] == ["neuron-device-0"]


@pytest.mark.parametrize(
    "counts", [(4, 4), (1, 4), (8, 4, 4), (1, 1, 1, 1)], ids=lambda counts: "+".join(map(str, counts))
)
def test_each_container_has_its_own_connected_devices(
    api: Api, namespace: str, fleet: Fleet, counts: tuple[int, ...]
) -> None:
    fleet.add("trn2.48xlarge")
    asked = {f"c{index}": count for index, count in enumerate(counts)}
    api.create(pod("many", *(container(name, neuron=count) for name, count in asked.items())), namespace)
    got = by_container(api, namespace, "many")
    assert {name: len(devices) for name, devices in got.items()} == asked
    assert len({device for devices in got.values() for device in devices}) == sum(counts)
    for devices in got.values():
        assert len({device // len(devices) for device in devices}) == 1, f"{devices} is no aligned group"


@pytest.mark.parametrize(("init", "app", "total"), [(4, 4, 4), (1, 4, 4), (8, 4, 8), (4, 16, 16)], ids=str)
def test_an_init_container_reuses_the_devices_of_the_container_after_it(
    api: Api, namespace: str, fleet: Fleet, init: int, app: int, total: int
) -> None:
    fleet.add("trn2.48xlarge")
    api.create(pod("init", container(neuron=app), initContainers=[container("warm", neuron=init)]), namespace)
    assert len(scheduled_devices(api, namespace, "init")) == total
    got = by_container(api, namespace, "init")
    assert len(got["main"]) == app
    assert len(got["warm"]) >= init
    assert set(got["main"]) <= set(got["warm"]) or set(got["warm"]) <= set(got["main"])


def test_a_sidecar_does_not_share_its_devices(api: Api, namespace: str, fleet: Fleet) -> None:
    fleet.add("trn2.48xlarge")
    sidecar = container("sidecar", neuron=4, restartPolicy="Always")
    api.create(pod("sided", container(neuron=4), initContainers=[sidecar]), namespace)
    got = by_container(api, namespace, "sided")
    assert sorted(got.values()) in ([a, b] for a in GROUPS_OF_4 for b in GROUPS_OF_4 if a < b)


def test_cores_become_devices_and_a_variable_limits_the_container_to_its_cores(
    api: Api, kubectl: Kubectl, namespace: str, fleet: Fleet
) -> None:
    fleet.add("trn2.48xlarge")
    result = kubectl.feed("create", pod("cores", container(neuroncore=8), nodeSelector=TRN2))
    assert result.ok, result.stderr
    # 4 logical cores on each device by default: 2 devices of one group of 4.
    assert result.warnings == ()
    assert scheduled_devices(api, namespace, "cores") == [0, 1]
    environment = api.get("Pod", "cores", namespace)["spec"]["containers"][0]["env"]
    assert {"name": "NEURON_RT_NUM_CORES", "value": "8"} in environment


@pytest.mark.parametrize(("cores", "count", "group"), [(3, 2, 4), (9, 5, 8), (27, 14, 16)], ids=["4", "8", "node"])
def test_cores_get_the_fewest_devices_inside_one_group(
    api: Api, namespace: str, fleet: Fleet, cores: int, count: int, group: int
) -> None:
    fleet.add("trn1.32xlarge")
    selector = {"node.kubernetes.io/instance-type": "trn1.32xlarge"}
    api.create(pod("one", container(neuron=1), nodeSelector=selector), namespace)
    assert len(scheduled_devices(api, namespace, "one")) == 1
    api.create(pod("cores", container(neuroncore=cores), nodeSelector=selector), namespace)
    found = scheduled_devices(api, namespace, "cores")
    assert len(found) == count
    assert len({device // group for device in found}) == 1


def test_containers_share_the_one_device_of_a_node(api: Api, namespace: str, fleet: Fleet) -> None:
    fleet.add("trn1.2xlarge")
    selector = {"node.kubernetes.io/instance-type": "trn1.2xlarge"}
    containers = (container("a", neuroncore=1), container("b", neuroncore=1))
    api.create(pod("two", *containers, nodeSelector=selector), namespace)
    assert len(scheduled_devices(api, namespace, "two")) == 1
    made = api.get("Pod", "two", namespace)["spec"]["containers"]
    assert [each["resources"]["claims"] for each in made] == [[{"name": "neuron"}]] * 2
    assert [each["env"] for each in made] == [[{"name": "NEURON_RT_NUM_CORES", "value": "1"}]] * 2


def test_names_for_the_same_devices_and_the_lnc_variable(api: Api, namespace: str, fleet: Fleet) -> None:
    fleet.add("trn2.48xlarge")
    env = [{"name": "NEURON_LOGICAL_NC_CONFIG", "value": "1"}]
    manifest = pod("all", container(neuron=16, neurondevice=16, neuroncore=128, env=env), nodeSelector=TRN2)
    assert api.create(manifest, namespace).warnings == ()
    assert len(scheduled_devices(api, namespace, "all")) == 16
    claim = claim_of(api, namespace, api.get("Pod", "all", namespace))
    assert {each["logicalNeuronCore"] for each in opaque_configs(claim)} == {1}


def test_cores_of_one_device_need_one_device_at_the_lnc_in_force(api: Api, namespace: str, fleet: Fleet) -> None:
    fleet.add("trn2.48xlarge")
    manifest = pod("cores", container(neuroncore=8), nodeSelector=TRN2, annotations={LNC: "1"})
    assert api.create(manifest, namespace).warnings == ()
    assert len(scheduled_devices(api, namespace, "cores")) == 1


def opaque_configs(claim: Object) -> list[Object]:
    configs = claim["status"]["allocation"]["devices"].get("config", [])
    return [entry["opaque"]["parameters"] for entry in configs if entry["opaque"]["driver"] == DRIVER]


def test_an_lnc_annotation_reaches_the_driver_through_the_allocated_claim(
    api: Api, namespace: str, fleet: Fleet
) -> None:
    fleet.add("trn2.48xlarge")
    api.create(pod("lnc", annotations={LNC: "1"}, nodeSelector=TRN2), namespace)
    claim = claim_of(api, namespace, wait_scheduled(api, namespace, "lnc"))
    assert opaque_configs(claim) == [
        {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": 1}
    ]


def test_an_ultraserver_annotation_claims_the_whole_node(api: Api, namespace: str, fleet: Fleet) -> None:
    fleet.add("trn2u.48xlarge")
    annotations = {ULTRASERVER_MODE: "4", LNC: "1"}
    api.create(pod("us", container(neuron=16), annotations=annotations), namespace)
    claim = claim_of(api, namespace, wait_scheduled(api, namespace, "us"))
    results = claim["status"]["allocation"]["devices"]["results"]
    assert [result["device"] for result in results] == ["neuron-node"]
    assert sorted(opaque_configs(claim), key=lambda config: config["kind"]) == [
        {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": 1},
        {"apiVersion": "neuron.aws.com/v1", "kind": "UltraServerConfig", "ultraserverMode": 4},
    ]


def test_a_users_own_claim_named_neuron_stays_unchanged(api: Api, namespace: str, fleet: Fleet) -> None:
    fleet.add("trn2.48xlarge")
    api.create(claim_template("mine", {"devices": {"requests": [devices_request("mine")]}}), namespace)
    using = container("main", neuron=4)
    using["resources"]["claims"] = [{"name": "neuron"}]
    entry = {"name": "neuron", "resourceClaimTemplateName": "mine"}
    warnings = api.create(pod("both", using, resourceClaims=[entry]), namespace).warnings
    assert any("NEU206" in warning for warning in warnings), warnings
    bound = wait_scheduled(api, namespace, "both")
    assert [each["name"] for each in bound["spec"]["resourceClaims"]] == ["neuron", "neuron-dra"]
    assert bound["spec"]["resourceClaims"][0] == entry
    ours = claim_of(api, namespace, bound, "neuron-dra")
    assert [len(devices) for devices in allocated(ours).values()] == [4]


def test_fields_that_the_webhook_does_not_know_are_kept(api: Api, namespace: str) -> None:
    probe = {"grpc": {"port": 5000, "service": "x"}, "terminationGracePeriodSeconds": 7}
    rich = container("main", neuron=4, livenessProbe=probe, volumeMounts=[{"name": "d", "mountPath": "/d"}])
    rich["resources"]["limits"] |= {"cpu": "2", "memory": "1Gi"}
    manifest = pod("rich", rich, volumes=[{"name": "d", "emptyDir": {}}], shareProcessNamespace=True)
    stored = api.create(manifest, namespace).body["spec"]
    assert stored["shareProcessNamespace"] is True
    main = stored["containers"][0]
    assert main["livenessProbe"]["grpc"] == probe["grpc"]
    assert main["resources"]["limits"] == {"cpu": "2", "memory": "1Gi"}
    assert {"name": "d", "mountPath": "/d"} in main["volumeMounts"]


def test_a_pod_that_a_user_bound_to_a_node_is_unchanged_and_gets_a_warning(api: Api, namespace: str) -> None:
    answer = api.create(pod("pinned", nodeName="somewhere"), namespace)
    assert any("NEU201" in warning for warning in answer.warnings), answer.warnings
    assert legacy_names(answer.body)
    assert not is_converted(answer.body)


class TestHints:
    """Rule 11: what lets the pod reach a node that serves it."""

    @pytest.mark.parametrize("scheduler", ["my-scheduler", "neuron-scheduler"])
    def test_a_scheduler_of_the_neuron_extension_is_replaced_by_the_default(
        self, api: Api, namespace: str, fleet: Fleet, scheduler: str
    ) -> None:
        fleet.add("trn2.48xlarge")
        api.create(pod("legacy", schedulerName=scheduler), namespace)
        assert wait_scheduled(api, namespace, "legacy")["spec"]["schedulerName"] == "default-scheduler"

    def test_another_scheduler_stays_with_a_warning(self, api: Api, namespace: str) -> None:
        answer = api.create(pod("custom", schedulerName="own-scheduler"), namespace)
        assert answer.body["spec"]["schedulerName"] == "own-scheduler"
        assert any("NEU203" in warning and "own-scheduler" in warning for warning in answer.warnings), answer.warnings

    def test_the_neuron_taint_is_tolerated(self, api: Api, namespace: str, fleet: Fleet) -> None:
        taint = {"key": NEURON, "value": "true", "effect": "NoSchedule"}
        node = fleet.add("trn2.48xlarge", taints=[taint])
        api.create(pod("tolerant"), namespace)
        assert wait_scheduled(api, namespace, "tolerant")["spec"]["nodeName"] == node

    def test_the_pod_is_scheduled_to_instance_types_that_can_serve_it(
        self, api: Api, webhook: Webhook, namespace: str, fleet: Fleet
    ) -> None:
        fleet.add("trn2.3xlarge")
        serving = fleet.add("trn1.32xlarge")
        picky = pod("picky", container(neuron=8))

        def types() -> list[str]:
            """Those of the affinity; none while the webhook does not know the nodes."""
            affinity = webhook.preview(picky, namespace).body["spec"].get("affinity")
            if affinity is None:
                return []
            required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            return list(required["nodeSelectorTerms"][0]["matchExpressions"][0]["values"])

        eventually("the webhook to know the type that serves it", lambda: "trn1.32xlarge" in types())
        assert "trn2.3xlarge" not in types()
        api.create(picky, namespace)
        assert wait_scheduled(api, namespace, "picky")["spec"]["nodeName"] == serving

    def test_the_users_own_affinity_is_kept(self, api: Api, namespace: str, fleet: Fleet) -> None:
        fleet.add("trn1.32xlarge", labels={"zone": "a"})
        wanted = fleet.add("trn2.48xlarge", labels={"zone": "b"})
        terms = [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]},
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["c"]}]},
        ]
        own = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
        api.create(pod("mine", affinity=own), namespace)
        bound = wait_scheduled(api, namespace, "mine")
        assert bound["spec"]["nodeName"] == wanted
        kept = bound["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        for before, after in zip(terms, kept["nodeSelectorTerms"], strict=True):
            assert before["matchExpressions"][0] in after["matchExpressions"]


def test_singles_and_connected_sets_fit_a_fragmented_node_at_once(
    api: Api, webhook: Webhook, namespace: str, fleet: Fleet
) -> None:
    # Requests of one device first would send the allocator through every combination until its 10 s are over.
    fleet.add("trn2.48xlarge")
    for index in range(5):
        api.create(pod(f"single{index}", container(neuron=1)), namespace)
        wait_scheduled(api, namespace, f"single{index}")
    mixed = pod("mixed", *(container(f"s{index}", neuron=1) for index in range(3)), container("set", neuron=8))
    api.create(mixed, namespace)
    bound = wait_scheduled(api, namespace, "mixed", timeout=8)
    assert len(scheduled_devices(api, namespace, "mixed")) == 11
    assert by_container(api, namespace, "mixed")["set"] == list(range(8, 16)), bound["spec"]["resourceClaims"]
