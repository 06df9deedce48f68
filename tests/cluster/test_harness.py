"""The control plane under the other tests is a real one: what they rely on, shown without the webhook."""

from pathlib import Path

import pytest

from tests.cluster.api import Api, ApiError, Object
from tests.cluster.controlplane import Assets, AssetsMissingError, ControlPlane
from tests.cluster.manifests import (
    claim_of,
    claim_template,
    container,
    devices_request,
    events,
    pod,
    scheduled_devices,
    unschedulable_message,
    wait_scheduled,
)
from tests.cluster.nodes import DRIVER, Fleet
from tests.cluster.processes import eventually


def test_absent_binaries_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    (tmp_path / "etcd").touch(mode=0o755)
    with pytest.raises(AssetsMissingError) as refused:
        Assets.locate()
    assert str(refused.value) == (
        f"no control plane to test on: {tmp_path} lacks kube-apiserver, kube-controller-manager, "
        "kube-scheduler, kubectl (on the PATH or there); "
        "set KUBEBUILDER_ASSETS to a folder that has them (setup-envtest makes one)"
    )


def connected(count: int, *, request: str = "n0") -> Object:
    constraint = {"requests": [request], "matchAttribute": f"resource.aws.com/devicegroup{count}_id"}
    return {"devices": {"requests": [devices_request(request, count=count)], "constraints": [constraint]}}


def with_claim(name: str, template: str) -> Object:
    using = container(resources={"claims": [{"name": "neuron"}]})
    return pod(name, using, resourceClaims=[{"name": "neuron", "resourceClaimTemplateName": template}])


def test_the_scheduler_allocates_connected_devices_of_a_fake_node(api: Api, namespace: str, fleet: Fleet) -> None:
    node = fleet.add("trn2.48xlarge")
    api.create(claim_template("four", connected(4)), namespace)
    for index in range(4):
        api.create(with_claim(f"p{index}", "four"), namespace)
    bound = [wait_scheduled(api, namespace, f"p{index}") for index in range(4)]
    assert {each["spec"]["nodeName"] for each in bound} == {node}
    groups = sorted(scheduled_devices(api, namespace, f"p{index}") for index in range(4))
    assert groups == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


def test_a_pod_without_its_template_waits_until_the_template_comes(api: Api, namespace: str, fleet: Fleet) -> None:
    fleet.add("trn2.3xlarge")
    api.create(with_claim("early", "late"), namespace)
    eventually("the event", lambda: events(api, namespace, "early", "FailedResourceClaimCreation"))
    api.create(claim_template("late", {"devices": {"requests": [devices_request("n0")]}}), namespace)
    assert scheduled_devices(api, namespace, "early") == [0]


def test_an_unguarded_lookup_of_a_missing_attribute_aborts_scheduling_although_another_node_fits(
    api: Api, namespace: str, fleet: Fleet
) -> None:
    # Why every generated selector is guarded: trn2u devices publish no topology_x.
    fleet.add("trn2u.48xlarge")
    fleet.add("trn2.48xlarge")
    unguarded = f'device.attributes["{DRIVER}"].topology_x == 0'
    guarded = f'"topology_x" in device.attributes["{DRIVER}"] && {unguarded}'
    for name, selector in (("unguarded", unguarded), ("guarded", guarded)):
        request = devices_request("n0", selectors=(selector,))
        api.create(claim_template(name, {"devices": {"requests": [request]}}), namespace)
        api.create(with_claim(name, name), namespace)
    assert scheduled_devices(api, namespace, "guarded") == [0]
    assert "no such key: topology_x" in unschedulable_message(api, namespace, "unguarded", "no such key")


def test_an_unselective_request_is_given_a_whole_ultraserver_node(api: Api, namespace: str, fleet: Fleet) -> None:
    # Why every generated request excludes what is not a single device.
    fleet.add("trn2u.48xlarge")
    api.create(claim_template("one", {"devices": {"requests": [devices_request("n0")]}}), namespace)
    api.create(with_claim("one", "one"), namespace)
    claim = claim_of(api, namespace, wait_scheduled(api, namespace, "one"))
    assert claim["status"]["allocation"]["devices"]["results"][0]["device"] == "neuron-node"


@pytest.mark.parametrize(
    ("instance_type", "size"), [("trn1.32xlarge", 16), ("trn1n.32xlarge", 8), ("trn3.48xlarge", 4)]
)
def test_every_trainium_family_publishes_device_groups(
    api: Api, namespace: str, fleet: Fleet, instance_type: str, size: int
) -> None:
    fleet.add(instance_type)
    api.create(claim_template("group", connected(size)), namespace)
    api.create(with_claim("group", "group"), namespace)
    assert scheduled_devices(api, namespace, "group") == list(range(size))


def test_a_restricted_user_may_only_what_rbac_grants(control_plane: ControlPlane, namespace: str) -> None:
    kubectl = control_plane.kubectl(control_plane.user_kubeconfig("nobody")).within(namespace)
    refused = kubectl.run("get", "pods")
    assert not refused.ok
    assert 'User "nobody" cannot list resource "pods"' in refused.stderr


def test_refusals_of_the_api_server_keep_their_status(api: Api, namespace: str) -> None:
    with pytest.raises(ApiError, match="Invalid value") as refused:
        api.create(pod("Not_A_Name"), namespace)
    assert refused.value.code == 422
