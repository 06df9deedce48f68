"""`kubectl debug --copy-to` of a converted pod: what kubectl really sends."""

import base64
from collections.abc import Iterator

import pytest

from tests.cluster.api import Api
from tests.cluster.controlplane import ControlPlane
from tests.cluster.kubectl import Kubectl
from tests.cluster.manifests import container, is_converted, pod, wait_scheduled
from tests.cluster.nodes import Fleet
from tests.cluster.processes import eventually
from tests.cluster.webhooks import MANIFESTS, Webhook, load


@pytest.fixture(scope="module", autouse=True)
def validating(control_plane: ControlPlane, installed_webhook: Webhook) -> Iterator[None]:
    """The shipped ValidatingWebhookConfiguration, pointed at the process under test."""
    [made] = load(MANIFESTS / "validating.yaml")
    bundle = base64.b64encode(control_plane.authority.files.certificate.read_bytes()).decode()
    for entry in made["webhooks"]:
        entry["clientConfig"] = {"url": f"https://127.0.0.1:{installed_webhook.port}/validate", "caBundle": bundle}
    control_plane.admin.create(made)
    yield
    control_plane.admin.delete("ValidatingWebhookConfiguration", made["metadata"]["name"])


def test_a_copy_on_the_same_node_is_denied_with_the_way_out(
    api: Api, kubectl: Kubectl, namespace: str, fleet: Fleet
) -> None:
    fleet.add("trn2.48xlarge")
    assert is_converted(api.create(pod("main", container(neuron=4)), namespace).body)
    wait_scheduled(api, namespace, "main")
    debug = ("debug", "main", "--image=busybox", "--attach=false")

    def denied() -> bool:
        result = kubectl.run(*debug, "--copy-to=same", "--same-node")
        if result.ok:
            api.delete("Pod", "same", namespace, force=True)
        return "NEU128" in result.stderr and "Leave --same-node out" in result.stderr

    eventually("the copy to be denied", denied)
    assert api.find("Pod", "same", namespace) is None


def test_a_copy_that_the_scheduler_places_is_admitted(api: Api, kubectl: Kubectl, namespace: str, fleet: Fleet) -> None:
    fleet.add("trn2.48xlarge")
    api.create(pod("main", container(neuron=4)), namespace)
    wait_scheduled(api, namespace, "main")
    kubectl.must("debug", "main", "--image=busybox", "--attach=false", "--copy-to=other")
    wait_scheduled(api, namespace, "other")
