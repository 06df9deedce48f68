"""Certificates of the webhook's own making: a CA, and the serving certificate it vouches for.

Belongs here: making, storing and checking certificates.
Must not be here: anything about Neuron, Kubernetes or HTTP.
Imported by `webhook`; imports none of ours.
"""
