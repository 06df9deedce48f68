"""CEL as Kubernetes evaluates it: parse, check, estimate, evaluate within a budget.

Imports nothing of ours; docs/kubecel.md shows its use. Read in this order: `engine` -> `compile` -> `syntax/` ->
`checking/` -> `closures/` -> `library/` -> `estimating/`.
"""
