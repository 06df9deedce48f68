"""The API server as commands read it: which kinds it serves, whole lists, and a pod of a dry run."""
