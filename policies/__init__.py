"""Policy files and the CEL engine that evaluates them.

Belongs here: the CEL engine and the Kubernetes CEL library, the schema and the loading of policy files, the shipped
packs. Must not be here: HTTP, Kubernetes clients, Neuron rules (they live in `neuron`).
May import `neuron`; may be imported by `webhook`.

Read in this order: `engine` (the interface) -> `cel` (source text -> tree -> program) -> `evaluator` (tree ->
closures) -> `library` (the functions) -> `analysis` and `devices` (DRA selectors).
"""
