"""Templates with class and count only, as other programs write them, through the shipped configuration."""

import json
from typing import Any

import httpx
import pytest

from neuron.hardware.windows import Line
from tests.cluster.api import Api, ApiError, Object
from tests.cluster.kubectl import Kubectl
from tests.cluster.manifests import pod, scheduled_devices, unschedulable_message
from tests.cluster.nodes import Fleet
from tests.cluster.processes import eventually
from tests.cluster.webhooks import Webhook
from tests.support.mixtures import Hardware, slices

ENRICH = "neuron.aws.com/enrich-claims"
ENRICHED = "neuron.aws.com/enriched"
TEMPLATE = "ResourceClaimTemplate"


def template_to_enrich(name: str, *counts: int, annotations: dict[str, str] | None = None) -> Object:
    """Without defaults, as a program sends it."""
    requests: list[Any] = [
        {"name": f"gpu-{number}", "exactly": {"deviceClassName": "neuron.aws.com", "count": count}}
        for number, count in enumerate(counts)
    ]
    metadata = {"name": name, "annotations": annotations if annotations is not None else {ENRICH: "true"}}
    spec = {"spec": {"devices": {"requests": requests}}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": TEMPLATE, "metadata": metadata, "spec": spec}


def claiming(name: str, of: str) -> Object:
    container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "neuron"}]}}
    return pod(name, container, resourceClaims=[{"name": "neuron", "resourceClaimTemplateName": of}])


@pytest.fixture
def one_in_use(api: Api, namespace: str, fleet: Fleet) -> None:
    """A trn2 node on which device 0 is in use: the first four free devices are not connected."""
    fleet.add("trn2.48xlarge")
    api.create(template_to_enrich("one", 1, annotations={}), namespace)
    api.create(claiming("first", "one"), namespace)
    assert scheduled_devices(api, namespace, "first") == [0]


@pytest.mark.usefixtures("webhook", "one_in_use")
@pytest.mark.parametrize("counts", [(4,), (1, 1, 1, 1)], ids=["one request", "one by one"])
def test_the_devices_of_an_enriched_template_are_connected(api: Api, namespace: str, counts: tuple[int, ...]) -> None:
    api.create(template_to_enrich("plain", *counts, annotations={}), namespace)
    api.create(claiming("loose", "plain"), namespace)
    assert scheduled_devices(api, namespace, "loose") == [1, 2, 3, 4]
    api.delete("Pod", "loose", namespace, force=True)
    stored = api.create(template_to_enrich("generated", *counts), namespace).body
    assert ENRICHED in stored["metadata"]["annotations"]
    api.create(claiming("user", "generated"), namespace)
    assert scheduled_devices(api, namespace, "user") in ([4, 5, 6, 7], [8, 9, 10, 11])


def test_a_program_may_write_an_enriched_template_again(
    api: Api, namespace: str, webhook: Webhook, kubectl: Kubectl
) -> None:
    assert webhook.running
    stored = api.create(template_to_enrich("t", 4), namespace).body
    assert stored["spec"]["spec"]["devices"]["constraints"]
    again = template_to_enrich("t", 4)
    again["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates/t"
    assert api.request("PUT", path, json=again).body["spec"] == stored["spec"]
    assert kubectl.feed("apply", template_to_enrich("t", 4)).ok
    assert api.get(TEMPLATE, "t", namespace)["spec"] == stored["spec"]
    with pytest.raises(ApiError, match="immutable"):
        api.request("PUT", path, json=template_to_enrich("t", 8))


def test_claims_that_kubernetes_makes_are_not_sent(api: Api, namespace: str, webhook: Webhook, fleet: Fleet) -> None:
    fleet.add("trn2.48xlarge")
    api.create(template_to_enrich("t", 4), namespace)
    before = webhook.reviews()
    api.create(claiming("user", "t"), namespace)
    assert scheduled_devices(api, namespace, "user")
    assert webhook.reviews() == before


@pytest.mark.needs("shares")
def test_admin_access_sees_shared_devices_that_are_used_up(
    api: Api, namespace: str, webhook: Webhook, fleet: Fleet
) -> None:
    """As with a driver that shares no cores, with the claim that is written for it; also on nodes that share none."""
    api.merge("Namespace", namespace, {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}})
    shared = fleet.add_publishing(
        "inf2.24xlarge", slices(Hardware("inf2.24xlarge", Line(6, wraps=False), 2, shared=True))
    )
    whole = fleet.add_publishing("trn2.48xlarge", slices(Hardware("trn2.48xlarge", Line(16, wraps=False), 8)))
    nodes = {shared: 6, whole: 16}
    for node, count in nodes.items():
        api.create(template_to_enrich(f"of-{node}", count, annotations={}), namespace)
        user = claiming(f"user-{node}", f"of-{node}")
        user["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        api.create(user, namespace)
        assert len(scheduled_devices(api, namespace, f"user-{node}")) == count

    def looking(name: str) -> Object:
        fields = {"deviceClassName": "neuron.aws.com", "allocationMode": "All", "adminAccess": True}
        found = template_to_enrich(name, annotations={})
        found["spec"]["spec"]["devices"]["requests"] = [{"name": "all", "exactly": fields}]
        return found

    def watcher(name: str, of: str, node: str) -> Object:
        made = claiming(name, of)
        made["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        return made

    opted_out = looking("as-written")
    opted_out["metadata"]["annotations"] = {"neuron.aws.com/enrich-claims": "false"}
    api.create(opted_out, namespace)
    api.create(watcher("waits", "as-written", shared), namespace)
    unschedulable_message(api, namespace, "waits", "cannot allocate all claims")

    def completed() -> bool:
        return ENRICHED in (webhook.preview(looking("looks"), namespace).body["metadata"].get("annotations") or {})

    eventually("the webhook to know the devices", completed)
    api.create(looking("looks"), namespace)
    for node, count in nodes.items():
        api.create(watcher(f"watcher-{node}", "looks", node), namespace)
        assert scheduled_devices(api, namespace, f"watcher-{node}") == list(range(count))


def _with_parameter(number: str) -> str:
    """The text of a template with a number in the config of another driver."""
    made = template_to_enrich("numbers", 4)
    opaque = {"driver": "other.example.com", "parameters": {"a": "NUMBER"}}
    devices = made["spec"]["spec"]["devices"]
    devices["requests"].append({"name": "nic", "exactly": {"deviceClassName": "nic.example.com"}})
    devices["config"] = [{"requests": ["nic"], "opaque": opaque}]
    return json.dumps(made).replace('"NUMBER"', number)


def _store(api: Api, namespace: str, text: str) -> httpx.Response:
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates"
    return api.answer("POST", path, content=text, headers={"content-type": "application/json"})


@pytest.mark.usefixtures("webhook", "one_in_use")
@pytest.mark.parametrize(
    "number", ["1E-400", "-0", "1.0", "1e3", "0.1000000000000000055511151231257827", "1234567890" * 3]
)
def test_numbers_of_other_drivers_keep_their_text(api: Api, namespace: str, number: str) -> None:
    stored = _store(api, namespace, _with_parameter(number))
    assert stored.status_code == 201, stored.text
    assert ENRICHED in stored.text
    assert f'"parameters":{{"a":{number}}}' in stored.text


@pytest.mark.parametrize("number", ["1E400", "-1E400", "1e309"])
def test_a_number_outside_a_double_is_not_stored_by_the_api_server(api: Api, namespace: str, number: str) -> None:
    """So the webhook needs no answer to it. Up to 1.36 the API server closes the connection; an error would do, too."""
    try:
        stored = _store(api, namespace, _with_parameter(number))
    except httpx.RemoteProtocolError:
        return
    assert stored.is_error
