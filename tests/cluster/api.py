"""The Kubernetes API as the tests use it: raw JSON over HTTPS, so that nothing is dropped on the way."""

import dataclasses
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx

from tests.cluster.pki import KeyPair

Object = dict[str, Any]

_PATHS: Final = {
    "Namespace": ("api/v1", "namespaces"),
    "Node": ("api/v1", "nodes"),
    "Pod": ("api/v1", "pods"),
    "Event": ("api/v1", "events"),
    "ConfigMap": ("api/v1", "configmaps"),
    "Secret": ("api/v1", "secrets"),
    "LimitRange": ("api/v1", "limitranges"),
    "ResourceQuota": ("api/v1", "resourcequotas"),
    "Service": ("api/v1", "services"),
    "ServiceAccount": ("api/v1", "serviceaccounts"),
    "Deployment": ("apis/apps/v1", "deployments"),
    "ReplicaSet": ("apis/apps/v1", "replicasets"),
    "StatefulSet": ("apis/apps/v1", "statefulsets"),
    "DaemonSet": ("apis/apps/v1", "daemonsets"),
    "Job": ("apis/batch/v1", "jobs"),
    "CronJob": ("apis/batch/v1", "cronjobs"),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets"),
    "DeviceClass": ("apis/resource.k8s.io/v1", "deviceclasses"),
    "ResourceSlice": ("apis/resource.k8s.io/v1", "resourceslices"),
    "ResourceClaim": ("apis/resource.k8s.io/v1", "resourceclaims"),
    "ResourceClaimTemplate": ("apis/resource.k8s.io/v1", "resourceclaimtemplates"),
    "PodGroup": ("apis/scheduling.k8s.io/v1alpha2", "podgroups"),
    "ClusterRole": ("apis/rbac.authorization.k8s.io/v1", "clusterroles"),
    "ClusterRoleBinding": ("apis/rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    "Role": ("apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "MutatingAdmissionPolicy": ("apis/admissionregistration.k8s.io/v1", "mutatingadmissionpolicies"),
    "MutatingAdmissionPolicyBinding": ("apis/admissionregistration.k8s.io/v1", "mutatingadmissionpolicybindings"),
    "MutatingWebhookConfiguration": (
        "apis/admissionregistration.k8s.io/v1",
        "mutatingwebhookconfigurations",
    ),
    "ValidatingWebhookConfiguration": (
        "apis/admissionregistration.k8s.io/v1",
        "validatingwebhookconfigurations",
    ),
    "CustomResourceDefinition": ("apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "ResourceFlavor": ("apis/kueue.x-k8s.io/v1beta2", "resourceflavors"),
    "ClusterQueue": ("apis/kueue.x-k8s.io/v1beta2", "clusterqueues"),
    "LocalQueue": ("apis/kueue.x-k8s.io/v1beta2", "localqueues"),
    "Workload": ("apis/kueue.x-k8s.io/v1beta2", "workloads"),
    "LeaderWorkerSet": ("apis/leaderworkerset.x-k8s.io/v1", "leaderworkersets"),
}

_MERGE_PATCH: Final = {"content-type": "application/merge-patch+json"}


class ApiError(AssertionError):
    """The API server refused; `status` is the metav1.Status it sent."""

    def __init__(self, status: Object) -> None:
        super().__init__(status.get("message", str(status)))
        self.status = status

    @property
    def code(self) -> int:
        """HTTP code of the refusal."""
        return int(self.status.get("code", 0))


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What the API server stored, and what it warned about."""

    body: Object
    warnings: tuple[str, ...]


def api_version(kind: str) -> str:
    """`apiVersion` under which the tests use a kind."""
    return _PATHS[kind][0].partition("/")[2]


def warnings_of(response: httpx.Response) -> tuple[str, ...]:
    # RFC 7234 warning header, as the API server writes it: 299 - "text"
    texts = (value.partition('"')[2].rpartition('"')[0] for value in response.headers.get_list("warning"))
    return tuple(text.replace('\\"', '"').replace("\\\\", "\\") for text in texts)


class Api:
    """One client identity at one API server."""

    def __init__(self, server: str, authority: Path, client: KeyPair) -> None:
        context = ssl.create_default_context(cafile=str(authority))
        context.load_cert_chain(client.certificate, client.key)
        # Idle connections stay open: the pool closes one that it has just assigned to another thread (httpcore #1110).
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=None)
        self._http = httpx.Client(base_url=server, verify=context, timeout=40, limits=limits, trust_env=False)

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def healthy(self, path: str = "/readyz") -> bool:
        """Whether a health endpoint answers 200."""
        try:
            return self._http.get(path, timeout=2).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    @staticmethod
    def _path(kind: str, namespace: str, name: str = "", subresource: str = "") -> str:
        version, plural = _PATHS[kind]
        middle = f"/namespaces/{namespace}" if namespace and kind != "Namespace" else ""
        return "/" + "/".join(filter(None, (version + middle, plural, name, subresource)))

    def request(self, method: str, path: str, **kwargs: Any) -> Answer:
        """Any call.

        Raises:
            ApiError: it answered with an error.
        """
        response = self.answer(method, path, **kwargs)
        body: Object = response.json()
        if response.is_error:
            raise ApiError(body)
        return Answer(body, warnings_of(response))

    def answer(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """Any call; also an error is an answer."""
        return self._http.request(method, path, **kwargs)

    def create(
        self, obj: Mapping[str, Any], namespace: str = "", subresource: str = "", *, dry_run: bool = False
    ) -> Answer:
        """Create an object; for a subresource, that of the object named in its metadata."""
        name = obj["metadata"]["name"] if subresource else ""
        path = self._path(obj["kind"], namespace, name, subresource)
        return self.request("POST", path, json=obj, params={"dryRun": "All"} if dry_run else {})

    def get(self, kind: str, name: str, namespace: str = "") -> Object:
        """One object."""
        return self.request("GET", self._path(kind, namespace, name)).body

    def find(self, kind: str, name: str, namespace: str = "") -> Object | None:
        """One object, or None where there is none."""
        try:
            return self.get(kind, name, namespace)
        except ApiError as error:
            if error.code == httpx.codes.NOT_FOUND:
                return None
            raise

    def list(self, kind: str, namespace: str = "", **selectors: str) -> list[Object]:
        """All objects of a kind; `selectors` are query parameters such as labelSelector."""
        items: list[Object] = self.request("GET", self._path(kind, namespace), params=selectors).body["items"]
        return items

    def merge(
        self, kind: str, name: str, patch: Mapping[str, Any], namespace: str = "", subresource: str = ""
    ) -> Answer:
        """JSON merge patch."""
        path = self._path(kind, namespace, name, subresource)
        return self.request("PATCH", path, json=patch, headers=_MERGE_PATCH)

    def delete(self, kind: str, name: str, namespace: str = "", *, force: bool = False) -> None:
        """Delete an object; absent is fine. `force` skips the grace period, which fake nodes never end."""
        params = {"gracePeriodSeconds": "0"} if force else {}
        try:
            self.request("DELETE", self._path(kind, namespace, name), params=params)
        except ApiError as error:
            if error.code != httpx.codes.NOT_FOUND:
                raise

    def delete_all(self, kind: str, namespace: str, *, force: bool = False) -> None:
        """Delete all objects of a kind in a namespace."""
        params = {"gracePeriodSeconds": "0"} if force else {}
        response = self._http.request("DELETE", self._path(kind, namespace), params=params)
        # Of a success nothing is read: it holds the objects, which may be nested deeper than Python reads JSON.
        if response.is_error:
            raise ApiError(response.json())
