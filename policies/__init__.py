"""Policy files: their schema, loading, evaluation on admission requests, and DRA device selectors.

Read in this order: `schema` (the models of the files) -> `files` (load, test, watch) -> `judging` (evaluate) ->
`selectors` (DRA device selectors). The CEL engine is `kubecel`, the Neuron rules are in `neuron`. No HTTP and no
Kubernetes client here.
"""
