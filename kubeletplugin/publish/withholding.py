"""What is not published because of known faults of the control plane (`neuron.known_faults`). Pure."""

import dataclasses
from collections.abc import Mapping
from typing import Final

from kubeletplugin.publish.slices import ClusterFeatures, NodeDevices, publishes_whole_node
from neuron.known_faults import Withheld, parse, sentence, withheld

_COUNTERS_APART_SINCE: Final = (1, 35, 0)
_PARTITION_TYPES_SINCE: Final = (1, 37, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Withholding:
    """What the driver does with a control plane of one version.

    Attributes:
        version: `gitVersion` of the API server; empty before it was read. Of a version that cannot be parsed, no fault
            is known.
        gates: by name of a field of `ClusterFeatures`, what an administrator decided; then neither the version nor a
            known fault decides. What the API server drops stays off.
    """

    version: str = ""
    gates: Mapping[str, bool] = dataclasses.field(default_factory=dict)

    def features(self, kept: ClusterFeatures) -> ClusterFeatures:
        """The features to use, of those that the API server keeps."""
        number, gates = parse(self.version), self.gates
        return dataclasses.replace(
            kept,
            counters=kept.counters and gates.get("counters", Withheld.COUNTERS not in withheld(self.version)),
            shares=kept.shares and gates.get("shares", True),
            separate_counters=gates.get("separate_counters", number is None or number >= _COUNTERS_APART_SINCE),
            partition_types=gates.get("partition_types", number is not None and number >= _PARTITION_TYPES_SINCE),
        )

    def shares(self, found: NodeDevices, features: ClusterFeatures) -> bool:
        """Whether the devices may be shared; `features` as of `features`."""
        if "shares" in self.gates:
            return self.gates["shares"]
        counted = features.counters and publishes_whole_node(found, features)
        return not (counted and Withheld.SHARES in withheld(self.version))

    def reasons(self, found: NodeDevices, kept: ClusterFeatures) -> tuple[str, ...]:
        """What is withheld from this node, and why: sentences for the log."""
        said = []
        for what, fault in withheld(self.version).items():
            if what.value in self.gates:
                continue
            counters = what is Withheld.COUNTERS and kept.counters and found.is_ultraserver
            shares = what is Withheld.SHARES and found.shares_cores and not self.shares(found, self.features(kept))
            if counters or shares:
                said.append(f"{sentence(fault, self.version)} {fault.remedy}")
        return tuple(said)
