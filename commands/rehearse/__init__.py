"""`neuron-dra rehearse` and `fit`: the migration of a cluster, played before it is done. Pure but for `reads`.

Read in this order:

| step | module |
|---|---|
| objects to a scene: nodes, pods, what admission makes of each pod | `reads`, `gather` |
| nodes and what pods hold of them; where a pod finds place, and why it finds none | `played_nodes` |
| node group by node group: cordon, drain, plugin off, driver on, pods again | `play` |
| all of it: the best order of groups, and spare nodes with which nothing waits | `rehearsing` |
| where one more pod fits: now, after pods end, after pods move | `fitting` |
| sentences and tables of all formats; text, JSON, HTML | `render` |

Not here: the decisions about pods (`commands.report.assess`, which asks the webhook's code), the allocator's model.
"""
