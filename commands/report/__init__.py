"""`neuron-dra report`: every workload with plugin resources: what it becomes, what blocks it, when to migrate.

Not here: the rules of conversion (they are the webhook's), the command line. Only commands import this.

| step | module |
|---|---|
| objects to workloads: owners, pods, nodes | `inventory` |
| objects from files, and from a cluster with what the webhook logged in shadow mode | `inputs` |
| one workload to an assessment; pure | `assess` |
| all assessments to an order of migration, and which nodes take the pods; pure | `plan` |
| all of it, object by object, and existing objects against policies; pure | `build` |
| sentences and tables; text, Markdown, HTML, SARIF, JSON | `tables`, `render` |
| PolicyReport objects | `publish` |
"""
