"""CA and serving certificates: issue, check, and plan their rotation. Pure: content and time in, new content out.

Nothing here knows Neuron, Kubernetes or HTTP. Imported by `webhook`.
"""
