"""The admission webhook and the command line: review -> decision -> patch.

Belongs here: the HTTP edge, the conversion of pods, the cluster's caches, the commands.
Must not be here: Neuron rules (they live in `neuron`), certificate making (`certs`).
Imported by nobody.

Read in this order: `wire` -> `pods` -> `decisions` -> `convert_pods` -> `patches` -> `endpoints`.
"""
