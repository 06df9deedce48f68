"""Findings about pods, and about the claims that they name."""
