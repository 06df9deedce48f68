"""kubecel/library."""
