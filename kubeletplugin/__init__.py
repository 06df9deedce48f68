"""The kubelet plugin: a DRA driver for Neuron devices. sysfs -> slices; claim -> checkpoint -> CDI spec.

Belongs here: discovery, ResourceSlices, the kubelet's gRPC services, prepared claims and what survives a crash.
Must not be here: Neuron rules (they live in `neuron`), anything of the webhook.
Nothing imports this package.

Layers, each importing only what stands to its right:
`cli` > `app` > `probe`, `sweep`, `publish` > `register` > `service` > `driver` > `health`, `prepare`, `pools`, `kube` >
`cdi`, `slices`, `environment`, `emulate` > `checkpoint`, `sysfs` > `files`, `metrics`, `settings`, `logs`, `clock` >
`ports`.

Read in this order: `ports` -> `sysfs` -> `slices` -> `publish`, and `checkpoint` -> `cdi` -> `prepare` -> `service`.
"""
