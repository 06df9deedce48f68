"""What the hardware is: instance catalogue, topology, links, windows of consecutive devices, groups, capacities."""
