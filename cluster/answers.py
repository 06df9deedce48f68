"""What a store of the cluster answers: the types of its answers, and the parts of it that its readers need.

Every answer is known, none, or not seen. A collection of which all objects were read has no others: what is missing
there is none. Of any other collection, what is missing was not seen, and the answer is None.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from conversion.facts import ClusterView, DeviceView, NamespaceFacts


class ClaimView(DeviceView, Protocol):
    """Facts that `/validate` needs in addition to `ClusterView`. Reads caches, except for `exist`."""

    @property
    def claim_version(self) -> int:
        """Grows whenever `device_shapes` or `device_classes` changes."""

    def resizers(self, namespace: str) -> Mapping[tuple[str, str], str]:
        """VerticalPodAutoscalers that resize pods in place, by kind and name of the workload; empty: none is known."""

    async def exist(self, kind: str, namespace: str, names: Iterable[str]) -> Mapping[str, bool | None]:
        """Request from the API server which ResourceClaims or ResourceClaimTemplates exist.

        The caches do not have an object that was applied a moment ago. Takes at most a second, and less than the time
        that the review has left (`webhook.reviews.worker_threads.seconds_left`), for any number of names. Does not
        raise.

        Returns:
            For each name whether it exists; None if it is not known: no cluster, no permission, too many names, or no
            answer in time.
        """


class NamespaceView(Protocol):
    """Facts about namespaces for policies. Reads caches."""

    def namespace(self, name: str) -> NamespaceFacts:
        """Settings of a namespace; `NO_FACTS` if it is unknown."""

    def namespace_labels(self, name: str) -> Mapping[str, str] | None:
        """Labels of a namespace; None if it is unknown."""

    def namespace_object(self, name: str) -> Mapping[str, object] | None:
        """A Namespace with all fields that policies can read (`neuron.api.fields`); None if they are unknown."""

    def quotas(self, name: str) -> Mapping[str, int] | None:
        """Devices that the ResourceQuotas of a namespace allow, by the resource's name in `spec.hard`.

        Empty if no quota limits them; None if the quotas are not known yet.
        """


class ServerView(ClusterView, ClaimView, NamespaceView, Protocol):
    """All facts about the cluster that the server and policies need."""
