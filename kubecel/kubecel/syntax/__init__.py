"""Parses text to a syntax tree with expanded macros."""
