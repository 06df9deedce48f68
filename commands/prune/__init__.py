"""`neuron-dra templates`: finds generated ResourceClaimTemplates that nothing needs, and removes them.

Not here: the Kubernetes client (`webhook.cluster.kube`), flags (`commands.cli.templates`).

| step | module |
|---|---|
| lists of templates and of what refers to them, page by page; which may be removed | `reads` |
| mark, wait, check again, remove, restore | `pruner` |
| text and JSON | `render` |

The webhook's part of the protocol is in `webhook.cluster.templates`: it does not rely on a marked template.
"""
