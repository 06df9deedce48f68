"""Tests of kubecel, and what asks an API server for the answers that they compare with."""
