"""The subresources of Kubernetes' APIs that admission sees, with the kind of the object in a request about them."""

import dataclasses

_SCALE = ("autoscaling", "v1", "Scale")


@dataclasses.dataclass(frozen=True, slots=True)
class Subresource:
    """One subresource.

    Attributes:
        group: API group of the resource.
        version: its version.
        resource: plural name.
        name: of the subresource.
        kind: group, version and kind of the object in the request.
        operation: the operation of a request about it.
        namespaced: whether the resource is in namespaces.
    """

    group: str
    version: str
    resource: str
    name: str
    kind: tuple[str, str, str]
    operation: str = "UPDATE"
    namespaced: bool = True

    def __str__(self) -> str:
        return f"{self.resource}/{self.name}" + (f".{self.group}" if self.group else "")


def _status(group: str, version: str, *, namespaced: bool = True, **kinds: str) -> list[Subresource]:
    return [
        Subresource(group, version, resource, "status", (group, version, kind), namespaced=namespaced)
        for resource, kind in kinds.items()
    ]


SUBRESOURCES = (
    *_status(
        "",
        "v1",
        persistentvolumeclaims="PersistentVolumeClaim",
        pods="Pod",
        replicationcontrollers="ReplicationController",
        resourcequotas="ResourceQuota",
        services="Service",
    ),
    *_status("", "v1", namespaced=False, namespaces="Namespace", nodes="Node", persistentvolumes="PersistentVolume"),
    Subresource("", "v1", "namespaces", "finalize", ("", "v1", "Namespace"), namespaced=False),
    Subresource("", "v1", "nodes", "proxy", ("", "v1", "NodeProxyOptions"), "CONNECT", namespaced=False),
    Subresource("", "v1", "pods", "attach", ("", "v1", "PodAttachOptions"), "CONNECT"),
    Subresource("", "v1", "pods", "binding", ("", "v1", "Binding"), "CREATE"),
    Subresource("", "v1", "pods", "ephemeralcontainers", ("", "v1", "Pod")),
    Subresource("", "v1", "pods", "eviction", ("policy", "v1", "Eviction"), "CREATE"),
    Subresource("", "v1", "pods", "exec", ("", "v1", "PodExecOptions"), "CONNECT"),
    Subresource("", "v1", "pods", "portforward", ("", "v1", "PodPortForwardOptions"), "CONNECT"),
    Subresource("", "v1", "pods", "proxy", ("", "v1", "PodProxyOptions"), "CONNECT"),
    Subresource("", "v1", "pods", "resize", ("", "v1", "Pod")),
    Subresource("", "v1", "replicationcontrollers", "scale", _SCALE),
    Subresource("", "v1", "serviceaccounts", "token", ("authentication.k8s.io", "v1", "TokenRequest"), "CREATE"),
    Subresource("", "v1", "services", "proxy", ("", "v1", "ServiceProxyOptions"), "CONNECT"),
    *_status(
        "apps",
        "v1",
        daemonsets="DaemonSet",
        deployments="Deployment",
        replicasets="ReplicaSet",
        statefulsets="StatefulSet",
    ),
    *(Subresource("apps", "v1", each, "scale", _SCALE) for each in ("deployments", "replicasets", "statefulsets")),
    *_status("autoscaling", "v1", horizontalpodautoscalers="HorizontalPodAutoscaler"),
    *_status("autoscaling", "v2", horizontalpodautoscalers="HorizontalPodAutoscaler"),
    *_status("batch", "v1", cronjobs="CronJob", jobs="Job"),
    *_status("certificates.k8s.io", "v1", namespaced=False, certificatesigningrequests="CertificateSigningRequest"),
    Subresource(
        "certificates.k8s.io",
        "v1",
        "certificatesigningrequests",
        "approval",
        ("certificates.k8s.io", "v1", "CertificateSigningRequest"),
        namespaced=False,
    ),
    *_status("networking.k8s.io", "v1", ingresses="Ingress"),
    *_status("networking.k8s.io", "v1", namespaced=False, servicecidrs="ServiceCIDR"),
    *_status("policy", "v1", poddisruptionbudgets="PodDisruptionBudget"),
    *_status("apiregistration.k8s.io", "v1", namespaced=False, apiservices="APIService"),
    *_status("apiextensions.k8s.io", "v1", namespaced=False, customresourcedefinitions="CustomResourceDefinition"),
    *_status(
        "flowcontrol.apiserver.k8s.io",
        "v1",
        namespaced=False,
        flowschemas="FlowSchema",
        prioritylevelconfigurations="PriorityLevelConfiguration",
    ),
    *_status("storage.k8s.io", "v1", namespaced=False, volumeattachments="VolumeAttachment"),
    *_status("resource.k8s.io", "v1", resourceclaims="ResourceClaim"),
)
"""Those of Kubernetes 1.36 that can be written, without those that no policy sees; tests/cluster compares them with the
API server's discovery."""
