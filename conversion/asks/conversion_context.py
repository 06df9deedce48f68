"""Inputs of conversion other than the pod: the server's settings and facts about the cluster."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping

from conversion.asks.steering import Mode, Steering
from conversion.claims.families import Families
from conversion.claims.pools import NO_POOLS, NeuronPools
from conversion.facts import ClusterView
from neuron import known_faults, names
from neuron.hardware.instances import Catalogue, Observation


@dataclasses.dataclass(frozen=True, slots=True)
class ConversionOptions:
    """The server's settings for conversion.

    Attributes:
        mode: used if neither pod, namespace nor policy sets one.
        device_class: DeviceClass of generated requests.
        excluded_namespaces: namespaces whose pods are not changed.
        hint_toleration: whether to add the toleration of the Neuron taint.
        hint_affinity: whether to require the instance types that can serve the pod.
        hint_scheduler: whether to replace the scheduler names of the scheduler extension.
        on_template_failure: `deny` or `admit` a pod whose template cannot be created.
        families: families that the cluster has, used where pod, policies, ResourceSlices and Nodes name none.
        kubernetes_version: of the control plane; empty: that of the cluster.
        karpenter_serves_claims: whether Karpenter makes nodes for pods with claims.
    """

    mode: str = Mode.CONVERT
    device_class: str = names.DEVICE_CLASS
    excluded_namespaces: frozenset[str] = frozenset({"kube-system"})
    hint_toleration: bool = True
    hint_affinity: bool = True
    hint_scheduler: bool = True
    on_template_failure: str = "deny"
    families: tuple[str, ...] = ()
    kubernetes_version: str = ""
    karpenter_serves_claims: bool = False

    def tries_orders(self, seen: str) -> bool | None:
        """Whether the scheduler tries the devices of a request in every order; None: not known. `seen`: version."""
        return known_faults.tries_orders(self.kubernetes_version or seen)


@dataclasses.dataclass(frozen=True, slots=True)
class ConversionContext:
    """Settings of the server and facts about the cluster. Replaced when they change.

    Attributes:
        catalogue: instance types, completed by ResourceSlices.
        extended_resources: `extendedResourceName` -> DeviceClass (KEP-5004).
        labels: values of the Nodes' instance-type label by type, where they are not the types' names.
        class_names: names of all DeviceClasses; None if they are not known.
        pools: of autoscalers, and the nodes that no pool made.
        shares_counted: whether claims can share devices of the cluster, and all its devices say how many cores they
            have, so that every one serves a request for 0 cores.
    """

    catalogue: Catalogue
    families: Families
    extended_resources: Mapping[str, str]
    options: ConversionOptions
    labels: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    class_names: frozenset[str] | None = None
    pools: NeuronPools = NO_POOLS
    shares_counted: bool = False

    def of_other_versions(self) -> Iterator["ConversionContext"]:
        """The context with the schedulers before and after an upgrade of the control plane that changes claims."""
        for tries_orders in (True, False):
            catalogue = _scheduled(self.catalogue, tries_orders=tries_orders)
            if catalogue is not self.catalogue:
                yield dataclasses.replace(self, catalogue=catalogue)

    def label_values(self, types: Iterable[str]) -> tuple[str, ...]:
        """Values of the instance-type label on nodes of these types."""
        return tuple(value for name in types for value in self.labels.get(name, (name,)))


@functools.lru_cache(maxsize=8)
def _scheduled(catalogue: Catalogue, *, tries_orders: bool) -> Catalogue:
    """One catalogue for all calls: claims are remembered for its entries."""
    return catalogue.scheduled(tries_orders=tries_orders)


def conversion_context(options: ConversionOptions, catalogue: Catalogue, cluster: ClusterView) -> ConversionContext:
    """The context by the current state of the cluster's caches."""
    observations = cluster.observations()
    known = catalogue.observed(observations)
    known = known.scheduled(tries_orders=options.tries_orders(cluster.kubernetes_version()))
    supply = cluster.supply()
    pools = NeuronPools(supply, known)
    # What a dynamic pool can make is in its NodePool, whether or not this process has seen its nodes.
    seen = {name for name, each in observations.items() if not each.pooled or supply.problem}
    in_use = {entry.family for entry in known if entry.name in seen}
    in_use |= pools.families(dynamic=options.karpenter_serves_claims)
    families = Families(
        seen=tuple(family for family in known.families() if family in in_use), declared=options.families
    )
    extended_resources = dict(cluster.extended_resources())
    labels = _labels(known, observations)
    devices = [each for each in observations.values() if each.devices]
    return ConversionContext(
        known,
        families,
        extended_resources,
        options,
        labels,
        cluster.class_names(),
        pools,
        any(each.shares_cores for each in devices) and all(each.counts_cores for each in devices),
    )


def _labels(catalogue: Catalogue, observations: Mapping[str, Observation]) -> dict[str, tuple[str, ...]]:
    """On SageMaker HyperPod, nodes are labelled `ml.<type>`; a type that was not seen there may have either value."""
    seen = {name: observation.labels for name, observation in observations.items() if observation.labels}
    if all(labels == (name,) for name, labels in seen.items()):
        return {}
    return {name: seen.get(name, (name, names.SAGEMAKER_PREFIX + name)) for name in catalogue.names()}


def steered(context: ConversionContext, steering: Steering) -> ConversionContext:
    """The context with the policy's families and DeviceClass."""
    if not steering.families and steering.device_class is None:
        return context
    options = context.options
    if steering.device_class is not None:
        options = dataclasses.replace(options, device_class=steering.device_class)
    families = dataclasses.replace(context.families, allowed=steering.families)
    return dataclasses.replace(context, families=families, options=options)
