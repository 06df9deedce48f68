"""Names that this project shares with users, Kubernetes and the AWS Neuron DRA driver."""

import functools
import re
from typing import Final

DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
"""Names of containers, of namespaces and of requests, for `fullmatch` (RFC 1123)."""

DRIVER: Final = "neuron.aws.com"
"""The DRA driver's name, and the domain of its unqualified attributes."""

DRIVER_PROGRAM: Final = "neuron-dra-kubelet-plugin"
"""Our driver: its program, its DaemonSet, and its name as a client of the API server, which `managedFields` have."""

DEVICE_CLASS: Final = "neuron.aws.com"
"""The DeviceClass that the driver's chart installs."""
CLASS_QUOTA: Final = ".deviceclass.resource.k8s.io/devices"
"""Behind the name of a DeviceClass, in `spec.hard` of a ResourceQuota: how many devices claims may request."""

EFA_DEVICE_CLASS: Final = "efa.networking.k8s.aws"
"""The DeviceClass of EFA interfaces that the chart of AWS's DRA network driver (DRANET) installs."""

CONFIG_API_VERSION: Final = "neuron.aws.com/v1"
"""apiVersion of the opaque configs `NeuronConfig` and `UltraServerConfig`."""

# --- resources of the device plugin --------------------------------------------------------------------

RESOURCE_NEURON: Final = "aws.amazon.com/neuron"
"""Whole devices."""

RESOURCE_NEURONDEVICE: Final = "aws.amazon.com/neurondevice"
"""Whole devices; the older alias, removed from the device plugin in Neuron SDK 2.22."""

RESOURCE_NEURONCORE: Final = "aws.amazon.com/neuroncore"
"""NeuronCores."""

LEGACY_RESOURCES: Final = (RESOURCE_NEURON, RESOURCE_NEURONDEVICE, RESOURCE_NEURONCORE)

RESOURCE_EFA: Final = "vpc.amazonaws.com/efa"
"""EFA interfaces, by the device plugin of AWS for EFA."""

LEGACY_SCHEDULERS: Final = ("my-scheduler", "neuron-scheduler")
"""Scheduler names under which AWS deploys the Neuron scheduler extension (Helm chart, OpenShift operator)."""

DEFAULT_SCHEDULER: Final = "default-scheduler"

NEURON_TAINT_KEY: Final = "aws.amazon.com/neuron"
"""Key of the taint of Neuron nodes, by convention of the published Terraform modules."""

# --- annotations of pods and namespaces -----------------------------------------------------------------

ANNOTATION_CONVERT: Final = "neuron.aws.com/convert"
ANNOTATION_LNC: Final = "neuron.aws.com/logical-neuron-core"
ANNOTATION_INSTANCE_TYPE: Final = "neuron.aws.com/instance-type"
ANNOTATION_ULTRASERVER_MODE: Final = "neuron.aws.com/ultraserver-mode"
ANNOTATION_ROUND_CORES: Final = "neuron.aws.com/round-cores"
ANNOTATION_TEMPLATE: Final = "neuron.aws.com/template"
"""On a pod: the template of a ClaimTemplate policy that it asks for instead of limits, as `[CONTAINER=]TEMPLATE`."""
ANNOTATION_ENRICH: Final = "neuron.aws.com/enrich-claims"
"""On claims, templates and Namespaces."""
ANNOTATION_KARPENTER_SERVES: Final = "neuron.aws.com/karpenter-serves-claims"
"""On a Namespace: `true` if Karpenter makes nodes for its pods with claims."""

# --- marks of converted pods ------------------------------------------------------------------------------

LABEL_CONVERTED: Final = "neuron.aws.com/converted"
ANNOTATION_CONVERTED_FROM: Final = "neuron.aws.com/converted-from"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "neuron-dra"
POD_CLAIM: Final = "neuron"
"""The converted pod's entry in `spec.resourceClaims`."""
POD_CLAIM_FALLBACK: Final = "neuron-dra"
"""The same, if the user's pod has a claim `neuron`."""
TEMPLATE_PREFIX: Final = "neuron-"

ANNOTATION_ENRICHED: Final = "neuron.aws.com/enriched"
"""On a claim or template that another program wrote: what was added to it, as JSON."""

ANNOTATION_PRUNE_AFTER: Final = "neuron.aws.com/prune-after"
"""On a generated template: the time (RFC 3339) at which it is deleted, unless the annotation is removed before."""

ANNOTATION_TEMPLATE_DIGEST: Final = "neuron.aws.com/template-digest"
"""On a template that a policy carries: the hash of its spec."""

ANNOTATION_TEMPLATE_VERSION: Final = "neuron.aws.com/template-version"
"""On a template of a ClaimTemplate policy: the version. On a pod that uses some: `NAME=VERSION`, with commas."""

# --- attributes that the driver publishes in ResourceSlices ----------------------------------------------

ATTRIBUTE_INSTANCE_TYPE: Final = "instanceType"
ATTRIBUTE_RESOURCE_TYPE: Final = "resourceType"
ATTRIBUTE_ULTRASERVER: Final = "ultraserverId"
ATTRIBUTE_WORKLOAD: Final = "workloadId"
CAPACITY_CORES: Final = "neuroncores"
"""Capacity of a device: its physical cores, whatever the LNC. Claims consume it of shared devices (KEP-5075)."""
CORES_SPELLINGS: Final = (CAPACITY_CORES, f"{DRIVER}/{CAPACITY_CORES}")
"""The capacity without and with the driver's domain."""
ATTRIBUTE_DEFAULT_LNC: Final = "defaultLogicalNeuronCore"
"""The default size of a logical NeuronCore that a file of the node sets. Only our own driver publishes it."""
ANNOTATION_NODE_CHECKS: Final = "neuron.aws.com/node-checks"
"""On the first ResourceSlice of a node: what the driver's checks of the node found, as JSON."""
RESOURCE_TYPE_DEVICE: Final = "neuron_device"
RESOURCE_TYPE_NODE: Final = "neuron_node"
ATTRIBUTE_DEVICE_ID: Final = "deviceId"
STANDARD_DOMAIN: Final = "resource.kubernetes.io/"
"""Domain of Kubernetes' standard attributes, which drivers of all vendors publish."""
ATTRIBUTE_PCIE_ROOT: Final = f"{STANDARD_DOMAIN}pcieRoot"
ATTRIBUTE_NUMA_NODE: Final = f"{STANDARD_DOMAIN}numaNode"


@functools.cache
def device_group_attribute(size: int) -> str:
    """The fully qualified attribute that is equal on all devices of one connected group of `size`."""
    return f"resource.aws.com/devicegroup{size}_id"


# --- the Neuron runtime's environment --------------------------------------------------------------------

ENV_NUM_CORES: Final = "NEURON_RT_NUM_CORES"
ENV_VISIBLE_CORES: Final = "NEURON_RT_VISIBLE_CORES"
CORE_VARIABLES: Final = (ENV_NUM_CORES, ENV_VISIBLE_CORES)
"""Variables with which users choose cores themselves."""
ENV_VISIBLE_DEVICES: Final = "AWS_NEURON_VISIBLE_DEVICES"
"""Variable with which Neuron's hook for container runtimes takes devices of the host."""
PINNING_VARIABLES: Final = (ENV_VISIBLE_CORES, ENV_VISIBLE_DEVICES)
LNC_VARIABLES: Final = ("NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE")
"""Variables of the logical NeuronCore; the second one is the older name."""

# --- Kubernetes labels and annotations --------------------------------------------------------------------

LABEL_INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
LABEL_INSTANCE_TYPE_BETA: Final = "beta.kubernetes.io/instance-type"
SAGEMAKER_PREFIX: Final = "ml."
"""SageMaker HyperPod writes instance types as `ml.<type>`, also in the label."""
KARPENTER_POOL_LABELS: Final = ("karpenter.sh/nodepool", "karpenter.sh/provisioner-name")
"""Labels with the NodePool that made a node; the second one until Karpenter 0.32."""
LABEL_COMPUTE_TYPE: Final = "eks.amazonaws.com/compute-type"
AUTO_MODE: Final = "auto"
"""Value of the label on nodes of EKS Auto Mode."""
ANNOTATION_MIRROR_POD: Final = "kubernetes.io/config.mirror"
LWS_EXCLUSIVE_TOPOLOGY: Final = "leaderworkerset.sigs.k8s.io/exclusive-topology"


def ultraserver_topology_label(nodes: int) -> str:
    """The node label that nodes of one UltraServer set of 2 or 4 share."""
    return f"{ULTRASERVER_LABELS}server-id-{nodes}"


ULTRASERVER_LABELS: Final = "neuron.amazonaws.com/ultraserver-"
"""Prefix of the node labels about UltraServers (AWS's device plugin sets them, too)."""

NODE_DEVICE: Final = "neuron-node"
"""Name that our driver gives the device that stands for a whole UltraServer node."""

LABEL_PRESENT: Final = "neuron.amazonaws.com/present"
"""On a Node with Neuron devices: `true`. AWS's agents, such as Neuron Observer, run where it is; AWS's device plugin
sets it (Neuron documentation, "How to install and configure Neuron Observer on Amazon EKS")."""

TAINT_DEVICE_PLUGIN: Final = "neuron.aws.com/device-plugin"
"""Key of the taint of devices that a device plugin offers as well."""

TAINT_HELD: Final = "neuron.aws.com/held"
"""Key of the taint of devices that the driver keeps from new claims, because they are or may be in use."""

TAINT_CORDONED: Final = "neuron.aws.com/cordoned"
"""Key of the taint of devices that an administrator has cordoned (`neuron-dra cordon`)."""

ANNOTATION_CORDONED: Final = "neuron.aws.com/cordoned"
"""On a Node: its cordoned devices, where the API server serves no DeviceTaintRules. On such a rule: what it cordons."""

LABEL_SHARE_CORES: Final = "neuron.aws.com/share-cores"
"""Label of a Node: whether claims can share the cores of its devices, `on` or `off`; overrides the driver's setting."""

LABEL_ULTRASERVER_PUBLISH: Final = "neuron.aws.com/ultraserver-publish"
"""On a Node, set by an administrator: `devices` or `node`. What the driver publishes where it cannot publish both."""


# --- limits of resource.k8s.io/v1 (staging/src/k8s.io/api/resource/v1/types.go) ----------------------------

MAX_REQUESTS_PER_CLAIM: Final = 32
MAX_DEVICES_PER_CLAIM: Final = 32
MAX_FIRST_AVAILABLE: Final = 8
MAX_CONSTRAINTS_PER_CLAIM: Final = 32
MAX_SELECTOR_LENGTH: Final = 10 * 1024

EVENT_CONTROLLER: Final = "neuron.aws.com/webhook"
EVENT_REASON: Final = "ConversionRefused"
"""Controller and reason of the Events about pods that conversion refuses."""

LOGICAL_NC_FILE: Final = "/opt/aws/neuron/logical_nc_config"
"""Where AWS's device plugin reads the node's default size of a logical NeuronCore."""
