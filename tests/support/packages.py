"""The packages of this repository."""

from typing import Final

PACKAGES: Final = (
    "neuron",
    "checks",
    "conversion",
    "cluster",
    "kubecel",
    "policies",
    "webhook",
    "commands",
    "kubeletplugin",
    "certs",
    "runtime",
)
