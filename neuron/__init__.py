"""The pure domain: what Neuron devices are, what a pod asks of them, and the claim that asks the same of DRA.

Belongs here: names, the instance catalogue, topology, demand, opaque configs, template bodies.
Must not be here: I/O, a clock, randomness, the environment, logging, Kubernetes clients.
May be imported by every other package; imports none of them.
"""
