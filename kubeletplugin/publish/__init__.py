"""What the node offers: ResourceSlices, pools, taints."""
