"""EFA interfaces in the claim of the Neuron devices, through the real scheduler: two drivers, one device group."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from tests.cluster.api import Api, ApiError, Object
from tests.cluster.manifests import (
    NEURON,
    claim_of,
    claim_template,
    container,
    devices_request,
    generated_templates,
    is_converted,
    pod,
    unschedulable_message,
    wait_scheduled,
)
from tests.cluster.nodes import DRIVER, NETWORK_CLASS, NETWORK_DRIVER, Fleet, network_class
from tests.cluster.processes import eventually
from tests.cluster.webhooks import Webhook

EFA: Final = "vpc.amazonaws.com/efa"
GROUP: Final = "resource.aws.com/devicegroup{}_id"
POLICY: Final = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ConversionPolicy
metadata: {name: fabric}
spec:
  order: 1
  match: {objectSelector: {matchLabels: {fabric: efa}}}
  efa: {}
"""


@pytest.fixture(scope="module")
def with_policy(installed_webhook: Webhook, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    folder = tmp_path_factory.mktemp("policies")
    (folder / "fabric.yaml").write_text(POLICY)
    if not installed_webhook.running:
        installed_webhook.start()
    with installed_webhook.running_with(f"--policies={folder}"):
        yield installed_webhook


@pytest.fixture
def network(api: Api, with_policy: Webhook) -> Iterator[None]:
    """The DeviceClass of the network driver, known to the webhook."""
    api.create(network_class())
    eventually("the webhook to know the class", lambda: not warned(with_policy))
    yield
    api.delete("DeviceClass", NETWORK_CLASS)
    eventually("the webhook to forget the class", lambda: warned(with_policy))


def warned(webhook: Webhook) -> bool:
    return any("NEU231" in each for each in webhook.preview(wanting("canary", 1, 1, "trn2.48xlarge")).warnings)


@pytest.fixture
def node(fleet: Fleet) -> Callable[[str], str]:
    """Adds a node on which both drivers publish."""

    def add(instance_type: str) -> str:
        name = fleet.add(instance_type)
        fleet.publish_interfaces(name, instance_type)
        return name

    return add


def wanting(name: str, neuron: int, efa: int, instance_type: str = "") -> Object:
    """A pod of the policy with both limits."""
    main = container(neuron=neuron)
    main["resources"]["limits"][EFA] = str(efa)
    selector: dict[str, Any] = (
        {"nodeSelector": {"node.kubernetes.io/instance-type": instance_type}} if instance_type else {}
    )
    return pod(name, main, labels={"fabric": "efa"}, terminationGracePeriodSeconds=0, **selector)


def held(api: Api, claim: Object, node: str) -> dict[str, list[dict[str, str]]]:
    """The attributes of the devices that a claim holds on a node, by driver."""
    published = {
        (each["spec"]["driver"], device["name"]): device["attributes"]
        for each in api.list("ResourceSlice")
        if each["spec"].get("nodeName") == node
        for device in each["spec"]["devices"]
    }
    found: dict[str, list[dict[str, str]]] = {DRIVER: [], NETWORK_DRIVER: []}
    for result in claim["status"]["allocation"]["devices"]["results"]:
        attributes = published[result["driver"], result["device"]]
        found[result["driver"]].append({key: next(iter(value.values())) for key, value in attributes.items()})
    return found


def groups(api: Api, namespace: str, name: str, node: str, size: int) -> tuple[int, int, set[str]]:
    """Neuron devices, interfaces and their groups, of a pod that is scheduled."""
    claim = claim_of(api, namespace, wait_scheduled(api, namespace, name, timeout=60))
    of = held(api, claim, node)
    values = {each[GROUP.format(size)] for each in (*of[DRIVER], *of[NETWORK_DRIVER])}
    return len(of[DRIVER]), len(of[NETWORK_DRIVER]), values


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize(
    ("instance_type", "size", "interfaces"),
    [
        ("trn2.48xlarge", 1, 1),
        ("trn2.48xlarge", 4, 4),
        ("trn2.48xlarge", 8, 3),
        ("trn2.48xlarge", 16, 16),
        ("trn1.32xlarge", 1, 1),
        ("trn1.32xlarge", 4, 2),
        ("trn1.32xlarge", 8, 4),
        ("trn1.32xlarge", 16, 8),
    ],
)
def test_a_converted_pod_gets_devices_and_interfaces_of_one_group(
    api: Api, namespace: str, node: Callable[[str], str], instance_type: str, size: int, interfaces: int
) -> None:
    name = node(instance_type)
    api.create(wanting("worker", size, interfaces, instance_type), namespace)
    neuron, efa, values = groups(api, namespace, "worker", name, size)
    assert (neuron, efa, len(values)) == (size, interfaces, 1)
    stored = api.get("Pod", "worker", namespace)
    assert is_converted(stored)
    assert not {NEURON, EFA} & set(stored["spec"]["containers"][0]["resources"].get("limits", {}))


@pytest.mark.usefixtures("network")
def test_each_pod_gets_devices_and_interfaces_of_one_group_only(
    api: Api, namespace: str, node: Callable[[str], str]
) -> None:
    name = node("trn2.48xlarge")
    workers = [f"worker-{number}" for number in range(4)]
    for worker in workers:
        api.create(wanting(worker, 4, 4, "trn2.48xlarge"), namespace)
    found = [groups(api, namespace, worker, name, 4) for worker in workers]
    assert [each[:2] for each in found] == [(4, 4)] * 4
    assert [len(values) for *_, values in found] == [1] * 4
    assert len(set.union(*(values for *_, values in found))) == 4, "each worker has a group of its own"
    assert len(generated_templates(api, namespace)) == 1
    api.create(wanting("fifth", 4, 4, "trn2.48xlarge"), namespace)
    assert "cannot allocate all claims" in unschedulable_message(api, namespace, "fifth", "claims")
    api.delete("Pod", "worker-2", namespace, force=True)
    neuron, efa, values = groups(api, namespace, "fifth", name, 4)
    assert (neuron, efa, values) == (4, 4, found[2][2])


@pytest.mark.usefixtures("network")
def test_a_group_whose_interface_is_in_use_is_not_allocated(
    api: Api, namespace: str, node: Callable[[str], str]
) -> None:
    name = node("trn2.48xlarge")
    api.create(
        claim_template("one-efa", {"devices": {"requests": [devices_request("efa", device_class=NETWORK_CLASS)]}}),
        namespace,
    )
    api.create(
        pod(
            "network",
            container(resources={"claims": [{"name": "efa"}]}),
            resourceClaims=[{"name": "efa", "resourceClaimTemplateName": "one-efa"}],
            terminationGracePeriodSeconds=0,
        ),
        namespace,
    )
    taken = held(api, claim_of(api, namespace, wait_scheduled(api, namespace, "network"), "efa"), name)[NETWORK_DRIVER]
    api.create(wanting("eight", 8, 8, "trn2.48xlarge"), namespace)
    neuron, efa, values = groups(api, namespace, "eight", name, 8)
    assert (neuron, efa) == (8, 8)
    assert values.isdisjoint({taken[0][GROUP.format(8)]})
    api.create(wanting("whole", 16, 16, "trn2.48xlarge"), namespace)
    assert "cannot allocate all claims" in unschedulable_message(api, namespace, "whole", "claims")


@pytest.mark.usefixtures("network")
def test_the_type_with_enough_interfaces_is_chosen(api: Api, namespace: str, node: Callable[[str], str]) -> None:
    node("trn1.32xlarge")
    enough = node("trn2.48xlarge")
    eventually("the webhook to see both types", lambda: affinity(api, namespace, 2) == 2)
    api.create(wanting("worker", 16, 16), namespace)
    assert groups(api, namespace, "worker", enough, 16)[:2] == (16, 16)


def affinity(api: Api, namespace: str, efa: int) -> int:
    """Instance types in the affinity that conversion adds to a pod with 4 devices."""
    made = api.create(wanting("canary", 4, efa), namespace, dry_run=True).body
    required = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return len(required["nodeSelectorTerms"][0]["matchExpressions"][0]["values"])


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize(
    ("instance_type", "size", "interfaces", "said"),
    [
        ("trn1.32xlarge", 16, 16, "a group of 16 devices of trn1.32xlarge has 8 EFA interfaces. Request at most 8."),
        ("trn1.32xlarge", 4, 4, "a group of 4 devices of trn1.32xlarge has 2 EFA interfaces. Request at most 2."),
        ("trn2.48xlarge", 1, 2, "one device of trn2.48xlarge has 1 EFA interface. Request at most 1."),
    ],
)
def test_a_pod_with_too_many_interfaces_is_denied(
    api: Api, namespace: str, instance_type: str, size: int, interfaces: int, said: str
) -> None:
    with pytest.raises(ApiError) as refused:
        api.create(wanting("worker", size, interfaces, instance_type), namespace)
    assert "NEU125" in str(refused.value)
    assert said in str(refused.value)
    assert generated_templates(api, namespace) == []


@pytest.mark.usefixtures("with_policy")
def test_the_limit_stays_with_a_warning_without_the_class(api: Api, namespace: str) -> None:
    answer = api.create(wanting("worker", 16, 16, "trn2.48xlarge"), namespace)
    assert any("NEU231" in each and NETWORK_CLASS in each for each in answer.warnings)
    assert answer.body["spec"]["containers"][0]["resources"]["limits"] == {EFA: "16"}
    assert is_converted(answer.body)
