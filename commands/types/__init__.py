"""The instance catalogue for people and for autoscalers: figures with their sources, and what a node will publish."""
