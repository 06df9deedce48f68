"""Benchmarks of `make bench`. All cases are measured in one run; compare only their ratios."""
