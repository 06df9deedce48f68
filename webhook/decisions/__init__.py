"""Decides about objects. Pure: no HTTP, no cluster, no clock."""
