"""The pure domain: Neuron devices, the devices that a pod requests, and the claim that requests them from DRA.

Contains names, the instance catalogue, topology, demand, opaque configs and template bodies. No I/O, clock, randomness,
environment, logging or Kubernetes client. All other packages may import it; it imports none of them.
"""
