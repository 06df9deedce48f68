"""The admission webhook and the command line: review -> decision -> patch.

Belongs here: HTTP, decisions about objects, the cluster's caches, the commands.
Must not be here: Neuron rules (`neuron`), CEL (`kubecel`), policies (`policies`), certificate making (`certs`).
Nothing imports this package.

Read in this order: `decisions/wire` -> `decisions/pods` -> `decisions/decision` -> `decisions/convert_pods` ->
`decisions/patches` -> `reviews/mutate` -> `edge/endpoints` -> `server/app`. docs/architecture.md has the folders.
"""
