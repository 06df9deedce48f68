"""CEL as Kubernetes evaluates it: parse, check, estimate, evaluate within a budget.

README.md of the distribution shows its use. Read in this order: `engine`, `compile`,
`syntax/`, `checking/`, `closures/`, `library/`, `estimating/`.
"""
