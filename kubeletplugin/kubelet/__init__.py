"""The kubelet's gRPC protocols: registration, DRA plugin, health, PodResources."""
