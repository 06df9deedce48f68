"""Reads and loads policy files, runs their embedded cases, and watches their folder."""
