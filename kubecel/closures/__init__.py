"""kubecel/closures."""
