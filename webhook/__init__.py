"""The admission webhook and the command line: review -> decision -> patch.

Belongs here: the HTTP edge, decisions about objects, the cluster's caches, the commands.
Must not be here: Neuron rules (they live in `neuron`), CEL (`policies`), certificate making (`certs`).
Imported by nobody.

| what | modules |
|---|---|
| the edge | `wire`, `reviews`, `endpoints`, `bodies`, `connections`, `server`, `health`, `metrics`, `logs` |
| decisions, pure | `pods`, `convert_pods`, `restore_pods`, `leader_worker_sets`, `modes`, `hints`, `check_*` |
| dispatch and effects | `mutate`, `validate`, `ports`, `world`, `claim_world` |
| the cluster | `kube*`, `reflector`, `cluster*`, `standalone` |
| policies | `policy_*`, `policing`, `steering` |
| start and commands | `settings*`, `app`, `cli*`, `demo`, `offline/` |

Read in this order: `wire` -> `pods` -> `decisions` -> `convert_pods` -> `patches` -> `endpoints`.
"""
