"""Checks of workloads that have fields for Neuron devices or claims, and of DeviceTaintRules."""
