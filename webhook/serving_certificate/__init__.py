"""The serving certificate: its source (Secret or folder), its rotation, and the caBundle of its CA."""
