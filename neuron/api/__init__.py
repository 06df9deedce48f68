"""What API objects say: claims, configs, taints, allocations, quantities, and the versions of resource.k8s.io."""
