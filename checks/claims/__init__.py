"""Checks of claims, templates and DeviceClasses; `judging` calls the others."""
