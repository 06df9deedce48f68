"""The objects of AWS's UltraServer operator (`neuron.aws.com`, served as v1beta1).

A user creates a NeuronUltraServerWorkload; the operator allocates UltraServers to it and then makes the
ResourceClaimTemplate that it names, whose claims select its nodes by the attribute `workloadId`. A NeuronUltraServer is
made by the operator for each UltraServer.
"""

from collections.abc import Mapping
from typing import Final

from neuron import names
from neuron.api.fields import mapping, text

GROUP: Final = names.DRIVER
VERSION: Final = "v1beta1"
"""The only version of the CustomResourceDefinitions."""
WORKLOAD: Final = "NeuronUltraServerWorkload"
ULTRASERVER: Final = "NeuronUltraServer"
ALLOCATED: Final = frozenset({"Allocated", "Bound"})
"""States of a workload that has its UltraServers: of the CustomResourceDefinition, and of AWS's documentation."""


def template_of(workload: Mapping[str, object]) -> str:
    """The name of the ResourceClaimTemplate that the operator makes: by default that of the workload."""
    named = mapping(mapping(workload.get("spec")).get("resourceClaimTemplate")).get("name")
    return text(named) or text(mapping(workload.get("metadata")).get("name"))


def state_of(workload: Mapping[str, object]) -> str:
    """`status.state`; empty if the operator has not written one."""
    return text(mapping(workload.get("status")).get("state"))
