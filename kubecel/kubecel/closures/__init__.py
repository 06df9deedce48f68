"""Compiles a checked tree to Python closures, with one module for each kind of node."""
