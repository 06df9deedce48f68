"""The admission webhook and the command line: review -> decision -> patch.

Belongs here: the HTTP edge, decisions about objects, the cluster's caches, the commands.
Must not be here: Neuron rules (they live in `neuron`), CEL (`policies`), certificate making (`certs`).
Imported by nobody.

| what | where |
|---|---|
| the HTTP edge | `edge/` |
| decisions, pure | `decisions/` |
| dispatch and effects | `mutate`, `validate`, `ports`, `claim_world` |
| the certificate that is served | `certificates`, `certificate_files` |
| the cluster | `cluster/`; without one, `standalone` |
| policy files at work | `policing/` |
| manifests on disk | `offline/` |
| an installation seen from outside | `status/` |
| templates that nobody needs | `prune/` |
| start and commands | `settings*`, `app`, `cli/`, `demo` |

Read in this order: `edge/wire` -> `decisions/pods` -> `decisions/decision` -> `decisions/convert_pods` ->
`decisions/patches` -> `edge/endpoints`.
"""
