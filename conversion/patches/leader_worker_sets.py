"""Adds the exclusive topology that an UltraServer mode needs to a LeaderWorkerSet on CREATE. Pure.

It is the only workload that is changed, and only its metadata: LeaderWorkerSet places groups by its own annotation,
before there are pods.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from conversion.asks.pod_demand import claims_from_templates
from conversion.asks.steering import NO_STEERING, Mode, Steering, annotated_settings, combined
from conversion.facts import ClusterView, NamespaceFacts
from conversion.objects import pods
from conversion.patches.decision import Decision, Outcome, add, set_members, unchanged
from neuron import names
from neuron.findings import short, warning


class _Annotations(Struct, frozen=True):
    exclusive_topology: str | None = msgspec.field(name=names.LWS_EXCLUSIVE_TOPOLOGY, default=None)


class _WorkloadMetadata(Struct, frozen=True):
    annotations: _Annotations | None = None


class _LeaderWorkerTemplate(Struct, frozen=True):
    leaderTemplate: pods.Pod | None = None  # noqa: N815 - the API's spelling
    workerTemplate: pods.Pod | None = None  # noqa: N815


class _WorkloadSpec(Struct, frozen=True):
    leaderWorkerTemplate: _LeaderWorkerTemplate | None = None  # noqa: N815


class LeaderWorkerSet(Struct, frozen=True):
    """The fields of a `leaderworkerset.x-k8s.io/v1` LeaderWorkerSet that are read."""

    metadata: _WorkloadMetadata | None = None
    spec: _WorkloadSpec = _WorkloadSpec()

    @property
    def templates(self) -> Iterator[pods.Pod]:
        """Its pod templates."""
        both = self.spec.leaderWorkerTemplate
        yield from (template for template in (both and both.leaderTemplate, both and both.workerTemplate) if template)


_DECODER = msgspec.json.Decoder(LeaderWorkerSet)


def decode(raw: bytes | msgspec.Raw) -> LeaderWorkerSet:
    """Decode a LeaderWorkerSet from JSON.

    Raises:
        conversion.objects.pods.UnreadableError: it is not JSON, or a field has the wrong type.
    """
    return _DECODER.decode(raw)


def view(data: Mapping[str, object]) -> LeaderWorkerSet:
    """The view of a LeaderWorkerSet that is Python data.

    Raises:
        conversion.objects.pods.UnreadableError: a field has the wrong type.
    """
    return decode(json.dumps(data, default=str).encode())


def pod_templates(workload: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The pod templates of a decoded LeaderWorkerSet, in the order of `LeaderWorkerSet.templates`."""
    both = (workload.get("spec") or {}).get("leaderWorkerTemplate") or {}
    return [both[name] for name in ("leaderTemplate", "workerTemplate") if both.get(name) is not None]


def named_templates(workload: LeaderWorkerSet) -> frozenset[str]:
    """Names of the ResourceClaimTemplates that its pods use.

    Raises:
        conversion.objects.pods.UnreadableError: a field has the wrong type.
    """
    return frozenset(name for template in workload.templates for _, name in claims_from_templates(template))


def ultraserver_modes(named: Iterable[str], namespace: str, cluster: ClusterView) -> dict[str, int]:
    """UltraServer modes of the known ResourceClaimTemplates that have one, by name."""
    known = ((name, cluster.template_ultraserver_mode(namespace, name)) for name in named)
    return {name: mode for name, mode in known if mode is not None}


def place(
    workload: LeaderWorkerSet,
    modes_of: Mapping[str, int],
    facts: NamespaceFacts,
    default: Mode,
    steerings: Sequence[Steering] = (),
) -> Decision:
    """Add the exclusive-topology annotation that fits the UltraServer mode of the pod templates.

    Args:
        modes_of: UltraServer modes of ResourceClaimTemplates of its namespace, by name.
        default: the server's mode.
        steerings: settings of the policies that match the pods of each template; empty without policies.
    """
    nodes = {
        mode
        for template, steering in itertools.zip_longest(workload.templates, steerings, fillvalue=NO_STEERING)
        if isinstance(template, pods.Pod)
        and (mode := _ultraserver_mode(template, modes_of, facts, default, steering)) is not None
    }
    return placed(workload, nodes, steerings)


def placed(workload: LeaderWorkerSet, modes_of_pods: Iterable[int], steerings: Sequence[Steering] = ()) -> Decision:
    """Add the exclusive-topology annotation that fits the UltraServer modes of the pods.

    Args:
        modes_of_pods: nodes of the UltraServers that its pods ask for.
        steerings: as for `place`.
    """
    nodes = set(modes_of_pods)
    # A set of one node needs no topology.
    nodes.discard(1)
    if not nodes:
        return unchanged("no-ultraserver")
    if (off := next((each for each in steerings if not each.hints.exclusive_topology), None)) is not None:
        return Decision(Outcome.UNCHANGED, "topology-off-by-policy", audit={"scheduling-hint-policy": off.hints.policy})
    label = names.ultraserver_topology_label(max(nodes))
    annotations = workload.metadata and workload.metadata.annotations
    current = annotations.exclusive_topology if annotations else None
    if len(nodes) > 1 or (current is not None and current != label):
        finding = warning(
            "NEU212",
            f"metadata.annotations[{names.LWS_EXCLUSIVE_TOPOLOGY}]",
            f"exclusive-topology is {None if current is None else short(current)!r}, and the pods ask for UltraServers"
            f" of {' and '.join(map(str, sorted(nodes)))} nodes.",
            f"Use {label}.",
            short(current or ""),
        )
        return unchanged("topology-mismatch", finding)
    known = None if annotations is None else {names.LWS_EXCLUSIVE_TOPOLOGY: current}
    patch = [] if workload.metadata else [add("/metadata", {})]
    patch += set_members("/metadata/annotations", known, {names.LWS_EXCLUSIVE_TOPOLOGY: label})
    return Decision(Outcome.HINTED, "ultraserver", patch=tuple(patch)) if patch else unchanged("already-placed")


def _ultraserver_mode(
    template: pods.Pod, modes_of: Mapping[str, int], facts: NamespaceFacts, default: Mode, steering: Steering
) -> int | None:
    """The UltraServer mode of its pods: by a ResourceClaimTemplate that they use, or by annotation."""
    for _, name in claims_from_templates(template):
        if name in modes_of:
            return modes_of[name]
    settings = combined(annotated_settings(template.annotations, facts, default), steering)
    if settings.mode in (Mode.OFF, Mode.SHADOW) or not template.concerns_us:
        return None
    return settings.device_config.ultraserver_mode
