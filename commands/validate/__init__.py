"""`neuron-dra validate`: checks the objects of manifests, and shows findings (text, JSON, SARIF)."""
