"""Where objects have pods and claims, and what a pod says, as it is written."""
