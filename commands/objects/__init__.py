"""Objects of manifest files and of cluster lists, in one view for all commands.

Read in this order: `documents` -> `manifest_files` -> `manifests` -> `file_view`. `file_policies` tests policy files.
"""
