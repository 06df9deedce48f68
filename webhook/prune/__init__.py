"""`neuron-dra templates`: which generated ResourceClaimTemplates no pod needs, and their removal.

Belongs here: what is ours and unused, the order of steps that makes removal safe, what became of each.
Must not be here: the Kubernetes client (`webhook.cluster.kube`), flags (`webhook.cli.templates`).

| what | where |
|---|---|
| which ones, pure | `decide` |
| lists of templates and pods, page by page | `reads` |
| mark, wait, look again, remove, heal | `pruner` |
| text and JSON | `render` |

The webhook's half of the protocol is in `webhook.cluster.templates`: it does not rely on a marked template.
"""
