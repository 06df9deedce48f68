"""kubecel/checking."""
