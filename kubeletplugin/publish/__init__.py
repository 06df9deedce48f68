"""What the node offers: ResourceSlices, pools, taints, labels of the Node."""
