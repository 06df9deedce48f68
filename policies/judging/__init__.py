"""Evaluates policies on one admission request. Pure: no I/O, and the caller passes the clock."""
