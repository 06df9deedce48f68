"""kubecel/estimating."""
