"""The admission webhook: review -> decision -> patch. The service only; what people run is in `commands`.

Belongs here: HTTP, answers to reviews, what the service writes to the cluster, the serving certificate.
Must not be here: Neuron rules (`neuron`), CEL (`kubecel`), policies (`policies`), making of certificates
(`certs`), commands.

Read in this order: `edge/endpoints` -> `reviews/mutate` -> `conversion/decide`, and then `server/app`.
docs/architecture.md has the folders.
"""
