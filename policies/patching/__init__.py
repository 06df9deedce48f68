"""Patches of objects: JSON patches, structured merges, and the difference of two objects. Pure."""
