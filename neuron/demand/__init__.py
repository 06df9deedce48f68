"""From a pod to its claim.

In call order: `containers` -> `layout` -> `planning` -> `alternatives` -> `claims` -> `templates`.
"""
