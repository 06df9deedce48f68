"""From a syntax tree to closures over plain dicts and lists.

Belongs here: the tree, types, values, and their semantics. Must not be here: the grammar (`policies.cel`), the
functions that expressions call (`policies.library`).

Read in this order: `syntax` -> `tree` (with `literals`, `macros`) -> `types` -> `values`, `sizes` -> `compiler` ->
`access`, `aggregates`, `operators` (with `arithmetic`), `calls` (with `overloads`), `comprehensions` (with `sorting`).
"""
