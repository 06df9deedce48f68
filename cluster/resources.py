"""Every collection of the API that a program of ours reads or writes, declared once."""

from typing import Final

from runtime.api_server import RESOURCE_GROUP, Resource

CORE_EVENTS: Final = Resource("", "v1", "events")
CONFIG_MAPS: Final = Resource("", "v1", "configmaps")
LIMIT_RANGES: Final = Resource("", "v1", "limitranges")
NAMESPACES: Final = Resource("", "v1", "namespaces")
NODES: Final = Resource("", "v1", "nodes")
PODS: Final = Resource("", "v1", "pods")
POD_EVICTIONS: Final = Resource("", "v1", "pods/eviction")
POD_LOGS: Final = Resource("", "v1", "pods/log")
POD_TEMPLATES: Final = Resource("", "v1", "podtemplates")
REPLICATION_CONTROLLERS: Final = Resource("", "v1", "replicationcontrollers")
RESOURCE_QUOTAS: Final = Resource("", "v1", "resourcequotas")
SECRETS: Final = Resource("", "v1", "secrets")
SERVICES: Final = Resource("", "v1", "services")

DAEMON_SETS: Final = Resource("apps", "v1", "daemonsets")
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments")
ENDPOINT_SLICES: Final = Resource("discovery.k8s.io", "v1", "endpointslices")
EVENTS: Final = Resource("events.k8s.io", "v1", "events")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases")
MUTATING_CONFIGURATIONS: Final = Resource("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations")
VALIDATING_CONFIGURATIONS: Final = Resource("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations")
SELF_ACCESS_REVIEWS: Final = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews")
ACCESS_REVIEWS: Final = Resource("authorization.k8s.io", "v1", "subjectaccessreviews")

POD_DISRUPTION_BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets")

VERTICAL_POD_AUTOSCALERS: Final = Resource("autoscaling.k8s.io", "v1", "verticalpodautoscalers")

DEVICE_CLASSES: Final = Resource(RESOURCE_GROUP, "v1", "deviceclasses")
RESOURCE_CLAIMS: Final = Resource(RESOURCE_GROUP, "v1", "resourceclaims")
RESOURCE_CLAIM_TEMPLATES: Final = Resource(RESOURCE_GROUP, "v1", "resourceclaimtemplates")
RESOURCE_SLICES: Final = Resource(RESOURCE_GROUP, "v1", "resourceslices")

NODE_CLASSES: Final = Resource("karpenter.k8s.aws", "v1", "ec2nodeclasses")
NODE_GROUPS: Final = Resource("cluster.x-k8s.io", "v1beta1", "machinedeployments")
NODE_POOLS: Final = Resource("karpenter.sh", "v1", "nodepools")
