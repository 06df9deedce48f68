"""kubecel/syntax."""
