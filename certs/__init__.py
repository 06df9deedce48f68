"""CA and serving certificates: issue, store in files, check, and plan their rotation.

Nothing here knows Neuron, Kubernetes or HTTP. Imported by `webhook`.
"""
