"""Functions: the standard ones, cel-go's extensions, and those of Kubernetes."""
