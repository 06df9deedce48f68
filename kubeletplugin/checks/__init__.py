"""Checks of what the driver assumes about its node: readings at the edge, one table of judgements, and who is told."""
