"""From a checked tree to Python closures, one module for each kind of node."""
