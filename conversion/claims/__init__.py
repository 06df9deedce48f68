"""Computes the claim of a pod.

In call order: `containers` -> `layout` -> `planning` -> `alternatives` -> `making` -> `templates`.
"""
