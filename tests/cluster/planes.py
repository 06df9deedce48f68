"""The control plane that test files use one after the other, and what a file leaves in it.

A file that leaves something fails, and the file after it gets a new control plane: no file depends on another. Files
that change what belongs to the whole cluster may leave what they added, which is deleted after them.
"""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx

from tests.cluster.api import Api, ApiError, Object
from tests.cluster.controlplane import Assets, ControlPlane
from tests.cluster.nodes import device_class
from tests.cluster.processes import eventually
from tests.cluster.webhooks import NAMESPACE, install_rbac

_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_DEVICES: Final = "/apis/resource.k8s.io/v1"
_IN_NAMESPACES: Final = (
    ("/apis/apps/v1", ("deployments", "daemonsets", "statefulsets", "replicasets")),
    ("/apis/batch/v1", ("jobs", "cronjobs")),
    ("/api/v1", ("pods", "services", "secrets", "serviceaccounts", "resourcequotas", "limitranges", "configmaps")),
    ("/apis/discovery.k8s.io/v1", ("endpointslices",)),
    ("/apis/coordination.k8s.io/v1", ("leases",)),
    (_RBAC, ("roles", "rolebindings")),
    (_DEVICES, ("resourceclaims", "resourceclaimtemplates")),
)
_SHARED: Final = ("default", NAMESPACE)
"""Namespaces that no test owns. Tests empty their own ones."""
OF_TESTS: Final = "test-"
"""Begins the names of the tests' own namespaces, which stay when they are empty."""
_SINCE_1_36: Final = (f"{_ADMISSION}/mutatingadmissionpolicies", f"{_ADMISSION}/mutatingadmissionpolicybindings")
"""Older API servers do not serve them."""
_NOT_FOUND: Final = 404
_COLLECTIONS: Final = (
    # In the order in which they are deleted: a webhook or a policy could refuse what comes after it.
    f"{_ADMISSION}/mutatingwebhookconfigurations",
    f"{_ADMISSION}/validatingwebhookconfigurations",
    *_SINCE_1_36,
    f"{_ADMISSION}/validatingadmissionpolicies",
    f"{_ADMISSION}/validatingadmissionpolicybindings",
    *(
        f"{group}/namespaces/{namespace}/{resource}"
        for group, resources in _IN_NAMESPACES
        for resource in resources
        for namespace in _SHARED
    ),
    "/api/v1/nodes",
    "/api/v1/namespaces",
    f"{_DEVICES}/resourceslices",
    f"{_DEVICES}/deviceclasses",
    f"{_RBAC}/clusterroles",
    f"{_RBAC}/clusterrolebindings",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
)
_BUILT_IN: Final = "kubernetes.io/bootstrapping"
_GOING: Final = 60.0
"""Seconds until objects that were deleted are gone."""


def _fingerprint(obj: Object) -> str:
    """What people write of an object: neither status nor what the API server notes in the metadata."""
    content: dict[str, Any] = {key: value for key, value in obj.items() if key not in {"metadata", "status"}}
    content["metadata"] = {key: obj["metadata"].get(key) for key in ("labels", "annotations", "finalizers")}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _goes_or_may_stay(namespace: Object) -> bool:
    """Whether a Namespace with this metadata is no trace of a test."""
    return "deletionTimestamp" in namespace or namespace["name"].startswith(OF_TESTS)


@contextlib.contextmanager
def with_gates(
    assets: Assets, directory: Path, gates: Mapping[str, bool] | None, namespace: str
) -> Iterator[ControlPlane]:
    """A control plane of its own with feature gates, the DeviceClass and a namespace."""
    plane = ControlPlane(assets, directory, gates)
    try:
        plane.start()
        plane.admin.create(device_class())
        plane.admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        plane.wait_namespace_usable(namespace)
        yield plane
    finally:
        plane.stop()


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """An object's name, and the path of the collection that it is in."""

    collection: str
    name: str

    @property
    def path(self) -> str:
        """Where the API serves it."""
        return f"{self.collection}/{self.name}"

    def __str__(self) -> str:
        """Resource and name, for people."""
        scope, _, resource = self.collection.rpartition("/")
        namespace = f"{scope.rpartition('/')[2]}/" if "/namespaces/" in scope else ""
        return f"{resource} {namespace}{self.name}"


def inventory(api: Api) -> dict[Place, str]:
    """Fingerprints of all objects that tests share. Built-in roles are left out."""
    found: dict[Place, str] = {}
    for path in _COLLECTIONS:
        for each in _listed(api, path):
            metadata = each["metadata"]
            if path == "/api/v1/namespaces" and _goes_or_may_stay(metadata):
                continue
            if _BUILT_IN not in metadata.get("labels", {}):
                found[Place(path, metadata["name"])] = _fingerprint(each)
    return found


def _listed(api: Api, path: str) -> list[Object]:
    try:
        items: list[Object] = api.request("GET", path).body["items"]
    except ApiError as error:
        if error.code != _NOT_FOUND or path not in _SINCE_1_36:
            raise
        return []
    return items


def differences(before: Mapping[Place, str], after: Mapping[Place, str]) -> list[str]:
    """What was added, changed and removed, in words."""
    words = {
        **dict.fromkeys(after.keys() - before.keys(), "added"),
        **dict.fromkeys(before.keys() - after.keys(), "removed"),
        **{name: "changed" for name in before.keys() & after.keys() if before[name] != after[name]},
    }
    return [f"{word}: {name}" for name, word in sorted(words.items(), key=lambda each: str(each[0]))]


def _delete_added(api: Api, before: Mapping[Place, str], after: Mapping[Place, str]) -> None:
    """Delete objects. Pods go by force: without a kubelet no other way ends them."""
    for place in sorted(after.keys() - before.keys(), key=lambda each: _COLLECTIONS.index(each.collection)):
        with contextlib.suppress(ApiError):  # It is gone, or a controller makes it again; the next look will tell.
            api.request("DELETE", place.path, params={"gracePeriodSeconds": "0", "propagationPolicy": "Background"})
    for each in api.list("Pod"):
        api.delete("Pod", each["metadata"]["name"], each["metadata"]["namespace"], force=True)
    for namespace in _SHARED:
        api.delete_all("Event", namespace)


class Planes:
    """Starts a control plane when a file needs one, and keeps it for the next file."""

    def __init__(self, start: Callable[[], ControlPlane], going: float = _GOING) -> None:
        """`going`: seconds until objects that were deleted are gone."""
        self._start = start
        self._going = going
        self._plane: ControlPlane | None = None
        self._before: dict[str, str] = {}

    def take(self) -> ControlPlane:
        """A control plane as it was started."""
        if self._plane is None:
            self._plane = self._start()
            self._before = inventory(self._plane.admin)
        return self._plane

    def give_back(self, *, tidy: bool = False) -> list[str]:
        """What differs from before. If something does, the control plane stops.

        Args:
            tidy: delete what was added.
        """
        assert self._plane is not None, "no control plane was taken"
        api, left = self._plane.admin, ["the API server does not answer"]

        def settled() -> bool:
            after = inventory(api)
            left[:] = differences(self._before, after)
            if tidy and not (after.items() >= self._before.items()):
                return True  # Nothing makes good what was changed or removed.
            if tidy:
                _delete_added(api, self._before, after)
            return not left

        with contextlib.suppress(TimeoutError, httpx.HTTPError):
            eventually("tests to leave nothing", settled, timeout=self._going, interval=0.2)
        if left:
            self.stop()
        return left

    def stop(self) -> None:
        """Stop the control plane, if there is one."""
        plane, self._plane = self._plane, None
        if plane is not None:
            plane.stop()


def started(assets: Assets, directory: Path) -> ControlPlane:
    """A control plane with the driver's DeviceClass and the rights of webhook and driver, and nothing else."""
    # Only tests with a node need gRPC.
    from tests.cluster import driver

    plane = ControlPlane(assets, directory)
    try:
        plane.start()
        plane.admin.create(device_class())
        install_rbac(plane)
        driver.install_rbac(plane.admin)
    except BaseException:
        plane.stop()
        raise
    return plane
