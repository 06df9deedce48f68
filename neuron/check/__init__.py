"""Checks of claims, templates and device classes; `claims` calls the others."""
