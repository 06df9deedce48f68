"""Fixtures: one control plane for the whole session; a namespace and its fake nodes for each test."""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.cluster.allocating import Allocating
from tests.cluster.api import Api
from tests.cluster.controlplane import Assets, AssetsMissingError, ControlPlane
from tests.cluster.kubectl import Kubectl
from tests.cluster.nodes import INSTANCE_TYPE, Fleet, device_class
from tests.cluster.webhooks import Webhook, install_rbac

if TYPE_CHECKING:
    from tests.cluster.kubelet import Kubelet

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def assets() -> Assets:
    try:
        return Assets.locate()
    except AssetsMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def control_plane(assets: Assets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    plane = ControlPlane(assets, tmp_path_factory.mktemp("control-plane"))
    try:
        plane.start()
        plane.admin.create(device_class())
        yield plane
    finally:
        plane.stop()


@pytest.fixture(scope="module")
def own_control_plane(assets: Assets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """For modules that change what belongs to the whole cluster: webhook configurations, their CA, a release."""
    plane = ControlPlane(assets, tmp_path_factory.mktemp("own-control-plane"))
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


@pytest.fixture(scope="session")
def api(control_plane: ControlPlane) -> Api:
    """The API as system:masters."""
    return control_plane.admin


@pytest.fixture(scope="session")
def installed_webhook(control_plane: ControlPlane) -> Iterator[Webhook]:
    """The webhook with its default settings, installed as its manifests say."""
    webhook = Webhook(control_plane, install_rbac(control_plane))
    try:
        webhook.start()
        webhook.install()
        yield webhook
    finally:
        webhook.stop()


@pytest.fixture
def webhook(installed_webhook: Webhook) -> Webhook:
    """The running webhook, even if an earlier test failed while it was down."""
    if not installed_webhook.running:
        installed_webhook.start()
    return installed_webhook


@pytest.fixture
def namespace(control_plane: ControlPlane, api: Api) -> Iterator[str]:
    """A fresh namespace in which pods can be created."""
    name = f"test-{next(_NUMBERS)}"
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    control_plane.wait_namespace_usable(name)
    yield name
    empty(api, name)


def empty(api: Api, namespace: str) -> None:
    """Delete a namespace. Controllers go first, then pods by force: no kubelet would ever let them go."""
    for kind in ("CronJob", "Job", "Deployment", "StatefulSet", "ReplicaSet"):
        api.delete_all(kind, namespace)
    api.delete_all("Pod", namespace, force=True)
    api.delete("Namespace", namespace)


@pytest.fixture
def kubectl(control_plane: ControlPlane, namespace: str) -> Kubectl:
    """The admin's kubectl in the test's namespace."""
    return control_plane.kubectl().within(namespace)


@pytest.fixture
def fleet(api: Api, namespace: str) -> Iterator[Fleet]:
    """The test's fake nodes, the only ones there are while it runs."""
    fleet = Fleet(api, f"node-{namespace}")
    yield fleet
    fleet.clear()


@pytest.fixture
def allocating(api: Api, namespace: str, fleet: Fleet) -> Allocating:
    """Claims through the scheduler, with admin access in the test's namespace."""
    api.merge("Namespace", namespace, {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}})
    return Allocating(api, namespace, fleet)


@pytest.fixture(scope="module")
def kubelet(
    assets: Assets, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator["Kubelet"]:
    """A real kubelet as node-1 of type trn2.48xlarge, on a runtime that runs nothing."""
    # Only tests with a node need gRPC.
    from tests.cluster.kubelet import Kubelet

    if not assets.has("kubelet"):
        pytest.skip(f"no kubelet to test on: {assets.folder} lacks kubelet; set KUBEBUILDER_ASSETS")
    directory = tmp_path_factory.mktemp("node")
    kubelet = Kubelet(control_plane, directory, "node-1", {INSTANCE_TYPE: "trn2.48xlarge"})
    try:
        kubelet.start()
        yield kubelet
    finally:
        kubelet.stop()
