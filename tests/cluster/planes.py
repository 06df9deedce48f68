"""The control plane that test files use one after the other, and what a file leaves in it.

A file that leaves something fails, and the file after it gets a new control plane: no file depends on another.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx

from tests.cluster.api import Api, Object
from tests.cluster.controlplane import Assets, ControlPlane
from tests.cluster.nodes import device_class
from tests.cluster.processes import eventually
from tests.cluster.webhooks import NAMESPACE, install_rbac

_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_DEVICES: Final = "/apis/resource.k8s.io/v1"
_CLUSTER: Final = (
    "/api/v1/nodes",
    "/api/v1/namespaces",
    f"{_DEVICES}/resourceslices",
    f"{_DEVICES}/deviceclasses",
    f"{_RBAC}/clusterroles",
    f"{_RBAC}/clusterrolebindings",
    f"{_ADMISSION}/mutatingwebhookconfigurations",
    f"{_ADMISSION}/validatingwebhookconfigurations",
    f"{_ADMISSION}/validatingadmissionpolicies",
    f"{_ADMISSION}/validatingadmissionpolicybindings",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
)
_NAMESPACED: Final = (
    ("/api/v1", ("pods", "services", "secrets", "serviceaccounts", "resourcequotas", "limitranges")),
    ("/apis/apps/v1", ("deployments", "daemonsets", "statefulsets", "replicasets")),
    ("/apis/batch/v1", ("jobs", "cronjobs")),
    (_RBAC, ("roles", "rolebindings")),
    (_DEVICES, ("resourceclaims", "resourceclaimtemplates")),
)
_SHARED: Final = ("default", NAMESPACE)
"""Namespaces that no test owns. Those of tests go with all that is in them."""
_BUILT_IN: Final = "kubernetes.io/bootstrapping"
_GOING: Final = 60.0
"""Seconds until objects that were deleted are gone."""


def _fingerprint(obj: Object) -> str:
    """What people write of an object: neither status nor what the API server notes in the metadata."""
    content: dict[str, Any] = {key: value for key, value in obj.items() if key not in {"metadata", "status"}}
    content["metadata"] = {key: obj["metadata"].get(key) for key in ("labels", "annotations", "finalizers")}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def inventory(api: Api) -> dict[str, str]:
    """Fingerprints of all objects that tests share, by resource and name. Built-in roles are left out."""
    paths = [
        *_CLUSTER,
        *(
            f"{group}/namespaces/{namespace}/{resource}"
            for group, resources in _NAMESPACED
            for resource in resources
            for namespace in _SHARED
        ),
    ]
    found: dict[str, str] = {}
    for path in paths:
        for each in api.request("GET", path).body["items"]:
            metadata = each["metadata"]
            going = path == "/api/v1/namespaces" and "deletionTimestamp" in metadata
            if not going and _BUILT_IN not in metadata.get("labels", {}):
                place = f"{metadata['namespace']}/" if "namespace" in metadata else ""
                found[f"{path.rpartition('/')[2]} {place}{metadata['name']}"] = _fingerprint(each)
    return found


def differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """What was added, changed and removed, in words."""
    words = {
        **dict.fromkeys(after.keys() - before.keys(), "added"),
        **dict.fromkeys(before.keys() - after.keys(), "removed"),
        **{name: "changed" for name in before.keys() & after.keys() if before[name] != after[name]},
    }
    return [f"{word}: {name}" for name, word in sorted(words.items())]


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

    def give_back(self) -> list[str]:
        """What differs from before. If something does, the control plane stops."""
        assert self._plane is not None, "no control plane was taken"
        api, left = self._plane.admin, ["the API server does not answer"]

        def clean() -> bool:
            left[:] = differences(self._before, inventory(api))
            return not left

        try:
            eventually("tests to leave nothing", clean, timeout=self._going, interval=0.2)
        except (TimeoutError, httpx.HTTPError):
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
