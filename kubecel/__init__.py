"""kubecel."""
