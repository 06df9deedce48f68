"""Draws the device map: in a terminal, as JSON, as SVG, and as a page."""
