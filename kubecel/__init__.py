"""CEL as Kubernetes evaluates it: parse, check, estimate, evaluate within a budget.

It imports nothing else of this project; docs/kubecel.md shows its use. Read in this order: `engine`, `compile`,
`syntax/`, `checking/`, `closures/`, `library/`, `estimating/`.
"""
