"""`neuron-dra report`: every workload with plugin resources: what it becomes, what blocks it, when to migrate.

Not here: the rules of conversion (they are the webhook's), the command line. Only commands import this.

| step | module |
|---|---|
| objects to workloads: owners, pods, nodes | `inventory` |
| objects from files, and from a cluster | `file_inputs`, `cluster_inputs` |
| one workload to an assessment; pure | `assess` |
| existing objects against policies; pure | `audit` |
| all assessments to an order of migration, and which nodes take the pods; pure | `plan`, `places` |
| all of it, object by object; pure | `build` |
| what the webhook logged in shadow mode | `webhook_records` |
| sentences and tables; text, Markdown, HTML, SARIF; JSON | `tables`, `render`, `render_json` |
| PolicyReport objects | `publish` |
"""
