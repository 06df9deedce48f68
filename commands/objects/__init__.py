"""Objects of manifest files and of cluster lists, in one view for all commands.

Read in this order: `documents` -> `manifest_files` -> `manifests` -> `decider`. `file_policies` applies policy files.
"""
