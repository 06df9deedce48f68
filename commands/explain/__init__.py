"""Explains one pod for `neuron-dra explain`: what admission makes of it, which nodes could take it, what blocks it.

Not here: the rules of conversion and policies (they are the webhook's), the rules of allocation (`neuron.allocator`).

Read in this order: `admission_preview` -> `commands.devices.allocator_inputs` -> `placement` (nodes) ->
`diagnosis` (a pod that waits) -> `render`.
"""
