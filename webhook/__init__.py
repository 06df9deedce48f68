"""The admission webhook: review -> decision -> patch. The service only; what people run is in `commands`.

Belongs here: HTTP, decisions about objects, the caches of the cluster, the serving certificate.
Must not be here: Neuron rules (`neuron`), CEL (`kubecel`), policies (`policies`), making of certificates
(`certs`), commands.

Read in this order: `decisions/wire` -> `decisions/pods` -> `decisions/decision` -> `decisions/convert_pods` ->
`decisions/patches` -> `reviews/mutate` -> `edge/endpoints` -> `server/app`. docs/architecture.md has the folders.
"""
