"""What is on the node: devices and their traits from sysfs, PCI and the catalogue; their health; who uses them."""
