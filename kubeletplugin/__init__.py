"""The kubelet plugin: a DRA driver for Neuron devices. sysfs -> slices; claim -> checkpoint -> CDI spec.

It has discovery, ResourceSlices, the kubelet's gRPC services and the state that survives a crash. The Neuron rules are
in `neuron`, its layers in pyproject.toml.

Read in this order: `discover.sysfs` -> `publish.slices` -> `publish.publisher`, and `prepare.decide` ->
`prepare.checkpoint` -> `prepare.cdi` -> `prepare.preparer` -> `kubelet`; health is `discover.health`.
"""
