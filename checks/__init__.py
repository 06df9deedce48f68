"""Checks of objects that users write themselves: `claims` (claims, templates, DeviceClasses), `workloads`, `words`."""
