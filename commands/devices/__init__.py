"""What is in a cluster, for commands that explain, report and draw it: read once, then pure."""
