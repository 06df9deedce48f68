"""The kubelet plugin: a DRA driver for Neuron devices. sysfs -> slices; claim -> checkpoint -> CDI spec.

It has discovery, ResourceSlices, the kubelet's gRPC services and the state that survives a crash. The Neuron rules are
in `neuron`, its layers in pyproject.toml.

Read in this order: `ports` -> `sysfs` -> `slices` -> `publish`, and `checkpoint` -> `cdi` -> `prepare` -> `service`.
"""
